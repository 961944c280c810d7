"""The broker's own copy of one partition: found, opened and cut into ranges. Never more than below the high watermark."""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from hydration.answers import Slice
from hydration.open_segment import Allowance, OpenSegment, Places
from hydration.runfile import RunFile
from model.clock import Clock
from model.errors import NotFound, SourceChanged, TransientError
from segments.log import LocalLog, LocalSegment

LOOK_S = 1.0  # a directory is looked at again after that; the high watermark's own checkpoint is up to 5 s old
OPEN_FILES_MAX = 256
_PLACES_MAX = 32  # segments whose batch boundaries are kept, per partition


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
        self._places_lock = threading.Lock()
        self._places: dict[int, Places] = {}

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
                    with self._places_lock:
                        for base in self._places.keys() - current:
                            del self._places[base]
        return self._log

    def look_again(self) -> None:
        """What was found proved to be out of date: the next one who asks gets a new look."""
        self._looked_s = float("-inf")

    def open(self, segment: LocalSegment) -> RunFile:
        """Held for the caller. Raises SourceChanged when the segment is no longer what the look said."""
        try:
            return self._files.get(segment)
        except SourceChanged:
            self.look_again()
            raise

    def read(self, log: LocalLog, offset: int, limit: int, max_bytes: int, allowance: Allowance) -> tuple[Slice | None, int]:
        """Whole batches of one segment from `offset` on and below `limit`, and the offset to go on with. Without a slice there
        are none below that.

        log   what the caller's look found: everything is read from the very files it lists

        The slice's file is held for the caller. Raises LongWalk beyond the allowance, CorruptData or UnsupportedFormat for a
        file that is no run of batches, SourceChanged when the log is not what `log` says any more; the next look is a fresh
        one then.
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
                opened = self._opened(file, segment, log, allowance)
                # The last batch of a sealed segment says which offset comes next: the following one's base, unless there is a hole.
                end = opened.whole() if following is not None and following <= limit else opened.below(limit)
                found = opened.cut(offset, end, max_bytes)
                if found is not None:
                    return Slice(file.hold(), found.position, found.size_bytes), found.next_offset
                if following is None:
                    return None, max(offset, end.offset)
            finally:
                file.release()
        return None, limit

    def end_offset(self, allowance: Allowance) -> int:
        """The offset behind the last whole batch on disk, whether it is readable yet or not. Raises as read does."""
        log = self.log()
        if log is None or not log.segments:
            return log.log_start if log is not None else 0
        segment = log.segments[-1]
        file = self.open(segment)
        try:
            return self._opened(file, segment, log, allowance).end_offset()
        finally:
            file.release()

    def _opened(self, file: RunFile, segment: LocalSegment, log: LocalLog, allowance: Allowance) -> OpenSegment:
        """With what is known of this very file; a new leader epoch may have cut it, so that begins anew then."""
        made_for = (segment.generation[0], log.epochs.newest)
        with self._places_lock:
            places = self._places.pop(segment.base_offset, None)
            if places is None or places.made_for != made_for:
                places = Places(*made_for)
            while len(self._places) >= _PLACES_MAX:
                del self._places[next(iter(self._places))]
            self._places[segment.base_offset] = places  # the most recently used is the last
        return OpenSegment(file, segment, places, allowance)
