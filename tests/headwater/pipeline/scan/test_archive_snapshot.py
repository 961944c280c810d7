"""What a scan learns from the bucket before it reads: which partitions, which offsets, and what it refuses to guess."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

import headwater
from headwater.pipeline.scan import archive_snapshot
from headwater.pipeline.scan.archive_snapshot import (
    ArchiveSnapshot,
    OffsetRange,
    OpenTransactionAtEnd,
    describe_open,
    latest,
    offset_for_time,
)
from headwater.pipeline.scan.arrow_stream import scan
from headwater.pipeline.scan.query import Predicate
from headwater.pipeline.scan.query_options import parse_query
from headwater.pipeline.scan.scan_plan import plan_scan
from headwater_core.errors import CorruptData, DataLoss, NotFound, UsageError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.partition import PartitionId, topic_id_text
from manifests import keys
from manifests.entry import Entry
from manifests.repository import ManifestRepository
from manifests.topic import encode_topic
from tests.headwater.pipeline.archives import a_copy, fixture, soup, soup_rows
from tests.headwater.pipeline.scan.damageable import read_quarantine
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_record, a_segment
from tests.hydration.world import CLUSTER, Archive, a_topic


def an_archive(store: MemoryStore, topic: str, number: int, partition: int = 0, end: int = 10) -> Archive:
    archive = Archive(store, PartitionId(CLUSTER, topic_id_text(bytes([number] * 16)), partition, topic))
    archive.append(a_segment(0, end))
    return archive


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    an_archive(store, "orders", 1)
    an_archive(store, "orders", 1, partition=1)
    an_archive(store, "payments", 2)
    an_archive(store, "__internal", 3)
    return store


def found(store: MemoryStore | MeteredStore, **options: object) -> list[str]:
    return [str(head.partition_id) for head in ArchiveSnapshot.read(store, parse_query(options)).heads]


def ranges(store: MemoryStore, **options: object) -> list[tuple[str, int, int]]:
    query = parse_query({"topics": "*", **options})
    return [(str(each.head.partition_id), each.first, each.end) for each in ArchiveSnapshot.survey(store, query).ranges(store, query)]


def test_partitions_are_found_by_name_glob_pattern_and_number(store: MemoryStore) -> None:
    assert found(store, topics="orders") == ["orders:0", "orders:1"]
    assert found(store, topics="*") == ["orders:0", "orders:1", "payments:0"]
    assert found(store, topics="__internal,pay*") == ["__internal:0", "payments:0"]
    assert found(store, subscribe_pattern="orders|x") == ["orders:0", "orders:1"]
    assert found(store, assign={"orders": [1]}) == ["orders:1"]


@pytest.mark.parametrize("options", [{"topics": "stew"}, {"topics": "orders,stew"}, {"topics": "st*"}, {"assign": {"orders": [2]}}])
def test_what_is_not_there_is_said(store: MemoryStore, options: dict[str, object]) -> None:
    with pytest.raises(NotFound):
        found(store, **options)


def test_a_filter_on_partitions_loads_no_other_heads(store: MemoryStore) -> None:
    metered = MeteredStore(store, log_calls=100)
    query = parse_query({"topics": "*"}).where(Predicate(topics=frozenset({"orders"}), partitions=frozenset({1})))
    assert [str(head.partition_id) for head in ArchiveSnapshot.read(metered, query).heads] == ["orders:1"]
    assert [call.key for call in metered.log if call.key.endswith("/manifest.json")] == [
        keys.head(PartitionId(CLUSTER, topic_id_text(bytes([1] * 16)), 1, "orders"))
    ]


@pytest.mark.parametrize(
    "key_of",
    [lambda it: keys.current(it.topic), lambda it: keys.topic_manifest(it.topic, it.topic_id), keys.head],
    ids=["current", "topic", "head"],
)
@pytest.mark.parametrize("topics", ["orders", "*"])
def test_a_damaged_document_is_named(store: MemoryStore, key_of: Callable[[PartitionId], str], topics: str) -> None:
    key = key_of(PartitionId(CLUSTER, topic_id_text(bytes([1] * 16)), 1, "orders"))
    content, _ = store.get(key)
    store.delete(key)
    store.create(key, content.replace(b"test-cluster", b"best-cluster"))
    with pytest.raises(CorruptData, match="orders"):
        found(store, topics=topics)
    assert found(store, topics="payments") == ["payments:0"]


@pytest.mark.parametrize("topics", ["orders", "*"])
def test_a_topic_whose_current_incarnation_is_lost_is_not_taken_for_unknown(store: MemoryStore, topics: str) -> None:
    store.delete(keys.current("orders"))
    with pytest.raises(NotFound, match=r"orders/current\.json is gone"):
        found(store, topics=topics)


def test_bounds_mean_offsets_of_each_partition(store: MemoryStore) -> None:
    everything = [("orders:0", 0, 10), ("orders:1", 0, 10), ("payments:0", 0, 10)]
    assert ranges(store) == everything
    assert ranges(store, starting_offsets="latest") == []
    assert ranges(store, starting_offsets={"orders": {"0": 4, "1": -1}}, ending_offsets={"orders": {"0": 7}}) == [
        ("orders:0", 4, 7),
        ("payments:0", 0, 10),
    ]
    assert ranges(store, starting_timestamp=BASE_TIME + 4) == [(each, 4, end) for each, _, end in everything]
    assert ranges(store, ending_timestamp=BASE_TIME + 4) == [(each, 0, 4) for each, _, _ in everything]
    assert ranges(store, starting_offsets_by_timestamp={"orders": {"1": BASE_TIME + 9}})[1] == ("orders:1", 9, 10)


def test_a_time_after_everything_begins_at_the_end_or_is_refused(store: MemoryStore) -> None:
    assert ranges(store, starting_timestamp=BASE_TIME + 99) == []
    assert len(ranges(store, ending_timestamp=BASE_TIME + 99)) == 3
    with pytest.raises(DataLoss, match="no record at or after"):
        ranges(store, starting_timestamp=BASE_TIME + 99, starting_offsets_by_timestamp_strategy="error")


@pytest.mark.parametrize("bound", [{"starting_offsets": {"orders": {"0": 11}}}, {"ending_offsets": {"orders": {"0": 11}}}])
def test_offsets_that_the_archive_does_not_have_are_loss(store: MemoryStore, bound: dict[str, object]) -> None:
    with pytest.raises(DataLoss, match=r"orders:0: offset 11 was requested, the archive has \[0, 10\)"):
        ranges(store, **bound)
    assert ("payments:0", 0, 10) in ranges(store, fail_on_data_loss=False, **bound)


def test_offsets_of_a_partition_that_is_not_there_are_refused(store: MemoryStore) -> None:
    with pytest.raises(NotFound, match="orders:7"):
        ranges(store, starting_offsets={"orders": {"7": 1}})


def test_what_is_undecided_is_not_committed() -> None:
    (head,) = ArchiveSnapshot.read(soup(), parse_query({"topics": "soup"})).heads
    assert (latest(head, read_committed=False), latest(head, read_committed=True)) == (300, 280)
    with pytest.raises(DataLoss, match="a transaction is open from offset 280 on"):
        ranges(a_copy(soup()), isolation="read_committed", ending_offsets={"soup": {"0": 290}})


def test_a_range_that_an_open_transaction_ends_names_it() -> None:
    def named(**options: object) -> list[OpenTransactionAtEnd]:
        query = parse_query({"topics": "soup", "isolation": "read_committed", "fail_on_data_loss": False, **options})
        return list(plan_scan(soup(), query).open_transactions)

    found = [OpenTransactionAtEnd("soup", 0, 280, 20)]
    assert named() == named(starting_offsets={"soup": {"0": 280}}) == found
    assert named(ending_offsets={"soup": {"0": 290}}) == named(ending_timestamp=BASE_TIME + 99_000) == found
    assert named(isolation="read_uncommitted") == named(ending_offsets={"soup": {"0": 280}}) == named(ending_timestamp=BASE_TIME) == []
    with structlog.testing.capture_logs() as logs:
        scan(soup(), "soup", isolation="read_committed", fail_on_data_loss=False)
    assert [(log["event"], log["offset"], log["offsets"]) for log in logs] == [("open_transaction_found", 280, 20)]


def test_warnings_of_a_scan_leave_stdout_to_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    scan(soup(), "soup", isolation="read_committed", fail_on_data_loss=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert "open_transaction_found" in err


def test_of_many_open_transactions_those_that_hide_most_are_named() -> None:
    every = [OpenTransactionAtEnd("orders", number, 10, number + 1) for number in range(7)]
    assert describe_open([]) == ""
    text = describe_open(every)
    assert text.startswith("not read because a transaction is open: orders:6 from offset 10 on (7 offsets), orders:5 ")
    assert text.endswith("orders:2 from offset 10 on (3 offsets), and 2 more partitions")


def test_a_gap_at_the_end_decides_no_transaction() -> None:
    (head,) = ArchiveSnapshot.read(soup(), parse_query({"topics": "soup"})).heads
    gap = Entry(base_offset=300, last_offset=349, gap=True)
    longer = msgspec.structs.replace(head, entries=(*head.entries, gap), last_offset=349)
    assert (latest(longer, read_committed=False), latest(longer, read_committed=True)) == (350, 280)


@pytest.mark.parametrize("after", [-800, 0, 555, 1105, 1550, 1700, 2195, 2400, 2985, 4000])
def test_a_time_is_the_first_record_that_is_not_older(after: int) -> None:
    store = soup()
    (head,) = ArchiveSnapshot.read(store, parse_query({"topics": "soup"})).heads
    wanted = next((row["offset"] for row in soup_rows("read_uncommitted") if row["timestamp"] >= BASE_TIME + after), None)
    assert offset_for_time(store, head, BASE_TIME + after, head.next_offset) == wanted


def test_looking_for_a_time_survives_a_merge(store: MemoryStore) -> None:
    archive = an_archive(store, "soup", 9)
    archive.append(a_segment(10, 10))
    query = parse_query({"topics": "soup", "starting_timestamp": BASE_TIME + 14})
    snapshot = ArchiveSnapshot.read(store, query)
    old = archive.head.entries
    archive.commit(archive.upload(a_segment(0, 20)))
    for entry in old:
        store.delete(entry.key)
        store.delete(entry.index_key)
    assert [(each.first, each.end) for each in snapshot.ranges(store, query)] == [(14, 20)]


def test_a_time_in_a_missing_object_is_damage(store: MemoryStore) -> None:
    archive = an_archive(store, "soup", 9)
    store.delete(archive.head.entries[0].key)
    query = parse_query({"topics": "soup", "starting_timestamp": BASE_TIME + 4})
    with pytest.raises(CorruptData, match="the store does not have it"):
        ArchiveSnapshot.read(store, query).ranges(store, query)


def test_a_log_start_inside_a_batch_bounds_what_a_time_finds() -> None:
    store = MemoryStore()
    archive = Archive(store)
    archive.append(a_batch(0, [a_record(n, timestamp=BASE_TIME) for n in range(10)]))
    archive.commit(*archive.head.entries, start_offset=6)
    (head,) = ArchiveSnapshot.read(store, parse_query({"topics": "soup"})).heads
    assert head.start_offset == 6
    assert offset_for_time(store, head, BASE_TIME, 10) == 6
    assert offset_for_time(store, head, BASE_TIME, 6) is None


def test_a_range_knows_its_entries() -> None:
    (head,) = ArchiveSnapshot.read(soup(), parse_query({"topics": "soup"})).heads
    entries = OffsetRange(head, 109, 156).entries
    assert [(entry.base_offset, entry.gap) for entry in entries] == [(60, False), (110, False), (149, False), (155, True)]


def test_a_deleted_and_recreated_topic_is_its_newest_incarnation(store: MemoryStore) -> None:
    an_archive(store, "orders", 8, end=5)
    assert ranges(store, topics="orders") == [("orders:0", 0, 5)]


@pytest.mark.parametrize("name", ["pantry", "kitchen"])
def test_a_fixtures_catalogue_holds_its_topics_and_no_internal_ones(name: str) -> None:
    topics = {head.topic for head in ArchiveSnapshot.read(fixture(name), parse_query({"topics": "*"})).heads}
    assert topics
    assert not [topic for topic in topics if topic.startswith("__")]


# Which incarnation, and what is left out


def test_topics_are_left_out_by_name_or_glob(store: MemoryStore) -> None:
    assert found(store, topics="*,!pay*") == ["orders:0", "orders:1"]
    assert found(store, topics=["*", "!orders"]) == ["payments:0"]
    with pytest.raises(UsageError, match="both names and excludes"):
        found(store, topics="orders,!ord*")
    with pytest.raises(UsageError, match="names none"):
        found(store, topics="!orders")


def test_a_topic_that_was_created_again_is_read_by_its_former_id(store: MemoryStore) -> None:
    former = PartitionId(CLUSTER, topic_id_text(bytes([1] * 16)), 0, "orders")
    an_archive(store, "orders", 7, end=3)
    assert ranges(store, topics="orders") == [("orders:0", 0, 3)]
    assert ranges(store, topics=f"orders@{former.topic_id}") == [("orders:0", 0, 10), ("orders:1", 0, 10)]
    query = parse_query({"topics": f"*,orders@{former.topic_id}"})
    assert ArchiveSnapshot.read(store, query).heads[0].partition_id == former
    with pytest.raises(NotFound, match="topics list --all"):
        found(store, topics=f"orders@{topic_id_text(bytes([9] * 16))}")
    with pytest.raises(UsageError, match="topic id"):
        found(store, topics="orders@seven")
    with pytest.raises(UsageError, match="two incarnations"):
        found(store, topics=f"orders,orders@{former.topic_id}")


# Documents that cannot be read


@pytest.mark.parametrize("whose", ["head", "topic", "current"])
@pytest.mark.parametrize("change", [lambda raw: raw[: len(raw) // 2], None], ids=["cut", "gone"])
def test_a_damaged_document_is_listed_and_the_rest_is_read(
    store: MemoryStore, whose: str, change: Callable[[bytes], bytes] | None, tmp_path: Path
) -> None:
    partition = PartitionId(CLUSTER, topic_id_text(bytes([1] * 16)), 1, "orders")
    key = {
        "head": keys.head(partition),
        "topic": keys.topic_manifest(partition.topic, partition.topic_id),
        "current": keys.current("orders"),
    }[whose]
    raw = store.get(key)[0]
    if whose == "head" and change is None:
        change = lambda raw: b""  # noqa: E731  # a head that is gone is not even listed
    store.delete(key)
    if change:
        store.create(key, change(raw))
    with pytest.raises((CorruptData, NotFound)) as raised:
        scan(store, "*")
    assert "onCorrupt=quarantine" in str(raised.value) or isinstance(raised.value, NotFound)
    options: dict[str, Any] = {"onCorrupt": "quarantine", "quarantinePath": str(tmp_path)}
    assert set(scan(store, "*", **options).read_all()["topic"].to_pylist()) == ({"orders", "payments"} if whose == "head" else {"payments"})
    (damage,) = read_quarantine(DirectoryStore(tmp_path))
    assert (damage.topic, damage.partition, damage.object) == ("orders", 1 if whose == "head" else None, key)
    assert damage.first_offset is damage.last_offset is None
    if whose == "head":
        assert ranges(store, topics="orders", **options, assign=None, starting_offsets={"orders": {"0": 4}}) == [("orders:0", 4, 10)]


def test_an_archived_incarnation_that_the_name_never_meant_is_named() -> None:
    """As where no metadata log is archived: the name stays with the former one for a day."""
    store = MemoryStore()
    former, newcomer = (PartitionId(CLUSTER, topic_id_text(bytes([number] * 16)), 0, "orders") for number in (1, 2))
    an_archive(store, "orders", 1)
    archive_snapshot._warn_of_undecided.cache_clear()

    def events() -> list[tuple[str, str, str]]:
        with structlog.testing.capture_logs() as logs:
            found(store, topics="orders")
        return [(each["event"], each["topic_id"], each["command"]) for each in logs]

    assert events() == []
    key = keys.current("orders")
    before, _ = store.get(key)
    an_archive(store, "orders", 2)
    store.replace(key, before, expected_tag=store.get(key)[1])
    assert ManifestRepository(store).resolve("orders").topic_id == former.topic_id
    assert events() == [("incarnation_passed_over", newcomer.topic_id, f"headwater topics set orders --incarnation {newcomer.topic_id}")]
    assert events() == []  # once in a process
    archive_snapshot._warn_of_undecided.cache_clear()
    ManifestRepository(store).choose_incarnation("orders", former.topic_id)
    assert events() == []


def test_a_topic_whose_making_was_cut_short_is_passed_by_a_glob(store: MemoryStore) -> None:
    made = a_topic(PartitionId(CLUSTER, topic_id_text(bytes([8] * 16)), 0, "half"))
    store.create(keys.topic_manifest("half", made.topic_id), encode_topic(made))
    assert found(store, topics="*") == ["orders:0", "orders:1", "payments:0"]
    with pytest.raises(NotFound):
        found(store, topics="half")


FAR_MS = 1000 * BASE_TIME  # in microseconds


def dated(store: MemoryStore, published_ms: int | None) -> Archive:
    """Ten runs of two records, a second apart; of the second record the producer was wrong."""
    archive = Archive(store)
    for n in range(0, 20, 2):
        archive.append(a_batch(n, [a_record(at, timestamp=FAR_MS if at == 1 else BASE_TIME + 1000 * at) for at in (n, n + 1)]))
    archive.commit(*(msgspec.structs.replace(entry, published_ms=published_ms) for entry in archive.head.entries))
    return archive


def test_a_record_that_is_dated_ahead_neither_ends_nor_begins_a_range(store: MemoryStore) -> None:
    archive = dated(store, BASE_TIME + 60_000)
    (topic,) = {archive.partition.topic}
    times: dict[str, Any] = {"starting_timestamp": BASE_TIME + 500, "ending_timestamp": BASE_TIME + 15_000}
    with structlog.testing.capture_logs() as logs:
        rows = scan(store, topic, **times).read_all().column("offset").to_pylist()
    assert rows == list(range(2, 15))
    found = {(each["topic"], each["partition"], each["offset"], each["dated"], each["is_skipped"]) for each in logs if "offset" in each}
    assert found == {(topic, archive.partition.partition, 1, str(FAR_MS), True)}
    assert scan(store, topic, ending_timestamp=BASE_TIME + 99_000).read_all().num_rows == 20
    exact = scan(store, topic, where=headwater.Predicate.of_times(BASE_TIME, BASE_TIME + 15_000)).read_all().column("offset").to_pylist()
    assert exact == [0, *range(2, 15)]


def test_a_run_of_an_older_version_is_taken_at_its_word_and_named(store: MemoryStore) -> None:
    topic = dated(store, None).partition.topic
    with structlog.testing.capture_logs() as logs:
        assert scan(store, topic, ending_timestamp=BASE_TIME + 15_000).read_all().num_rows == 1
    assert [(each["offset"], each["is_skipped"]) for each in logs if each["event"] == "late_record_found"] == [(1, False)]


def test_a_range_begins_where_all_records_seem_late(store: MemoryStore) -> None:
    """As with an agent whose clock was behind: nothing is left out for that."""
    topic = dated(store, 0).partition.topic
    with structlog.testing.capture_logs() as logs:
        assert scan(store, topic, starting_timestamp=BASE_TIME + 15_000).read_all().num_rows >= 5
    assert [each["is_skipped"] for each in logs if each["event"] == "late_record_found"] == [False]
