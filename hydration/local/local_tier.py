"""The broker's own copy of one partition: found, opened and cut into ranges. Never more than below the high watermark."""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import structlog

from headwater_core.clock import Clock
from headwater_core.epochs import EpochHistory
from headwater_core.errors import HeadwaterError, NotFound, SourceChanged, TransientError
from headwater_core.segments.local_log import LocalLog, LocalSegment
from hydration.answers import Slice
from hydration.local.boundary_index import BoundaryIndex, Witness
from hydration.local.epoch_check import EpochCheck
from hydration.local.file_version import FileVersion
from hydration.local.open_segment import OpenSegment
from hydration.local.scan_budget import ScanBudget
from hydration.runfile import RunFile

LOOK_S = 1.0  # a directory is looked at again after that; the high watermark's own checkpoint is up to 5 s old
KEPT_S = 5.0  # as old is a look at most where a thread takes a new one every LOOK_S; else readers ask for one
HANGS_S = 5.0  # a look that takes so long counts as failed: what the archive has is read from there
OPEN_FILES_MAX = 256
FAILED_S = 30.0  # for so long a file that its disk could not read is not read again
_INDEXES_MAX = 32  # segments whose batch boundaries are kept, per partition

log = structlog.get_logger()


class OpenFiles:
    """Segment files kept open between reads, over all partitions. What a reader holds stays open when it is closed here."""

    def __init__(self, files_max: int = OPEN_FILES_MAX, now_s: Callable[[], float] = monotonic) -> None:
        self._files_max, self._now_s = files_max, now_s
        self._failed: dict[Path, tuple[float, str]] = {}  # until when nobody reads it, and why
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, RunFile] = OrderedDict()

    def get(self, segment: LocalSegment) -> RunFile:
        """The segment's file, held for the caller. Raises SourceChanged when another file or none has its name by now, TransientError for
        one that could not be read a moment ago."""
        path = segment.path
        with self._lock:
            file = self._files.get(path)
            self._check_readable(path, file)
            if file is not None and file.inode == segment.generation.inode:
                self._files.move_to_end(path)
                return file.hold()
        try:
            opened = RunFile.open(path)
        except FileNotFoundError as error:
            raise SourceChanged(f"{path} is gone") from error
        except OSError as error:
            raise TransientError(f"{path}: {error.strerror}") from error
        if opened.inode != segment.generation.inode:
            opened.release()
            raise SourceChanged(f"{path} was replaced")
        opened.hold()
        with self._lock:
            closed = [self._files.pop(path, None)]
            self._files[path] = opened
            while len(self._files) > self._files_max:
                closed.append(self._files.popitem(last=False)[1])
        for each in closed:
            if each is not None:
                each.release()
        return opened

    def _check_readable(self, path: Path, file: RunFile | None) -> None:
        """What fails while it is sent takes the client's connection with it, so it is not tried again at once, nor when it was closed
        meanwhile."""
        now_s = self._now_s()
        if file is not None and file.failure:
            self._failed = {each: known for each, known in self._failed.items() if now_s < known[0]}
            self._failed.setdefault(path, (now_s + FAILED_S, file.failure))
            file.failure = ""
        until_s, reason = self._failed.get(path, (now_s, ""))
        if now_s < until_s:
            raise TransientError(f"{path}: {reason}")

    def sweep(self) -> None:
        """Close files that were deleted, so that their space becomes free."""
        with self._lock:
            files = [(path, file.hold()) for path, file in self._files.items()]
        for path, file in files:  # without the lock: a disk may hang
            if not file.is_named:
                with self._lock:
                    if self._files.get(path) is file:
                        self._files.pop(path).release()
            file.release()

    def close(self) -> None:
        with self._lock:
            while self._files:
                self._files.popitem()[1].release()


class Look(NamedTuple):
    """What one look at a directory found. `failure` is why it failed; both None: the partition is not there.

    seen_s   by then it had ended: files that were deleted before it were archived before it
    """

    log: LocalLog | None
    failure: HeadwaterError | None
    began_s: float
    seen_s: float


class LocalSlice(NamedTuple):
    """A slice of the local log, and what shows whether it is still the same.

    log, segment  as the look had them
    witness       a batch at its end or after it
    """

    slice: Slice
    log: LocalLog
    segment: LocalSegment
    witness: Witness


class _Denied(NamedTuple):
    """A leader epoch history that a batch contradicted, when, and whether a later look had the same history."""

    epochs: EpochHistory
    denied_s: float
    is_proven: bool


