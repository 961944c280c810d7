"""One object from the chunks of a full segment; then, once that is proven to hold them, no chunks. Interrupted anywhere, each may be
called again (docs/formats/chunks.md, "Consolidation")."""

from collections.abc import Mapping, Sequence

from headwater_core.errors import AlreadyExists, CorruptData, NotFound, SourceChanged, UnknownOutcome, UsageError
from headwater_core.layouts.chunks.chunk_finder import BYTES_NAME, CRC_NAME, find_map, holds_same
from headwater_core.layouts.chunks.chunk_map import SegmentMap, SegmentState, Tile
from headwater_core.layouts.chunks.chunk_names import SegmentPlace
from headwater_core.objectstore.digest import Digest, digest_in_store, value_of
from headwater_core.objectstore.store import NO_METADATA, ObjectForm, ObjectRange, ObjectStore, Pace, at_once

VERSION = "1"
_WINDOW_BYTES = 1 << 20
_CONSOLIDATED = (SegmentState.DONE, SegmentState.LEFTOVER)


def consolidate(
    store: ObjectStore,
    place: SegmentPlace,
    end: int,
    metadata: Mapping[str, str] = NO_METADATA,
    *,
    chunk_bytes: int | None = None,
) -> SegmentMap:
    """Make one object from the chunks of a segment to which nothing will be added; return the map with it.

    The chunks are copied by the store where it can. All of them have to be there, and are: one that is missing ends it before anything is
    created. The object is confirmed by length and digest before this returns. One that is there already is not made again.

    end          so many bytes it has at least: that the last chunk is missing does not follow from a listing
    metadata     user metadata besides the layout's own
    chunk_bytes  of the fixed variant, where that is known

    Raises UsageError for a segment of no bytes, CorruptData for one that is damaged or ends before `end`, and where the object, by
    any maker, is not what its metadata and the chunks say; UnknownOutcome, and what the store raises.
    """
    found = find_map(store, place, is_full=True, end=end, chunk_bytes=chunk_bytes)
    if found.state in _CONSOLIDATED:
        _confirm(store, place, found, end)
        return found
    _check_not_broken(place, found)
    if found.damage is not None:
        raise CorruptData(found.damage.key, found.damage.position, found.damage.reason)
    if found.state is not SegmentState.FULL or found.is_foreign:
        raise UsageError(f"{place.prefix}: nothing to consolidate ({found.state.value})")
    try:
        ranges = [ObjectRange(tile.key, tile.start, tile.size_bytes) for tile in found.tiles]
        join_confirmed(store, place.segment_key, ranges, _digest_of(store, found.tiles).text(), metadata)
    except SourceChanged as error:
        raise CorruptData(place.segment_key, 0, str(error)) from error
    except NotFound:  # a chunk: lost, or not needed any more, as somebody else was faster
        found = find_map(store, place, is_full=True, end=end, chunk_bytes=chunk_bytes)
        if found.state not in _CONSOLIDATED:
            raise
        _confirm(store, place, found, end)
        return found
    return find_map(store, place, is_full=True, end=end, chunk_bytes=chunk_bytes)


def join_confirmed(
    store: ObjectStore,
    key: str,
    ranges: Sequence[ObjectRange],
    digest: str,
    metadata: Mapping[str, str] = NO_METADATA,
    pace: Pace = at_once,
) -> None:
    """Create `key` of `ranges`, which have this digest together, copied by the store where it can; confirmed when this returns. One that is
    there already is not made again. Whoever calls it is the only one who writes the key.

    Raises SourceChanged when something else is there; CorruptData when the ranges have another digest, NotFound and TruncatedData for a
    range that is not there: then nothing was created; UnknownOutcome; and what the store and `pace` raise: see ObjectStore.join.
    """
    for upload in list(store.unfinished(key)):
        if upload.key == key:
            store.abort(upload)  # of an attempt that was interrupted
    size_bytes = sum(each.size_bytes for each in ranges)
    own = {"headwater-chunks-version": VERSION, BYTES_NAME: str(size_bytes), CRC_NAME: digest.rpartition(":")[2]}
    try:
        store.join(key, ranges, digest=digest, form=ObjectForm({**metadata, **own}), pace=pace)
    except (AlreadyExists, UnknownOutcome) as error:
        try:
            store.stat(key)
        except NotFound:
            raise UnknownOutcome(f"{key} may yet appear: {error}") from error
    try:
        _check(store, key, size_bytes, digest)
    except CorruptData as error:
        raise SourceChanged(str(error)) from error


