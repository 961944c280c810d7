"""Places in a stream: what they remember, what contradicts them, and how a limit is shared out."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipeline.scan.progress import (
    Progress,
    Reached,
    TopicIdentity,
    admit,
    advance,
    begin_of,
    check_progress,
    decode_progress,
    place_at,
)
from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, DataLoss, Superseded, UnsupportedFormat
from headwater_core.partition import TopicPartition, topic_id_text
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head

OLD, NEW = topic_id_text(bytes(16)), topic_id_text(bytes(range(16)))
SOUP = TopicPartition("soup", 0)


def a_head(*entries: Entry, start: int | None = None, topic: str = "soup", topic_id: str = OLD, partition: int = 0) -> Head:
    first = entries[0].base_offset if entries else start or 0
    return Head(
        cluster_id="kitchen",
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        version=1,
        commit_id="x",
        fence=1,
        writer="test",
        start_offset=first if start is None else start,
        last_offset=entries[-1].last_offset if entries else first - 1,
        entries=EntryTree(entries),
    )


def an_entry(base: int, last: int, *epochs: tuple[int, int], live_bytes: int = 100) -> Entry:
    return Entry(
        base_offset=base,
        last_offset=last,
        epochs=EpochHistory.of(epochs or [(0, base)]).starts,
        size_bytes=live_bytes,
        live_bytes=live_bytes,
    )


def a_gap(base: int, last: int) -> Entry:
    return Entry(base_offset=base, last_offset=last, gap=True)


def place(head: Head, offset: int) -> Progress:
    return place_at({SOUP: head}, {SOUP: offset})


def check(progress: Progress, *heads: Head, allow_loss: bool = False) -> None:
    check_progress(progress, {head.partition_id.topic_partition: head for head in heads}, allow_loss=allow_loss)


# What a checkpoint keeps

names = st.sampled_from(["orders", "pay", "refunds-10", "a.b"])
places = st.builds(Reached, st.integers(0, 2**62), st.one_of(st.none(), st.integers(0, 2**31 - 1)))


@given(st.dictionaries(st.builds(TopicPartition, names, st.integers(0, 12)), places))
def test_a_place_comes_back_from_its_json_and_always_has_the_same_text(reached: dict[TopicPartition, Reached]) -> None:
    incarnations = {partition.topic: TopicIdentity("kitchen", NEW) for partition in reached}
    progress = Progress(incarnations=incarnations, reached=reached)
    text = json.dumps(progress.encode())
    back = decode_progress(json.loads(text))
    assert back == progress
    assert json.dumps(back.encode()) == text
    shuffled = Progress(incarnations=incarnations, reached=dict(reversed(reached.items())))
    assert json.dumps(shuffled.encode()) == text


def test_a_newer_versions_checkpoint_is_refused_as_such() -> None:
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        decode_progress({"version": 2, "topics": {}})


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"version": 1},
        {"version": 1, "topics": 3},
        {"version": 1, "topics": {"soup": {"cluster": "c", "id": "short", "partitions": {}}}},
        {"version": 1, "topics": {"soup": {"cluster": "c", "id": OLD, "partitions": {"0": {"next": -5}}}}},
        {"version": 1, "topics": {"soup": {"cluster": "c", "id": OLD, "partitions": {"x": {"next": 5}}}}},
        {"version": 1, "topics": {"../..": {"cluster": "c", "id": OLD, "partitions": {"0": {"next": 5}}}}},
    ],
)
def test_what_is_no_place_is_corrupt(document: dict[str, object]) -> None:
    with pytest.raises(CorruptData, match="checkpoint"):
        decode_progress(document)


# What contradicts it


def test_the_epoch_is_the_one_of_the_last_offset_that_was_read() -> None:
    head = a_head(an_entry(0, 9, (1, 0), (3, 5)), a_gap(10, 14), an_entry(15, 19, (4, 17)))
    assert [head.leader_epoch_at(offset) for offset in (0, 4, 5, 9, 10, 14, 15, 17, 19, 20)] == [1, 1, 3, 3, None, None, None, 4, 4, None]


def test_a_log_that_grew_retention_apart_contradicts_nothing() -> None:
    read = place(a_head(an_entry(0, 9, (1, 0))), 10)
    check(read, a_head(an_entry(0, 9, (1, 0)), an_entry(10, 19, (1, 10), (2, 12))))
    check(read, a_head(an_entry(10, 19, (2, 10)), start=10))


def test_another_epoch_at_the_last_offset_read_is_a_superseded_branch() -> None:
    read = place(a_head(an_entry(0, 9, (1, 0), (2, 4))), 10)
    with pytest.raises(Superseded, match=r"soup:0.*offset 9 of leader epoch 2.*epoch 3.*unclean election.*new checkpoint"):
        check(read, a_head(an_entry(0, 3, (1, 0)), an_entry(4, 30, (3, 4))))


def test_an_epoch_that_compaction_made_older_is_no_new_branch() -> None:
    read = place(a_head(an_entry(0, 9, (1, 0), (2, 8))), 10)
    check(read, a_head(an_entry(0, 9, (1, 0))))  # the records of epoch 2 are compacted away


def test_a_branch_that_parts_behind_the_place_does_not_matter() -> None:
    read = place(a_head(an_entry(0, 9, (1, 0), (2, 4))), 4)
    check(read, a_head(an_entry(0, 3, (1, 0)), an_entry(4, 30, (3, 4))))


def test_a_place_beyond_the_archive_was_cut_off() -> None:
    read = place(a_head(an_entry(0, 9)), 10)
    with pytest.raises(Superseded, match="up to offset 10, the archive ends at 8 now"):
        check(read, a_head(an_entry(0, 7)), allow_loss=True)


def test_an_epoch_that_nobody_knows_contradicts_nothing() -> None:
    read = place(a_head(an_entry(0, 5, (1, 0)), a_gap(6, 9)), 10)
    check(read, a_head(an_entry(0, 9, (1, 0), (2, 6))))
    check(place(a_head(an_entry(0, 9, (2, 0))), 10), a_head(an_entry(0, 5, (2, 0)), a_gap(6, 9)))


def test_a_topic_that_was_created_again_is_another() -> None:
    read = place(a_head(an_entry(0, 9)), 5)
    with pytest.raises(Superseded, match=f"{OLD}.*{NEW}.*created again"):
        check(read, a_head(an_entry(0, 9), topic_id=NEW), allow_loss=True)


def test_what_retention_took_before_it_was_read_is_lost_unless_that_is_allowed() -> None:
    read = place(a_head(an_entry(0, 9)), 5)
    later = a_head(an_entry(6, 9), start=6)
    with pytest.raises(DataLoss, match="up to offset 5, the archive begins at 6 now"):
        check(read, later)
    check(read, later, allow_loss=True)
    assert begin_of(read, later) == 6


def test_a_partition_that_is_gone_is_lost_unless_that_is_allowed() -> None:
    read = place(a_head(an_entry(0, 9)), 5)
    with pytest.raises(DataLoss, match="no longer has it"):
        check(read)
    check(read, allow_loss=True)


# How far it goes


def test_nothing_new_is_the_very_same_place() -> None:
    head = a_head(an_entry(0, 9, (1, 0)))
    read = place(head, 10)
    assert advance(read, {SOUP: head}, {SOUP: 10}) == read
    verified = a_head(an_entry(0, 9, (7, 0)))  # what is known of the epoch may have changed since
    assert advance(read, {SOUP: verified}, {SOUP: 10}).encode() == read.encode()


def test_a_new_partition_is_read_from_its_start() -> None:
    head, other = a_head(an_entry(0, 9)), a_head(an_entry(3, 9), partition=1)
    heads = {SOUP: head, TopicPartition("soup", 1): other}
    moved = advance(place(head, 10), heads, {SOUP: 10, TopicPartition("soup", 1): 10})
    assert moved.reached[TopicPartition("soup", 1)] == Reached(10, 0)
    assert begin_of(place(head, 10), other) == 3


def test_a_place_is_never_left_backwards() -> None:
    head = a_head(an_entry(0, 9))
    assert advance(place(head, 8), {SOUP: head}, {SOUP: 4}) == place(head, 8)


def test_a_partition_without_a_head_keeps_its_place() -> None:
    read = place(a_head(an_entry(0, 9)), 5)
    assert advance(read, {}, {}) == read


backlogs = st.lists(
    st.tuples(st.integers(0, 50), st.lists(st.tuples(st.integers(1, 40), st.integers(1, 500)), max_size=4)), min_size=1, max_size=6
)


@given(backlogs, st.one_of(st.none(), st.integers(1, 200)), st.one_of(st.none(), st.integers(1, 3000)))
def test_limits_are_kept_used_up_and_lead_to_the_end(
    logs: list[tuple[int, list[tuple[int, int]]]], max_offsets: int | None, max_bytes: int | None
) -> None:
    heads, at, ends = {}, {}, {}
    for number, (start, sizes) in enumerate(logs):
        entries, offset = [], start
        for offsets, live_bytes in sizes:
            entries.append(an_entry(offset, offset + offsets - 1, live_bytes=live_bytes))
            offset += offsets
        partition = TopicPartition("soup", number)
        heads[partition] = a_head(*entries, start=start, partition=number)
        at[partition], ends[partition] = start, offset
    steps = 0
    while at != ends:
        admitted = admit(at, ends, heads, max_offsets=max_offsets, max_bytes=max_bytes)
        moved = sum(admitted.values()) - sum(at.values())
        assert moved > 0
        assert all(at[each] <= admitted[each] <= ends[each] for each in at)
        if max_offsets is not None:
            assert moved <= max_offsets
            if max_bytes is None:
                assert moved == min(max_offsets, sum(ends.values()) - sum(at.values()))
        if max_bytes is not None and moved > 1:
            assert sum(bytes_between(heads[each], at[each], admitted[each]) for each in at) <= max_bytes
        at, steps = admitted, steps + 1
    if max_offsets is None and max_bytes is None:
        assert steps <= 1


def bytes_between(head: Head, first: int, end: int) -> float:
    return sum(
        each.live_bytes * max(min(each.next_offset, end) - max(each.base_offset, first), 0) / (each.next_offset - each.base_offset)
        for each in head.entries
    )


def test_a_limit_is_shared_evenly_and_what_one_leaves_the_others_get() -> None:
    partitions = [TopicPartition("soup", number) for number in range(3)]
    heads = {each: a_head(an_entry(0, 99), partition=each.partition) for each in partitions}
    start = dict.fromkeys(partitions, 0)
    ends = dict(zip(partitions, (2, 50, 100), strict=True))
    assert list(admit(start, ends, heads, max_offsets=20).values()) == [2, 9, 9]


def test_gaps_cost_no_bytes() -> None:
    head = a_head(an_entry(0, 9, live_bytes=100), a_gap(10, 999), an_entry(1000, 1009, live_bytes=100))
    assert admit({SOUP: 0}, {SOUP: 1010}, {SOUP: head}, max_bytes=150) == {SOUP: 1005}


def test_the_longest_backlog_moves_even_where_a_record_is_larger_than_the_limit() -> None:
    small, large = TopicPartition("soup", 0), TopicPartition("soup", 1)
    heads = {small: a_head(an_entry(0, 1, live_bytes=1000)), large: a_head(an_entry(0, 3, live_bytes=4000), partition=1)}
    assert admit({small: 0, large: 0}, {small: 2, large: 4}, heads, max_bytes=10) == {small: 0, large: 1}


def test_a_head_that_knows_more_does_not_move_a_place() -> None:
    head = a_head(an_entry(0, 9, (1, 0)))
    unknowing = msgspec.structs.replace(head, entries=(msgspec.structs.replace(head.entries[0], epochs=()),))
    read = place(unknowing, 10)
    assert read.reached[SOUP].epoch is None
    assert advance(read, {SOUP: head}, {SOUP: 10}).encode() == read.encode()


def test_an_archive_that_another_cluster_has_taken_over_is_the_same_log() -> None:
    read, head = place(a_head(an_entry(0, 9)), 5), msgspec.structs.replace(a_head(an_entry(0, 9)), cluster_id="canteen")
    check_progress(read, {SOUP: head}, allow_loss=False, is_former=lambda cluster_id: cluster_id == "kitchen")
    with pytest.raises(Superseded, match="this is not that cluster's archive"):
        check(read, head)
