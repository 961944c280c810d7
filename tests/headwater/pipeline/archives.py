"""Archives to scan, made once, and what they hold according to the read path of the agent."""

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments import codecs
from headwater_core.segments.records import Record
from headwater_core.segments.transactions import OpenTransaction
from hydration.answers import Isolation
from hydration.config import HydrationConfig, ReadPriority
from hydration.logs import open_logs
from hydration.reader import records
from manifests.entry import Entry
from tests.fixtures import unpack
from tests.headwater.gateway.archives import archive
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_commit, an_abort
from tests.headwater_core.segments.test_fixtures import text
from tests.hydration.test_fixtures import archived
from tests.hydration.world import PARTITION, Archive

VALUE_BYTES = 9_000  # so that a run of some fifty records has several index points


@functools.cache
def fixture(name: str) -> MemoryStore:
    """The fixture as our archivers archive it. Shared: copy what a test changes."""
    store = MemoryStore()
    archive(unpack(name), store)
    return store


@functools.cache
def in_small_objects(name: str) -> MemoryStore:
    """The same in objects of at most 37 offsets; without the partitions that hold nothing."""
    return archived(unpack(name), split=37)


def a_copy(store: MemoryStore) -> MemoryStore:
    copied = MemoryStore()
    for info in store.list(""):
        copied.create(info.key, store.get(info.key)[0])
    return copied


@functools.cache
def soup() -> MemoryStore:
    """One partition with everything that makes reading hard: transactions over several objects, one of them never ended; holes
    of compaction; a dead branch behind an object's live end; a gap; times that do not rise; an object of one batch."""
    store = MemoryStore()
    archive = Archive(store)
    archive.append(run(0, 60, producers={5: 7, 20: 8}), run(60, 110, producers={70: 7}))
    archive.append(run(110, 150, aborts={112: 8}, holes={115, 116, 130, 149}), run(150, 155))
    archive.commit(*archive.head.entries, Entry(base_offset=155, last_offset=169, gap=True))
    branch = list(a_run(170, 240, aborts={200: 7, 230: 13}, producers={171: 9, 175: 13}, commits={190: 9}))
    archive.append(b"".join(branch))
    live_bytes = len(b"".join(branch[:50]))  # the abort at 230 never happened
    archive.replace(-1, last_offset=219, live_bytes=live_bytes, open_from=175, records=archive.head.entries[-1].records - 19)
    final = run(220, 300, epoch=4, producers={230: 11, 280: 12}, commits={260: 11, 265: 13}, codec=codecs.ZSTD)
    archive.commit(*archive.head.entries, archive.upload(final, [OpenTransaction(13, 175)]))
    return store


def run(first: int, end: int, **how: Any) -> bytes:
    return b"".join(a_run(first, end, **how))


def a_run(
    first: int,
    end: int,
    *,
    producers: dict[int, int] | None = None,
    aborts: dict[int, int] | None = None,
    commits: dict[int, int] | None = None,
    holes: set[int] | None = None,
    epoch: int = 0,
    codec: int = codecs.NONE,
) -> Iterator[bytes]:
    """A batch for each offset but the `holes`.

    producers        offset: who has a transaction's batch there
    aborts, commits  offset: whose transaction is ended there
    """
    for offset in range(first, end):
        if offset in (holes or ()):
            continue
        if offset in (aborts or {}):
            yield an_abort(offset, (aborts or {})[offset], epoch=epoch)
        elif offset in (commits or {}):
            yield a_commit(offset, (commits or {})[offset], epoch=epoch)
        else:
            producer = (producers or {}).get(offset)
            record = Record(
                offset,
                BASE_TIME + offset * 10 - (700 if offset % 17 == 0 else 0),
                None if offset % 5 == 0 else f"key-{offset}".encode(),
                None if offset % 11 == 0 else f"value-{offset}-".encode() * (VALUE_BYTES * (offset % 7) // 60),
                (("h", b"x"), ("n", None)) if offset % 3 == 0 else (),
            )
            yield a_batch(offset, [record], epoch=epoch, producer=producer, transactional=producer is not None, codec=codec)


def read_through_the_agent(store: ObjectStore, topic: str, partition: int, isolation: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as cache:
        logs = open_logs(HydrationConfig(read_priority=ReadPriority.OFFLOADED_ONLY), store=store, cache_directory=Path(cache))
        try:
            logs.refresh()
            log = logs.partition(topic, partition)
            found = records(log, log.bounds().log_start, isolation=Isolation[isolation.upper()])
            return [
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": row.record.offset,
                    "timestamp": row.record.timestamp_ms,
                    "timestamp_type": "LogAppendTime" if row.log_append_time else "CreateTime",
                    "key": text(row.record.key),
                    "value": text(row.record.value),
                    "headers": [[name, text(value)] for name, value in row.record.headers],
                }
                for row in found
            ]
        finally:
            logs.close()


@functools.cache
def soup_rows(isolation: str) -> list[dict[str, Any]]:
    return read_through_the_agent(soup(), PARTITION.topic, PARTITION.partition, isolation)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """As the fixtures' expected records are written, but for the leader epoch, which Spark's columns lack."""
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    return [
        {
            "topic": row["topic"],
            "partition": row["partition"],
            "offset": row["offset"],
            "timestamp": time // 1000,
            "timestamp_type": ("CreateTime", "LogAppendTime")[row["timestampType"]],
            "key": text(row["key"]),
            "value": text(row["value"]),
            "headers": [[each["key"], text(each["value"])] for each in row["headers"] or ()],
        }
        for row, time in zip(table.to_pylist(), times, strict=True)
    ]
