"""Logs that end before their archive does: at a point in time, or at an offset."""

from pathlib import Path
from random import Random

import pytest
from msgspec import structs

import recovery
from headwater_core.errors import UsageError
from headwater_core.partition import PartitionId
from headwater_core.segments.batches import BatchHeader, read_batch_header
from headwater_core.segments.encoder import encode_marker
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from headwater_core.segments.records import decode_batch
from manifests.repository import ManifestRepository
from recovery.discovery import discover
from recovery.recovery_plan import RequestedEnd
from recovery.requested_ends import find_ends
from tests.fixtures import unpack
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import Producer, a_batch, a_record
from tests.recovery.archived import archive_in_memory, batches
from tests.recovery.plans import CLUSTER
from tests.recovery.written_archive import Archive, aborts, batches_in, commit

T0 = 1_700_000_000_000


def at(offset: int, *times: int, producer: int | None = None) -> bytes:
    """A batch of records of these times, in ms after T0."""
    records = [a_record(offset + n, timestamp=T0 + time) for n, time in enumerate(times)]
    return a_batch(offset, records, producer=None if producer is None else Producer(id=producer), transactional=producer is not None)


def ended(offset: int, time: int, producer: int, kind: int = COMMIT) -> bytes:
    return encode_marker(offset, kind, producer_id=producer, producer_epoch=0, coordinator_epoch=3, leader_epoch=0, timestamp_ms=T0 + time)


def end_of(archive: Archive, time: int) -> RequestedEnd | None:
    return archive.partition("orders", to_time_ms=T0 + time).end


def test_a_log_ends_before_the_first_batch_with_a_later_timestamp() -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 10), at(1, 20, 30)], [at(3, 40), at(4, 35, 60), at(6, 50)], [at(7, 70)])
    partition = archive.partition("orders", to_time_ms=T0 + 40)
    assert [(each.base_offset, each.last_offset) for each in partition.entries] == [(0, 2), (3, 3)]
    assert (partition.next_offset, partition.records) == (4, 4)
    assert partition.end == RequestedEnd(offset=4, records=4, out_of_order=1)  # the one of 35
    assert end_of(archive, 70) is None
    assert end_of(archive, 30) == RequestedEnd(offset=3, records=5, out_of_order=0)
    assert end_of(archive, 0) == RequestedEnd(offset=0, records=8)
    assert archive.partition("orders", to_time_ms=T0).next_offset == 0
    assert [note for note in archive.plan(to_time_ms=T0 + 40).notes if "without 4 records after it, 1 of them out of order" in note]


def test_whole_runs_out_of_order_are_counted_by_what_the_manifest_says() -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 10)], [at(1, 99)], [at(2, 5, 6)], [at(4, 100)])
    assert end_of(archive, 50) == RequestedEnd(offset=1, records=4, out_of_order=2)


def test_what_was_not_committed_by_then_is_aborted() -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 10, producer=7), at(1, 20, producer=8), ended(2, 30, 8)], [ended(3, 60, 7), at(4, 70)])
    partition = archive.partition("orders", to_time_ms=T0 + 50)  # no record is late before offset 4, a marker is
    assert (partition.next_offset, aborts(partition), partition.open_from) == (3, [(3, 7)], None)
    assert aborts(archive.partition("orders", to_time_ms=T0 + 60)) == []
    assert archive.partition("orders", to_time_ms=T0 + 29).next_offset == 2
    assert aborts(archive.partition("orders", to_time_ms=T0 + 29)) == [(2, 7), (3, 8)]


def test_a_late_marker_is_found_however_old_the_records_are_that_it_ends() -> None:
    """Producers set the times of records: those of a backfill are old, and those of an hour before the time are no bound."""
    archive = Archive()
    day = 86_400_000
    archive.topic(
        "orders", [at(0, -9 * day, producer=7)], [at(1, -9 * day), at(2, -9 * day)], [at(3, -5 * day), ended(4, 60, 7)], [at(5, 0)]
    )
    partition = archive.partition("orders", to_time_ms=T0 + 50)
    assert (partition.next_offset, aborts(partition)) == (4, [(4, 7)])
    assert archive.partition("orders", to_time_ms=T0 + 60).end is None


def test_runs_that_can_hold_no_marker_are_not_looked_into() -> None:
    """As those of idempotent producers, whose every offset has a record."""
    archive = Archive()
    archive.topic("orders", *([a_batch(n, 1, producer=Producer(id=7))] for n in range(5)))
    store = MeteredStore(archive.store, log_calls=100)
    found = discover(ManifestRepository(archive.store), ["orders"])
    assert find_ends(found.topics, recovery.Options(to_time_ms=T0 * 2), store) == {}
    assert not store.log


