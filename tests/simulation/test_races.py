"""Races that seeds seldom come to: each overtakes one task at one point. The code as it is wins them; the planted mistake loses."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from archival.plan.policy import Policy, Triggers
from headwater_core.errors import TransientError
from headwater_core.partition import PartitionId
from hydration.answers import Isolation
from manifests import keys
from manifests.page import Item, PageRef, page_key
from manifests.page_store import PageStore
from tests.headwater_core.objectstore.faulty import NO_FAULTS, Faults
from tests.simulation.agents import Agent, Task
from tests.simulation.brokers import Replica
from tests.simulation.bucket import Violation, references_below
from tests.simulation.mutants import planted
from tests.simulation.versions import Version
from tests.simulation.world import SimulationResult, Theme, World, quiet

_SEEDS = 200  # within so many a race comes to its point: batches, listings and groups of segments are drawn


PLAIN = Theme(compacted=0, pairs=0, unnamed=0)
COMPACTED = Theme(compacted=1, pairs=0, unnamed=0)
SAVING = Theme(compacted=1, pairs=0, unnamed=0, saves=True)
STREAMED = Theme(compacted=0, pairs=0, unnamed=0, streams=True, triggers=True)
PAGED = Theme(compacted=0, pairs=0, unnamed=0, pages=True)


class NotToThePoint(Exception):
    """This seed drew something else."""


class Stage(World):
    """A world in which nothing happens by itself, and a task may be stopped at every point."""

    def __init__(self, seed: int, root: Path, theme: Theme) -> None:
        super().__init__(SimulationResult(seed), root, theme, faulty=False)
        self.haste, self.control.deaf = 1.0, False
        if self.reader:
            self.reader.store.faults = NO_FAULTS
        self.brokers.begin()

    @property
    def a(self) -> Agent:
        return self.agents[0]

    @property
    def b(self) -> Agent:
        return self.agents[1]

    @property
    def first(self) -> Replica:
        return self.brokers.replicas[0]

    @property
    def second(self) -> Replica:
        return self.brokers.replicas[1]

    def write(self, at_least: int, replica: Replica) -> None:
        """The leader, who is `replica`, writes up to that offset or a little beyond."""
        assert self.brokers.leader is replica
        while replica.end < at_least:
            self.brokers.write()

    def archive_all(self, agent: Agent) -> None:
        self.brokers.write_checkpoint()
        for _ in range(40):
            outcome = agent.step_now()
            self.checks.after_action()
            if outcome.startswith("idle"):
                return
        raise AssertionError(outcome)

    def start(self, task: Callable[[], str], agent: Agent, *, until: str) -> Task:
        task()
        return self.resume(agent, until=until)

    def resume(self, agent: Agent, *, until: str = "") -> Task:
        """Until it is there; to its end, with nothing."""
        (task,) = agent.tasks
        while task.is_busy and task.actor.at != until:
            self.note(task.resume())
        if until and not task.is_busy:
            raise NotToThePoint(until)
        for replica in self.brokers.replicas:
            self.brokers.notice_release(replica)
        self.checks.after_action()
        return task

    def grow(self, at_least: int) -> None:
        """The leader, alone in sync, writes up to that offset and rolls after each write; its agent archives all that."""
        self.brokers.fall_behind()
        leader = self.brokers.leader
        while leader.end < at_least:
            self.brokers.write()
            self.brokers.roll(leader)
        self.archive_all(self.agents[self.brokers.leading])

    def read(self, *, until: str = "") -> None:
        """A reader of the archive alone: from offset 0 to the end, or up to there for the second time, where it wants its first page."""
        reader = self.reader
        assert reader
        reader._note()
        if not reader._actor.is_busy:
            reader._beside.haste = 1.0
            reader._actor.start(lambda: void(reader._scan(0, Isolation.READ_UNCOMMITTED, 1 << 20)))
        arrived = 0
        while reader._actor.is_busy and arrived < 2:
            reader._go_on()
            arrived += bool(until) and reader._actor.at == until

    def read_at_rest(self) -> None:
        """All there is, by what the reader knows already."""
        reader = self.reader
        assert reader
        reader._note()
        reader._scan(0, Isolation.READ_UNCOMMITTED, 1 << 20, at_rest=True)

    def collect_pages(self) -> None:
        """Whoever pauses has done so for longer than readers may: what the head does not refer to is gone."""
        self.checks.after_action()
        self.clock.advance(2 * 86_400_000)
        partition = self.brokers.partition
        head = self.checks.heads[partition]
        named = {page_key(partition, ref) for bag in (head.entries, head.superseded) for ref in references_below(bag)}
        for info in list(self.inner.list(keys.head(partition).removesuffix("manifest.json"))):
            if keys.parse_page(info.key) and info.key not in named:
                self.inner.delete(info.key)

    def lose_second(self) -> None:
        """The second broker comes back without anything, and not in sync."""
        self.brokers.fall_behind()
        self.brokers.replace_disk(self.second)

    def take_over(self, *, unclean: bool) -> None:
        assert self.brokers.elect(unclean=unclean)
        self.brokers.begin()


def deposed_while_it_releases(stage: Stage) -> None:
    """Not in sync, so elected uncleanly, the other one cuts what is being released; then the first one leads again."""
    brokers = stage.brokers
    stage.write(5, stage.first)
    brokers.follow()
    brokers.fall_behind()
    brokers.roll(stage.first)
    stage.write(12, stage.first)
    brokers.roll(stage.first)
    stage.archive_all(stage.a)
    stage.start(stage.a.release, stage.a, until="release.head_read")
    stage.take_over(unclean=True)
    stage.write(stage.second.end + 3, stage.second)
    stage.archive_all(stage.b)
    stage.resume(stage.a)
    stage.take_over(unclean=True)
    stage.checks.after_action()


def leads_again_while_it_releases(stage: Stage) -> None:
    """The head was read under an old epoch; another one has cut it since, and the log leads again, with all in sync."""
    brokers = stage.brokers
    stage.write(5, stage.first)
    brokers.follow()
    brokers.fall_behind()
    brokers.roll(stage.first)
    stage.write(12, stage.first)
    brokers.roll(stage.first)
    stage.archive_all(stage.a)
    stage.start(stage.a.release, stage.a, until="release.head_read")
    stage.take_over(unclean=True)
    stage.write(stage.second.end + 3, stage.second)
    stage.archive_all(stage.b)
    stage.take_over(unclean=True)
    brokers.follow()
    brokers.write_checkpoint()
    stage.resume(stage.a)


def rewritten_within_a_look(stage: Stage) -> None:
    """Leadership and epochs are read; before the files are listed, the log is truncated, and other batches have their offsets."""
    brokers = stage.brokers
    stage.write(30, stage.first)
    brokers.follow()
    brokers.roll(stage.first)
    stage.archive_all(stage.a)
    stage.start(stage.a.release, stage.a, until="release.head_read")
    stage.resume(stage.a, until="look: identity read")
    stage.lose_second()
    stage.take_over(unclean=True)
    stage.write(5, stage.second)
    brokers.follow()
    brokers.roll(stage.first)
    stage.resume(stage.a)
    stage.take_over(unclean=False)
    stage.checks.after_action()


def leads_an_empty_log(stage: Stage) -> None:
    """The leader's disk is new, and its epoch not yet in its history."""
    stage.write(5, stage.first)
    stage.brokers.follow()
    stage.archive_all(stage.a)
    stage.brokers.fall_behind()
    stage.brokers.replace_disk(stage.first)
    stage.a.step_now()


