"""The archiver of one partition: claim, plan, verify, upload, commit, announce (design §4)."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import BinaryIO

import structlog
from msgspec.structs import replace

from archival import step_plan
from archival.announcer import Announcer
from archival.cleaner import clean_under, clean_with, displaced_by, is_clean, overtaken
from archival.entries import entries_before, in_order, part_of, place, rest_of, with_gap
from archival.entry_reader import ArchivedEntries
from archival.lineage import branches_at, ends_at, epoch_in
from archival.looks import CleanerLooks
from archival.source import FoundBatch, Logs, OpenSegment, check_unchanged, find_batch, local_errors, open_segment
from archival.step_plan import Claim, Cut, Gap, Idle, Policy, Replace, Revive, Stop, Upload, next_steps
from archival.tails import Tails
from archival.topics import TopicRecords
from headwater_core import milestones
from headwater_core.epochs import EpochHistory
from headwater_core.errors import (
    CorruptData,
    Fenced,
    HeadwaterError,
    NeedsReplacement,
    SourceChanged,
    SuspectedGap,
    UnknownOutcome,
    UnsupportedFormat,
)
from headwater_core.layouts import Offloader
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog, LocalSegment
from headwater_core.segments.run_scan import RunScan, scan_run
from headwater_core.segments.runindex import encode_index
from manifests import keys
from manifests.document import check_ours
from manifests.head import Entry, Head, check_room, fullness
from manifests.repository import CommitLost, ManifestRepository, Versioned

MILESTONES = (
    "archive.planned",
    "archive.claimed",
    "archive.scanned",
    "archive.data_put",
    "archive.index_put",
    "archive.uploaded",
    "archive.committed",
    "archive.announced",
)
"""Those on the way, in order."""

_FULLNESS_TOLD = 0.5  # of a manifest's room


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one step did.

    action  "idle", "claimed", "archived", "refilled", "gap", "cut", "revived", "replaced", "reread" (a run that is to replace
            what is live, with others), or "outrun" when another commit came first
    reason  why nothing was done, for people
    entry   what the step made live
    """

    action: str
    reason: str = ""
    entry: Entry | None = None

    @property
    def progressed(self) -> bool:
        return self.action != "idle"


@dataclass(frozen=True, slots=True)
class _RunEnd:
    """Where the last run ended, so that the next one of the same file need not be looked for from the file's start."""

    path: Path
    inode: int
    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class _Draft:
    """What is to replace `of`, from `first` on, as long as the log's history is the same. Nothing lists its runs yet.

    dead  what leaves the live list when it is committed
    """

    of: Head
    first: int
    epochs: EpochHistory
    head: Head
    dead: tuple[Entry, ...]


