"""A segment's map out of a store: one listing, a look at what it may have missed, and the bytes where objects overlap."""

import re

from headwater_core.errors import NotFound
from headwater_core.layouts.chunks.chunk_map import ChunkObject, Consolidated, SegmentMap, Tile, build_map, key_at
from headwater_core.layouts.chunks.chunk_names import SegmentPlace, Variant
from headwater_core.objectstore.store import ObjectStore

BYTES_NAME = "headwater-bytes"  # of the consolidated object's metadata: how many it is to have
CRC_NAME = "headwater-crc"  # likewise: which CRC-64/NVME
_SIZE = re.compile("[0-9]{1,19}")
_WINDOW_BYTES = 1 << 20


def find_map(
    store: ObjectStore, place: SegmentPlace, *, is_full: bool, end: int | None = None, chunk_bytes: int | None = None
) -> SegmentMap:
    """What the objects of a segment show; is_full, end, chunk_bytes: see build_map. Raises what the store raises.

    A listing may miss what was written last. So the consolidated object, and the chunks with which the tiles end or would continue, are
    requested by name.
    """
    sizes = {number: info.size_bytes for info in store.list(place.prefix) if (number := place.position_of(info.key)) is not None}
    consolidated = _consolidated(store, place)
    while True:
        chunks = [ChunkObject(number, size_bytes) for number, size_bytes in sizes.items()]
        found = build_map(
            place,
            chunks,
            consolidated,
            is_full=is_full,
            agree=lambda one, other: holds_same(store, one, other),
            end=end,
            chunk_bytes=chunk_bytes,
        )
        if consolidated is not None or (found.damage is not None and not found.damage.is_hole):
            return found
        following = found.damage.key if found.damage is not None else key_at(place, chunks, found.end, chunk_bytes)
        if not any(_asked(store, place, key, sizes) for key in _ends(place, found, following)):
            return found


def _ends(place: SegmentPlace, found: SegmentMap, following: str) -> list[str]:
    """The keys of which a listing may know too little."""
    grows = place.variant is Variant.FIXED and found.tiles and found.tiles[-1].key != following
    return [following, found.tiles[-1].key] if grows else [following]


def _asked(store: ObjectStore, place: SegmentPlace, key: str, sizes: dict[int, int]) -> bool:
    """Whether the store says more of a chunk than `sizes` did, which has it then."""
    number = place.position_of(key)
    try:
        size_bytes = store.stat(key).size_bytes
    except NotFound:
        return False
    if number is None or sizes.get(number) == size_bytes:
        return False
    sizes[number] = size_bytes
    return True


def _consolidated(store: ObjectStore, place: SegmentPlace) -> Consolidated | None:
    """What the store has, and what the object itself says, as far as its metadata are kept."""
    try:
        info = store.stat(place.segment_key)
        size_bytes = info.size_bytes
        metadata = store.read_into(place.segment_key, memoryview(bytearray(min(size_bytes, 1))), start=0)
    except NotFound:
        return None
    meant = metadata.get(BYTES_NAME, "")
    is_other = CRC_NAME in metadata and info.digest not in (None, f"crc64nvme:{metadata[CRC_NAME]}")
    return Consolidated(size_bytes, int(meant) if _SIZE.fullmatch(meant) else None, is_other)


def holds_same(store: ObjectStore, one: Tile, other: Tile) -> bool:
    """Whether two places of the store, of one size, hold the same bytes."""
    for at in range(0, one.size_bytes, _WINDOW_BYTES):
        size_bytes = min(_WINDOW_BYTES, one.size_bytes - at)
        first, second = bytearray(size_bytes), bytearray(size_bytes)
        store.read_into(one.key, memoryview(first), start=one.start + at)
        store.read_into(other.key, memoryview(second), start=other.start + at)
        if first != second:
            return False
    return True
