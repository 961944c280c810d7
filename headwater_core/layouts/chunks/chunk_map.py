"""Which object holds which bytes of a segment, and what state that shows: from names and sizes alone.

Source: docs/formats/chunks.md, "States".
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from math import gcd
from typing import NamedTuple

from headwater_core.layouts.chunks.chunk_names import SegmentPlace, Variant

_KIB = 1024


class SegmentState(Enum):
    """What the objects of a segment show: what may be done with it."""

    NEW = "new"
    OPEN = "open"
    FULL = "consolidation pending"
    DONE = "done"
    LEFTOVER = "delete pending"
    BROKEN = "broken consolidation"
    LOST = "lost chunk"


class ChunkObject(NamedTuple):
    """A chunk object. `number`: in its name, in bytes mostly."""

    number: int
    size_bytes: int


class Consolidated(NamedTuple):
    """The consolidated object. `meant_bytes`: what its own metadata say; None when they are not there. is_other: the store says that it
    has another digest than they do."""

    size_bytes: int
    meant_bytes: int | None = None
    is_other: bool = False

    @property
    def is_sound(self) -> bool:
        """As far as it goes, by its own metadata."""
        return self.meant_bytes == self.size_bytes > 0 and not self.is_other

    def mistake(self, proven_bytes: int) -> str:
        """What is wrong with it, where it is not the segment, which has at least so many bytes."""
        if self.is_other:
            return "another digest than its metadata say"
        is_short = self.size_bytes < proven_bytes
        return f"bytes {self.size_bytes} to {proven_bytes} of the segment are not in it" if is_short else "longer than its metadata say"


class Tile(NamedTuple):
    """Bytes of the segment: from `position` on, `size_bytes` of the object `key`, from byte `start` of it on."""

    position: int
    size_bytes: int
    key: str
    start: int = 0

    @property
    def end(self) -> int:
        return self.position + self.size_bytes

    def cut(self, position: int, end: int) -> "Tile":
        """What of it lies in [position, end), where some of it does."""
        first, last = max(position, self.position), min(end, self.end)
        return Tile(first, last - first, self.key, self.start + first - self.position)


class SegmentDamage(NamedTuple):
    """Where a segment ends too early, and the object to name for it. is_hole: bytes are missing, as after commits of which a later one
    was done and an earlier one was not; they may still be added."""

    position: int
    key: str
    reason: str
    is_hole: bool = False


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """What is readable, and whether anything is wrong.

    tiles     they abut, from position 0 on
    damage    what prevents reads from where the tiles end on; None where the segment simply ends, or where it is whole
    beyond    positions of chunks after the damage, ascending
    leftover  chunks, whole and in ascending order, of which the consolidated object is to hold all that is needed
    is_foreign  its names count in KiB, as we never write them
    broken    of a broken consolidation: what is wrong with the object, for people
    """

    state: SegmentState
    tiles: tuple[Tile, ...]
    damage: SegmentDamage | None = None
    beyond: tuple[int, ...] = ()
    leftover: tuple[Tile, ...] = ()
    is_foreign: bool = False
    broken: str = ""

    @property
    def end(self) -> int:
        return self.tiles[-1].end if self.tiles else 0


def tiles_between(tiles: Sequence[Tile], position: int, end: int) -> Iterator[Tile]:
    """What holds [position, end) of abutting tiles, cut to it."""
    at = max(bisect_right(tiles, position, key=lambda tile: tile.position) - 1, 0)
    for tile in tiles[at:]:
        if tile.position >= end:
            return
        if tile.end > position:
            yield tile.cut(position, end)


def build_map(
    place: SegmentPlace,
    chunks: Iterable[ChunkObject],
    consolidated: Consolidated | None,
    *,
    is_full: bool,
    agree: Callable[[Tile, Tile], bool],
    end: int | None = None,
    chunk_bytes: int | None = None,
) -> SegmentMap:
    """The map of a segment of which the store lists these objects.

    is_full      nothing will be added to it: known from elsewhere, for instance from the next segment's base
    agree        whether two objects, which overlap there, hold the same bytes; called for overlaps only
    end          so many bytes it has at least, where that is known; else all that a chunk holds may be needed
    chunk_bytes  of the fixed variant, where that is known
    """
    found = sorted(each for each in chunks if each.size_bytes)
    unit = _unit_bytes(place, found, chunk_bytes)
    whole = [Tile(number * unit, size_bytes, place.chunk_key(number)) for number, size_bytes in found]
    tiles, damage, beyond = _join(whole, agree)
    reached = tiles[-1].end if tiles else 0
    if damage is None and end is not None and reached < end:
        damage = SegmentDamage(reached, "", f"bytes {reached} to {end} of the segment are in no chunk", is_hole=True)
    if damage is not None and damage.is_hole:
        damage = damage._replace(key=key_at(place, found, damage.position, chunk_bytes))
    foreign = unit != 1
    if consolidated is None:
        if damage is not None:
            return SegmentMap(SegmentState.LOST, tiles, damage, beyond, is_foreign=foreign)
        state = SegmentState.NEW if not tiles else SegmentState.FULL if is_full else SegmentState.OPEN
        return SegmentMap(state, tiles, is_foreign=foreign)
    object_tile = Tile(0, consolidated.size_bytes, place.segment_key)
    if _is_whole(consolidated, whole, end):
        state = SegmentState.LEFTOVER if whole else SegmentState.DONE
        return SegmentMap(state, (object_tile,), leftover=tuple(whole), is_foreign=foreign)
    proven = max([consolidated.meant_bytes or 0, end or 0, *(tile.end for tile in whole)])
    broken = consolidated.mistake(proven)
    is_used = consolidated.is_sound or (consolidated.size_bytes and not whole and not consolidated.is_other)
    if is_used and (damage is not None or not whole):
        joined = _join([object_tile, *whole], agree)
        if joined[0][-1].end > reached:  # there are no chunks for its last bytes
            tiles, damage, beyond = joined
            reached = tiles[-1].end
            if damage is None and (reached < proven or not consolidated.is_sound):
                damage = SegmentDamage(reached, place.segment_key, broken)
            elif damage is not None and damage.is_hole:
                damage = damage._replace(key=key_at(place, found, reached, chunk_bytes))
    if not tiles:
        damage = SegmentDamage(0, place.segment_key, broken)
    return SegmentMap(SegmentState.BROKEN, tiles, damage, beyond, is_foreign=foreign, broken=broken)


def _is_whole(consolidated: Consolidated, chunks: Sequence[Tile], end: int | None) -> bool:
    """Does the consolidated object hold all that is needed, by its length? Where nobody knows how much that is, all that the chunks hold.
    Where it is known, and the object is as long as its own metadata say, the last chunk may be a stale one that reaches further: a commit
    that nobody confirmed, and that a shorter one replaced."""
    size_bytes, meant_bytes, is_other = consolidated
    if is_other or meant_bytes not in (None, size_bytes) or size_bytes < (end or 0):
        return False
    if end is None or meant_bytes is None:
        return all(tile.end <= size_bytes for tile in chunks)
    return all(tile.position < size_bytes for tile in chunks)


def _join(chunks: Sequence[Tile], agree: Callable[[Tile, Tile], bool]) -> tuple[tuple[Tile, ...], SegmentDamage | None, tuple[int, ...]]:
    """Tiles up to the first hole or contradiction; what is damaged there, "" for the key of what is not there; positions beyond."""
    tiles: list[Tile] = []
    end = 0
    for at, chunk in enumerate(chunks):
        beyond = tuple(each.position for each in chunks[at:])
        if chunk.position > end:
            return tuple(tiles), SegmentDamage(end, "", f"bytes {end} to {chunk.position} are in no chunk", is_hole=True), beyond
        for tile in tiles_between(tiles, chunk.position, min(end, chunk.end)):
            if not agree(tile, chunk.cut(tile.position, tile.end)):
                kept = tuple(tiles_between(tiles, 0, tile.position)) if tile.position else ()
                return kept, SegmentDamage(tile.position, chunk.key, f"other bytes than {tile.key} from {tile.position} on"), beyond
        if chunk.end > end:
            tiles.append(chunk.cut(end, chunk.end))
            end = chunk.end
    return tuple(tiles), None, ()


def key_at(place: SegmentPlace, chunks: Sequence[ChunkObject], position: int, chunk_bytes: int | None) -> str:
    """The key of the chunk that is to hold `position`, where the tiles end there: a new one, or in the fixed variant one that is too short.
    chunk_bytes: see build_map."""
    if place.variant is Variant.APPEND:
        return place.chunk_key(position)
    unit = _unit_bytes(place, chunks, chunk_bytes)
    step = _step_bytes(chunks, unit, chunk_bytes) or position or 1
    return place.chunk_key(position // step * step // unit)


def _step_bytes(chunks: Sequence[ChunkObject], unit: int, chunk_bytes: int | None) -> int:
    """How long the chunks of the fixed variant are: as it is known, else as their names and lengths have it; 0 where there are none."""
    apart, longest = gcd(*(number * unit for number, _ in chunks)), max((size_bytes for _, size_bytes in chunks), default=0)
    if chunk_bytes and apart % chunk_bytes == 0 and longest <= chunk_bytes:
        return chunk_bytes
    return longest if not longest or apart % longest == 0 else max(apart, longest)  # none may be full


def _unit_bytes(place: SegmentPlace, chunks: Sequence[ChunkObject], chunk_bytes: int | None) -> int:
    """What the numbers in the names of fixed chunks count: bytes, or KiB as the proposal's prose has it. As bytes they would overlap."""
    if place.variant is Variant.APPEND or len(chunks) < 2:
        return 1
    numbers, longest = [number for number, _ in chunks], max(size_bytes for _, size_bytes in chunks)
    if chunk_bytes and all(number % chunk_bytes == 0 for number in numbers):
        return 1
    ordered = sorted(chunks)
    if all(one.number + one.size_bytes <= other.number for one, other in pairwise(ordered)):
        return 1
    return _KIB if longest % _KIB == 0 and all(number % (longest // _KIB) == 0 for number in numbers) else 1
