"""An offload on request, by a session that is open as an agent's is."""

import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from archival.collection.collector import Collected
from archival.config import ArchivalConfig, ArchiveMode
from archival.plan.trim import delete_to
from headwater.offload import offload_rows, sealed_end
from headwater_core.errors import NotFound, TransientError, UsageError
from headwater_core.partition import TopicPartition
from manifests.head import Head
from tests.archival.builders import a_log
from tests.headwater.broker import Bench
from tests.headwater_core.objectstore.memory import MemoryStore

SOUP = TopicPartition("soup", 0)


def offload(bench: Bench, before: int, place: TopicPartition = SOUP) -> dict[str, Any]:
    [row] = offload_rows(bench.fleet, place, before, threading.Event())
    return row


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Segments of ten records each, the last one active; nothing is archived but on request."""
    made = Bench(tmp_path, MemoryStore())
    made.broker.partition("soup", 0, segments=4)
    made.settings = ArchivalConfig(archive=ArchiveMode.MANUAL)
    return made


def test_what_lies_wholly_before_the_offset_is_archived_and_no_more(bench: Bench) -> None:
    bench.scheduler.rescan()
    bench.turns()
    assert bench.fleet.head(bench.fleet.logs.look(SOUP).partition) is None
    assert [offload(bench, before)["last_offset"] for before in (15, 20, 29, 30)] == [9, 19, 19, 29]
    assert offload(bench, 30)["objects"] == 0


def test_before_the_first_segments_end_nothing_has_to_go(bench: Bench) -> None:
    assert [offload(bench, before)["objects"] for before in (0, 9)] == [0, 0]


def test_an_offset_beyond_the_high_watermark_is_refused_before_anything_is_archived(bench: Bench) -> None:
    with pytest.raises(UsageError, match="offset 31 is beyond the high watermark 30"):
        offload(bench, 31)
    assert bench.fleet.head(bench.fleet.logs.look(SOUP).partition) is None


def test_what_has_no_log_here_is_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound):
        offload(bench, 10, TopicPartition("stew", 0))


def test_what_cannot_be_archived_now_says_why(bench: Bench) -> None:
    bench.settings = ArchivalConfig(archive=ArchiveMode.OFF)
    with pytest.raises(TransientError, match="archived before 0, not before 20: archive = off"):
        offload(bench, 25)


@pytest.mark.parametrize(("before", "end"), [(0, 5), (9, 5), (10, 10), (19, 10), (20, 20), (100, 20)])
def test_the_last_segment_before_an_offset(before: int, end: int) -> None:
    assert sealed_end(a_log(0, 10, 20, hw=25, start=5), before) == end


class ContendedLock:
    """An archiver's lock that says when somebody waits for it."""

    def __init__(self) -> None:
        self._lock, self.is_waited_for = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_waited_for.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_offload_and_trim_of_a_partition_exclude_each_other(bench: Bench) -> None:
    """A trim that comes while an offload uploads waits for its commit, and an offload for the trim's."""
    offload(bench, 20)
    partition = bench.fleet.logs.look(SOUP).partition
    member = bench.fleet._members.of(partition)
    assert member is not None
    archiver = member.archiver
    assert archiver is not None
    lock = ContendedLock()
    archiver.lock = lock  # type: ignore[assignment]
    seen: list[int] = []

    def trim_to(offset: int) -> Collected:
        def border(head: Head) -> int:
            seen.append(head.next_offset)
            return delete_to(head, offset)

        return bench.fleet.collect(partition, border=border)

    trim = threading.Thread(target=trim_to, args=(10,))
    put = bench.store.put

    def put_while_trimmed(*arguments: Any, **named: Any) -> Any:
        if not trim.ident:
            trim.start()
            assert lock.is_waited_for.wait(30)  # for this very step
        return put(*arguments, **named)

    with patch.object(bench.store, "put", put_while_trimmed):
        offload(bench, 30)
    trim.join(30)
    assert set(seen) == {30}
    assert extent(bench) == (10, 30)

    bench.broker.roll("soup", 0)
    rows: list[dict[str, Any]] = []
    offloading = threading.Thread(target=lambda: rows.append(offload(bench, 40)))

    commit = archiver._commit

    def commit_while_offloaded(*arguments: Any, **named: Any) -> Any:
        if not offloading.ident:
            lock.is_waited_for.clear()
            offloading.start()
            assert lock.is_waited_for.wait(30)  # for this very trim
        return commit(*arguments, **named)

    with patch.object(archiver, "_commit", commit_while_offloaded):
        assert trim_to(20).start_offset == 20
    offloading.join(30)
    assert set(seen) == {30}
    assert [row["last_offset"] for row in rows] == [39]
    assert extent(bench) == (20, 40)


def extent(bench: Bench) -> tuple[int, int]:
    head = bench.head("soup", 0)
    assert head is not None
    return head.start_offset, head.next_offset
