"""What a cluster says about itself: the __cluster_metadata-0 log and its snapshots, which every broker keeps on disk."""

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from headwater_core.errors import CorruptData, SourceChanged, TruncatedData, UnsupportedFormat
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.batches import HEADER_BYTES, BatchHeader, check_batch
from headwater_core.segments.markers import read_marker
from headwater_core.segments.metadata.bootstrap_checkpoint import SNAPSHOT_FOOTER
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_image import MetadataImage

DIRECTORY = "__cluster_metadata-0"
_LOG_NAME = re.compile(r"(\d{20})\.log", re.ASCII)
_SNAPSHOT_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)
_BATCH_BYTES_MAX = 64 << 20  # controllers write batches of at most 8 MiB
_ATTEMPTS = 3
_SETTLED_NS = 2_000_000_000  # no file system's clock is coarser


def _nothing() -> None:
    pass


class MetadataLog:
    """Follows one __cluster_metadata-0 directory: every `read` takes up only what is new since the last.

    A broker appends to that log twice a second even when nothing happens, so it must not be read from its beginning
    each time. A torn tail of the newest segment is not there yet. Nothing on disk says which of the last records are
    committed: they may be taken back, which the next read notices and then starts from the beginning.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._image = MetadataImage()
        self._place: _Place | None = None
        self._state: ClusterMetadata | None = None
        self._modified_ns: int | None = None  # the directory's, at the last read, unless files could have come or gone since unseen
        self._unread: tuple[int, str] | None = None  # the same, when there was a record that could not be read, and which
        self._progressed: Callable[[], None] = _nothing

    def read(self, progressed: Callable[[], None] = _nothing) -> ClusterMetadata:
        """The newest state. Raises CorruptData when log and snapshots make none, SourceChanged when they keep changing,
        and UnsupportedFormat for a record of a later version, without another look as long as no file has come or gone.

        progressed  called as the read proceeds, which may take long
        """
        self._progressed = progressed
        for _ in range(_ATTEMPTS):
            try:
                modified_ns = self._directory.stat().st_mtime_ns
                if self._unread and self._unread[0] == modified_ns:
                    raise UnsupportedFormat(self._unread[1])
                if self._state and self._place and self._modified_ns == modified_ns and self._place.is_at_its_end():
                    return self._state
                self._modified_ns, self._unread = None, None
                state = self._read()
                if time.time_ns() > modified_ns + _SETTLED_NS:
                    self._modified_ns = modified_ns
                return state
            except UnsupportedFormat as error:
                self._place, self._unread = None, (modified_ns, str(error))
                raise
            except (FileNotFoundError, SourceChanged):
                self._place = None  # a segment or snapshot was dropped between listing and reading
            except BaseException:
                self._place = None  # part of a read may be in the image already: start from the beginning next time
                raise
        raise SourceChanged(f"{self._directory} keeps changing")

    def _read(self) -> ClusterMetadata:
        place = self._place
        if place is None or not place.holds():
            self._image, place = self._begin()
            self._state = None
        changed = False
        for base, path in self._segments():
            if base < place.segment_base:
                continue
            if base > place.segment_base or place.path is None:
                if base > self._image.end_offset:
                    raise CorruptData(str(path), 0, f"the metadata log lacks offsets {self._image.end_offset} to {base - 1}")
                place = _Place(path, base)
            changed |= self._follow(place)
        self._place = place
        if self._state is None or changed:
            self._state = self._image.freeze()
        elif self._state.end_offset != self._image.end_offset:
            now = self._image
            self._state = replace(self._state, end_offset=now.end_offset, end_epoch=now.end_epoch, appended_ms=now.appended_ms)
        return self._state

    def _begin(self) -> "tuple[MetadataImage, _Place]":
        """The newest complete snapshot's image, and where in the log to continue from there, with no file opened yet."""
        image = MetadataImage()
        for end_offset, epoch, path in self._snapshots():
            candidate = MetadataImage()
            if _load_snapshot(path, candidate, self._progressed):
                candidate.end_offset, candidate.end_epoch = end_offset, epoch
                image = candidate
                break
        before = [base for base, _ in self._segments() if base <= image.end_offset]
        return image, _Place(None, before[-1] if before else 0)

    def _segments(self) -> list[tuple[int, Path]]:
        return sorted((int(match[1]), path) for path in self._directory.iterdir() if (match := _LOG_NAME.fullmatch(path.name)))

    def _snapshots(self) -> list[tuple[int, int, Path]]:
        """(end offset, epoch of the last record, path), newest first."""
        found = [
            (int(match[1]), int(match[2]), path) for path in self._directory.iterdir() if (match := _SNAPSHOT_NAME.fullmatch(path.name))
        ]
        return sorted(found, reverse=True)

    def _follow(self, place: "_Place") -> bool:
        """Apply what follows `place` in its file and move it there; True when that changed more than the end offset."""
        assert place.path is not None
        changed = False
        place.size_bytes = place.path.stat().st_size
        for position, header, batch in _batches(place.path, place.position):
            if header.base_offset >= self._image.end_offset:
                changed |= self._image.apply_batch(header, batch, str(place.path))
                self._image.end_offset, self._image.end_epoch = header.next_offset, header.leader_epoch
                self._image.appended_ms = max(0, header.max_timestamp_ms)
            place.passed(position, header, bytes(batch[:HEADER_BYTES]))
            self._progressed()
        return changed


class _Place:
    """Where in the log the last read ended, and what must still be there for the next to continue.

    size_bytes  of the file, when it was last followed
    """

    def __init__(self, path: Path | None, segment_base: int) -> None:
        self.path, self.segment_base = path, segment_base
        self.position = self._last_position = self.size_bytes = 0
        self._last_header = b""
        self._inode = path.stat().st_ino if path else 0

    def passed(self, position: int, header: BatchHeader, raw: bytes) -> None:
        self._last_position, self._last_header = position, raw
        self.position = position + header.size_bytes

    def holds(self) -> bool:
        """The same file, and the last batch read from it still where it was: nothing was truncated and written again."""
        return self._size_now() is not None

    def is_at_its_end(self) -> bool:
        """It holds, and the file has not grown since it was followed."""
        return self._size_now() == self.size_bytes

    def _size_now(self) -> int | None:
        if self.path is None:
            return None
        try:
            with self.path.open("rb") as file:
                file.seek(self._last_position)
                status = os.fstat(file.fileno())
                same = status.st_ino == self._inode and file.read(len(self._last_header)) == self._last_header
        except FileNotFoundError:
            return None
        return status.st_size if same else None


def _batches(path: Path, start: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Whole verified batches from byte `start` on; stops at a torn tail."""
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        try:
            for position, header in headers(file, start, end, where=str(path)):
                if position + header.size_bytes > end:
                    return
                if header.size_bytes > _BATCH_BYTES_MAX:
                    raise CorruptData(str(path), position, f"metadata batch of {header.size_bytes} bytes")
                file.seek(position)
                batch = file.read(header.size_bytes)
                if len(batch) < header.size_bytes:
                    return
                check_batch(batch, where=str(path))
                yield position, header, memoryview(batch)
        except TruncatedData:
            return


def _load_snapshot(path: Path, image: MetadataImage, progressed: Callable[[], None]) -> bool:
    """Apply a snapshot to `image`; False when it does not end with its footer, as one that is still written."""
    complete = False
    for _, header, batch in _batches(path, 0):
        complete = header.is_control and header.records > 0 and read_marker(batch, where=str(path)).type == SNAPSHOT_FOOTER
        image.apply_batch(header, batch, str(path))
        progressed()
    return complete