def truncated_within_a_look(stage: Stage) -> None:
    """The checkpoint is read; then the log is truncated, and leads again, in another epoch and with a lower high watermark."""
    brokers = stage.brokers
    stage.archive_all(stage.a)
    stage.write(20, stage.first)
    brokers.follow()
    brokers.write_checkpoint()
    stage.start(lambda: stage.a.archive(0), stage.a, until="look: checkpoints read")
    stage.lose_second()
    stage.take_over(unclean=True)
    stage.write(3, stage.second)
    brokers.follow()
    stage.take_over(unclean=False)
    brokers.follow()
    stage.write(10, stage.first)
    stage.resume(stage.a)


def compacted_within_a_look(stage: Stage) -> None:
    """A listing without what a cleaner has removed by then, and without what it has made; it finishes before the second look."""
    brokers, first = stage.brokers, stage.first
    stage.write(4, first)
    brokers.roll(first)
    stage.write(first.end + 3, first)
    brokers.roll(first)
    brokers.follow()
    stage.brokers.write_checkpoint()
    stage.a.step_now()
    stage.start(lambda: stage.a.archive(0), stage.a, until="look: half listed")
    brokers.clean(first)
    if not first.cleaning or len(first.cleaning.replaced) < 2:
        raise NotToThePoint
    brokers.clean(first)
    brokers.clean(first)
    stage.resume(stage.a, until="opened")
    brokers.finish_cleaning(first)
    stage.resume(stage.a)
    stage._finish(stage.a)


