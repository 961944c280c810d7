"""What all agents know together: a pure function of the control records, in the log's order.

Per partition a handful of numbers, per topic its settings; nothing grows with the number of segments. A state is a value:
`apply` shares what did not change, so a reader may keep one while the log continues.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

from headwater_core.control.control_records import (
    Advanced,
    Claim,
    Node,
    PausesChanged,
    Record,
    RecoveryFinished,
    RecoveryStarted,
    Retired,
    SettingsChanged,
    TopicSettings,
)
from headwater_core.errors import CorruptData, UsageError
from headwater_core.objectstore.digest import digest_of
from headwater_core.partition import PartitionId

RECOVERIES_MAX = 1_000  # the oldest are forgotten first
NODES_MAX = 10_000
RETIRED_MAX = 10_000

V = TypeVar("V")


class PartitionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One partition as its newest known head has it. Offsets are inclusive; -1 before anything is archived."""

    manifest_version: int
    fence: int
    owner: str
    start_offset: int
    last_offset: int
    commit_id: str = ""  # empty where an agent of before announced it

    def __post_init__(self) -> None:
        if min(self.manifest_version, self.fence) < 0 or not 0 <= self.start_offset <= self.last_offset + 1:
            raise ValueError(f"impossible state of a partition: {self}")

    def conflicts(self, version: int, commit_id: str) -> bool:
        """Whether that is another commit of the same version, as there is after an operator has restored an earlier head."""
        return self.manifest_version == version and "" not in (self.commit_id, commit_id) and self.commit_id != commit_id


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a topic."""

    topic: str
    revision: int = 0
    settings: dict[str, str] = {}
    partitions: dict[int, PartitionState] = {}


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    started_ms: int
    summary: str
    finished_ms: int | None = None
    outcome: str = ""


class ControlState(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Topics are keyed by cluster id, then topic id.

    retired  the newest manifest version of partitions that are gone, by "cluster/topic id/partition": a record from
             before that arrives late must not bring them back
    pauses_version    of the bucket's list of what is paused; 0 when nothing was heard of it
    settings_version  the same of what was set by command
    """

    clusters: dict[str, dict[str, TopicState]] = {}
    recoveries: dict[str, Recovery] = {}
    nodes: dict[str, Node] = {}
    retired: dict[str, int] = {}
    pauses_version: int = 0
    settings_version: int = 0

    def topic(self, cluster_id: str, topic_id: str) -> TopicState | None:
        """One incarnation; None when no record has named it."""
        return self.clusters.get(cluster_id, {}).get(topic_id)

    def partition(self, partition: PartitionId) -> PartitionState | None:
        """What is known of one partition; None when no record has named it yet, which is not an absence."""
        topic = self.topic(partition.cluster_id, partition.topic_id)
        return topic.partitions.get(partition.partition) if topic else None

    def knows(self, partition: PartitionId, version: int, commit_id: str) -> bool:
        """Whether a record has named this commit, or one of a higher version."""
        known = self.partition(partition)
        return self.known_version(partition) >= version and not (known and known.conflicts(version, commit_id))

    def known_version(self, partition: PartitionId) -> int:
        """The newest manifest version that a record has named, also when the partition is gone since; 0 for none."""
        known = self.partition(partition)
        gone = self.retired.get(_place(partition.cluster_id, partition.topic_id, partition.partition), 0)
        return max(known.manifest_version if known else 0, gone)

    def partitions(self) -> Iterator[tuple[PartitionId, PartitionState]]:
        for cluster_id, topics in self.clusters.items():
            for topic_id, topic in topics.items():
                for number, state in topic.partitions.items():
                    yield PartitionId(cluster_id, topic_id, number, topic.topic), state

    def digest(self) -> str:
        """Equal on all nodes that applied the same records, however they came to them."""
        return digest_of(msgspec.json.encode(msgspec.to_builtins(self, str_keys=True), order="sorted"))


EMPTY = ControlState()


