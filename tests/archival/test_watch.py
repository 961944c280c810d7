import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from watchdog.observers import Observer

from archival.schedule.watch import Watch
from headwater_core.partition import TopicPartition
from tests.hung_disk import hung_disk, within

_LONG_S = 30.0


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name in ("soup-0", "soup-1"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def watch(logs: Path) -> Iterator[Watch]:
    with Watch([logs]) as watch:
        yield watch


def test_a_rolled_segment_is_seen(logs: Path, watch: Watch) -> None:
    (logs / "soup-1" / f"{10:020}.log").touch()
    assert watch.wait(threading.Event(), _LONG_S) == {TopicPartition("soup", 1)}


def test_a_compacted_segment_is_seen_when_it_is_renamed(logs: Path, watch: Watch) -> None:
    swap = logs / "soup-0" / f"{0:020}.log.swap"
    swap.touch()
    os.rename(swap, logs / "soup-0" / f"{0:020}.log")
    assert watch.wait(threading.Event(), _LONG_S) == {TopicPartition("soup", 0)}


def test_a_new_partition_is_seen(logs: Path, watch: Watch) -> None:
    (logs / "berth-7-0").mkdir()
    assert watch.wait(threading.Event(), _LONG_S) == {TopicPartition("berth-7", 0)}


def test_a_roll_is_looked_at_again_when_the_high_watermark_has_been_written(logs: Path, watch: Watch) -> None:
    stop = threading.Event()
    (logs / "soup-1" / f"{10:020}.log").touch()
    watch.wait(stop, _LONG_S)
    for _ in range(2):
        (logs / "replication-offset-checkpoint.tmp").touch()
        os.rename(logs / "replication-offset-checkpoint.tmp", logs / "replication-offset-checkpoint")
        assert watch.wait(stop, _LONG_S) == {TopicPartition("soup", 1)}


def test_everything_is_due_once_in_a_while(watch: Watch) -> None:
    assert watch.wait(threading.Event(), 0.01) is None


def test_waiting_ends_at_once_when_stopped(watch: Watch) -> None:
    stop = threading.Event()
    stop.set()
    assert watch.wait(stop, _LONG_S) == ()


def test_other_files_mean_nothing(logs: Path, watch: Watch) -> None:
    (logs / "soup-0" / f"{0:020}.index").touch()
    (logs / "meta.properties").touch()
    (logs / "soup-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    (logs / "soup-1" / f"{10:020}.log").touch()
    assert watch.wait(threading.Event(), _LONG_S) == {TopicPartition("soup", 1)}


def test_a_directory_that_cannot_be_watched_is_rescanned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Watch([tmp_path / "missing"]) as watch:
        assert watch.wait(threading.Event(), 0.01) is None


def test_a_directory_whose_disk_hangs_keeps_no_other_from_being_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archival.schedule.watch._START_S", 0.2)
    hanging, sound = tmp_path / "a", tmp_path / "b"
    hanging.mkdir()
    (sound / "soup-1").mkdir(parents=True)
    with hung_disk(hanging):
        watch = within(20, Watch([hanging, sound]).__enter__)
        (sound / "soup-1" / f"{10:020}.log").touch()
        assert watch.wait(threading.Event(), _LONG_S) == {TopicPartition("soup", 1)}
        within(20, lambda: watch.__exit__(None, None, None))


def test_it_can_be_closed_whatever_names_have_been_exchanged(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """watchdog 7.1 fails so when a file is moved away, a directory takes its name for a moment, and it hears of that late."""

    class Confused(Observer):  # type: ignore[misc, valid-type]  # which class it is depends on the platform
        def stop(self) -> None:
            super().stop()
            raise KeyError(bytes(logs / "soup-0"))

    monkeypatch.setattr("archival.schedule.watch.Observer", Confused)
    with Watch([logs]) as watch:
        assert watch.wait(threading.Event(), 0.0) is None
