"""Mistakes about which log an archive follows, and about what is planned of it."""

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace as dataclass_replace
from typing import Any

from msgspec.structs import replace

import archival.collection.collector
import archival.collection.orphans
import archival.partition.archiver
import archival.partition.branches
import archival.partition.looks
import archival.partition.merger
import archival.partition.release
import archival.partition.source
import archival.partition.tails
import archival.plan.lineage
import archival.plan.merge_plan
import archival.plan.replacement
import archival.plan.role
import archival.plan.step_plan
import archival.plan.trim
from archival.partition.archiver import Outcome, PartitionArchiver
from archival.partition.branches import Branches, Division
from archival.partition.entry_reader import ArchivedEntries
from archival.partition.source import PartitionSource
from archival.partition.tails import Tails
from archival.plan.lineage import Behind, CutAt, Ok, Verdict
from archival.plan.policy import Policy
from archival.plan.role import Acting
from archival.plan.steps import CutEntries, Step, Stop
from headwater_core.epochs import EpochHistory
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from manifests.entry_tree import EntryTree
from manifests.head import Head
from tests.simulation.mutants.mutant import mutant, patch_in

# Lineage


@mutant("a run that lies on the history proves the entries before it", theme="gaps", in_race=True)
def proven_by_the_next_entry(stack: ExitStack) -> None:
    real = EntryTree.spans

    def spans(entries: EntryTree) -> Any:
        found = real(entries)
        return [span._replace(ends_entry=span is found[-1]) for span in found]

    patch_in(stack, EntryTree, "spans", spans)


@mutant("a cut takes with it what is proven after the dead run", theme="gaps", in_race=True)
def cut_takes_all(stack: ExitStack) -> None:
    patch_in(stack, archival.plan.step_plan, "resumes_at", lambda *_: None)


@mutant("a stale broker's log is taken for the lineage", noted=17)
def no_behind(stack: ExitStack) -> None:
    real = archival.plan.lineage.verdict

    def verdict(history: EpochHistory, acting_epoch: int, head: Head) -> Verdict:
        found = real(history, acting_epoch, head)
        if isinstance(found, Behind):
            at = archival.plan.lineage.branches_at(history, head.entries)
            return Ok() if at is None else CutAt(at)
        return found

    patch_in(stack, archival.plan.step_plan, "verdict", verdict)


@mutant("dead branches are never cut", theme="lineage", noted=13)
def no_cut(stack: ExitStack) -> None:
    real = archival.plan.lineage.verdict

    def verdict(history: EpochHistory, acting_epoch: int, head: Head) -> Verdict:
        found = real(history, acting_epoch, head)
        return Ok() if isinstance(found, CutAt) else found

    patch_in(stack, archival.plan.step_plan, "verdict", verdict)
    for module in (archival.partition.branches, archival.partition.source):
        patch_in(stack, module, "branches_at", lambda *_: None)


@mutant("a history without the head's newest epoch is behind, even when it has a newer one", theme="lineage", noted=13)
def as_designed_behind(stack: ExitStack) -> None:
    real = archival.plan.lineage.verdict

    def verdict(history: EpochHistory, acting_epoch: int, head: Head) -> Verdict:
        newest = archival.plan.lineage.newest_epoch(head.entries)
        if newest >= 0 and all(epoch != newest for epoch, _ in history.starts):
            return Behind("lacks the newest archived epoch")
        return real(history, acting_epoch, head)

    patch_in(stack, archival.plan.step_plan, "verdict", verdict)


@mutant("nothing in the head recalls a newer epoch already followed", noted=17)
def as_designed_claim(stack: ExitStack) -> None:
    real = archival.plan.lineage.verdict

    def verdict(history: EpochHistory, acting_epoch: int, head: Head) -> Verdict:
        at = archival.plan.lineage.branches_at(history, head.entries)
        newest = archival.plan.lineage.newest_epoch(head.entries)
        if at is not None and newest > acting_epoch:
            return Behind("an older epoch")
        return real(history, acting_epoch, replace(head, leader_epoch=-1))

    patch_in(stack, archival.plan.step_plan, "verdict", verdict)


@mutant("a log may supersede an archive that it shares nothing with", theme="disks")
def begin_anew_unasked(stack: ExitStack) -> None:
    def supersede(log: LocalLog, head: Head, at: int, leader_epoch: int, policy: Policy) -> CutEntries:
        return CutEntries(at, leader_epoch)

    for module in (archival.partition.archiver, archival.plan.step_plan):
        patch_in(stack, module, "supersede", supersede)


@mutant("the refusal to begin again is not checked with the head as it is now", theme="disks", in_race=True)
def stop_on_an_old_head(stack: ExitStack) -> None:
    def stop(self: PartitionArchiver, step: Stop, log: LocalLog) -> Outcome:
        raise step.error

    patch_in(stack, PartitionArchiver, "_stop", stop)


@mutant("a cut drops the dead branch from the head at once", theme="lineage", noted=64)
def forget_superseded(stack: ExitStack) -> None:
    real = PartitionArchiver._commit

    def commit(self: PartitionArchiver, after: Head, *args: Any, **kwargs: Any) -> Head:
        return real(self, replace(after, superseded=()), *args, **kwargs)

    patch_in(stack, PartitionArchiver, "_commit", commit)