def partition_sum(state: ControlState) -> int:
    """63 bits over all partitions, which `changed_sum` keeps up with: what two nodes may compare without encoding all that they know."""
    return sum(_sum_of(partition, known) for partition, known in state.partitions()) & _SUM_MASK


def changed_sum(before_sum: int, before: ControlState, after: ControlState, records: Iterable[Record]) -> int:
    """The sum of `after`, which `records` made of `before`."""
    if before is after:
        return before_sum
    for partition in {each.partition_id for each in records if isinstance(each, (Claim, Advanced, Retired))}:
        was, now = before.partition(partition), after.partition(partition)
        before_sum += (_sum_of(partition, now) if now else 0) - (_sum_of(partition, was) if was else 0)
    return before_sum & _SUM_MASK


_SUM_MASK = (1 << 63) - 1


def _sum_of(partition: PartitionId, known: PartitionState) -> int:
    known = msgspec.structs.replace(known, commit_id="")  # nodes of before, which do not know it, must come to the same sum
    text = digest_of(msgspec.msgpack.encode((partition.cluster_id, partition.topic_id, partition.partition, known)))
    return int(text.partition(":")[2], 16)


def apply(state: ControlState, record: Record) -> ControlState:
    """The state after `record`; the very same object when it says nothing new."""
    return apply_all(state, (record,))


def apply_all(state: ControlState, records: Iterable[Record]) -> ControlState:
    """The state after all of them. What they change is copied once, however many they are."""
    draft = _Draft(state)
    for record in records:
        draft.apply(record)
    return draft.finish()


def encode_state(state: ControlState) -> bytes:
    return msgspec.msgpack.encode(state)


def decode_state(raw: bytes) -> ControlState:
    """Raises CorruptData."""
    try:
        state = msgspec.msgpack.decode(raw, type=ControlState)
        for partition, _ in state.partitions():
            _ = partition  # making it checks the names
        return state
    except (msgspec.MsgspecError, UsageError, ValueError, RecursionError) as error:
        raise CorruptData("control state", 0, str(error)[:200]) from error


