"""The archivers of one agent, and the outcome of one step of one partition: an error there stops no other partition."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple, TypeVar, cast
from uuid import uuid4

import structlog

from archival.broker.broker_logs import BrokerLogs, awaits_commit
from archival.broker.broker_release import ReleaseRecord
from archival.broker.broker_topics import BrokerTopics
from archival.broker.broker_view import Broker
from archival.collection.collector import Border, Collected, Collector
from archival.collection.handover import Handover
from archival.collection.sightings import Sightings
from archival.config import ArchivalConfig, ArchiveMode, OffloadMode
from archival.known_pauses import KnownPauses
from archival.members import Member, Members
from archival.obstacle import Obstacle
from archival.partition.announcer import Announcer
from archival.partition.archiver import ArchiverEquipment, MergeOutcome, PartitionArchiver
from archival.partition.looks import CleanerLooks
from archival.partition.source import LocalLogs, OpenSegment, open_segment
from archival.partition.tails import Tails
from archival.partition.topics import TopicRecords
from archival.partition_status import KnownHead
from archival.plan.offload_trigger import LocalRetention, bounded, misfit, unknown_limit
from archival.plan.policy import Policy, PolicyFor
from archival.plan.retention_deadline import deadline_ms, too_near_ms
from archival.plan.role import Standby, archiving_role
from archival.plan.stream_plan import OpenStream
from archival.releases import Releases
from archival.rest import Rest
from archival.schedule.store_breaker import listening
from archival.schedule.timetable import earliest
from archival.schedule.upload_permit import StepWatch, UploadPermit, UploadRate
from archival.watermark import WatermarkOrigin, WatermarkSource
from headwater_core.clock import Clock
from headwater_core.control.control_log import ControlLog
from headwater_core.control.state import PartitionState
from headwater_core.errors import Fenced, HeadwaterError, LogNotFound, NotFound, SourceChanged, TransientError, UploadStopped
from headwater_core.files import error_kind
from headwater_core.layouts.chunks.upload_pool import UploadPool
from headwater_core.layouts.streaming import OffloadBudget
from headwater_core.objectstore.store import ObjectStore, UnfinishedUpload
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.disk import Progressed
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import Listing, LogDirs
from manifests import keys
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import Owner

T = TypeVar("T")
_log = structlog.get_logger()

LOOK_S = 1.0  # between two looks, while an upload is in flight, whether its partition is still there
READ_AGAIN_S = 900.0  # what was found damaged, though it looks the same: a bad cable may have been replaced
GLIMPSE_S = 60.0  # after a look, how the log looks from outside shows whether it has changed: longer than from one listing to the next
COMMIT_S, COMMIT_MAX_S = 0.1, 5.0  # after a roll, until followers have the last records; as long as the broker's checkpoint takes
OLDER_EVERY_S = 10.0  # between two partitions whose older pages are read for merges: a page a second, and a day for ten thousand partitions
MERGE_AGAIN_S = 60.0  # after a merge that something came in the way of
WARN_S = 600.0  # between two warnings of one partition's retention
LATE_S = 30.0  # a step that takes longer may hang with its disk; most segments are sent within that, and where not, a few more are at once
LOG_DIRS = TopicPartition("log.dirs", 0)  # stands for the log directories as a whole, where partitions are reported
PASSES = (TransientError, Fenced)  # after a claim by the new leader's agent, the next step finds that another replica archives


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """What one step, or all steps of a pass, did for one partition.

    progressed  there may be more to do
    deadline_ms  when the broker's retention will take the next of it; None: never, or that is not known
    again_s     so long after it, it is to be made again, though nothing may happen to the log until then; None: it need not
    for_release  that is for a release alone, which failed: what happens to the log is archived before
    merge_in_s  look for small neighbours to merge then; None: nothing is new there
    quiet       there will be nothing more to do until something happens to the log
    gone        the partition is not there any more
    store_answers  did the store answer, as far as that mattered? None when it was not asked
    error       why it could not do all; None when it did
    """

    place: TopicPartition
    objects: int = 0
    archived_bytes: int = 0
    released_bytes: int = 0
    last_offset: int | None = None
    reason: str = ""
    elapsed_s: float = 0.0
    progressed: bool = False
    deadline_ms: int | None = None
    again_s: float | None = None
    for_release: bool = False
    merge_in_s: float | None = None
    quiet: bool = False
    gone: bool = False
    store_answers: bool | None = None
    error: HeadwaterError | None = None

    def after(self, earlier: "PartitionOutcome | None") -> "PartitionOutcome":
        """The sums of `earlier` and this one, and otherwise this one."""
        if earlier is None:
            return self
        return replace(
            self,
            objects=earlier.objects + self.objects,
            archived_bytes=earlier.archived_bytes + self.archived_bytes,
            released_bytes=earlier.released_bytes + self.released_bytes,
            elapsed_s=round(earlier.elapsed_s + self.elapsed_s, 3),
        )


class MergeTurn(NamedTuple):
    """What became of a partition's turn to merge.

    again_in_s  when to look again; None: not before something is archived
    is_archiving_due  something is to be archived, or claimed, before that
    store_answers     see PartitionOutcome
    """

    again_in_s: float | None
    is_archiving_due: bool = False
    store_answers: bool | None = None


class StepFailure(NamedTuple):
    """Why the last step of a partition failed, and since when its steps have failed in a row."""

    error: HeadwaterError
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEquipment:
    """What the archivers of one agent work with.

    store         calls of it, and of the repository's, are heard: see archival.schedule.store_breaker
    settings_for  what the operator has set for a topic, by its name, as it is now
    settings      for no topic in particular
    wait          sleeps for so many seconds
    data_dir      where what must outlive the process is kept
    owned         no broker works on the log directories: what is archived may be released there
    owner         see TopicRecords
    runs_max      see ArchiverEquipment
    broker        the one whose directories these are; None where it is not asked
    pauses        what is not to be archived for a while; None: there is no such thing
    look_at_settings  takes up what another agent has set by command, now and then
    free_bytes    see DiskForecast
    """

    dirs: LogDirs
    store: ObjectStore
    repository: ManifestRepository
    control: ControlLog
    settings_for: Callable[[str], ArchivalConfig]
    data_dir: Path
    owned: bool
    writer: str
    clock: Clock
    settings: Callable[[], ArchivalConfig] = ArchivalConfig
    wait: Callable[[float], object] = time.sleep
    new_uid: Callable[[], str] = lambda: uuid4().hex
    open_segment: OpenSegment = open_segment
    owner: Callable[[], Owner | None] | None = None
    runs_max: int = 1
    broker: Broker | None = None
    pauses: KnownPauses | None = None
    look_at_settings: Callable[[], object] = lambda: None
    free_bytes: Callable[[], Sequence[int]] = tuple


class _TriggerState(NamedTuple):
    """problem: why a topic's triggers are not applied; unknown: why they may come too late"""

    problem: str
    unknown: str


