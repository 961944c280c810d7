"""The archiver of one partition: one step at a time, it claims, executes what is planned, commits and announces (design §4)."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace
from functools import partial
from itertools import chain
from tempfile import TemporaryFile

import structlog
from msgspec.structs import replace

from archival.partition.announcer import Announcer
from archival.partition.branches import Branches
from archival.partition.entry_reader import ArchivedEntries
from archival.partition.full_segments import FullSegments
from archival.partition.held_head import HeldHead
from archival.partition.looks import CleanerLooks
from archival.partition.merger import Merger, Spool
from archival.partition.run_names import ChunkNames, UniqueNames, names_for
from archival.partition.run_transfer import RunTransfer, ScannedRun
from archival.partition.source import LocalLogs, OpenSegment, PartitionSource, open_segment
from archival.partition.streams import PartitionStreams
from archival.partition.tails import Tails
from archival.partition.topics import TopicRecords
from archival.partition.uploads import Uploads
from archival.plan.cleaner import clean_under, clean_with, displaced_by, is_clean
from archival.plan.entries import with_gap
from archival.plan.lineage import CutAt
from archival.plan.merge_plan import plan_merge, with_merged
from archival.plan.policy import Policy
from archival.plan.replacement import OVERTAKEN, SMALLER, Draft, holds_what_was_cleaned, irreplaceable, rereads
from archival.plan.role import Standby, Unfit, archiving_role
from archival.plan.step_plan import may_be_empty, next_steps, supersede
from archival.plan.steps import ClaimPartition, CutEntries, Follow, Idle, RecordGap, Replace, Revive, Step, Stop, Upload
from archival.plan.stream_plan import OpenStream
from headwater_core import milestones
from headwater_core.errors import (
    CorruptData,
    Fenced,
    HeadwaterError,
    ManifestChanged,
    NeedsReplacement,
    NoEpochHistory,
    NotFound,
    PlaceTaken,
    SourceChanged,
    StoreGone,
    SuspectedGap,
    TransientError,
    UnknownOutcome,
    UnsupportedFormat,
    UploadStopped,
)
from headwater_core.files import disk_errors
from headwater_core.layouts import Offloader, open_layout
from headwater_core.layouts.chunks.upload_pool import UploadPool
from headwater_core.layouts.streaming import OffloadBudget
from headwater_core.objectstore.store import ObjectStore, Pace, at_once
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from manifests import chunk_keys
from manifests.entry import OFFSET_MAX, Entry
from manifests.head import Head, check_writable, may_have_chunks, with_chunks
from manifests.namesakes import REACHED_MAX, Namesakes, next_fence
from manifests.repository import CommitLost, ManifestRepository

MILESTONES = (
    "archive.planned",
    "archive.claimed",
    "archive.scanned",
    "archive.uploaded",
    "archive.committed",
    "archive.announced",
)
"""The points that a step passes, in order."""

RUNS_BYTES_MAX = 4 << 20  # of what one commit may list: from a size on a commit costs little beside the upload, and a step should be short

IN_VAIN_MAX = (
    3  # replacements in a row of what compaction went past; what has not changed is not uploaded again, so the next one is quicker
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one step did.

    action  "idle", "claimed", "archived", "refilled", "gap", "cut", "revived", "replaced", "reread" (a run that is to replace
            what is live, with others), "assigned" (the name of an object that will be written while it fills, or a fence under which
            names are free), or "outrun" when another commit came first
    reason  why nothing was done, or is left to do, for people
    entry   what the step made live
    before  what it made live before that, in the same commit
    is_last  another step on the same look would do nothing
    """

    action: str
    reason: str = ""
    entry: Entry | None = None
    before: tuple[Entry, ...] = ()
    is_last: bool = False

    @property
    def progressed(self) -> bool:
        return self.action != "idle"


_UPLOADING = (CutEntries, Replace, Revive, Upload)  # these may make objects whose names follow from the fence

