"""Where recovered logs end: no reader waits for ever, no group skips a record."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import recovery
from archival.step_plan import SEALED_ONLY
from headwater_core.clock import SystemClock
from headwater_core.objectstore.digest import digest_of
from headwater_core.partition import PartitionId, topic_id_text
from headwater_core.segments import checkpoints, flexible
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.batches import BatchHeader
from headwater_core.segments.encoder import encode_marker
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from headwater_core.segments.records import Record, decode_batch
from headwater_core.segments.run_scan import scan_run
from headwater_core.segments.runindex import encode_index
from headwater_core.segments.transactions import OpenTransaction
from manifests import keys
from manifests.head import Entry, Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from recovery.endings import open_after, run_index
from recovery.plan import Abort, PartitionPlan, RecoveryPlan, decode_plan, encode_plan
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import Producer, a_batch
from tests.recovery.archived import archive, archive_in_memory, batches
from tests.recovery.test_plan import CLUSTER, an_entry


def data(offset: int, producer: int, *values: bytes, epoch: int = 0, producer_epoch: int = 0) -> bytes:
    return a_batch(offset, list(values) or [b"soup"], epoch=epoch, producer=Producer(id=producer, epoch=producer_epoch), transactional=True)


def plain(offset: int, count: int = 1) -> bytes:
    return a_batch(offset, count)


def marker(offset: int, producer: int, kind: int = COMMIT) -> bytes:
    return encode_marker(
        offset, kind, producer_id=producer, producer_epoch=0, coordinator_epoch=3, leader_epoch=0, timestamp_ms=1_700_000_000_000
    )


def commit(offset: int, *rows: tuple[str, str, int, int | None], producer: int | None = None) -> bytes:
    """(group, topic, partition, committed offset), None for a tombstone."""
    records = []
    for at, (group, topic, partition, committed) in enumerate(rows):
        key = b"".join([flexible.i16(1), text(group), text(topic), flexible.i32(partition)])
        value = None if committed is None else flexible.i16(3) + flexible.i64(committed) + flexible.i32(8) + text("m\0") + flexible.i64(5)
        records.append(Record(offset + at, 1_700_000_000_000, key, value, ()))
    return a_batch(offset, records, producer=None if producer is None else Producer(id=producer), transactional=producer is not None)


def text(value: str) -> bytes:
    return flexible.i16(len(value)) + value.encode()


def state(offset: int, transactional_id: str, producer: int, status: int, *partitions: tuple[str, int]) -> bytes:
    named = b"".join(text(topic) + flexible.i32(1) + flexible.i32(number) for topic, number in partitions)
    fields = (flexible.i16(0), flexible.i64(producer), flexible.i16(0), flexible.i32(60000), flexible.i8(status))
    value = b"".join((*fields, flexible.i32(len(partitions)), named, flexible.i64(0), flexible.i64(0)))
    return a_batch(offset, [Record(offset, 0, flexible.i16(0) + text(transactional_id), value, ())])


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
            entries=tuple(entries),
        )
        repository.commit(None, head)
        return entries

    def _entry(self, identity: PartitionId, run: Sequence[bytes], before: Sequence[Entry]) -> Entry:
        raw = b"".join(run)
        known: Sequence[OpenTransaction] = ()
        if before and not before[-1].gap and before[-1].open_from is not None:
            known = run_index(self.store, before, len(before) - 1).open_transactions
        scan = scan_run(io.BytesIO(raw), start=0, end=len(raw), open_before=known, where="run")
        assert scan is not None
        uid = f"{scan.base_offset:032x}"
        key = keys.data(identity, scan.base_offset, scan.last_offset, 1, uid)
        index = encode_index(scan.index)
        self.store.create(key, raw)
        self.store.create(keys.index(key), index)
        return an_entry(
            scan.base_offset,
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


# Transactions


def test_a_transaction_that_nobody_ends_is_aborted_where_the_log_ends(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0), data(1, 7, producer_epoch=2)], [marker(2, 9), data(3, 8), plain(4)])
    assert archive.partition("orders").open_from is None
    found = archive.recovered(tmp_path / "log", "orders")
    ends = found[-2:]
    assert [(header.base_offset, header.producer_id, header.producer_epoch, header.leader_epoch) for header, _ in ends] == [
        (5, 7, 2, 5),
        (6, 8, 0, 5),
    ]
    assert [read_marker(raw).type for _, raw in ends] == [ABORT, ABORT]
    assert all(header.is_transactional for header, _ in ends)
    log = tmp_path / "log"
    assert (log / "orders-0" / checkpoints.LEADER_EPOCHS).read_text() == "0\n2\n0 0\n5 5\n"
    assert (log / checkpoints.HIGH_WATERMARKS).read_text() == "0\n1\norders 0 7\n"
    assert {path.name for path in (log / "orders-0").glob("*5.*")} == {f"{5:020}{suffix}" for suffix in (".log", ".index", ".timeindex")}
    assert recovery.apply(archive.plan(), log, archive.store).again


def test_a_transaction_that_the_recovered_coordinator_knows_is_left_to_it() -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7), data(1, 8), data(2, 9), data(3, 10)])
    archive.topic(
        "__transaction_state",
        [
            state(0, "seven", 7, 1, ("orders", 0)),
            state(1, "eight", 8, 1, ("menu", 0)),  # ongoing, and elsewhere
            state(2, "nine", 9, 1, ("orders", 0)),
            state(3, "nine", 9, 4, ("orders", 0)),  # committed since
            state(4, "ten", 10, 2, ("orders", 0)),
        ],
    )
    partition = archive.partition("orders")
    assert aborts(partition) == [(4, 8), (5, 9)]
    assert partition.open_from == 0
    assert [note for note in archive.plan().endings if "the recovered coordinator ends" in note]


def test_an_open_transaction_is_kept_on_request_and_the_way_out_is_named() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0), data(1, 7)])
    partition = archive.partition("orders", open_transactions="keep")
    assert (partition.written, partition.open_from) == ((), 1)
    [note] = archive.plan(open_transactions="keep").endings
    assert "kafka-transactions.sh abort --topic orders --partition 0 --start-offset 1" in note


def test_a_log_is_cut_on_request_before_the_first_transaction_that_nobody_ends(tmp_path: Path) -> None:
    """What is cut may have ended another one, which is open then, too."""
    archive = Archive()
    archive.topic("orders", [plain(0, 2), data(2, 7), plain(3)], [data(4, 8), marker(5, 7), plain(6)])
    partition = archive.partition("orders", open_transactions="cut")
    assert (partition.next_offset, partition.written, partition.open_from) == (2, (), None)
    found = archive.recovered(tmp_path / "log", "orders", open_transactions="cut")
    assert [header.last_offset for header, _ in found] == [1]
    assert [note for note in archive.plan(open_transactions="cut").endings if "cut at offset 2" in note]


def test_a_log_of_nothing_else_is_cut_to_nothing() -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7)], [plain(1)])
    partition = archive.partition("orders", open_transactions="cut")
    assert (partition.entries, partition.start_offset, partition.log_end) == ((), 0, 0)


def test_transactions_are_aborted_where_a_gap_begins() -> None:
    """What ended them is in the gap; the producer's next marker, a commit, would end them as well."""
    archive = Archive()
    archive.topic("orders", [plain(0), data(1, 7)], None, [data(12, 7), marker(13, 7)])
    assert aborts(archive.partition("orders")) == [(2, 7)]
    assert archive.partition("orders").log_end == 14
    assert archive.partition("orders", open_transactions="keep").written == ()


