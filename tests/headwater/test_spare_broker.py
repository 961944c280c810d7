"""Starting a broker for a drill: what the machine lacks, and what was restored wrongly. A real one: tests/peers/test_drill.py."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import recovery
from headwater.spare_broker import check_kafka_home, running_broker
from headwater_core.errors import HeadwaterError, TransientError, Unauthorised, UsageError, VerificationFailed
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER
from headwater_core.segments.metadata.metadata_snapshot import write_snapshot
from manifests.repository import ManifestRepository
from tests.recovery.test_cluster_state import Kitchen
from tests.recovery.written_archive import Archive, plain


def start(tmp_path: Path, java: str) -> None:
    """With a program that stands for Java."""
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    plan = recovery.plan(ManifestRepository(archive.store), None)
    program = tmp_path / "java"
    program.write_text(f"#!/bin/sh\n{java}\n")
    program.chmod(0o700)
    for name in ("log", "work", "kafka"):
        (tmp_path / name).mkdir(exist_ok=True)
    with running_broker(str(program), tmp_path / "kafka", tmp_path / "log", tmp_path / "work", plan):
        raise AssertionError("it serves")


AFTER = 'case "$*" in *--version) exit 0;; esac; '  # Kafka itself runs; what follows is the broker


@pytest.mark.parametrize(
    ("java", "error"),
    [
        ("echo 'Could not reserve enough space for code cache' >&2; exit 1", TransientError),  # as under MemoryDenyWriteExecute
        ("echo 'ClassNotFoundException: kafka.Kafka'; exit 1", TransientError),
        ("kill -ABRT $$", TransientError),
        (AFTER + "kill -KILL $$", TransientError),  # by the kernel, when memory is short
        (AFTER + "exit 143", TransientError),
        (AFTER + "echo 'java.io.IOException: No space left on device'; exit 1", TransientError),
        (AFTER + "echo 'java.net.BindException: Address already in use'; exit 1", TransientError),
        (AFTER + "echo 'java.lang.OutOfMemoryError: Java heap space'; exit 3", TransientError),
        (AFTER + "echo 'CorruptRecordException'; exit 1", VerificationFailed),
    ],
)
def test_only_a_broker_that_could_run_and_ended_by_itself_says_something_of_what_was_restored(
    java: str, error: type[HeadwaterError], tmp_path: Path
) -> None:
    with pytest.raises(error) as raised:
        start(tmp_path, java)
    assert type(raised.value) is error


@pytest.mark.parametrize(("failure", "error"), [(PermissionError(13, "denied"), Unauthorised), (OSError(12, "no memory"), TransientError)])
def test_a_process_that_cannot_be_made_is_no_damage(
    failure: OSError, error: type[HeadwaterError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr("headwater.spare_broker.subprocess.Popen", fail)
    with pytest.raises(error):
        start(tmp_path, "exit 0")


def test_a_settings_file_that_is_there_already_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    settings = tmp_path / "work" / "server.properties"
    settings.touch()
    settings.chmod(0o644)
    with pytest.raises(VerificationFailed):
        start(tmp_path, AFTER + "exit 1")
    assert settings.stat().st_mode & 0o777 == 0o600


def test_a_directory_without_jars_is_no_kafka(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no unpacked Kafka"):
        check_kafka_home(tmp_path)


def test_a_broker_forgets_soon_and_by_the_settings_that_are_restored(tmp_path: Path) -> None:
    for name in ("log", "work"):
        (tmp_path / name).mkdir()
    state = replace(
        Kitchen().state,
        configs={
            (RESOURCE_BROKER, ""): {"offsets.retention.minutes": "11", "producer.id.expiration.ms": "no number\nlisteners=x"},
            (RESOURCE_BROKER, "1"): {"transactional.id.expiration.ms": "22"},
            (RESOURCE_BROKER, "2"): {"offsets.retention.minutes": "33"},
        },
    )
    (tmp_path / "log" / "bootstrap.checkpoint").write_bytes(write_snapshot(state, secrets=True, timestamp_ms=0))
    with pytest.raises(VerificationFailed):
        start(tmp_path, AFTER + "exit 1")
    lines = (tmp_path / "work" / "server.properties").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    assert settings["offsets.retention.minutes"] == "11"
    assert settings["transactional.id.expiration.ms"] == "22"
    assert "producer.id.expiration.ms" not in settings
    checks = (
        "offsets.retention.check.interval.ms",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "producer.id.expiration.check.interval.ms",
    )
    assert {settings[name] for name in checks} == {"1000"}
