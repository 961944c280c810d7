"""Records that compaction had dropped for later ones, and that count again because an unclean election took those."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from archival.config import ArchivalConfig
from archival.partition.branches import Branches
from archival.partition.release import release_bound
from archival.plan.cleaner import displaced_by
from archival.plan.lineage import may_lack
from archival.plan.policy import Policy
from archival.plan.replacement import DISPLACED, SMALLER, Draft, irreplaceable, plan_smaller, rereads
from archival.plan.step_plan import next_steps
from archival.plan.steps import Idle, Replace, Stop, Upload
from headwater_core.epochs import EpochHistory
from headwater_core.errors import NeedsReplacement, SourceChanged, TransientError
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.records import decode_batch
from headwater_core.segments.run_scan import scan_run
from manifests.entry import Entry, EpochOffset
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.page import reference
from manifests.repository import ManifestRepository
from tests.archival.builders import EVERYTHING, PARTITION, SEALED, Agent, Directory, a_log, batches_of, led_by, ranges
from tests.headwater_core.segments.builders import Producer, a_batch, a_marker, a_record
from tests.manifests import builders
from tests.manifests.builders import a_gap

DAY_MS = 24 * 3600 * 1000
ALICE, BOB, CAROL, DAVE = b"alice", b"bob", b"carol", b"dave"


def keyed(base: int, *rows: tuple[int, bytes, bytes | None], last: int | None = None, epoch: int = 0) -> bytes:
    return a_batch(base, [a_record(offset, value, key=key) for offset, key, value in rows], last_offset=last, epoch=epoch)


def table(agent: Agent) -> dict[bytes | None, bytes | None]:
    """What a reader of the archive ends with."""
    batches = [batch for entry in agent.head.entries if not entry.gap for batch in batches_of(agent.store, entry)]
    return {record.key: record.value for batch in batches for record in decode_batch(batch)}


def objects(agent: Agent) -> int:
    return len([each for each in agent.store.list("data/") if each.key.endswith(".log")])


@pytest.fixture
def agent(directory: Directory) -> Agent:
    """What is archived is a log whose cleaner had dropped alice's first value for her second, at offset 4. The agent has seen nothing of
    that cleaner: it is beside the broker that leads next, of which it has not seen anything yet."""
    directory.segment(0, keyed(0, (1, BOB, b"1")))
    directory.segment(2, keyed(2, (2, CAROL, b"1"), (3, DAVE, b"1")))
    directory.segment(4, keyed(4, (4, ALICE, b"2")))
    directory.segment(5, keyed(5, (5, BOB, b"2")))
    directory.high_watermark(6)
    directory.cleaned(5)
    before = Agent(directory.root, delete_retention_ms=DAY_MS)
    before.run()
    agent = replace(before)
    agent.uids = before.uids
    return agent


def an_unclean_election(directory: Directory, *first: bytes, at: int = 4) -> None:
    """Whoever leads now has never seen what lies from offset `at` on, and goes on there in epoch 2."""
    for path in directory.path.glob("*.log"):
        path.unlink()
    directory.segment(0, *first)
    directory.segment(2, keyed(2, (2, CAROL, b"1"), (3, DAVE, b"1")))
    directory.segment(4, keyed(4, (4, CAROL, b"2"), epoch=2))
    directory.epochs((0, 0), (2, at))
    directory.high_watermark(5)
    directory.cleaned(0)


def test_what_the_dead_had_displaced_is_archived_again(directory: Directory, agent: Agent) -> None:
    assert agent.head.entries[0].displaced_by == EpochOffset(0, 5)
    assert [entry.displaced_by for entry in tuple(agent.head.entries)[1:]] == [None, None, None]
    kept = agent.head.entries[1]
    an_unclean_election(directory, keyed(0, (0, ALICE, b"1"), (1, BOB, b"1")))
    assert agent.run() == ["cut", "reread", "replaced", "archived", "caught up"]
    assert table(agent) == {ALICE: b"1", BOB: b"1", CAROL: b"2", DAVE: b"1"}
    assert ranges(agent.head.entries) == [(0, 1), (2, 3), (4, 4)]
    assert sorted(ranges(agent.head.superseded)) == [(0, 1), (4, 4), (5, 5)]
    assert agent.head.entries[1].key == kept.key  # the same bytes are not archived twice
    assert objects(agent) == 6


def test_a_log_that_was_cut_in_place_is_archived_again_once_its_cleaner_has_been_past(directory: Directory, agent: Agent) -> None:
    """Its checkpoint was taken back: until then nothing shows that the runs before and after it are clean together."""
    agent.looks.saw(replace(a_log(0, 2, 4, 5, hw=6, compacted=True), cleaned_to=5), agent.clock.now_ms())
    an_unclean_election(directory, keyed(0, (0, ALICE, b"1"), (1, BOB, b"1")))
    assert [agent.step().action for _ in range(2)] == ["cut", "reread"]
    with pytest.raises(NeedsReplacement):
        agent.step()
    directory.segment(5)
    directory.cleaned(5)
    assert agent.run() == ["reread", "replaced", "archived", "caught up"]
    assert table(agent) == {ALICE: b"1", BOB: b"1", CAROL: b"2", DAVE: b"1"}


def test_a_draft_of_an_earlier_head_does_not_wait(directory: Directory, agent: Agent) -> None:
    an_unclean_election(directory, keyed(0, (0, ALICE, b"1"), (1, BOB, b"1")))
    assert [agent.step().action for _ in range(2)] == ["cut", "reread"]
    with pytest.raises(TransientError, match="waits for its commit"):
        agent.archiver.amend(lambda head: head)
    agent.archiver.amend(lambda head: structs.replace(head, fence=head.fence + 1), discards=True)
    assert not agent.archiver.is_waiting
    assert agent.run() == ["reread", "replaced", "archived", "caught up"]
    assert not agent.archiver.is_waiting
    assert table(agent) == {ALICE: b"1", BOB: b"1", CAROL: b"2", DAVE: b"1"}


def test_it_is_even_when_nothing_of_the_dead_was_archived(directory: Directory) -> None:
    directory.segment(0, keyed(0, (1, BOB, b"1")))
    directory.segment(2, keyed(2, (2, CAROL, b"1"), (3, DAVE, b"1")))
    directory.segment(4, keyed(4, (4, ALICE, b"2")))
    directory.segment(5)
    directory.high_watermark(5)
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    assert [agent.step(SEALED).action for _ in range(3)] == ["claimed", "archived", "archived"]
    an_unclean_election(directory, keyed(0, (0, ALICE, b"1"), (1, BOB, b"1")))
    assert agent.run()[:3] == ["claimed", "reread", "replaced"]
    assert table(agent) == {ALICE: b"1", BOB: b"1", CAROL: b"2", DAVE: b"1"}


def test_what_another_log_holds_in_the_same_bytes_stays_where_it_is(directory: Directory, agent: Agent) -> None:
    before, there = agent.head.entries, objects(agent)
    an_unclean_election(directory, keyed(0, (1, BOB, b"1")))
    assert agent.run() == ["cut", "reread", "replaced", "archived", "caught up"]
    assert [entry.key for entry in tuple(agent.head.entries)[:2]] == [entry.key for entry in tuple(before)[:2]]
    assert ranges(agent.head.superseded) == [(4, 4), (5, 5)]
    assert objects(agent) == there + 1
    assert agent.head.entries[0].displaced_by == EpochOffset(2, 4)


def test_the_first_part_of_a_cut_object_stays_in_use(directory: Directory) -> None:
    directory.segment(0, keyed(0, (1, BOB, b"1")), keyed(2, (2, CAROL, b"1"), (3, DAVE, b"1")), keyed(4, (4, ALICE, b"2")))
    directory.segment(5)
    directory.high_watermark(5)
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    agent.run()
    (whole,) = agent.head.entries
    an_unclean_election(directory, keyed(0, (1, BOB, b"1")), keyed(2, (2, CAROL, b"1"), (3, DAVE, b"1")))
    (directory.path / f"{2:020}.log").unlink()
    assert agent.run() == ["cut", "replaced", "archived", "caught up"]
    assert agent.head.entries[0].key == whole.key
    assert ranges(agent.head.entries) == [(0, 3), (4, 4)]


def test_what_is_live_stays_so_until_all_that_replaces_it_is_there(directory: Directory, agent: Agent) -> None:
    an_unclean_election(directory, keyed(0, (0, ALICE, b"1"), (1, BOB, b"1")))
    assert agent.step().action == "cut"
    before = agent.head
    assert agent.step().action == "reread"
    assert agent.head == before
    later = replace(agent)  # a restart begins anew
    later.uids = agent.uids
    assert [later.step().action for _ in range(2)] == ["reread", "replaced"]
    assert later.head.version == before.version + 1
    assert later.head.last_offset == before.last_offset


def test_a_replacement_whose_commit_failed_is_committed_by_the_next_step(
    directory: Directory, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is read by then: nothing is left to upload."""
    an_unclean_election(directory, keyed(0, (0, ALICE, b"1"), (1, BOB, b"1")))
    assert [agent.step().action for _ in range(2)] == ["cut", "reread"]

    def fail(*_: object) -> NoReturn:
        raise TransientError("the store is away")

    with monkeypatch.context() as away:
        away.setattr(ManifestRepository, "commit", fail)
        with pytest.raises(TransientError):
            agent.step()
    there = objects(agent)
    directory.segment(2, keyed(2, (2, CAROL, b"1"), (3, DAVE, b"1")), keyed(4, (4, CAROL, b"2"), epoch=2))  # by the cleaner
    (directory.path / f"{4:020}.log").unlink()
    directory.segment(5)
    assert agent.step().action == "replaced"
    assert objects(agent) == there