_APPLIED = _TriggerState("", "")


class _Interest:
    """Whether what a step uploads is still wanted."""

    def __init__(self, fleet: "ArchiverFleet", archiver: PartitionArchiver, log: LocalLog, policy_for: PolicyFor, watch: StepWatch) -> None:
        self._fleet, self._archiver, self._log, self._policy_for, self._watch = fleet, archiver, log, policy_for, watch
        self._known_version = fleet.announcer.known_version(log.partition)
        self._look_s = fleet.clock.monotonic_s() + LOOK_S  # when to look again whether the directory is there

    def lost(self) -> str:
        """Why it is not; "" while it is. Is called for each piece that goes."""
        self._watch.moved()
        if reason := self._watch.ends():
            return reason
        partition = self._log.partition
        if off := self._fleet.policy(partition.topic_partition, self._policy_for).off:
            return off
        head = self._archiver.head
        known = self._fleet.announcer.known_version(partition)
        if head is not None and known > max(head.version, self._known_version):  # what was known before was looked into before
            return "the control log knows of another agent's commit"
        now_s = self._fleet.clock.monotonic_s()
        if now_s < self._look_s:
            return ""
        self._look_s = now_s + LOOK_S
        self._fleet.look_before_work()
        return self._gone()

    def _gone(self) -> str:
        """A segment that the broker's retention deletes meanwhile is wanted all the more: it is open, and nowhere else."""
        partition = self._log.partition
        try:
            found = self._fleet.logs.look(partition.topic_partition).partition
        except NotFound:
            return "the partition was deleted"
        except HeadwaterError:
            return ""  # that says nothing
        return "" if found == partition else "the topic was deleted and created again"


