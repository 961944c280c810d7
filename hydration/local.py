"""The broker's own copy of one partition: found, opened and cut into ranges. Never more than below the high watermark."""

import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hydration.answers import Slice
from hydration.offset_hints import hint_by_offset, hint_by_position
from hydration.ranges import Boundary, Range, cut, headers
from hydration.runfile import RunFile
from model.clock import Clock
from model.errors import CorruptData, NotFound, SourceChanged, TransientError, UnsupportedFormat
from segments.batches import HEADER_BYTES, read_batch_header
from segments.log import LocalLog, LocalSegment

LOOK_S = 1.0  # a directory is looked at again after that; the high watermark's own checkpoint is up to 5 s old
OPEN_FILES_MAX = 256
_POINT_SPACING_BYTES = 32 << 10  # so that a 1 GiB segment takes half a megabyte of points at most


class OpenFiles:
    """Segment files kept open between reads, over all partitions. What a reader holds stays open whatever happens here."""

    def __init__(self, limit: int = OPEN_FILES_MAX) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, RunFile] = OrderedDict()

    def get(self, segment: LocalSegment) -> RunFile:
        """The segment's file, held for the caller. Raises SourceChanged when another file or none has its name by now."""
        with self._lock:
            file = self._files.get(segment.path)
            if file is not None and file.inode == segment.generation[0]:
                self._files.move_to_end(segment.path)
                return file.hold()
            try:
                opened = RunFile.open(segment.path)
            except FileNotFoundError as error:
                raise SourceChanged(f"{segment.path} is gone") from error
            except OSError as error:
                raise TransientError(f"{segment.path}: {error.strerror}") from error
            if opened.inode != segment.generation[0]:
                opened.release()
                raise SourceChanged(f"{segment.path} was replaced")
            if file is not None:
                self._files.pop(segment.path).release()
            self._files[segment.path] = opened
            while len(self._files) > self._limit:
                self._files.popitem(last=False)[1].release()
            return opened.hold()

    def sweep(self) -> None:
        """Let go of files that were deleted, so that their space becomes free."""
        with self._lock:
            for path in [path for path, file in self._files.items() if not file.is_named]:
                self._files.pop(path).release()

    def close(self) -> None:
        with self._lock:
            while self._files:
                self._files.popitem()[1].release()


@dataclass(slots=True)
class _Places:
    """Batch boundaries found so far in one segment; boundaries are checked where they are used.

    ends   by offset limit: where the batches below it end
    whole  where all of a sealed segment's batches end
    """

    inode: int
    epoch: int | None
    offsets: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ends: dict[int, Boundary] = field(default_factory=dict)
    whole: Boundary | None = None

    def note(self, place: Boundary) -> None:
        at = bisect_right(self.positions, place.position)
        if at and place.position - self.positions[at - 1] < _POINT_SPACING_BYTES:
            return
        if at < len(self.positions) and self.positions[at] - place.position < _POINT_SPACING_BYTES:
            return
        insort(self.positions, place.position)
        insort(self.offsets, place.offset)

    def by_offset(self, offset: int) -> Boundary | None:
        at = bisect_right(self.offsets, offset) - 1
        return Boundary(self.positions[at], self.offsets[at]) if at >= 0 else None

    def by_position(self, position: int) -> Boundary | None:
        at = bisect_right(self.positions, position) - 1
        return Boundary(self.positions[at], self.offsets[at]) if at >= 0 else None

    def forget(self) -> None:
        self.offsets, self.positions, self.ends, self.whole = [], [], {}, None