@pytest.mark.parametrize("loss", ["gone", "damaged"])
def test_without_its_index_a_run_is_read_itself(loss: str) -> None:
    archive = Archive()
    entries = archive.topic("orders", [data(0, 7, producer_epoch=4)], [plain(1)], [plain(2)])
    for entry in entries[1:]:
        archive.store.delete(entry.index_key)
        if loss == "damaged":
            archive.store.create(entry.index_key, b"x" * 100)
    assert archive.partition("orders").written[0].aborts == (Abort(producer_id=7, producer_epoch=4, coordinator_epoch=0),)


def test_a_run_that_was_cut_tells_what_is_open_where_it_was_cut() -> None:
    archive = Archive()
    [entry] = archive.topic("orders", [plain(0), data(1, 7), marker(2, 7), plain(3)])
    raw = archive.store.get(entry.key)[0]
    live = len(raw) - len(plain(3)) - len(marker(2, 7))
    cut = replace(entry, last_offset=1, live_bytes=live, open_from=1, records=2)
    assert [each[:3] for each in open_after(archive.store, [cut], 0)] == [(7, 1, 0)]


def test_what_cannot_be_read_is_noted_and_stays_open() -> None:
    archive = Archive()
    [entry] = archive.topic("orders", [data(0, 7)])
    archive.store.delete(entry.key)
    archive.store.delete(entry.index_key)
    plan = archive.plan()
    assert plan.topics[0].partitions[0].open_from == 0
    assert [note for note in plan.endings if "cannot be read" in note]
    assert len(plan.holes) == 1


