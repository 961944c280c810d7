"""A recovery plan: everything that `apply` does, as a value, and whether it can be done.

The broker that starts on a recovered directory notices neither a missing middle segment nor a wrong end offset, so what
must be true is checked here, and again on the bytes when the plan is applied.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, UnsupportedFormat, UsageError
from headwater_core.layouts import is_known
from headwater_core.partition import PartitionId, check_cluster_id, check_topic_name
from manifests import keys
from manifests.cluster_list import SNAPSHOT_BYTES_MAX
from manifests.document import FORMAT
from manifests.entry import EPOCH_MAX, OFFSET_MAX, Entry, check_entry
from recovery.cut import RecoveryCut
from recovery.entry_list import EntryList

SEGMENT_BYTES_MAX = 2**31 - 1  # a broker's positions in a segment are int32
SEGMENT_OFFSETS_MAX = 2**31 - 1  # and so are its offsets, relative to the segment's base
NODE_ID_MAX = 2**31 - 1
BROKERS_MAX = 1000
Mode = Literal["full", "partial", "instant"]
_TORN_SHOWN = 20
PRODUCER_ID_MAX = 2**62  # coordinators count from 0, and never come here; a client may write any id, and brokers take it


Place = tuple[str, int]  # topic, partition


class TargetBroker(msgspec.Struct, frozen=True, kw_only=True):
    """One of several brokers that a cluster comes back on. directory: its log directory, below the target; rack: where it is"""

    node_id: int
    directory: str
    rack: str | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the user requested. The user's values win over the archive's.

    partitions       of the one topic that is recovered, when the archive's count is not to be believed
    partition_counts the same by topic
    apply_retention  the topics' own retention bounds what is recovered, and stays in their settings
    retention_ms, retention_bytes  the same with these values, per partition
    cluster_id       of the recovered cluster; a new one is made up when there is none
    node_id          of the broker that will start on the directory
    open_transactions  of those that are open where a log ends: `abort` writes their ABORT markers; `cut` ends the log before them, and
                     every log before a transaction that would come back in part; `keep` leaves them to the recovered coordinator
    keep_offsets     committed offsets ahead of the recovered logs stay as they are
    mode             what comes back to the disk: `full`, everything live in the archive; `partial`, the newest of it by keep_bytes and
                     keep_ms, per partition; `instant`, no records. A gateway serves the rest
    to_time_ms       logs end before the first batch with a later timestamp
    to_offsets       logs end before these offsets, by TOPIC:PARTITION
    count_all        after to_time_ms, each run that may hold a record out of order is fetched to count them; else 16 of a partition at most
    drop_partitions  a given count may be less than what is archived
    renames          names in the recovered cluster, by the archive's
    cluster          the whole cluster, with this snapshot of its metadata: a number, or `latest`; None: topics alone
    kafka_release    the release of Kafka that is to start on it, such as 4.2; None: any that does. One that is newer than all that are
                     known gets the records that this version does not know
    metadata_version that it is raised to, a level or a release; None: as it was archived
    unlisted_topics  with topics that this snapshot does not have
    brokers          that it comes back on; none: on one, `node_id`
    take_over        the recovered cluster gets the archive, and the old one loses it
    running          the running cluster into which the topics come back, and its brokers
    """

    partitions: int | None = None
    partition_counts: dict[str, int] = {}
    apply_retention: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None
    cluster_id: str | None = None
    node_id: int = 1
    open_transactions: Literal["abort", "keep", "cut"] = "abort"
    keep_offsets: bool = False
    cluster: str | None = None
    unlisted_topics: bool = False
    mode: Mode = "full"
    keep_bytes: int | None = None
    keep_ms: int | None = None
    to_time_ms: int | None = None
    to_offsets: dict[str, int] = {}
    count_all: bool = False
    drop_partitions: bool = False
    renames: dict[str, str] = {}
    kafka_release: str | None = None
    metadata_version: str | None = None
    take_over: bool = False
    brokers: tuple[TargetBroker, ...] = ()
    running: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The request: two plans of one request, of one cluster's archive, are the same recovery. topics: NAME or
    NAME@TOPIC_ID; None means all."""

    topics: tuple[str, ...] | None
    options: Options


class LostRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that the archive lists and that is missing or damaged, by its offsets, both inclusive; and why."""

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    reason: str

    def __post_init__(self) -> None:
        if not 0 <= self.base_offset <= self.last_offset:
            raise ValueError(f"offsets out of order: {self.base_offset} to {self.last_offset}")

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition} offsets {self.base_offset}-{self.last_offset}: {self.reason}"


class LostPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a manifest that is missing or damaged: which runs it lists between these offsets, both inclusive, nobody knows."""

    base_offset: int
    last_offset: int
    reason: str

    def __post_init__(self) -> None:
        if not 0 <= self.base_offset <= self.last_offset:
            raise ValueError(f"offsets out of order: {self.base_offset} to {self.last_offset}")


class Abort(msgspec.Struct, frozen=True, kw_only=True):
    """The marker that ends a producer's open transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A record of __consumer_offsets or __share_group_state, as it is written."""

    key: bytes
    value: bytes


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of recovery's own: markers, then commits, one offset each.

    rewritten  how many records follow that are derived from the recovered partition once it is in place (coordinator_tail.py): there may be
               a million of them
    """

    base_offset: int
    leader_epoch: int
    aborts: tuple[Abort, ...] = ()
    commits: tuple[Commit, ...] = ()
    rewritten: int = 0

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.aborts) + len(self.commits) + self.rewritten


class OffsetAhead(msgspec.Struct, frozen=True, kw_only=True):
    """A group's committed offset beyond the end of the recovered log: what is produced between the two would be skipped.

    shared  of a share group: below `offset` it has acknowledged records, or given them up
    """

    group: str
    topic: str
    partition: int
    offset: int
    log_end: int
    shared: bool = False


class GroupCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A group's committed offset as the archive has it, with the text that the group gave; or where a share group is not done from on.

    shared  it is a share group's
    """

    group: str
    topic: str
    partition: int
    offset: int
    metadata: str = ""
    shared: bool = False

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.offset <= OFFSET_MAX + 1:
            raise ValueError(f"a committed offset of {self.offset} in partition {self.partition}")


class OffsetGap(NamedTuple):
    """Offsets that no record of the archive has; both ends are inclusive."""

    base_offset: int
    last_offset: int


class LeftInArchive(msgspec.Struct, frozen=True, kw_only=True):
    """Live in the archive, below a log that comes back without it: what a gateway serves. Offsets are inclusive."""

    base_offset: int
    last_offset: int
    runs: int
    records: int
    size_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.base_offset <= self.last_offset <= OFFSET_MAX or min(self.runs, self.records, self.size_bytes) < 0:
            raise ValueError(f"left in the archive: {self.runs} runs from {self.base_offset} to {self.last_offset}")


class RequestedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Where a log is to end, before the archive's end, as the user requested.

    offset        the log's end, or inside the last batch that is left out
    records       how many are left out
    out_of_order  how many of those are not later than the requested time; at_least: there may be more
    """

    offset: int
    records: int
    out_of_order: int = 0
    at_least: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.offset <= OFFSET_MAX or not 0 <= self.out_of_order <= self.records:
            raise ValueError(f"an end at {self.offset}, without {self.records} records, {self.out_of_order} of them out of order")


class PartitionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One partition directory.

    start_offset, next_offset   log start, and end of what is archived
    leader_epoch     the highest anywhere in the archive of this partition, superseded branches included, or in the cluster's snapshot
    head_epoch       the highest that the head has followed; None in a plan of before
    max_producer_id  the highest that a coordinator can have given
    manifest_version, manifest_fence, manifest_digest  of the head the plan was made from; 0, 0 and "" when the partition has none
    entries          in offset order; each becomes one segment file, a gap becomes none. Whatever is given becomes an EntryList
    written          segments of recovery's own, in gaps and after the last entry
    below_retention  entries that retention left out
    open_from        first offset of the oldest transaction that is left open
    end              where the user lets the log end; None: with the archive
    left             what is left in the archive below the entries and a gateway serves
    replicas         the brokers that it is on, the one with its records first; none: the plan's one node
    directory        of that broker, below the target
    beneath          the newest runs of that, as far back as a transaction began that is open where one of `entries` ends, or the log
    archive_end      where what is archived ends, also where the log ends before it; None: a plan of before
    newest_ms        greatest timestamp of a record that the archive has of it, see Entry.newest_ms; None: none has one, or a plan of before
    lost_pages       of its manifest; gaps among the entries, once what is damaged is skipped
    """

    partition: int
    start_offset: int = 0
    next_offset: int = 0
    leader_epoch: int = 0
    head_epoch: int | None = None
    max_producer_id: int = -1
    manifest_version: int = 0
    manifest_fence: int = 0
    manifest_digest: str = ""
    entries: Sequence[Entry] = EntryList()
    written: tuple[Written, ...] = ()
    below_retention: int = 0
    open_from: int | None = None
    end: RequestedEnd | None = None
    left: LeftInArchive | None = None
    beneath: tuple[Entry, ...] = ()
    lost_pages: tuple[LostPage, ...] = ()
    archive_end: int | None = None
    newest_ms: int | None = None
    replicas: tuple[int, ...] = ()
    directory: str = ""

    def __post_init__(self) -> None:
        """Partitions that a broker could not serve pass here: an archive may hold them. `check_partition` refuses them."""
        if self.partition < 0 or not 0 <= self.start_offset <= self.next_offset <= OFFSET_MAX + 1 or self.leader_epoch < 0:
            raise ValueError(f"partition {self.partition} from {self.start_offset} to {self.next_offset}, leader epoch {self.leader_epoch}")
        if min(self.max_producer_id + 1, self.manifest_version, self.below_retention, self.open_from or 0) < 0:
            raise ValueError(f"negative: producer id {self.max_producer_id}, version {self.manifest_version}, open from {self.open_from}")
        msgspec.structs.force_setattr(self, "entries", EntryList.of(self.entries))

    @property
    def listed(self) -> EntryList:
        """The entries, as what they are."""
        return EntryList.of(self.entries)

    @property
    def log_end(self) -> int:
        """Of the recovered log."""
        return max(self.next_offset, *(each.next_offset for each in self.written)) if self.written else self.next_offset

    @property
    def first_epoch(self) -> int:
        """The leader epoch that the recovered partition is given; a broker begins one above. What recovery writes after the
        archived records has an epoch of its own, in which no other leader ever wrote."""
        return self.leader_epoch + (self.log_end > self.next_offset)

    @property
    def files(self) -> EntryList:
        return self.listed.runs

    @property
    def gaps(self) -> tuple[OffsetGap, ...]:
        return tuple(OffsetGap(entry.base_offset, entry.last_offset) for entry in self.listed.gaps)

    @property
    def records(self) -> int:
        return self.listed.records

    @property
    def size_bytes(self) -> int:
        return self.listed.live_bytes


class SourceTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as the archive has it."""

    topic: str
    topic_id: str


class HeldSetting(msgspec.Struct, frozen=True, kw_only=True):
    """value: what is put back, None: the topic had none; recovered: what the recovered topic was given in its place, None: none."""

    topic: str
    topic_id: str
    name: str
    value: str | None
    recovered: str | None


class TopicPlan(msgspec.Struct, frozen=True, kw_only=True):
    """configs: as the recovered topic gets them. held: settings that were set aside so that the broker does not delete
    what was just recovered, with the value to put back, None when there was none. source: of which topic it is made; None: its own name
    and id. manifest_version: of the topic manifest that it was planned from; 0: a plan of before says none."""

    topic: str
    topic_id: str
    compacted: bool
    configs: dict[str, str]
    held: dict[str, str | None]
    partitions: tuple[PartitionPlan, ...]
    source: SourceTopic | None = None
    manifest_version: int = 0

    @property
    def archived_name(self) -> SourceTopic:
        """Of which topic of the archive it is made."""
        return self.source or SourceTopic(topic=self.topic, topic_id=self.topic_id)

    def archived_id(self, cluster_id: str, partition: int) -> PartitionId:
        """Of which partition of the archive of `cluster_id` that partition is made."""
        return PartitionId(cluster_id, self.archived_name.topic_id, partition, self.archived_name.topic)

    @property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot of the cluster's metadata that is recovered, by its object; what is secret in it is not in the plan.

    users, acls, quotas  how many of each
    settings             how many of brokers, of groups and of client metrics
    unknown              records that this version does not know, and that the new cluster begins with all the same
    starts_on            the releases of Kafka that start on it, of those that are known; (): a newer one
    used_by              topics that hold the state of something beside them: consumer groups, Kafka Connect and others
    next_producer_id     ids from there on had not been handed out
    """

    number: int
    key: str
    size_bytes: int
    digest: str | None
    taken_ms: int
    features: dict[str, int]
    users: int
    acls: int
    quotas: int
    next_producer_id: int
    settings: dict[str, int] = {}
    unknown: int = 0
    starts_on: tuple[str, ...] = ()
    used_by: dict[str, tuple[str, ...]] = {}

    def __post_init__(self) -> None:
        name = keys.parse_cluster_snapshot(self.key)
        if name is None or name.number != self.number or not 0 <= self.size_bytes <= SNAPSHOT_BYTES_MAX:
            raise ValueError(f"no snapshot of a cluster: {self.key[:200]!r}, {self.size_bytes} bytes")
        if not 0 <= self.next_producer_id <= OFFSET_MAX:
            raise ValueError(f"producer id {self.next_producer_id}")


class RunningPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery into a running cluster has beside its topics.

    present  of those, the topics that the cluster has already, and that are empty
    kept     topics that were requested and stay as the cluster has them: they are not lost, or its own affair
    commits  what groups had committed of the topics; `finish` gives it to the cluster, clamped to the logs' ends
    grown    the brokers that each partition is to be on in the end, by TOPIC, in order of partitions; a topic of which nobody knows how
             many replicas it had is not there
    """

    present: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    commits: tuple[GroupCommit, ...] = ()
    grown: dict[str, tuple[tuple[int, ...], ...]] = {}


class Forecast(msgspec.Struct, frozen=True):
    """What applying a plan will take.

    needed_bytes  on disk: segments, and at most so much for their indexes
    free_bytes    where they are to be; None: no directory was named
    seconds       with as many downloads at a time as a recovery has, each as fast as the sample; None: nothing is fetched, or the sample
                  could not be
    bytes_per_s   of the sample
    """

    needed_bytes: int
    free_bytes: int | None
    seconds: float | None
    bytes_per_s: float | None

    @property
    def has_room(self) -> bool:
        return self.free_bytes is None or self.free_bytes >= self.needed_bytes


class RecoveryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `apply` does, and nothing that it has to decide.

    left_out  of everything requested, what the archive cannot give back, and why: applying the plan is a partial success
    holes     the lost runs, where they are known: the plan is applied only when they may be skipped
    offsets_ahead  committed offsets beyond the recovered logs; new commits at the logs' ends are `written`, unless they were to be kept
    problems  why it cannot be applied as it is
    notes     what the user should know before and after
    endings   the same, of where logs end
    cluster   None: topics alone
    features  levels that a cluster of topics alone begins with; None: those of a new one
    brokers   that the cluster comes back on, each with its directory; none: on `node_id` alone, in the target itself
    cut       where each log ends, and what was brought to it; None in a plan that has not been settled
    forecast  room and time, for people; None where nobody has measured
    unplanned_heads  keys of those that were there and of which nothing comes back; of a plan that takes the archive over alone
    running   the plan is of a recovery into a running cluster; a topic that is still to be created there has the id ""
    """

    format: tuple[int, int] = FORMAT
    recovery_id: str
    mode: str = "full"  # one of Mode
    request: Request
    source_cluster_id: str
    cluster_id: str
    node_id: int
    topics: tuple[TopicPlan, ...]
    left_out: tuple[str, ...] = ()
    holes: tuple[LostRun, ...] = ()
    offsets_ahead: tuple[OffsetAhead, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    cluster: ClusterPlan | None = None
    features: dict[str, int] | None = None
    cut: RecoveryCut | None = None
    forecast: Forecast | None = None
    brokers: tuple[TargetBroker, ...] = ()
    unplanned_heads: tuple[str, ...] = ()
    running: RunningPlan | None = None

    @property
    def targets(self) -> tuple[TargetBroker, ...]:
        """The brokers; the one whose log directory is the target itself, where there are not several."""
        return self.brokers or (TargetBroker(node_id=self.node_id, directory=""),)

    @property
    def held(self) -> tuple[HeldSetting, ...]:
        """All that is held back, by topic."""
        return tuple(
            HeldSetting(topic=topic.topic, topic_id=topic.topic_id, name=name, value=value, recovered=topic.configs.get(name))
            for topic in self.topics
            for name, value in sorted(topic.held.items())
        )

    @property
    def torn(self) -> tuple[str, ...]:
        """For people, the transactions of which a part comes back: applying the plan is a partial success then."""
        torn = self.cut.torn if self.cut else ()
        more = (
            (f"torn: {count_text(len(torn) - _TORN_SHOWN, 'more transaction')}; the plan has all in cut.torn",)
            if len(torn) > _TORN_SHOWN
            else ()
        )
        return (*map(str, torn[:_TORN_SHOWN]), *more)

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def size_bytes(self) -> int:
        return sum(topic.size_bytes for topic in self.topics)

    @property
    def next_producer_id(self) -> int:
        """Above every producer id in the archive, so that no new producer gets one that a log or a coordinator still remembers."""
        ids = [partition.max_producer_id for topic in self.topics for partition in topic.partitions]
        if self.cut is not None and self.cut.coordinator_producer_id <= PRODUCER_ID_MAX:
            ids.append(self.cut.coordinator_producer_id)
        handed_out = min(self.cluster.next_producer_id, PRODUCER_ID_MAX) if self.cluster else 0
        return max(max(ids, default=-1) + 1, handed_out)


def check_plan(plan: RecoveryPlan) -> RecoveryPlan:
    """`plan` when it can be carried out: names are safe, entries abut and fit segment files (I4, I22).

    Raises CorruptData, UnsupportedFormat for another mode.
    """
    check_cluster_id(plan.cluster_id)
    if not 0 <= plan.node_id <= NODE_ID_MAX or not plan.recovery_id.isalnum():
        raise CorruptData("recovery plan", 0, f"node id {plan.node_id}, recovery id {plan.recovery_id[:40]!r}")
    if plan.mode not in get_args(Mode):
        raise UnsupportedFormat(f"recovery mode {plan.mode[:40]!r}; this version knows {', '.join(get_args(Mode))}")
    if any(not 0 <= level < 2**15 or len(name) > 249 for name, level in (plan.features or {}).items()):
        raise CorruptData("recovery plan", 0, f"feature levels {plan.features!s:.200}")
    check_brokers(plan.brokers)
    if len({topic.topic for topic in plan.topics}) != len(plan.topics):
        raise CorruptData("recovery plan", 0, "a topic is planned twice")
    for topic in plan.topics:
        if [partition.partition for partition in topic.partitions] != list(range(len(topic.partitions))):
            raise CorruptData(f"recovery plan of {topic.topic}", 0, "its partitions are not 0, 1, 2 and so on")
        check_topic_name(topic.topic)
        for partition in topic.partitions:
            _check_place(plan, partition)
            check_partition(topic.archived_id(plan.source_cluster_id, partition.partition), partition)
    return plan


def _check_place(plan: RecoveryPlan, partition: PartitionPlan) -> None:
    """It is on brokers of the plan, each once, and its records are in the directory of the first."""
    directories = {each.node_id: each.directory for each in plan.brokers}
    wanted = directories.get(partition.replicas[0], "") if partition.replicas else ""
    is_placed = bool(partition.replicas) == bool(plan.brokers) and len(set(partition.replicas)) == len(partition.replicas)
    if not is_placed or not directories.keys() >= set(partition.replicas) or partition.directory != wanted:
        raise CorruptData("recovery plan", 0, f"partition {partition.partition} on {partition.replicas} in {partition.directory[:100]!r}")


def check_brokers(brokers: Sequence[TargetBroker]) -> None:
    """Raises UsageError unless each has an id and a directory of its own, below the target."""
    if len(brokers) > BROKERS_MAX:
        raise UsageError(f"{count_text(len(brokers), 'broker')}; {BROKERS_MAX} at most")
    for each in brokers:
        if not 0 <= each.node_id <= NODE_ID_MAX:
            raise UsageError(f"not a node id: {each.node_id}")
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", each.directory):
            raise UsageError(f"{each.directory[:100]!r} is no name of a directory: letters, digits, . _ -")
    for what, values in (("id", [each.node_id for each in brokers]), ("directory", [each.directory for each in brokers])):
        if twice := [value for value, count in Counter(values).items() if count > 1]:
            raise UsageError(f"two brokers have the {what} {twice[0]}")


def check_partition(identity: PartitionId, partition: PartitionPlan) -> PartitionPlan:
    """`partition` when a broker can serve it; raises CorruptData, UnsupportedFormat."""

    def bad(reason: str) -> CorruptData:
        return CorruptData(f"recovery plan of {identity}", 0, reason)

    if partition.leader_epoch >= EPOCH_MAX - 2:
        raise bad(f"leader epoch {partition.leader_epoch}")
    if partition.max_producer_id > PRODUCER_ID_MAX:
        raise bad(f"producer id {partition.max_producer_id}")
    for entry in partition.beneath:
        check_entry(identity, entry)
    expected = None
    for entry in partition.entries:
        check_entry(identity, entry)
        if expected is not None and entry.base_offset != expected:
            raise bad(f"offset {expected} is missing: the next run begins at {entry.base_offset}")
        if not is_known(entry.layout) and not entry.gap:
            raise UnsupportedFormat(f"{identity}: layout {entry.layout[:40]!r} cannot be recovered by this version")
        if not entry.gap and (entry.live_bytes > SEGMENT_BYTES_MAX or entry.next_offset - entry.base_offset > SEGMENT_OFFSETS_MAX):
            raise UnsupportedFormat(f"{identity}: the run at offset {entry.base_offset} is too large for one segment file")
        expected = entry.next_offset
    if expected is not None and (expected != partition.next_offset or partition.start_offset not in _reach(partition.entries[0])):
        raise bad(f"entries from {partition.entries[0].base_offset} to {expected - 1} for a log from {partition.start_offset}")
    if expected is None and partition.start_offset != partition.next_offset:
        raise bad(f"no entries for a log from {partition.start_offset} to {partition.next_offset}")
    gaps = [range(first, last + 1) for first, last in partition.gaps]
    for written in partition.written:
        behind = written.base_offset == partition.next_offset and written.leader_epoch == partition.leader_epoch + 1
        within = any(written.base_offset in gap and written.next_offset - 1 in gap for gap in gaps)
        if written.rewritten < 0 or not (behind or within) or not written.base_offset < written.next_offset <= OFFSET_MAX:
            raise bad(f"a segment of its own from {written.base_offset} to {written.next_offset}")
    if len({each.base_offset for each in partition.written}) != len(partition.written):
        raise bad("two segments of its own at one offset")
    return partition


def _reach(first: Entry) -> range:
    return range(first.base_offset, first.next_offset)
