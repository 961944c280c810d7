"""Mistakes planted in the real code. Each leaves out a rule of design §4, or misreads it; the simulation must notice.

Most are those of the protocol's reference model, under its names. What goes wrong with pages takes a page that is
collected or replaced at one moment: most of that is led to in `test_races`.

Two rules have no mistake here, since others imply them:

* Release takes the archiver's lock. But another agent's archiver, which shares no lock with it, may commit at any point of a release
  too, and everything else in `release` is there so that this does no harm. The lock spares the two of one agent each other's retries.
* A sealed file must have the size and time of the look when it is opened (`check_unchanged`). Whoever changes it otherwise is found
  later: a truncation leaves another epoch history and a compaction another inode, which the second look compares after the scan; what
  changes after that differs from the digest of the scan when it is sent; and what no rule explains fails its checksums. The
  comparison saves the scan of a file that is known to be another one.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from functools import partial
from typing import Any
from unittest.mock import patch

import msgspec
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
import headwater_core.layouts.segment
import headwater_core.objectstore.confirmed_put
import manifests.page_store
import manifests.repository
import recovery.planner
import recovery.revision
import recovery.runs
from archival.broker.broker_release import BrokerReleaser
from archival.collection.collector import Collector
from archival.collection.orphans import listed_uids, packed, stored_objects
from archival.collection.sightings import Seen, Sightings
from archival.known_pauses import KnownPauses
from archival.partition.announcer import Announcer
from archival.partition.archiver import Outcome, PartitionArchiver
from archival.partition.branches import Branches, Division
from archival.partition.entry_reader import ArchivedEntries
from archival.partition.held_head import HeldHead
from archival.partition.release import Releaser
from archival.partition.source import PartitionSource
from archival.partition.tails import Tails
from archival.partition.uploads import NewUpload, Uploads
from archival.plan.lineage import Behind, CutAt, Ok, Verdict
from archival.plan.policy import Policy
from archival.plan.role import Acting, Standby
from archival.plan.steps import CutEntries, Replace, Step, Stop
from headwater_core.epochs import EpochHistory
from headwater_core.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    Fenced,
    HeadwaterError,
    ManifestChanged,
    NotFound,
    TransientError,
    UnknownOutcome,
)
from headwater_core.objectstore.confirmed_put import put_confirmed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import NewObject
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.run_scan import RunScan, scan_run
from headwater_core.segments.runindex import encode_index
from hydration.answers import AbortedFrom
from hydration.archive.archive_transactions import Carried
from hydration.archive.archived_runs import ArchivedRuns, missing
from hydration.archive.manifest_view import HeldEntries, ManifestView
from hydration.local.epoch_check import EpochCheck
from hydration.partition_transactions import PartitionTransactions
from hydration.resumption import Resumable
from hydration.scope import Span, Tier
from manifests import keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree, SupersededEntries
from manifests.head import Head, decode_head, encode_head
from manifests.page import Item, PageRef
from manifests.page_store import PageStore
from manifests.pause_list import PauseList
from manifests.repository import CommitLost, ManifestRepository, Versioned
from manifests.topic import Current
from recovery.placement import Placement
from tests.simulation.requests import SimulatedConnection

Plant = Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake, and the theme of the seeds that find it.

    rare     it takes hundreds of them
    in_race  it takes more than that: `test_races` leads to it
    """

    name: str
    what: str
    theme: str | None
    rare: bool
    in_race: bool
    plant: Plant

    @property
    def seeds(self) -> int:
        """Within so many it must be caught; a change anywhere shuffles what seeds do, so the limit is generous."""
        return 5000 if self.rare else 500


MUTANTS: dict[str, Mutant] = {}


def mutant(what: str, *, theme: str | None = None, rare: bool = False, in_race: bool = False) -> Callable[[Plant], Plant]:
    def listed(plant: Plant) -> Plant:
        MUTANTS[plant.__name__] = Mutant(plant.__name__, what, theme, rare, in_race, plant)
        return plant

    return listed


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    with ExitStack() as stack:
        if name:
            MUTANTS[name].plant(stack)
        yield


def _patch(stack: ExitStack, where: Any, name: str, value: Any) -> None:
    stack.enter_context(patch.object(where, name, value))


# Lineage


@mutant("a run that lies on the history proves the entries before it", theme="gaps", in_race=True)
def proven_by_the_next_entry(stack: ExitStack) -> None:
    real = EntryTree.spans

    def spans(entries: EntryTree) -> Any:
        found = real(entries)
        return [span._replace(ends_entry=span is found[-1]) for span in found]

    _patch(stack, EntryTree, "spans", spans)


@mutant("a cut takes with it what is proven after the dead run", theme="gaps", in_race=True)
def cut_takes_all(stack: ExitStack) -> None:
    _patch(stack, archival.plan.step_plan, "resumes_at", lambda *_: None)


@mutant("a stale broker's log is taken for the lineage")
def no_behind(stack: ExitStack) -> None:
    real = archival.plan.lineage.verdict

    def verdict(history: EpochHistory, acting_epoch: int, head: Head) -> Verdict:
        found = real(history, acting_epoch, head)
        if isinstance(found, Behind):
            at = archival.plan.lineage.branches_at(history, head.entries)
            return Ok() if at is None else CutAt(at)
        return found

    _patch(stack, archival.plan.step_plan, "verdict", verdict)