# Committed offsets


def clamped(archive: Archive, **options: Any) -> dict[str, int]:
    """group of every commit that recovery writes, and the offset it writes."""
    written = archive.partition("__consumer_offsets", **options).written
    found = {}
    for each in written:
        for row in each.commits:
            size = int.from_bytes(row.key[2:4], "big")
            found[row.key[4 : 4 + size].decode()] = int.from_bytes(row.value[2:10], "big")
    return found


def test_offsets_ahead_of_the_recovered_logs_are_set_back_to_their_ends(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    archive.topic(
        "__consumer_offsets",
        [
            commit(0, ("ahead", "orders", 0, 12), ("level", "orders", 0, 5), ("behind", "orders", 0, 2), ("elsewhere", "gone", 0, 99)),
            commit(4, ("deleted", "orders", 0, 12), ("returned", "orders", 0, 12)),
            commit(6, ("deleted", "orders", 0, None), ("returned", "orders", 0, 3), ("ahead", "orders", 0, 14)),
        ],
    )
    plan = archive.plan()
    assert [(each.group, each.topic, each.partition, each.offset, each.log_end) for each in plan.offsets_ahead] == [
        ("ahead", "orders", 0, 14, 5)
    ]
    assert [note for note in plan.endings if "group ahead has committed 14 of orders:0, which ends at 5" in note]
    assert clamped(archive) == {"ahead": 5}
    header, raw = archive.recovered(tmp_path / "log", "__consumer_offsets")[-1]
    assert (header.base_offset, header.leader_epoch, header.is_transactional) == (9, 5, False)
    [record] = decode_batch(raw)
    assert record.value == flexible.i16(3) + flexible.i64(5) + flexible.i32(-1) + text("m\0") + flexible.i64(5)


def test_offsets_ahead_are_kept_on_request_and_told_all_the_same() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    archive.topic("__consumer_offsets", [commit(0, ("ahead", "orders", 0, 12))])
    plan = archive.plan(keep_offsets=True)
    assert len(plan.offsets_ahead) == 1
    assert [note for note in plan.endings if "as was asked" in note]
    assert clamped(archive, keep_offsets=True) == {}


def test_an_offset_is_compared_with_the_end_behind_the_markers_that_recovery_writes() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 4), data(4, 7)])
    archive.topic("__consumer_offsets", [commit(0, ("at.marker", "orders", 0, 6), ("beyond", "orders", 0, 7))])
    assert clamped(archive) == {"beyond": 6}
    assert clamped(archive, open_transactions="cut") == {"at.marker": 4, "beyond": 4}


def test_what_a_transaction_commits_counts_once_it_is_committed() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    archive.topic(
        "__consumer_offsets",
        [
            commit(0, ("committed", "orders", 0, 10), producer=1),
            commit(1, ("aborted", "orders", 0, 10), producer=2),
            commit(2, ("overtaken", "orders", 0, 10), producer=3),
            commit(3, ("overtaken", "orders", 0, 4)),
            marker(4, 1),
            marker(5, 2, ABORT),
            marker(6, 3),
            commit(7, ("open", "orders", 0, 10), producer=4),
            commit(8, ("known", "orders", 0, 10), producer=5),
        ],
    )
    archive.topic("__transaction_state", [state(0, "five", 5, 2, ("__consumer_offsets", 0))])
    partition = archive.partition("__consumer_offsets")
    assert aborts(partition) == [(9, 4)]
    assert clamped(archive) == {"committed": 5, "known": 5}  # what the coordinator commits later is overtaken by ours
    assert clamped(archive, open_transactions="keep") == {"committed": 5, "open": 5, "known": 5}


