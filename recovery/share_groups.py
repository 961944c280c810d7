"""How far share groups had come, as the archive of __share_group_state says it: their states, and what of them a recovered log allows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headwater_core.errors import CorruptData
from headwater_core.segments.coordinator_records import UnknownRecord
from headwater_core.segments.records import Record
from headwater_core.segments.share_records import (
    SNAPSHOT,
    ShareKey,
    ShareState,
    ShareUpdate,
    decode_share_key,
    decode_share_state,
    decode_share_update,
)
from recovery.recovery_plan import Commit, OffsetAhead, Place, TopicPlan

SHARE_GROUPS = "__share_group_state"


@dataclass(slots=True)
class ShareStates:
    """The states in one partition of __share_group_state, from its records in offset order.

    epochs  the highest leader epoch of each; a coordinator refuses requests of a lower one
    """

    snapshots: dict[ShareKey, ShareState] = field(default_factory=dict)
    updates: dict[ShareKey, list[ShareUpdate]] = field(default_factory=dict)
    epochs: dict[ShareKey, int] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def record(self, record: Record, where: str) -> None:
        try:
            kind, key = decode_share_key(record.key or b"", where)
            if record.value is None:
                self._forget(key)
            elif kind == SNAPSHOT:
                state = decode_share_state(record.value, where)
                self.snapshots[key], self.updates[key] = state, []
                self._see(key, state.leader_epoch)
            else:
                update = decode_share_update(record.value, where)
                self.updates.setdefault(key, []).append(update)
                self._see(key, update.leader_epoch)
        except UnknownRecord as unknown:
            self.unknown.add(str(unknown))
        except CorruptData as error:
            self.unknown.add(f"a record that cannot be decoded, {error.reason}")

    def outcome(self) -> dict[ShareKey, ShareState]:
        """As a coordinator has them in the end."""
        return {key: self._first(key, updates).updated(updates) for key, updates in self.updates.items()}

    def _first(self, key: ShareKey, updates: Sequence[ShareUpdate]) -> ShareState:
        """Without a snapshot, the first update is one: the log begins with it."""
        if (state := self.snapshots.get(key)) is not None:
            return state
        return ShareState(snapshot_epoch=updates[0].snapshot_epoch, state_epoch=0, leader_epoch=-1, start_offset=-1)

    def _see(self, key: ShareKey, leader_epoch: int) -> None:
        self.epochs[key] = max(leader_epoch, self.epochs.get(key, -1))

    def _forget(self, key: ShareKey) -> None:
        for each in (self.snapshots, self.updates, self.epochs):
            each.pop(key, None)


def with_leader_epochs(topics: Sequence[TopicPlan], found: Sequence[ShareStates]) -> tuple[TopicPlan, ...]:
    """`topics` with leader epochs not below those that share groups have seen: with a lower one, a leader is refused."""
    epochs: dict[tuple[str, int], int] = {}
    for states in found:
        for key, epoch in states.epochs.items():
            place = key.topic_id, key.partition
            epochs[place] = max(epoch, epochs.get(place, 0))

    def raised(topic: TopicPlan) -> TopicPlan:
        higher = tuple(
            replace(each, leader_epoch=max(each.leader_epoch, epochs.get((topic.topic_id, each.partition), 0))) for each in topic.partitions
        )
        return replace(topic, partitions=higher)

    return tuple(map(raised, topics)) if epochs else tuple(topics)


def within_logs(states: ShareStates, topics: Iterable[TopicPlan], log_ends: Mapping[Place, int]) -> tuple[list[Commit], list[OffsetAhead]]:
    """A new state in place of each that has something beyond its log's end, and which those are. Records that get these offsets later were
    never delivered, whatever the state says of those that had them before."""
    names = {topic.topic_id: topic.topic for topic in topics}
    kept, ahead = [], []
    for key, state in sorted(states.outcome().items(), key=lambda each: each[0]):
        name = names.get(key.topic_id, "")
        end = log_ends.get((name, key.partition))
        if end is not None and state.next_offset > end:
            kept.append(Commit(key=key.encode(), value=state.within(end).encode()))
            beyond = OffsetAhead(group=key.group, topic=name, partition=key.partition, offset=state.next_offset, log_end=end, shared=True)
            ahead.append(beyond)
    return kept, ahead


def below_logs(states: ShareStates, topics: Iterable[TopicPlan], starts: Mapping[Place, int]) -> Iterator[str]:
    """The groups that are not done with what lies below the logs. starts: of logs that begin above what the archive has"""
    names = {topic.topic_id: topic.topic for topic in topics}
    for key, state in states.outcome().items():
        if 0 <= state.start_offset < starts.get((names.get(key.topic_id, ""), key.partition), 0):
            yield key.group
