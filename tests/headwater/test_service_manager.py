"""What a service manager is told, over its own socket, and the unit file that has it listen."""

import asyncio
import configparser
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headwater.service_manager import ServiceManager
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import DEADLINE_S, running

UNIT = Path(__file__).parents[2] / "contrib" / "systemd" / "headwater.service"


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(address)
        end.settimeout(DEADLINE_S)
        yield end


def heard(end: socket.socket) -> str:
    """The next message that is no sign of life."""
    while True:
        message = end.recv(4096).decode()
        if message != "WATCHDOG=1":
            return message


@pytest.mark.parametrize("abstract", [False, True])
def test_each_message_is_a_datagram(tmp_path: Path, abstract: bool) -> None:
    name = f"headwater-{os.getpid()}"
    with listening("\0" + name if abstract else str(tmp_path / name)) as end:
        manager = ServiceManager("@" + name if abstract else str(tmp_path / name))
        with manager.reload():
            pass  # nobody was told that it is ready, so nobody is told that it is again
        manager.ready()
        assert heard(end) == "READY=1"
        with manager.reload():
            assert heard(end).startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert heard(end) == "READY=1"
        manager.stopping()
        assert heard(end) == "STOPPING=1"


def test_signs_of_life_come_from_the_event_loop(tmp_path: Path) -> None:
    async def alive(manager: ServiceManager, end: socket.socket) -> None:
        watched = asyncio.create_task(manager.watched())
        for _ in range(3):
            assert await asyncio.get_running_loop().sock_recv(end, 100) == b"WATCHDOG=1"
        watched.cancel()

    with listening(str(tmp_path / "notify")) as end:
        end.setblocking(False)
        asyncio.run(alive(ServiceManager(str(tmp_path / "notify"), 0.01), end))


@pytest.mark.parametrize(
    ("environment", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_environment_says_how_often(environment: dict[str, str], watchdog_s: float | None) -> None:
    assert ServiceManager.of(environment).watchdog_s == watchdog_s


def test_without_one_nothing_is_sent() -> None:
    manager = ServiceManager.of({"WATCHDOG_USEC": "1"})
    with capture_logs() as events:
        manager.ready()
        asyncio.run(manager.watched())  # returns at once
    assert events == []


def test_one_that_is_gone_is_reported_once(tmp_path: Path) -> None:
    with capture_logs() as events:
        for address in (str(tmp_path / "gone"), "a name\0that is none", "x" * 200):
            manager = ServiceManager(address)
            manager.ready()
            manager.stopping()
    assert [event["event"] for event in events] == 3 * ["service_manager_unreachable"]


def test_an_agent_says_when_it_serves_reloads_and_stops(stage: Stage, tmp_path: Path) -> None:
    with (
        listening(str(tmp_path / "notify")) as end,
        running(stage, None, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="100000") as agent,
    ):
        assert heard(end) == "READY=1"
        for _ in range(3):
            assert end.recv(4096) == b"WATCHDOG=1"
        agent.process.send_signal(signal.SIGHUP)
        assert heard(end).startswith("RELOADING=1\n")
        assert heard(end) == "READY=1"
        agent.process.send_signal(signal.SIGTERM)
        assert heard(end) == "STOPPING=1"
        assert agent.process.wait(DEADLINE_S) == 0


def test_the_unit_is_one_that_systemd_takes_and_its_command_one_that_we_do(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text("utf-8"))
    assert unit["Service"]["Type"] == "notify"
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert (arguments[0], arguments[2:]) == ("--config", ["agent"])
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here; the unit parses")
    (tmp_path / UNIT.name).write_text(UNIT.read_text("utf-8").replace(program, sys.executable))
    said = subprocess.run([analyze, "verify", "--man=no", tmp_path / UNIT.name], capture_output=True, text=True, check=False, timeout=60)
    assert (said.returncode, [line for line in said.stderr.splitlines() if UNIT.name in line]) == (0, [])
    security: list[str | Path] = [
        analyze,
        "security",
        "--offline=true",
        "--threshold=20",
        tmp_path / UNIT.name,
    ]  # of 100: "exposure level 2.0"
    exposure = subprocess.run(security, capture_output=True, text=True, check=False, timeout=60)
    assert exposure.returncode == 0, exposure.stdout
