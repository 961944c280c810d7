"""What a log cleaner means for the archive beside it."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from archival.partition.archiver import IN_VAIN_MAX
from archival.partition.looks import KEEP_MS, LOOKS_MAX, REFRESH_MS, CleanerLooks, with_look
from archival.partition.source import open_segment
from archival.plan.cleaner import CLOCK_STEP_MS, CleanerLook, clean_below, clean_under, clean_with, is_clean, look_at, overtaken
from headwater_core.epochs import EpochHistory, EpochStart
from headwater_core.errors import NeedsReplacement, SourceChanged
from headwater_core.segments.local_log import LocalLog, LocalSegment
from headwater_core.segments.records import decode_batch
from manifests.entry import Entry
from tests.archival.builders import EVERYTHING, PARTITION, SEALED, Agent, Directory, a_log, batches_of, ranges
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.volatile_disk import VolatileDisk
from tests.headwater_core.segments.builders import a_batch, a_record, a_segment
from tests.manifests.builders import a_gap, a_head, an_entry

DAY_MS = 24 * 3600 * 1000


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


def test_a_cleaning_after_the_first_read_makes_nothing_else_clean(directory: Directory) -> None:
    """The archived copy of the first segment may hold what the second cleaning found a newer record of."""
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
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


def test_a_restart_continues_with_what_is_clean(directory: Directory, agent: Agent) -> None:
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


def test_what_is_left_of_a_cut_stays_clean_and_what_follows_another_leader_is_not(directory: Directory) -> None:
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    directory.segment(0, a_batch(0, 4), a_batch(4, 6))
    directory.segment(10)
    directory.high_watermark(10)
    directory.cleaned(10)
    agent.run(SEALED)
    directory.epochs((0, 0), (4, 4))
    directory.segment(0, a_batch(0, 4), a_batch(4, 6, epoch=4))
    directory.cleaned(4)
    agent.run(SEALED)
    assert [(entry.base_offset, entry.cleaned) for entry in agent.head.entries] == [(0, True), (4, False)]
    assert agent.head.clean_to == 4


@pytest.mark.parametrize(
    ("steps", "clean_to"),
    [
        (((3, 0),), 50),  # the epoch that is followed
        (((3, 0), (4, 40)), 40),
        (((3, 0), (4, 60)), 50),
        (((2, 0), (4, 40)), 10),  # nothing says where it left epoch 3
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


# Compaction that goes past the archive


def a_compacted_log(*bases: int, cleaned_to: int | None, retention_ms: int | None = DAY_MS) -> LocalLog:
    return replace(a_log(*bases, hw=bases[-1] + 5, compacted=True), cleaned_to=cleaned_to, delete_retention_ms=retention_ms)


def a_deletion_that_the_log_forgets(directory: Directory, agent: Agent) -> None:
    """alice is archived, then deleted; her value and, later, her tombstone are cleaned away while no agent is there."""
    directory.segment(0, a_batch(0, [a_record(0, b"v1", key=b"alice"), a_record(1, b"v1", key=b"bob")]))
    directory.segment(2, a_batch(2, [a_record(2, b"x", key=b"carol")]))
    directory.high_watermark(3)
    directory.cleaned(2)
    agent.run()
    (directory.path / f"{0:020}.log").unlink()
    directory.segment(0, a_batch(0, [a_record(1, b"v1", key=b"bob")], last_offset=1))
    directory.segment(5, a_batch(5, [a_record(5, b"y", key=b"dave")]))
    directory.segment(6, a_batch(6, [a_record(6, b"z", key=b"erin")]))
    directory.high_watermark(7)
    directory.cleaned(6)


def values(agent: Agent) -> dict[bytes, bytes]:
    """What a reader of all that is live ends with."""
    found: dict[bytes, bytes] = {}
    for entry in agent.head.entries:
        for batch in [] if entry.gap else batches_of(agent.store, entry):
            for record in decode_batch(batch):
                assert record.key
                if record.value is None:
                    found.pop(record.key, None)
                else:
                    found[record.key] = record.value
    return found


LEFT = {b"bob": b"v1", b"carol": b"x", b"dave": b"y", b"erin": b"z"}


def test_a_deletion_that_the_log_may_have_forgotten_replaces_what_is_archived(directory: Directory, tmp_path: Path) -> None:
    agent = Agent(directory.root, delete_retention_ms=DAY_MS, looks_file=tmp_path / "cleaners.json")
    a_deletion_that_the_log_forgets(directory, agent)
    agent.looks.save()
    agent.clock.advance(DAY_MS)
    later = replace(agent)  # the same agent after a restart
    later.uids = agent.uids
    before = later.head
    with capture_logs() as logs:
        assert later.run() == ["reread", "replaced", "archived", "archived", "caught up"]
    assert values(later) == LEFT
    (replaced,) = (event for event in logs if event["event"] == "runs_replaced")
    assert (replaced["reason"], replaced["from_offset"], replaced["last_offset"]) == ("compaction went past the archive", 0, 2)
    assert later.head.entries[1].key == before.entries[1].key, "the same bytes are not archived twice"
    assert ranges(later.head.superseded) == [(0, 1)]


def test_until_all_of_it_is_there_the_old_archive_is_served(directory: Directory) -> None:
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    a_deletion_that_the_log_forgets(directory, agent)
    later = replace(agent)
    later.uids = agent.uids
    before = later.head
    assert later.step().action == "reread"
    assert later.head == before


def test_a_replacement_ends_though_the_cleaner_continues_for_longer_than_tombstones_are_kept(directory: Directory) -> None:
    """All that it reads again was clean when it began: nothing that is dropped later can be missing there."""
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    a_deletion_that_the_log_forgets(directory, agent)
    later = replace(agent)
    later.uids = agent.uids
    assert later.step().action == "reread"
    the_cleaner_continues(directory, later, 7)
    assert later.step().action == "replaced"
    assert later.head.clean_to == 6


def the_cleaner_continues(directory: Directory, agent: Agent, offset: int) -> None:
    """One record more, and a cleaning of all before it, longer ago than tombstones are kept."""
    directory.segment(offset, a_batch(offset, [a_record(offset, b"z", key=b"erin")]))
    directory.high_watermark(offset + 1)
    directory.cleaned(offset)
    agent.clock.advance(DAY_MS)


def test_replacements_in_vain_end(directory: Directory) -> None:
    """Each takes so long that the cleaner is too far again when it is committed."""
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    a_deletion_that_the_log_forgets(directory, agent)
    later = replace(agent)
    later.uids = agent.uids
    done: list[str] = []
    offsets = count(7)
    while done.count("replaced") < IN_VAIN_MAX:
        done.append(later.step().action)
        the_cleaner_continues(directory, later, next(offsets))
    assert set(done) == {"reread", "replaced"}
    head, there = later.head, len(list(later.store.list("data/")))
    for _ in range(3):
        with pytest.raises(NeedsReplacement, match=f"replaced {IN_VAIN_MAX} times in vain.*{DAY_MS} ms"):
            later.step()
        the_cleaner_continues(directory, later, next(offsets))
    assert (later.head, len(list(later.store.list("data/")))) == (head, there)


def test_a_replacement_that_was_not_in_vain_does_not_count(directory: Directory) -> None:
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    a_deletion_that_the_log_forgets(directory, agent)
    later = replace(agent)
    later.uids = agent.uids
    for offset in range(10, 10 + 20 * IN_VAIN_MAX, 10):
        done = later.run()
        assert (done.count("replaced"), done[-1]) == (1, "caught up")
        directory.segment(offset, a_batch(offset, [a_record(offset, b"z", key=b"erin")]))
        the_cleaner_continues(directory, later, offset + 5)


def test_a_run_that_was_clean_before_is_listed_however_long_ago_that_was() -> None:
    log, head = a_compacted_log(0, 10, 20, 30, cleaned_to=30), a_head(an_entry(0, 9), clean_to=20)
    assert overtaken(log, head, 10, (), 0, stale_keys_below=None)
    assert overtaken(log, head, 10, (), 0, stale_keys_below=None, end=20) == ""
    assert overtaken(log, head, 10, (), 0, stale_keys_below=None, end=21)


@pytest.mark.parametrize(("open_from", "stops"), [(None, False), (5, True)])
def test_the_marker_of_a_transaction_that_is_open_before_a_run_may_be_gone_from_it(open_from: int | None, stops: bool) -> None:
    """Its record was read before a newer one of its key came; once the record was cleaned, its marker went after the retention."""
    log = a_compacted_log(0, 10, 20, 30, cleaned_to=30)
    before = an_entry(0, 9)
    head = a_head(msgspec.structs.replace(before, open_from=open_from), clean_to=20)
    assert bool(overtaken(log, head, 10, (CleanerLook(20, 30, 0),), 3 * DAY_MS, stale_keys_below=None, end=20)) == stops


def test_a_person_may_consent_to_keep_deleted_keys(directory: Directory) -> None:
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    a_deletion_that_the_log_forgets(directory, agent)
    later = replace(agent)
    later.uids = agent.uids
    assert later.run(replace(EVERYTHING, stale_keys_below=6)) == ["archived", "archived", "caught up"]
    assert values(later) == LEFT | {b"alice": b"v1"}


def test_what_the_log_does_not_hold_any_more_cannot_be_replaced(directory: Directory, tmp_path: Path) -> None:
    agent = Agent(directory.root, delete_retention_ms=DAY_MS, looks_file=tmp_path / "cleaners.json")
    a_deletion_that_the_log_forgets(directory, agent)
    agent.looks.save()
    agent.clock.advance(DAY_MS)
    directory.log_start(2)
    (directory.path / f"{0:020}.log").unlink()
    later = replace(agent)
    found = r"needs replacement.*got to offset 6, the archive to 3.*log begins at 2, the archive at 0.*stale_keys_below = 6"
    with pytest.raises(NeedsReplacement, match=found) as stopped:
        later.run()
    assert later.head.last_offset == 2
    assert "86400 s ago" in str(stopped.value)


def test_a_cleaner_that_is_quicker_than_an_upload_changes_nothing(directory: Directory, tmp_path: Path) -> None:
    agent = Agent(directory.root, delete_retention_ms=DAY_MS, looks_file=tmp_path / "cleaners.json")
    a_deletion_that_the_log_forgets(directory, agent)
    agent.looks.save()
    agent.clock.advance(DAY_MS - 1)
    assert replace(agent).run() == ["archived", "archived", "caught up"]


def test_without_a_look_from_before_nothing_is_known(directory: Directory, tmp_path: Path) -> None:
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    a_deletion_that_the_log_forgets(directory, agent)
    later = replace(agent)
    later.uids = agent.uids
    assert later.run()[:2] == ["reread", "replaced"]


def test_without_the_retention_none_is_counted_on(directory: Directory, agent: Agent) -> None:
    a_deletion_that_the_log_forgets(directory, agent)
    assert agent.run()[:2] == ["reread", "replaced"]


def test_a_long_compacted_log_is_archived_from_its_start_without_any_look(directory: Directory) -> None:
    for base in (0, 10, 20, 30):
        directory.segment(base, a_segment(base, 10))
    directory.high_watermark(40)
    directory.cleaned(30)
    agent = Agent(directory.root)
    for _ in range(6):
        agent = replace(agent)  # started anew for each step
        agent.step()
        agent.clock.advance(DAY_MS)
    assert agent.head.last_offset == 39


def test_a_retention_that_ends_while_a_run_is_read_stops_it(directory: Directory) -> None:
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    a_deletion_that_the_log_forgets(directory, agent)
    agent.clock.advance(DAY_MS - 1)

    def open_slowly(segment: LocalSegment) -> BinaryIO:
        agent.clock.advance(1)
        return open_segment(segment)

    slow = replace(agent, open_segment=open_slowly)
    slow.looks = agent.looks
    slow.archiver = slow.archiver_of(PARTITION)
    objects = len(list(agent.store.list("data/")))
    with pytest.raises(SourceChanged, match="went past the archive"):
        slow.run()
    assert len(list(agent.store.list("data/"))) == objects
    slow.uids = agent.uids
    assert slow.run()[:2] == ["reread", "replaced"]
    assert values(slow) == LEFT


@pytest.mark.parametrize(
    ("looks", "stops"),
    [
        ((), True),
        ((CleanerLook(10, 20, DAY_MS),), True),  # half of the retention ago, and the cleaner may have been at work
        ((CleanerLook(10, 20, DAY_MS + 1),), False),
        ((CleanerLook(10, 10, DAY_MS // 2),), True),
        ((CleanerLook(10, 10, DAY_MS // 2 + 1),), False),  # nothing was sealed that it could have cleaned
        ((CleanerLook(11, 20, DAY_MS + DAY_MS // 2),), True),
        ((CleanerLook(10, 10, DAY_MS * 3 // 2 + CLOCK_STEP_MS),), False),
        ((CleanerLook(10, 10, DAY_MS * 3 // 2 + CLOCK_STEP_MS + 1),), True),  # a clock that has been put back
        (
            (CleanerLook(10, 10, DAY_MS, delete_retention_ms=DAY_MS // 2),),
            True,
        ),  # it was raised since: what was cleaned before went earlier
        ((CleanerLook(10, 10, DAY_MS, delete_retention_ms=DAY_MS // 2 + 1),), False),
        ((CleanerLook(10, 10, DAY_MS), CleanerLook(11, 20, DAY_MS + 1, delete_retention_ms=1)), True),
        ((CleanerLook(9, 10, DAY_MS - 1, delete_retention_ms=1), CleanerLook(10, 10, DAY_MS)), False),  # before the look that proves it
        ((CleanerLook(10, 20, DAY_MS * 3 // 2 - 1, delete_retention_ms=2),), True),
    ],
)
def test_what_a_look_proves(looks: tuple[CleanerLook, ...], stops: bool) -> None:
    log, head = a_compacted_log(0, 10, 20, cleaned_to=20), a_head(an_entry(0, 9))
    assert bool(overtaken(log, head, 10, looks, DAY_MS * 3 // 2, stale_keys_below=None)) == stops


def test_what_a_cleaner_took_before_a_truncation_is_not_forgotten() -> None:
    """The broker takes the checkpoint back to the base of what is the active segment then, which the cleaner had been in."""
    looks = CleanerLooks(None, ManualClock())
    looks.saw(a_compacted_log(0, 10, 20, cleaned_to=20), 0)
    cut = replace(a_compacted_log(0, cleaned_to=0), epochs=EpochHistory.of([(0, 0), (1, 15)]))
    for at_ms in (1, 2):
        for archived in (10, 14, 15, 20):
            seen, head = looks.of(PARTITION), a_head(an_entry(0, archived - 1))
            assert bool(overtaken(cut, head, archived, seen, at_ms, stale_keys_below=None)) == (archived < 15)
        looks.saw(cut, at_ms)


@pytest.mark.parametrize(
    ("steps", "kept"), [([(0, 0), (5, 12)], 12), ([(0, 0), (3, 8), (5, 12)], 8), ([(0, 0)], 16), ([(0, 0), (4, 16)], 20)]
)
def test_what_a_cleaner_took_counts_up_to_where_the_log_has_left_its_branch(steps: list[tuple[int, int]], kept: int) -> None:
    before = CleanerLook(20, 20, 0, (EpochStart(0, 0), EpochStart(4, 16)))
    cut = replace(a_compacted_log(0, cleaned_to=0), epochs=EpochHistory.of(steps))
    assert (look_at(cut, before, 1).cleaned_to, look_at(cut, before, 1).sealed_to) == (kept, kept)
    assert look_at(cut, CleanerLook(20, 20, 0), 1).cleaned_to == 0  # of a version that did not say where it was


def test_a_log_that_begins_again_was_never_cleaned() -> None:
    looks = CleanerLooks(None, ManualClock())
    looks.saw(a_compacted_log(0, 10, 20, cleaned_to=20), 0)
    looks.saw(replace(a_compacted_log(0, cleaned_to=None), compacted=True, epochs=EpochHistory.of([(1, 0)])), 1)
    assert looks.of(PARTITION)[-1] == CleanerLook(0, 0, 1, (EpochStart(1, 0),), DAY_MS)


def test_what_compaction_has_not_passed_is_archived_without_looks() -> None:
    head = a_head(an_entry(0, 9))
    for cleaned_to in (None, 0, 10):
        assert overtaken(a_compacted_log(0, 10, 20, cleaned_to=cleaned_to), head, 10, (), 0, stale_keys_below=None) == ""
    log = a_compacted_log(0, 10, 20, cleaned_to=20)
    assert overtaken(log, a_head(), 0, (), 0, stale_keys_below=None) == ""
    assert overtaken(log, a_head(a_gap(0, 9)), 10, (), 0, stale_keys_below=None) == ""
    assert overtaken(log, a_head(an_entry(0, 9), clean_to=20), 10, (), 0, stale_keys_below=None) == ""
    assert overtaken(log, head, 10, (), 0, stale_keys_below=20) == ""
    assert overtaken(log, head, 10, (), 0, stale_keys_below=19)


def test_looks_are_kept_across_restarts_and_a_damaged_file_only_loses_them(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "cleaners.json"
    looks = CleanerLooks(path, clock)
    log = a_compacted_log(0, 10, cleaned_to=10)
    looks.saw(log, clock.now_ms())
    looks.save()
    assert CleanerLooks(path, clock).of(log.partition) == (CleanerLook(10, 10, clock.now_ms(), (EpochStart(0, 0),), DAY_MS),)
    clock.advance(KEEP_MS)
    looks.save()
    assert CleanerLooks(path, clock).of(log.partition) == ()
    for raw in (b"", b"{", b'{"a": 1}', b'{"a": []}', b"\xff"):
        path.write_bytes(raw)
        assert CleanerLooks(path, clock).of(log.partition) == ()
    looks.saw(log, clock.now_ms())
    looks.save()
    whole, known = path.read_bytes(), looks.of(log.partition)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with capture_logs() as logs:
            assert CleanerLooks(path, clock).of(log.partition) == ()
        assert [(each["event"], each["path"]) for each in logs] == [("state_file_refused", str(path))]
    path.write_bytes(whole.partition(b"\n")[2])
    assert CleanerLooks(path, clock).of(log.partition) == known, "an older version wrote it"


def test_looks_survive_a_power_loss(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    disk, clock = VolatileDisk(tmp_path / "data"), ManualClock()
    looks = CleanerLooks(tmp_path / "data" / "cleaners.json", clock)
    log = a_compacted_log(0, 10, cleaned_to=10)
    looks.saw(log, clock.now_ms())
    with disk.watching():
        looks.save()
    left = CleanerLooks(disk.after_power_loss(tmp_path / "left") / "cleaners.json", clock)
    assert left.of(log.partition) == (CleanerLook(10, 10, clock.now_ms(), (EpochStart(0, 0),), DAY_MS),)


def test_looks_that_cannot_be_saved_stop_nothing(tmp_path: Path) -> None:
    looks = CleanerLooks(tmp_path / "missing" / "cleaners.json", ManualClock(at_ms=5))
    looks.saw(a_compacted_log(0, 10, cleaned_to=10), 5)
    looks.save()
    assert looks.of(PARTITION) == (CleanerLook(10, 10, 5, (EpochStart(0, 0),), DAY_MS),)


def test_logs_that_are_not_compacted_are_not_remembered() -> None:
    looks = CleanerLooks(None, ManualClock())
    looks.saw(a_log(0, 10, hw=10), 5)
    assert looks.of(PARTITION) == ()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 10 * CLOCK_STEP_MS)), max_size=100))
def test_looks_are_few_and_only_ever_made_ones(rows: list[tuple[int, int, int]]) -> None:
    kept: tuple[CleanerLook, ...] = ()
    made = [CleanerLook(min(first, second), max(first, second), at_ms) for first, second, at_ms in rows]
    for at, look in enumerate(made):
        kept = with_look(kept, look)
        assert len(kept) <= LOOKS_MAX
        assert set(kept) <= set(made[: at + 1])
        assert kept[-1].seen_ms >= look.seen_ms
        assert all(each.seen_ms <= look.seen_ms + CLOCK_STEP_MS for each in kept)


def test_however_long_a_log_is_looked_at_the_latest_looks_lie_densely() -> None:
    kept: tuple[CleanerLook, ...] = ()
    for minute in range(0, 60 * 24 * 60, 5):  # sixty days of a log that rolls and is cleaned all the time
        kept = with_look(kept, CleanerLook(minute, minute + 1, minute * 60_000))
        if minute < 50 * 24 * 60:
            continue
        for age in (5, 60, 6 * 60, 12 * 60):  # what was seen so long ago is remembered by a look that is not much older
            assert any(minute - 2 * age <= each.cleaned_to <= minute - age for each in kept)
    assert kept[0] == CleanerLook(0, 1, 0)


def test_a_look_that_leaves_hands_its_retention_to_the_one_before() -> None:
    kept: tuple[CleanerLook, ...] = ()
    for minute in range(3 * LOOKS_MAX):
        kept = with_look(kept, CleanerLook(minute, minute + 1, minute * 60_000, delete_retention_ms=1 if minute == 5 else DAY_MS))
    assert min(each.delete_retention_ms or 0 for each in kept) == 1
    assert [each.delete_retention_ms for each in kept if each.seen_ms > 5 * 60_000] == [DAY_MS] * sum(
        each.seen_ms > 300_000 for each in kept
    )


@pytest.mark.parametrize(("retention_ms", "refresh_ms"), [(None, REFRESH_MS), (0, REFRESH_MS), (DAY_MS, REFRESH_MS), (60_000, 15_000)])
def test_a_short_retention_is_looked_at_more_often(retention_ms: int | None, refresh_ms: int) -> None:
    clock = ManualClock()
    looks = CleanerLooks(None, clock)
    log = replace(a_compacted_log(0, 10, cleaned_to=10), delete_retention_ms=retention_ms)
    assert looks.is_due(log)
    looks.saw(log, clock.now_ms())
    clock.advance(refresh_ms - 1)
    assert not looks.is_due(log)
    clock.advance(1)
    assert looks.is_due(log)


class KeyedLog:
    """A compacted log as a broker keeps it: records by offset, `None` a tombstone. A cleaning takes effect before its checkpoint."""

    RETENTION_MS = 100

    def __init__(self) -> None:
        self.history: list[tuple[str, int | None]] = []
        self.records: dict[int, tuple[str, int | None]] = {}
        self.horizons: dict[int, int] = {}
        self.bases, self.cleaned_to, self.now_ms = [0], 0, 0
        self.cleaning: tuple[int, int] | None = None  # up to where, since when

    def write(self, key: str, value: int | None) -> None:
        self.records[len(self.history)] = key, value
        self.history.append((key, value))

    def roll(self) -> None:
        if len(self.history) > self.bases[-1]:
            self.bases.append(len(self.history))

    def wait(self, by_ms: int) -> None:
        """A cleaning takes less than half of the retention."""
        if self.cleaning:
            by_ms = min(by_ms, self.cleaning[1] + self.RETENTION_MS // 2 - 1 - self.now_ms)
        self.now_ms += by_ms

    def clean(self) -> None:
        """Begin a cleaning, or let the one that has begun write its checkpoint."""
        if self.cleaning:
            self.cleaned_to, self.cleaning = self.cleaning[0], None
            return
        up_to = self.bases[-1]
        newest = {key: offset for offset, (key, _) in self.records.items() if offset < up_to}
        for offset, (key, value) in list(self.records.items()):
            if offset >= up_to:
                continue
            if newest[key] != offset or (
                value is None and self.now_ms >= self.horizons.setdefault(offset, self.now_ms + self.RETENTION_MS)
            ):
                del self.records[offset]
        self.cleaning = up_to, self.now_ms

    def look(self) -> LocalLog:
        log = a_compacted_log(*self.bases, cleaned_to=self.cleaned_to, retention_ms=self.RETENTION_MS)
        return replace(log, high_watermark=len(self.history))


def table(records: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    found = dict(records)
    return {key: value for key, value in found.items() if value is not None}


class KeyedArchive:
    """The archiver's decisions beside a KeyedLog, its bytes left out."""

    def __init__(self, log: KeyedLog) -> None:
        self.log, self.head = log, a_head()
        self.records: dict[int, tuple[str, int | None]] = {}
        self.looks = CleanerLooks(None, ManualClock())
        self.is_stopped = False

    def restart(self) -> None:
        self.looks = CleanerLooks(None, ManualClock())

    def step(self) -> None:
        look, first = self.log.look(), self.head.next_offset
        self.looks.saw(look, self.log.now_ms)
        until = next((base for base in self.log.bases if base > first), None)
        if until is None:
            return
        self.is_stopped = bool(overtaken(look, self.head, first, self.looks.of(look.partition), self.log.now_ms, stale_keys_below=None))
        if self.is_stopped:
            return
        self.records |= {offset: record for offset, record in self.log.records.items() if first <= offset < until}
        clean_to = clean_with(self.head, look)
        entries = (*self.head.entries, an_entry(first, until - 1))
        self.head = msgspec.structs.replace(self.head, entries=entries, last_offset=until - 1, clean_to=clean_to)