def rewritten_before_it_is_sent(stage: Stage) -> None:
    """The file is verified; before it is sent, it is truncated and others' batches are appended to it."""
    brokers = stage.brokers
    stage.write(8, stage.first)
    brokers.follow()
    brokers.write_checkpoint()
    stage.a.step_now()
    stage.start(lambda: stage.a.archive(0), stage.a, until="archive.scanned")
    stage.lose_second()
    stage.take_over(unclean=True)
    stage.write(40, stage.second)
    brokers.follow()
    stage.resume(stage.a)


def truncated_below_its_start(stage: Stage) -> None:
    """The log start was moved and checkpointed; then an unclean election truncates the log before it."""
    brokers, first = stage.brokers, stage.first
    stage.write(5, first)
    brokers.follow()
    brokers.fall_behind()
    stage.write(14, first)
    brokers._move_start(first, 12)
    first.policy = 12
    brokers.write_checkpoint()
    stage.take_over(unclean=True)
    stage.write(20, stage.second)
    brokers.follow()
    brokers.roll(first)
    first.checkpoint = first.hw
    stage.take_over(unclean=False)
    brokers.follow()
    first.checkpoint = first.hw
    for _ in range(4):
        stage.a.step_now()
    stage.a.release()
    stage.resume(stage.a)


def lost_its_disk_and_remembers(stage: Stage) -> None:
    """The head as the agent knows it shares nothing with its log, all of which the other one has written and archived since."""
    brokers, first, second = stage.brokers, stage.first, stage.second
    stage.write(5, first)
    brokers.follow()
    brokers.fall_behind()
    stage.write(12, first)
    stage.archive_all(stage.a)
    remembered = first.end
    stage.take_over(unclean=True)
    if second.end > remembered - 2:
        raise NotToThePoint
    stage.write(remembered + 8, second)
    stage.archive_all(stage.b)
    delete_records(stage, remembered - 1)
    brokers.write_checkpoint()
    brokers.replace_disk(first)
    brokers.follow()
    stage.take_over(unclean=False)
    stage._finish(stage.a)


def silent_about_a_dead_run(stage: Stage) -> None:
    """What one log archived after a dead run, which lies before its start, it has released too; then the other one leads, which
    holds what came in place of that run; and then the first one again."""
    brokers, first, second = stage.brokers, stage.first, stage.second
    stage.write(5, first)
    brokers.follow()
    brokers.fall_behind()
    stage.write(12, first)
    stage.archive_all(stage.a)
    stage.take_over(unclean=True)
    stage.write(first.end, second)
    brokers.roll(second)
    start = second.end
    stage.write(start + 4, second)
    brokers.roll(second)
    stage.write(second.end + 4, second)
    brokers.follow()
    delete_records(stage, start)
    stage.archive_all(stage.b)
    stage.b.release()
    stage.resume(stage.b)
    stage.take_over(unclean=False)
    brokers.write_checkpoint()
    while not (outcome := stage.a.step_now()).startswith("cut"):
        stage.checks.after_action()
        if outcome.startswith("idle"):
            stage.checks.at_rest()
            raise NotToThePoint
    brokers.follow()
    stage.take_over(unclean=False)
    stage._finish(stage.b)


def delete_records(stage: Stage, end: int) -> None:
    """DeleteRecords on the leader, of which its follower has not heard yet."""
    brokers = stage.brokers
    brokers._move_start(brokers.leader, end)
    brokers.leader.policy = brokers.removed_to = end