def test_kinds_of_records_that_nobody_knows_are_left_alone_and_noted() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    later = [Record(0, 0, flexible.i16(99) + b"x", b"y", ()), Record(1, 0, flexible.i16(3) + text("g"), b"\0\0", ())]
    torn = Record(2, 0, flexible.i16(1) + b"\x00\x09x", b"", ())
    archive.topic("__consumer_offsets", [a_batch(0, [*later, torn])])
    plan = archive.plan()
    assert plan.offsets_ahead == ()
    assert len(plan.endings) == 2
    assert [note for note in plan.endings if "record type 99" in note]


def test_what_is_skipped_decides_anew_where_logs_end(tmp_path: Path) -> None:
    archive = Archive()
    entries = archive.topic("orders", [plain(0), data(1, 7)], [marker(2, 7), plain(3)])
    archive.topic("__consumer_offsets", [commit(0, ("reader", "orders", 0, 4))])
    plan = archive.plan()
    assert (plan.offsets_ahead, plan.topics[1].partitions[0].written) == ((), ())
    archive.store.delete(entries[1].key)
    report = recovery.apply(plan, tmp_path / "log", archive.store, skip_damaged=True)
    assert len(report.left_out) == 1
    [(header, raw)] = [each for each in batches_in(tmp_path / "log" / "orders-0") if each[0].base_offset >= 2]
    assert (header.base_offset, header.leader_epoch, read_marker(raw).type) == (2, 0, ABORT)
    assert (tmp_path / "log" / checkpoints.HIGH_WATERMARKS).read_text().splitlines()[3] == "orders 0 4"


def test_a_real_log_s_coordinator_and_groups(tmp_path: Path) -> None:
    """refunds of pantry ends in a transaction that __transaction_state knows; one group was set beyond its log's end."""
    store, repository = archive_in_memory(unpack("pantry"))
    plan = recovery.plan(repository, None)
    assert [(each.group, each.offset, each.log_end) for each in plan.offsets_ahead] == [("g-multi", 101, 64)]
    assert {topic.topic for topic in plan.topics for partition in topic.partitions if partition.open_from is not None} == {"refunds"}
    alone = recovery.plan(repository, ["refunds"])
    assert [len(partition.written) for topic in alone.topics for partition in topic.partitions if partition.written] == [1]
    recovery.apply(alone, tmp_path / "log", store)
    added = [each for each in batches(tmp_path / "log") if each not in list(batches(unpack("pantry")))]
    assert [read_marker(raw).type for *_, raw in added] == [ABORT]


def test_what_recovery_wrote_is_archived_behind_what_it_recovered(tmp_path: Path) -> None:
    """Under the old cluster's id the archive goes on: in a leader epoch of recovery's own, so that nothing looks like a dead branch."""
    store = MemoryStore(SystemClock())
    repository = archive(unpack("pantry"), store, policy=SEALED_ONLY)
    archive(unpack("pantry"), store, ["__consumer_offsets"])
    owner = repository.owner()
    assert owner is not None
    plan = recovery.plan(repository, None, recovery.Options(cluster_id=owner.cluster_id))
    recovery.apply(plan, tmp_path / "log", store)
    archive(tmp_path / "log", store)
    written = [(topic, partition) for topic in plan.topics for partition in topic.partitions if partition.written]
    assert {topic.topic for topic, _ in written} == {"__consumer_offsets", "orders.placed"}
    for topic, partition in written:
        held = repository.load(PartitionId(owner.cluster_id, topic.topic_id, partition.partition, topic.topic))
        assert held is not None
        assert (held.head.next_offset, held.head.superseded) == (partition.log_end, ())
        assert held.head.entries[-1].epochs == ((partition.leader_epoch + 1, partition.next_offset),)
        assert held.head.entries[-1].open_from is None