class LocalTier:
    """The last look at one partition's directory, which every reader has without waiting. Looking itself may wait for a disk: `log` does,
    so it is for threads that may. A new look is taken once a second, or when what was found proves out of date.

    max_age_s   how old a look may be. LOOK_S, or KEPT_S while a thread takes new ones by itself (see LookKeeper)
    """

    def __init__(
        self, look: Callable[[], LocalLog | None], files: OpenFiles, clock: Clock, last: Look | None = None, listed_in: Path | None = None
    ) -> None:
        """
        look       one look at the directory; None when the partition is not, or no longer, there
        last       what an earlier look found
        listed_in  the log directory that a listing found it in
        """
        self._look, self._files, self._clock, self._listed_in = look, files, clock, listed_in
        self._lock = threading.Lock()
        unknown = TransientError("the local log has not been looked at yet")
        self.last = last or Look(None, unknown, float("-inf"), float("-inf"))
        self.last_seen: LocalLog | None = self.last.log  # the newest look that found one
        self.max_age_s = LOOK_S
        self.used_s = float("-inf")
        self._awaited_since_s: float | None = None
        self._boundaries_lock = threading.Lock()
        self._boundaries: dict[int, BoundaryIndex] = {}
        self._denied: _Denied | None = None

    def log(self, max_age_s: float = LOOK_S) -> LocalLog | None:
        """Look, unless the last look is younger than `max_age_s` seconds. Raises what made it fail, or the last one."""
        began_s = self._clock.monotonic_s()
        if began_s - self.last.began_s >= max_age_s:
            with self._lock:
                if began_s - self.last.began_s >= max_age_s:
                    self.publish(self._looked(began_s))
        self._awaited_since_s = None  # also when no new one was needed: its reader need not wait
        if self.last.failure is not None:
            raise self.last.failure
        return self.last.log

    def needs_look(self, max_age_s: float | None = None, *, is_read: bool = True) -> bool:
        """Whether the caller should wait for a new look: not when the last is younger than that, or than what is usual, nor when one
        has been waited for so long that the disk must hang.

        is_read  the caller is a reader
        """
        now_s = self._clock.monotonic_s()
        if is_read:
            self.used_s = now_s
        if now_s - self.last.began_s < (self.max_age_s if max_age_s is None else max_age_s):
            return False
        if self._awaited_since_s is None:
            self._awaited_since_s = now_s
        return now_s - self._awaited_since_s < HANGS_S

    @property
    def hangs(self) -> bool:
        """Whether a reader has waited HANGS_S for a look."""
        since_s = self._awaited_since_s
        return since_s is not None and self._clock.monotonic_s() - since_s >= HANGS_S

    @property
    def log_dir(self) -> Path | None:
        """The log directory that it was last seen in; None where it never was."""
        return self.last_seen.directory.parent if self.last_seen is not None else self._listed_in

    def publish(self, look: Look) -> None:
        """Take over a look that was taken elsewhere, unless it began before the last one."""
        self._awaited_since_s = None
        if look.failure is None and look.began_s < self.last.began_s:
            return
        if look.failure is None:
            current = {segment.base_offset for segment in look.log.segments} if look.log else set()
            with self._boundaries_lock:
                for base in self._boundaries.keys() - current:
                    del self._boundaries[base]
            self._judge_denial(look.log, look.began_s)
        self.last_seen = look.log or self.last_seen
        self.last = look

    def look_again(self) -> None:
        """What was found proved to be out of date: the next reader gets a new look."""
        self.last = self.last._replace(began_s=float("-inf"))

    def _looked(self, began_s: float) -> Look:
        found, failure = None, None
        try:
            found = self._look()
        except NotFound:
            pass
        except HeadwaterError as error:
            failure = error
        except OSError as error:
            failure = TransientError(str(error))
        seen_s = self.last.seen_s if failure is not None else self._clock.monotonic_s()
        return Look(found, failure, float("-inf") if failure is not None else began_s, seen_s)

    def open(self, segment: LocalSegment) -> RunFile:
        """Held for the caller. Raises SourceChanged when the segment is no longer what the look said."""
        try:
            return self._files.get(segment)
        except SourceChanged:
            self.look_again()
            raise

    def check_named(self, segment: LocalSegment) -> None:
        """Raises SourceChanged when another file or none has the segment's name by now, though it may still be open here."""
        try:
            if segment.path.stat().st_ino == segment.generation.inode:
                return
        except FileNotFoundError:
            pass
        except OSError as error:
            raise TransientError(f"{segment.path}: {error.strerror}") from error
        self.look_again()
        raise SourceChanged(f"{segment.path} is gone or was replaced")

    def read(self, log: LocalLog, offset: int, end_offset: int, max_bytes: int, budget: ScanBudget) -> tuple[LocalSlice | None, int]:
        """Whole batches of one segment from `offset` on and below `end_offset`, about `max_bytes`, and the offset to continue with. Without
        a piece there are none below that.

        log   what the caller's look found: everything is read from the very files it lists

        The slice's file is held for the caller. Raises ScanBudgetExceeded, CorruptData or UnsupportedFormat for a
        file that is no run of batches, SourceChanged when the log is not what `log` says any more; the next look is a fresh
        one then.
        """
        segments = log.segments
        first = max(bisect_right(segments, offset, key=lambda each: each.base_offset) - 1, 0)
        for at in range(first, len(segments)):
            segment = segments[at]
            if segment.base_offset >= end_offset:
                break
            following = segments[at + 1].base_offset if at + 1 < len(segments) else None
            file = self.open(segment)
            try:
                opened = self._opened(file, segment, log, budget)
                # The last batch of a sealed segment says which offset comes next: the following one's base, unless there is a gap.
                end = opened.whole() if following is not None and following <= end_offset else opened.end_at(end_offset)
                found = opened.cut(offset, end, max_bytes)
                if found is not None:
                    position, size_bytes, next_offset = found.range
                    return LocalSlice(Slice(file.hold(), position, size_bytes), log, segment, found.witness), next_offset
                if following is None:
                    return None, max(offset, end.place.offset)
            finally:
                file.release()
        return None, end_offset

    def check(self, piece: LocalSlice) -> None:
        """Raises SourceChanged when the piece, which is still held, was cut since it was read."""
        self._opened(piece.slice.file, piece.segment, piece.log, ScanBudget()).check(piece.witness)

    def epoch_check(self, log: LocalLog) -> EpochCheck | None:
        """What its batches are compared with; None where the comparison would prove nothing."""
        denied = self._denied
        if denied is not None and denied.is_proven and denied.epochs == log.epochs:
            return None
        return EpochCheck(log.epochs, lambda: self._note_denial(log))

    def _note_denial(self, log: LocalLog) -> None:
        if self._denied is None or self._denied.epochs != log.epochs:
            self._denied = _Denied(log.epochs, self._clock.monotonic_s(), is_proven=False)

    def _judge_denial(self, found: LocalLog | None, began_s: float) -> None:
        """Batches that contradict a history were appended after it, and a newer look finds a newer history. One that finds the
        same again proves the history wrong: it has no checksum, and readers may not be refused forever because of it.
        """
        denied = self._denied
        if denied is None or found is None:
            return
        if found.epochs != denied.epochs:
            self._denied = None
        elif began_s >= denied.denied_s and not denied.is_proven:
            self._denied = denied._replace(is_proven=True)
            log.warning(
                "epoch_history_bypassed", partition=str(found.partition), directory=str(found.directory), epochs=found.epochs.starts
            )

    def end_offset(self, budget: ScanBudget) -> int:
        """The offset after the last whole batch on disk, whether it is readable yet or not, by the last look. Raises
        as read does."""
        log, failure = self.last.log, self.last.failure
        if failure is not None:
            raise failure
        if log is None or not log.segments:
            return log.log_start if log is not None else 0
        segment = log.segments[-1]
        file = self.open(segment)
        try:
            return self._opened(file, segment, log, budget).end_offset()
        finally:
            file.release()

    def _opened(self, file: RunFile, segment: LocalSegment, log: LocalLog, budget: ScanBudget) -> OpenSegment:
        """With what is known of this very file; a new leader epoch may have cut it: then nothing is known."""
        version = FileVersion.of(segment, log)
        with self._boundaries_lock:
            boundaries = self._boundaries.pop(segment.base_offset, None)
            if boundaries is None or boundaries.version != version:
                boundaries = BoundaryIndex(version)
            while len(self._boundaries) >= _INDEXES_MAX:
                del self._boundaries[next(iter(self._boundaries))]
            self._boundaries[segment.base_offset] = boundaries  # the most recently used is the last
        return OpenSegment(file, segment, self.epoch_check(log), boundaries, budget)
