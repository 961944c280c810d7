"""The control log's file: what this node has accepted and promised, each frame with a checksum.

pysyncobj's own journal has neither checksums nor fsync, compacts in place and writes through a memory map, where a full
disk kills the process. This one only appends; compaction writes a new file and renames it. A frame is

    length of body (u32, big-endian), CRC-32 of body (u32), body: one letter and its fields
    E  index (u64), term (u64), command          an entry
    T  how many entries stay (u64)               what follows them is taken back
    V  term (u64), node id (UTF-8, may be empty) the current term and the vote given in it
    C  index (u64)                               everything up to here is committed

Method names are pysyncobj's (its Journal is the interface).
"""
# ruff: noqa: N802

import errno
import os
import re
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from headwater_core.errors import CorruptData
from headwater_core.files import disk_errors, replace_file

MAGIC = b"HWCTRL\x00\x01"
BODY_BYTES_MAX = 8 << 20  # a command has 1 MiB at most; the library wraps it
_FRAME = struct.Struct(">II")
_ENTRY = struct.Struct(">cQQ")
_NUMBER = struct.Struct(">cQ")
_KIND = re.compile(rb"[ETVC]")

Entry = tuple[bytes, int, int]  # command, index, term


class Journal:
    """Entries are kept in memory too, as many as lie between two compactions.

    with_peers  sync every write before it is acknowledged to a peer; alone, `sync` before a caller is answered is enough
    salvage     cut a damaged file before the damage; of what follows only the promises are kept, so that none is given twice
    torn        the file did not end with a whole frame when it was opened: the end was cut off
    lost        the first entry that was applied here and that a leader has replaced by another one; None: none was (decision 0013)
    applied     the index of the last entry that was applied here

    What a power loss leaves at the end of a file is a torn end: a part of a frame, zeros, a frame of which not all arrived. So
    what is wrong is damage only when a whole frame follows it.
    Raises CorruptData when the file is damaged; DiskFull and TransientError on writing.
    """

    def __init__(self, path: Path, *, with_peers: bool = False, salvage: bool = False) -> None:
        self.path = path
        self.torn = False
        self._with_peers = with_peers
        self.lost: int | None = None
        self.applied: Callable[[], int] = lambda: 0
        self._entries: list[Entry] = []
        self._withdrawn: deque[Entry] = deque()
        self._term = 0
        self._voted_for: str | None = None
        self._commit_index = 1
        self._commit_saved = 1
        self._dirty = False
        if not path.exists():
            replace_file(path, MAGIC)
        with disk_errors(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._end = self._replay(path.read_bytes(), salvage)
                os.truncate(self._fd, self._end)
            except BaseException:
                os.close(self._fd)
                raise

    def _replay(self, content: bytes, salvage: bool) -> int:
        """Take in every frame; return where the last whole one ends."""
        where = str(self.path)
        if content[: len(MAGIC)] != MAGIC:
            raise CorruptData(where, 0, "not a control journal of this version")
        position = len(MAGIC)
        while frame := _frame_at(content, position):
            try:
                self._take(frame[0])
            except (struct.error, UnicodeDecodeError, ValueError) as error:
                raise CorruptData(where, position, f"impossible frame: {error}") from error
            position = frame[1]
        self.torn = position < len(content)
        if self.torn:
            later = list(_frames_after(content, position))
            if later and not salvage:
                raise CorruptData(where, position, f"no whole frame, though {len(later)} follow it")
            self._keep_promises(later)
        return position

    def _keep_promises(self, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            if body[:1] == b"V" and len(body) >= _NUMBER.size and _NUMBER.unpack_from(body)[1] >= self._term:
                self._take(body)

    def _take(self, body: bytes) -> None:
        match body[:1]:
            case b"E":
                _, index, term = _ENTRY.unpack_from(body)
                if self._entries and index != self._entries[-1][1] + 1:
                    raise ValueError(f"entry {index} after {self._entries[-1][1]}")
                self._entries.append((body[_ENTRY.size :], index, term))
            case b"T":
                del self._entries[_NUMBER.unpack(body)[1] :]
            case b"V":
                self._term = _NUMBER.unpack_from(body)[1]
                self._voted_for = body[_NUMBER.size :].decode() or None
            case b"C":
                self._commit_index = self._commit_saved = _NUMBER.unpack(body)[1]
            case kind:
                raise ValueError(f"kind {kind!r}")

    # Entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, at: "int | slice[int | None, int | None, int | None]") -> "Entry | list[Entry]":
        return self._entries[at]

    def add(self, command: bytes, index: int, term: int) -> None:
        if self._withdrawn:
            if self._withdrawn[0] == (command, index, term):
                self._entries.append(self._withdrawn.popleft())
                return
            self._take_back()
        self._append(_ENTRY.pack(b"E", index, term) + command)
        self._entries.append((command, index, term))

    def clear(self) -> None:
        self._withdrawn.clear()
        self._append(_NUMBER.pack(b"T", 0))
        self._entries.clear()

    def deleteEntriesFrom(self, at: int) -> None:
        """The library takes back all that follows the place where a leader's message begins, and then adds what the message holds: mostly
        the same again. A crash, or a lost connection, in between would lose entries that this node has acknowledged, and raft takes back
        only what the leader contradicts. So they are held aside until `add` brings another one, or `settle` says that none has come.
        """
        self._withdrawn.extendleft(reversed(self._entries[at:]))
        del self._entries[at:]

    def settle(self) -> None:
        """A message was handled: what it has not contradicted stays."""
        self._entries += self._withdrawn
        self._withdrawn.clear()

    def contradict(self, index: int, term: int) -> None:
        """The leader's log has an entry of `term` at `index`. Another one here, and what follows it, is taken back; the first entry, which
        all share, never is. Only after `settle`."""
        at = index - self._entries[0][1] if self._entries else 0
        if 0 < at < len(self._entries) and self._entries[at][2] != term:
            self.deleteEntriesFrom(at)
            self._take_back()

    def _take_back(self) -> None:
        first = self._withdrawn[0][1]
        if first <= self.applied():
            self.lost = first if self.lost is None else min(first, self.lost)
        self._append(_NUMBER.pack(b"T", len(self._entries)))
        self._withdrawn.clear()

    def deleteEntriesTo(self, at: int) -> None:
        """Compaction: the snapshot holds what came before. The new file is whole before it takes the old one's place."""
        self.settle()
        kept = self._entries[at:]
        bodies = [self._vote(), _NUMBER.pack(b"C", self._commit_index), *(_ENTRY.pack(b"E", i, t) + c for c, i, t in kept)]
        content = MAGIC + b"".join(map(_framed, bodies))
        replace_file(self.path, content)
        with disk_errors(self.path):
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        os.close(self._fd)  # only now: from here on its number may be another file's
        self._fd = fd
        self._end = len(content)
        self._entries, self._commit_saved, self._dirty = kept, self._commit_index, False

    # Promises

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        self._term, self._voted_for = term, voted_for
        self._append(self._vote())
        self.sync()

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._voted_for

    def setRaftCommitIndex(self, index: int) -> None:
        self._commit_index = index

    def getRaftCommitIndex(self) -> int:
        return self._commit_index

    def onOneSecondTimer(self) -> None:
        if self._commit_index != self._commit_saved:
            self._append(_NUMBER.pack(b"C", self._commit_index))
            self._commit_saved = self._commit_index

    # The file

    def sync(self) -> None:
        """Everything written so far survives a power loss."""
        if self._dirty:
            with disk_errors(self.path):
                os.fdatasync(self._fd)
            self._dirty = False

    def flush(self) -> None:
        self.sync()

    def _destroy(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _vote(self) -> bytes:
        return _promise(self._term, self._voted_for)

    def _append(self, body: bytes) -> None:  # in place: a frame is small and the file long
        """Write one frame, or leave nothing of it."""
        frame = _framed(body)
        with disk_errors(self.path):
            try:
                if os.pwrite(self._fd, frame, self._end) < len(frame):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._fd, self._end)
                raise
        self._end += len(frame)
        self._dirty = True
        if self._with_peers:
            self.sync()


def begin_again(path: Path, term: int, voted_for: str | None) -> None:
    """Put a journal without entries in the place of the one at `path`. At no moment is there one without its promises: a vote that is
    forgotten could be given twice."""
    replace_file(path, MAGIC + _framed(_promise(term, voted_for)))


def _promise(term: int, voted_for: str | None) -> bytes:
    return _NUMBER.pack(b"V", term) + (voted_for or "").encode()


def _framed(body: bytes) -> bytes:
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


def _frame_at(content: bytes, position: int) -> tuple[bytes, int] | None:
    """The body of the frame at `position`, and where it ends; None when no whole frame is there."""
    if len(content) - position < _FRAME.size:
        return None
    length, crc = _FRAME.unpack_from(content, position)
    end = position + _FRAME.size + length
    if not 0 < length <= BODY_BYTES_MAX or end > len(content):
        return None
    body = content[position + _FRAME.size : end]
    return (body, end) if zlib.crc32(body) == crc else None


def _frames_after(content: bytes, position: int) -> Iterator[bytes]:
    """The bodies of the whole frames that begin anywhere after `position`."""
    for kind in _KIND.finditer(content, position + 1 + _FRAME.size):
        if kind.start() - _FRAME.size > position and (frame := _frame_at(content, kind.start() - _FRAME.size)):
            yield frame[0]
            position = frame[1] - 1
