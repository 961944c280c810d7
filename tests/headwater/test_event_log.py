"""How events reach stderr: format, level, and that no line is anything else."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from headwater import event_log
from headwater.config import load
from headwater.event_log import LogFormat, LogLevel
from headwater.job_options import PROCESSES_FROM_BYTES, JobPlacement
from tests.headwater.conftest import Stage
from tests.headwater_core.objectstore.memory import MemoryStore


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    out, err = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in err.splitlines()]


def test_into_a_pipe_an_event_is_one_json_object_with_its_time_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    event_log.configure()
    try:
        raise ValueError("two\nlines")
    except ValueError:
        structlog.get_logger().exception("archive_failed", partition="soup:0")
    [event] = written(capsys)
    assert (event["event"], event["level"], event["partition"]) == ("archive_failed", "error", "soup:0")
    assert event["timestamp"].endswith("Z")
    assert "ValueError" in event["exception"]
    assert list(event)[:3] == ["timestamp", "level", "event"]


def test_no_field_shows_the_credentials_of_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    event_log.configure()
    try:
        raise ValueError("https://me:secret@host/?token=t0ken")
    except ValueError:
        structlog.get_logger().exception("archive_failed", reason="s3://key:se/cret@bucket refused")
    [event] = written(capsys)
    assert event["reason"] == "s3://***@bucket refused"
    assert "secret" not in event["exception"]
    assert "t0ken" not in event["exception"]


def test_the_format_can_be_chosen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    event_log.configure(form=LogFormat.CONSOLE)
    structlog.get_logger().warning("store_silent", reason="no answer")
    assert capsys.readouterr().err.split()[1:] == ["[warning", "]", "store_silent", "reason='no", "answer'"]  # and no colours
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    event_log.configure(form=LogFormat.JSON)
    structlog.get_logger().warning("store_silent", reason="no answer")
    [event] = written(capsys)
    assert event["event"] == "store_silent"
    event_log.configure()
    structlog.get_logger().warning("store_silent", reason="no answer")
    assert not capsys.readouterr().err.startswith("{")


@pytest.mark.parametrize(
    ("level", "default", "expected"),
    [
        (LogLevel.AUTO, LogLevel.WARNING, ["warning", "error"]),
        (LogLevel.AUTO, LogLevel.INFO, ["info", "warning", "error"]),
        (LogLevel.DEBUG, LogLevel.WARNING, ["debug", "info", "warning", "error"]),
        (LogLevel.ERROR, LogLevel.INFO, ["error"]),
    ],
)
def test_less_than_the_level_is_left_out(
    level: LogLevel, default: LogLevel, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    event_log.configure(level, default=default)
    for each in ("debug", "info", "warning", "error"):
        getattr(structlog.get_logger(), each)("agent_stopped")
    assert [event["level"] for event in written(capsys)] == expected


def test_what_a_library_logs_is_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    event_log.configure()
    library = logging.getLogger("pysyncobj.syncobj")
    library.info("nobody wants to know")
    library.warning("failed to %s", "resolve")
    logging.getLogger("asyncio").warning("socket.send() raised exception.")
    library.critical("entries truncated")
    found = [(event["event"], event["level"], event["library"], event["reason"]) for event in written(capsys)]
    assert found == [
        ("library_reported", "warning", "pysyncobj.syncobj", "failed to resolve"),
        ("library_reported", "error", "pysyncobj.syncobj", "entries truncated"),
    ]


def test_events_that_could_not_be_written_are_counted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    event_log.configure()
    log = structlog.get_logger()

    def full(_: str) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sys.stderr, "write", full)
        for number in range(3):
            log.error("gap_recorded", partition=f"soup:{number}")
    log.error("gap_recorded", partition="soup:9")
    assert [(event["event"], event.get("events")) for event in written(capsys)] == [("events_dropped", 3), ("gap_recorded", None)]


@contextmanager
def a_pipe_for_stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Its reading end."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        yield reading
    os.close(reading)


def drained(reading: int) -> list[str]:
    """The lines that wait in the pipe."""
    os.set_blocking(reading, False)
    found = b""
    while True:
        try:
            found += os.read(reading, 1 << 20)
        except BlockingIOError:
            return found.decode().splitlines()


def test_a_pipe_that_nobody_reads_keeps_no_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    event_log.configure()
    log = structlog.get_logger()
    with a_pipe_for_stderr(monkeypatch) as pipe:
        for number in range(15):
            log.error("gap_recorded", partition=f"soup:{number}", reason="x" * 10_000)
        *whole, cut = drained(pipe)
        assert {json.loads(line)["event"] for line in whole} == {"gap_recorded"}
        with pytest.raises(ValueError, match="Unterminated"):
            json.loads(cut)
        log.warning("store_silent", reason="no answer")
        after = [json.loads(line) for line in drained(pipe) if line]
    assert [(event["event"], event.get("events")) for event in after] == [("events_dropped", 15 - len(whole)), ("store_silent", None)]


@pytest.mark.parametrize("stream", ["/dev/full", "a pipe without a reader"])
def test_a_message_that_cannot_be_written_changes_no_exit_code(stream: str, tmp_path: Path) -> None:
    """Python would end with 120 when it could not flush stderr at its own end."""
    if stream == "/dev/full":
        descriptor = os.open(stream, os.O_WRONLY)
    else:
        reading, descriptor = os.pipe()
        os.close(reading)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", "from headwater.cli import main; main()", "archive", "--data-dir", str(tmp_path)]
    try:
        assert subprocess.run(command, stderr=descriptor, env=environ, timeout=60).returncode == 2
    finally:
        os.close(descriptor)


def test_options_before_and_after_the_verb_and_the_configuration_say_the_same(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stage.log("kitchen")
    shown = stage.run("config", "show", "-o", "jsonl")
    defaults = {row["key"]: row["value"] for row in shown.rows if row["key"].startswith("node.log_")}
    assert defaults == {"node.log_level": "auto", "node.log_format": "auto"}
    ran = stage.run("flush", "--log-level", "info", log=log)
    assert '"event": "run_archived"' in ran.err
    (stage.root / "headwater.toml").write_text('[node]\nlog_level = "info"\nlog_format = "console"\n')
    assert "partition_claimed" not in stage.run("flush", "--log-level", "error", log=log).err
    again = stage.root / "again"
    console = stage.run("flush", "--data-dir", str(again), "--store", f"file://{again}/bucket", log=log).err
    assert " run_archived " in console
    assert '"event"' not in console
    monkeypatch.setenv("HEADWATER_NODE_LOG_FORMAT", "json")
    third = stage.root / "third"
    program = stage.run_bare(
        "--log-level", "info", "flush", "--data-dir", str(third), "--store", f"file://{third}/bucket", "--log-dir", str(log)
    )
    assert '"event": "run_archived"' in program.err
    assert stage.run_bare("--log-level", "loud", "archive").code == 2


def complain(_: object, partition: str) -> None:
    structlog.get_logger().warning("damage_set_aside", partition=partition)


def complain_of_two(_: object, partition: str) -> None:
    for number in range(2):
        complain(_, f"{partition}-{number}")


def test_what_a_worker_process_has_counted_is_written_when_it_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bucket").mkdir()
    config = load(None, {}, {"store.url": f"file://{tmp_path}/bucket"})
    with JobPlacement(master=None, submitted=False, workers=2).runner(config, MemoryStore(), "scan", PROCESSES_FROM_BYTES) as runner:
        list(runner.each(complain_of_two, ["soup"]))
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(event["partition"], event.get("repeats")) for event in events] == [("soup-0", None), ("soup-1", 1)]


def test_worker_processes_write_their_events_to_stderr_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bucket").mkdir()
    config = load(None, {}, {"store.url": f"file://{tmp_path}/bucket"})
    placement = JobPlacement(master=None, submitted=False, workers=2)
    with placement.runner(config, MemoryStore(), "scan", PROCESSES_FROM_BYTES) as runner:
        list(runner.each(complain, ["soup:0", "soup:1"]))
    out, err = capfd.readouterr()
    assert out == ""
    assert sorted(json.loads(line)["partition"] for line in err.splitlines()) == ["soup:0", "soup:1"]


def test_what_was_counted_is_written_when_the_verb_ends(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def repeat(*_: object, **__: object) -> object:
        for number in range(5):
            structlog.get_logger().warning("archive_not_listed", reason=f"no answer from port {number}")
        return ()

    monkeypatch.setattr("headwater.config.shown", repeat)
    lines = [json.loads(line) for line in stage.run("config", "show").err.splitlines()]
    assert [(line["event"], line.get("repeats")) for line in lines] == [("archive_not_listed", None), ("archive_not_listed", 4)]