def test_nothing_is_archived_again_while_another_log_comes_in_between(directory: Directory, agent: Agent) -> None:
    an_unclean_election(directory, keyed(0, (0, ALICE, b"1"), (1, BOB, b"1")))
    assert [agent.step().action for _ in range(2)] == ["cut", "reread"]
    directory.segment(0, keyed(0, (0, ALICE, b"0"), (1, BOB, b"0"), epoch=3))
    directory.segment(2, keyed(2, (2, CAROL, b"0"), (3, DAVE, b"0"), epoch=3))
    directory.segment(4, keyed(4, (4, CAROL, b"0"), epoch=3))
    directory.epochs((3, 0))
    agent.run(Policy(tail_after_ms=0, begin_anew_epoch=3))
    assert table(agent) == {ALICE: b"0", BOB: b"0", CAROL: b"0", DAVE: b"0"}


def test_a_run_that_lacks_nothing_is_not_read_again(directory: Directory) -> None:
    directory.segment(0, keyed(0, (0, ALICE, b"1"), (1, BOB, b"1")))
    directory.segment(2, keyed(2, (2, CAROL, b"1"), (3, DAVE, b"1")))
    directory.segment(4, keyed(4, (4, ALICE, b"2")))
    directory.segment(5)
    directory.high_watermark(5)
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    agent.run()
    an_unclean_election(directory, keyed(0, (0, ALICE, b"1"), (1, BOB, b"1")))
    assert agent.run() == ["cut", "archived", "caught up"]