@mutant("dead branches are never cut", theme="lineage")
def no_cut(stack: ExitStack) -> None:
    real = archival.plan.lineage.verdict

    def verdict(history: EpochHistory, acting_epoch: int, head: Head) -> Verdict:
        found = real(history, acting_epoch, head)
        return Ok() if isinstance(found, CutAt) else found

    _patch(stack, archival.plan.step_plan, "verdict", verdict)
    for module in (archival.partition.branches, archival.partition.source):
        _patch(stack, module, "branches_at", lambda *_: None)


@mutant("a history without the head's newest epoch is behind, even when it has a newer one", theme="lineage")
def as_designed_behind(stack: ExitStack) -> None:
    real = archival.plan.lineage.verdict

    def verdict(history: EpochHistory, acting_epoch: int, head: Head) -> Verdict:
        newest = archival.plan.lineage.newest_epoch(head.entries)
        if newest >= 0 and all(epoch != newest for epoch, _ in history.starts):
            return Behind("lacks the newest archived epoch")
        return real(history, acting_epoch, head)

    _patch(stack, archival.plan.step_plan, "verdict", verdict)


@mutant("nothing in the head recalls a newer epoch already followed")
def as_designed_claim(stack: ExitStack) -> None:
    real = archival.plan.lineage.verdict

    def verdict(history: EpochHistory, acting_epoch: int, head: Head) -> Verdict:
        at = archival.plan.lineage.branches_at(history, head.entries)
        newest = archival.plan.lineage.newest_epoch(head.entries)
        if at is not None and newest > acting_epoch:
            return Behind("an older epoch")
        return real(history, acting_epoch, replace(head, leader_epoch=-1))

    _patch(stack, archival.plan.step_plan, "verdict", verdict)


@mutant("a log may supersede an archive that it shares nothing with", theme="disks")
def begin_anew_unasked(stack: ExitStack) -> None:
    def supersede(log: LocalLog, head: Head, at: int, leader_epoch: int, policy: Policy) -> CutEntries:
        return CutEntries(at, leader_epoch)

    for module in (archival.partition.archiver, archival.plan.step_plan):
        _patch(stack, module, "supersede", supersede)


@mutant("the refusal to begin again is not checked with the head as it is now", theme="disks", in_race=True)
def stop_on_an_old_head(stack: ExitStack) -> None:
    def stop(self: PartitionArchiver, step: Stop, log: LocalLog) -> Outcome:
        raise step.error

    _patch(stack, PartitionArchiver, "_stop", stop)


@mutant("a cut drops the dead branch from the head at once", theme="lineage")
def forget_superseded(stack: ExitStack) -> None:
    real = PartitionArchiver._commit

    def commit(self: PartitionArchiver, after: Head, *args: Any, **kwargs: Any) -> Head:
        return real(self, replace(after, superseded=()), *args, **kwargs)

    _patch(stack, PartitionArchiver, "_commit", commit)


@mutant("what an unclean election makes count again is not archived again", theme="branches")
def displaced_stays_so(stack: ExitStack) -> None:
    _patch(stack, archival.plan.replacement, "may_lack", lambda *_: ())


# Planning


@mutant("plans up to the log's end instead of the high watermark")
def archive_above_hw(stack: ExitStack) -> None:
    real = archival.plan.step_plan.next_steps

    def next_steps(log: LocalLog, head: Head | None, **kwargs: Any) -> Iterator[Step]:
        return real(dataclass_replace(log, high_watermark=1 << 40), head, **kwargs)

    _patch(stack, archival.partition.archiver, "next_steps", next_steps)


@mutant("a gap may, but need not, be replaced by what the log holds", theme="gaps")
def gap_not_refilled(stack: ExitStack) -> None:
    _patch(stack, archival.plan.step_plan, "_refills", lambda *_: iter(()))


@mutant("a listing is taken for atomic: no second look", theme="lineage", in_race=True)
def one_look(stack: ExitStack) -> None:
    _patch(stack, PartitionSource, "look_again", lambda self, log, *_, **__: log)


@mutant("what is archived after a filled gap keeps what it recorded of transactions before", theme="gaps", rare=True)
def refill_keeps_followers(stack: ExitStack) -> None:
    _patch(stack, Branches, "reindex", lambda _, entries, following, fence: Division(following, EntryTree()))


@mutant("transactions open at the end of an entry are forgotten in the next")
def forget_open_transactions(stack: ExitStack) -> None:
    _patch(stack, ArchivedEntries, "open_after", lambda *_: ())


@mutant("acts under a leader epoch that its log has not reached", theme="lineage", in_race=True)
def acts_beyond_its_log(stack: ExitStack) -> None:
    real = archival.plan.role.archiving_role

    def archiving_role(log: LocalLog) -> Any:
        led = log.leadership
        if led is not None and led.is_ours:
            return Acting(max(led.leader_epoch, -1 if log.epochs.newest is None else log.epochs.newest))
        return real(log)

    for module in (archival.partition.archiver, archival.partition.source, archival.plan.step_plan, archival.partition.release):
        _patch(stack, module, "archiving_role", archiving_role)


