"""What a log cleaner means for the archive beside it."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archival.cleaner import clean_below, clean_under, clean_with, is_clean
from archival.plan import Policy
from manifests.head import Entry
from model.epochs import EpochHistory
from tests.archival.builders import Agent, Directory, a_log
from tests.manifests.builders import a_head, an_entry
from tests.segments.builders import a_batch, a_segment

SEALED = Policy()


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "logs")


@pytest.fixture
def agent(directory: Directory) -> Agent:
    return Agent(directory.root)


def cleaned(entries: Iterable[Entry]) -> list[bool]:
    return [entry.cleaned for entry in entries]


def test_a_checkpoint_beyond_the_active_segment_says_nothing() -> None:
    log = a_log(0, 10, 20, hw=25)
    assert clean_below(log) == 0
    assert clean_below(replace(log, cleaned_to=20)) == 20
    assert clean_below(replace(log, cleaned_to=21)) == 0


def test_entries_say_whether_they_were_clean_when_they_were_read(directory: Directory, agent: Agent) -> None:
    for base in (0, 10, 20, 30):
        directory.segment(base, a_segment(base, 10))
    directory.high_watermark(40)
    directory.cleaned(20)
    agent.run()
    assert cleaned(agent.head.entries) == [True, True, False, False]
    assert agent.head.clean_to == 20


def test_a_cleaning_after_the_first_read_makes_nothing_else_clean(directory: Directory, agent: Agent) -> None:
    """The archived copy of the first segment may hold what the second cleaning found a newer record of."""
    directory.segment(0, a_segment(0, 10))
    directory.segment(10, a_segment(10, 10))
    directory.high_watermark(20)
    directory.cleaned(10)
    agent.run(SEALED)
    for base in (20, 30):
        directory.segment(base, a_segment(base, 10))
    directory.high_watermark(40)
    directory.cleaned(30)
    agent.run()
    assert cleaned(agent.head.entries) == [True, False, False, False]


def test_a_restart_goes_on_with_what_is_clean(directory: Directory, agent: Agent) -> None:
    for base in (0, 10, 20, 30):
        directory.segment(base, a_segment(base, 10))
    directory.high_watermark(40)
    directory.cleaned(30)
    agent.step()
    agent.step()
    later = Agent(directory.root, store=agent.store, control=agent.control)
    later.run(SEALED)
    assert cleaned(later.head.entries) == [True, True, True]


def test_a_checkpoint_that_falls_while_a_run_is_read_leaves_it_dirty(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_segment(0, 10))
    directory.segment(10)
    directory.high_watermark(10)
    directory.cleaned(10)
    agent.step()
    look = agent.logs.look(directory.partition.topic_partition)
    directory.cleaned(5)
    agent.archiver.step(SEALED, look)
    assert cleaned(agent.head.entries) == [False]


def test_what_is_left_of_a_cut_stays_clean_and_what_follows_another_leader_is_not(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_batch(0, 4), a_batch(4, 6))
    directory.segment(10)
    directory.high_watermark(10)
    directory.cleaned(10)
    agent.run(SEALED)
    directory.epochs((0, 0), (4, 4))
    directory.segment(0, a_batch(0, 4), a_batch(4, 6, epoch=4))
    directory.epochs((0, 0), (4, 4))
    agent.run(SEALED)
    assert [(entry.base_offset, entry.cleaned) for entry in agent.head.entries] == [(0, True), (4, False)]
    assert agent.head.clean_to == 4


@pytest.mark.parametrize(
    ("steps", "clean_to"),
    [
        (((3, 0),), 50),  # the epoch that is followed
        (((3, 0), (4, 40)), 40),
        (((3, 0), (4, 60)), 50),
        (((2, 0), (4, 40)), 10),  # nobody says where it left epoch 3
        (((3, 40), (4, 40)), 10),  # an epoch that wrote nothing there
    ],
)
def test_another_leader_may_have_replaced_what_was_clean(steps: tuple[tuple[int, int], ...], clean_to: int) -> None:
    head = a_head(an_entry(0, 9), leader_epoch=3, clean_to=50)
    assert clean_under(EpochHistory.of(steps), head) == clean_to


@given(st.lists(st.sampled_from(["write", "write", "write", "roll", "clean", "archive"]), min_size=30, max_size=60), st.data())
def test_what_is_archived_as_clean_holds_one_record_of_a_key(actions: list[str], data: st.DataObject) -> None:
    records: dict[int, int] = {}  # offset: key
    bases, end, cleaned_to = [0], 0, 0
    head, archived = a_head(), dict[int, int]()
    for action in actions:
        if action == "write":
            records[end] = data.draw(st.integers(0, 4))
            end += 1
        elif action == "roll" and end > bases[-1]:
            bases.append(end)
        elif action == "clean":
            cleaned_to = bases[-1]
            newest = {key: offset for offset, key in records.items() if offset < cleaned_to}
            records = {offset: key for offset, key in records.items() if offset >= cleaned_to or newest[key] == offset}
        elif action == "archive":
            until = next((base for base in bases if base > head.next_offset), None)
            if until is None:
                continue
            clean_to = clean_with(head, replace(a_log(*bases, hw=end), cleaned_to=cleaned_to))
            entry = an_entry(head.next_offset, until - 1)
            entry = msgspec.structs.replace(entry, cleaned=is_clean(entry, clean_to))
            archived |= {offset: key for offset, key in records.items() if head.next_offset <= offset < until}
            head = msgspec.structs.replace(head, entries=(*head.entries, entry), last_offset=until - 1, clean_to=clean_to)
    dirty = next((entry.base_offset for entry in head.entries if not entry.cleaned), head.next_offset)
    for bound in (dirty, head.clean_to):
        keys = [key for offset, key in archived.items() if offset < bound]
        assert len(keys) == len(set(keys))