def test_what_the_log_does_not_hold_stays_and_is_reported_once(directory: Directory, agent: Agent) -> None:
    an_unclean_election(directory)
    (directory.path / f"{0:020}.log").unlink()
    directory.log_start(2)
    with capture_logs() as logs:
        assert agent.run() == ["cut", "archived", "caught up"]
    reported = [each for each in logs if each["event"] == "records_irreplaceable"]
    assert [(each["base_offset"], each["last_offset"], each["log_level"]) for each in reported] == [(0, 1, "error")]
    assert ranges(agent.head.entries) == [(0, 1), (2, 3), (4, 4)]


# Pure


def an_entry(base: int, last: int, by: tuple[int, int] | None = None) -> Entry:
    return builders.an_entry(base, last, partition=PARTITION, displaced_by=EpochOffset(*by) if by else None)


def a_head(*entries: Entry, **fields: object) -> Head:
    return builders.a_head(*entries, partition=PARTITION, **{"writer": "me", "leader_epoch": 2, **fields})


def a_branch(*bases: int, start: int | None = None, hw: int = 30) -> LocalLog:
    """The log that epoch 2 goes on with from offset 20 on."""
    return a_log(*bases, hw=hw, start=start, epochs=((0, 0), (2, 20)), compacted=True)


LOG = a_branch(0, 10, 25)
HEAD = a_head(an_entry(0, 9), an_entry(10, 14, (0, 20)), an_entry(15, 19))