@mutant("the log start comes from the checkpoint alone", theme="gaps", in_race=True)
def log_start_from_checkpoint(stack: ExitStack) -> None:
    _patch(stack, LocalLog, "start_offset", property(lambda log: max(log.local_start, log.log_start)))


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

    _patch(stack, PartitionSource, "look_again", look_again)
    _patch(stack, archival.partition.archiver, "next_steps", next_steps)


@mutant("inodes of segments are not compared at the second look", theme="lineage", in_race=True)
def inodes_not_compared(stack: ExitStack) -> None:
    _patch(stack, archival.partition.source, "_files_from", lambda *_: {})


@mutant("compaction may have gone past the archive", theme="keys")
def past_the_archive(stack: ExitStack) -> None:
    _patch(stack, archival.partition.looks, "overtaken", lambda *_, **__: "")


@mutant("a gap in a log is compaction's, whatever the topic's policy", theme="damage")
def holes_are_compactions(stack: ExitStack) -> None:
    _patch(stack, LocalLog, "topic_policy_proves_compaction", property(lambda log: True))


@mutant("a tail that was first seen before the clock was set back waits without end")
def tails_trust_the_clock(stack: ExitStack) -> None:
    def age_ms(self: Tails, partition: PartitionId, next_offset: int) -> int:
        key, now = archival.partition.tails._key(partition), self._clock.now_ms()
        tail = self._tails.get(key)
        if tail is None or tail.next_offset != next_offset:
            self._tails[key] = tail = archival.partition.tails._Tail(next_offset, now)
        return now - tail.since_ms

    _patch(stack, Tails, "age_ms", age_ms)


@mutant("two tasks of one agent work on a partition at the same time", theme="pairs")
def no_lock(stack: ExitStack) -> None:
    real = PartitionArchiver.__init__

    def init(self: PartitionArchiver, *args: Any, **how: Any) -> None:
        real(self, *args, **how)
        self.lock = nullcontext()  # type: ignore[assignment]

    _patch(stack, PartitionArchiver, "__init__", init)


# Pages


@mutant("a page that was confirmed for an earlier claim is used again", theme="pages")
def page_of_an_earlier_fence(stack: ExitStack) -> None:
    real = PageStore.write
    confirmed: dict[tuple[Any, ...], PageRef] = {}

    def write(self: PageStore, partition: PartitionId, fence: int, level: int, items: Sequence[Item]) -> PageRef:
        content = (id(self), partition, level, tuple(each.uid for each in items))
        return confirmed.setdefault(content, real(self, partition, fence, level, items))

    _patch(stack, PageStore, "write", write)


@mutant("a head names pages that the store did not confirm", theme="pages")
def page_unconfirmed(stack: ExitStack) -> None:
    def put(store: Any, key: str, data: Any, size_bytes: int, digest: str) -> None:
        with suppress(AlreadyExists, UnknownOutcome):
            store.put(key, data, size_bytes=size_bytes)

    _patch(stack, manifests.page_store, "put_confirmed", put)


@mutant("a head is committed before the pages that it names", theme="pages")
def head_before_pages(stack: ExitStack) -> None:
    real, left = ManifestRepository._write, threading.local()

    def put(store: Any, key: str, data: Any, size_bytes: int, digest: str) -> None:
        left.puts = [*getattr(left, "puts", ()), (store, key, data, size_bytes, digest)]

    def write(self: ManifestRepository, key: str, document: bytes, expected_tag: str | None) -> str:
        tag = real(self, key, document, expected_tag)
        puts, left.puts = getattr(left, "puts", ()), []
        for each in puts:
            put_confirmed(*each)
        return tag

    _patch(stack, manifests.page_store, "put_confirmed", put)
    _patch(stack, ManifestRepository, "_write", write)


@mutant("a manifest of format 1 is carried over to pages that the store did not confirm", theme="pages", in_race=True)
def carried_over_unconfirmed(stack: ExitStack) -> None:
    real, now = ManifestRepository._packed, threading.local()

    def packed(self: ManifestRepository, head: Head) -> Head:
        now.carries = head.format[0] == 1
        return real(self, head)

    def put(store: Any, key: str, data: Any, size_bytes: int, digest: str) -> None:
        with suppress(AlreadyExists, UnknownOutcome) if now.carries else nullcontext():
            put_confirmed(store, key, data, size_bytes, digest) if not now.carries else store.put(key, data, size_bytes=size_bytes)

    _patch(stack, ManifestRepository, "_packed", packed)
    _patch(stack, manifests.page_store, "put_confirmed", put)


@mutant("an agent commits over what a newer version has written", theme="versions")
def newer_format_overwritten(stack: ExitStack) -> None:
    for module in (archival.partition.archiver, manifests.repository):
        _patch(stack, module, "check_writable", lambda _: None)


@mutant("a page that is not there is damage, whatever the head says by now", theme="pages", in_race=True)
def missing_page_is_damage(stack: ExitStack) -> None:
    _patch(stack, ManifestRepository, "_still_refers", lambda *_: True)


@mutant("an archiver keeps the head whose page was replaced", theme="pages", in_race=True)
def archiver_keeps_an_old_head(stack: ExitStack) -> None:
    real = HeldHead.doubt

    def doubt(self: HeldHead) -> None:
        if not isinstance(sys.exc_info()[1], ManifestChanged):
            real(self)

    _patch(stack, HeldHead, "doubt", doubt)


