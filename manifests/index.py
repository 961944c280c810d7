"""The manifests of many partitions on local disk, for lookups by offset and by time. A cache: the heads are the truth.

An LMDB file trusts its own pages, and a damaged one can kill the process that maps it. So the file is trusted only when
the mark beside it, written by a clean `close`, holds its checksum; `open` takes the mark away. After a crash, or any
change by others, the index starts empty and fills again from heads, and therefore it never needs to sync.

Every list of items is a section: the head's is found by its partition (8 bytes BLAKE2b of the cluster id, the topic id (16), the
partition number (u32)), a page's by its uid (16 bytes), with one byte in front that tells the two apart. Then

    items      section, base offset (u64)                 → "e" and MessagePack of an Entry; or "r", the page's uid, its last offset
                                                            (u64) and MessagePack of the PageRef
    times      section, highest timestamp so far (i64 + 2^63), base offset (u64)   → nothing; where that highest rises
    heads      section of the head                        → manifest version (u64), commit id

A new head replaces what has changed of its own section. Pages never change: one is added when it is first wanted, and goes, with all below
it, when the head refers to it no more.
"""

import hashlib
import shutil
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb
import msgspec

from headwater_core.errors import DiskFull, TransientError, UsageError
from headwater_core.files import disk_errors, partial_of
from headwater_core.partition import PartitionId, topic_id_bytes
from manifests.entry import Entry
from manifests.head import Head
from manifests.page import Item, PageRef

MAP_BYTES = 16 << 30  # address space, not disk: about 100 million entries
_PARTITION = struct.Struct(">8s16sI")
_U64 = struct.Struct(">Q")
_REF = struct.Struct(">c16sQ")
_TIME = struct.Struct(">QQ")
_TIME_BIAS = 1 << 63  # so that timestamps before 1970 sort first
_PIECE_BYTES = 1 << 20
_FREE_BYTES_MIN = 1 << 20
_ENTRY, _REFERENCE = b"e", b"r"
_VERSION = 4  # of the keys: an index of an older one starts empty


class ManifestIndex:
    """The entries of each partition's newest known head, as far as they were wanted. Safe to use from many threads of one process.

    `path` is a directory of its own, used by one process at a time (the caller holds the data directory's lock).
    `kept` says whether an index of an earlier run could be trusted. Raises DiskFull and TransientError.
    """

    def __init__(self, path: Path, map_bytes: int = MAP_BYTES) -> None:
        self.path = path
        self._closed = False
        self._data, self._mark = path / "data.mdb", path / "closed"
        with disk_errors(f"manifest index {path}", UsageError):
            self.kept = self._is_trusted()
            if self.kept:
                self._mark.unlink()
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            path.mkdir(parents=True, exist_ok=True)
        with self._lmdb_errors():
            self._env = lmdb.open(str(path), map_size=map_bytes, max_dbs=3, sync=False, metasync=False, max_readers=512)
            self._heads, self._items, self._times = (self._env.open_db(name) for name in (b"heads", b"items", b"times"))

    def _is_trusted(self) -> bool:
        try:
            if not all(each.is_file() for each in self.path.iterdir()):
                return False
            return self._mark.read_text("ascii", "replace") == _fingerprint(self._data)
        except OSError:  # another thing lies there: an index holds copies alone, and is made again
            return False

    def replace(self, head: Head) -> bool:
        """Make the partition's items those of `head`, in one transaction; False when they are already there.

        A head of a lower version is taken as well: it was restored. Its caller knows which of two is the newer one.
        """
        section, commit = _head_section(head.partition_id), _U64.pack(head.version) + head.commit_id.encode()
        with self._lmdb_errors(), self._env.begin(write=True) as txn:
            if txn.get(section, db=self._heads) == commit:
                return False
            gone = self._put(txn, section, head.entries.items)
            self._drop(txn, gone, stays={bytes.fromhex(ref.uid) for ref in head.entries.references})
            txn.put(section, commit, db=self._heads)
        return True

    def add_page(self, ref: PageRef, items: Sequence[Item]) -> None:
        """Keep what the page lists, so that the next look-up below `ref` finds it here."""
        with self._lmdb_errors(), self._env.begin(write=True) as txn:
            self._put(txn, _page_section(ref), items)

    def retain(self, partitions: Collection[PartitionId]) -> None:
        """All others are gone, with their pages. Costs a read of a few bytes for each while there are none."""
        stays = {_head_section(partition) for partition in partitions}
        with self._lmdb_errors(), self._env.begin() as txn, txn.cursor(self._heads) as cursor:
            gone = [bytes(section) for section in cursor.iternext(values=False) if bytes(section) not in stays]
        if not gone:
            return
        with self._lmdb_errors(), self._env.begin(write=True) as txn:
            for section in gone:
                self._drop(txn, self._put(txn, section, ()))
                txn.delete(section, db=self._heads)

    def version(self, partition: PartitionId) -> int | None:
        """The manifest version whose entries are here; None when the partition is not."""
        with self._lmdb_errors(), self._env.begin() as txn:
            held = txn.get(_head_section(partition), db=self._heads)
        return None if held is None else _U64.unpack_from(held)[0]

    def floor(self, partition: PartitionId, offset: int) -> Item | None:
        """The entry that holds `offset`, gap entries included; None when no entry known here does (ask the head).

        A reference means that its page is not here: load it, `add_page` it, and look again.
        """
        if not 0 <= offset < 1 << 63:
            return None
        section, found = _head_section(partition), None
        with self._lmdb_errors(), self._env.begin() as txn:
            cursor = txn.cursor(self._items)
            while (value := _floor(cursor, section, offset)) is not None:
                if value[:1] == _ENTRY:
                    entry = msgspec.msgpack.decode(memoryview(value)[1:], type=Entry)
                    return entry if offset <= entry.last_offset else None
                if offset > _REF.unpack_from(value)[2]:
                    return None
                found, section = value, b"p" + value[1:17]
        return None if found is None else _unpacked(found)

    def floor_time(self, partition: PartitionId, timestamp_ms: int) -> Item | None:
        """The first entry whose last timestamp is `timestamp_ms` or later; None when no entry known here is. A reference as for `floor`."""
        biased = min(max(timestamp_ms + _TIME_BIAS, 0), (1 << 64) - 1)
        section, found = _head_section(partition), None
        with self._lmdb_errors(), self._env.begin() as txn:
            cursor = txn.cursor(self._times)
            while cursor.set_range(section + _TIME.pack(biased, 0)) and bytes(cursor.key()).startswith(section):
                held = txn.get(section + cursor.key()[-_U64.size :], db=self._items)
                if held is None:
                    break
                found = _unpacked(held)
                if isinstance(found, Entry):
                    break
                section = _page_section(found)
        return found

    def _put(self, txn: lmdb.Transaction, section: bytes, items: Sequence[Item]) -> list[bytes]:
        """Make the section's items these; the uids of pages that were referred to by it, in the same words, and are not any more."""
        wanted = {section + _U64.pack(each.base_offset): _packed(each) for each in items}
        rises = {section + key: b"" for key in _rises(items)}
        gone: list[bytes] = []
        for database, now in ((self._items, wanted), (self._times, rises)):
            known = dict(_scan(txn.cursor(database), section))
            for key, value in known.items():
                if now.get(key) == value:
                    continue
                if value[:1] == _REFERENCE:
                    gone.append(value[1:17])
                if key not in now:
                    txn.delete(key, db=database)
            for key in sorted(now):
                if known.get(key) != now[key]:
                    txn.put(key, now[key], db=database)
        return gone

    def _drop(self, txn: lmdb.Transaction, uids: Iterable[bytes], stays: Collection[bytes] = ()) -> None:
        """Forget these pages and all below them, except for those that the head refers to itself.

        A page that is not here yet may refer to some of them as well: who wants one of those loads it again.
        """
        gone = list(uids)
        while gone:
            if (uid := gone.pop()) not in stays:
                gone += self._put(txn, b"p" + uid, ())

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