ACTIONS = ["write", "write", "delete", "roll", "clean", "clean", "wait", "long", "step", "step", "restart"]


@settings(max_examples=600)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2)), min_size=20, max_size=60))
def test_an_archive_that_has_caught_up_holds_what_the_log_means(actions: list[tuple[str, int]]) -> None:
    log = KeyedLog()
    archive = KeyedArchive(log)
    for at, (action, number) in enumerate(actions):
        match action:
            case "write":
                log.write("abc"[number], at)
            case "delete":
                log.write("abc"[number], None)
            case "roll":
                log.roll()
            case "clean":
                log.clean()
            case "wait":
                log.wait(number * 20)
            case "long":
                log.wait(log.RETENTION_MS)
            case "step":
                archive.step()
            case "restart":
                archive.restart()
        if archive.head.next_offset >= log.bases[-1]:
            offsets = sorted(archive.records)
            assert table(archive.records[offset] for offset in offsets) == table(log.history[: archive.head.next_offset])


def test_a_cleaning_that_was_under_way_at_the_last_look_counts_from_its_beginning() -> None:
    log = KeyedLog()
    archive = KeyedArchive(log)
    log.write("a", 1)
    log.roll()
    archive.step()
    log.write("a", None)
    log.write("b", 2)
    log.roll()
    log.clean()
    log.wait(log.RETENTION_MS // 2 - 1)
    archive.looks.saw(log.look(), log.now_ms)  # what it passes cannot be seen yet
    log.clean()
    log.wait(log.RETENTION_MS // 2 + 1)
    log.clean()
    assert [value for _, value in log.records.values()] == [2]
    archive.step()
    assert archive.is_stopped


def test_an_archive_that_follows_is_never_stopped() -> None:
    log = KeyedLog()
    archive = KeyedArchive(log)
    for at in range(500):
        log.write("abc"[at % 3], None if at % 5 == 0 else at)
        if at % 4 == 0:
            log.roll()
        if at % 3 == 0:
            log.clean()
        archive.step()
        log.wait(20)
        assert not archive.is_stopped
    assert archive.head.next_offset > 400


def test_a_checkpoint_from_before_a_truncation_stops_nothing() -> None:
    """The broker disbelieves one beyond the active segment, and cleans nothing by it."""
    log = KeyedLog()
    archive = KeyedArchive(log)
    for at in range(8):
        log.write("abc"[at % 3], at)
        if at % 2:
            log.roll()
    while archive.head.next_offset < log.bases[-1]:
        archive.step()
    archive.restart()
    for at in range(8):
        log.write("abc"[at % 3], at)
    stale = replace(log.look(), cleaned_to=1_000)
    assert overtaken(stale, archive.head, archive.head.next_offset, (), log.now_ms, stale_keys_below=None) == ""
