"""How the objects of runs are named: by their offsets, their fence and a unique word, or below chunks/ by their position in a segment."""

from collections.abc import Callable
from dataclasses import replace as dataclass_replace
from typing import NamedTuple, Protocol

from archival.plan.chunk_place import NUMBER, ChunkLimits, ChunkPlace, place_after
from headwater_core.errors import PlaceTaken
from headwater_core.layouts import Offloader
from headwater_core.layouts.chunks import SegmentPlace, Variant
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.chunks.consolidation import VERSION
from headwater_core.partition import PartitionId
from manifests import chunk_keys, keys
from manifests.entry import Entry


class RunName(NamedTuple):
    """context: what the layout will want to know of the name"""

    key: str
    uid: str
    context: dict[str, str]


class RunNames(Protocol):
    """One partition's."""

    @property
    def may_be_taken_over(self) -> bool:
        """May what lies under such a name already be what another attempt has sent of the same run?"""
        ...

    def following(self, last: Entry | None, base_offset: int, last_offset: int, size_bytes: int, fence: int) -> RunName:
        """Of a run that is to come after `last`, a live entry; None: whatever comes before it. Raises PlaceTaken."""
        ...

    def spoil(self, key: str) -> None:
        """Something else may be there: no run is named so again."""
        ...


class UniqueNames:
    """No object has had such a name."""

    may_be_taken_over = False

    def __init__(self, partition: PartitionId, layout: str, new_uid: Callable[[], str]) -> None:
        self._partition, self._layout, self._new_uid = partition, layout, new_uid

    def following(self, last: Entry | None, base_offset: int, last_offset: int, size_bytes: int, fence: int) -> RunName:
        uid = self._new_uid()
        return RunName(keys.data(self._partition, base_offset, last_offset, fence, uid, self._layout), uid, {})

    def spoil(self, key: str) -> None:
        """The next one is another."""


class ChunkNames:
    """A name follows from what is committed. What an earlier attempt left there may be compared; where it is something else, a new segment
    begins, and where that is not possible either, another fence has to be taken."""

    def __init__(self, partition: PartitionId, node: str, limits: ChunkLimits) -> None:
        self._partition, self._node, self.limits = partition, node, limits
        self._spoiled = set[str]()

    @property
    def may_be_taken_over(self) -> bool:
        """One chunk is one run in the append variant alone."""
        return self.limits.variant is Variant.APPEND

    def limit(self, segment_bytes: int | None) -> None:
        """From now on no chunk is added that makes a segment larger; None: as before."""
        if segment_bytes is not None:
            self.limits = self.limits._replace(segment_bytes=segment_bytes)

    def queue(self, fence: int) -> str:
        partition = self._partition
        return chunk_keys.queue(partition.cluster_id, self._node, fence, partition.topic_partition)

    def following(self, last: Entry | None, base_offset: int, last_offset: int, size_bytes: int, fence: int) -> RunName:
        queue, limits = self.queue(fence), self.limits
        begun = place_after(last, queue, base_offset, size_bytes, limits)
        for place in (begun, ChunkPlace(SegmentPlace(queue, "commitLog", base_offset, limits.variant), 0)):
            if place.key not in self._spoiled:
                context = {NUMBER: str(place.number)} if place.number else {}
                return RunName(place.key, chunk_keys.named(place.key).uid, context)
        raise PlaceTaken(f"{begun.key}: other bytes are there already")

    def consolidated(self, place: SegmentPlace, fence: int) -> RunName:
        """Of the object that the chunks of a full segment become. It may lie beside another fence than theirs: a commit adds only what has
        its own. Raises PlaceTaken."""
        key = dataclass_replace(place, queue=self.queue(fence)).segment_key
        if key in self._spoiled:
            raise PlaceTaken(f"{key}: other bytes are there already")
        return RunName(key, chunk_keys.named(key).uid, {"version": VERSION})

    def spoil(self, key: str) -> None:
        self._spoiled.add(key)


def names_for(partition: PartitionId, offloader: Offloader, writer: str, new_uid: Callable[[], str]) -> RunNames:
    """The names that go with a layout. writer: a node's id and a random word, as heads have it"""
    if isinstance(offloader, ChunksLayout):
        return ChunkNames(partition, writer.rpartition("-")[0] or writer, ChunkLimits(offloader.variant, offloader.segment_bytes))
    return UniqueNames(partition, offloader.name, new_uid)
