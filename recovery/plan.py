"""A recovery plan: everything that `apply` does, as a value and as a document, and whether it can be done.

The broker that starts on a recovered directory notices neither a missing middle segment nor a wrong end offset, so what
must be true is checked here, and again on the bytes when the plan is applied.
"""

import msgspec

from manifests.document import FORMAT, seal, unseal
from manifests.head import OFFSET_MAX, Entry, check_entry
from model.errors import CorruptData, UnsupportedFormat
from model.partition import PartitionId, topic_id_text

SEGMENT_BYTES_MAX = 2**31 - 1  # a broker's positions in a segment are int32
SEGMENT_OFFSETS_MAX = 2**31 - 1  # and so are its offsets, relative to the segment's base
NODE_ID_MAX = 2**31 - 1
PRODUCER_ID_MAX = 2**62  # coordinators count from 0, and never come here; a client may write any id, and brokers take it


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. The user's values win over what the archive says.

    partitions       of the one topic that is recovered, when the archive's count is not to be believed
    apply_retention  the topics' own retention bounds what is recovered, and stays in their settings
    retention_ms, retention_bytes  the same with these values, per partition
    cluster_id       of the recovered cluster; a new one is made up when there is none
    node_id          of the broker that will start on the directory
    """

    partitions: int | None = None
    apply_retention: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None
    cluster_id: str | None = None
    node_id: int = 1


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked: two plans of one request, of one cluster's archive, are the same recovery. topics: None means all."""

    topics: tuple[str, ...] | None
    options: Options


class PartitionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One partition directory.

    start_offset, next_offset   log start and log end of the recovered log
    leader_epoch     the highest anywhere in the archive of this partition, superseded branches included
    max_producer_id  the highest that a coordinator can have given
    manifest_version of the head the plan was made from; 0 when the partition has none
    entries          in offset order; each becomes one segment file, a gap becomes none
    below_retention  entries that retention left out
    open_from        first offset of a transaction that nobody finished; it is left open
    """

    partition: int
    start_offset: int = 0
    next_offset: int = 0
    leader_epoch: int = 0
    max_producer_id: int = -1
    manifest_version: int = 0
    entries: tuple[Entry, ...] = ()
    below_retention: int = 0
    open_from: int | None = None

    @property
    def files(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if not entry.gap)

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """(first, last) offset of each."""
        return tuple((entry.base_offset, entry.last_offset) for entry in self.entries if entry.gap)

    @property
    def records(self) -> int:
        return sum(entry.records for entry in self.entries)

    @property
    def size_bytes(self) -> int:
        return sum(entry.live_bytes for entry in self.entries)


class TopicPlan(msgspec.Struct, frozen=True, kw_only=True):
    """configs: as the recovered topic gets them. held: settings that were set aside so that the broker does not delete
    what was just recovered, with the value to put back, None when there was none."""

    topic: str
    topic_id: str
    compacted: bool
    configs: dict[str, str]
    held: dict[str, str | None]
    partitions: tuple[PartitionPlan, ...]

    @property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)


class RecoveryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `apply` does, and nothing that it has to decide.

    left_out  of everything that was asked for, what the archive cannot give back, and why: applying the plan is a partial success
    problems  why it cannot be applied as it is
    notes     what the user should know before and after
    """

    format: tuple[int, int] = FORMAT
    recovery_id: str
    mode: str = "full"
    request: Request
    source_cluster_id: str
    cluster_id: str
    node_id: int
    topics: tuple[TopicPlan, ...]
    left_out: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def size_bytes(self) -> int:
        return sum(topic.size_bytes for topic in self.topics)

    @property
    def next_producer_id(self) -> int:
        """Above every producer id in the archive, so that no new producer gets one that a log still remembers."""
        ids = (partition.max_producer_id for topic in self.topics for partition in topic.partitions)
        return max(ids, default=-1) + 1


def check_cluster_id(cluster_id: str) -> None:
    """Raises UsageError."""
    PartitionId(cluster_id, topic_id_text(bytes(16)), 0, "any")


def encode_plan(plan: RecoveryPlan) -> bytes:
    return seal(check_plan(plan))


def decode_plan(raw: bytes, where: str = "recovery plan") -> RecoveryPlan:
    """Raises CorruptData for anything that `make_plan` would not have made, UnsupportedFormat for an unknown version."""
    return unseal(raw, RecoveryPlan, check_plan, where)


def check_plan(plan: RecoveryPlan) -> RecoveryPlan:
    """`plan` when it can be carried out: names are safe, entries abut and fit segment files (I4, I22)."""
    check_cluster_id(plan.cluster_id)
    if not 0 <= plan.node_id <= NODE_ID_MAX or not plan.recovery_id.isalnum():
        raise CorruptData("recovery plan", 0, f"node id {plan.node_id}, recovery id {plan.recovery_id[:40]!r}")
    if plan.mode != "full":
        raise UnsupportedFormat(f"recovery mode {plan.mode[:40]!r}; this version knows full")
    if len({topic.topic for topic in plan.topics}) != len(plan.topics):
        raise CorruptData("recovery plan", 0, "a topic is planned twice")
    for topic in plan.topics:
        if [partition.partition for partition in topic.partitions] != list(range(len(topic.partitions))):
            raise CorruptData(f"recovery plan of {topic.topic}", 0, "its partitions are not 0, 1, 2 and so on")
        for partition in topic.partitions:
            _check_partition(PartitionId(plan.source_cluster_id, topic.topic_id, partition.partition, topic.topic), partition)
    return plan


def _check_partition(identity: PartitionId, partition: PartitionPlan) -> None:
    def bad(reason: str) -> CorruptData:
        return CorruptData(f"recovery plan of {identity}", 0, reason)

    if not 0 <= partition.start_offset <= partition.next_offset <= OFFSET_MAX + 1 or not 0 <= partition.leader_epoch < 2**31 - 1:
        raise bad(f"from {partition.start_offset} to {partition.next_offset} in leader epoch {partition.leader_epoch}")
    if not -1 <= partition.max_producer_id <= PRODUCER_ID_MAX:
        raise bad(f"producer id {partition.max_producer_id}")
    expected = None
    for entry in partition.entries:
        check_entry(identity, entry)
        if expected is not None and entry.base_offset != expected:
            raise bad(f"offset {expected} is missing: the next run begins at {entry.base_offset}")
        if entry.layout != "segment" and not entry.gap:
            raise UnsupportedFormat(f"{identity}: layout {entry.layout[:40]!r} cannot be recovered by this version")
        if not entry.gap and (entry.live_bytes > SEGMENT_BYTES_MAX or entry.next_offset - entry.base_offset > SEGMENT_OFFSETS_MAX):
            raise UnsupportedFormat(f"{identity}: the run at offset {entry.base_offset} is too large for one segment file")
        expected = entry.next_offset
    if expected is not None and (expected != partition.next_offset or partition.start_offset not in _reach(partition.entries[0])):
        raise bad(f"entries from {partition.entries[0].base_offset} to {expected - 1} for a log from {partition.start_offset}")
    if expected is None and partition.start_offset != partition.next_offset:
        raise bad(f"no entries for a log from {partition.start_offset} to {partition.next_offset}")


def _reach(first: Entry) -> range:
    return range(first.base_offset, first.next_offset)
