"""Records that compaction had dropped for later ones, and that count again because an unclean election took those."""

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from archival.partition.release import release_bound
from archival.plan.cleaner import displaced_by
from archival.plan.lineage import may_lack
from archival.plan.policy import Policy
from archival.plan.replacement import DISPLACED, Draft, irreplaceable, rereads
from archival.plan.step_plan import next_steps
from archival.plan.steps import Replace, Stop
from headwater_core.epochs import EpochHistory
from headwater_core.errors import NeedsReplacement, TransientError
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.records import decode_batch
from headwater_core.segments.run_scan import scan_run
from manifests.entry import Entry, EpochOffset
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.repository import ManifestRepository
from tests.archival.builders import PARTITION, SEALED, Agent, Directory, a_log, batches_of, ranges
from tests.headwater_core.segments.builders import a_batch, a_record
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
    found = [(each.segment.base_offset, each.read_from, each.end, each.cover_end) for each in rereads(log, draft, HEAD)]
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
    draft = Draft.begin(head, 0, LOG.epochs, EntryTree(), head.entries)
    assert draft.is_for(head, 0, LOG.epochs)
    assert not draft.is_complete
    entries = tuple(entry if entry is same else structs.replace(entry, uid="f" * 32) for entry in new)
    draft = draft.with_run(structs.replace(draft.head, entries=entries, last_offset=19))
    assert draft.is_complete
    assert draft.replaced == (first, last)
    assert draft.result.superseded == (first, last, an_entry(20, 24))


def test_a_draft_keeps_nothing_that_ends_before_the_start() -> None:
    head = a_head(*HEAD.entries, start_offset=10)
    draft = Draft.begin(head, 10, LOG.epochs, *HEAD.entries.split_at(10))
    assert (len(draft.head.entries), draft.head.last_offset, draft.dead) == (0, 9, HEAD.entries)