class PartitionArchiver:
    """Archives one partition. All that it must remember is in the bucket, so it may be dropped and made again at any time.

    `lock` is held for the length of a step; whoever trims the same log holds it too, so that the two exclude each other.
    """

    def __init__(
        self,
        partition: PartitionId,
        *,
        logs: Logs,
        store: ObjectStore,
        repository: ManifestRepository,
        offloader: Offloader,
        announcer: Announcer,
        topics: TopicRecords,
        tails: Tails,
        looks: CleanerLooks,
        writer: str,
        new_uid: Callable[[], str],
        open_segment: OpenSegment = open_segment,
    ) -> None:
        self.partition = partition
        self.lock = threading.Lock()
        self._logs, self._store, self._repository, self._offloader = logs, store, repository, offloader
        self._announcer, self._topics, self._tails, self._looks = announcer, topics, tails, looks
        self._writer, self._new_uid, self._open_segment = writer, new_uid, open_segment
        self._known = False  # is _held what we last saw in the bucket?
        self._held: Versioned | None = None
        self._archived = ArchivedEntries(store)
        self._ended: _RunEnd | None = None
        self._begun: Upload | None = None  # whose entry is among the confirmed ones, if it got there
        self._confirmed: list[tuple[Entry, Entry]] = []  # (what was wanted, what the store has) since the last commit
        self._sent: tuple[Entry, Entry] | None = None  # (what was wanted, how it was named) by an upload that failed
        self._draft: _Draft | None = None
        self._reported_irreplaceable: tuple[Entry, ...] = ()
        self._told_fullness = _FULLNESS_TOLD
        self._log = structlog.get_logger().bind(partition=str(partition), topic_id=partition.topic_id, writer=writer)

    @property
    def head(self) -> Head | None:
        """The head as last seen; None before the first step and while there is none."""
        return self._held.head if self._held else None

    def step(self, policy: Policy, log: LocalLog | None = None) -> Outcome:
        """Do the next thing, with at most one commit. Safe to repeat after any crash.

        log  a look at the partition's directory that the caller has just taken; without it one is taken here

        Raises Fenced when another writer has claimed the partition; SuspectedGap, CorruptData, UnrelatedLog, UnfinishedSwap,
        NeedsReplacement, NeedsUpgrade and ManifestFull when a person must look at it; and TransientError (SourceChanged and
        UnknownOutcome among them) when the same call may succeed later.
        """
        with self.lock, local_errors(self.partition):
            try:
                if log is None:
                    log = self._look()
                elif self._looks.is_due(log):
                    self._look()  # of that one nobody knows how long it has waited for the lock
                return self._with_fullness(self._step(policy, log))
            except CommitLost as error:
                if self._held and error.current is None:
                    raise self._head_is_gone(self._held.head.version) from error
                self._held = error.current
                return Outcome(action="outrun", reason=str(error))
            except (Fenced, UnknownOutcome):
                self._known = False
                raise

    def _with_fullness(self, outcome: Outcome) -> Outcome:
        """From half on people are told how full the manifest is, in the log at each further twentieth."""
        full = fullness(self._held.size_bytes) if self._held else 0.0
        if full < _FULLNESS_TOLD:
            return outcome
        if full >= self._told_fullness:
            self._told_fullness = full + 0.05
            self._log.warning("manifest_grew", percent=int(full * 100), size_bytes=self._held.size_bytes if self._held else 0)
        note = f"the manifest is {full:.0%} full"
        return dataclass_replace(outcome, reason=f"{outcome.reason}; {note}" if outcome.reason else note)

    def _step(self, policy: Policy, log: LocalLog) -> Outcome:
        if isinstance(acting := step_plan.archiving_role(log), Idle):
            return Outcome(action="idle", reason=acting.reason)
        if not self._known:
            self._held = self._repository.load(self.partition)
            self._known = True
        if self._held:
            self._announcer.announce(self._held.head)
            if self._held.head.writer == self._writer:
                self._topics.ensure(self.partition)
            self._report_irreplaceable(self._held.head, log)
        for step in next_steps(
            log,
            self.head,
            writer=self._writer,
            policy=policy,
            tail_age_ms=self._tail_age_ms(log),
            overtaken=lambda first: self._overtaken(self.head, first, log, policy),
        ):
            if isinstance(step, Idle):
                return Outcome(action="idle", reason=step.reason)
            milestones.reached("archive.planned")
            outcome = self._take(step, log, policy)
            if outcome:
                return outcome
        raise AssertionError("a plan ends with Idle")

    def _take(self, step: Stop | Claim | Cut | Replace | Revive | Gap | Upload, log: LocalLog, policy: Policy) -> Outcome | None:
        """Do it; None when it turns out to be without substance."""
        if self._held:
            check_ours(self._held.head.format, f"manifest of {self.partition}")  # before anything is uploaded
        if isinstance(step, Stop):
            return self._stop(step, log)
        if isinstance(step, Claim):
            return self._claim(step, log)
        assert self._held
        if isinstance(step, Cut):
            return self._cut(step, self._held.head, log)
        if isinstance(step, Replace):
            return self._replace(step, self._held.head, log, policy)
        if isinstance(step, Revive):
            return self._revive(step, self._held.head, log)
        if isinstance(step, Gap):
            return self._gap(step, self._held.head, log)
        return self._upload(step, self._held.head, log, policy)

    # Claim and commit

    def _claim(self, step: Claim, log: LocalLog) -> Outcome:
        held = self.head
        self._topics.ensure(self.partition, anew=held is None)
        self._check_still(log)
        if held is None:
            remembered = self._announcer.known_version(self.partition)
            if remembered or (not self._announcer.informed and self._has_objects()):
                self._held = self._repository.load(self.partition)  # another agent may have made it since we looked
                if self._held is None:
                    raise self._head_is_gone(remembered)
                return Outcome(action="outrun", reason=f"{self._held.head.writer} has made the first manifest")
            after = Head(
                cluster_id=self.partition.cluster_id,
                topic=self.partition.topic,
                topic_id=self.partition.topic_id,
                partition=self.partition.partition,
                version=1,
                commit_id="unset",
                fence=1,
                writer=self._writer,
                leader_epoch=step.leader_epoch,
                start_offset=step.start_offset,
                last_offset=step.start_offset - 1,
            )
        else:
            clean_to = clean_under(log.epochs, held)
            after = replace(held, fence=held.fence + 1, writer=self._writer, leader_epoch=step.leader_epoch, clean_to=clean_to)
        head = self._commit(after, "archive.claimed", claims=True)
        self._log.info("partition_claimed", fence=head.fence, leader_epoch=head.leader_epoch)
        if held is not None and held.writer != self._writer and _node_of(held.writer) == _node_of(self._writer):
            self._log.warning(
                "claim_taken_from_a_namesake",
                other=held.writer,
                reason="another data directory of a node of this name held the claim: it was lost or replaced, or two agents archive one "
                "log directory and take each other's claims; then stop one of them",
            )
        return Outcome(action="claimed")

    def _has_objects(self) -> bool:
        """Is anything there that only a manifest can have listed? The first claim comes before the first upload."""
        return next(iter(self._store.list(keys.data_prefix(self.partition))), None) is not None

    def _head_is_gone(self, version: int) -> CorruptData:
        """A manifest is never deleted. To begin anew would hide all that it listed."""
        was = f"version {version} was committed" if version else f"it listed the objects below {keys.data_prefix(self.partition)}"
        return CorruptData(
            keys.head(self.partition),
            0,
            f"{was} and is no longer in {self._store.url}: restore it, or mount the bucket again; to begin anew without what it listed, "
            "remove the partition's objects and the data directory's control folder",
        )

    def _reload(self) -> bool:
        """Read the head anew; is it another one now?"""
        held, self._held = self._held, self._repository.load(self.partition)
        if held and self._held is None:
            raise self._head_is_gone(held.head.version)
        return self._held != held

    def _commit(self, after: Head, reached: str = "archive.committed", *, claims: bool = False) -> Head:
        self._held = self._repository.commit(self._held, after)
        self._confirmed.clear()
        self._sent = None
        milestones.reached(reached)
        self._announcer.announce(self._held.head, claims=claims)
        milestones.reached("archive.announced")
        return self._held.head

    # Lineage

    def _stop(self, step: Stop, log: LocalLog) -> Outcome:
        """What was concluded from an outdated head fails at its commit. Here none follows, so the head is read anew."""
        if self._reload():
            return Outcome(action="outrun", reason="another commit came first")
        self._check_still(log)
        raise step.error

    def _cut(self, step: Cut, head: Head, log: LocalLog) -> Outcome:
        behind = tuple(entry for entry in head.entries if step.until is not None and entry.base_offset >= step.until)
        live, dead = self._split(head.entries[: len(head.entries) - len(behind)], step.at)
        next_offset = live[-1].next_offset if live else min(step.at, head.entries[0].base_offset, step_plan.log_start(log))
        if behind:
            live = list(with_gap(live, next_offset, behind[0].base_offset - 1))
            told, untold = self._tell_again(live, behind, head.fence)
            live += told
            dead += untold
        self._check_still(log)
        self._commit(
            replace(
                head,
                leader_epoch=step.leader_epoch,
                entries=tuple(live),
                superseded=in_order([*head.superseded, *(entry for entry in dead if not entry.gap)]),
                start_offset=min(head.start_offset, next_offset),
                last_offset=live[-1].last_offset if live else next_offset - 1,
                clean_to=min(head.clean_to, step.at),
            )
        )
        self._log.warning("branch_superseded", from_offset=step.at, leader_epoch=step.leader_epoch, entries=len(dead))
        return Outcome(action="cut", reason=f"offsets from {step.at} on are a dead branch")

    def _split(self, entries: Sequence[Entry], at: int) -> tuple[list[Entry], list[Entry]]:
        """What of `entries` lies below offset `at`, and the rest."""
        live: list[Entry] = []
        dead: list[Entry] = []
        for n, entry in enumerate(entries):
            if entry.next_offset <= at:
                live.append(entry)
            elif entry.base_offset >= at:
                dead.append(entry)
            elif entry.gap:
                live.append(replace(entry, last_offset=at - 1))
            else:
                scan = self._archived.scan(entry, at, self._archived.open_behind(entries[:n]))
                kept = part_of(entry, scan, at) if scan else None
                live += [kept] if kept else []
                dead.append(rest_of(entry, kept.next_offset if kept else entry.base_offset))
        return live, dead

    def _replace(self, step: Replace, head: Head, log: LocalLog, policy: Policy) -> Outcome:
        """Archive one more run of what replaces the live ones. Those stay live until all of it is there: never is less archived than
        before, and a deleted key does not come back for want of its tombstone. The runs are kept in memory until then."""
        draft = self._draft
        if draft is None or (draft.of, draft.first, draft.epochs) != (head, step.first, log.epochs):
            draft = self._draft = self._begin_draft(step, head, log)
        for upload in step_plan.rereads(log, draft.head, head):
            if reason := self._overtaken(draft.head, upload.read_from, log, policy):
                self._draft = None
                raise NeedsReplacement(reason)
            archived = self._archive(upload, draft.head, log, policy, replaces=True)
            if isinstance(archived, Outcome):
                return archived
            if archived:
                draft = self._draft = dataclass_replace(draft, head=archived[0])
                if draft.head.next_offset < head.next_offset:
                    return Outcome(action="reread", entry=archived[1])
                break
        stays = {(entry.uid, entry.base_offset) for entry in draft.head.entries}
        gone = [entry for entry in draft.dead if not entry.gap and (entry.uid, entry.base_offset) not in stays]
        listed = [entry for entry in head.superseded if (entry.uid, entry.base_offset) not in stays]
        self._check_still(log)
        self._commit(replace(draft.head, superseded=in_order([*listed, *gone])))
        self._draft = None
        self._log.warning("runs_replaced", from_offset=step.first, last_offset=head.last_offset, entries=len(gone))
        return Outcome(action="replaced", reason=f"offsets from {step.first} on are archived anew")

    def _begin_draft(self, step: Replace, head: Head, log: LocalLog) -> _Draft:
        assert self._held
        check_room(head, 2 * self._held.size_bytes)  # what is replaced stays listed
        first = self._batch_base(log, step.first) if step.first > head.start_offset else 0
        live, dead = self._split(head.entries, first)
        if live and live[-1].next_offset <= head.start_offset:
            live, dead = [], list(head.entries)
        last_offset = live[-1].last_offset if live else head.start_offset - 1
        return _Draft(head, step.first, log.epochs, replace(head, entries=tuple(live), last_offset=last_offset), tuple(dead))

    def _report_irreplaceable(self, head: Head, log: LocalLog) -> None:
        found = step_plan.irreplaceable(log, head)
        if found and found != self._reported_irreplaceable:
            self._log.error("records_irreplaceable", base_offset=found[0].base_offset, last_offset=found[-1].last_offset)
        self._reported_irreplaceable = found

    def _revive(self, step: Revive, head: Head, log: LocalLog) -> Outcome | None:
        """The same object goes on being listed as long as its index is still true. It is not when the run was archived
        behind a gap that has been filled since: then its bytes are archived once more, with what is known now."""
        entry, before = step.entry, head.entries
        if before and before[-1].uid == entry.uid:
            whole, before = replace(entry, base_offset=before[-1].base_offset), before[:-1]
        else:
            whole = entry
        scan = self._archived.scan(whole, step.up_to, self._archived.open_behind(before))
        if scan is None or scan.last_offset < entry.base_offset:
            return None
        live = replace(part_of(whole, scan, step.up_to), cleaned=False)  # what was live beside it then may not be now
        if branches_at(log.epochs, (*before, live)) is not None:
            return None
        live = self._true(live, whole, scan, head.fence)
        superseded = [each for each in head.superseded if each != entry]
        if live.last_offset < entry.last_offset:
            superseded.append(rest_of(entry, live.next_offset))
        self._check_still(log, live)
        clean_to = min(head.clean_to, live.base_offset)
        entries = (*before, live)
        self._commit(replace(head, entries=entries, superseded=in_order(superseded), last_offset=live.last_offset, clean_to=clean_to))
        self._log.info("branch_revived", base_offset=entry.base_offset, last_offset=live.last_offset)
        return Outcome(action="revived", entry=live)

    def _true(self, entry: Entry, whole: Entry, scan: RunScan, fence: int) -> Entry:
        """`entry`, the part of `whole` that was scanned, when its index is true; else the same bytes archived once more."""
        if self._archived.index_is_true(entry, scan):
            return entry
        again = self._made(entry.base_offset, entry.last_offset, scan, fence)
        again = replace(again, cleaned=entry.cleaned, displaced_by=entry.displaced_by)
        return self._offload(again, self._archived.open(whole), scan)

    def _tell_again(self, entries: Sequence[Entry], behind: Sequence[Entry], fence: int) -> tuple[tuple[Entry, ...], list[Entry]]:
        """What is live behind `entries`, with what is now known of transactions that are open at their end, and what of it was
        archived once more for that. A gap was filled, or a dead run made one, and what follows was archived without knowing; one
        commit tells all of it, so that it goes on being served."""
        told: list[Entry] = []
        for entry in behind:
            if entry.gap:
                break
            scan = self._archived.scan(entry, entry.next_offset, self._archived.open_behind([*entries, *told]))
            if scan is None:
                raise CorruptData(entry.key, 0, f"no batch below offset {entry.next_offset}")
            told.append(self._true(part_of(entry, scan, entry.next_offset), entry, scan, fence))
            if told[-1] == entry and not entry.is_cut:
                break  # it ends as it was thought to
        untold = [entry for entry, now in zip(behind, told, strict=False) if entry.uid != now.uid]
        return (*told, *behind[len(told) :]), untold

    # Uploads

    def _gap(self, step: Gap, head: Head, log: LocalLog) -> Outcome | None:
        """A batch that holds the log start also holds offsets below it; the gap ends before that batch."""
        last = self._batch_base(log, step.last + 1) - 1
        if last < step.first:
            return None
        entries = with_gap(head.entries, step.first, last)
        self._check_still(log)
        self._commit(replace(head, entries=entries, last_offset=last))
        self._log.error("gap_recorded", base_offset=step.first, last_offset=last)
        return Outcome(action="gap", entry=entries[-1])

    def _batch_base(self, log: LocalLog, offset: int) -> int:
        """Where the batch begins that holds `offset`; `offset` when none does."""
        holder = next((each for each in reversed(log.segments) if each.base_offset < offset), None)
        if holder is None:
            return offset
        with self._open_segment(holder) as file, self._unless_changed(log, holder):
            found = find_batch(holder, file, offset, 0, check_unchanged(holder, file))
        return min(offset, found[1]) if found else offset

    def _upload(self, step: Upload, head: Head, log: LocalLog, policy: Policy) -> Outcome | None:
        archived = self._archive(step, head, log, policy)
        if not isinstance(archived, tuple):
            return archived
        after, entry = archived
        self._commit(after)
        self._log.info("run_archived", base_offset=entry.base_offset, last_offset=entry.last_offset, size_bytes=entry.size_bytes)
        return Outcome(action="refilled" if step.refills else "archived", entry=entry)

    def _archive(
        self, step: Upload, head: Head, log: LocalLog, policy: Policy, *, replaces: bool = False
    ) -> tuple[Head, Entry] | Outcome | None:
        """`head` with the run that `step` means, confirmed by the store, and its entry; None when there is no whole batch for it.

        replaces  what is listed already may be it
        """
        assert self._held
        if self._announcer.known_version(self.partition) > head.version and self._reload():
            return Outcome(action="outrun", reason="the control log knows of a newer commit")
        check_room(head, self._held.size_bytes)
        step = self._as_before(step)
        with self._open_segment(step.segment) as file:
            size = check_unchanged(step.segment, file)
            with self._unless_changed(log, step.segment):
                scan = self._scan(file, step, log, size, head.entries)
                dead = scan is not None and self._straddles(step, scan, head)
            if scan is None:
                return None
            if dead:
                self._check_still(log, segment=step.segment)
                return self._take(step_plan.supersede(log, self._held.head, scan.base_offset, head.leader_epoch, policy), log, policy)
            entry = self._made(*_extent(step, scan, log, file, size), scan, head.fence)
            again = self._check_still(log, entry, step.segment)
            if self._overtaken(head, step.read_from, again, policy):
                raise SourceChanged(f"{self.partition}: compaction went past the archive while a run was read")
            clean_to = clean_with(head, log, again)
            entry = replace(entry, cleaned=is_clean(entry, clean_to), displaced_by=displaced_by(entry, scan, again))
            milestones.reached("archive.scanned")
            self._begun = step
            entry = (self._listed(entry, scan) if replaces else None) or self._offload(entry, file, scan)
        self._archived.ended(entry, scan.open_transactions)
        entries, behind = place(head.entries, entry, step.refills)
        told, untold = self._tell_again(entries, behind, head.fence)
        superseded = in_order([*head.superseded, *untold])
        entries += told
        self._archived.ended(entry, scan.open_transactions)
        self._ended = _RunEnd(step.segment.path, step.segment.generation.inode, scan.next_offset, scan.end_position)
        return replace(head, entries=entries, superseded=superseded, last_offset=entries[-1].last_offset, clean_to=clean_to), entry

    def _listed(self, entry: Entry, scan: RunScan) -> Entry | None:
        """`entry` as it is listed already, byte for byte; None when it is not."""
        for each in (*self.head.entries, *self.head.superseded) if self.head else ():
            if (each.base_offset, each.last_offset, each.live_bytes) != (entry.base_offset, entry.last_offset, scan.size_bytes):
                continue
            held = self._archived.scan(each, each.next_offset, ()) if each.is_cut else None
            if (held.digest if held else each.digest) == scan.digest and self._archived.index_is_true(each, scan):
                return replace(each, cleaned=entry.cleaned, displaced_by=entry.displaced_by)
        return None

    def _made(self, base_offset: int, last_offset: int, scan: RunScan, fence: int) -> Entry:
        """A new entry for what was scanned, under a new key; its object is not there yet."""
        uid = self._new_uid()
        key = keys.data(self.partition, base_offset, last_offset, fence, uid)
        return Entry(
            base_offset=base_offset,
            last_offset=last_offset,
            epochs=scan.epochs,
            first_timestamp_ms=scan.first_timestamp_ms,
            last_timestamp_ms=scan.last_timestamp_ms,
            records=scan.records,
            uid=uid,
            fence=fence,
            key=key,
            size_bytes=scan.size_bytes,
            live_bytes=scan.size_bytes,
            digest=scan.digest,
            index_key=keys.index(key),
            layout=self._offloader.name,
            open_from=scan.open_from,
            aborted=len(scan.aborted),
            aborted_from=scan.aborted_from,
            max_producer_id=scan.max_producer_id,
        )

    def _offload(self, entry: Entry, source: BinaryIO, scan: RunScan) -> Entry:
        """Upload it; the entry that comes back names only what the store has confirmed.

        What was uploaded for a commit that did not come about is named again, when the very same entry is wanted under the same
        fence: a bucket that refuses heads must not fill with copies. An upload that was cut short is tried again under its own
        name, where what has arrived is found and compared; unless other bytes may have been sent than were scanned.
        """
        wanted = _nameless(entry)
        for made, confirmed in self._confirmed:
            if made == wanted and confirmed.digest == scan.digest and confirmed.index_digest == digest_of(encode_index(scan.index)):
                return replace(confirmed, cleaned=entry.cleaned, displaced_by=entry.displaced_by)
        if self._sent and self._sent[0] == wanted:
            entry = replace(self._sent[1], cleaned=entry.cleaned, displaced_by=entry.displaced_by)
        self._sent = None
        try:
            offloaded = self._offloader.offload(self._store, entry.key, entry.index_key, source, scan)
        except SourceChanged:
            raise
        except HeadwaterError:
            self._sent = wanted, entry
            raise
        milestones.reached("archive.uploaded")
        confirmed = replace(
            entry,
            size_bytes=offloaded.size_bytes,
            live_bytes=offloaded.size_bytes,
            digest=offloaded.digest,
            index_bytes=offloaded.index_bytes,
            index_digest=offloaded.index_digest,
            context=offloaded.context,
        )
        self._confirmed.append((wanted, confirmed))
        return confirmed

    def _as_before(self, step: Upload) -> Upload:
        """`step`, ending where it did when what it led to was not committed: a tail may have grown since, and would be uploaded anew."""
        begun = self._begun
        if not (self._confirmed or self._sent) or begun is None or begun.segment.generation.inode != step.segment.generation.inode:
            return step
        same = dataclass_replace(begun, segment=step.segment, up_to=step.up_to, reach=step.reach) == step
        return dataclass_replace(begun, segment=step.segment) if same and begun.up_to <= step.up_to else step

    def _scan(self, file: BinaryIO, step: Upload, log: LocalLog, size: int, entries: tuple[Entry, ...]) -> RunScan | None:
        """Find the run in the file and verify it; None when there is no whole batch for it."""
        segment, where = step.segment, str(step.segment.path)
        proof = log.topic_policy_proves_compaction
        found = self._find_again(file, step, size) if not proof else None
        found = found or find_batch(segment, file, step.read_from, 0, size)
        if found is None:
            if segment.is_active or proof:
                return None
            raise SuspectedGap(f"{where} holds nothing at or past offset {step.read_from}, and nothing proves compaction")
        position, base_offset = found
        if not proof and base_offset > step.first:
            raise SuspectedGap(f"{where} goes from offset {step.first - 1} to {base_offset}, and nothing proves compaction")
        before = entries_before(entries, step.refills, min(step.first, base_offset))
        scan = scan_run(file, start=position, end=size, open_before=self._archived.open_behind(before), end_offset=step.up_to, where=where)
        if scan and not proof and scan.first_gap is not None:
            raise SuspectedGap(f"{where} lacks offset {scan.first_gap}, and nothing proves compaction")
        return scan

    def _straddles(self, step: Upload, scan: RunScan, head: Head) -> bool:
        """Does the run begin with a batch that reaches across the end of what is archived, in another leader epoch?

        A batch is never divided, so one log cannot do that. But the log's first batches may lie below the log start, where
        the epoch history is silent: then they are what shows that the archive ends in a dead branch.
        """
        if not head.entries or scan.base_offset >= (step.refills.base_offset if step.refills else step.first):
            return False
        if epoch_in(head.entries, scan.base_offset) != scan.epochs[0][0]:
            return True
        reason = f"the batch at offset {scan.base_offset} reaches across the end of the archive, in the same leader epoch"
        raise CorruptData(str(step.segment.path), scan.start_position, reason)

    def _find_again(self, file: BinaryIO, step: Upload, size: int) -> FoundBatch | None:
        """The batch for `step` where the last run of this file ended, so that a growing file is not read from its start each
        time. A guess: file names and inodes are used again; it counts when the batch begins right where it should.
        """
        ended = self._ended
        if ended is None or (ended.path, ended.inode, ended.offset) != (step.segment.path, step.segment.generation.inode, step.read_from):
            return None
        try:
            found = find_batch(step.segment, file, step.read_from, ended.position, size)
        except (CorruptData, UnsupportedFormat):
            return None
        return found if found and found[1] == step.read_from else None

    @contextmanager
    def _unless_changed(self, log: LocalLog, segment: LocalSegment) -> Iterator[None]:
        """What looks like damage while a log is being cut or replaced is none: SourceChanged instead."""
        try:
            yield
        except (CorruptData, SuspectedGap, UnsupportedFormat):
            self._check_still(log, segment=segment)
            raise

    def _check_still(self, log: LocalLog, entry: Entry | None = None, segment: LocalSegment | None = None) -> LocalLog:
        """The second look; SourceChanged unless it finds the same log (design §4.2).

        One look is not atomic: topic id, listing and epoch history may be of different moments. So what was concluded from
        it counts only when the incarnation and who leads are the same behind it, `entry`'s epochs lie on the history of
        both, and `segment` and all that follow it are what they were. The end of the log may have grown.
        """
        again = self._look()
        roles = step_plan.archiving_role(log), step_plan.archiving_role(again)
        if (again.settled, again.leftovers) != (log.settled, log.leftovers) or roles[0] != roles[1]:
            raise SourceChanged(f"{self.partition}: a compaction or an election came in between")
        if again.epochs != log.epochs or step_plan.log_start(again) != step_plan.log_start(log):
            raise SourceChanged(f"{self.partition}: the leader epochs or the log start changed")
        if (again.high_watermark or 0) < (log.high_watermark or 0):
            raise SourceChanged(f"{self.partition}: the high watermark fell")
        if entry and branches_at(log.epochs, (entry,)) is not None:
            raise SourceChanged(f"{self.partition}: leader epochs {entry.epochs} are not on the log's history")
        if segment and _files_from(segment.base_offset, again, log.segments[-1]) != _files_from(segment.base_offset, log, log.segments[-1]):
            raise SourceChanged(f"{self.partition}: segments were replaced or removed meanwhile")
        return again

    # What else a step needs

    def _look(self) -> LocalLog:
        at_ms = self._looks.now_ms()
        log = self._logs.look(self.partition.topic_partition)
        if log.partition != self.partition:
            raise SourceChanged(f"{self.partition} is another incarnation now: {log.partition.topic_id}")
        self._looks.saw(log, at_ms)
        return log

    def _overtaken(self, head: Head | None, first: int, log: LocalLog, policy: Policy) -> str:
        if head is None:
            return ""
        looks = self._looks.of(self.partition)
        return overtaken(log, head, first, looks, self._looks.now_ms(), stale_keys_below=policy.stale_keys_below)

    def _tail_age_ms(self, log: LocalLog) -> int:
        head = self.head
        if head is None or log.high_watermark is None or log.high_watermark <= head.next_offset:
            self._tails.forget(self.partition)
            return 0
        return self._tails.age_ms(self.partition, head.next_offset)


