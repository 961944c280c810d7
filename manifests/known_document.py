"""One small document of the bucket that all agents share, as this one knows it: asked for by every step or read, requested now and then.

An agent whom nobody asks for it requests nothing.
"""

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError, StoreGone

REFRESH_S = 60.0  # what another node has changed is known here after that at the latest, when the control log does not tell of it
LOOK_S = 1.0  # between two looks at what the control log says


class _Versioned(Protocol):
    @property
    def version(self) -> int: ...


T = TypeVar("T", bound=_Versioned)


class KnownDocument(Generic[T]):
    """Safe to use from many threads. A bucket that does not answer, or has lost the document, leaves what was known.

    known    None until the bucket has been read once
    changed  called after something has changed that matters
    """

    def __init__(
        self,
        load: Callable[[], T],
        change: Callable[[Callable[[T], T]], T],
        clock: Clock,
        *,
        taken: Callable[[T | None, T], bool],
        unread: Callable[[HeadwaterError], object],
        in_use: Callable[[T], bool],
    ) -> None:
        """
        load, change  the repository's, of this document
        taken         told of what was known and what is from now on, one at a time: does it matter?
        unread        told why the bucket did not answer, once for each REFRESH_S
        in_use        does anything here depend on it at the moment, so that it is to be kept up with?
        """
        self._load, self._change, self._clock = load, change, clock
        self._taken, self._unread, self._in_use = taken, unread, in_use
        self._lock = threading.Lock()  # of reading
        self.known: T | None = None
        self._read_for = -1  # the announced version that the bucket was last read for
        self._again_s = self._not_before_s = float("-inf")  # when to read again, whatever is announced; and after a failure
        self._expired = 0  # how often what was known became old at once
        self.changed: Callable[[], object] = lambda: None

    def now(self) -> T:
        """What is known; read from the bucket if that never was. Raises what the store raises, and CorruptData."""
        known = self.known
        return known if known is not None else self.refresh()

    def refresh(self) -> T:
        """Read the bucket. Raises what the store raises, and CorruptData."""
        return self._replace(self._load)

    def change(self, decide: Callable[[T], T]) -> T:
        """Let all agents of the archive know; returns what holds from now on. Raises what `decide` and the store raise."""
        return self._replace(lambda: self._change(decide))

    def follow(self, stop: threading.Event, announced_version: Callable[[], int]) -> None:
        """Keep up with the bucket until `stop` is set. announced_version: the newest document that the control log tells of."""
        while not stop.wait(LOOK_S):
            self.look(announced_version())

    def look(self, announced_version: int) -> None:
        """Read the bucket, if it is known to have a newer document, or now and then while this one is in use. Raises nothing."""
        known = self.known
        if known is None or announced_version > max(known.version, self._read_for):
            if self._try_read():
                self._read_for = announced_version  # an older one may have been put in place of the one that was announced
        elif self._in_use(known):
            self.look_before_work()

    def look_before_work(self) -> None:
        """Something is about to be done by it: read the bucket, if that was long ago. Raises nothing."""
        if self._clock.monotonic_s() >= self._again_s:
            self._try_read()

    def expire(self) -> None:
        """What was read, or is being read, may lack what others have written since: the next look reads again."""
        self._expired += 1
        self._again_s = float("-inf")

    def _try_read(self) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s < self._not_before_s:
            return False
        try:
            self.refresh()
        except HeadwaterError as error:
            self._not_before_s = now_s + REFRESH_S
            self._unread(error)
            return False
        return True

    def _replace(self, find: Callable[[], T]) -> T:
        with self._lock:
            expired = self._expired
            before, found = self.known, find()
            if found.version == 0 and before is not None and before.version > 0:  # it may be an empty mount point
                raise StoreGone("a document that all agents share was in the bucket and is not: restore it, or mount the bucket again")
            self.known = found
            if expired == self._expired:
                self._again_s = self._clock.monotonic_s() + REFRESH_S
            matters = self._taken(before, found)
        if matters:
            self.changed()
        return found