class LocalTier:
    """Looks at the directory at most once a second, or when what it knew proves to be out of date."""

    def __init__(self, look: Callable[[], LocalLog | None], files: OpenFiles, clock: Clock) -> None:
        """look   one look at the directory; None when the partition is not, or no longer, there"""
        self._look, self._files, self._clock = look, files, clock
        self._lock = threading.Lock()
        self._log: LocalLog | None = None
        self._looked_s = float("-inf")
        self.seen_s = float("-inf")  # by then the last look had ended: whoever took files away before it has said so before
        self.last_seen: LocalLog | None = None  # the newest look that found one
        self._places: dict[int, _Places] = {}

    def log(self, max_age_s: float = LOOK_S) -> LocalLog | None:
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= max_age_s:
            with self._lock:
                if now_s - self._looked_s >= max_age_s:
                    try:
                        self._log = self._look()
                    except NotFound:
                        self._log = None
                    self.last_seen = self._log or self.last_seen
                    self._looked_s, self.seen_s = now_s, self._clock.monotonic_s()
                    current = {segment.base_offset for segment in self._log.segments} if self._log else set()
                    for base in self._places.keys() - current:
                        del self._places[base]
        return self._log

    def open(self, segment: LocalSegment) -> RunFile:
        """Held for the caller. Raises SourceChanged when the segment is no longer what the look said."""
        try:
            return self._files.get(segment)
        except SourceChanged:
            self._looked_s = float("-inf")
            raise

    def read(self, log: LocalLog, offset: int, limit: int, max_bytes: int) -> tuple[Slice | None, int]:
        """Whole batches of one segment from `offset` on and below `limit`, and the offset to go on with. Without a slice there
        are none below that.

        log   what the caller's look found: everything is read from the very files it lists

        The slice's file is held for the caller. Raises CorruptData or UnsupportedFormat for a file that is no run of
        batches, SourceChanged when the log is not what `log` says any more; the next look is a fresh one then.
        """
        segments = log.segments
        first = max(bisect_right(segments, offset, key=lambda each: each.base_offset) - 1, 0)
        for at in range(first, len(segments)):
            segment = segments[at]
            if segment.base_offset >= limit:
                break
            following = segments[at + 1].base_offset if at + 1 < len(segments) else None
            file = self.open(segment)
            try:
                end = self._end(file, segment, following, log, limit)
                found = self._cut(file, segment, log, end, offset, max_bytes)
                if found is not None:
                    return Slice(file.hold(), found.position, found.size_bytes), found.next_offset
                if following is None:
                    return None, max(offset, end.offset)
            finally:
                file.release()
        return None, limit

    def end_offset(self) -> int:
        """The offset behind the last whole batch on disk, whether it is readable yet or not. Walks the active segment's tail."""
        log = self.log()
        if log is None or not log.segments:
            return log.log_start if log is not None else 0
        segment = log.segments[-1]
        file = self.open(segment)
        try:
            places = self._places_of(segment, log)
            end = segment.base_offset
            start = self._start(file, segment, places, log.high_watermark or segment.base_offset)
            for _, header in headers(file, start.position, file.size_bytes):
                end = header.next_offset
            return end
        finally:
            file.release()

    def _cut(self, file: RunFile, segment: LocalSegment, log: LocalLog, end: Boundary, offset: int, max_bytes: int) -> Range | None:
        places = self._places_of(segment, log)

        def boundary(position: int, most: int) -> Boundary | None:
            return self._boundary(file, segment, places, position, position + most)

        start = self._start(file, segment, places, offset)
        found = cut(file, offset, start=start, end=end, max_bytes=max_bytes, boundary=boundary)
        if found is not None and found.position + found.size_bytes < end.position:
            with self._lock:
                places.note(Boundary(found.position + found.size_bytes, found.next_offset))
        return found

    def _places_of(self, segment: LocalSegment, log: LocalLog) -> _Places:
        """What is known of this very file; a new leader epoch may have cut it, so it begins anew then."""
        places = self._places.get(segment.base_offset)
        if places is None or (places.inode, places.epoch) != (segment.generation[0], log.epochs.newest):
            places = self._places[segment.base_offset] = _Places(segment.generation[0], log.epochs.newest)
        return places

    def _start(self, file: RunFile, segment: LocalSegment, places: _Places, offset: int) -> Boundary:
        """A batch boundary at or before the batch that holds `offset`: the nearest that is known and still true."""
        known = places.by_offset(offset)
        if known is not None and not _is_batch(file, known):
            with self._lock:
                places.forget()
            known = None
        if known is not None and known.offset == offset:
            return known
        hint = _hinted(file, hint_by_offset(segment.index_path, segment.base_offset, offset))
        best = max(filter(None, (known, hint)), default=None)
        return best if best is not None else Boundary(0, segment.base_offset - 1)  # its first batch may begin later: look

    def _end(self, file: RunFile, segment: LocalSegment, following: int | None, log: LocalLog, limit: int) -> Boundary:
        """Where the segment's batches below `limit` end, and the offset that comes then."""
        places = self._places_of(segment, log)
        if following is not None and following <= limit:
            return self._whole(file, segment, places, following)
        return self._below(file, segment, places, limit)

    def _whole(self, file: RunFile, segment: LocalSegment, places: _Places, following: int) -> Boundary:
        """The end of a sealed segment. Its last batch says which offset comes next: `following`, unless there is a hole."""
        size_bytes = file.size_bytes
        if places.whole is None or places.whole.position != size_bytes:
            end = Boundary(size_bytes, segment.base_offset)
            for _, header in headers(file, self._start(file, segment, places, following).position, size_bytes):
                end = Boundary(size_bytes, header.next_offset)
            places.whole = end
        return places.whole

    def _below(self, file: RunFile, segment: LocalSegment, places: _Places, limit: int) -> Boundary:
        """Where the batches that lie wholly below `limit` end. Walks what was appended since it was last asked."""
        size_bytes = file.size_bytes
        known = places.ends.get(limit)
        if known is not None and known.position <= size_bytes:
            return known
        start = self._start(file, segment, places, limit)
        end = Boundary(start.position, segment.base_offset)
        for position, header in headers(file, start.position, size_bytes):
            if header.last_offset >= limit:
                end = Boundary(position, header.base_offset)
                break
            end = Boundary(position + header.size_bytes, header.next_offset)
            with self._lock:
                places.note(Boundary(position, header.base_offset))
        with self._lock:
            if len(places.ends) >= 4:
                places.ends.clear()
            places.ends[limit] = end
        return end

    def _boundary(self, file: RunFile, segment: LocalSegment, places: _Places, position: int, end: int) -> Boundary | None:
        """The last known boundary behind `position` and not behind `end` that is one still."""
        known = places.by_position(end)
        hint = None
        if known is None or known.position < (position + end) // 2 or not _is_batch(file, known):
            known, hint = None, _hinted(file, hint_by_position(segment.index_path, segment.base_offset, end))
        best = known or hint
        return best if best is not None and best.position > position else None


def _is_batch(file: RunFile, place: Boundary) -> bool:
    """Whether a batch with this very base offset still begins there."""
    raw = file.read(place.position, HEADER_BYTES)
    try:
        return read_batch_header(raw, where=file.where).base_offset == place.offset
    except (CorruptData, UnsupportedFormat):
        return False


def _hinted(file: RunFile, hint: tuple[int, int] | None) -> Boundary | None:
    """The boundary that Kafka's index means, if the batch there is the one it names."""
    if hint is None:
        return None
    last_offset, position = hint
    try:
        header = read_batch_header(file.read(position, HEADER_BYTES), where=file.where)
    except (CorruptData, UnsupportedFormat):
        return None
    return Boundary(position, header.base_offset) if header.last_offset == last_offset else None