@pytest.mark.parametrize(
    ("by", "lacks"),
    [
        (None, False),
        ((0, 19), False),
        ((0, 20), True),
        ((2, 20), False),
        ((2, 19), False),
        ((1, 19), True),
        ((3, 25), True),
        ((0, 3), False),
    ],
)
def test_a_run_lacks_something_when_what_displaced_it_is_on_a_dead_branch(by: tuple[int, int] | None, lacks: bool) -> None:
    entry = an_entry(0, 9, by)
    assert may_lack(EpochHistory.of(((0, 5), (2, 20))), EntryTree((entry,))) == ((entry,) if lacks else ())


def first_step(log: LocalLog, head: Head, overtaken: str = "") -> object:
    return next(next_steps(log, head, writer="me", policy=SEALED, tail_age_ms=0, overtaken=lambda _: overtaken))


def test_all_is_replaced_where_the_log_holds_all() -> None:
    assert first_step(a_branch(0, 10, 25), HEAD, "past") == Replace(0, DISPLACED)
    assert first_step(a_branch(4, 10, 25, start=4), a_head(*HEAD.entries, start_offset=6)) == Replace(6, DISPLACED)


def test_what_only_the_archive_holds_stays() -> None:
    assert first_step(a_branch(5, 25, start=5), HEAD) == Replace(10, DISPLACED)
    assert not isinstance(first_step(a_branch(12, 25, start=12), HEAD), Replace)
    assert irreplaceable(a_branch(12, 25, start=12), HEAD) == tuple(HEAD.entries)[1:2]
    assert irreplaceable(a_branch(5, 25, start=5), HEAD) == ()


def test_what_the_cleaner_has_been_past_for_too_long_does_not_follow_what_stays() -> None:
    step = first_step(a_branch(5, 25, start=5), HEAD, "needs replacement: it was")
    assert isinstance(step, Stop)
    assert isinstance(step.error, NeedsReplacement)
    assert str(step.error).startswith("needs replacement: what is archived from 10 on may lack records")
    only = a_head(a_gap(0, 9), *tuple(HEAD.entries)[1:])
    assert first_step(a_branch(5, 25, start=5), only, "needs replacement: it was") == Replace(10, DISPLACED)


def test_nothing_is_replaced_before_the_log_has_committed_as_much() -> None:
    assert not isinstance(first_step(a_branch(0, 10, 25, hw=19), HEAD), Replace)


def test_nothing_is_replaced_where_nothing_proves_compaction() -> None:
    assert not isinstance(first_step(replace(a_branch(0, 10, 25), compacted=False), HEAD), Replace)


def test_what_replaces_ends_where_entries_and_segments_do() -> None:
    log, draft = a_branch(0, 12, 25), a_head(start_offset=0)
    found = [(each.segment.base_offset, each.read_from, each.end, each.cover_end) for each in rereads(log, draft, HEAD, 20)]
    assert found == [(0, 0, 10, 10), (0, 0, 12, 12), (12, 0, 10, 10), (12, 0, 15, 15), (12, 0, 20, 20)]


