"""The agent as a process: it archives by itself, serves, answers one-shot verbs, and stops when told."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwater.replay import consume
from tests.fixtures import expected
from tests.headwater.conftest import Stage
from tests.headwater.gateway.raw import RawClient, a_fetch
from tests.headwater_core.objectstore.badnetwork import bad_network
from tests.peers.kafka import free_port
from tests.s3server import S3Server

DEADLINE_S = 60


@dataclass(frozen=True, slots=True)
class Agent:
    process: "subprocess.Popen[str]"
    events: list[dict[str, Any]]
    seen: threading.Condition
    silent: threading.Event  # set when nothing more will be told: the process has ended, or closed its stderr

    def wait_for(self, event: str, times: int = 1, **fields: object) -> dict[str, Any]:
        """The event once it was told `times` times with these fields. Fails at once when the process ends before."""

        def reported() -> list[dict[str, Any]]:
            return [
                each for each in self.events if each["event"] == event and all(each.get(name) == value for name, value in fields.items())
            ]

        with self.seen:
            self.seen.wait_for(lambda: len(reported()) >= times or self.silent.is_set(), DEADLINE_S)
            assert len(reported()) >= times, f"no {event}; " + "\n".join(str(each) for each in self.events[-20:])
        return reported()[-1]

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return self.process.wait(DEADLINE_S)


@contextmanager
def running(stage: Stage, log: Path | None, *options: str, **environ: str) -> Iterator[Agent]:
    command = [
        sys.executable,
        "-m",
        "tests.kill_at",
        "agent",
        "--data-dir",
        str(stage.data_dir),
    ]
    command += ["--store", f"file://{stage.bucket}", "--set", "gateway.listen=127.0.0.1:0", "--set", "admin.listen="]
    command += ["--set", "archival.rescan=1s", *options]
    command += ["--log-dir", str(log)] if log else []
    repository = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=stage.root, env={**os.environ, "PYTHONPATH": repository, **environ}
    )
    agent = Agent(process, [], threading.Condition(), threading.Event())

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            with agent.seen:
                agent.events.append(json.loads(line) if line.startswith("{") else {"event": line.strip()})
                agent.seen.notify_all()
        with agent.seen:
            agent.silent.set()
            agent.seen.notify_all()

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield agent
    finally:
        process.kill()
        process.wait()
        listener.join()
        assert process.stderr is not None
        process.stderr.close()


def test_the_agent_archives_serves_answers_and_stops(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log, "--set", "archival.seal_timeout=0s", "--set", "log.owned=true") as agent:
        address = agent.wait_for("gateway_started")["listen"]
        second = stage.run("agent", log=log)
        assert (second.code, "in use by process" in second.err) == (7, True)
        handed_over = stage.run("flush", "-o", "jsonl", log=log)
        assert handed_over.code == 0, handed_over.err
        assert handed_over.rows
        assert stage.run("archive", "absent", log=log).code == 6
        got = list(consume(address, committed=False, keep=lambda topic: not topic.startswith("__")))
        assert sorted(got, key=lambda record: (record["topic"], record["partition"], record["offset"])) == expected(
            "kitchen", "read_uncommitted"
        )
        assert {row["state"] for row in stage.run("status", "-o", "jsonl", log=log).rows} == {"archived"}
        assert agent.stop() == 0
    assert not (stage.data_dir / "agent.sock").exists()
    assert stage.run("archive", log=log).code == 0  # the data directory is free again


def test_a_configuration_that_has_changed_is_taken_up_without_a_restart(stage: Stage) -> None:
    file = stage.root / "agent.toml"
    file.write_text("[archival]\narchive = 'off'\nseal_timeout = '0s'\n")
    log = stage.log("kitchen")
    options = ("--config", str(file), "--set", "log.owned=true")
    reload = ("config", "reload", "-o", "jsonl", "--config", str(file))

    def states() -> set[str]:
        return {row["state"] for row in stage.run("status", "-p", "-o", "jsonl", "--config", str(file), log=log).rows}

    with running(stage, log, *options) as agent:
        agent.wait_for("gateway_started")
        assert states() == {"excluded"}
        assert "partition_claimed" not in {each["event"] for each in agent.events}
        file.write_text("[archival]\narchive = 'auto'\nseal_timeout = '0s'\nuploads_in_flight = 0\n")
        agent.process.send_signal(signal.SIGHUP)
        assert "uploads_in_flight is 0" in agent.wait_for("config_refused")["reason"]
        file.write_text("[archival]\narchive = 'auto'\nseal_timeout = '0s'\nuploads_in_flight = 2\n[node]\nid = 'other'\n")
        agent.process.send_signal(signal.SIGHUP)
        reloaded = agent.wait_for("config_reloaded")
        assert (reloaded["changed"], reloaded["needs_restart"]) == (["archival.archive", "archival.uploads_in_flight"], ["node.id"])
        agent.wait_for("run_archived", times=3)
        file.write_text("[archival\n")
        refused = stage.run(*reload)
        assert (refused.code, "is not TOML" in refused.err) == (2, True)
        file.write_text("[archival]\narchive = 'off'\nseal_timeout = '0s'\n")
        rows = stage.run(*reload).rows
        assert [(row["key"], row["effect"]) for row in rows] == [("archival.archive", "changed"), ("archival.uploads_in_flight", "changed")]
        assert agent.stop() == 0
    assert stage.run(*reload).code == 6


def test_the_agent_can_be_interrupted(stage: Stage) -> None:
    with running(stage, stage.log("kitchen")) as agent:
        agent.wait_for("gateway_started")
        assert agent.stop(signal.SIGINT) == 130


def test_whoever_waits_for_an_agent_that_ended_learns_why(stage: Stage) -> None:
    with running(stage, stage.root / "absent") as agent:
        with pytest.raises(AssertionError, match="absent does not exist"):
            agent.wait_for("gateway_started")
        assert agent.process.wait(DEADLINE_S) == 2


@contextmanager
def held_up(path: Path, agent: Agent) -> Iterator[None]:
    """From when the agent reads `path` to the end of the block, it waits for what is in there."""
    path.unlink()
    os.mkfifo(path)
    pause, fd = threading.Event(), -1
    while fd < 0:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody reads it yet
                raise
            assert agent.process.poll() is None
            pause.wait(0.02)
    try:
        yield
    finally:
        os.close(fd)


def test_an_agent_that_is_told_twice_goes_at_once(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log) as agent:
        agent.wait_for("gateway_started")
        with held_up(log / "orders.in-0" / "leader-epoch-checkpoint", agent):
            agent.process.send_signal(signal.SIGTERM)
            agent.wait_for("stop_requested", signal="SIGTERM")
            assert agent.process.poll() is None
            assert agent.stop() == 143


def test_an_agent_that_is_told_once_finishes_what_it_does(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log) as agent:
        agent.wait_for("gateway_started")
        with held_up(log / "orders.in-0" / "leader-epoch-checkpoint", agent):
            agent.process.send_signal(signal.SIGTERM)
            agent.wait_for("stop_requested")
        assert agent.process.wait(DEADLINE_S) == 0


def test_the_agent_tells_what_stops_a_partition(stage: Stage) -> None:
    log = stage.log("kitchen")
    (log / "orders.in-0" / "partition.metadata").write_bytes(b"version: 0\ntopic_id: nonsense\n")
    with running(stage, log) as agent:
        agent.wait_for("archive_stopped", partition="orders.in:0")
        rows = stage.run("status", "orders.in:0", "-o", "jsonl", log=log).rows
        assert [row["state"] for row in rows] == ["stopped"]


def test_a_partition_that_appears_while_the_agent_runs_is_archived(stage: Stage) -> None:
    log = stage.log("kitchen")
    aside = stage.root / "aside"
    (log / "orders.in-0").rename(aside)
    with running(stage, log, "--set", "archival.seal_timeout=0s") as agent:
        agent.wait_for("gateway_started")
        aside.rename(log / "orders.in-0")
        agent.wait_for("run_archived", partition="orders.in:0")


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        "archive.uploaded",
        "release.log_unlinked",
        *(pytest.param(f"archive.{step}", marks=pytest.mark.long) for step in ("claimed", "committed", "announced")),
    ],
)
def test_an_agent_killed_at_any_step_goes_on_without_an_operator(stage: Stage, step: str) -> None:
    log = stage.log("pantry")
    options = ("--set", "archival.seal_timeout=0s", "--set", "log.owned=true")
    with running(stage, log, *options, KILL_AT=f"{step}:3") as agent:
        assert agent.process.wait(DEADLINE_S) == -signal.SIGKILL
    assert stage.run("flush", "--set", "log.owned=true", log=log).code == 0
    rows = stage.run("status", "-o", "jsonl", log=log).rows
    assert {row["state"] for row in rows} == {"archived"}
    assert stage.run("verify", "--data", "-o", "jsonl").code == 0
    read = stage.run("read", "thermo-samples", log=log).rows
    assert [(row["partition"], row["offset"]) for row in read] == [
        (record["partition"], record["offset"]) for record in expected("pantry", "read_uncommitted") if record["topic"] == "thermo-samples"
    ]


def test_an_agent_without_log_directories_serves_the_archive(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    with running(stage, None) as agent:
        address = agent.wait_for("gateway_started")["listen"]
        got = list(consume(address, committed=True, keep=lambda topic: topic == "orders.in"))
        wanted = [record for record in expected("kitchen", "read_committed") if record["topic"] == "orders.in"]
        assert sorted(got, key=lambda record: (record["partition"], record["offset"])) == wanted
        assert agent.stop() == 0


@pytest.mark.parametrize("mount_point", [False, True])
def test_an_agent_starts_while_its_archive_is_not_mounted_and_goes_on_when_it_is(stage: Stage, mount_point: bool) -> None:
    log = stage.log("kitchen")
    assert stage.run("archive", "--set", "log.owned=true", log=log).code == 0
    away = stage.root / "away"
    stage.bucket.rename(away)
    if mount_point:
        stage.bucket.mkdir()
    with running(stage, log, "--set", "archival.seal_timeout=0s", "--set", "log.owned=true") as agent:
        reported = agent.wait_for("store_unavailable")
        assert (reported["level"], "mount it" in reported["reason"]) == ("error", True)
        address = agent.wait_for("gateway_started")["listen"]
        agent.wait_for("archive_stopped")
        assert not stage.bucket.exists() or list(stage.bucket.iterdir()) == []
        if mount_point:
            stage.bucket.rmdir()
        away.rename(stage.bucket)
        agent.wait_for("store_available")
        agent.wait_for("run_archived")
        assert list(consume(address, committed=False, keep=lambda topic: topic == "orders.in"))
        assert agent.stop() == 0


def test_an_agent_starts_while_the_store_does_not_answer(stage: Stage) -> None:
    credentials = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "r", "AWS_EC2_METADATA_DISABLED": "true"}
    nobody = ("--store", "s3://bucket/prefix", "--set", "store.endpoint_url=http://127.0.0.1:1")
    with running(stage, stage.log("kitchen"), *nobody, "--set", "log.owned=true", **credentials) as agent:
        assert agent.wait_for("store_unavailable")["level"] == "warning"
        agent.wait_for("gateway_started")
        assert not (stage.data_dir / "store.json").exists()
        assert agent.stop() == 0


def test_an_agent_serves_what_is_local_while_the_store_is_silent(stage: Stage) -> None:
    credentials = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "r", "AWS_EC2_METADATA_DISABLED": "true"}
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections, and that is all
        store = ("--store", "s3://bucket/prefix", "--set", f"store.endpoint_url=http://127.0.0.1:{silent.getsockname()[1]}")
        with running(stage, stage.log("kitchen"), *store, "--set", "log.owned=true", **credentials) as agent:
            host, port = agent.wait_for("gateway_started")["listen"].rsplit(":", 1)
            with RawClient((host, int(port)), DEADLINE_S) as client:
                assert client.fetch(a_fetch(("orders.in", 0, 0)))["records"]


def test_an_agent_with_wrong_credentials_says_so_as_an_error_and_goes_on(stage: Stage, s3_server: S3Server) -> None:
    environ = {**s3_server.environ(), "AWS_SECRET_ACCESS_KEY": "wrong" * 8}
    options = ("--store", f"s3://{s3_server.bucket()}", "--set", f"store.endpoint_url={s3_server.endpoint_url}", "--set", "log.owned=true")
    with running(stage, stage.log("kitchen"), *options, **environ) as agent:
        assert agent.wait_for("store_unavailable")["level"] == "error"
        agent.wait_for("gateway_started")
        assert agent.stop() == 0


def test_an_agent_lives_through_two_rotations_of_its_key(stage: Stage, s3_server: S3Server) -> None:
    file = stage.root / "credentials"
    s3_server.write_credentials(file, s3_server.access_key)
    environ = {**s3_server.environ(), "AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    log = stage.log("kitchen")
    with bad_network(s3_server.endpoint_url) as network:
        store = ("--store", f"s3://{s3_server.bucket()}", "--set", f"store.endpoint_url={network.endpoint_url}")
        with running(stage, log, *store, "--set", "log.owned=true", **environ) as agent:
            agent.wait_for("gateway_started")
            agent.wait_for("partition_claimed")
            for old, new, topic in zip((s3_server.access_key, "second"), s3_server.more_keys, ("orders.in", None), strict=True):
                network.expired.add(old)
                s3_server.write_credentials(file, new)
                flushed = stage.run("flush", *filter(None, [topic]), *store, "--set", "log.owned=true", log=log)
                assert flushed.code == 0, flushed.err
                agent.wait_for("store_credentials_reloaded")
            assert agent.stop() == 0
        assert not [event for event in agent.events if event.get("level") in ("warning", "error")]
    assert list(dict.fromkeys(passage.key for passage in network.passages if not passage.fate.status)) == ["test", "second", "third"]


def test_an_agent_whose_messages_cannot_be_written_stops_as_others_do(stage: Stage) -> None:
    command = [sys.executable, "-m", "tests.kill_at", "agent", "--data-dir", str(stage.data_dir), "--store", f"file://{stage.bucket}"]
    command += ["--set", "gateway.listen=127.0.0.1:0", "--set", "admin.listen=", "--log-dir", str(stage.log("kitchen"))]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, open("/dev/full", "w") as full:
        manager.bind(str(stage.root / "notify"))
        manager.settimeout(DEADLINE_S)
        environ |= {"PYTHONPATH": str(Path(__file__).parents[2]), "NOTIFY_SOCKET": str(stage.root / "notify")}
        process = subprocess.Popen(command, stderr=full, env=environ)
        try:
            while b"READY=1" not in manager.recv(4096):
                pass
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            process.wait()


def test_an_agent_of_another_store_does_not_start(stage: Stage) -> None:
    log = stage.log("kitchen")
    assert stage.run("archive", "--set", "log.owned=true", log=log).code == 0
    other = stage.run("agent", "--store", f"file://{stage.root}/other", log=log)
    assert other.code == 2
    assert "belongs to" in other.err
    assert not (stage.root / "other").exists()


def test_an_agent_starts_without_a_quorum_of_the_control_log_and_archives(stage: Stage) -> None:
    listen, *peers = (f"127.0.0.1:{free_port()}" for _ in range(3))
    quorum = ("--set", f"control.listen={listen}", "--set", "control.peers=" + ",".join(peers))
    with running(stage, stage.log("kitchen"), *quorum, "--set", "archival.seal_timeout=0s", "--set", "log.owned=true") as agent:
        agent.wait_for("gateway_started")
        agent.wait_for("run_archived", times=3)
        assert "leader" in agent.wait_for("control_log_unavailable")["reason"]
        assert agent.stop() == 0
