"""PIP-76's LedgerOffloader for one partition: begins segments that are offloaded while they are written."""

from collections.abc import Callable, Mapping
from uuid import UUID

from headwater_core.layouts.streaming.offload_buffer import OffloadBudget
from headwater_core.layouts.streaming.offload_handle import OffloadHandle
from headwater_core.layouts.streaming.stream_objects import PART_BYTES, NewStream
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.transactions import OpenTransaction


class StreamingOffloader:
    """For one claim of one partition.

    prefix  of the keys of its objects: it ends with "/", and its last component is the fence
    budget  of what is buffered, shared by all
    pace    called with a part's length before it goes: it may wait, and what it raises is what the handle raises
    """

    def __init__(
        self,
        store: ObjectStore,
        partition: PartitionId,
        *,
        prefix: str,
        fence: int | None,
        budget: OffloadBudget,
        part_bytes: int = PART_BYTES,
        pace: Callable[[int], object] = lambda size_bytes: None,
    ) -> None:
        self._store, self._partition, self._prefix, self._fence = store, partition, prefix, fence
        self._budget, self._part_bytes, self._pace = budget, part_bytes, pace

    def streaming_offload(
        self,
        uuid: UUID,
        driver_metadata: Mapping[str, str],
        *,
        base_offset: int | None = None,
        open_before: tuple[OpenTransaction, ...] = (),
        assigned_ms: int = 0,
        extra_metadata: Mapping[str, str] | None = None,
    ) -> OffloadHandle:
        """A handle that takes the entries of a new segment. Makes no request; what the arguments are: NewStream."""
        new = NewStream(
            partition=self._partition,
            key=f"{self._prefix}{uuid}",
            uuid=uuid,
            fence=self._fence,
            base_offset=base_offset,
            open_before=open_before,
            assigned_ms=assigned_ms,
            driver_metadata=driver_metadata,
            extra_metadata=extra_metadata or {},
        )
        return OffloadHandle(self._store, new, self._budget, part_bytes=self._part_bytes, pace=self._pace)