def void(_: object) -> None:
    pass


def page_collected_before_an_archiver_reads_it(stage: Stage) -> None:
    """Its head is out of date: another agent has claimed, and written the newest leaf anew."""
    stale = stage.agents[2]
    stage.grow(12)
    stage.a.kill()  # now it has no page in memory
    stage.brokers.write()
    stage.brokers.roll(stage.first)
    stage.brokers.write_checkpoint()
    stage.start(lambda: stage.a.archive(None), stage.a, until="archive.uploaded")
    stage.control.trouble.likely = 1  # nor does the control log tell it
    stage.archive_all(stale)
    stage.brokers.write()
    stage.brokers.roll(stage.first)
    stage.archive_all(stale)
    stage.collect_pages()
    stage.resume(stage.a)
    if (outcome := stage.a.step_now()).startswith("ManifestChanged"):
        raise Violation(f"I15 the archiver does not read the head again: {outcome}")


def page_collected_before_a_reader_reads_it(stage: Stage) -> None:
    stage.grow(20)
    delete_records(stage, stage.first.end - 1)
    stage.read(until="get")
    stage.grow(40)
    stage.collect_pages()
    stage.read()
    stage.read_at_rest()


def leaf_grown_after_a_reader_has_read_it(stage: Stage) -> None:
    stage.grow(12)
    delete_records(stage, stage.first.end - 1)
    stage.read()
    stage.grow(60)
    delete_records(stage, stage.first.end - 1)
    assert stage.reader
    stage.reader.clock.passed_s += 60
    stage.read_at_rest()


def page_lost_on_its_way_in_a_carry_over(stage: Stage) -> None:
    """The request is answered by a time-out, and the page is not there."""
    stage.a.version = Version.FORMER
    stage.a.kill()
    stage.grow(12)
    stage.a.upgrade()
    stage.brokers.write()
    stage.brokers.roll(stage.first)
    stage.brokers.write_checkpoint()
    stage.start(lambda: stage.a.archive(None), stage.a, until="archive.uploaded")
    stage.resume(stage.a, until="put")
    stage.a.store.faults = Faults(lost_request=1)
    stage.resume(stage.a, until="put done")
    stage.a.store.faults = NO_FAULTS
    stage.resume(stage.a)


def cut_below_the_pages(stage: Stage) -> None:
    """What an unclean election kills is in pages as well as in the head."""
    stage.grow(4)
    stage.brokers.follow()
    stage.grow(40)
    stage.take_over(unclean=True)
    stage.write(stage.second.end + 3, stage.second)
    stage.brokers.write_checkpoint()
    stage._finish(stage.b)


def revived_from_pages(stage: Stage) -> None:
    cut_below_the_pages(stage)
    stage.take_over(unclean=True)
    stage.brokers.write_checkpoint()
    stage._finish(stage.a)
    if not stage.result.seen["outcome revived"]:
        raise Violation("I28 what a dead branch holds is archived twice")


def released_before_a_gap_is_filled(stage: Stage) -> None:
    """What leads now holds what its archive has as a gap, in a page; it has claimed, and filled nothing yet."""
    brokers, first, second = stage.brokers, stage.first, stage.second
    stage.grow(4)
    while first.end < 40:
        brokers.write()
        brokers.roll(first)
        brokers.follow()
        brokers.roll(second)
    stage.take_over(unclean=False)
    delete_records(stage, 12)
    stage.archive_all(stage.b)
    stage.take_over(unclean=True)
    brokers.follow()
    brokers.write_checkpoint()
    while not (outcome := stage.a.step_now()).startswith("claimed"):
        if not outcome.startswith("Fenced"):
            raise NotToThePoint(outcome)
    stage.a.release()
    stage.resume(stage.a)


def collected_while_an_upload_waits(stage: Stage) -> None:
    """The bucket has refused to list it for now."""
    stage.write(6, stage.first)
    stage.brokers.follow()
    stage.archive_all(stage.a)
    stage.write(stage.first.end + 4, stage.first)
    stage.brokers.roll(stage.first)
    stage.brokers.follow()
    stage.brokers.write_checkpoint()
    stage.start(lambda: stage.a.archive(None), stage.a, until="archive.uploaded")
    stage.resume(stage.a, until="replace")
    stage.a.store.faults = Faults(refused=1)
    stage.resume(stage.a)
    stage.a.store.faults = NO_FAULTS
    stage.a.collect()
    stage.resume(stage.a)


