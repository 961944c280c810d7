"""What all agents know together: a pure function of the control records, in the log's order.

Per partition a handful of numbers, per topic its settings; nothing grows with the number of segments. A state is a value:
`apply` shares what did not change, so a reader may keep one while others move on.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from control.records import Advanced, Claim, Node, Record, RecoveryFinished, RecoveryStarted, TopicSettings
from model.errors import CorruptData, UsageError
from model.partition import PartitionId
from objectstore.digest import digest_of

RECOVERIES_MAX = 1_000  # the oldest are forgotten first
NODES_MAX = 10_000

K = TypeVar("K")
V = TypeVar("V")


class PartitionState(msgspec.Struct, frozen=True, kw_only=True):
    """One partition as its newest known head has it. Offsets are inclusive; -1 before anything is archived."""

    manifest_version: int
    fence: int
    owner: str
    start_offset: int
    last_offset: int


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
    """The whole of it. Topics are keyed by cluster id, then topic id."""

    clusters: dict[str, dict[str, TopicState]] = {}
    recoveries: dict[str, Recovery] = {}
    nodes: dict[str, Node] = {}

    def topic(self, cluster_id: str, topic_id: str) -> TopicState | None:
        return self.clusters.get(cluster_id, {}).get(topic_id)

    def partition(self, partition: PartitionId) -> PartitionState | None:
        """What is known of one partition; None when nobody has said anything yet, which is not an absence."""
        topic = self.topic(partition.cluster_id, partition.topic_id)
        return topic.partitions.get(partition.partition) if topic else None

    def partitions(self) -> Iterator[tuple[PartitionId, PartitionState]]:
        for cluster_id, topics in self.clusters.items():
            for topic_id, topic in topics.items():
                for number, state in topic.partitions.items():
                    yield PartitionId(cluster_id, topic_id, number, topic.topic), state

    def digest(self) -> str:
        """Equal on all nodes that applied the same records, however they came to them."""
        return digest_of(msgspec.json.encode(msgspec.to_builtins(self, str_keys=True), order="sorted"))


EMPTY = ControlState()


def apply(state: ControlState, record: Record) -> ControlState:
    """The state after `record`; the very same object when it says nothing new."""
    match record:
        case Claim() | Advanced():
            return _with_partition(state, record)
        case TopicSettings():
            topic = state.topic(record.cluster_id, record.topic_id) or TopicState(topic=record.topic)
            if record.revision != topic.revision + 1:
                return state
            changed = msgspec.structs.replace(topic, revision=record.revision, settings=record.settings)
            return _with_topic(state, record.cluster_id, record.topic_id, changed)
        case RecoveryStarted():
            if record.recovery_id in state.recoveries:
                return state
            recovery = Recovery(started_ms=record.at_ms, summary=record.summary)
            return msgspec.structs.replace(state, recoveries=_with(state.recoveries, record.recovery_id, recovery, RECOVERIES_MAX))
        case RecoveryFinished():
            started = state.recoveries.get(record.recovery_id)
            if started is None or started.finished_ms is not None:
                return state
            recovery = msgspec.structs.replace(started, finished_ms=record.at_ms, outcome=record.outcome)
            return msgspec.structs.replace(state, recoveries=_with(state.recoveries, record.recovery_id, recovery, RECOVERIES_MAX))
        case Node():
            known = state.nodes.get(record.node_id)
            if known and known.started_ms >= record.started_ms:
                return state
            return msgspec.structs.replace(state, nodes=_with(state.nodes, record.node_id, record, NODES_MAX))


def apply_all(state: ControlState, records: Iterable[Record]) -> ControlState:
    for record in records:
        state = apply(state, record)
    return state


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


def _with_partition(state: ControlState, record: Claim | Advanced) -> ControlState:
    """Manifest versions form one chain (I7), so the higher version is the later truth, whatever order records come in."""
    topic = state.topic(record.cluster_id, record.topic_id) or TopicState(topic=record.topic)
    known = topic.partitions.get(record.partition)
    if known and known.manifest_version >= record.version:
        return state
    partition = PartitionState(
        manifest_version=record.version,
        fence=record.fence,
        owner=record.writer,
        start_offset=record.start_offset,
        last_offset=record.last_offset,
    )
    changed = msgspec.structs.replace(topic, partitions={**topic.partitions, record.partition: partition})
    return _with_topic(state, record.cluster_id, record.topic_id, changed)


def _with_topic(state: ControlState, cluster_id: str, topic_id: str, topic: TopicState) -> ControlState:
    topics = {**state.clusters.get(cluster_id, {}), topic_id: topic}
    return msgspec.structs.replace(state, clusters={**state.clusters, cluster_id: topics})


def _with(held: Mapping[K, V], key: K, value: V, limit: int) -> dict[K, V]:
    """`held` with one more, within `limit`: beyond it the ones that came first leave."""
    changed = {**held, key: value}
    for oldest in list(changed)[: max(len(changed) - limit, 0)]:
        del changed[oldest]
    return changed
