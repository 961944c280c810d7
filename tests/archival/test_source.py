from dataclasses import replace

import pytest

from archival.partition.source import check_same
from headwater_core.epochs import EpochHistory
from headwater_core.errors import SourceChanged
from headwater_core.partition import TopicPartition
from headwater_core.segments.local_log import Generation, LocalLog
from tests.archival.builders import PARTITION, SEALED, Agent, Directory, a_log, fill, led_by, ranges
from tests.manifests.builders import an_entry


class Torn:
    """The first look, and what every later one sees instead."""

    def __init__(self, directory: Directory, first: LocalLog) -> None:
        self._agent, self._first = Agent(directory.root), first
        self.looks = 0

    def look(self, partition: TopicPartition) -> LocalLog:
        self.looks += 1
        return self._first if self.looks == 1 else self._agent.logs.look(partition)


def test_a_segment_that_a_listing_missed_is_not_jumped_over(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 10, 20, end=30)
    directory.cleaned(20)
    agent.step(SEALED)
    whole = agent.logs.look(PARTITION.topic_partition)
    missed = replace(whole, segments=(whole.segments[0], whole.segments[2]))
    with pytest.raises(SourceChanged, match="replaced or removed"):
        agent.archiver_of(PARTITION, Torn(directory, missed)).step(SEALED)
    agent.run(SEALED)
    assert ranges(agent.head.entries) == [(0, 9), (10, 19)]


def test_a_log_cut_between_the_looks_is_planned_again(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 10, end=20)
    agent.step(SEALED)
    now = agent.logs.look(PARTITION.topic_partition)
    torn = Torn(directory, replace(now, epochs=EpochHistory.of([(0, 0), (1, 15)])))
    with pytest.raises(SourceChanged):
        agent.archiver_of(PARTITION, torn).step(SEALED)
    assert list(agent.store.list("data/")) == []


# Two looks


LOOK = replace(a_log(0, 10, 20, hw=25, epochs=((0, 0), (2, 10))), cleaned_to=5)
REPLACED = replace(LOOK.segments[1], generation=Generation(99, 1))


@pytest.mark.parametrize(
    ("again", "says"),
    [
        (replace(LOOK, settled=False), "a compaction or an election"),
        (replace(LOOK, leadership=led_by(2, 3)), "a compaction or an election"),
        (replace(LOOK, epochs=EpochHistory.of([(0, 0), (2, 11)])), "leader epochs or the log start"),
        (a_log(0, 10, 20, hw=25, start=4, epochs=((0, 0), (2, 10))), "leader epochs or the log start"),
        (replace(LOOK, segments=LOOK.segments[1:]), "leader epochs or the log start"),
        (replace(LOOK, high_watermark=24), "high watermark fell"),
        (
            replace(LOOK, segments=(LOOK.segments[0], replace(LOOK.segments[1], generation=Generation(99, 1)), LOOK.segments[2])),
            "replaced or removed",
        ),
        (replace(LOOK, segments=(LOOK.segments[0], LOOK.segments[2])), "replaced or removed"),
    ],
)
def test_a_second_look_at_another_log_says_so(again: LocalLog, says: str) -> None:
    with pytest.raises(SourceChanged, match=says):
        check_same(LOOK, again, segment=LOOK.segments[1])


def test_a_log_may_grow_between_two_looks_and_its_older_segments_may_go() -> None:
    grown = replace(a_log(10, 20, 30, hw=35, start=0), epochs=LOOK.epochs, log_start=0)
    first = replace(LOOK, segments=LOOK.segments[1:], log_start=0)
    check_same(first, grown, segment=first.segments[0])


def test_an_entry_must_lie_on_the_history_of_both_looks() -> None:
    check_same(LOOK, LOOK, an_entry(0, 9))
    with pytest.raises(SourceChanged, match="not on the log's history"):
        check_same(LOOK, LOOK, an_entry(0, 10))