def delete_chunks(store: ObjectStore, place: SegmentPlace, end: int) -> SegmentMap:
    """Delete the chunks that a consolidated object has replaced; return the map without them.

    Nothing is deleted where the object is not proven to hold what they do: by the digest of all of them, or, when some are gone, byte by
    byte. That a chunk reaches further than the object does not prevent it: `end` says that nobody needs those bytes.

    end  so many bytes the segment has, as its manifest or the next segment's base knows, never the object alone: a map that was found
         without it ends where the chunks do

    Raises UsageError for a segment that is not consolidated, CorruptData where the object ends before `end`, or is not what its metadata
    and the chunks say.
    """
    found = find_map(store, place, is_full=True, end=end)
    _check_not_broken(place, found)
    if found.state not in _CONSOLIDATED or found.is_foreign:
        raise UsageError(f"{place.prefix}: its chunks are needed ({found.state.value})")
    _confirm(store, place, found, end)
    for chunk in found.leftover:
        store.delete(chunk.key)
    return SegmentMap(SegmentState.DONE, found.tiles)


def _check_not_broken(place: SegmentPlace, found: SegmentMap) -> None:
    if found.state is SegmentState.BROKEN:
        raise CorruptData(place.segment_key, 0, f"{found.broken}; the chunks are read, and stay")


def _confirm(store: ObjectStore, place: SegmentPlace, found: SegmentMap, end: int) -> None:
    """Raises CorruptData unless the consolidated object reaches `end`, and has the digest in its metadata and the bytes of the chunks
    that are left, as far as these are there. One that goes meanwhile was confirmed by the one who deletes it, or is not needed."""
    key, size_bytes = place.segment_key, found.end
    if size_bytes < end:
        raise CorruptData(key, size_bytes, f"bytes {size_bytes} to {end} of the segment are not in it")
    metadata = store.read_into(key, memoryview(bytearray(min(size_bytes, 1))), start=0)
    digests = [f"crc64nvme:{metadata[CRC_NAME]}"] if CRC_NAME in metadata else []
    chunks = [chunk.cut(0, size_bytes) for chunk in found.leftover]
    is_complete = bool(chunks) and [0, *(chunk.end for chunk in chunks)] == [*(chunk.position for chunk in chunks), size_bytes]
    if is_complete:
        try:
            digests.append(_digest_of(store, chunks).text())
        except NotFound:
            is_complete = False
    if digests:
        _check(store, key, size_bytes, *digests)
    if not is_complete:
        for chunk in chunks:
            if not _holds(store, key, chunk):
                raise CorruptData(chunk.key, 0, f"{key} does not hold it")


def _holds(store: ObjectStore, key: str, chunk: Tile) -> bool:
    """Whether the object has the chunk's bytes at its position, or there is no such chunk any more."""
    try:
        return holds_same(store, Tile(chunk.position, chunk.size_bytes, key, chunk.position), chunk)
    except NotFound:
        store.stat(key)  # raises NotFound where it is the object that has gone
        return True


def _digest_of(store: ObjectStore, tiles: Sequence[Tile]) -> Digest:
    """Of all bytes: from what the store says of whole objects, else by reading."""
    digest = Digest()
    for tile in tiles:
        info = store.stat(tile.key)
        if tile.start == 0 and info.size_bytes == tile.size_bytes and info.digest is not None:
            digest.append(value_of(info.digest), tile.size_bytes)
            continue
        for at in range(0, tile.size_bytes, _WINDOW_BYTES):
            piece = bytearray(min(_WINDOW_BYTES, tile.size_bytes - at))
            store.read_into(tile.key, memoryview(piece), start=tile.start + at)
            digest.update(piece)
    return digest


def _check(store: ObjectStore, key: str, size_bytes: int, *digests: str) -> None:
    """Raises CorruptData when the store has anything else under `key` than each of `digests` says."""
    info = store.stat(key)
    there = info.digest if info.digest is not None or info.size_bytes != size_bytes else digest_in_store(store, key, size_bytes)
    for digest in digests:
        if (info.size_bytes, there) != (size_bytes, digest):
            raise CorruptData(key, 0, f"{info.size_bytes} bytes, {there}; it is to have {size_bytes} bytes, {digest}")