@mutant("a reader keeps the head whose page was replaced", theme="pages", in_race=True)
def reader_keeps_an_old_head(stack: ExitStack) -> None:
    def entry(self: ManifestView, look_up: Callable[[], Any]) -> Resumable[Entry | None]:
        found: Entry | PageRef | None = look_up()
        while isinstance(found, PageRef):
            yield self._run(found.uid, partial(self._load_page, found))
            found = look_up()
        return found

    _patch(stack, ManifestView, "_entry", entry)


@mutant("a reader keeps pages by where they begin, not by their names", theme="pages", in_race=True)
def pages_kept_by_their_place(stack: ExitStack) -> None:
    def name(ref: PageRef) -> str:
        return f"{ref.level} {ref.base_offset}"

    def add_page(self: HeldEntries, ref: PageRef, items: Sequence[Item]) -> None:
        self._pages[name(ref)] = tuple(items)

    def descend(self: HeldEntries, partition: PartitionId, choose: Callable[[Sequence[Item]], Item | None]) -> Item | None:
        item = choose(self._heads.get(partition, ()))
        while isinstance(item, PageRef) and (below := self._pages.get(name(item))) is not None:
            item = choose(below)
        return item

    _patch(stack, HeldEntries, "add_page", add_page)
    _patch(stack, HeldEntries, "_descend", descend)


@mutant("a dead branch is cut in the head alone, not in pages", theme="pages", in_race=True)
def cut_in_the_head_alone(stack: ExitStack) -> None:
    real = Branches.split

    def split(self: Branches, entries: EntryTree, at: int) -> Division:
        return real(self, entries, max(at, entries.newest[0].base_offset if entries.newest else entries.next_offset))

    _patch(stack, Branches, "split", split)


@mutant("what lives again is looked for in the head alone, not in pages", theme="pages", in_race=True)
def revived_from_the_head_alone(stack: ExitStack) -> None:
    def at_base(self: SupersededEntries, base_offset: int) -> list[Entry]:
        return [each for each in self.newest if each.base_offset == base_offset]

    _patch(stack, SupersededEntries, "at_base", at_base)


@mutant("what lives again stays listed as superseded when it is in a page", theme="pages", in_race=True)
def revived_stays_superseded(stack: ExitStack) -> None:
    real = SupersededEntries.without

    def without(self: SupersededEntries, entry: Entry) -> SupersededEntries:
        return real(self, entry) if entry in self.newest else self

    _patch(stack, SupersededEntries, "without", without)


@mutant("release reads the entries in the head alone, and takes what is in pages for sound", theme="pages", in_race=True)
def release_by_the_head_alone(stack: ExitStack) -> None:
    real = archival.partition.release.release_bound

    def release_bound(log: LocalLog, head: Head | None, writer: str) -> tuple[int, str]:
        if head and head.entries.references:
            assumed = [_assumed(ref) for ref in head.entries.references]
            head = replace(head, entries=(*assumed, *head.entries.newest))
        return real(log, head, writer)

    _patch(stack, archival.partition.release, "release_bound", release_bound)


def _assumed(ref: PageRef) -> Entry:
    digest = "crc64nvme:" + "0" * 16
    return Entry(base_offset=ref.base_offset, last_offset=ref.last_offset, size_bytes=1, live_bytes=1, digest=digest, fence=ref.fence)


# Upload


@mutant("the digest of what was sent is not compared", theme="lineage", in_race=True)
def digest_not_compared(stack: ExitStack) -> None:
    def put_all(store: Any, objects: Sequence[NewObject], digests: Sequence[str]) -> None:
        for each, digest in zip(objects, digests, strict=True):
            try:
                store.put_all([each])
            except (AlreadyExists, UnknownOutcome) as error:
                if not headwater_core.objectstore.confirmed_put._confirm(store, each.key, each.size_bytes, digest, error):
                    raise UnknownOutcome(each.key) from error

    _patch(stack, headwater_core.layouts.segment, "put_all_confirmed", put_all)


@mutant("commits without confirming an upload that got no answer")
def commit_unconfirmed(stack: ExitStack) -> None:
    _patch(stack, headwater_core.objectstore.confirmed_put, "_confirm", lambda *_: True)


@mutant("keys carry base, last and fence only, and a key that is taken is taken for one's own", theme="even", rare=True)
def key_without_uid(stack: ExitStack) -> None:
    real = Uploads.new_entry

    def new_entry(self: Uploads, base_offset: int, last_offset: int, scan: RunScan, fence: int) -> Entry:
        uid = f"{fence:032x}"
        self._new_uid = lambda: uid
        return real(self, base_offset, last_offset, scan, fence)

    def put_all(store: Any, objects: Sequence[NewObject], digests: Sequence[str]) -> None:
        for each in objects:
            with suppress(AlreadyExists):
                store.put_all([each])

    _patch(stack, Uploads, "new_entry", new_entry)
    _patch(stack, headwater_core.layouts.segment, "put_all_confirmed", put_all)


# Commit


@mutant("the head is put unconditionally")
def blind_put(stack: ExitStack) -> None:
    def write(self: ManifestRepository, key: str, document: bytes, expected_tag: str | None) -> str:
        while True:
            try:
                return self._store.create(key, document)
            except AlreadyExists:
                try:
                    return self._store.replace(key, document, expected_tag=self._store.get(key)[1])
                except (Conflict, NotFound):
                    continue

    _patch(stack, ManifestRepository, "_write", write)