def _nameless(entry: Entry) -> Entry:
    """What an entry says of its bytes, whatever they are called."""
    return replace(entry, uid="", key="", index_key="", cleaned=False, displaced_by=None)


def _node_of(writer: str) -> str:
    """A writer is a node's id and a random word that stays with its data directory."""
    return writer.rpartition("-")[0]


def _extent(step: Upload, scan: RunScan, log: LocalLog, file: BinaryIO, size: int) -> tuple[int, int]:
    """First and last offset of the new entry. A hole that compaction made belongs to it: from the offset that is due, and
    up to where it may reach, the next batch or the next leader epoch, whichever comes first."""
    base_offset, last_offset = min(step.first, scan.base_offset), scan.last_offset
    following = find_batch(step.segment, file, scan.next_offset, scan.end_position, size) if step.reach is not None else None
    if step.reach is not None and (following is None or following[1] >= step.reach):
        end = ends_at(log.epochs, *scan.epochs[-1]) if scan.epochs else None
        last_offset = max(last_offset, min(step.reach, step.reach if end is None else end) - 1)
    return base_offset, last_offset


def _files_from(first: int, log: LocalLog, last: LocalSegment) -> dict[int, int]:
    """Inodes by base offset, from `first` up to what was the last segment at the first look."""
    return {each.base_offset: each.generation.inode for each in log.segments if first <= each.base_offset <= last.base_offset}