_OUTRUN = Outcome(action="outrun", reason="the control log knows of a newer commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    """What one merge did.

    merged       the entry that is live in place of `group`; None when nothing was merged
    local_bytes  how much of it was read from the local log
    passed       below this offset nothing will have to be merged; None: that is not known
    more         there may be more to merge now
    comes_first  something is to be archived; that comes first
    again_in_s   so long after it there may be something to merge though nothing happens meanwhile; None: there will not
    """

    merged: Entry | None = None
    group: tuple[Entry, ...] = ()
    local_bytes: int = 0
    passed: int | None = None
    more: bool = False
    comes_first: bool = False
    again_in_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiverEquipment:
    """What an archiver works with; those of one agent share it.

    writer   names the agent in the heads that it commits: a node's id and a random word that stays with its data directory
    new_uid  a name that no object has had
    runs_max  how many small sealed segments, one after the other, one commit may list
    spool    where a merge gathers bytes
    budget   memory for what streams have taken and not sent, of all partitions together
    pool     what of that is to become chunks
    """

    logs: LocalLogs
    store: ObjectStore
    repository: ManifestRepository
    announcer: Announcer
    topics: TopicRecords
    tails: Tails
    looks: CleanerLooks
    writer: str
    new_uid: Callable[[], str]
    open_segment: OpenSegment = open_segment
    runs_max: int = 1
    spool: Spool = TemporaryFile
    budget: OffloadBudget = field(default_factory=lambda: OffloadBudget(256 << 20))
    pool: UploadPool = field(default_factory=UploadPool)


class PartitionArchiver:
    """Archives one partition. All that it must remember is in the bucket, so it may be dropped and made again at any time.

    `lock` is held for the length of a step, and by release (archival.partition.release), so that the two exclude each other.
    """

    def __init__(self, partition: PartitionId, equipment: ArchiverEquipment, offloader: Offloader) -> None:
        self.partition = partition
        self.lock = threading.Lock()
        self._writer, self._announcer, self._topics = equipment.writer, equipment.announcer, equipment.topics
        self._tails, self._looks, self._runs_max = equipment.tails, equipment.looks, equipment.runs_max
        self._held = HeldHead(partition, equipment.repository)
        self._repository = equipment.repository
        self._source = PartitionSource(partition, equipment.logs, equipment.looks, equipment.open_segment)
        archived = ArchivedEntries(equipment.store)
        self._names = names_for(partition, offloader, equipment.writer, equipment.new_uid)
        self._chunk_names = self._names if isinstance(self._names, ChunkNames) else None
        self._layout = offloader.name
        self._streams = PartitionStreams(partition, equipment, archived)
        self._uploads = Uploads(partition, equipment.store, offloader, self._names)
        self._branches = Branches(archived, self._uploads)
        self._runs = RunTransfer(self._source, self._looks, archived, self._uploads, self._branches)
        merged = offloader if self._chunk_names is None else open_layout("segment")  # any chunks, of whatever segments
        self._merge_uploads = Uploads(partition, equipment.store, merged, UniqueNames(partition, merged.name, equipment.new_uid))
        self._merger = Merger(self._source, archived, self._merge_uploads, equipment.spool)
        self._full_segments = FullSegments(self._names, equipment.tails.now_ms) if isinstance(self._names, ChunkNames) else None
        self._draft: Draft | None = None
        self._is_confirmed = False  # since the first head was made, was the bucket still this cluster's?
        self._saves = True  # may what is archived be replaced because compaction has made the log smaller?
        self._in_vain = 0  # how often what compaction went past was replaced since something was archived after it
        self._reported_irreplaceable: tuple[Entry, ...] = ()
        self._log = structlog.get_logger().bind(partition=str(partition), topic_id=partition.topic_id, writer=self._writer)

    @property
    def head(self) -> Head | None:
        """The head as last seen; None before the first step and while there is none."""
        return self._held.head

    @property
    def head_bytes(self) -> int:
        """How long the head is in the bucket; 0 where none is held."""
        return self._held.size_bytes

    @property
    def open_stream(self) -> OpenStream | None:
        """See PartitionStreams."""
        return self._streams.open_stream

    def step(self, policy: Policy, log: LocalLog | None = None, *, pace: Callable[[int], object] | None = None) -> Outcome:
        """Do the next thing, with at most one commit. Safe to repeat after any crash.

        log   a look at the partition's directory that the caller has just taken; without it one is taken here
        pace  is called before each piece of an upload: see PacedFile

        Raises Fenced when another writer has claimed the partition; NoEpochHistory, SuspectedGap, CorruptData, UnrelatedLog,
        UnfinishedSwap, NeedsReplacement and NeedsUpgrade when a person must look at it; and TransientError (SourceChanged and
        UnknownOutcome among them) when the same call may succeed later.
        """
        with self.lock, disk_errors(self.partition):
            self._uploads.pace = pace
            try:
                if log is None:
                    log = self._source.look()
                elif self._looks.is_due(log):
                    self._source.look()  # the caller's look may have waited long for the lock
                return self._step(policy, log)
            except PlaceTaken as error:
                return self._take_fence(str(error))
            except CommitLost as error:
                return Outcome(action="outrun", reason=str(error))
            except CorruptData as error:
                self._check_listed(error)
                raise
            except (Fenced, UnknownOutcome, ManifestChanged, UnsupportedFormat):
                self._held.doubt()
                raise
            finally:
                self._streams.check(self.head)

    def load(self) -> Head | None:
        """The head as the bucket has it now. Raises what ManifestRepository.load raises, and CorruptData when it is gone."""
        with self.lock:
            self._held.reload()
            return self.head

    @property
    def is_waiting(self) -> bool:
        """Does it hold uploads that a commit may still list? What was made for another head, or under an earlier fence, none will."""
        head = self.head
        if head is None:
            return False
        is_drafted = self._draft is not None and self._draft.of.commit_id == head.commit_id
        return is_drafted or self._uploads.are_waiting(head.fence) or self._merge_uploads.are_waiting(head.fence)

    @property
    def merge_trouble(self) -> str:
        """Why what is to become one object does not; "" where it does, or where that is not known."""
        return self._full_segments.trouble if self._full_segments is not None else ""

    @property
    def is_streaming(self) -> bool:
        """Does it hold an open object? Another archiver of this partition would begin it again."""
        return self._streams.held_to > 0

    def abandoned(self, head: Head) -> str | None:
        """The name that `head` has assigned, when no commit of this process will list what is written under it; the next one fails it."""
        return self._streams.abandoned(head)

    def give_up(self, reason: str) -> None:
        """Drop the object that is open, and return what it has of the offload buffer. Raises nothing; what the store keeps of it is an
        orphan."""
        with self.lock:
            self._streams.give_up(reason)

    def end(self) -> bool:
        """The process ends: drop the object that is open. False where the store keeps what was sent of it. Raises nothing."""
        with self.lock:
            return self._streams.end()

    def amend(self, change: Callable[[Head], Head], *, discards: bool = False) -> Head:
        """Commit what `change` makes of the head, which no log is asked for; the head that is there then.

        change    returns what it is given, or a successor, of the same fence or a higher one: then uploads of before can not be committed
                  any more. What was assigned to another process, or given up, fails with it
        discards  even while some wait: they are made again. They may wait for as long as the topic is paused

        Raises Fenced when another writer holds the partition, TransientError while uploads wait for their commit, unless they are
        discarded, and what `step` does.
        """
        with self.lock:
            try:
                self._held.load()
                head = self.head
                if head is None or head.writer != self._writer:
                    raise Fenced(f"{self.partition}: {head.writer if head else 'nobody'} holds the partition")
                check_writable(head)
                if self.is_waiting and not discards:
                    raise TransientError(f"{self.partition}: what was uploaded waits for its commit")
                after = change(head)
                return head if after is head else self._commit(after, fails=self._streams.abandoned(head) is not None)
            except CommitLost as error:
                raise TransientError(str(error)) from error
            except (Fenced, UnknownOutcome, ManifestChanged):
                self._held.doubt()
                raise

    def merge(
        self,
        policy: Policy,
        *,
        passed: int | None = None,
        pace: Callable[[int], object] | None = None,
        check: Callable[[], object] = lambda: None,
        steady: Pace = at_once,
    ) -> MergeOutcome:
        """Let small neighbours become one object, with at most one commit, when nothing is to be archived. Safe to repeat after any crash.

        passed  of an earlier merge; None: begin with what the head lists itself, so that no page is read
        check   is called before each piece that is read; what it raises ends the merge
        steady  is called instead of `pace` and `check` where a merge is not to be begun again for what is to be archived: while the object
                of a full segment is made, and from its beginning on once it has been stopped STOPPED_MAX times. 0: nothing is sent

        Raises what `step` does.
        """
        with self.lock, disk_errors(self.partition):
            self._merge_uploads.pace = pace
            try:
                outcome = self._merge(policy, self._source.look(), passed, check, steady)
                again_in_s = self._full_segments.again_in_s if self._full_segments is not None else None
                return dataclass_replace(outcome, again_in_s=again_in_s)
            except PlaceTaken as error:
                return MergeOutcome(passed=passed, comes_first=True, reason=self._take_fence(str(error)).reason)
            except CommitLost as error:
                return MergeOutcome(passed=passed, comes_first=True, reason=str(error))
            except CorruptData as error:
                self._check_listed(error)
                raise
            except (Fenced, UnknownOutcome, ManifestChanged):
                self._held.doubt()
                raise

    def _step(self, policy: Policy, log: LocalLog) -> Outcome:
        if isinstance(acting := archiving_role(log), Standby):
            self._streams.give_up(acting.reason)
            if isinstance(acting, Unfit):
                raise NoEpochHistory(f"{log.directory}: {acting.reason}")
            return Outcome(action="idle", reason=acting.reason, is_last=True)
        if policy.off:
            self._streams.stop(policy.off, is_paused=policy.is_paused)
            return Outcome(action="idle", reason=policy.off, is_last=True)
        self._held.load()
        if self._chunk_names is not None:
            self._chunk_names.limit(policy.segment_bytes)
        policy = self._streams.follow(self.head, log, policy)
        if self.head:
            self._announcer.announce(self.head)
            if self.head.writer == self._writer:
                is_first = self.head.version == 1 and not self._is_confirmed
                self._topics.ensure(self.partition, is_first=is_first)  # the archive may have changed hands while this head was made
                self._is_confirmed = True
            self._report_irreplaceable(self.head, log)
        for step in self._next_steps(log, policy):
            if isinstance(step, Idle):
                if step.compared:
                    self._forget_draft(log)
                return Outcome(action="idle", reason=step.reason, is_last=True)
            milestones.reached("archive.planned")
            done = self._execute(step, log, policy)
            if isinstance(done, CutAt):  # seen only now that the segment was opened
                assert self.head
                done = self._execute(supersede(log, self.head, done.offset, self.head.leader_epoch, policy), log, policy)
            if isinstance(done, Outcome):
                return done
        raise AssertionError("a plan ends with Idle")

    def _next_steps(self, log: LocalLog, policy: Policy) -> Iterator[Step]:
        head = self.head
        if policy.min_saved_percent is not None and not self._saves:
            policy = dataclass_replace(policy, min_saved_percent=None)
        elif policy.min_saved_percent is not None and self._draft is not None and self._draft.step.reason == SMALLER:
            policy = dataclass_replace(policy, min_saved_percent=1)  # what is begun ends, though a little less be saved by now
        return next_steps(
            log,
            head,
            writer=self._writer,
            policy=policy,
            tail_age_ms=self._tail_age_ms(log),
            overtaken=lambda first: self._looks.overtaken(log, head, first, policy.stale_keys_below),
            held_to=self._streams.held_to,
        )

    def _execute(self, step: Step, log: LocalLog, policy: Policy) -> Outcome | CutAt | None:
        """Do it; None when it turns out to be without substance, CutAt when what is archived from there on turns out to be dead."""
        head = self.head
        if head:
            check_writable(head)  # before anything is uploaded
        if isinstance(step, Stop):
            return self._stop(step, log)
        if isinstance(step, ClaimPartition):
            return self._claim(step, log)
        assert head
        if self._chunk_names is not None and not may_have_chunks(head):
            self._source.look_again(log)
            self._commit(self._with_chunks(head))
            return Outcome(action="assigned", reason="what follows may go below chunks/")
        if self._chunk_names is not None and isinstance(step, _UPLOADING) and self._streams.abandoned(head) is not None:
            self._source.look_again(log)
            self._commit(head, fails=True)  # a request of its writer may be late, and would reach what has its names: these get others
            return Outcome(action="assigned", reason="what was being written is not continued, and what follows has names of its own")
        if isinstance(step, CutEntries):
            return self._cut(step, head, log)
        if isinstance(step, Replace):
            return self._replace(step, head, log, policy)
        if isinstance(step, Revive):
            return self._revive(step, head, log)
        if isinstance(step, RecordGap):
            return self._gap(step, head, log, policy.gap_reason)
        if isinstance(step, Follow):
            return self._follow(step, head, log, policy)
        assert isinstance(step, Upload)
        return self._upload(step, head, log, policy)

    # Claim and commit

    def _claim(self, step: ClaimPartition, log: LocalLog) -> Outcome:
        held = self.head
        self._topics.ensure(self.partition, is_first=held is None or held.version == 1)
        self._source.look_again(log)
        if held is None:
            known = self._announcer.known_version(self.partition)
            if known or (not self._announcer.informed and self._held.has_objects()):
                return Outcome(action="outrun", reason=f"{self._held.reload_lost(known).writer} has made the first manifest")
            after = _first_head(self.partition, step, self._writer)
        else:
            clean_to = clean_under(log.epochs, held)
            after = replace(held, fence=self._next_fence(held), writer=self._writer, leader_epoch=step.leader_epoch, clean_to=clean_to)
        if self._chunk_names is not None and not may_have_chunks(after):
            after = self._with_chunks(after)
        head = self._commit(after, "archive.claimed", claims=True)
        self._log.info("partition_claimed", fence=head.fence, leader_epoch=head.leader_epoch)
        if held is not None and held.writer != self._writer and _node_of(held.writer) == _node_of(self._writer):
            self._log.warning(
                "claim_taken_from_a_namesake",
                other=held.writer,
                reason="another data directory of a node of this name held the claim: it was lost or replaced, or two agents archive one "
                "log directory and take each other's claims; then stop one of them",
            )
        elif held is not None and held.writer != self._writer and _leads_already(log, held):
            self._log.warning(
                "claim_taken_from_another_agent",
                other=held.writer,
                reason="another agent held the claim though this broker has led all the while: two agents archive one broker and take each "
                "other's claims. Stop one of them, or give them different log directories. Where the other one's data directory was lost, "
                "or its node renamed, this is over now",
            )
        return Outcome(action="claimed")

    def _with_chunks(self, head: Head) -> Head:
        """`head` as it has to be before its first chunk: see Namesakes."""
        return with_chunks(head, Namesakes(self._repository, self.partition).free_fence())

    def _next_fence(self, head: Head) -> int:
        """Above the head's. One that no other incarnation has, where keys do not say which of them has written an object."""
        return next_fence(head, Namesakes(self._repository, self.partition))

    def _take_fence(self, reason: str) -> Outcome:
        """Another one, under which names are free: below chunks/ they follow from what is listed, and something else is there."""
        head = self.head
        assert head is not None
        highest = chunk_keys.highest_fence(self._repository.store, self.partition.topic_partition, REACHED_MAX)
        try:
            head = self._commit(replace(head, fence=max(self._next_fence(head), highest + 1)))
        except CommitLost as error:
            return Outcome(action="outrun", reason=str(error))
        self._log.info("names_taken", fence=head.fence, reason=reason)
        return Outcome(action="assigned", reason=reason)

    def _commit(
        self,
        after: Head,
        reached: str = "archive.committed",
        *,
        claims: bool = False,
        fails: bool = False,
        appends: bool = False,
        uploads: Uploads | None = None,
    ) -> Head:
        before, draft = self.head, self._draft
        head = self._held.commit(self._streams.assigned(before, after, fails=fails or claims, next_fence=self._next_fence))
        self._streams.committed(before, head)
        (uploads or self._uploads).committed()
        self._draft = draft.beside(head) if appends and draft is not None and draft.of == before else None  # it was of the head before
        if before is not None and head.fence > before.fence:  # what was uploaded under the one before is not named again
            self._uploads.committed()
            self._merge_uploads.committed()
        milestones.reached(reached)
        self._announcer.announce(head, claims=claims)
        milestones.reached("archive.announced")
        return head

    # Branches

    def _stop(self, step: Stop, log: LocalLog) -> Outcome:
        """What was concluded from an outdated head fails at its commit. Here none follows, so the head is read again."""
        if self._held.reload():
            return Outcome(action="outrun", reason="another commit came first")
        self._source.look_again(log)
        raise step.error

    def _cut(self, step: CutEntries, head: Head, log: LocalLog) -> Outcome:
        cut = self._branches.cut(head, step, log.start_offset)
        self._source.look_again(log)
        self._commit(cut.head)
        self._log.warning("branch_superseded", from_offset=step.at, leader_epoch=step.leader_epoch, entries=len(cut.entries))
        return Outcome(action="cut", reason=f"offsets from {step.at} on are a dead branch")

    def _revive(self, step: Revive, head: Head, log: LocalLog) -> Outcome | None:
        revived = self._branches.revive(head, step, log.epochs)
        if revived is None:
            return None
        live = revived.entries[-1]
        self._source.look_again(log, live)
        self._commit(revived.head)
        self._log.info("branch_revived", base_offset=step.entry.base_offset, last_offset=live.last_offset)
        return Outcome(action="revived", entry=live)

    def _replace(self, step: Replace, head: Head, log: LocalLog, policy: Policy) -> Outcome | CutAt | None:
        """Archive one more run of what replaces the live ones. Those stay live until all of it is there: never is less archived than
        before, and a deleted key does not come back for want of its tombstone."""
        draft = self._draft
        if draft is None or not draft.is_for(head, step, log.epochs):
            self._check_vain(step, log)
            draft = self._draft = self._begin_draft(step, head, log)
        for upload in rereads(log, draft.head, head, draft.end):
            if reason := self._looks.overtaken(log, draft.head, upload.read_from, policy.stale_keys_below, end=upload.end):
                if step.reason == SMALLER:
                    self._give_up_saving(reason)
                    return None
                self._draft = None
                raise NeedsReplacement(reason)  # until the log changes; then all of it is begun again
            if self._is_outrun(draft.head):
                return _OUTRUN
            with ExitStack() as files:
                run = self._runs.scan(upload, draft.head, log, files)
                if isinstance(run, CutAt):
                    return run
                if run is None:
                    continue
                done = self._runs.send(
                    [run],
                    draft.head,
                    log,
                    stale_keys_below=policy.stale_keys_below,
                    listed=chain(head.entries, head.superseded),
                    replaced=head.entries,
                )
            draft = self._draft = draft.with_run(done.head)
            if not draft.is_complete:
                return Outcome(action="reread", entry=done.entries[-1])
            break
        return self._commit_draft(draft, log)

    def _commit_draft(self, draft: Draft, log: LocalLog) -> Outcome | None:
        step, following = draft.step, draft.following
        if step.reason == SMALLER and not draft.is_complete:  # what follows has to abut
            self._give_up_saving(f"the log holds nothing from {draft.head.next_offset} to {draft.end}, where the archive ended")
            return None
        reindexed = self._branches.reindex(draft.head.entries, following, draft.of.fence)
        again = self._source.look_again(log)
        if step.reason == SMALLER and not holds_what_was_cleaned(again, draft.of):
            raise SourceChanged(f"{self.partition}: a segment was sealed before what its records replace was committed")
        last_offset, entries = draft.end - 1, len(draft.replaced)
        self._commit(draft.result(reindexed.live, reindexed.dead))
        self._in_vain += step.reason == OVERTAKEN
        (self._log.info if step.reason == SMALLER else self._log.warning)(
            "runs_replaced", from_offset=step.first, last_offset=last_offset, entries=entries, reason=step.reason
        )
        return Outcome(action="replaced", reason=f"offsets from {step.first} on are archived again: {step.reason}")

    def _give_up_saving(self, reason: str) -> None:
        """What would be smaller is not tried again before the agent is started again: it would end in the same way."""
        self._saves = False
        self._drop_draft()
        self._log.warning("replacement_given_up", reason=reason)

    def _forget_draft(self, log: LocalLog) -> None:
        """What is not worth replacing any more, as `log` shows, waits for nothing."""
        draft = self._draft
        if draft is not None and draft.step.reason == SMALLER and holds_what_was_cleaned(log, draft.of):
            self._drop_draft()

    def _drop_draft(self) -> None:
        self._draft = None
        self._uploads.committed()  # what was uploaded for it will not be wanted again

    def _check_vain(self, step: Replace, log: LocalLog) -> None:
        """Raises NeedsReplacement where another replacement would not help: reading the log takes longer than its tombstones stay."""
        if step.reason == OVERTAKEN and self._in_vain >= IN_VAIN_MAX:
            raise NeedsReplacement(
                f"needs replacement: all that is archived was replaced {self._in_vain} times in vain. Each time compaction had gone past "
                f"what follows for too long before that was done: delete.retention.ms is {log.delete_retention_ms} ms. Let the topic keep "
                "tombstones for several times as long as the agent takes to read its log, or upload faster; it is tried again when the "
                "agent is started again"
            )

    def _begin_draft(self, step: Replace, head: Head, log: LocalLog) -> Draft:
        first = self._source.batch_base(log, step.first) if step.first > head.start_offset else 0
        return Draft.begin(head, step, log.epochs, *self._branches.split(head.entries, first))

    # Gaps and runs

    def _gap(self, step: RecordGap, head: Head, log: LocalLog, reason: str) -> Outcome | None:
        """A batch that holds the log start also holds offsets below it; the gap ends before that batch."""
        last = self._source.batch_base(log, step.last + 1) - 1
        if last < step.first:
            return None
        entries = with_gap(head.entries, step.first, last, reason)
        self._source.look_again(log)
        self._commit(replace(head, entries=entries, last_offset=last))
        self._log.error("gap_recorded", base_offset=step.first, last_offset=last, reason=reason or "deleted before it was archived")
        return Outcome(action="gap", entry=entries[-1])

    def _upload(self, step: Upload, head: Head, log: LocalLog, policy: Policy) -> Outcome | CutAt | None:
        if self._is_outrun(head):
            return _OUTRUN
        with ExitStack() as files:
            first = self._runs.scan(step, head, log, files)
            if not isinstance(first, ScannedRun):
                return first
            scanned = [first]
            ahead = head
            while len(scanned) < self._runs_max and not step.refills:
                ahead = self._runs.with_scanned(ahead, scanned[-1])
                more = self._scan_next(ahead, log, policy, scanned, files)
                if more is None:
                    break
                scanned.append(more)
            done = self._runs.send(scanned, head, log, stale_keys_below=policy.stale_keys_below)
        self._commit(done.head, appends=not step.refills)
        self._in_vain = 0
        for entry in done.entries:
            self._log.info("run_archived", base_offset=entry.base_offset, last_offset=entry.last_offset, size_bytes=entry.size_bytes)
        *before, entry = done.entries
        rest = self._idle_after(log, policy)
        return Outcome(
            action="refilled" if step.refills else "archived",
            reason=rest.reason if rest is not None else "",
            entry=entry,
            before=tuple(before),
            is_last=rest is not None,
        )

    def _follow(self, step: Follow, head: Head, log: LocalLog, policy: Policy) -> Outcome | None:
        """Continue the object that is written while it fills; None where it cannot begin: then the run goes as others do."""
        if self._is_outrun(head):
            return _OUTRUN
        if not self._streams.may_write(head):
            self._source.look_again(log)
            self._commit(head, fails=True)
            return Outcome(action="assigned", reason=f"what follows offset {head.last_offset} has a name now")
        with self._source.unless_changed(log, next((each.segment for each in log.segments_from(step.first)), None)):
            closed = self._streams.advance(step, head, log, policy, self._tail_age_ms(log), self._uploads)
        if closed is None:
            return None
        if isinstance(closed, str):
            return Outcome(action="idle", reason=closed, is_last=True)
        again = self._source.look_again(log, *(each.entry for each in closed))
        clean_to, now_ms = clean_with(head, log, again), self._looks.now_ms()
        *before, entry = (
            replace(
                entry,
                cleaned=is_clean(entry, clean_to),
                displaced_by=displaced_by(entry, scan, again),
                published_ms=now_ms,
            )
            for entry, scan in closed
        )
        milestones.reached("stream.closed")
        self._commit(replace(head, entries=head.entries.followed_by(*before, entry), last_offset=entry.last_offset, clean_to=clean_to))
        self._streams.remember(entry, closed[-1].scan)
        self._in_vain = 0
        for each in (*before, entry):
            self._log.info("run_archived", base_offset=each.base_offset, last_offset=each.last_offset, size_bytes=each.size_bytes)
        return Outcome(action="archived", entry=entry, before=tuple(before))

    def _idle_after(self, log: LocalLog, policy: Policy) -> Idle | None:
        """What a step on the same look would find now, after a commit, if that is nothing to do. A compacted log is looked at again:
        how far its cleaner is must be seen often."""
        if log.topic_policy_proves_compaction:
            return None
        try:
            following = next(self._next_steps(log, policy))
        except HeadwaterError:
            return None  # the next step meets it again; what was committed is to be reported
        return following if isinstance(following, Idle) else None

    def _scan_next(self, ahead: Head, log: LocalLog, policy: Policy, scanned: Sequence[ScannedRun], files: ExitStack) -> ScannedRun | None:
        """The run after `scanned`, which `ahead` lists, when it is small and sealed; None: their commit does not wait for it.

        What keeps it from being archived for good must not keep them from it: the next step meets it again. What may pass is raised, and
        the same runs are offered again then.
        """
        if log.topic_policy_proves_compaction:
            return None  # its cleaner may come past between two runs
        step = next(next_steps(log, ahead, writer=self._writer, policy=policy, tail_age_ms=0))
        if not isinstance(step, Upload) or step.refills or step.segment.is_active:
            return None
        if sum(each.entry.size_bytes for each in scanned) + step.segment.size_bytes > RUNS_BYTES_MAX:
            return None
        try:
            more = self._runs.scan(step, ahead, log, files)
        except (CorruptData, SuspectedGap, UnsupportedFormat):
            return None
        return more if isinstance(more, ScannedRun) else None

    def _check_listed(self, error: CorruptData) -> None:
        """An object that is gone is damage by the newest head alone: one that this agent does not know yet may have let it go. Raises
        ManifestChanged when there is another one."""
        if isinstance(error.__cause__, NotFound) and self._held.reload():
            raise ManifestChanged(f"{error.where} was replaced while it was read; ask again") from error

    def _is_outrun(self, head: Head) -> bool:
        """Has another commit come first, as the control log knows and the bucket confirms?"""
        return self._announcer.known_version(self.partition) > head.version and self._held.reload()

    # Merges

    def _merge(self, policy: Policy, log: LocalLog, passed: int | None, check: Callable[[], object], steady: Pace) -> MergeOutcome:
        if policy.off or not policy.merge_bytes or isinstance(archiving_role(log), Standby):
            return MergeOutcome(reason="nothing is merged here")
        self._held.load()
        head = self.head
        if head is not None and head.writer != self._writer:
            return MergeOutcome(passed=passed, reason=f"{head.writer} holds the partition")
        if head is None or not self._is_at_rest(log, policy):
            return MergeOutcome(passed=passed, comes_first=True)
        check_writable(head)
        if self._announcer.known_version(self.partition) > head.version and self._held.reload():
            return MergeOutcome(passed=passed, comes_first=True, reason="the control log knows of a newer commit")
        if passed is None:
            passed = max((ref.next_offset for ref in head.entries.references), default=0)
            if self._full_segments is not None:
                self._full_segments.forget()
        layouts: tuple[str, ...] = (self._layout,)
        until, segments = OFFSET_MAX, self._full_segments
        is_paused = is_cut_short = False
        if segments is not None:
            full = segments.next(head, log.epochs, policy, passed)
            if full.group:
                return self._consolidate(full.group, head, log, passed, check, steady)
            is_paused, is_cut_short = segments.is_paused, full.is_cut_short
            layouts = ("segment",) if is_paused else ("segment", self._layout)
            until = full.passed if is_cut_short else segments.end(head, policy)
        plan = plan_merge(
            head,
            log.epochs,
            target_bytes=policy.merge_bytes,
            span_ms=policy.merge_span_ms,
            layouts=layouts,
            passed=passed,
            until=until,
        )
        if not plan.group:
            if not (plan.is_cut_short or is_cut_short):
                self._merge_uploads.committed()  # what was merged for a commit that did not come about is cut since
                return MergeOutcome(passed=passed if is_paused else plan.passed)
            return MergeOutcome(passed=plan.passed, more=True)
        first, last = plan.group[0], plan.group[-1]
        milestones.reached("merge.planned")
        try:
            merged = self._merger.merge(plan.group, head.entries.split_at(first.base_offset)[0], head.fence, log, check)
        except CorruptData as error:
            if self._held.reload():
                return MergeOutcome(passed=passed, comes_first=True, reason="another commit came first")
            self._log.warning("merge_failed", base_offset=first.base_offset, last_offset=last.last_offset, reason=str(error))
            return MergeOutcome(passed=last.next_offset, more=True, reason=str(error))
        milestones.reached("merge.uploaded")
        entry = merged.entry
        self._source.look_again(log)
        self._commit(replace(head, entries=with_merged(head.entries, plan.group, entry)), uploads=self._merge_uploads)
        self._report_merged(entry, plan.group)
        return MergeOutcome(merged=entry, group=plan.group, local_bytes=merged.local_bytes, passed=plan.passed, more=True)

    def _report_merged(self, entry: Entry, group: Sequence[Entry]) -> None:
        size_bytes, entries = entry.size_bytes, len(group)
        self._log.info("runs_merged", base_offset=entry.base_offset, last_offset=entry.last_offset, size_bytes=size_bytes, entries=entries)

    def _consolidate(
        self, group: tuple[Entry, ...], head: Head, log: LocalLog, passed: int, check: Callable[[], object], steady: Pace
    ) -> MergeOutcome:
        """Let the chunks of a full segment become one object. Where that fails they stay, and are tried again later."""
        names, segments = self._chunk_names, self._full_segments
        assert names is not None
        assert segments is not None
        first, last, before = group[0], group[-1], head.entries.split_at(group[0].base_offset)[0]
        if segments.is_urgent(group):
            check = partial(steady, 0)
        milestones.reached("merge.planned")
        try:
            with disk_errors(self.partition):
                merged = self._merger.consolidate(group, before, names, head.fence, log, check, steady)
        except UploadStopped:
            segments.stopped(group)
            raise
        except (Fenced, ManifestChanged, PlaceTaken, StoreGone):
            raise
        except HeadwaterError as error:
            if isinstance(error, CorruptData) and self._held.reload():
                return MergeOutcome(passed=passed, comes_first=True, reason="another commit came first")
            segments.failed(group, error)
            if isinstance(error, TransientError):
                raise
            self._log.warning("merge_failed", base_offset=first.base_offset, last_offset=last.last_offset, reason=str(error))
            return MergeOutcome(passed=passed, more=True, reason=str(error))
        milestones.reached("merge.uploaded")
        self._source.look_again(log)
        self._commit(replace(head, entries=with_merged(head.entries, group, merged.entry)), uploads=self._merge_uploads)
        segments.consolidated(group)
        self._report_merged(merged.entry, group)
        return MergeOutcome(merged=merged.entry, group=group, local_bytes=merged.local_bytes, passed=passed, more=True)

    def _is_at_rest(self, log: LocalLog, policy: Policy) -> bool:
        """Is there nothing that comes before a merge, as far as it is sure to be something? A log that is behind has no say."""
        steps = self._next_steps(log, policy)
        step = next(each for each in steps if not may_be_empty(each))
        return isinstance(step, Follow) or (isinstance(step, Idle) and step.compared)

    # What else a step needs, and what it reports

    def _tail_age_ms(self, log: LocalLog) -> int:
        head = self.head
        return self._tails.age_since(self.partition, head.next_offset, log.high_watermark) if head else 0

    def _report_irreplaceable(self, head: Head, log: LocalLog) -> None:
        found = irreplaceable(log, head)
        if found and found != self._reported_irreplaceable:
            self._log.error("records_irreplaceable", base_offset=found[0].base_offset, last_offset=found[-1].last_offset)
        self._reported_irreplaceable = found


def _first_head(partition: PartitionId, step: ClaimPartition, writer: str) -> Head:
    return Head(
        cluster_id=partition.cluster_id,
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.partition,
        version=1,
        commit_id="unset",
        fence=1,
        writer=writer,
        leader_epoch=step.leader_epoch,
        start_offset=step.start_offset,
        last_offset=step.start_offset - 1,
    )


def _leads_already(log: LocalLog, held: Head) -> bool:
    """Was this broker the leader when `held` was claimed? Without a metadata log that is not known: the agents of replicas take turns."""
    return log.leadership is not None and log.leadership.is_ours and held.leader_epoch >= log.leadership.leader_epoch


def _node_of(writer: str) -> str:
    return writer.rpartition("-")[0]