@mutant("a refused commit is repeated on the new head without reading what is there")
def refused_not_read_back(stack: ExitStack) -> None:
    def commit(self: ManifestRepository, before: Versioned | None, after: Head) -> Versioned:
        for _ in range(4):
            head = replace(after, version=before.head.version + 1 if before else 1, commit_id=self._new_id())
            try:
                tag = self._write(keys.head(head.partition_id), encode_head(head), before.tag if before else None)
                return Versioned(head, tag, 0)
            except (AlreadyExists, Conflict, UnknownOutcome):
                current = self.load(head.partition_id)
                if current and (current.head.fence, current.head.writer) != (head.fence, head.writer):
                    raise Fenced("a newer claim") from None
                if current and before and current.tag != before.tag and len(after.entries) > len(before.head.entries):
                    last = current.head.last_offset
                    new = after.entries[-1]
                    moved = replace(new, base_offset=last + 1, last_offset=last + 1 + new.last_offset - new.base_offset)
                    after = replace(current.head, entries=(*current.head.entries, moved), last_offset=moved.last_offset)
                before = current
        raise TransientError("refused too often")

    _patch(stack, ManifestRepository, "commit", commit)


@mutant("an agent that lost to a higher fence continues with its own")
def ignore_fence(stack: ExitStack) -> None:
    real = ManifestRepository.commit

    def commit(self: ManifestRepository, before: Versioned | None, after: Head) -> Versioned:
        try:
            return real(self, before, after)
        except Fenced:
            current = self.load(after.partition_id)
            head = replace(after, version=(current.head.version if current else 0) + 1, commit_id=self._new_id())
            self._store.replace(keys.head(after.partition_id), encode_head(head), expected_tag=current.tag if current else "")
            raise

    _patch(stack, ManifestRepository, "commit", commit)


@mutant("a fenced agent claims again and commits what it uploaded before")
def reuse_upload(stack: ExitStack) -> None:
    real_upload, real_commit = Uploads.upload_all, PartitionArchiver._commit
    left: dict[int, Entry] = {}

    def upload_all(self: Uploads, uploads: Sequence[NewUpload]) -> list[Entry]:
        entry, kept = uploads[0].entry, left.get(id(self))
        if kept and (kept.base_offset, kept.last_offset, kept.digest) == (entry.base_offset, entry.last_offset, entry.digest):
            return [kept, *real_upload(self, uploads[1:])]
        return real_upload(self, uploads)

    def commit(self: PartitionArchiver, after: Head, *args: Any, **kwargs: Any) -> Head:
        if after.entries and not kwargs.get("claims"):
            left[id(self._uploads)] = after.entries[-1]
        return real_commit(self, after, *args, **kwargs)

    _patch(stack, Uploads, "upload_all", upload_all)
    _patch(stack, PartitionArchiver, "_commit", commit)


@mutant("the loser of a commit deletes its object, having looked at the head only by version", theme="gaps")
def loser_deletes(stack: ExitStack) -> None:
    real = PartitionArchiver._commit

    def commit(self: PartitionArchiver, after: Head, *args: Any, **kwargs: Any) -> Head:
        try:
            return real(self, after, *args, **kwargs)
        except (CommitLost, Fenced, UnknownOutcome):
            if after.entries and after.entries[-1].fence == after.fence:
                self._held._repository.store.delete(after.entries[-1].key)
            raise

    _patch(stack, PartitionArchiver, "_commit", commit)


@mutant("the fence is the leader epoch")
def fence_from_epoch(stack: ExitStack) -> None:
    real = PartitionArchiver._commit

    def commit(self: PartitionArchiver, after: Head, *args: Any, **kwargs: Any) -> Head:
        if kwargs.get("claims"):
            held = self.head
            after = replace(after, fence=max(after.leader_epoch, held.fence if held else 0))
        return real(self, after, *args, **kwargs)

    _patch(stack, PartitionArchiver, "_commit", commit)
    _patch(stack, ManifestRepository, "_check_succession", staticmethod(lambda *_: None))
    _patch(stack, manifests.repository, "_is_fenced", lambda mine, theirs: theirs.fence > mine.fence)


@mutant("nothing is announced in the control log")
def never_announced(stack: ExitStack) -> None:
    _patch(stack, Announcer, "announce", lambda *_, **__: None)


# Release


@mutant("release compares offsets only", theme="lineage")
def release_no_lineage(stack: ExitStack) -> None:
    _patch(stack, archival.partition.release, "branches_at", lambda *_: None)
    _patch(stack, archival.partition.release, "_refusal", lambda log, head, writer, acting: "" if head.writer == writer else "another's")


@mutant("release ignores the in-sync set and what the head says of leader epochs", theme="lineage", rare=True)
def as_designed_release(stack: ExitStack) -> None:
    _patch(stack, archival.partition.release, "_refusal", lambda log, head, writer, acting: "" if head.writer == writer else "another's")


@mutant("release ignores the in-sync set", theme="release", in_race=True)
def release_without_in_sync_set(stack: ExitStack) -> None:
    real = archival.partition.release._refusal
    _patch(stack, archival.partition.release, "_refusal", lambda log, *rest: real(dataclass_replace(log, leadership=None), *rest))


