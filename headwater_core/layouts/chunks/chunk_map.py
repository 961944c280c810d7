"""Which object holds which bytes of a segment, and what state that shows: from names and sizes alone.

Source: docs/formats/chunks.md, "States".
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
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
    """

    state: SegmentState
    tiles: tuple[Tile, ...]
    damage: SegmentDamage | None = None
    beyond: tuple[int, ...] = ()
    leftover: tuple[Tile, ...] = ()
    is_foreign: bool = False

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
) -> SegmentMap:
    """The map of a segment of which the store lists these objects.

    is_full  nothing will be added to it: known from elsewhere, for instance from the next segment's base
    agree    whether two objects, which overlap there, hold the same bytes; called for overlaps only
    """
    found = sorted(each for each in chunks if each.size_bytes)
    unit = _unit_bytes(found) if place.variant is Variant.FIXED else 1
    whole = [Tile(number * unit, size_bytes, place.chunk_key(number)) for number, size_bytes in found]
    tiles, damage, beyond = _join(whole, agree)
    if damage is not None and damage.is_hole:
        damage = damage._replace(key=_missing(place, whole, damage.position, unit))
    foreign = unit != 1
    if consolidated is None:
        if damage is not None:
            return SegmentMap(SegmentState.LOST, tiles, damage, beyond, is_foreign=foreign)
        state = SegmentState.NEW if not tiles else SegmentState.FULL if is_full else SegmentState.OPEN
        return SegmentMap(state, tiles, is_foreign=foreign)
    size_bytes, meant_bytes, is_other = consolidated
    object_tile = Tile(0, size_bytes, place.segment_key)
    if _is_whole(consolidated, whole):
        state = SegmentState.LEFTOVER if whole else SegmentState.DONE
        return SegmentMap(state, (object_tile,), leftover=tuple(whole), is_foreign=foreign)
    proven = max([meant_bytes or 0, *(tile.end for tile in whole)])
    short = SegmentDamage(size_bytes, place.segment_key, f"{size_bytes} bytes, where {proven} are proven")
    if is_other:
        damaged = SegmentDamage(0, place.segment_key, "another digest than its metadata say")
        return SegmentMap(SegmentState.BROKEN, tiles, damage if tiles else damaged, beyond, is_foreign=foreign)
    if not whole:
        return SegmentMap(SegmentState.BROKEN, (object_tile,) if size_bytes else (), short)
    if meant_bytes == size_bytes > 0:  # sound as far as it goes
        tiles, damage, beyond = _join([object_tile, *whole], agree)
    return SegmentMap(SegmentState.BROKEN, tiles, damage, beyond, is_foreign=foreign)


def _is_whole(consolidated: Consolidated, chunks: Sequence[Tile]) -> bool:
    """Does the consolidated object hold all that the chunks prove? One whose own metadata agree with it also where the last chunk is a
    stale one that reaches further: a commit that nobody confirmed, and that a shorter one replaced."""
    size_bytes, meant_bytes, is_other = consolidated
    if is_other:
        return False
    if meant_bytes is not None:
        return meant_bytes == size_bytes and all(tile.position < size_bytes for tile in chunks)
    return all(tile.end <= size_bytes for tile in chunks)


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


def _missing(place: SegmentPlace, chunks: Sequence[Tile], position: int, unit: int) -> str:
    """The key of the chunk that should hold `position`: a new one, or in the fixed variant one that is too short."""
    if place.variant is Variant.APPEND:
        return place.chunk_key(position)
    chunk_bytes = max(tile.size_bytes for tile in chunks)
    return place.chunk_key(position // chunk_bytes * chunk_bytes // unit)


def _unit_bytes(chunks: Sequence[ChunkObject]) -> int:
    """What the numbers in the names of fixed chunks count: bytes, or KiB as the proposal's prose has it."""
    if len(chunks) < 2:
        return 1
    chunk_bytes = max(size_bytes for _, size_bytes in chunks)  # all but the last have it
    numbers = [number for number, _ in chunks]
    if all(number % chunk_bytes == 0 for number in numbers) or chunk_bytes % _KIB:
        return 1
    return _KIB if all(number % (chunk_bytes // _KIB) == 0 for number in numbers) else 1
