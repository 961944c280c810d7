"""The manifests of many partitions on local disk, for lookups by offset and by time. A cache: the heads are the truth.

An LMDB file trusts its own pages, and a damaged one can kill the process that maps it. So the file is trusted only when
the mark beside it, written by a clean `close`, holds its checksum; `open` takes the mark away. After a crash, or any
change by others, the index starts empty and fills again from heads, and therefore it never needs to sync.

Keys begin with the partition: 8 bytes BLAKE2b of the cluster id, the topic id (16), the partition number (u32). Then

    entries    base offset (u64)                          → MessagePack of the Entry
    times      highest last_timestamp_ms so far (i64 + 2^63), base offset (u64)   → nothing; where that highest rises
    heads      nothing                                    → manifest version (u64)
"""

import hashlib
import shutil
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb
import msgspec

from headwater_core.errors import DiskFull, TransientError, UsageError
from headwater_core.files import disk_errors, partial_of
from headwater_core.partition import PartitionId, topic_id_bytes
from manifests.head import OFFSET_MAX, Entry, Head

MAP_BYTES = 16 << 30  # address space, not disk: about 100 million entries
_PARTITION = struct.Struct(">8s16sI")
_U64 = struct.Struct(">Q")
_TIME = struct.Struct(">QQ")
_TIME_BIAS = 1 << 63  # so that timestamps before 1970 sort first
_PIECE_BYTES = 1 << 20
_FREE_BYTES_MIN = 1 << 20


