"""What was offered and is not sent yet: bytes, or places in files, within one budget for all buffers."""

import os
import threading
from array import array
from collections import deque
from enum import Enum
from typing import NamedTuple

from headwater_core.errors import SourceChanged, UsageError
from headwater_core.files import error_kind
from headwater_core.segments.batch_frames import lengths_of
from headwater_core.segments.batches import LENGTH_FROM, LENGTH_MIN

EXTENT_BYTES = 256  # about what one takes that stands for bytes in a file
WINDOW_BYTES = 1 << 20


class EntryPosition(NamedTuple):
    """An entry: the ordinal of a batch in the ledger, which is a local segment, by its base offset."""

    ledger_id: int
    entry_id: int


class FileExtent(NamedTuple):
    """Bytes of a file. They are read when they are sent, so the descriptor stays open until then: see OffloadHandle.unsent_from."""

    fd: int
    position: int
    size_bytes: int


class LedgerEntries(NamedTuple):
    """One entry, or `entry_count` of them that follow each other in a ledger. entry_id: of the first; content: whole batches."""

    ledger_id: int
    entry_id: int
    content: bytes | memoryview | FileExtent
    entry_count: int = 1

    @property
    def size_bytes(self) -> int:
        return self.content.size_bytes if isinstance(self.content, FileExtent) else len(self.content)

    @property
    def held_bytes(self) -> int:
        """Of memory, until they are sent."""
        return EXTENT_BYTES if isinstance(self.content, FileExtent) else len(self.content)


class OfferResult(Enum):
    """What became of an offer."""

    SUCCESS = "success"
    FAIL_BUFFER_FULL = "buffer full"
    FAIL_SEGMENT_CLOSED = "segment closed"


