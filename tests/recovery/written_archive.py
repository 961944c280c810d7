"""Topics in a bucket, written batch by batch."""

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import recovery
from headwater_core.clock import SystemClock
from headwater_core.objectstore.digest import digest_of
from headwater_core.partition import PartitionId, topic_id_text
from headwater_core.segments import flexible
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.batches import BatchHeader
from headwater_core.segments.coordinator_records import decode_commit_key, decode_commit_value
from headwater_core.segments.encoder import encode_marker
from headwater_core.segments.markers import COMMIT
from headwater_core.segments.records import Record, decode_batch
from headwater_core.segments.run_scan import scan_run
from headwater_core.segments.runindex import encode_index
from headwater_core.segments.share_records import SNAPSHOT, UPDATE, ShareState, StateBatch
from headwater_core.segments.transactions import OpenTransaction
from manifests import keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from recovery.open_transactions import RunIndexes
from recovery.plan_document import decode_plan, encode_plan
from recovery.recovery_plan import PartitionPlan, RecoveryPlan
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import Producer, a_batch
from tests.recovery.plans import CLUSTER, an_entry


def data(offset: int, producer: int, *values: bytes, epoch: int = 0, producer_epoch: int = 0) -> bytes:
    return a_batch(offset, list(values) or [b"soup"], epoch=epoch, producer=Producer(id=producer, epoch=producer_epoch), transactional=True)


def plain(offset: int, count: int = 1) -> bytes:
    return a_batch(offset, count)


def marker(offset: int, producer: int, kind: int = COMMIT, *, producer_epoch: int = 0, time_ms: int = 1_700_000_000_000) -> bytes:
    return encode_marker(
        offset, kind, producer_id=producer, producer_epoch=producer_epoch, coordinator_epoch=3, leader_epoch=0, timestamp_ms=time_ms
    )


def commit(offset: int, *rows: tuple[str, str, int, int | None], producer: int | None = None) -> bytes:
    """(group, topic, partition, committed offset), None for a tombstone."""
    records = []
    for at, (group, topic, partition, committed) in enumerate(rows):
        key = b"".join([flexible.i16(1), text(group), text(topic), flexible.i32(partition)])
        value = None if committed is None else flexible.i16(3) + flexible.i64(committed) + flexible.i32(8) + text("m\0") + flexible.i64(5)
        records.append(Record(offset + at, 1_700_000_000_000, key, value, ()))
    return a_batch(offset, records, producer=None if producer is None else Producer(id=producer), transactional=producer is not None)


def tail_offsets(found: Sequence[tuple[BatchHeader, bytes]], end: int) -> dict[str, int]:
    """group of every commit behind offset `end`, and its offset"""
    commits = {}
    for header, raw in found:
        if header.base_offset >= end and not header.is_control:
            for record in decode_batch(raw, where="tail"):
                if (key := decode_commit_key(record.key or b"", "key")) is not None:
                    commits[key.group] = decode_commit_value(record.value or b"", "value").offset
    return commits


def text(value: str) -> bytes:
    return flexible.i16(len(value)) + value.encode()


def state(
    offset: int,
    transactional_id: str,
    producer: int,
    status: int,
    *partitions: tuple[str, int],
    epoch: int = 0,
    timeout_ms: int = 60_000,
    times_ms: tuple[int, int] = (0, 0),
) -> bytes:
    """Of a transaction of version 1. times_ms: of its last change, and its begin"""
    named = b"".join(text(topic) + flexible.i32(1) + flexible.i32(number) for topic, number in partitions)
    fields = (flexible.i16(0), flexible.i64(producer), flexible.i16(epoch), flexible.i32(timeout_ms), flexible.i8(status))
    value = b"".join((*fields, flexible.i32(len(partitions)), named, *map(flexible.i64, times_ms)))
    return a_batch(offset, [Record(offset, 0, flexible.i16(0) + text(transactional_id), value, ())])


TOPIC_ID = topic_id_text(bytes([1]) * 16)  # of an archive's first topic


class Change(bytes):
    """Of a share group's state, in a record of its own kind."""


def shares(offset: int, *rows: tuple[str, bytes | None], topic_id: str = TOPIC_ID) -> bytes:
    """(share group, its state in partition 0 or a Change of it), None for a tombstone."""
    records = []
    for at, (group, value) in enumerate(rows):
        key = share_key(group, 0, kind=UPDATE if isinstance(value, Change) else SNAPSHOT, topic_id=topic_id)
        records.append(Record(offset + at, 1_700_000_000_000, key, value, ()))
    return a_batch(offset, records)


def share_key(group: str, partition: int, *, kind: int, topic_id: str = TOPIC_ID) -> bytes:
    return flexible.i16(kind) + text(group) + flexible.uuid(topic_id) + flexible.i32(partition)


def snapshot(start: int, *batches: tuple[int, int, int, int], leader_epoch: int = 0) -> bytes:
    """batches: first and last offset, state, deliveries"""
    named = tuple(StateBatch(*each) for each in batches)
    return ShareState(snapshot_epoch=1, state_epoch=1, leader_epoch=leader_epoch, start_offset=start, batches=named).encode()


