"""Reads what is archived already, and verifies it again."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import BinaryIO, cast

from msgspec.structs import replace

from headwater_core.errors import CorruptData, NotFound
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.run_scan import RunScan, scan_run
from headwater_core.segments.runindex import RunIndex
from headwater_core.segments.transactions import OpenTransaction
from manifests.archivedrun import ArchivedRun
from manifests.entry import Entry
from manifests.entry_tree import EntryTree


class ArchivedEntries:
    """One partition's entries, as the store has them. Raises CorruptData when that is not what the head says."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._last_open: tuple[Entry, tuple[OpenTransaction, ...]] | None = None

    def open(self, entry: Entry) -> BinaryIO:
        """The entry's bytes as a file, dead ones included."""
        return cast(BinaryIO, ArchivedRun(self._store, entry))

    def pieces(self, entry: Entry, piece_bytes: int) -> Iterator[memoryview]:
        """The entry's live bytes in order, by one request; each piece is valid until the next."""
        piece = memoryview(bytearray(min(piece_bytes, entry.live_bytes)))
        pieces = [piece[: entry.live_bytes - start] for start in range(0, entry.live_bytes, piece_bytes)]
        with closing(open_layout(entry.layout).read_offloaded(self._store, entry).stream_into(pieces, 0)) as filled:
            try:
                for each, _ in zip(pieces, filled, strict=True):
                    yield each
            except NotFound as error:
                raise CorruptData(entry.key, 0, "the manifest lists it, the store does not have it") from error

    def remember_open(self, entry: Entry, open_transactions: tuple[OpenTransaction, ...]) -> None:
        """These are open after `entry`, which has just been archived: the next run needs them, and need not read its index."""
        self._last_open = entry, open_transactions

    def index_is_true(self, entry: Entry, scan: RunScan) -> bool:
        """Does the entry's index list the transactions that `scan` has just found?"""
        index = self.read_index(entry)
        aborted = tuple(each for each in index.aborted if each.last_offset <= scan.last_offset)
        return aborted == scan.aborted and (entry.is_cut or index.open_transactions == scan.open_transactions)

    def find_same(self, listed: Iterable[Entry], entry: Entry, scan: RunScan) -> Entry | None:
        """`entry`, whose bytes were scanned, as it is `listed` already, byte for byte; None when it is not."""
        for each in listed:
            if (each.base_offset, each.last_offset, each.live_bytes) != (entry.base_offset, entry.last_offset, scan.size_bytes):
                continue
            held = self.scan(each, each.next_offset, ()) if each.is_cut else None
            if (held.digest if held else each.run_digest) == scan.digest and self.index_is_true(each, scan):
                return replace(each, cleaned=entry.cleaned, displaced_by=entry.displaced_by)
        return None

    def read_index(self, entry: Entry) -> RunIndex:
        """As the store has it."""
        try:
            return open_layout(entry.layout).read_offloaded(self._store, entry).read_index()
        except NotFound as error:  # of the store; a partition that is gone says the same of itself
            raise CorruptData(entry.index_place, 0, "the manifest lists it, the store does not have it") from error

    def scan(self, entry: Entry, end: int, open_before: Sequence[OpenTransaction]) -> RunScan | None:
        """Verify an entry's whole batches below offset `end` again, from the store; None when there are none."""
        scan = scan_run(self.open(entry), start=0, end=entry.live_bytes, open_before=open_before, end_offset=end, where=entry.key)
        if scan and scan.end_position == entry.run_bytes and entry.run_digest not in ("", scan.digest):
            raise CorruptData(entry.key, 0, f"digest {scan.digest}, the manifest says {entry.run_digest}")
        return scan

    def open_after(self, entries: EntryTree) -> tuple[OpenTransaction, ...]:
        """The transactions open after the last of `entries`: from its index, or from its bytes when it was cut."""
        if not entries or (entry := entries[-1]).gap or entry.open_from is None:
            return ()
        if self._last_open and self._last_open[0] == entry:
            return self._last_open[1]
        if entry.is_cut:
            scan = self.scan(entry, entry.next_offset, self.open_after(entries.without_last()))
            found = scan.open_transactions if scan else ()
        else:
            found = self.read_index(entry).open_transactions
        self._last_open = entry, found
        return found
