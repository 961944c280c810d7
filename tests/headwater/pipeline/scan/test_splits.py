"""However a scan is divided and filtered, each wanted offset is read once, and little else."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline.scan import split_reader
from headwater.pipeline.scan.archive_snapshot import ArchiveSnapshot, OffsetRange
from headwater.pipeline.scan.decoder import arrow_schema
from headwater.pipeline.scan.query import Predicate, Query
from headwater.pipeline.scan.query_options import parse_query
from headwater.pipeline.scan.scan_counters import ScanCounters
from headwater.pipeline.scan.split_reader import read_split
from headwater.pipeline.scan.splits import SPLITS_MAX, marker_entries, plan_splits
from headwater_core.errors import DataLoss
from manifests.entry import OBJECT_BYTES_MAX, Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from tests.headwater.pipeline.archives import rows, soup, soup_rows
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, an_abort
from tests.hydration.world import CLUSTER, PARTITION, TOPIC_ID, Archive


def an_entry(base_offset: int, last_offset: int, size_bytes: int = 1000, **fields: Any) -> Entry:
    return Entry(base_offset=base_offset, last_offset=last_offset, size_bytes=size_bytes, live_bytes=size_bytes, **fields)


def a_head(*entries: Entry) -> Head:
    return Head(
        cluster_id=CLUSTER,
        topic="soup",
        topic_id=TOPIC_ID,
        partition=0,
        version=1,
        commit_id="x",
        fence=1,
        writer="test",
        start_offset=entries[0].base_offset,
        last_offset=entries[-1].last_offset,
        entries=EntryTree(entries),
    )


def everything(head: Head) -> OffsetRange:
    return OffsetRange(head, head.start_offset, head.next_offset)


def a_query(**options: object) -> Query:
    return parse_query({"topics": "soup", **options})


def read_all(query: Query, counters: ScanCounters | None = None) -> pa.Table:
    store = soup()
    splits = plan_splits(ArchiveSnapshot.read(store, query).ranges(store, query), query)
    batches = [batch for split in splits for batch in read_split(store, pickle.loads(pickle.dumps(split)), query, counters)]
    return pa.Table.from_batches(batches, arrow_schema(query.columns))


def bounds(values: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.one_of(st.none(), values)


predicates = st.builds(
    lambda first_offset, end_offset, times, partitions: Predicate(
        first_offset=first_offset or 0, first_timestamp_ms=None if times[0] is None else BASE_TIME + times[0], partitions=partitions
    ).and_(
        Predicate(
            end_offset=1000 if end_offset is None else end_offset, end_timestamp_ms=None if times[1] is None else BASE_TIME + times[1]
        )
    ),
    bounds(st.integers(0, 310)),
    bounds(st.integers(0, 310)),
    st.tuples(bounds(st.integers(-800, 3100)), bounds(st.integers(-800, 3100))),
    st.sampled_from([None, None, None, frozenset({0, 3}), frozenset({1})]),
)


def satisfies(row: dict[str, int], predicate: Predicate) -> bool:
    return (
        (predicate.partitions is None or row["partition"] in predicate.partitions)
        and predicate.first_offset <= row["offset"] < predicate.end_offset
        and (predicate.first_timestamp_ms is None or row["timestamp"] >= predicate.first_timestamp_ms)
        and (predicate.end_timestamp_ms is None or row["timestamp"] < predicate.end_timestamp_ms)
    )


@settings(max_examples=60, deadline=None)
@given(
    split_bytes=st.integers(4_000, 3_000_000),
    min_partitions=st.integers(1, 30),
    piece_bytes=st.sampled_from([1, 100_000, 300_000, 8 << 20]),
    small_bytes=st.sampled_from([0, 200_000, 1 << 20]),
    isolation=st.sampled_from(["read_uncommitted", "read_committed"]),
    predicate=predicates,
)
def test_any_division_reads_each_wanted_offset_once(
    split_bytes: int, min_partitions: int, piece_bytes: int, small_bytes: int, isolation: str, predicate: Predicate
) -> None:
    query = a_query(
        split_bytes=split_bytes, min_partitions=min_partitions, isolation=isolation, fail_on_data_loss=False, include_headers=True
    ).where(predicate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_reader, "PIECE_BYTES", piece_bytes)
        patch.setattr(split_reader, "SMALL_BYTES", small_bytes)
        found = rows(read_all(query))
    assert found == [row for row in soup_rows(isolation) if satisfies(row, predicate)]


def test_one_partition_is_divided_into_as_many_tasks_as_wanted() -> None:
    splits = plan_splits([everything(a_head(an_entry(0, 999, 1 << 30)))], a_query())
    assert len(splits) == 8
    assert [split.first for split in splits[1:]] == [split.end for split in splits[:-1]]
    assert {split.end - split.first for split in splits} == {125}
    assert len(plan_splits([everything(a_head(an_entry(0, 999, 1 << 20)))], a_query(min_partitions=8))) == 8


def test_small_neighbours_become_one_task() -> None:
    head = a_head(*(an_entry(at, at + 9, 20 << 20) for at in range(0, 100, 10)))
    splits = plan_splits([everything(head)], a_query(split_bytes="64m"))
    assert [(split.first, split.end, len(split.entries)) for split in splits] == [
        (0, 30, 3),
        (30, 60, 3),
        (60, 90, 3),
        (90, 100, 1),
    ]


@pytest.mark.parametrize("sizes", [[100_000_001], [50_000_003, 49_999_999, 50_000_001, 49_999_997], [3 << 20], [1 << 30]])
@pytest.mark.parametrize("cores", [1, 2, 4])
def test_every_core_has_work_and_none_has_a_remainder(sizes: list[int], cores: int) -> None:
    ranges = [everything(a_head(an_entry(0, 9_999, size))) for size in sizes]
    splits = plan_splits(ranges, a_query(), cores=cores)
    largest = max(split.size_bytes for split in splits)
    assert len(splits) % cores == 0 or sum(sizes) < 4 << 20
    assert largest * len(splits) < 1.1 * sum(sizes)
    assert largest <= 1.1 * (128 << 20)
    assert len(splits) == 1 or largest >= 4 << 20


def test_who_says_how_large_a_split_is_gets_it() -> None:
    ranges = [everything(a_head(an_entry(0, 9_999, 100_000_000)))]
    assert len(plan_splits(ranges, a_query(split_bytes="64m"), cores=16)) == 2
    assert len(plan_splits(ranges, a_query(split_bytes="1g"), cores=16)) == 1


def test_an_entry_of_one_offset_is_one_task_however_large() -> None:
    assert len(plan_splits([everything(a_head(an_entry(7, 7, 1 << 30)))], a_query())) == 1


def test_the_number_of_tasks_is_bounded_whatever_a_head_claims() -> None:
    head = a_head(an_entry(0, 2**62, OBJECT_BYTES_MAX), an_entry(2**62 + 1, 2**62 + 2**61, OBJECT_BYTES_MAX))
    assert len(plan_splits([everything(head)], a_query(split_bytes=1))) <= SPLITS_MAX + 2


def test_what_cannot_match_is_in_no_task() -> None:
    head = a_head(*(an_entry(at, at + 9) for at in range(0, 100, 10)))
    splits = plan_splits([everything(head)], a_query(split_bytes=1000).where(Predicate(first_offset=35, end_offset=55)))
    assert [(split.first, split.end) for split in splits] == [(35, 40), (40, 50), (50, 55)]
    assert not plan_splits([everything(head)], a_query().where(Predicate(topics=frozenset({"stew"}))))


def test_a_gap_is_an_error_unless_loss_is_allowed() -> None:
    head = a_head(an_entry(0, 9), Entry(base_offset=10, last_offset=19, gap=True), an_entry(20, 29))
    with pytest.raises(DataLoss, match="offsets 10 to 19 were never archived"):
        plan_splits([everything(head)], a_query())
    assert [(split.first, split.end) for split in plan_splits([everything(head)], a_query(fail_on_data_loss=False))] == [(0, 30)]
    assert plan_splits([OffsetRange(head, 0, 10)], a_query())


def test_markers_are_looked_for_as_long_as_a_transaction_was_open() -> None:
    first = an_entry(0, 9, open_from=5)
    second = an_entry(10, 19, open_from=5)
    third = an_entry(20, 29, aborted=1, open_from=25)
    fourth = an_entry(30, 39, aborted=1)
    entries = (first, second, third, fourth)
    assert marker_entries(EntryTree(entries), 0, 10) == (third,)
    assert marker_entries(EntryTree(entries), 0, 5) == ()
    assert marker_entries(EntryTree(entries), 20, 26) == (third, fourth)
    assert marker_entries(EntryTree(entries), 30, 40) == (fourth,)


def test_an_entry_whose_aborts_began_later_is_no_marker() -> None:
    open_all_along = an_entry(0, 9, open_from=5)
    later = an_entry(10, 19, aborted=1, aborted_from=12, open_from=5)
    unknown = an_entry(20, 29, aborted=1, open_from=5)
    reaching_back = an_entry(30, 39, aborted=2, aborted_from=5)
    entries = (open_all_along, later, unknown, reaching_back)
    assert marker_entries(EntryTree(entries), 0, 10) == (unknown, reaching_back)
    assert marker_entries(EntryTree(entries), 0, 13) == (later, unknown, reaching_back)
    assert marker_entries(EntryTree(entries), 0, 12) == (unknown, reaching_back)


def test_a_long_aborted_transaction_costs_one_more_index_a_task() -> None:
    def index_reads(objects: int) -> int:
        inner = MemoryStore()
        archive, offset = Archive(inner), 0
        for number in range(objects):
            run = [a_batch(offset, [b"x"], producer=999, transactional=True)] if number == 0 else []
            offset += number == 0
            run += [a_batch(offset, [b"x" * 500], producer=number + 1, transactional=True), an_abort(offset + 1, number + 1)]
            offset += 2
            archive.append(b"".join([*run, *([an_abort(offset, 999)] if number == objects - 1 else [])]))
        store = MeteredStore(inner, log_calls=100_000)
        query = a_query(isolation="read_committed", splitBytes=1, columns="offset")
        splits = plan_splits(ArchiveSnapshot.read(store, query).ranges(store, query), query)
        assert len(splits) >= objects
        assert not [batch for split in splits for batch in read_split(store, split, query)]
        return sum(call.key.endswith(".index") for call in store.log) - len(splits)

    few, many = index_reads(10), index_reads(40)
    assert few < 40
    assert many < 5 * few  # of four times as many objects; every task used to read all later ones


def test_a_splits_partition_is_the_heads() -> None:
    (split,) = plan_splits([everything(a_head(an_entry(0, 9)))], a_query())
    assert split.partition_id == PARTITION