@mutant("release ignores the leader epoch in the head", theme="release", in_race=True)
def release_without_stamp(stack: ExitStack) -> None:
    def refusal(log: LocalLog, head: Head, writer: str, acting: Any) -> str:
        lagging = log.leadership is not None and not log.leadership.all_in_sync
        return "refused" if head.writer != writer or lagging else ""

    _patch(stack, archival.partition.release, "_refusal", refusal)


@mutant("release looks once", theme="release", in_race=True)
def release_looks_once(stack: ExitStack) -> None:
    _patch(stack, Releaser, "_look_again", lambda *_: None)


@mutant("last_offset taken for the next offset and incremented")
def release_off_by_one(stack: ExitStack) -> None:
    real = archival.partition.release.release_bound

    def release_bound(log: LocalLog, head: Head | None, writer: str) -> tuple[int, str]:
        bound, reason = real(log, head, writer)
        later = [segment.base_offset for segment in log.segments if segment.base_offset > bound]
        return (later[0] if head and later and not _held_back(reason) else bound), reason

    _patch(stack, archival.partition.release, "release_bound", release_bound)


def _held_back(reason: str) -> bool:
    return reason != "the rest is not archived"


@mutant("a gap entry counts as covering, release crosses it", theme="gaps", rare=True)
def release_across_gap(stack: ExitStack) -> None:
    real = archival.partition.release.release_bound

    def release_bound(log: LocalLog, head: Head | None, writer: str) -> tuple[int, str]:
        if head:
            digested = tuple(replace(entry, gap=False, digest="covered") if entry.gap else entry for entry in head.entries)
            head = replace(head, entries=digested)
        return real(log, head, writer)

    _patch(stack, archival.partition.release, "release_bound", release_bound)


@mutant("release trusts last_offset of the control log")
def release_from_control(stack: ExitStack) -> None:
    def plan_from_control(self: Releaser, archiver: PartitionArchiver) -> Head | None:
        known = archiver._announcer._control.state().partition(archiver.partition)
        log = self._logs.look(archiver.partition.topic_partition)
        acting = archival.plan.role.archiving_role(log)
        if known is None or isinstance(acting, Standby):
            return None
        digest = "crc64nvme:" + "0" * 16
        first, last = known.start_offset, known.last_offset
        entry = Entry(base_offset=first, last_offset=max(first, last), size_bytes=1, live_bytes=1, digest=digest, fence=known.fence)
        return msgspec.structs.replace(
            _A_HEAD,
            writer=self._writer,
            fence=known.fence,
            leader_epoch=acting.leader_epoch,
            start_offset=first,
            last_offset=last,
            entries=(entry,) if first <= last else (),
        )

    _patch(stack, Releaser, "_load", plan_from_control)
    _patch(stack, archival.partition.release, "branches_at", lambda *_: None)


_A_HEAD = Head(
    cluster_id="c",
    topic="t",
    topic_id="A" * 22,
    partition=0,
    version=1,
    commit_id="known",
    fence=1,
    writer="w",
    start_offset=0,
    last_offset=-1,
)


# Requests to a broker: `test_deletions` leads to each


@mutant("a request to delete goes to whoever leads by then", theme="requests", in_race=True)
def request_routed(stack: ExitStack) -> None:
    def delete(self: BrokerReleaser, broker: Any, partition: PartitionId, end: int) -> None:
        if broker.topic_id(partition.topic) == partition.topic_id:
            broker.routed().delete_records(partition.topic_partition, end)

    _patch(stack, BrokerReleaser, "_delete", delete)


@mutant("what the name means is not asked again before a request to delete", theme="requests", in_race=True)
def request_by_name(stack: ExitStack) -> None:
    def delete(self: BrokerReleaser, broker: Any, partition: PartitionId, end: int) -> None:
        broker.asked("Metadata")
        broker.delete_records(partition.topic_partition, end)

    _patch(stack, BrokerReleaser, "_delete", delete)


@mutant("a broker is asked to delete though not every replica is in sync", theme="requests", in_race=True)
def request_without_in_sync_set(stack: ExitStack) -> None:
    release_without_in_sync_set(stack)


@mutant("who is in sync may be older than the high watermark", theme="requests", in_race=True)
def request_by_old_metadata(stack: ExitStack) -> None:
    def metadata_end(self: SimulatedConnection) -> int:
        self.asked("DescribeQuorum")
        return 0

    _patch(stack, SimulatedConnection, "metadata_end", metadata_end)


@mutant("a broker is asked to delete across a gap of the archive", theme="requests", in_race=True)
def request_across_gap(stack: ExitStack) -> None:
    release_across_gap(stack)


# Incarnations


@mutant("heads and objects are found by topic name")
def incarnations_mixed(stack: ExitStack) -> None:
    real_decode = decode_head

    def head_key(partition: PartitionId) -> str:
        return f"meta/{partition.topic}/{'A' * 22}/{partition.partition}/manifest.json"

    def decode(raw: bytes, partition: PartitionId) -> Head:
        first = dataclass_replace(partition, topic_id=msgspec.json.decode(raw)["topic_id"])
        return real_decode(raw, first)

    def look(self: PartitionSource) -> LocalLog:
        log = self._logs.look(self._partition.topic_partition)
        return dataclass_replace(log, partition=self._partition)

    _patch(stack, keys, "head", head_key)
    _patch(stack, manifests.repository, "decode_head", decode)
    _patch(stack, PartitionSource, "look", look)