def test_a_compacted_log_that_ends_early_lacks_keys_that_were_written_again_later() -> None:
    """The cleaner had dropped what they were then: nothing has it any more."""
    archive = Archive()
    archive.topic("stock", [at(0, 10)], [at(1, 20), at(3, 25)], [at(4, 60)], **{"cleanup.policy": "compact"})
    archive.topic("orders", [at(0, 10)], [at(1, 20), at(3, 25)], [at(4, 60)])
    archive.topic("whole", [at(0, 10)], [at(1, 20)], [at(2, 60)], **{"cleanup.policy": "compact,delete"})
    plan = archive.plan(to_time_ms=T0 + 30)
    assert plan.left_out == (
        "stock: partitions 0 end early: a key that was written again later has no value here where the cleaner had dropped the earlier one",
    )
    assert archive.plan(to_offsets={"stock:0": 1}).left_out == ()
    assert archive.plan(to_offsets={"stock:0": 4}).left_out == plan.left_out
    assert archive.plan(to_time_ms=T0 + 60).left_out == ()


def test_offsets_that_groups_committed_later_are_not_committed() -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 10), at(1, 20), at(2, 60)])
    archive.topic("__consumer_offsets", [commit(0, ("cooks", "orders", 0, 3))])  # at T0
    [ahead] = archive.plan(to_time_ms=T0 + 20).offsets_ahead
    assert (ahead.offset, ahead.log_end) == (3, 2)


def test_a_log_ends_before_an_offset_and_a_batch_is_never_divided() -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 1, 2), at(2, 3, 4, 5)], [at(5, 6)], None, [at(16, 7)])

    def ending(offset: int) -> tuple[int, int]:
        partition = archive.partition("orders", to_offsets={"orders:0": offset})
        assert partition.end is not None
        return partition.next_offset, partition.end.records

    assert [ending(offset) for offset in (0, 1, 2, 4, 5, 6)] == [(0, 7), (0, 7), (2, 5), (2, 5), (5, 2), (6, 1)]
    assert ending(9) == (9, 1)  # inside a gap
    assert archive.partition("orders", to_offsets={"orders:0": 17}).end is None
    for wrong in ("orders:1", "menu:0", "orders", "orders:x"):
        with pytest.raises(UsageError):
            archive.plan(to_offsets={wrong: 4})


@pytest.mark.parametrize("share", [0.1, 0.4, 0.8])
def test_a_real_broker_s_logs_end_at_a_time(share: float, tmp_path: Path) -> None:
    """Compacted ones, whose first batch may be late and not at their start, among them."""
    source = unpack("pantry")
    store, repository = archive_in_memory(source)
    logs: dict[tuple[str, int], list[bytes]] = {}
    for topic, partition, _, raw in batches(source):
        logs.setdefault((topic, partition), []).append(raw)
    times = sorted(read_batch_header(memoryview(raw), where="test").max_timestamp_ms for log in logs.values() for raw in log)
    time_ms = times[int(len(times) * share)]
    plan = recovery.plan(repository, None, recovery.Options(to_time_ms=time_ms, open_transactions="keep", keep_offsets=True))
    recovery.apply(plan, tmp_path / "log", store)
    recovered: dict[tuple[str, int], list[bytes]] = {}
    for topic, partition, _, raw in batches(tmp_path / "log"):
        recovered.setdefault((topic, partition), []).append(raw)
    for place, log in logs.items():
        late = [read_batch_header(memoryview(raw), where="test").max_timestamp_ms > time_ms for raw in log]
        assert recovered.get(place, []) == log[: late.index(True) if True in late else len(log)], place


def test_after_sixteen_runs_the_count_is_at_least_unless_all_are_wanted() -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 99)], *([at(1 + 2 * n, 5, 99)] for n in range(20)))
    partition = archive.partition("orders", to_time_ms=T0 + 50)
    assert partition.end == RequestedEnd(offset=0, records=41, out_of_order=16, at_least=True)
    partition = archive.partition("orders", to_time_ms=T0 + 50, count_all=True)
    assert partition.end == RequestedEnd(offset=0, records=41, out_of_order=20)


def test_a_run_that_is_damaged_where_a_log_is_to_end_is_left_out_as_a_whole() -> None:
    archive = Archive()
    _, entry = archive.topic("orders", [at(0, 10)], [at(1, 20), at(2, 60)])
    archive.store.delete(entry.key)
    plan = archive.plan(to_time_ms=T0 + 30)
    [partition] = plan.topics[0].partitions
    assert (partition.next_offset, plan.holes) == (1, ())
    assert partition.end is not None
    assert (partition.end.records, partition.end.at_least) == (2, True)


