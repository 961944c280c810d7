"""Which names in directories may not be on disk yet (decision 0009).

A name that link(2), rename(2) or mkdir(2) made is visible at once, and on disk only when its directory was synced. When that fails the
outcome is unknown, and reading back must not settle it from the page cache: until those directories could be synced, `check` refuses.
(A file system that cannot write its journal turns read-only, so for names a later success does prove what it says; and an agent that
starts again replaces a file in the root, which is synced, before it relies on what it sees.)
"""

import contextlib
import threading
from pathlib import Path

from headwater_core.errors import TransientError, UnknownOutcome
from headwater_core.files import sync_path


class DurableNames:
    """The names of one store. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unsynced: dict[Path, object] = {}  # directories in which we made others: those names may not be on disk yet
        self._failed: dict[Path, object] = {}  # directories that could not be synced

    def make_directories(self, directory: Path) -> None:
        """Make what is missing on the way to `directory`, and `directory`. Raises OSError."""
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for path in reversed(missing):
            with self._lock, contextlib.suppress(FileExistsError, FileNotFoundError):
                self._unsynced[path.parent] = object()  # who finds the directory finds this too, and a sync begun earlier keeps it
                path.mkdir()

    def settle(self, key: str, *directories: Path) -> None:
        """Make what was named in `directories` durable. It is visible already, so a failure raises UnknownOutcome."""
        try:
            self.sync(*directories)
        except OSError as error:
            raise UnknownOutcome(f"{key}: {error.strerror} while syncing its directory") from error

    def sync(self, *directories: Path) -> None:
        """Sync `directories`, and those above them in which names were made that may not be on disk. Raises OSError."""
        with self._lock:
            due = {each: self._unsynced.get(each) for each in directories}
            if self._unsynced:  # seldom: paths are slow, and there are many above an object
                due |= {each: self._unsynced[each] for directory in directories for each in directory.parents if each in self._unsynced}
        while due:
            each, made = next(iter(due.items()))
            try:
                sync_names(each)
            except OSError:
                with self._lock:
                    self._failed |= {path: object() for path in due}  # what is named in those above is not on disk either
                raise
            del due[each]
            with self._lock:
                if made is not None and self._unsynced.get(each) is made:
                    del self._unsynced[each]

    def check(self, url: str) -> None:
        """Try again what failed. Raises TransientError, which begins with `url`, as long as it fails: what is visible may be lost."""
        with self._lock:
            failed = dict(self._failed)
        for each, failure in failed.items():
            try:
                sync_names(each)
            except OSError as error:
                raise TransientError(f"{url}: {error.strerror} while syncing {each}; what was written there may be lost") from error
            with self._lock:
                if self._failed.get(each) is failure:  # none that came later, of a name that this sync did not cover
                    del self._failed[each]


def sync_names(directory: Path) -> None:
    """Raises OSError. A directory that was removed again took with it what there was to sync."""
    with contextlib.suppress(FileNotFoundError):
        sync_path(directory)