@mutant("current.json always turns to the last writer", theme="incarnations")
def name_always_turns(stack: ExitStack) -> None:
    def turn(held: Current | None, seen: Any, *_: Any) -> Current | None:
        if held is not None and held.topic_id == seen.topic_id:
            return None
        version = 1 if held is None else held.version + 1
        return Current(cluster_id=seen.cluster_id, topic=seen.topic, topic_id=seen.topic_id, version=version)

    _patch(stack, manifests.repository, "turn_to", turn)


# Readers


@mutant("a reader of the local log takes its word on aborted transactions alone", theme="disks")
def aborted_by_the_local_log_alone(stack: ExitStack) -> None:
    real = PartitionTransactions.aborted

    def aborted(self: PartitionTransactions, served: Tier, view: Any, offsets: Span) -> Resumable[list[AbortedFrom]]:
        if served is not Tier.LOCAL:
            return (yield from real(self, served, view, offsets))
        found, _ = yield from self._aborted_locally(view, offsets.start, offsets)
        return sorted(
            {AbortedFrom(each.producer_id, each.first_offset) for each in found}, key=lambda each: (each.first_offset, each.producer_id)
        )

    _patch(stack, PartitionTransactions, "aborted", aborted)


@mutant("a head that cannot be read is taken for an empty archive", theme="gaps")
def no_head_is_an_empty_archive(stack: ExitStack) -> None:
    real = ManifestView.load

    def load(self: ManifestView) -> None:
        try:
            real(self)
        except HeadwaterError:
            self.update(None)

    _patch(stack, ManifestView, "load", load)


@mutant("batches of a local log are not compared with the leader epochs of the look")
def epochs_of_batches_ignored(stack: ExitStack) -> None:
    _patch(stack, EpochCheck, "check", lambda *_: None)


@mutant("after a gap the archive's word on transactions is taken", theme="gaps")
def nothing_carried_over_gaps(stack: ExitStack) -> None:
    def carried(self: PartitionTransactions, view: Any) -> Resumable[Carried]:
        yield from ()
        return Carried(())

    _patch(stack, PartitionTransactions, "_carried", carried)


@mutant("a reader takes what is gone for damage, whatever the head says by now", theme="recovered")
def reader_calls_it_damage(stack: ExitStack) -> None:
    def gone(self: ArchivedRuns, entry: Entry, error: NotFound) -> Resumable[CorruptData]:
        yield from ()
        return missing(entry, error)

    _patch(stack, ArchivedRuns, "_gone", gone)


# Merges


@mutant("neighbours are merged across a gap", theme="merged branches")
def merge_across_a_gap(stack: ExitStack) -> None:
    def takes(group: Any, entry: Entry, layout: str) -> bool:
        return not entry.gap and bool(entry.epochs) and group.size_bytes + entry.live_bytes <= group.target_bytes

    real = EntryTree.within
    _patch(stack, archival.plan.merge_plan._Group, "takes", takes)
    _patch(stack, archival.partition.archiver, "with_merged", lambda entries, group, merged: _with_merged(entries, merged))

    def without_gaps(entries: EntryTree, first: int, end: int, *how: Any) -> Iterator[Entry]:
        return (entry for entry in real(entries, first, end, *how) if not entry.gap)

    def plan(head: Head, *args: Any, **how: Any) -> Any:
        with patch.object(EntryTree, "within", without_gaps):
            return archival.plan.merge_plan.plan_merge(head, *args, **how)

    _patch(stack, archival.partition.archiver, "plan_merge", plan)


def _with_merged(entries: EntryTree, merged: Entry) -> EntryTree:
    before, rest = entries.split_at(merged.base_offset)
    return before.followed_by(merged) + rest.split_at(merged.next_offset)[1]


@mutant("a merged entry does not know what was open before it", theme="merges")
def merge_forgets_transactions(stack: ExitStack) -> None:
    _patch(stack, archival.partition.merger, "scan_run", lambda file, **how: scan_run(file, **(how | {"open_before": ()})))
    _patch(stack, archival.partition.merger, "_is_sum", lambda *_: True)


@mutant("a merge is committed before its object is confirmed", theme="merges")
def merge_unconfirmed(stack: ExitStack) -> None:
    real = archival.partition.merger.Merger.merge

    def merge(merger: Any, *args: Any) -> Any:
        upload = merger._uploads.upload

        def hopeful(entry: Entry, source: Any, scan: RunScan) -> Entry:
            with suppress(TransientError):
                return upload(entry, source, scan)  # type: ignore[no-any-return]
            index = encode_index(scan.index)
            return replace(entry, index_bytes=len(index), index_digest=digest_of(index))

        with patch.object(merger._uploads, "upload", hopeful):
            return real(merger, *args)

    _patch(stack, archival.partition.merger.Merger, "merge", merge)


@mutant("a merge believes the local log without comparing digests", theme="merged keys")
def merge_of_other_bytes(stack: ExitStack) -> None:
    real = archival.partition.merger.Merger._copy_local

    def copied(merger: Any, entry: Entry, *args: Any) -> str:
        return entry.digest if real(merger, entry, *args) else ""

    _patch(stack, archival.partition.merger.Merger, "_copy_local", copied)
    _patch(stack, archival.partition.merger, "_is_sum", lambda *_: True)