def _floor(cursor: lmdb.Cursor, section: bytes, offset: int) -> bytes | None:
    """The value of the section's item that begins at `offset` or is the last one to begin before it."""
    wanted = section + _U64.pack(offset)
    if cursor.set_range(wanted):
        at_or_below = cursor.key() == wanted or cursor.prev()
    else:
        at_or_below = cursor.last()
    return bytes(cursor.value()) if at_or_below and bytes(cursor.key()).startswith(section) else None


def _head_section(partition: PartitionId) -> bytes:
    cluster = hashlib.blake2b(partition.cluster_id.encode(), digest_size=8).digest()
    return b"h" + _PARTITION.pack(cluster, topic_id_bytes(partition.topic_id), partition.partition)


def _page_section(ref: PageRef) -> bytes:
    return b"p" + bytes.fromhex(ref.uid)


def _packed(item: Item) -> bytes:
    if isinstance(item, Entry):
        return _ENTRY + msgspec.msgpack.encode(item)
    return _REF.pack(_REFERENCE, bytes.fromhex(item.uid), item.last_offset) + msgspec.msgpack.encode(item)


def _unpacked(value: bytes) -> Item:
    if value[:1] == _ENTRY:
        return msgspec.msgpack.decode(memoryview(value)[1:], type=Entry)
    return msgspec.msgpack.decode(memoryview(value)[_REF.size :], type=PageRef)


def _rises(items: Iterable[Item]) -> Iterator[bytes]:
    """The keys of `times`: one for each item that raises the highest timestamp. The first one to reach a timestamp is
    always one of them, in whatever order timestamps come."""
    highest = None
    for item in items:
        if item.last_timestamp_ms is not None and (highest is None or item.last_timestamp_ms > highest):
            highest = item.last_timestamp_ms
            yield _TIME.pack(highest + _TIME_BIAS, item.base_offset)


def _scan(cursor: lmdb.Cursor, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of every key below `prefix`, from `start` on."""
    found = cursor.set_range(start or prefix)
    while found and (key := bytes(cursor.key())).startswith(prefix):
        yield key, bytes(cursor.value())
        found = cursor.next()


def _fingerprint(path: Path) -> str:
    """Version of the keys, length and CRC-32 of the whole file."""
    crc, size = 0, 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            crc, size = zlib.crc32(piece, crc), size + len(piece)
    return f"{_VERSION} {size} {crc:08x}\n"