def share_update(start: int, *batches: tuple[int, int, int, int], leader_epoch: int = -1) -> Change:
    named = [b"".join([*map(flexible.i64, each[:2]), flexible.i8(each[2]), flexible.i16(each[3]), flexible.tags({})]) for each in batches]
    epochs = flexible.i16(0) + flexible.i32(1) + flexible.i32(leader_epoch)
    return Change(epochs + flexible.i64(start) + flexible.array(named) + flexible.tags({}))


@dataclass
class Archive:
    """Topics of one partition, of runs of batches, as the archiver lays them down."""

    store: MemoryStore = field(default_factory=lambda: MemoryStore(SystemClock()))
    ids: dict[str, str] = field(default_factory=dict)

    def topic(self, name: str, *runs: Sequence[bytes] | None, **configs: str) -> list[Entry]:
        """None is a gap of ten offsets."""
        repository = ManifestRepository(self.store)
        topic_id = topic_id_text(bytes([len(self.ids) + 1]) * 16)
        self.ids[name] = topic_id
        configs = {"cleanup.policy": "compact" if name.startswith("__") else "delete"} | configs
        repository.ensure_topic(TopicManifest(cluster_id=CLUSTER, topic=name, topic_id=topic_id, partitions=1, configs=configs))
        identity = PartitionId(CLUSTER, topic_id, 0, name)
        entries: list[Entry] = []
        for run in runs:
            base = entries[-1].next_offset if entries else 0
            entries.append(Entry(base_offset=base, last_offset=base + 9, gap=True) if run is None else self._entry(identity, run, entries))
        head = Head(
            cluster_id=CLUSTER,
            topic=name,
            topic_id=topic_id,
            partition=0,
            version=1,
            commit_id="c",
            fence=1,
            writer="w",
            leader_epoch=4,
            start_offset=0,
            last_offset=entries[-1].last_offset,
            entries=EntryTree(entries),
        )
        repository.commit(None, head)
        return entries

    def replace(self, name: str, *runs: Sequence[bytes], start_offset: int = 0, lost: Collection[Entry] = ()) -> list[Entry]:
        """Another head, of these runs and what is `lost`; every other object of before is collected."""
        repository, identity = ManifestRepository(self.store), PartitionId(CLUSTER, self.ids[name], 0, name)
        held = repository.load(identity)
        assert held
        entries: list[Entry] = list(lost)
        for run in runs:
            entries.append(self._entry(identity, run, entries, made=held.head.version))
        start = max(start_offset, entries[0].base_offset)
        repository.commit(
            held, msgspec.structs.replace(held.head, entries=EntryTree(entries), start_offset=start, last_offset=entries[-1].last_offset)
        )
        for key in {key for entry in held.head.entries if entry not in lost for key in (entry.key, entry.index_key)}:
            self.store.delete(key)
        return entries

    def _entry(
        self, identity: PartitionId, run: Sequence[bytes], before: Sequence[Entry], made: int = 0, base_offset: int | None = None
    ) -> Entry:
        """base_offset: where the cleaner has removed what was before the first batch"""
        raw = b"".join(run)
        known: Sequence[OpenTransaction] = ()
        if before and not before[-1].gap and before[-1].open_from is not None:
            known = RunIndexes(self.store, before).of(len(before) - 1).open_transactions
        scan = scan_run(io.BytesIO(raw), start=0, end=len(raw), open_before=known, where="run")
        assert scan is not None
        first = scan.base_offset if base_offset is None else base_offset
        uid = f"{made:08x}{first:024x}"
        key = keys.data(identity, first, scan.last_offset, 1, uid)
        index = encode_index(scan.index)
        self.store.create(key, raw)
        self.store.create(keys.index(key), index)
        return an_entry(
            first,
            scan.last_offset,
            uid=uid,
            key=key,
            index_key=keys.index(key),
            index_bytes=len(index),
            index_digest=digest_of(index),
            size_bytes=len(raw),
            live_bytes=len(raw),
            digest=digest_of(raw),
            epochs=scan.epochs,
            records=scan.records,
            first_timestamp_ms=scan.first_timestamp_ms,
            last_timestamp_ms=scan.last_timestamp_ms,
            open_from=scan.open_from,
            aborted=len(scan.aborted),
            aborted_from=scan.aborted_from,
            max_producer_id=scan.max_producer_id,
        )

    def plan(self, **options: Any) -> RecoveryPlan:
        made = recovery.plan(ManifestRepository(self.store), None, recovery.Options(**options))
        assert decode_plan(encode_plan(made)) == made
        return made

    def partition(self, name: str, **options: Any) -> PartitionPlan:
        [found] = [topic.partitions[0] for topic in self.plan(**options).topics if topic.topic == name]
        return found

    def recovered(self, into: Path, name: str, **options: Any) -> list[tuple[BatchHeader, bytes]]:
        recovery.apply(self.plan(**options), into, self.store)
        return batches_in(into / f"{name}-0")


def batches_in(directory: Path) -> list[tuple[BatchHeader, bytes]]:
    found = []
    for path in sorted(directory.glob("*.log")):
        with path.open("rb") as file:
            for position, header in walk(file, 0, path.stat().st_size, where=str(path)):
                file.seek(position)
                found.append((header, file.read(header.size_bytes)))
    return found


def aborts(partition: PartitionPlan) -> list[tuple[int, int]]:
    """(offset, producer id) of every marker that recovery writes."""
    return [(written.base_offset + at, abort.producer_id) for written in partition.written for at, abort in enumerate(written.aborts)]