class ManifestIndex:
    """The entries of each partition's newest known head. Safe to use from many threads of one process.

    `path` is a directory of its own, used by one process at a time (the caller holds the data directory's lock).
    `kept` says whether an index of an earlier run could be trusted. Raises DiskFull and TransientError.
    """

    def __init__(self, path: Path, map_bytes: int = MAP_BYTES) -> None:
        self.path = path
        self._closed = False
        self._data, self._mark = path / "data.mdb", path / "closed"
        with disk_errors(f"manifest index {path}", UsageError):
            self.kept = self._is_trusted()
            self._mark.unlink(missing_ok=True)
            if not self.kept and path.exists():
                shutil.rmtree(path)
            path.mkdir(parents=True, exist_ok=True)
        with self._lmdb_errors():
            self._env = lmdb.open(str(path), map_size=map_bytes, max_dbs=3, sync=False, metasync=False, max_readers=512)
            self._heads, self._entries, self._times = (self._env.open_db(name) for name in (b"heads", b"entries", b"times"))

    def _is_trusted(self) -> bool:
        return self._mark.exists() and self._data.exists() and self._mark.read_text("ascii", "replace") == _fingerprint(self._data)

    def replace(self, head: Head) -> bool:
        """Make the partition's entries those of `head`, in one transaction; False when a newer head is already there."""
        partition = _partition_key(head.partition_id)
        entries = {partition + _U64.pack(entry.base_offset): msgspec.msgpack.encode(entry) for entry in head.entries}
        times = {partition + key: b"" for key in _rises(head)}
        with self._lmdb_errors(), self._env.begin(write=True) as txn:
            held = txn.get(partition, db=self._heads)
            if held is not None and _U64.unpack(held)[0] >= head.version:
                return False
            for database, wanted in ((self._entries, entries), (self._times, times)):
                known = dict(_scan(txn.cursor(database), partition))
                for key in known.keys() - wanted.keys():
                    txn.delete(key, db=database)
                for key in sorted(wanted):
                    if known.get(key) != wanted[key]:
                        txn.put(key, wanted[key], db=database)
            txn.put(partition, _U64.pack(head.version), db=self._heads)
        return True

    def forget(self, partition: PartitionId) -> None:
        """Drop one partition, so that any head of it counts as new."""
        key = _partition_key(partition)
        with self._lmdb_errors(), self._env.begin(write=True) as txn:
            for database in (self._heads, self._entries, self._times):
                for held, _ in list(_scan(txn.cursor(database), key)):
                    txn.delete(held, db=database)

    def version(self, partition: PartitionId) -> int | None:
        """The manifest version whose entries are here; None when the partition is not."""
        with self._lmdb_errors(), self._env.begin() as txn:
            held = txn.get(_partition_key(partition), db=self._heads)
        return None if held is None else _U64.unpack(held)[0]

    def floor(self, partition: PartitionId, offset: int) -> Entry | None:
        """The entry that holds `offset`, gap entries included; None when no entry known here does (ask the head)."""
        if not 0 <= offset < 1 << 63:
            return None
        key = _partition_key(partition)
        wanted = key + _U64.pack(offset)
        with self._lmdb_errors(), self._env.begin() as txn:
            cursor = txn.cursor(self._entries)
            if cursor.set_range(wanted):
                at_or_below = cursor.key() == wanted or cursor.prev()
            else:
                at_or_below = cursor.last()
            if not at_or_below or not cursor.key().startswith(key):
                return None
            entry = msgspec.msgpack.decode(cursor.value(), type=Entry)
        return entry if offset in entry else None

    def floor_time(self, partition: PartitionId, timestamp_ms: int) -> Entry | None:
        """The first entry whose last timestamp is `timestamp_ms` or later; None when no entry known here is."""
        key = _partition_key(partition)
        biased = min(max(timestamp_ms + _TIME_BIAS, 0), (1 << 64) - 1)
        with self._lmdb_errors(), self._env.begin() as txn:
            cursor = txn.cursor(self._times)
            if not cursor.set_range(key + _TIME.pack(biased, 0)) or not cursor.key().startswith(key):
                return None
            held = txn.get(key + cursor.key()[-_U64.size :], db=self._entries)
        return None if held is None else msgspec.msgpack.decode(held, type=Entry)

    def entries(self, partition: PartitionId, from_offset: int, count: int = 1_000) -> list[Entry]:
        """At most `count` entries in offset order, from the one that holds `from_offset` or else the first past it."""
        key = _partition_key(partition)
        first = self.floor(partition, from_offset)
        start = key + _U64.pack(first.base_offset if first else min(max(from_offset, 0), OFFSET_MAX))
        with self._lmdb_errors(), self._env.begin() as txn:
            held = islice(_scan(txn.cursor(self._entries), key, start), count)
            return [msgspec.msgpack.decode(value, type=Entry) for _, value in held]

    def close(self) -> None:
        """Leave a mark that lets the next run trust the file; where there is no room for one, that run fills a new index. May be
        called twice."""
        if self._closed:
            return
        self._closed = True
        self._env.close()
        partial = partial_of(self._mark)
        with suppress(OSError):  # not synced, as the index itself is not: what a power loss leaves of either is an empty index at worst
            partial.write_text(_fingerprint(self._data), "ascii")
            partial.rename(self._mark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _lmdb_errors(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            # LMDB reports a full disk as an input/output error
            full = isinstance(error, lmdb.MapFullError) or shutil.disk_usage(self.path).free < _FREE_BYTES_MIN
            raise (DiskFull if full else TransientError)(f"manifest index {self.path}: {error}") from error


def _partition_key(partition: PartitionId) -> bytes:
    cluster = hashlib.blake2b(partition.cluster_id.encode(), digest_size=8).digest()
    return _PARTITION.pack(cluster, topic_id_bytes(partition.topic_id), partition.partition)


def _rises(head: Head) -> Iterator[bytes]:
    """The keys of `times`: one for each entry that raises the highest timestamp. The first entry to reach a timestamp is
    always one of them, in whatever order timestamps come."""
    highest = None
    for entry in head.entries:
        if entry.last_timestamp_ms is not None and (highest is None or entry.last_timestamp_ms > highest):
            highest = entry.last_timestamp_ms
            yield _TIME.pack(highest + _TIME_BIAS, entry.base_offset)


def _scan(cursor: lmdb.Cursor, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of every key below `prefix`, from `start` on."""
    found = cursor.set_range(start or prefix)
    while found and (key := bytes(cursor.key())).startswith(prefix):
        yield key, bytes(cursor.value())
        found = cursor.next()


def _fingerprint(path: Path) -> str:
    """Length and CRC-32 of a whole file, 74 MB for a million entries."""
    crc, size = 0, 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            crc, size = zlib.crc32(piece, crc), size + len(piece)
    return f"{size} {crc:08x}\n"