class ArchiverFleet:
    """The archivers of one agent, made as partitions are found. `troubles` says what keeps which partition from being archived;
    `broker_logs` has what the broker said of them, None where it is not asked.

    Safe to use from many threads: one archiver takes one step at a time.
    """

    def __init__(self, equipment: FleetEquipment) -> None:
        self._equipment, self.clock = equipment, equipment.clock
        self.settings, self.settings_for = equipment.settings, equipment.settings_for
        self.broker_logs = (
            BrokerLogs(equipment.dirs, equipment.broker, equipment.clock, self._follows) if equipment.broker is not None else None
        )
        self.logs: LocalLogs = self.broker_logs or equipment.dirs
        self.failures: dict[TopicPartition, StepFailure] = {}  # of the last steps
        self._unread = ""  # why the metadata log cannot be read
        self.unexpected = 0  # exceptions that are defects, each logged with its traceback
        self.committed: Callable[[Head], object] = lambda head: None  # is called with every head that a step has committed
        self.stepped: Callable[[PartitionOutcome], object] = lambda outcome: None  # is called after every step, no matter who requests it
        self.announcer = Announcer(equipment.control, equipment.clock)
        self._broker_topics = BrokerTopics(equipment.dirs, self._identify)
        self._topics = TopicRecords(equipment.repository, self._broker_topics.describe, clock=equipment.clock, owner=equipment.owner)
        self.tails = Tails(equipment.data_dir / "tails.json", equipment.clock)
        self._looks = CleanerLooks(equipment.data_dir / "cleaners.json", equipment.clock)
        self._budget = OffloadBudget(self.settings().offload_buffer_bytes)
        self.pool = UploadPool(self.settings().chunk_pool_bytes)
        self._shared = ArchiverEquipment(
            logs=self.logs,
            store=equipment.store,
            repository=equipment.repository,
            announcer=self.announcer,
            topics=self._topics,
            tails=self.tails,
            looks=self._looks,
            writer=equipment.writer,
            new_uid=equipment.new_uid,
            open_segment=equipment.open_segment,
            runs_max=equipment.runs_max,
            budget=self._budget,
            pool=self.pool,
            spool=lambda: cast(BinaryIO, TemporaryFile(dir=equipment.data_dir)),  # noqa: SIM115  a merge closes it
        )
        self._sightings = Sightings(equipment.data_dir / "sightings", equipment.clock)
        self._collector = Collector(
            store=equipment.store,
            sightings=self._sightings,
            clock=equipment.clock,
            writer=equipment.writer,
        )
        self._collecting = threading.Lock()
        self.collection_troubles: dict[PartitionId, str] = {}  # why nothing of them is deleted, or not all; "" where all is
        self.handover = Handover(equipment.data_dir / "collected.json")
        self.handed_over = self.handover.take()  # by the agent before this one
        self._worked_on: set[PartitionId] = set()  # by steps that may have left objects which no commit lists
        self._rate = UploadRate(lambda: self.settings().upload_bytes_per_s, equipment.clock)
        self._releases = Releases(
            logs=self.logs,
            repository=equipment.repository,
            writer=equipment.writer,
            owned=equipment.owned,
            broker=equipment.broker,
            clock=equipment.clock,
            wait=equipment.wait,
            data_dir=equipment.data_dir,
            free_bytes=equipment.free_bytes,
        )
        self._members = Members(self._new_archiver)
        self._trigger_states: dict[str, _TriggerState] = {}  # by topic, as reported
        self._turns = threading.Lock()
        self._older_s = float("-inf")  # the last turn that was given to read older pages for merges

    @property
    def troubles(self) -> dict[TopicPartition, str]:
        """Why the archiving of which partition has stopped: what does not pass by itself."""
        return {place: str(each.error) for place, each in self.failures.copy().items() if not isinstance(each.error, PASSES)}

    def heads(self) -> dict[PartitionId, KnownHead]:
        """The heads that archivers hold, and how old that knowledge is: of those that have something to do, and the last that had."""
        now_s = self.clock.monotonic_s()
        return {
            partition: known for partition, member in self._members.known().items() if (known := _known_head(member, now_s)) is not None
        }

    def head(self, partition: PartitionId) -> KnownHead | None:
        """That of `partition`; None while no archiver holds one."""
        member = self._members.of(partition)
        return _known_head(member, self.clock.monotonic_s()) if member is not None else None

    def open_stream(self, partition: PartitionId) -> OpenStream | None:
        """What streaming offload has taken of `partition` and not listed yet; None where that is nothing."""
        member = self._members.of(partition)
        archiver = member.archiver if member is not None else None
        return archiver.open_stream if archiver is not None else None

    def merge_trouble(self, partition: PartitionId) -> str:
        """Why what is to become one object of `partition` does not; "" where it does, or where that is not known."""
        member = self._members.of(partition)
        archiver = member.archiver if member is not None else None
        return archiver.merge_trouble if archiver is not None else ""

    def held_to(self, place: TopicPartition) -> int:
        """The offset after what streaming offload has taken of `place` and not listed yet; 0 where that is nothing."""
        identity = self._members.identity(place)
        stream = self.open_stream(identity) if identity is not None else None
        return stream.next_offset if stream is not None else 0

    @property
    def offload_buffer(self) -> OffloadBudget:
        """What streaming offload has taken and not sent, of all partitions together."""
        return self._budget

    def end_streams(self, within_s: float) -> list[PartitionId]:
        """See Members.end_streams. To be called when all steps have ended."""
        return self._members.end_streams(within_s)

    def policy(self, place: TopicPartition, policy_for: PolicyFor) -> Policy:
        """What may be archived of `place` now. Raises what reading the pauses raises."""
        policy = policy_for(self.settings_for(place.topic))
        return self._equipment.pauses.applied(place, policy) if self._equipment.pauses is not None else policy

    def _policy_now(self, log: LocalLog, policy_for: PolicyFor) -> Policy:
        """The same with what its triggers come to for this look. Whether they may be applied is reported when it changes."""
        policy = self.policy(log.partition.topic_partition, policy_for)
        self._report_triggers(log, policy)
        return bounded(policy, log, self.clock.now_ms())

    def _report_triggers(self, log: LocalLog, policy: Policy) -> None:
        topic, kept = log.partition.topic, LocalRetention.of(log)
        problem = misfit(policy.triggers, kept)
        unknown = "" if problem or self._equipment.owned else unknown_limit(policy.triggers, kept)
        before, now = self._trigger_states.get(topic, _APPLIED), _TriggerState(problem, unknown)
        if now == before:
            return
        self._trigger_states[topic] = now
        if problem:
            consequence = (
                "what is sealed is archived at once" if policy.stream is None else "what is committed is archived while it is written"
            )
            _log.warning("trigger_not_applied", topic=topic, reason=problem, consequence=consequence)
        elif unknown:
            reason = f"{unknown}, and nothing says what that is: name the broker's file in log.server_properties"
            _log.warning("local_retention_unknown", topic=topic, reason=reason)
        elif before.problem:
            _log.info("trigger_applied", topic=topic)

    def look_before_work(self) -> None:
        """At what all agents share, before something is archived. Raises nothing."""
        self._equipment.look_at_settings()
        if self._equipment.pauses is not None:
            self._equipment.pauses.look_before_work()

    def look(self, place: TopicPartition) -> tuple[LocalLog, WatermarkOrigin]:
        """A look at one log, with what its broker has said of it, and whose word its high watermark is: nobody is asked. Raises what
        LogDirs.look does."""
        log = self._equipment.dirs.look(place)
        said = self.broker_logs.watermarks([log], ask=False).get(log.partition) if self.broker_logs is not None else None
        if said is None:
            return log, WatermarkOrigin.of_checkpoint(log.checkpoint_ms, self.clock.now_ms())
        return replace(log, high_watermark=said.offset), WatermarkOrigin(WatermarkSource.BROKER, said.age_s)

    def read(self, log: LocalLog, work: Callable[[Progressed], T]) -> T:
        """See LogDirs.read."""
        return self._equipment.dirs.read(log, work)

    def released(self, partition: PartitionId) -> ReleaseRecord | None:
        """What was released of it at the broker; None where that was never tried."""
        member = self._members.of(partition)
        return replace(member.released) if member is not None and member.released.reason else None

    def disk_full_in_s(self) -> float | None:
        """Return how long it takes at the pace of the last hour until a disk of the log directories is full, where that is sooner than
        the groups for which releases wait count as gone."""
        remaining_s = self._releases.disk_forecast.full_in_s()
        return remaining_s if remaining_s is not None and remaining_s < self._equipment.settings().release_ignore_groups_after_s else None

    def listing(self) -> Listing:
        """Which partitions there are. Raises what makes the log directories unusable as a whole."""
        listing = self._equipment.dirs.listing()
        self._broker_topics.list(listing.partitions)
        unread = str(listing.unread or "")
        if unread != self._unread:
            self._unread = unread
            if unread:
                _log.error("leadership_unknown", reason=f"{unread}. Until then the agents of all replicas archive each partition in turn")
            else:
                _log.info("leadership_known")
        return listing

    def expect(self, places: Collection[TopicPartition]) -> None:
        """They are due: what is asked about one of them may as well be asked about all."""
        if self.broker_logs is not None:
            self.broker_logs.expect(places)

    def step(
        self,
        place: TopicPartition,
        policy_for: PolicyFor,
        watch: StepWatch | None = None,
        *,
        end: int | None = None,
        again: bool = False,
    ) -> PartitionOutcome:
        """One step of one partition, with at most one commit; then what is archived of an owned directory is released.

        watch  hears of each piece that goes, and says when the step has to end
        end    of the pass that requests it: what is committed from there on is not of it
        again  read even what was found damaged and has not changed since, and wait for no other partition's look at groups

        Raises nothing that a partition can be the reason of: the outcome says it, and `troubles`.
        """
        with listening() as contact:
            done = self._step(place, policy_for, watch or StepWatch(self.clock), end, again)
        if contact.failed and done.error:
            done = replace(done, store_answers=False)
        elif contact.answered:
            done = replace(done, store_answers=True)
        self.note(done)
        self.stepped(done)
        return done

    def _step(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch, end: int | None, again: bool) -> PartitionOutcome:
        started_s = self.clock.monotonic_s()
        member: Member | None = None
        log: LocalLog | None = None
        try:
            if not again and (still := self._unchanged(place, policy_for)) is not None:
                return still
            log = self.logs.look(place)
            with self._members.in_hand(log.partition) as member:
                if not again and (rest := self._still_at_rest(member, log, policy_for)) is not None:
                    done = PartitionOutcome(place=place, reason=rest.reason, quiet=rest.is_quiet(log))
                elif member.obstacle and not again and started_s < member.read_again_s and member.obstacle.remains(log):
                    done = PartitionOutcome(place=place, error=member.obstacle.error)
                else:
                    done = self._advance(member, log, policy_for, watch, end, again)
                again_s = _sooner(done.again_s, self._again_s(member, log, policy_for))
                done = replace(done, again_s=again_s, for_release=done.for_release and again_s == done.again_s)
                if done.again_s is not None:
                    done = replace(done, quiet=False)
                member.glimpse = log.glimpse if done.quiet and done.again_s is None and not done.error else None
                member.glimpse_until_s = started_s + GLIMPSE_S
        except NotFound as missing:
            done = self._missing(place, missing)
        except Exception as error:
            done = PartitionOutcome(place=place, error=self.trouble(place, error))
        if member is not None and log is not None:
            self._warn_of_retention(member, log)
        elapsed_s = round(self.clock.monotonic_s() - started_s, 3)
        return replace(done, last_offset=member.last_offset if member is not None else None, elapsed_s=elapsed_s)

    def _unchanged(self, place: TopicPartition, policy_for: PolicyFor) -> PartitionOutcome | None:
        """What its last step came to, where it was looked at a moment ago, had nothing to do, and looks the same from outside. A roll makes
        a partition due several times: by itself, by the checkpoints after it, and by the next listing."""
        member = self._members.at(place)
        if member is None or member.rest is None or member.glimpse is None or self.clock.monotonic_s() >= member.glimpse_until_s:
            return None
        if self._releases.are_made(self.settings_for(place.topic)) or self.policy(place, policy_for) != member.rest.policy:
            return None
        glimpse = self._equipment.dirs.glimpse(place)
        if glimpse is None or not glimpse.is_as(member.glimpse):
            return None
        return PartitionOutcome(place=place, reason=member.rest.reason, quiet=True, last_offset=member.last_offset)

    def _warn_of_retention(self, member: Member, log: LocalLog) -> None:
        """What the broker deletes before it is archived is lost."""
        last, now_s = member.last_offset, self.clock.monotonic_s()
        next_offset = log.start_offset if last is None else max(last + 1, log.start_offset)
        if now_s < member.warn_again_s or isinstance(archiving_role(log), Standby):
            return
        left_ms = too_near_ms(log, next_offset, self.clock.now_ms())
        if left_ms is None or self.settings_for(log.partition.topic).archive is ArchiveMode.OFF:
            return
        member.warn_again_s = now_s + WARN_S
        when = "is overdue" if left_ms <= 0 else f"is expected in {left_ms // 1000} s"
        _log.warning(
            "retention_near",
            partition=str(log.partition),
            next_offset=next_offset,
            reason=f"the broker's retention {when} to delete offsets from {next_offset} on, which are not archived yet",
        )

    def _still_at_rest(self, member: Member, log: LocalLog, policy_for: PolicyFor) -> Rest | None:
        """How it is seen that there is nothing to do, without the head; None where a step has to see that."""
        partition, rest, settings = log.partition, member.rest, self.settings_for(log.partition.topic)
        policy, is_known = self._policy_now(log, policy_for), rest is not None or member.archiver is not None
        if not is_known:
            rest = self._rest_by_hint(log, policy)
        if rest is None or (self._releases.are_made(settings) and not self._releases.is_complete(member, log, rest.next_offset, settings)):
            return None
        if not is_known:
            member.rest = rest
        elif not rest.remains(log, policy, lambda: self.tails.age_since(partition, rest.next_offset, log.high_watermark)):
            return None
        elif rest.is_ours:
            self._topics.ensure(partition)
        return rest

    def _rest_by_hint(self, log: LocalLog, policy: Policy) -> Rest | None:
        known = self._equipment.control.state().partition(log.partition) if self.announcer.informed else None
        if known is None or known.owner != self._equipment.writer:
            return None
        return Rest.by_hint(log, known.last_offset + 1, policy)

    def _again_s(self, member: Member, log: LocalLog, policy_for: PolicyFor) -> float | None:
        """When to look again at a log that is followed while it is written, or is sealed and will soon be committed. No event says so; the
        broker's checkpoint does, later."""
        settings = self.settings_for(log.partition.topic)
        if member.archiver is not None and member.archiver.is_streaming:
            return settings.follow_s
        policy = self.policy(log.partition.topic_partition, policy_for)
        if policy.stream is not None:
            policy = bounded(policy, log, self.clock.now_ms())
        if policy.follows and not (policy.off or log.topic_policy_proves_compaction or isinstance(archiving_role(log), Standby)):
            is_behind = (log.high_watermark or 0) > (member.last_offset if member.last_offset is not None else -1) + 1
            if is_behind:
                return settings.follow_s
            return settings.idle_follow_s if settings.idle_follow_s < settings.rescan_s else None  # that comes first, and costs nothing
        if self.broker_logs is None or not awaits_commit(log):
            member.commit_waits = 0
            return None
        member.commit_waits += 1
        again_s = COMMIT_S * 2.0 ** min(member.commit_waits - 1, 10)
        return again_s if again_s <= COMMIT_MAX_S else None

    def _advance(
        self, member: Member, log: LocalLog, policy_for: PolicyFor, watch: StepWatch, end: int | None, again: bool
    ) -> PartitionOutcome:
        settings = self.settings_for(log.partition.topic)
        archiver = self._members.archiver(member, log.partition)
        seen = log
        if end is not None and log.high_watermark is not None and log.high_watermark > end:
            seen = replace(log, high_watermark=end)
        before = archiver.head
        member.obstacle = member.rest = None
        self.look_before_work()
        self._budget.bytes_max, self.pool.bytes_max = self.settings().offload_buffer_bytes, self.settings().chunk_pool_bytes
        policy = self._policy_now(log, policy_for)
        interest = _Interest(self, archiver, log, policy_for, watch)
        is_idle, was_worked_on = False, log.partition in self._worked_on
        self._worked_on.add(log.partition)  # now: the process may end while a disk holds up the step
        try:
            outcome = archiver.step(replace(policy, pass_end=end), log, pace=UploadPermit(self._rate, interest.lost, self._equipment.wait))
            is_idle = outcome.action == "idle"
        except UploadStopped as stopped:
            _log.info("upload_stopped", partition=str(log.partition), reason=str(stopped))
            raise
        except HeadwaterError as error:
            member.obstacle = Obstacle.of(error, log, archiver.head.next_offset if archiver.head else 0)
            member.read_again_s = self.clock.monotonic_s() + READ_AGAIN_S
            raise
        finally:
            if not is_idle:
                self._worked_on.add(log.partition)
            elif not was_worked_on:
                self._worked_on.discard(log.partition)
        head = archiver.head
        if head is not None and head is not before:
            member.confirmed_s = self.clock.monotonic_s()
        done = PartitionOutcome(place=log.partition.topic_partition, reason=outcome.reason, progressed=not outcome.is_last)
        if done.progressed and head is not None:
            done = replace(done, deadline_ms=deadline_ms(log, head.next_offset))
        if not (done.progressed or log.topic_policy_proves_compaction):  # where the cleaner is must be seen often
            caught_up = head is not None and (log.high_watermark or 0) <= head.next_offset
            done = replace(done, quiet=caught_up or bool(policy.off) or isinstance(archiving_role(log), Standby))
        if outcome.entry and not outcome.entry.gap:
            made = (*outcome.before, outcome.entry)
            done = replace(done, objects=len(made), archived_bytes=sum(entry.live_bytes for entry in made))
        if outcome.action not in ("idle", "outrun", "reread", "archived", "gap", "assigned"):
            member.forget_merges()
        if policy.merge_bytes and head is not None and (outcome.progressed or not member.merge_known):
            member.merge_known = True
            done = replace(done, merge_in_s=float(settings.merge_after_s))
        try:
            if outcome.progressed and head:
                self.committed(head)
            if self._releases.are_made(settings):
                released = self._releases.release(member, archiver, log, settings, at_once=again and outcome.is_last)
                done = replace(done, released_bytes=released.size_bytes)
                if released.again_s is not None:
                    done = replace(done, again_s=released.again_s, for_release=True, quiet=False)
        except Exception as error:
            done = replace(done, error=self.trouble(done.place, error))  # beside what the step has done
        if not (done.progressed or done.error or done.again_s is not None or archiver.is_streaming):
            member.rest = Rest.of(seen, head, policy, outcome.reason, self._equipment.writer)
        return done

    def merge(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> MergeTurn:
        """Merge the next small neighbours of one partition, with at most one commit. Raises nothing that a partition can be the reason of:
        archiving goes on without merges, so they are no trouble of the partition's."""
        with listening() as contact:
            try:
                turn = self._merge(place, policy_for, watch)
            except NotFound:
                turn = MergeTurn(None)
            except UploadStopped:
                turn = MergeTurn(0.0)
            except Exception as error:
                _log.warning("merge_postponed", partition=str(place), reason=str(self.trouble(place, error)))
                turn = MergeTurn(MERGE_AGAIN_S, store_answers=False if contact.failed else None)
        return turn._replace(store_answers=True) if contact.answered and turn.store_answers is None else turn

    def _merge(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> MergeTurn:
        log = self.logs.look(place)
        with self._members.in_hand(log.partition) as member:
            archiver = self._members.archiver(member, log.partition)
            interest = _Interest(self, archiver, log, policy_for, watch)
            steady = UploadPermit(self._rate, interest.lost, self._equipment.wait)
            permit = UploadPermit(self._rate, lambda: watch.waits() or interest.lost(), self._equipment.wait)
            is_older = member.older_s is not None and self.clock.monotonic_s() >= member.older_s
            passed = member.older_to if is_older else member.merged_to
            is_idle = False
            try:
                outcome = archiver.merge(self._policy_now(log, policy_for), passed=passed, pace=permit, check=permit.check, steady=steady)
                is_idle = not (outcome.merged or outcome.more or outcome.comes_first)
            finally:
                if not is_idle:
                    self._worked_on.add(log.partition)
            if outcome.merged and archiver.head:
                member.confirmed_s = self.clock.monotonic_s()
                self.committed(archiver.head)
            if outcome.comes_first:
                return MergeTurn(MERGE_AGAIN_S, is_archiving_due=True)
            if outcome.passed is None:
                return MergeTurn(None)
            again_in_s = self._merge_again_in_s(member, outcome, archiver.head, is_older=is_older)
            return MergeTurn(earliest(again_in_s, outcome.again_in_s))

    def _merge_again_in_s(self, member: Member, outcome: MergeOutcome, head: Head | None, *, is_older: bool) -> float | None:
        """What is in pages since before the start, or the claim, is looked at later, one partition's after the other's: else ten thousand
        partitions would have all their pages read at once, an hour after a start."""
        if is_older:
            member.older_to = outcome.passed
            if outcome.merged is None:
                member.older_s = self._older_turn_s() if outcome.more else None
        else:
            member.merged_to = outcome.passed
        if outcome.merged is not None or (outcome.more and not is_older):
            return 0.0
        if is_older and not outcome.more:  # it has looked at all there is
            member.merged_to, member.older_to = outcome.passed, None
        elif member.older_to is not None and (head is None or not head.entries.references):
            member.older_to = None
        if member.older_to is None:
            return None
        if member.older_s is None:
            member.older_s = self._older_turn_s()
        return member.older_s - self.clock.monotonic_s()

    def _older_turn_s(self) -> float:
        """When the next partition may have older pages read: up to ten of them (see merge_plan.LOOKED_AT_MAX)."""
        with self._turns:
            self._older_s = max(self._older_s + OLDER_EVERY_S, self.clock.monotonic_s())
            return self._older_s

    def _missing(self, place: TopicPartition, missing: NotFound) -> PartitionOutcome:
        """Is the partition not there, or something that it needs?"""
        try:
            self.logs.look(place)
        except NotFound:
            self._members.forget(place)
            return PartitionOutcome(place=place, reason="gone", gone=True)
        except Exception as error:
            return PartitionOutcome(place=place, error=self.trouble(place, error))
        if isinstance(missing, LogNotFound):
            return PartitionOutcome(place=place, error=SourceChanged(f"{place} was created again, or moved, while it was looked at"))
        return PartitionOutcome(place=place, error=missing)

    def trouble(self, place: TopicPartition, error: Exception) -> HeadwaterError:
        """Return any exception as one of ours. An unexpected one is logged here, with its traceback."""
        match error:
            case HeadwaterError():
                return error
            case OSError():  # a file vanished, a disk filled up: this partition's trouble, and perhaps not for long
                return error_kind(error)(f"{place}: {error}")
        words = f"unexpected {type(error).__name__}: {error}"
        self.unexpected += 1
        _log.error("archive_failed", partition=str(place), exc_info=error)
        return HeadwaterError(words)

    def note(self, outcome: PartitionOutcome) -> None:
        """Keep `failures` up to date."""
        if outcome.error:
            before = self.failures.get(outcome.place)
            self.failures[outcome.place] = StepFailure(outcome.error, before.since_ms if before else self.clock.now_ms())
        else:
            self.failures.pop(outcome.place, None)

    def retain(self, places: Collection[TopicPartition]) -> None:
        """Forget all that is known of other partitions: they are gone from the log directories.

        What is kept by identity waits until each place has been looked at, since its name does not show which incarnation it is.
        """
        for place in [each for each in self.failures.copy() if each not in places and each != LOG_DIRS]:
            self.failures.pop(place, None)
        present = self._members.retain(places)
        if self.broker_logs is not None:
            self.broker_logs.retain(places)
        if len(present) == len(places):
            self.tails.retain(present)
            self._topics.retain(present)
            for gone in self.announcer.retire_absent(present, self._equipment.writer):
                self._sightings.forget(gone)
                self._worked_on.discard(gone)

    def save(self) -> None:
        """Write down what must outlive the process. Raises DiskFull and TransientError."""
        self._looks.save()
        self.tails.save()

    def _follows(self, topic: str) -> bool:
        """Is what it has committed archived while it is written?"""
        return self.settings_for(topic).offload is OffloadMode.STREAMING

    def _identify(self, place: TopicPartition) -> PartitionId | None:
        identity = self._members.identity(place)
        if identity is None:
            try:
                identity = self.logs.look(place).partition
            except HeadwaterError:
                return None
            self._members.identify(identity)
        return identity

    def held(self) -> list[tuple[PartitionId, PartitionState]]:
        """The partitions that this agent holds, as the control log knows them, so this is a hint."""
        known = self._equipment.control.state().partitions()
        return [(partition, state) for partition, state in known if state.owner == self._equipment.writer]

    def take_worked_on(self, partition: PartitionId) -> bool:
        """Has a step that ended since this was last called done anything, or failed? It may have left objects that no commit lists."""
        try:
            self._worked_on.remove(partition)
        except KeyError:
            return False
        return True

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """Of the bucket's data objects. Raises what the store raises."""
        return chain.from_iterable(map(self._equipment.store.unfinished, keys.ALL_ROOTS))

    def abort(self, upload: UnfinishedUpload) -> None:
        """Raises what the store raises."""
        self._equipment.store.abort(upload)

    def collect(
        self,
        partition: PartitionId,
        *,
        border: Border | None = None,
        uploads: Sequence[UnfinishedUpload] = (),
        dry_run: bool = False,
        unasked: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> Collected:
        """Collect one partition, which need not have a log: see Collector. One at a time.

        unasked  nobody requests it, so it may wait for what waits for its commit

        Raises nothing that a partition can be the reason of: the outcome says it.
        """
        try:
            with self._collecting, self._members.archiver_of(partition) as archiver:
                settings, kept_from = self._retention_of(partition), self._kept_from(partition)
                done = self._collector.collect(
                    archiver,
                    settings,
                    border=border,
                    kept_from=kept_from,
                    uploads=uploads,
                    dry_run=dry_run,
                    discards=not unasked,
                    stop=stop,
                )
                if done.committed and archiver.head is not None:
                    self.committed(archiver.head)
        except Exception as error:
            self._worked_on.add(partition)
            done = Collected(partition=partition, error=self.trouble(partition.topic_partition, error))
        if not isinstance(done.error, TransientError):
            is_stopped = done.error is not None and not isinstance(done.error, Fenced)
            self.collection_troubles[partition] = f"nothing is deleted: {done.error}" if is_stopped else done.kept
        return done

    def _retention_of(self, partition: PartitionId) -> ArchivalConfig:
        """What is set for it, where its records expire."""
        settings = self.settings_for(partition.topic)
        if (settings.retention_s is None and settings.retention_bytes is None) or self._expires(partition):
            return settings
        return replace(settings, retention_s=None, retention_bytes=None)

    def _expires(self, partition: PartitionId) -> bool:
        """Of a topic that is compacted alone nothing expires, as in Kafka: its oldest records may be the only ones of their keys. Nor does
        anything where that cannot be known: a topic without a policy of its own has its broker's, which the log here shows."""
        topic = self._equipment.repository.load_topic(partition.topic, partition.topic_id)
        if topic is None:
            return False
        policy = (topic.configs or {}).get("cleanup.policy")
        if policy is not None:
            return {each.strip() for each in policy.split(",")} != {"compact"}
        try:
            log = self.logs.look(partition.topic_partition)
        except NotFound:
            return False
        return log.partition == partition and not (log.leadership_unread or log.compacted_only or log.cleaned_to is not None)

    def _kept_from(self, partition: PartitionId) -> int | None:
        """Where we delete, or have the broker delete, what the archive holds, the archive must not begin after the log: what it has let go
        there would never be deleted. Nor where that is requested and only another leader's agent can do it."""
        if not self._releases.are_wanted(self.settings_for(partition.topic)):
            return None
        try:
            log = self.logs.look(partition.topic_partition)
        except NotFound:
            return None
        return log.start_offset if log.partition == partition else None

    def _new_archiver(self, partition: PartitionId) -> PartitionArchiver:
        return PartitionArchiver(partition, self._shared, self.settings_for(partition.topic).offloader)


def _known_head(member: Member, now_s: float) -> KnownHead | None:
    head = member.archiver.head if member.archiver is not None else None
    if head is None:
        return None
    return KnownHead(head, round(now_s - (now_s if member.confirmed_s is None else member.confirmed_s), 3))


def _sooner(*waits: float | None) -> float | None:
    return min((each for each in waits if each is not None), default=None)