@pytest.mark.parametrize("seed", range(60))
def test_recovered_logs_hold_exactly_the_batches_before_the_first_late_one(seed: int, tmp_path: Path) -> None:
    """Against the whole log, batch by batch: producers' times jump, brokers' do not, transactions cross runs."""
    random = Random(seed)
    archive, log = Archive(), random_log(random)
    runs = in_runs(log, random)
    archive.topic("orders", *runs)
    time = T0 + random.randrange(-5, len(log) * 10 + 5)
    before = log
    for n, (header, _) in enumerate(log):
        if header.max_timestamp_ms > time:
            before = log[:n]
            break
    left_out = [record for header, raw in log[len(before) :] if not header.is_control for record in decode_batch(raw)]
    partition = archive.partition("orders", to_time_ms=time)
    end = partition.end or RequestedEnd(offset=0, records=0)
    assert (end.records, end.out_of_order) == (len(left_out), sum(each.timestamp_ms <= time for each in left_out))
    found = archive.recovered(tmp_path / "log", "orders", to_time_ms=time)
    assert found[: len(before)] == before
    after = found[len(before) :]
    assert all(read_marker(raw).type == ABORT for _, raw in after)
    assert sorted(header.producer_id for header, _ in after) == sorted(open_producers(before))
    [recovered] = LogDirs([tmp_path / "log"]).partitions()
    assert recovered.high_watermark == (before[-1][0].last_offset + 1 if before else 0) + len(after)
    assert recovery.status(tmp_path / "log")


def random_log(random: Random) -> list[tuple[BatchHeader, bytes]]:
    batches: list[bytes] = []
    offset, opened = 0, set[int]()
    for n in range(random.randrange(1, 30)):
        now = n * 10
        times = [now + random.choice((0, 0, 0, -25, 25)) for _ in range(random.randrange(1, 4))]
        what = random.random()
        if what < 0.3 and opened:
            producer = random.choice(sorted(opened))
            opened.remove(producer)
            batches.append(ended(offset, now, producer, random.choice((COMMIT, ABORT))))
            offset += 1
            continue
        producer_id = random.choice((7, 8, 9)) if what < 0.7 else None
        opened |= {producer_id} if producer_id is not None else set()
        batches.append(at(offset, *sorted(max(0, each) for each in times), producer=producer_id))
        offset += len(times)
    return [(read_batch_header(memoryview(raw), where="test"), raw) for raw in batches]


def in_runs(log: list[tuple[BatchHeader, bytes]], random: Random) -> list[list[bytes]]:
    runs: list[list[bytes]] = [[]]
    for _, raw in log:
        if runs[-1] and random.random() < 0.3:
            runs.append([])
        runs[-1].append(raw)
    return runs


def open_producers(log: list[tuple[BatchHeader, bytes]]) -> set[int]:
    opened = set[int]()
    for header, _ in log:
        if header.is_control:
            opened.discard(header.producer_id)
        elif header.is_transactional:
            opened.add(header.producer_id)
    return opened


def test_what_comes_back_is_read_back(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 10), at(1, 20)], [at(2, 30)])
    recovery.apply(archive.plan(to_offsets={"orders:0": 1}), tmp_path / "log", archive.store)
    assert [header.base_offset for header, _ in batches_in(tmp_path / "log" / "orders-0")] == [0]
    assert recovery.apply(archive.plan(to_offsets={"orders:0": 1}), tmp_path / "log", archive.store).again


def published(archive: Archive, time: int | None) -> None:
    """All runs of `orders`, `time` ms after T0."""
    manifests = ManifestRepository(archive.store)
    [(_, topic_id)] = [each for each in manifests.incarnations() if each[0] == "orders"]
    partition = PartitionId(CLUSTER, topic_id, 0, "orders")
    known = manifests.load(partition)
    assert known is not None
    when = None if time is None else T0 + time
    entries = tuple(structs.replace(entry, published_ms=when) for entry in known.head.entries)
    manifests.commit(known, structs.replace(known.head, entries=entries, version=known.head.version + 1, commit_id="dated"))


def test_a_record_that_is_dated_later_than_it_was_published_ends_no_log() -> None:
    archive, far = Archive(), 999 * T0  # in microseconds
    archive.topic("orders", [at(0, 10), at(1, far), at(2, 20)], [at(3, far)], [at(4, 30), at(5, 60), at(6, 20)])
    assert archive.partition("orders", to_time_ms=T0 + 50).next_offset == 1
    published(archive, 1_000)
    partition = archive.partition("orders", to_time_ms=T0 + 50)
    assert (partition.next_offset, partition.end) == (5, RequestedEnd(offset=5, records=2, out_of_order=1))
    assert archive.partition("orders", to_time_ms=T0 + 60).end is None
    published(archive, 40)
    assert archive.partition("orders", to_time_ms=T0 + 50).end is None, "nothing of it was written after that"


def test_a_late_marker_ends_a_log_beside_a_record_that_is_dated_ahead() -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 10, producer=7), at(1, 999 * T0)], [at(2, 20), ended(3, 60, 7)], [at(4, 20)])
    published(archive, 1_000)
    partition = archive.partition("orders", to_time_ms=T0 + 50)
    assert (partition.next_offset, aborts(partition)) == (3, [(3, 7)])
