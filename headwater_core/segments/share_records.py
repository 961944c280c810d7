"""What share coordinators write to __share_group_state: how far a share group has come in a partition, as snapshots and updates of them.

Sources: Kafka 4.3's schemas ShareSnapshotKey, ShareSnapshotValue, ShareUpdateKey, ShareUpdateValue (KIP-932, KIP-1226), and how its
ShareCoordinatorShard and PersisterStateBatchCombiner put them together.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from headwater_core.errors import CorruptData
from headwater_core.segments import flexible
from headwater_core.segments.coordinator_records import UnknownRecord, plain_string

SNAPSHOT, UPDATE = 0, 1  # record types
_VERSION_MAX = 0  # of both values
_COMPLETE = 0  # tag of the number of offsets that are done with (4.2)
_DONE = (2, 4)  # states of delivery: acknowledged, archived. 0 is available again


class ShareKey(NamedTuple):
    """Which group's place in which partition."""

    group: str
    topic_id: str
    partition: int

    def encode(self) -> bytes:
        """The key of a snapshot."""
        group = self.group.encode()
        named = flexible.i16(SNAPSHOT) + flexible.i16(len(group)) + group
        return named + flexible.uuid(self.topic_id) + flexible.i32(self.partition)


class StateBatch(NamedTuple):
    """Both offsets are inclusive. state, deliveries: as Kafka counts them."""

    first_offset: int
    last_offset: int
    state: int
    deliveries: int

    @property
    def is_done(self) -> bool:
        return self.state in _DONE


class ShareUpdate(NamedTuple):
    """Changes of a state. start_offset, leader_epoch: -1: as before"""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """start_offset: the group is done with all below; -1: not known yet. batches: from there on, in order, without a common offset; what
    is in none has not been delivered"""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    created_ms: int = -1
    written_ms: int = -1
    batches: tuple[StateBatch, ...] = ()

    @property
    def next_offset(self) -> int:
        """Above it, the group has nothing."""
        return max(self.start_offset, *(each.last_offset + 1 for each in self.batches), 0)

    @property
    def done(self) -> int:
        """Of the offsets from its start on, how many it is done with."""
        return sum(each.last_offset - each.first_offset + 1 for each in self.batches if each.is_done)

    def updated(self, updates: Sequence[ShareUpdate]) -> "ShareState":
        """As a coordinator has it that reads the snapshot, then `updates`."""
        start, epoch = self.start_offset, self.leader_epoch
        for each in updates:
            start = start if each.start_offset == -1 else each.start_offset
            epoch = epoch if each.leader_epoch == -1 else each.leader_epoch
        batches = combined([*self.batches, *(batch for each in updates for batch in each.batches)], start)
        return replace(self, start_offset=start, leader_epoch=epoch, batches=batches)

    def within(self, end: int) -> "ShareState":
        """The same in a log that ends at `end`, as the coordinator's next snapshot."""
        batches = tuple(each._replace(last_offset=min(each.last_offset, end - 1)) for each in self.batches if each.first_offset < end)
        return replace(self, snapshot_epoch=self.snapshot_epoch + 1, start_offset=min(self.start_offset, end), batches=batches)

    def encode(self) -> bytes:
        """The value of a snapshot."""
        batches = flexible.array(
            flexible.i64(each.first_offset)
            + flexible.i64(each.last_offset)
            + flexible.i8(each.state)
            + flexible.i16(each.deliveries)
            + flexible.tags({})
            for each in self.batches
        )
        epochs = flexible.i32(self.snapshot_epoch) + flexible.i32(self.state_epoch) + flexible.i32(self.leader_epoch)
        times = flexible.i64(self.created_ms) + flexible.i64(self.written_ms)
        complete = flexible.tags({_COMPLETE: flexible.i32(self.done)})
        return flexible.i16(0) + epochs + flexible.i64(self.start_offset) + times + batches + complete


def combined(batches: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Of each offset from `start_offset` on what the batch says that was delivered most often, and of those the one of the highest state:
    what is later in the log is later in this order too."""
    ordered = sorted(
        each._replace(first_offset=max(each.first_offset, start_offset)) for each in batches if each.last_offset >= start_offset
    )
    bounds = sorted({each.first_offset for each in ordered} | {each.last_offset + 1 for each in ordered})
    found: list[StateBatch] = []
    open_: list[tuple[int, int, int]] = []
    at = 0
    for first, end in pairwise(bounds):
        while at < len(ordered) and ordered[at].first_offset <= first:
            heapq.heappush(open_, (-ordered[at].deliveries, -ordered[at].state, ordered[at].last_offset))
            at += 1
        while open_ and open_[0][2] < first:
            heapq.heappop(open_)
        if not open_:
            continue
        batch = StateBatch(first, end - 1, -open_[0][1], -open_[0][0])
        if found and found[-1].last_offset + 1 == first and found[-1][2:] == batch[2:]:
            batch = batch._replace(first_offset=found.pop().first_offset)
        found.append(batch)
    return tuple(found)


def decode_share_key(key: bytes, where: str) -> tuple[int, ShareKey]:
    """The record type, and whose state it is. Raises UnknownRecord, CorruptData."""
    reader = flexible.Reader(key, where)
    kind = reader.i16()
    if kind not in (SNAPSHOT, UPDATE):
        raise UnknownRecord(f"record type {kind} of __share_group_state")
    return kind, ShareKey(plain_string(reader, where), reader.uuid(), reader.i32())


def decode_share_state(value: bytes, where: str) -> ShareState:
    """A snapshot. Raises UnknownRecord, CorruptData."""
    reader = _opened(value, where)
    snapshot_epoch, state_epoch, leader_epoch, start_offset = reader.i32(), reader.i32(), reader.i32(), reader.i64()
    created_ms, written_ms = reader.i64(), reader.i64()
    return ShareState(
        snapshot_epoch=snapshot_epoch,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        created_ms=created_ms,
        written_ms=written_ms,
        batches=_batches(reader),
    )


def decode_share_update(value: bytes, where: str) -> ShareUpdate:
    """Raises UnknownRecord, CorruptData."""
    reader = _opened(value, where)
    return ShareUpdate(reader.i32(), reader.i32(), reader.i64(), _batches(reader))


def _opened(value: bytes, where: str) -> flexible.Reader:
    reader = flexible.Reader(value, where)
    if not 0 <= (version := reader.i16()) <= _VERSION_MAX:
        raise UnknownRecord(f"version {version} of a share group's state")
    return reader


def _batches(reader: flexible.Reader) -> tuple[StateBatch, ...]:
    def batch() -> StateBatch:
        found = StateBatch(reader.i64(), reader.i64(), reader.i8(), reader.i16())
        reader.tags()
        if not 0 <= found.first_offset <= found.last_offset:
            raise CorruptData(reader.where, reader.position, f"offsets {found.first_offset} to {found.last_offset}")
        return found

    return reader.array(batch)
