"""What a real broker wrote, read through both tiers, against what its own consumer got."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from headwater_core.segments.batch_walk import locate
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs
from hydration.answers import Isolation
from hydration.config import HydrationConfig, ReadPriority
from hydration.logs import Logs, open_logs
from hydration.reader import records
from tests.fixtures import Isolation as IsolationName
from tests.fixtures import expected, expected_offsets, private_copy, unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.test_fixtures import text
from tests.hydration.world import Archive

NAMES = ("pantry", "pantry-live", "kitchen")


def archived(root: Path, *, split: int) -> MemoryStore:
    """A bucket that holds every partition below `root` up to its high watermark, cut at `split` records besides at segments."""
    store = MemoryStore()
    for log in LogDirs([root]).partitions():
        archive = Archive(store, log.partition)
        for run in runs_of(log, split):
            archive.append(run, base_offset=log.segments[0].base_offset)
        if archive.held is not None and archive.head.start_offset < log.log_start:
            kept = [entry for entry in archive.head.entries if entry.next_offset >= log.log_start]
            archive.commit(*kept, start_offset=log.log_start)
    return store


def runs_of(log: LocalLog, split: int) -> list[bytes]:
    """The log's bytes below the high watermark, cut at segments and every `split` offsets."""
    runs = []
    for segment in log.segments:
        with segment.path.open("rb") as file:
            end = locate(file, log.high_watermark or 0, 0, segment.size_bytes, where="segment")
            cuts = [0]
            for offset in range(segment.base_offset + split, log.high_watermark or 0, split):
                at = locate(file, offset, 0, end, where="segment")
                if cuts[-1] < at < end:
                    cuts.append(at)
            for start, stop in zip(cuts, [*cuts[1:], end], strict=True):
                file.seek(start)
                run = file.read(stop - start)
                if run:
                    runs.append(run)
    return runs


def read(logs: Logs, isolation: Isolation, max_bytes: int) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for topic in logs.topics().values():
        for partition in topic.partitions:
            log = logs.partition(topic.name, partition)
            for row in records(log, log.bounds().log_start, isolation=isolation, max_bytes=max_bytes):
                found[topic.name, partition].append(
                    {
                        "topic": topic.name,
                        "partition": partition,
                        "offset": row.record.offset,
                        "timestamp": row.record.timestamp_ms,
                        "timestamp_type": "LogAppendTime" if row.log_append_time else "CreateTime",
                        "leader_epoch": row.leader_epoch,
                        "key": text(row.record.key),
                        "value": text(row.record.value),
                        "headers": [[name, text(value)] for name, value in row.record.headers],
                    }
                )
    return found


def by_partition(rows: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["topic"], row["partition"]].append(row)
    return found


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("priority", [ReadPriority.LOCAL_ONLY, ReadPriority.OFFLOADED_ONLY])
@pytest.mark.parametrize("name", NAMES)
def test_each_tier_alone_gives_what_the_broker_gave(tmp_path: Path, name: str, priority: ReadPriority, isolation: IsolationName) -> None:
    root = unpack(name)
    store = archived(root, split=37) if priority.uses_archive else MemoryStore()
    check(name, root, store, tmp_path, priority, isolation)


@pytest.mark.parametrize("priority", [ReadPriority.LOCAL_FIRST, ReadPriority.OFFLOADED_FIRST])
@pytest.mark.parametrize("name", NAMES)
def test_both_tiers_together_give_what_the_broker_gave(tmp_path: Path, name: str, priority: ReadPriority) -> None:
    root = private_copy(name, tmp_path)
    store = archived(root, split=53)
    for log in LogDirs([root]).partitions():
        for segment in log.segments[: len(log.segments) // 2]:
            for path in segment.path.parent.glob(f"{segment.path.stem}.*"):
                path.unlink()
    for isolation in Isolation:
        check(name, root, store, tmp_path, priority, isolation.name.lower())  # type: ignore[arg-type]


def check(name: str, root: Path, store: MemoryStore, tmp_path: Path, priority: ReadPriority, isolation: IsolationName) -> None:
    config = HydrationConfig(read_priority=priority, chunk_bytes=64 << 10)
    logs = open_logs(config, store=store, cache_directory=tmp_path / "cache", dirs=LogDirs([root]))
    try:
        logs.refresh()
        wanted = by_partition(expected(name, isolation))
        assert wanted
        for max_bytes in (1, 5_000, 1 << 20):
            found = read(logs, Isolation[isolation.upper()], max_bytes)
            for key in found.keys() | wanted.keys():
                if not key[0].startswith("__"):
                    assert found[key] == wanted[key], key
        for each in expected_offsets(name, isolation):
            bounds = logs.partition(each["topic"], each["partition"]).bounds(Isolation.READ_COMMITTED)
            assert bounds.log_start == each["start"], each
            assert bounds.high_watermark == each.get("high_watermark", bounds.high_watermark), each
            assert bounds.last_stable_offset == each.get("last_stable", bounds.last_stable_offset), each
    finally:
        logs.close()
