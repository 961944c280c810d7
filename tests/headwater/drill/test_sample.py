"""Which runs are drawn, and the plan of just these."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.drill.sample import Candidate, candidates, draw, narrowed
from manifests.entry import Entry
from recovery.recovery_plan import check_plan
from tests.recovery.plans import an_entry
from tests.recovery.written_archive import Archive, data, plain


def a_candidate(partition: int, sizes: list[int]) -> Candidate:
    runs = [an_entry(at * 10, at * 10 + 9, size_bytes=size, live_bytes=size) for at, size in enumerate(sizes)]
    return Candidate("orders", partition, runs)


LOGS = st.lists(st.lists(st.integers(1, 1000), min_size=1, max_size=12), min_size=1, max_size=12)


@given(LOGS, st.floats(0.001, 1.0), st.integers(1, 5000), st.integers(0, 99))
def test_a_sample_is_about_its_share_and_never_more_than_there_is_room_for(
    sizes: list[list[int]], share: float, bytes_max: int, seed: int
) -> None:
    among = [a_candidate(number, each) for number, each in enumerate(sizes)]
    drawn = draw(among, share, bytes_max, Random(seed))
    assert drawn == draw(among, share, bytes_max, Random(seed))
    taken = [sizes[each.partition][each.first : each.end] for each in drawn.windows]
    assert all(taken)
    assert len({each.partition for each in drawn.windows}) == len(drawn.windows)
    total = sum(map(sum, sizes))
    assert sum(map(sum, taken)) <= bytes_max
    assert sum(map(sum, taken)) <= max(total * share + 1, max(map(max, sizes)))
    if max(map(max, sizes)) <= bytes_max:
        assert drawn.windows


@given(LOGS, st.integers(0, 99))
def test_all_of_it_is_all_of_it(sizes: list[list[int]], seed: int) -> None:
    among = [a_candidate(number, each) for number, each in enumerate(sizes)]
    drawn = draw(among, 1.0, 10**9, Random(seed))
    assert drawn.share == 1.0
    assert [(each.partition, each.first, each.end) for each in drawn.windows] == [(at, 0, len(each)) for at, each in enumerate(sizes)]


def test_seeds_draw_different_windows() -> None:
    among = [a_candidate(number, [10] * 20) for number in range(20)]
    assert len({draw(among, 0.05, 10**6, Random(seed)).windows for seed in range(20)}) > 15


@pytest.mark.parametrize("seed", range(10))
def test_of_what_is_undivided_all_is_drawn_or_nothing(seed: int) -> None:
    among = [a_candidate(number, [10] * 20)._replace(topic="orders" if number else "states") for number in range(5)]
    drawn = draw(among, 0.05, 300, Random(seed), undivided=["states"])
    [states] = [each for each in drawn.windows if each.topic == "states"]
    assert (states.first, states.end) == (0, 20)
    assert 0 < sum(each.end - each.first for each in drawn.windows if each.topic == "orders") <= 10
    assert not any(each.topic == "states" for each in draw(among, 1.0, 199, Random(seed), undivided=["states"]).windows)


def test_nothing_is_drawn_where_no_run_fits() -> None:
    assert draw([a_candidate(0, [100, 100])], 1.0, 50, Random(1)).windows == ()
    assert draw([], 1.0, 50, Random(1)).windows == ()


@pytest.mark.parametrize("seed", range(30))
def test_the_plan_of_a_sample_can_be_carried_out_and_is_no_more_than_it(seed: int) -> None:
    archive = Archive()
    archive.topic("plain", *([plain(at * 5, 5)] for at in range(6)))
    archive.topic("gaps", [plain(0, 5)], [plain(5, 5)], None, [plain(20, 5)], [plain(25, 5)])
    archive.topic("open", [plain(0, 5)], [data(5, 1000)], [plain(6, 5)], None)
    whole = archive.plan()
    random = Random(seed)
    drawn = draw(candidates(whole), random.choice((0.1, 0.4, 0.7, 1.0)), 10**6, random)
    planned = check_plan(narrowed(whole, drawn.windows))
    kept = {(topic.topic, entry.key) for topic in planned.topics for each in topic.partitions for entry in each.files}
    wanted: set[tuple[str, str]] = set()
    for candidate in candidates(whole):
        for window in drawn.windows:
            if window.topic == candidate.topic:
                wanted |= {(candidate.topic, run.key) for run in candidate.runs[window.first : window.end]}
    assert wanted
    assert kept == wanted
    if drawn.share == 1.0:
        assert planned.topics == whole.topics


def test_a_topic_that_is_kept_is_empty_where_its_log_ends() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)], [plain(5, 5)])
    planned = check_plan(narrowed(archive.plan(), (), kept_topics=("orders",)))
    [partition] = planned.topics[0].partitions
    assert (partition.start_offset, partition.next_offset, partition.entries) == (10, 10, ())
    assert narrowed(archive.plan(), ()).topics == ()


def test_a_run_is_an_entry_without_a_gap() -> None:
    archive = Archive()
    entries: list[Entry] = archive.topic("gaps", [plain(0, 5)], None, [plain(15, 5)])
    assert [run.key for each in candidates(archive.plan()) for run in each.runs] == [each.key for each in entries if not each.gap]
