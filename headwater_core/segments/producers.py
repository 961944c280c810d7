"""What a broker remembers of idempotent producers, so that a repeated batch is known as one."""

from collections.abc import Mapping
from typing import NamedTuple

from headwater_core.segments.batches import BatchHeader

_SEQUENCES = 2**31  # sequence numbers wrap from 2**31 - 1 to 0


class ProducerState(NamedTuple):
    """One producer, as one entry of a .snapshot file has it, in its field order.

    last_sequence, last_offset, offset_delta   of its last data batch; -1, -1, 0 when its epoch has none
    timestamp_ms       of its last batch, the largest of the records'
    coordinator_epoch  of its last marker, -1 before any
    open_from          first offset of its open transaction, -1 for none
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    open_from: int


class Producers:
    """The producers of one run while it is scanned.

    The scan puts every data batch's fields straight into `last_batch_of`: one dictionary write per batch, no call.
    """

    __slots__ = ("_last_marker_of", "_pruned_max_id", "last_batch_of")

    def __init__(self) -> None:
        self.last_batch_of: dict[int, tuple[int, ...]] = {}
        self._last_marker_of: dict[int, tuple[BatchHeader, int]] = {}
        self._pruned_max_id = -1

    def __len__(self) -> int:
        """How many entries are kept; a producer with data and a marker has two."""
        return len(self.last_batch_of) + len(self._last_marker_of)

    def mark(self, header: BatchHeader, coordinator_epoch: int) -> None:
        """A marker ends a transaction; one with a new producer epoch also begins a new sequence."""
        self._last_marker_of[header.producer_id] = header, coordinator_epoch
        last = self.last_batch_of.get(header.producer_id)
        if last is not None and BatchHeader(*last).producer_epoch != header.producer_epoch:
            del self.last_batch_of[header.producer_id]

    def prune(self, producers_max: int) -> None:
        """Forget all but the `producers_max` producers that wrote last; brokers forget idle ones after a day."""
        ids = self.last_batch_of.keys() | self._last_marker_of.keys()
        if len(ids) <= producers_max:
            return
        self._pruned_max_id = max(self._pruned_max_id, max(ids))
        for producer_id in sorted(ids, key=self._wrote_last_at)[:-producers_max]:
            self.last_batch_of.pop(producer_id, None)
            self._last_marker_of.pop(producer_id, None)

    @property
    def max_id(self) -> int:
        """-1 when there was none."""
        return max(self._pruned_max_id, max(self.last_batch_of, default=-1), max(self._last_marker_of, default=-1))

    def states(self, first_offsets: Mapping[int, int]) -> tuple[ProducerState, ...]:
        """By producer id. `first_offsets` are the open transactions'."""
        ids = self.last_batch_of.keys() | self._last_marker_of.keys()
        return tuple(self._state(producer_id, first_offsets.get(producer_id, -1)) for producer_id in sorted(ids))

    def _wrote_last_at(self, producer_id: int) -> int:
        batch, marker = self.last_batch_of.get(producer_id), self._last_marker_of.get(producer_id)
        return max(batch[0] if batch else -1, marker[0].base_offset if marker else -1)

    def _state(self, producer_id: int, open_from: int) -> ProducerState:
        fields = self.last_batch_of.get(producer_id)
        marker, coordinator_epoch = self._last_marker_of.get(producer_id, (None, -1))
        if fields is None:
            assert marker is not None
            return ProducerState(producer_id, marker.producer_epoch, -1, -1, 0, marker.max_timestamp_ms, coordinator_epoch, open_from)
        batch = BatchHeader(*fields)
        newest = marker if marker is not None and marker.base_offset > batch.base_offset else batch
        return ProducerState(
            producer_id,
            newest.producer_epoch,
            (batch.base_sequence + batch.last_offset_delta) % _SEQUENCES if batch.base_sequence >= 0 else -1,
            batch.last_offset,
            batch.last_offset_delta,
            newest.max_timestamp_ms,
            coordinator_epoch,
            open_from,
        )
