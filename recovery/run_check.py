"""Whether bytes are the run that the manifest lists, and Kafka's indexes of them."""

import os
from typing import BinaryIO

from headwater_core.counts import count_text
from headwater_core.errors import CorruptData
from headwater_core.objectstore.digest import Digest
from headwater_core.segments.batch_walk import BatchWalk
from headwater_core.segments.batches import CONTROL
from headwater_core.segments.stretch import PassedSegment, SegmentPass
from manifests.entry import Entry
from recovery.indexes import Indexes

_WINDOW_BYTES = 256 << 10


class RunCheck:
    """What `check_run` checks, but for the digest, by compiled code, of bytes that come piece by piece."""

    def __init__(self, entry: Entry, indexes: Indexes) -> None:
        """entry: of the run; its live part is what comes. `indexes` gets all of it when it is sound"""
        self._entry, self._indexes = entry, indexes
        self._pass = None if SegmentPass is None else SegmentPass(indexes.base_offset, indexes.interval_bytes)

    def update(self, piece: memoryview) -> None:
        if self._pass is not None and not self._pass.update(piece):
            self._pass = None

    def finish(self) -> int | None:
        """The offset after the last batch; None without compiled code, or when something is not as it must be: `check_run` knows what."""
        found = None if self._pass is None else self._pass.finish()
        if found is None:
            return None
        entry, passed = self._entry, PassedSegment(*found)
        if passed.position != entry.live_bytes or not entry.base_offset <= passed.first_offset <= passed.last_offset <= entry.last_offset:
            return None
        if passed.records != entry.records or set(passed.epochs) - {-1} != {epoch for epoch, _ in entry.epochs}:
            return None
        self._indexes.take(passed)
        return passed.last_offset + 1


def check_run(file: BinaryIO, entry: Entry, where: str, indexes: Indexes) -> int:
    """The offset after the last batch of `file`; compaction may have left it below the entry's end. `indexes` gets each batch.

    Raises CorruptData, and UnsupportedFormat for batches of an older format, unless the file holds exactly the live part of `entry`: its
    length, every batch's CRC, its offsets and epochs, and of an entry that was not cut the digest.
    """
    size = os.fstat(file.fileno()).st_size
    if size != entry.live_bytes:
        raise CorruptData(where, size, f"{size} bytes, the manifest lists {entry.live_bytes}")
    log_end = _passed(file, size, entry, indexes)
    return _walked(file, size, entry, where, indexes) if log_end is None else log_end


def _passed(file: BinaryIO, size: int, entry: Entry, indexes: Indexes) -> int | None:
    if SegmentPass is None:
        return None
    check, digest = RunCheck(entry, indexes), Digest()
    window = memoryview(bytearray(min(_WINDOW_BYTES, size)))
    while count := file.readinto(window):  # type: ignore[attr-defined]  # typeshed's BinaryIO lacks it
        check.update(window[:count])
        digest.update(window[:count])
    is_right = entry.is_cut or not entry.run_digest or digest.text() == entry.run_digest
    return check.finish() if is_right else None


def _walked(file: BinaryIO, size: int, entry: Entry, where: str, indexes: Indexes) -> int:
    first = last = -1
    records = 0
    epochs: set[int] = set()
    walk = BatchWalk(file, 0, size, where=where)
    for position, (base, _, epoch, _, _, attributes, delta, _, max_timestamp_ms, _, _, _, count) in walk:
        first, last = base if first < 0 else first, base + delta
        if first < entry.base_offset:
            break  # no index can describe it
        indexes.add(position, last, max_timestamp_ms)
        epochs.add(epoch)
        records += 0 if attributes & CONTROL else count
    if not entry.base_offset <= first <= last <= entry.last_offset:
        raise CorruptData(where, 0, f"offsets {first} to {last}, the manifest says {entry.base_offset} to {entry.last_offset}")
    if records != entry.records or epochs - {-1} != {epoch for epoch, _ in entry.epochs}:
        raise CorruptData(
            where,
            0,
            f"{count_text(records, 'record')} of leader epochs {sorted(epochs)}, the manifest says {entry.records} of {entry.epochs}",
        )
    digest = walk.digest_to(size)
    if entry.run_digest and not entry.is_cut and digest != entry.run_digest:
        raise CorruptData(where, 0, f"digest {digest}, the manifest says {entry.run_digest}")
    return last + 1