class _Draft:
    """A state while it is built: what changes is copied when it first changes."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._topics: dict[tuple[str, str], TopicState | None] = {}  # as they are now; None for one that has left
        self._own: set[tuple[str, str]] = set()  # those whose partitions are a copy of ours
        self._recoveries = _Bounded(state.recoveries, RECOVERIES_MAX)
        self._nodes = _Bounded(state.nodes, NODES_MAX)
        self._retired = _Bounded(state.retired, RETIRED_MAX)
        self._pauses_version = state.pauses_version
        self._settings_version = state.settings_version

    def apply(self, record: Record) -> None:
        match record:
            case Claim() | Advanced():
                self._advance(record)
            case Retired():
                self._retire(record)
            case TopicSettings():
                topic = self._topic(record.cluster_id, record.topic_id) or TopicState(topic=record.topic)
                if record.revision == topic.revision + 1:
                    changed = msgspec.structs.replace(topic, revision=record.revision, settings=record.settings)
                    self._topics[record.cluster_id, record.topic_id] = changed
            case RecoveryStarted():
                if record.recovery_id not in self._recoveries.values:
                    self._recoveries.put(record.recovery_id, Recovery(started_ms=record.at_ms, summary=record.summary))
            case RecoveryFinished():
                started = self._recoveries.values.get(record.recovery_id)
                if started and started.finished_ms is None:
                    finished = msgspec.structs.replace(started, finished_ms=record.at_ms, outcome=record.outcome)
                    self._recoveries.put(record.recovery_id, finished)
            case Node():
                known = self._nodes.values.get(record.node_id)
                if known is None or known.started_ms < record.started_ms:
                    self._nodes.put(record.node_id, record)
            case PausesChanged():
                self._pauses_version = max(self._pauses_version, record.version)
            case SettingsChanged():
                self._settings_version = max(self._settings_version, record.version)

    def finish(self) -> ControlState:
        clusters = self._state.clusters
        if self._topics:
            touched = {cluster_id: dict(clusters.get(cluster_id, {})) for cluster_id, _ in self._topics}
            for (cluster_id, topic_id), topic in self._topics.items():
                if topic is None:
                    touched[cluster_id].pop(topic_id, None)
                else:
                    touched[cluster_id][topic_id] = topic
            clusters = {cluster_id: topics for cluster_id, topics in {**clusters, **touched}.items() if topics}
        bounded = (self._recoveries, self._nodes, self._retired)
        before = (self._state.pauses_version, self._state.settings_version)
        if not self._topics and not any(each.changed for each in bounded) and (self._pauses_version, self._settings_version) == before:
            return self._state
        return ControlState(
            clusters=clusters,
            recoveries=self._recoveries.values,
            nodes=self._nodes.values,
            retired=self._retired.values,
            pauses_version=self._pauses_version,
            settings_version=self._settings_version,
        )

    def _topic(self, cluster_id: str, topic_id: str) -> TopicState | None:
        if (cluster_id, topic_id) in self._topics:
            return self._topics[cluster_id, topic_id]
        return self._state.topic(cluster_id, topic_id)

    def _partitions(self, record: Claim | Advanced | Retired) -> dict[int, PartitionState]:
        """The partitions of the record's topic, to be changed in place."""
        key = record.cluster_id, record.topic_id
        topic = self._topic(*key) or TopicState(topic=record.topic)
        if key not in self._own:
            topic = msgspec.structs.replace(topic, partitions=dict(topic.partitions))
            self._own.add(key)
        self._topics[key] = topic
        return topic.partitions

    def _advance(self, record: Claim | Advanced) -> None:
        """Manifest versions form one chain (I7), so the higher version is the later truth, whatever order records come in.
        Where a head was restored there are two chains, and of two commits of one version the one that comes later counts."""
        topic = self._topic(record.cluster_id, record.topic_id)
        known = topic.partitions.get(record.partition) if topic else None
        if known and known.manifest_version >= record.version and not known.conflicts(record.version, record.commit_id):
            return
        place = _place(record.cluster_id, record.topic_id, record.partition)
        if self._retired.values.get(place, -1) >= record.version:
            return
        self._partitions(record)[record.partition] = PartitionState(
            manifest_version=record.version,
            fence=record.fence,
            owner=record.writer,
            start_offset=record.start_offset,
            last_offset=record.last_offset,
            commit_id=record.commit_id,
        )
        self._retired.drop(place)

    def _retire(self, record: Retired) -> None:
        """Void when a newer manifest, or another of the same version, is known: an agent continues the partition."""
        place = _place(record.cluster_id, record.topic_id, record.partition)
        topic = self._topic(record.cluster_id, record.topic_id)
        known = topic.partitions.get(record.partition) if topic else None
        if self._retired.values.get(place, -1) >= record.version:
            return
        if known and (known.manifest_version > record.version or known.conflicts(record.version, record.commit_id)):
            return
        self._retired.put(place, record.version)
        if known:
            partitions = self._partitions(record)
            del partitions[record.partition]
            if not partitions and not self._topic(record.cluster_id, record.topic_id).revision:  # type: ignore[union-attr]
                self._topics[record.cluster_id, record.topic_id] = None
                self._own.discard((record.cluster_id, record.topic_id))


class _Bounded(Generic[V]):
    """A mapping that is copied when it first changes. Beyond `keys_max` the keys that came first leave."""

    def __init__(self, held: dict[str, V], keys_max: int) -> None:
        self.values, self.changed, self._keys_max = held, False, keys_max

    def put(self, key: str, value: V) -> None:
        self._own()[key] = value
        while len(self.values) > self._keys_max:
            del self.values[next(iter(self.values))]

    def drop(self, key: str) -> None:
        if key in self.values:
            del self._own()[key]

    def _own(self) -> dict[str, V]:
        if not self.changed:
            self.values, self.changed = dict(self.values), True
        return self.values


def _place(cluster_id: str, topic_id: str, partition: int) -> str:
    return f"{cluster_id}/{topic_id}/{partition}"