@mutant("what an unclean election makes count again is not archived again", theme="branches", noted=10)
def displaced_stays_so(stack: ExitStack) -> None:
    patch_in(stack, archival.plan.replacement, "may_lack", lambda *_: ())


# Planning


@mutant("plans up to the log's end instead of the high watermark")
def archive_above_hw(stack: ExitStack) -> None:
    real = archival.plan.step_plan.next_steps

    def next_steps(log: LocalLog, head: Head | None, **kwargs: Any) -> Iterator[Step]:
        return real(dataclass_replace(log, high_watermark=1 << 40), head, **kwargs)

    patch_in(stack, archival.partition.archiver, "next_steps", next_steps)


@mutant("a gap may, but need not, be replaced by what the log holds", theme="gaps", noted=19)
def gap_not_refilled(stack: ExitStack) -> None:
    patch_in(stack, archival.plan.step_plan, "_refills", lambda *_: iter(()))


@mutant("a listing is taken for atomic: no second look", theme="lineage", in_race=True)
def one_look(stack: ExitStack) -> None:
    patch_in(stack, PartitionSource, "look_again", lambda self, log, *_, **__: log)


@mutant("what is archived after a filled gap keeps what it recorded of transactions before", theme="gaps", rare=True, noted=1147)
def refill_keeps_followers(stack: ExitStack) -> None:
    patch_in(stack, Branches, "reindex", lambda _, entries, following, fence: Division(following, EntryTree()))


@mutant("transactions open at the end of an entry are forgotten in the next")
def forget_open_transactions(stack: ExitStack) -> None:
    patch_in(stack, ArchivedEntries, "open_after", lambda *_: ())


@mutant("acts under a leader epoch that its log has not reached", theme="lineage", in_race=True)
def acts_beyond_its_log(stack: ExitStack) -> None:
    real = archival.plan.role.archiving_role

    def archiving_role(log: LocalLog) -> Any:
        led = log.leadership
        if led is not None and led.is_ours:
            return Acting(max(led.leader_epoch, -1 if log.epochs.newest is None else log.epochs.newest))
        return real(log)

    for module in (archival.partition.archiver, archival.partition.source, archival.plan.step_plan, archival.partition.release):
        patch_in(stack, module, "archiving_role", archiving_role)


@mutant("the log start comes from the checkpoint alone", theme="gaps", in_race=True)
def log_start_from_checkpoint(stack: ExitStack) -> None:
    patch_in(stack, LocalLog, "start_offset", property(lambda log: max(log.local_start, log.log_start)))


@mutant("a fallen high watermark is not noticed at the second look, and a new epoch claims nothing", theme="lineage", in_race=True)
def old_watermark_in_an_old_epoch(stack: ExitStack) -> None:
    """Either alone is not wrong. A watermark falls when a log is truncated for a newer epoch, and of a look the checkpoint is read
    first: then its epoch history is the newer one. Nothing is archived under that before a claim has put it into the head, in a step
    of its own, and the step after that takes a look of its own. Comparing watermarks is the second lock on this door."""
    real_look, real_steps = PartitionSource.look_again, archival.plan.step_plan.next_steps

    def look_again(self: PartitionSource, log: LocalLog, *rest: Any, **how: Any) -> Any:
        return real_look(self, dataclass_replace(log, high_watermark=0), *rest, **how)

    def next_steps(log: LocalLog, head: Head | None, **kwargs: Any) -> Iterator[Step]:
        acting = archival.plan.role.archiving_role(log)
        if head and isinstance(acting, Acting):
            head = replace(head, leader_epoch=max(head.leader_epoch, acting.leader_epoch))
        return real_steps(log, head, **kwargs)

    patch_in(stack, PartitionSource, "look_again", look_again)
    patch_in(stack, archival.partition.archiver, "next_steps", next_steps)


@mutant("inodes of segments are not compared at the second look", theme="lineage", in_race=True)
def inodes_not_compared(stack: ExitStack) -> None:
    patch_in(stack, archival.partition.source, "_files_from", lambda *_: {})


@mutant("compaction may have gone past the archive", theme="keys", noted=2)
def past_the_archive(stack: ExitStack) -> None:
    patch_in(stack, archival.partition.looks, "overtaken", lambda *_, **__: "")


@mutant("a gap in a log is compaction's, whatever the topic's policy", theme="damage")
def holes_are_compactions(stack: ExitStack) -> None:
    patch_in(stack, LocalLog, "topic_policy_proves_compaction", property(lambda log: True))


@mutant("a tail that was first seen before the clock was set back waits without end", theme="even", noted=15)
def tails_trust_the_clock(stack: ExitStack) -> None:
    def age_ms(self: Tails, partition: PartitionId, next_offset: int) -> int:
        key, now = archival.partition.tails._key(partition), self._clock.now_ms()
        tail = self._tails.get(key)
        if tail is None or tail.next_offset != next_offset:
            self._tails[key] = tail = archival.partition.tails._Tail(next_offset, now)
        return now - tail.since_ms

    patch_in(stack, Tails, "age_ms", age_ms)


@mutant("two tasks of one agent work on a partition at the same time", theme="pairs", noted=12)
def no_lock(stack: ExitStack) -> None:
    real = PartitionArchiver.__init__

    def init(self: PartitionArchiver, *args: Any, **how: Any) -> None:
        real(self, *args, **how)
        self.lock = nullcontext()  # type: ignore[assignment]

    patch_in(stack, PartitionArchiver, "__init__", init)
