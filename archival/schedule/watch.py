"""Reports which partitions are worth a look: a segment was rolled, a directory was created. The only home of watchdog.

File system events are a hint for speed; the rescan that every wait ends in sooner or later is the truth (an overflowing event
queue loses events, and a new directory may fill before it is watched). The kernel is asked for creations and renames only:
with the default mask a walk over some ten thousand directories raises more events than its queue holds, and they never end.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from watchdog.events import DirCreatedEvent, DirMovedEvent, FileCreatedEvent, FileMovedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from headwater_core.partition import TopicPartition
from headwater_core.segments.checkpoints import HIGH_WATERMARKS
from headwater_core.segments.log_dirs import parse_directory_name

_EVENTS: list[type[FileSystemEvent]] = [FileCreatedEvent, FileMovedEvent, DirCreatedEvent, DirMovedEvent]
_CHECKPOINTS = 2  # a rolled segment may be archived once a checkpoint covers it, which the first one after the roll may not do
_START_S = 3.0  # a walk over some ten thousand directories; a longer one continues beside the first rescan
_GATHER_S = 0.25  # events come in bursts, one look serves them all


class Watch:
    """Watches log directories while it is open."""

    def __init__(self, dirs: Sequence[Path]) -> None:
        self._given = tuple(dirs)
        self._dirs: set[Path] = set()  # resolved, those that are watched
        self._lock = threading.Lock()
        self._due: set[TopicPartition] = set()
        self._uncommitted: dict[TopicPartition, int] = {}
        self._scanned_s = time.monotonic()
        self._observers: list[BaseObserver] = []
        self._closed = False

    def __enter__(self) -> Self:
        """Each directory has an observer of its own, which is waited for no longer than START_S: its disk may hang."""
        starting = [threading.Thread(target=self._watch, args=(each,), name="watch-start", daemon=True) for each in self._given]
        for each in starting:
            each.start()
        until_s = time.monotonic() + _START_S
        for each in starting:
            each.join(max(0.0, until_s - time.monotonic()))
        return self

    def _watch(self, given: Path) -> None:
        observer = Observer()
        try:
            directory = given.resolve()
            observer.schedule(_Handler(self._happened), str(directory), recursive=True, event_filter=_EVENTS)
            with self._lock:
                self._dirs.add(directory)
            observer.start()
        except OSError as error:  # no inotify instance or watch left: rescans alone find everything, later
            structlog.get_logger().warning("watch_unavailable", reason=str(error))
            return
        with self._lock:
            if not self._closed:
                self._observers.append(observer)
                return
        observer.stop()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._closed = True
            observers = list(self._observers)
        for each in observers:
            # watchdog 7.1 loses track of names that are exchanged quickly. Nothing of what it watched is wanted any more.
            with suppress(KeyError, OSError):
                each.stop()
        for each in observers:
            each.join(_START_S)

    def wait(self, stop: threading.Event, rescan_s: float) -> Collection[TopicPartition] | None:
        """Return the partitions something has happened to; None when all of them are due: once in `rescan_s`.

        Returns at once, with nothing, when `stop` is set.
        """
        while True:
            left_s = self._scanned_s + rescan_s - time.monotonic()
            if left_s <= 0:
                self._scanned_s = time.monotonic()
                return None
            if stop.wait(min(_GATHER_S, left_s)):
                return ()
            with self._lock:
                due, self._due = self._due, set()
            if due:
                return due

    def _happened(self, path: Path) -> None:
        with self._lock:
            if path.name == HIGH_WATERMARKS and path.parent in self._dirs:
                self._due |= self._uncommitted.keys()
                self._uncommitted = {each: left - 1 for each, left in self._uncommitted.items() if left > 1}
                return
            at = path if path.parent in self._dirs else path.parent
            partition = parse_directory_name(at.name)
            if partition and (at is path or path.suffix == ".log"):
                self._due.add(partition)
                self._uncommitted[partition] = _CHECKPOINTS


class _Handler(FileSystemEventHandler):
    def __init__(self, happened: Callable[[Path], None]) -> None:
        self._happened = happened

    def on_any_event(self, event: FileSystemEvent) -> None:
        for path in (event.src_path, event.dest_path):
            if path:
                self._happened(Path(path if isinstance(path, str) else path.decode()))