def collected_without_a_page(stage: Stage) -> None:
    """The store does not give it in time; everything else it does."""
    if stage.retention.reader_lease_s:
        raise NotToThePoint
    stage.grow(20)
    stage.a.kill()  # now it has no page in memory
    stage.archive_all(stage.a)
    real, pages = PageStore.read, stage.a.repository._pages

    def read(self: PageStore, partition: PartitionId, ref: PageRef) -> tuple[Item, ...]:
        if self is pages:
            raise TransientError("timed out")
        return real(self, partition, ref)

    with patch.object(PageStore, "read", read):
        stage.a.collect()
        stage.resume(stage.a)


def write_and_roll(stage: Stage, times: int) -> None:
    """The leader, and the other one follows."""
    for _ in range(times):
        stage.brokers.write()
        stage.brokers.roll(stage.brokers.leader)
    stage.brokers.follow()


def clean_all(stage: Stage, replica: Replica) -> None:
    """What is sealed, and committed."""
    for _ in range(8):
        stage.brokers.clean(replica)
        stage.brokers.finish_cleaning(replica)
    if replica.cleaned_to != replica.segments[-1].base:
        raise NotToThePoint
    stage.brokers.write_checkpoint()


def cleaned_by_a_former_leader(stage: Stage) -> None:
    """The other one has fetched what that cleaner had left, and has in its active segment what the cleaner dropped it for."""
    brokers, second = stage.brokers, stage.second
    write_and_roll(stage, 5)
    stage.archive_all(stage.a)
    archived = stage.first.end
    write_and_roll(stage, 3)
    clean_all(stage, stage.first)
    stage.lose_second()
    brokers.follow()
    if len(second.segments) < 2 or second.segments[-1].base > archived:
        raise NotToThePoint
    stage.take_over(unclean=False)
    clean_all(stage, second)
    for _ in range(8):
        stage.b.archive(None)
        stage.resume(stage.b)


def claimed_within_a_replacement(stage: Stage) -> None:
    """By another agent beside the same broker, so the log is the one that the replacement was begun with; then by the first one again."""
    write_and_roll(stage, 6)
    stage.archive_all(stage.a)
    clean_all(stage, stage.first)
    if not stage.a.step_now().startswith("reread"):
        raise NotToThePoint
    for agent in (stage.agents[2], stage.a):
        while not (outcome := agent.step_now()).startswith("claimed"):
            if not outcome.startswith(("Fenced", "outrun")):
                raise NotToThePoint(outcome)
    stage.archive_all(stage.a)


def merged_when_its_dead_part_is_forgotten(stage: Stage) -> None:
    """An entry that was cut inside, and the one before it; the object still holds what nothing lists any more."""
    brokers = stage.brokers
    write_and_roll(stage, 2)
    brokers.write()
    brokers.follow()
    brokers.fall_behind()
    brokers.write()
    brokers.roll(stage.first)
    stage.archive_all(stage.a)
    stage.take_over(unclean=True)
    stage.archive_all(stage.b)
    for _ in range(2):
        stage.b.collect()
        stage.resume(stage.b)
        stage.clock.advance(20_000_000)
    head = stage.checks.heads[brokers.partition]
    if not head.entries[-1].is_cut or head.superseded:
        raise NotToThePoint
    policy = Policy(tail_after_ms=0, merge_bytes=2 * head.entries.live_bytes)
    stage.note(stage.outcome_of("b merges", lambda: stage.b.merge_now(stage.b.archiver(), policy), damaged=lambda: False))
    stage.checks.after_action()


def sealed_before_all_of_it_is_committed(stage: Stage) -> None:
    """And due by then: it waits for the rest of it."""
    brokers, stage.triggers.set = stage.brokers, Triggers(None, 1)
    write_and_roll(stage, 2)
    for write in range(3):
        brokers.write()
        if write == 1:
            brokers.follow()
    brokers.roll(stage.first)
    brokers.write_checkpoint()
    for _ in range(8):
        stage.a.archive(None)
        stage.resume(stage.a)