def test_nothing_is_released_that_the_archive_may_lack() -> None:
    log = a_branch(0, 10, 25)
    assert release_bound(log, HEAD, "me") == (0, "what is archived from 10 on may lack records that the log holds")
    assert release_bound(replace(log, epochs=EpochHistory.of(((0, 0), (2, 21)))), HEAD, "me")[0] == 20


@pytest.mark.parametrize(
    ("rows", "by"),
    [
        (keyed(0, (0, ALICE, b"1"), (1, BOB, b"1")), None),
        (keyed(0, (1, BOB, b"1")), EpochOffset(2, 29)),
        (keyed(0, (0, ALICE, b"1"), last=1), EpochOffset(2, 29)),
        (a_batch(0, [], last_offset=1), EpochOffset(2, 29)),
        (a_batch(0, 1) + a_batch(1, 1), None),
    ],
)
def test_a_run_with_a_record_at_each_offset_lacks_nothing(rows: bytes, by: EpochOffset | None, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(rows)
    with path.open("rb") as file:
        scan = scan_run(file, start=0, end=len(rows), where="run")
    assert scan
    assert displaced_by(an_entry(0, 1), scan, a_branch(0, 10)) == by
    assert displaced_by(an_entry(0, 1), scan, a_branch(0, 25, hw=22)) == (by and EpochOffset(2, 24))
    assert displaced_by(an_entry(0, 2), scan, a_branch(0, 10)) == EpochOffset(2, 29)  # the gap after it


def test_a_draft_leaves_what_is_the_same_and_supersedes_the_rest() -> None:
    first, same, last = HEAD.entries
    new = [an_entry(0, 9, (2, 25)), same, an_entry(15, 19)]
    head = a_head(*HEAD.entries, superseded=(an_entry(20, 24),))
    step = Replace(0, DISPLACED)
    draft = Draft.begin(head, step, LOG.epochs, EntryTree(), head.entries)
    assert draft.is_for(head, step, LOG.epochs)
    assert not draft.is_complete
    entries = tuple(entry if entry is same else structs.replace(entry, uid="f" * 32) for entry in new)
    draft = draft.with_run(structs.replace(draft.head, entries=entries, last_offset=19))
    assert draft.is_complete
    assert draft.replaced == (first, last)
    assert draft.result().superseded == (first, last, an_entry(20, 24))


def test_a_draft_keeps_nothing_that_ends_before_the_start() -> None:
    head = a_head(*HEAD.entries, start_offset=10)
    draft = Draft.begin(head, Replace(10, DISPLACED), LOG.epochs, *HEAD.entries.split_at(10))
    assert (len(draft.head.entries), draft.head.last_offset, draft.dead) == (0, 9, HEAD.entries)


# To save space


def a_shrunk_log(*sizes: tuple[int, int], start: int = 0, cleaned_to: int | None = None, hw: int = 45) -> LocalLog:
    """Segments by base offset and bytes; the last one is the active one, and the cleaner has passed all others."""
    log = a_log(*(base for base, _ in sizes), hw=hw, start=start, compacted=True, leadership=led_by(1, 0))
    segments = tuple(replace(each, size_bytes=size) for each, (_, size) in zip(log.segments, sizes, strict=True))
    return replace(log, segments=segments, cleaned_to=sizes[-1][0] if cleaned_to is None else cleaned_to)


LARGE = a_head(*(builders.an_entry(base, base + 9, partition=PARTITION, size_bytes=100) for base in (0, 10, 20, 30)), leader_epoch=0)
SMALL = a_shrunk_log((0, 150), (40, 900))


@pytest.mark.parametrize(
    ("percent", "log", "head", "is_replaced"),
    [
        (62, SMALL, LARGE, True),
        (63, SMALL, LARGE, False),
        (None, SMALL, LARGE, False),
        (50, a_shrunk_log((0, 50), (20, 50), (30, 900)), LARGE, True),  # of 300 that the cleaner has passed
        (70, a_shrunk_log((0, 50), (20, 50), (30, 900)), LARGE, False),
        (50, a_shrunk_log((0, 100), (25, 900)), LARGE, True),  # of 200: the entry at 20 reaches beyond
        (51, a_shrunk_log((0, 100), (25, 900)), LARGE, False),
        (1, a_shrunk_log((0, 400), (40, 900)), LARGE, False),
        (1, replace(SMALL, cleaned_to=None), LARGE, False),  # nothing shows that a cleaner was there
        (1, replace(SMALL, cleaned_to=41), LARGE, False),  # a checkpoint that the broker disbelieves
        (1, a_shrunk_log((0, 150), (40, 900), start=1), LARGE, False),  # the archive alone holds the first record
        (1, a_shrunk_log((10, 50), (40, 900), start=10), LARGE, False),
        (1, a_shrunk_log((10, 50), (40, 900), start=10), structs.replace(LARGE, start_offset=10, entries=tuple(LARGE.entries)[1:]), True),
        (1, a_shrunk_log((0, 150), (40, 0), (50, 900), cleaned_to=40), LARGE, False),  # what is sealed is not archived yet
        (1, replace(SMALL, epochs=EpochHistory.of(((0, 0), (1, 41)))), LARGE, False),  # nor what a former leader's cleaner may have read
        (1, replace(SMALL, high_watermark=39), LARGE, False),
        (1, replace(SMALL, leadership=led_by(2, 0)), LARGE, False),  # nor what this one's cleaner has read
        (1, replace(SMALL, leadership=led_by(-1, 0)), LARGE, False),
        (1, replace(SMALL, leadership=None), LARGE, False),
        (1, SMALL, structs.replace(LARGE, superseded=(an_entry(0, 9),)), False),  # what was replaced before is listed still
        (1, SMALL, a_head(*tuple(LARGE.entries)[:3], a_gap(30, 39), leader_epoch=0), False),
        (1, SMALL, a_head(leader_epoch=0, start_offset=40, last_offset=39), False),
    ],
)
def test_what_compaction_has_made_smaller_is_archived_again(percent: int | None, log: LocalLog, head: Head, is_replaced: bool) -> None:
    found = plan_smaller(log, head, log.high_watermark or 0, percent)
    assert found == (Replace(head.start_offset, SMALLER) if is_replaced else None)


def test_no_command_waits_until_space_is_saved() -> None:
    settings = ArchivalConfig(min_saved_percent=50)
    assert Policy.of(settings).min_saved_percent == 50
    assert Policy.of(settings, requested=True).min_saved_percent is None


def test_saving_waits_for_all_else() -> None:
    policy = Policy(min_saved_percent=50)
    steps = list(next_steps(replace(SMALL, high_watermark=40), LARGE, writer="me", policy=policy, tail_age_ms=0))
    assert steps[0] == Replace(0, SMALLER)
    assert isinstance(steps[1], Idle)
    sealed = a_shrunk_log((0, 150), (40, 900), (60, 900), cleaned_to=40, hw=70)
    assert isinstance(next(next_steps(sealed, LARGE, writer="me", policy=policy, tail_age_ms=0)), Upload)


def test_page_reads_tell_only_what_sums_do_not() -> None:
    class Unread:
        def read(self, ref: object) -> NoReturn:
            raise AssertionError("a page was read")

    ref = reference(tuple(LARGE.entries), uid="a" * 32, level=0, fence=1, size_bytes=1, digest=LARGE.entries[0].digest)
    paged = structs.replace(LARGE, entries=EntryTree((ref,), Unread()))
    assert plan_smaller(a_shrunk_log((0, 350), (40, 900)), paged, 45, 50) is None
    assert plan_smaller(SMALL, paged, 45, 50) == Replace(0, SMALLER)


SAVES = Policy(tail_after_ms=0, min_saved_percent=30)


@pytest.fixture
def shrunk(directory: Directory) -> Agent:
    """Three segments and a tail are archived; then the cleaner has dropped most of them for what follows, and a tombstone."""
    directory.segment(0, keyed(0, (0, ALICE, b"1" * 200), (1, BOB, b"1" * 200)))
    directory.segment(2, keyed(2, (2, ALICE, b"2" * 200), (3, CAROL, b"1" * 200)))
    directory.segment(4, keyed(4, (4, CAROL, None), (5, ALICE, b"3")))
    directory.segment(6, keyed(6, (6, DAVE, b"1")))
    directory.high_watermark(7)
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    assert agent.run(SAVES)[-1] == "caught up"
    (directory.path / f"{2:020}.log").unlink()
    directory.segment(0, keyed(0, (1, BOB, b"1" * 200)))
    directory.segment(4, keyed(4, (5, ALICE, b"3")))
    directory.cleaned(6)
    return agent


LEFT = {ALICE: b"3", BOB: b"1" * 200, DAVE: b"1"}


def test_space_is_saved_once(directory: Directory, shrunk: Agent) -> None:
    before = shrunk.head
    assert shrunk.run(EVERYTHING) == ["caught up"]
    with capture_logs() as logs:
        assert shrunk.run(SAVES) == ["reread", "reread", "replaced", "caught up"]
    assert [each["log_level"] for each in logs if each["event"] == "runs_replaced"] == ["info"]
    after = shrunk.head
    assert table(shrunk) == LEFT
    assert after.entries.live_bytes < before.entries.live_bytes * 0.6
    assert (after.start_offset, after.last_offset, after.clean_to) == (0, 6, 6)
    assert ranges(after.superseded) == [(0, 1), (2, 3), (4, 5)]
    assert after.entries[-1].key == before.entries[-1].key, "what has the same bytes keeps its object"
    assert cleaned_of(after)[0]


def cleaned_of(head: Head) -> list[bool]:
    return [entry.cleaned for entry in head.entries]


def test_nothing_is_replaced_again_before_what_was_replaced_is_forgotten(directory: Directory, shrunk: Agent) -> None:
    shrunk.run(SAVES)
    directory.segment(0)
    directory.segment(7, keyed(7, (7, BOB, b"2")))
    directory.segment(8)
    directory.high_watermark(8)
    directory.cleaned(8)
    assert shrunk.run(SAVES) == ["archived", "caught up"]
    shrunk.archiver.amend(lambda head: structs.replace(head, superseded=()))
    assert "replaced" in shrunk.run(SAVES)
    assert table(shrunk) == {ALICE: b"3", BOB: b"2", DAVE: b"1"}
    assert shrunk.run(SAVES) == ["caught up"]


def test_archiving_continues_beside_a_replacement(directory: Directory, shrunk: Agent) -> None:
    """Otherwise a topic that is written all the time would begin it again at each segment."""
    assert shrunk.step(SAVES).action == "reread"
    there = objects(shrunk)
    directory.segment(7, keyed(7, (7, ALICE, b"4")))
    directory.segment(8, keyed(8, (8, BOB, b"2")))
    directory.high_watermark(9)
    assert shrunk.archiver.is_waiting
    assert shrunk.run(SAVES) == ["archived", "archived", "reread", "replaced", "caught up"]
    assert objects(shrunk) == there + 3, "what had been read again is not read once more"
    assert ranges(shrunk.head.entries) == [(0, 1), (2, 5), (6, 6), (7, 7), (8, 8)]
    assert table(shrunk) == {ALICE: b"4", BOB: b"2", DAVE: b"1"}
    assert not shrunk.archiver.is_waiting


def test_a_segment_that_is_sealed_meanwhile_comes_first(directory: Directory, shrunk: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records may be what the cleaner has dropped others for: never does the archive lack both."""
    assert [shrunk.step(SAVES).action for _ in range(2)] == ["reread", "reread"]
    real = Branches.reindex

    def reindex_while_it_rolls(*of: Any) -> Any:
        directory.segment(7, keyed(7, (7, BOB, b"2")))
        directory.segment(8)
        directory.high_watermark(8)
        return real(*of)

    monkeypatch.setattr(Branches, "reindex", reindex_while_it_rolls)
    with pytest.raises(SourceChanged, match="was sealed before"):
        shrunk.step(SAVES)
    assert shrunk.run(SAVES) == ["archived", "replaced", "caught up"]


def test_a_new_claim_begins_it_again(directory: Directory, shrunk: Agent) -> None:
    assert shrunk.step(SAVES).action == "reread"
    shrunk.archiver.amend(lambda head: structs.replace(head, fence=head.fence + 1), discards=True)
    assert not shrunk.archiver.is_waiting
    assert shrunk.run(SAVES) == ["reread", "reread", "replaced", "caught up"]
    assert {entry.fence for entry in tuple(shrunk.head.entries)[:2]} == {2}


def test_what_is_not_to_be_saved_any_more_waits_for_nothing(directory: Directory, shrunk: Agent) -> None:
    assert shrunk.step(SAVES).action == "reread"
    assert shrunk.archiver.is_waiting
    assert shrunk.run(EVERYTHING) == ["caught up"]
    assert not shrunk.archiver.is_waiting


def test_what_is_begun_ends_though_it_saves_less_by_then(directory: Directory, shrunk: Agent) -> None:
    assert shrunk.step(SAVES).action == "reread"
    assert shrunk.run(replace(SAVES, min_saved_percent=90)) == ["reread", "replaced", "caught up"]


def test_it_is_given_up_where_the_cleaner_goes_past_what_is_still_to_be_read(directory: Directory, shrunk: Agent) -> None:
    """The last run that is read again is not clean with the others: a tombstone may have been dropped from it. Archiving continues."""
    before = shrunk.head
    assert shrunk.step(SAVES).action == "reread"
    directory.segment(7)
    directory.high_watermark(7)
    directory.cleaned(7)
    shrunk.clock.advance(DAY_MS)
    with capture_logs() as logs:
        assert shrunk.run(SAVES) == ["reread", "caught up"]
        assert shrunk.run(SAVES) == ["caught up"]
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["replacement_given_up"]
    assert shrunk.head == before
    assert not shrunk.archiver.is_waiting


def test_what_follows_learns_of_transactions_anew(directory: Directory) -> None:
    """A transaction was open where the replaced part ends, and is aborted after that; then the cleaner drops its data."""
    producer = Producer(id=5)
    directory.segment(0, keyed(0, (0, ALICE, b"1" * 300)))
    directory.segment(1, keyed(1, (1, ALICE, b"2")))
    opened = a_batch(2, [a_record(2, b"x", key=BOB)], producer=producer, transactional=True)
    rest = keyed(3, (3, DAVE, b"1"))
    directory.segment(2, opened, rest)
    directory.high_watermark(4)
    agent = Agent(directory.root, delete_retention_ms=DAY_MS)
    agent.run(SAVES)
    directory.segment(0)
    directory.cleaned(2)
    assert agent.step(SAVES).action == "reread"
    marker = a_marker(4, producer, aborts=True)
    directory.append(2, marker)
    directory.segment(5, keyed(5, (5, CAROL, b"1")))
    directory.high_watermark(6)
    assert [agent.step(SAVES).action for _ in range(2)] == ["archived", "archived"]
    assert [(entry.base_offset, entry.open_from, entry.aborted) for entry in tuple(agent.head.entries)[2:]] == [
        (2, 2, 0),
        (4, None, 1),
        (5, None, 0),
    ]
    directory.segment(2, rest, marker)
    directory.cleaned(5)
    assert agent.run(SAVES) == ["replaced", "caught up"]
    assert [(entry.base_offset, entry.open_from, entry.aborted) for entry in agent.head.entries] == [
        (0, None, 0),
        (2, None, 0),
        (4, None, 0),
        (5, None, 0),
    ]
    assert sorted(ranges(agent.head.superseded)) == [(0, 0), (1, 1), (2, 3), (4, 4)]