@mutant("what compaction went past is archived again before its cleaner has returned", theme="forgotten")
def replaced_for_nothing(stack: ExitStack) -> None:
    _patch(stack, archival.plan.replacement, "clean_below", lambda log: 2**62)


@mutant("only what is new is archived again where compaction went past the archive", theme="keys")
def replaced_in_part(stack: ExitStack) -> None:
    def plan(log: LocalLog, head: Head, first: int, overtaken: Any) -> Any:
        last = head.entries[-1].base_offset if head.entries else head.start_offset
        return Replace(last, "") if overtaken(first) and last > head.start_offset else None

    _patch(stack, archival.plan.step_plan, "plan_overtaken", plan)


@mutant("what only the archive holds is replaced to save space", theme="shrinks")
def saved_without_the_oldest(stack: ExitStack) -> None:
    real = archival.plan.replacement.plan_smaller

    def plan(log: LocalLog, head: Head, *of: Any) -> Replace | None:
        found = real(log, replace(head, start_offset=min(max(head.start_offset, log.start_offset), head.next_offset)), *of)
        return found and Replace(head.start_offset, found.reason)

    _patch(stack, archival.plan.step_plan, "plan_smaller", plan)


@mutant("space is to be saved where there is none", theme="shrinks")
def saved_without_end(stack: ExitStack) -> None:
    _patch(stack, archival.plan.replacement, "_saves", lambda *_: True)


# Collection and retention


@mutant("gc deletes what carries the current fence, or a later one, too", theme="trims")
def gc_any_fence(stack: ExitStack) -> None:
    def of_no_fence(*of: Any) -> Any:
        return [dataclass_replace(each, fence=-1) for each in stored_objects(*of)]

    _patch(stack, archival.collection.collector, "stored_objects", of_no_fence)


@mutant("gc deletes what it finds unreferenced for the first time", theme="trims")
def no_lease(stack: ExitStack) -> None:
    real = Sightings.see

    def see(sightings: Sightings, partition: PartitionId, seen: Seen, names: Any) -> Any:
        return dict.fromkeys(real(sightings, partition, seen, names), 0) if seen is Seen.ORPHAN else real(sightings, partition, seen, names)

    _patch(stack, Sightings, "see", see)


@mutant("gc spares what the head lists itself", theme="pages")
def gc_reads_head_only(stack: ExitStack) -> None:
    def listed(head: Head) -> set[bytes]:
        return {packed(item.uid) for bag in (head.entries, head.superseded) for item in bag.items}

    _patch(stack, archival.collection.collector, "listed_uids", listed)


@mutant("gc spares what is live", theme="collected")
def gc_reads_live_only(stack: ExitStack) -> None:
    _patch(stack, archival.collection.collector, "listed_uids", lambda head: listed_uids(replace(head, superseded=())))


@mutant("the archive's retention takes the newest run too", theme="trims")
def trim_everything(stack: ExitStack) -> None:
    _patch(stack, archival.plan.trim, "_newest_run", lambda entries: 2**62)


@mutant("what dead branches have left is forgotten at once", theme="collected")
def superseded_forgotten(stack: ExitStack) -> None:
    def outlived(collector: Collector, head: Head, settings: Any, *, remember: bool) -> Any:
        return {archival.collection.collector._name(entry) for entry in head.superseded}

    _patch(stack, Collector, "_outlived", outlived)


# Pauses


@mutant("an agent that has not read what is paused takes it for nothing", theme="pauses")
def pauses_unknown_are_none(plants: ExitStack) -> None:
    def now(self: KnownPauses) -> PauseList:
        return self._known or PauseList()

    plants.enter_context(patch.object(KnownPauses, "now", now))


@mutant("a pause holds for the agent alone that has written it", theme="pauses")
def pauses_are_not_heeded(plants: ExitStack) -> None:
    plants.enter_context(patch.object(KnownPauses, "applied", lambda self, place, policy: policy))


# Recoveries


@mutant("a recovery takes what is gone for damage, whatever the head says by now", theme="recovered")
def recovery_calls_it_damage(stack: ExitStack) -> None:
    _patch(stack, recovery.revision, "_planned_again", lambda *_: {})


@mutant("a recovery that plans again leaves in place what the plan before had put there", theme="recovered")
def recovery_leaves_what_is_outdated(stack: ExitStack) -> None:
    _patch(stack, Placement, "_remove_outdated", lambda *_: None)


@mutant("a recovery trusts a segment in place by its name", theme="recovered")
def recovery_trusts_a_name(stack: ExitStack) -> None:
    _patch(stack, Placement, "_remove_outdated", lambda *_: None)
    _patch(stack, recovery.runs, "check_run", lambda file, *_: 0)


@mutant("a recovery leaves out what the store did not give in time", theme="pages")
def recovery_calls_silence_damage(stack: ExitStack) -> None:
    real = recovery.planner.plan_partition

    def plan_partition(*of: Any) -> Any:
        try:
            return real(*of)
        except TransientError as error:
            raise CorruptData("a page", 0, str(error)) from error

    _patch(stack, recovery.planner, "plan_partition", plan_partition)
