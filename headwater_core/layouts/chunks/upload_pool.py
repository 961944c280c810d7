"""The buffers of all queues that are written as chunks: how much each has gathered, and whether it is its turn to become an object."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from headwater_core.layouts.chunks.flush_plan import FlushLimits, Gathered, due_queues

POOL_BYTES = 256 << 20
SENT_BYTES = 40 << 20  # four commits of 8 MiB, and a batch more of each
_WAIT_S = 1.0  # for room; then a caller that waits looks whether it still has to


class UploadPool:
    """For many threads. The bytes lie in the local log, and what stands for them in the offload buffer's budget: here they are counted.
    To leave takes no lock, so a finalizer may, wherever it runs.

    bytes_max       all buffers together: from so many on the largest go
    sent_bytes_max  so many are in memory at a time, to be sent: of all queues, and each of them some three times
    failed          chunks whose upload has failed, and that are to be sent again: queues with one
    """

    def __init__(self, bytes_max: int = POOL_BYTES, sent_bytes_max: int = SENT_BYTES) -> None:
        self.bytes_max, self.sent_bytes_max = bytes_max, sent_bytes_max
        self._lock = threading.Lock()
        self._room = threading.Condition()
        self._sent_bytes = 0
        self._left: deque[PoolShare] = deque()  # and not forgotten yet
        self._gathered: dict[PoolShare, Gathered] = {}
        self._due: set[PoolShare] = set()  # because the pool was too large
        self._failed: set[PoolShare] = set()
        self._size_bytes = 0
        self._waiting_bytes = 0  # of them, in queues that are neither due nor failed

    @property
    def size_bytes(self) -> int:
        """Of all buffers."""
        with self._settled():
            return self._size_bytes

    @property
    def queues(self) -> int:
        """That have gathered something."""
        with self._settled():
            return len(self._gathered)

    @property
    def failed(self) -> int:
        with self._settled():
            return len(self._failed)

    def share(self, limits: FlushLimits, now_ms: Callable[[], int]) -> "PoolShare":
        """For the buffer of one more queue. now_ms: the time"""
        return PoolShare(self, limits, now_ms)

    def set_gathered(self, share: "PoolShare", size_bytes: int) -> None:
        """The buffer holds so many bytes now."""
        with self._settled():
            before = self._gathered.get(share)
            if not size_bytes:
                self._forget(share)
                return
            added = size_bytes - (before.size_bytes if before is not None else 0)
            self._size_bytes += added
            self._waiting_bytes += added if self._waits(share) else 0
            since_ms = before.since_ms if before is not None else share.now_ms()
            self._gathered[share] = Gathered(size_bytes, since_ms, share.limits)
            if self._size_bytes >= self.bytes_max and not self._due:
                self._set_due(self._gathered, share.now_ms())
            elif self._waiting_bytes >= self.bytes_max:  # what is due is not sent: it fails, or its partition is paused
                self._set_due({each: found for each, found in self._gathered.items() if self._waits(each)}, share.now_ms())

    @contextmanager
    def sending(self, size_bytes: int, wait: Callable[[], object]) -> Iterator[None]:
        """While so many bytes are in memory. Waits until there is room for them, or nothing else is being sent.

        wait  called again and again meanwhile; may raise, and so end it
        """
        with self._room:
            while self._sent_bytes and self._sent_bytes + size_bytes > self.sent_bytes_max:
                wait()
                self._room.wait(_WAIT_S)
            self._sent_bytes += size_bytes
        try:
            yield
        finally:
            with self._room:
                self._sent_bytes -= size_bytes
                self._room.notify_all()

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """The lock, without those that have left."""
        with self._lock:
            while self._left:
                share = self._left.popleft()
                self._forget(share)
                self._failed.discard(share)
            yield

    def _forget(self, share: "PoolShare") -> None:
        """It has gathered nothing."""
        before = self._gathered.pop(share, None)
        if before is not None:
            self._size_bytes -= before.size_bytes
            self._waiting_bytes -= before.size_bytes if self._waits(share) else 0
        self._due.discard(share)

    def _waits(self, share: "PoolShare") -> bool:
        return share not in self._due and share not in self._failed

    def _set_due(self, gathered: Mapping["PoolShare", Gathered], now_ms: int) -> None:
        due = due_queues(gathered, self.bytes_max, now_ms)
        self._waiting_bytes -= sum(gathered[each].size_bytes for each in due if self._waits(each))
        self._due |= due

    def committed(self, share: "PoolShare", left_bytes: int) -> None:
        """Some of the buffer is stored, and what is left of it counts as if it came now."""
        self.set_gathered(share, 0)
        self.set_gathered(share, left_bytes)
        self.set_failed(share, is_failed=False)

    def is_due(self, share: "PoolShare") -> bool:
        with self._settled():
            found = self._gathered.get(share)
            return found is not None and (share in self._due or found._replace(limits=share.limits).is_due(share.now_ms()))

    def set_failed(self, share: "PoolShare", *, is_failed: bool) -> None:
        with self._settled():
            waited, found = self._waits(share), self._gathered.get(share)
            (self._failed.add if is_failed else self._failed.discard)(share)
            if found is not None:
                self._waiting_bytes += found.size_bytes * (self._waits(share) - waited)

    def leave(self, share: "PoolShare") -> None:
        """The buffer is no more."""
        self._left.append(share)


class PoolShare:
    """One queue's buffer, as the pool knows it. limits: may be set at any time."""

    def __init__(self, pool: UploadPool, limits: FlushLimits, now_ms: Callable[[], int]) -> None:
        self.pool, self.limits, self.now_ms = pool, limits, now_ms

    @property
    def is_due(self) -> bool:
        """Is it its turn?"""
        return self.pool.is_due(self)