def stopped_while_it_streams(stage: Stage) -> None:
    """What it has sent is dropped, and written again from the log, under another name."""
    stage.write(60, stage.first)
    stage.brokers.follow()
    stage.brokers.write_checkpoint()
    for _ in range(4):
        stage.a.archive(None)
        stage.resume(stage.a)
    if stage.a.archiver().open_stream is None:
        raise NotToThePoint
    stage.note(stage.a.stop())
    stage.archive_all(stage.a)
    if stage.checks.heads[stage.brokers.partition].next_offset < stage.first.hw:
        raise Violation("what was open when the process ended is not archived")


RACES: list[tuple[Callable[[Stage], None], str, Theme]] = [
    (deposed_while_it_releases, "release_without_in_sync_set", PLAIN),
    (leads_again_while_it_releases, "release_without_stamp", PLAIN),
    (rewritten_within_a_look, "release_looks_once", PLAIN),
    (leads_an_empty_log, "acts_beyond_its_log", PLAIN),
    (truncated_within_a_look, "old_watermark_in_an_old_epoch", PLAIN),
    (compacted_within_a_look, "inodes_not_compared", COMPACTED),
    (compacted_within_a_look, "one_look", COMPACTED),
    (rewritten_before_it_is_sent, "digest_not_compared", PLAIN),
    (truncated_below_its_start, "log_start_from_checkpoint", PLAIN),
    (lost_its_disk_and_remembers, "stop_on_an_old_head", PLAIN),
    (silent_about_a_dead_run, "cut_takes_all", PLAIN),
    (silent_about_a_dead_run, "proven_by_the_next_entry", PLAIN),
    (page_collected_before_an_archiver_reads_it, "archiver_keeps_an_old_head", PAGED),
    (page_collected_before_a_reader_reads_it, "missing_page_is_damage", PAGED),
    (page_collected_before_a_reader_reads_it, "reader_keeps_an_old_head", PAGED),
    (leaf_grown_after_a_reader_has_read_it, "pages_kept_by_their_place", PAGED),
    (page_lost_on_its_way_in_a_carry_over, "carried_over_unconfirmed", PAGED),
    (cut_below_the_pages, "cut_in_the_head_alone", PAGED),
    (revived_from_pages, "revived_from_the_head_alone", PAGED),
    (revived_from_pages, "revived_stays_superseded", PAGED),
    (released_before_a_gap_is_filled, "release_by_the_head_alone", PAGED),
    (collected_while_an_upload_waits, "gc_does_not_wait", PLAIN),
    (merged_when_its_dead_part_is_forgotten, "merge_of_dead_bytes", PLAIN),
    (cleaned_by_a_former_leader, "saved_before_what_displaced", SAVING),
    (claimed_within_a_replacement, "drafted_under_another_claim", SAVING),
    (collected_without_a_page, "gc_skips_unreadable", PAGED),
    (stopped_while_it_streams, "stream_outlives_its_process", STREAMED),
    (sealed_before_all_of_it_is_committed, "trigger_cuts_at_the_high_watermark", STREAMED),
]


@pytest.mark.parametrize(("race", "mistake", "theme"), RACES, ids=[f"{race.__name__}-{mistake}" for race, mistake, _ in RACES])
def test_a_race_is_lost_only_with_a_mistake(race: Callable[[Stage], None], mistake: str, theme: Theme, tmp_path: Path) -> None:
    with planted(mistake):
        seed = next((seed for seed in range(_SEEDS) if _lost(race, seed, tmp_path, theme)), None)
    assert seed is not None, f"{mistake} is not caught"
    assert not any(_lost(race, each, tmp_path, theme) for each in {seed, *range(10)})


def _lost(race: Callable[[Stage], None], seed: int, root: Path, theme: Theme) -> bool:
    with quiet():
        stage = Stage(seed, root / str(seed), theme)
        try:
            race(stage)
        except NotToThePoint:
            return False
        except Violation:
            return True
        finally:
            stage.close()
    return False
