"""Standard streams that are closed, full, or whose reader has gone: they change neither what a verb does nor its exit code."""

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.headwater.conftest import Stage
from tests.headwater.test_agent import DEADLINE_S, running

ROOT = Path(__file__).parents[2]
HEADWATER = f"'{sys.executable}' -c 'from headwater.cli import main; main()'"


def shell(stage: Stage, line: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run `line` in bash; HEADWATER in it is the program, PLACES the stage's directories."""
    places = f"--data-dir '{stage.data_dir}' --store 'file://{stage.bucket}'"
    line = line.replace("HEADWATER", HEADWATER).replace("PLACES", places)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=stage.root, env=environ, timeout=120)


def damage_one_object(stage: Stage) -> None:
    victim = max((stage.bucket / "data").rglob("*.log"), key=lambda path: (path.stat().st_size, path.name))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.chmod(0o644)
    victim.write_bytes(content)


@pytest.mark.parametrize("form", ["table", "json", "jsonl"])
def test_a_verdict_survives_a_reader_that_has_gone(stage: Stage, form: str) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    damage_one_object(stage)
    ran = shell(stage, f"HEADWATER verify --data -o {form} PLACES | true; exit ${{PIPESTATUS[0]}}")
    assert ran.returncode == 4, ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_watched_status_goes_on_in_a_pipe_until_its_reader_has_gone(stage: Stage) -> None:
    log = stage.log("kitchen")
    watch = f"HEADWATER status --watch --interval 500ms PLACES --log-dir '{log}'"
    ran = shell(stage, f"{watch} | grep --line-buffered -m 2 'every 500ms'; exit ${{PIPESTATUS[0]}}")
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 2
    assert "\x1b" not in ran.stdout


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_verb_works_with_closed_streams(stage: Stage, closed: str) -> None:
    log = stage.log("kitchen")
    ran = shell(stage, f"HEADWATER flush PLACES --log-dir '{log}' -o jsonl {closed}")
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert shell(stage, f"HEADWATER topics list PLACES {closed}").returncode == 0
    assert shell(stage, f"HEADWATER topics list nonesuch PLACES {closed}").returncode == 2
    assert stage.run("verify", "--data").code == 0  # nothing that was printed went into a file


def test_output_that_cannot_be_written_is_a_failure(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    ran = shell(stage, "HEADWATER topics list PLACES >/dev/full")
    assert ran.returncode == 1
    assert "No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_is_utf8_whatever_the_locale(stage: Stage, encoding: str) -> None:
    assert stage.run("flush", log=stage.log("pantry")).code == 0
    command = "HEADWATER read orders.placed -o jsonl PLACES"
    odd, usual = shell(stage, command, PYTHONIOENCODING=encoding), shell(stage, command)
    assert (odd.returncode, odd.stdout) == (0, usual.stdout)
    assert not usual.stdout.isascii()


def test_a_table_shows_what_the_terminal_can(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    ran = shell(stage, "HEADWATER topics list PLACES", PYTHONIOENCODING="ascii")
    assert ran.returncode == 0, ran.stderr
    assert "orders.in" in ran.stdout


def test_the_agent_stops_when_its_log_cannot_be_written(stage: Stage) -> None:
    """A limit on the size of its files stands for a full disk."""
    log = stage.log("kitchen")
    path = stage.root / "agent.log"
    places = ["--data-dir", str(stage.data_dir), "--store", f"file://{stage.bucket}", "--log-dir", str(log)]
    command = [sys.executable, "-c", "from headwater.cli import main; main()", "agent", *places]
    command += ["--set", "gateway.listen=127.0.0.1:0", "--set", "admin.listen="]
    with path.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, cwd=stage.root, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        pause = threading.Event()
        for _ in range(DEADLINE_S * 20):
            if b"serving on" in path.read_bytes() or process.poll() is not None:
                break
            pause.wait(0.05)
        size = path.stat().st_size
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, size))
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


def test_the_agent_goes_on_when_the_reader_of_its_log_has_gone(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log) as agent:
        agent.wait_for("gateway_started")
        assert agent.process.stderr is not None
        reading = agent.process.stderr.fileno()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, reading)  # the only reader of the pipe has gone; whoever writes now gets EPIPE
        os.close(null)
        ran = stage.run("flush", "-o", "jsonl", log=log)  # every archived run is an event
        assert ran.code == 0, ran.err
        assert agent.process.poll() is None
        assert agent.stop() == 0