class OffloadBudget:
    """How much memory all buffers together may take. For many threads; to give back takes no lock, so a finalizer may, wherever it runs.

    An extent takes EXTENT_BYTES of it, whatever its length, and nothing where it continues the one before it.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._returned: deque[int] = deque()  # and not subtracted yet

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._settled()

    def has_room(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.bytes_max

    def take(self, size_bytes: int) -> bool:
        """Whether there was room, which is taken now."""
        with self._lock:
            if self._settled() + size_bytes > self.bytes_max:
                return False
            self._used_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        self._returned.append(size_bytes)

    def _settled(self) -> int:
        """What is used. The caller has the lock."""
        while self._returned:
            self._used_bytes -= self._returned.popleft()
        return self._used_bytes


class BatchWindow(NamedTuple):
    """Some whole batches of an LedgerEntries, and how long each is."""

    content: memoryview
    lengths: "array[int]"


def read_window(entries: LedgerEntries, size_bytes: int, where: str) -> BatchWindow:
    """Its first batches, about `size_bytes` of them, one at least. Raises SourceChanged where there are none."""
    wanted = min(entries.size_bytes, max(size_bytes, LENGTH_FROM + LENGTH_MIN))
    content = read_content(entries.content, wanted, where)
    space = array("i", bytes(array("i").itemsize * (wanted // (LENGTH_FROM + LENGTH_MIN) + 1)))
    at, found = lengths_of(content, 0, len(content), space)
    if at > len(content):
        if found == 1 and at <= entries.size_bytes:
            content = read_content(entries.content, at, where)
        else:
            found -= 1
            at -= space[found]
    if not found or (at < len(content) == entries.size_bytes):
        raise SourceChanged(f"{where}: no batch at entry {entries.entry_id + found} of ledger {entries.ledger_id}")
    return BatchWindow(content[:at], space[:found])


def after(entries: LedgerEntries, window: BatchWindow) -> LedgerEntries | None:
    """What is left of `entries` behind `window`; None for nothing. Raises SourceChanged when that does not add up."""
    used, count = len(window.content), entries.entry_count - len(window.lengths)
    if (count > 0) != (used < entries.size_bytes):
        raise SourceChanged(
            f"{entries.entry_count} entries offered from {entries.entry_id} of ledger {entries.ledger_id} on, others are there"
        )
    if not count:
        return None
    content = entries.content
    if isinstance(content, FileExtent):
        rest: bytes | memoryview | FileExtent = FileExtent(content.fd, content.position + used, content.size_bytes - used)
    else:
        rest = content[used:]
    return LedgerEntries(entries.ledger_id, entries.entry_id + len(window.lengths), rest, count)


def read_content(content: bytes | memoryview | FileExtent, size_bytes: int, where: str) -> memoryview:
    """The first `size_bytes` of it. Raises SourceChanged where a file ends before."""
    if not isinstance(content, FileExtent):
        return memoryview(content)[:size_bytes]
    view, filled = memoryview(bytearray(size_bytes)), 0
    while filled < size_bytes:
        try:
            count = os.preadv(content.fd, [view[filled:]], content.position + filled)
        except OSError as error:
            raise error_kind(error)(f"{where}: {error.strerror} while reading from byte {content.position + filled} on") from error
        if not count:
            raise SourceChanged(f"{where}: a file ends at byte {content.position + filled}")
        filled += count
    return view


class OffloadBuffer:
    """The queue of one handle. One thread offers, one takes; their owner keeps them apart."""

    def __init__(self, budget: OffloadBudget) -> None:
        self._budget = budget
        self._queue: deque[LedgerEntries] = deque()
        self.size_bytes = 0  # of all that is in it
        self.held_bytes = 0  # of the budget
        self.last: EntryPosition | None = None

    def put(self, entries: LedgerEntries) -> bool:
        """Whether there was room. Raises UsageError when they do not follow the last."""
        self._check(entries)
        joined = self._joined(entries)
        cost = entries.held_bytes if joined is None else 0
        if not self._budget.take(cost):
            return False
        if joined is None:
            self._queue.append(entries)
        else:
            self._queue[-1] = joined
        self.held_bytes += cost
        self.size_bytes += entries.size_bytes
        self.last = EntryPosition(entries.ledger_id, entries.entry_id + entries.entry_count - 1)
        return True

    @property
    def queued_bytes(self) -> int:
        """Of memory, for what is in it."""
        return sum(each.held_bytes for each in self._queue)

    @property
    def first(self) -> LedgerEntries | None:
        return self._queue[0] if self._queue else None

    def replace_first(self, rest: LedgerEntries | None) -> int:
        """The first was taken, but for `rest`; how much of the budget is to be given back when it has been sent."""
        taken = self._queue.popleft()
        self.size_bytes -= taken.size_bytes
        released = taken.held_bytes
        if rest is not None:
            self._queue.appendleft(rest)
            self.size_bytes += rest.size_bytes
            released -= rest.held_bytes
        return released

    def return_held(self) -> None:
        """To the budget, all of it. May be repeated, and takes no lock."""
        self._budget.give_back(self.held_bytes)
        self.held_bytes = 0

    def clear(self) -> None:
        self._queue.clear()
        self.size_bytes = 0

    def _check(self, entries: LedgerEntries) -> None:
        ledger_id, entry_id, _, count = entries
        if ledger_id < 0 or entry_id < 0 or count < 1 or entries.size_bytes < count * (LENGTH_FROM + LENGTH_MIN):
            raise UsageError(f"{count} entries from {entry_id} of ledger {ledger_id} on in {entries.size_bytes} bytes")
        last = self.last
        if last is not None and not (ledger_id > last.ledger_id or entries[:2] == (last.ledger_id, last.entry_id + 1)):
            raise UsageError(f"entry {entry_id} of ledger {ledger_id} does not follow {last.entry_id} of {last.ledger_id}")

    def _joined(self, entries: LedgerEntries) -> LedgerEntries | None:
        """The last of the queue and `entries` as one, where both are places in one file that follow each other."""
        if not self._queue or not isinstance(entries.content, FileExtent):
            return None
        last = self._queue[-1]
        content = last.content
        if not isinstance(content, FileExtent) or last.ledger_id != entries.ledger_id:
            return None
        if (content.fd, content.position + content.size_bytes) != entries.content[:2]:
            return None
        whole = FileExtent(content.fd, content.position, content.size_bytes + entries.content.size_bytes)
        return last._replace(content=whole, entry_count=last.entry_count + entries.entry_count)
