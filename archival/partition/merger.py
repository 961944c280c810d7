"""Merges a partition's small neighbours into one object: their bytes are gathered in a local file, verified again as one run, and uploaded.

Nothing is taken from an entry but its live bytes: from the local log while it holds the very same ones, as the entry's digest says, else
from the store. What the whole says must be what its parts said; its index is made again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from msgspec.structs import replace

from archival.partition.entry_reader import ArchivedEntries
from archival.partition.run_names import ChunkNames
from archival.partition.source import PartitionSource, check_unchanged, find_batch
from archival.partition.uploads import Uploads
from archival.plan.entries import merged_publication
from archival.plan.merge_plan import merged_displacement
from headwater_core.errors import CorruptData, HeadwaterError, UploadStopped
from headwater_core.objectstore.digest import Digest, digest_of
from headwater_core.objectstore.store import Pace
from headwater_core.segments.index_hints import hint_by_offset
from headwater_core.segments.local_log import LocalLog, LocalSegment
from headwater_core.segments.run_scan import RunScan, scan_run
from headwater_core.segments.runindex import encode_index
from manifests import chunk_keys, keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree

MILESTONES = ("merge.planned", "merge.uploaded")

PIECE_BYTES = 1 << 20
_OFFSET_BYTES = 8  # a batch begins with its base offset

Spool = Callable[[], BinaryIO]
"""Makes an empty file that is gone when it is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The entry that the store has confirmed, and how many of its bytes were read from the local log rather than from the store."""

    entry: Entry
    local_bytes: int


class Merger:
    """The merges of one partition. An object that was confirmed for a commit that did not come about is the next one's, if that is the
    same merge under the same fence: see Uploads."""

    def __init__(self, source: PartitionSource, archived: ArchivedEntries, uploads: Uploads, spool: Spool) -> None:
        self._source, self._archived, self._uploads, self._spool = source, archived, uploads, spool
        self._last_end = 0, 0  # inode of the segment that was copied from last, and where that ended

    def merge(self, group: tuple[Entry, ...], before: EntryTree, fence: int, log: LocalLog, check: Callable[[], object]) -> Merged:
        """One entry for `group`, which is live and abuts; its object is confirmed, and nothing lists it yet.

        before  the live entries that come before
        check   is called before each piece that is read; what it raises ends the merge

        Raises CorruptData when what is archived is not what the head says, and what the store, the disk and the uploads' pace raise.
        """
        first, last = group[0], group[-1]
        with self._spool() as file:
            local_bytes = sum(self._gather(entry, file, log, check) for entry in group)
            file.flush()
            scan = scan_run(file, start=0, end=file.tell(), open_before=self._archived.open_after(before), where=f"merged {first.key}")
            if scan is None or not _is_sum(scan, group):
                raise CorruptData(
                    first.key, 0, f"with what follows up to offset {last.last_offset} it is not what the manifest says of them"
                )
            entry = self._uploads.new_entry(first.base_offset, last.last_offset, scan, fence)
            entry = replace(entry, cleaned=first.cleaned, displaced_by=merged_displacement(group), published_ms=merged_publication(group))
            file.seek(0)
            entry = self._uploads.upload(entry, file, scan)
        self._archived.remember_open(entry, scan.open_transactions)
        return Merged(entry=entry, local_bytes=local_bytes)

    def consolidate(
        self,
        group: tuple[Entry, ...],
        before: EntryTree,
        names: ChunkNames,
        fence: int,
        log: LocalLog,
        check: Callable[[], object],
        pace: Pace,
    ) -> Merged:
        """One entry for `group`, the chunks of a full segment; its object is confirmed, and nothing lists it yet. The store copies the
        chunks where it can; their bytes are read to index them as one run, but where they are one already.

        pace  of what is sent: see ObjectStore.join; `check` is called before that alone

        Raises PlaceTaken when something else has its name, CorruptData when what is archived is not what the head says, and what the store
        and the disk raise.
        """
        first, last, local_bytes = group[0], group[-1], 0
        if len(group) == 1:
            index, digest = encode_index(self._archived.read_index(first)), first.run_digest
            entry = replace(first, context={}, key="", size_bytes=first.run_bytes)
        else:
            with self._spool() as file:
                local_bytes = sum(self._gather(entry, file, log, check) for entry in group)
                file.flush()
                scan = scan_run(file, start=0, end=file.tell(), open_before=self._archived.open_after(before), where=first.key)
            if scan is None or not _is_sum(scan, group):
                raise CorruptData(
                    first.key, 0, f"its segment, up to offset {last.last_offset}, is not what the manifest says of its chunks"
                )
            index, digest = encode_index(scan.index), scan.digest
            entry = self._uploads.new_entry(first.base_offset, last.last_offset, scan, fence)
            entry = replace(
                entry,
                cleaned=first.cleaned,
                displaced_by=merged_displacement(group),
                published_ms=merged_publication(group),
                held=(first.base_offset, last.last_offset),
            )
        check()
        name = names.consolidated(chunk_keys.named(first.key).place, fence)
        self._uploads.join(name.key, group, digest, index, names, pace)
        return Merged(
            entry=replace(
                entry,
                key=name.key,
                index_key=keys.index(name.key),
                uid=name.uid,
                fence=fence,
                layout=chunk_keys.LAYOUT,
                context=name.context,
                digest=digest,
                index_bytes=len(index),
                index_digest=digest_of(index),
            ),
            local_bytes=local_bytes,
        )

    def _gather(self, entry: Entry, file: BinaryIO, log: LocalLog, check: Callable[[], object]) -> int:
        """Append the entry's live bytes to `file`; how many of them the local log had."""
        start = file.tell()
        if not entry.is_cut:  # the digest is of the whole run
            try:
                if self._copy_local(entry, file, log, check) == entry.run_digest:
                    return entry.live_bytes
            except UploadStopped:
                raise
            except HeadwaterError:
                pass  # of the local log, which is archiving's trouble; the store has the bytes
            file.seek(start)
            file.truncate()
        digest = Digest()
        for piece in self._archived.pieces(entry, PIECE_BYTES):
            check()
            file.write(piece)
            digest.update(piece)
        if not entry.is_cut and digest.text() != entry.run_digest:
            raise CorruptData(entry.key, 0, f"digest {digest.text()}, the manifest says {entry.run_digest}")
        return 0

    def _copy_local(self, entry: Entry, to: BinaryIO, log: LocalLog, check: Callable[[], object]) -> str:
        """Append as many bytes as the entry has, from where it begins in the local log; their digest, "" where they are not there."""
        digest, first = Digest(), entry.epochs[0].first_offset
        left_bytes = entry.live_bytes
        for segment, _ in log.segments_from(first):
            with self._source.open(segment) as file:
                size_bytes, position = check_unchanged(segment, file), 0
                if left_bytes == entry.live_bytes:
                    found = self._find(segment, file, first, size_bytes)
                    if found is None:
                        return ""
                    position = found
                file.seek(position)
                while left_bytes and (piece := file.read(min(PIECE_BYTES, left_bytes, size_bytes - position))):
                    check()
                    to.write(piece)
                    digest.update(piece)
                    position += len(piece)
                    left_bytes -= len(piece)
                self._last_end = segment.generation.inode, position
            if not left_bytes:
                return digest.text()
        return ""

    def _find(self, segment: LocalSegment, file: BinaryIO, first: int, size_bytes: int) -> int | None:
        """Where the batch at offset `first` begins: after what was copied last, or where an index and a walk over headers say."""
        inode, position = self._last_end
        if inode == segment.generation.inode and position < size_bytes:
            file.seek(position)
            if file.read(_OFFSET_BYTES) == first.to_bytes(_OFFSET_BYTES, "big"):
                return position
        hint = hint_by_offset(segment.index_path, segment.base_offset, first)
        found = find_batch(segment, file, first, hint.position if hint else 0, size_bytes)
        return found.position if found is not None and found.base_offset == first else None


def _is_sum(scan: RunScan, group: Sequence[Entry]) -> bool:
    """Is what was scanned all of these entries, and nothing else?"""
    first, last = group[0], group[-1]
    times = [each for entry in group for each in (entry.first_timestamp_ms, entry.last_timestamp_ms) if each is not None]
    epochs = [epoch for entry in group for epoch in entry.epochs]
    joined = tuple(each for at, each in enumerate(epochs) if at == 0 or each.epoch != epochs[at - 1].epoch)
    return (
        first.base_offset <= scan.base_offset
        and scan.last_offset <= last.last_offset
        and scan.size_bytes == sum(entry.live_bytes for entry in group)
        and scan.epochs == joined
        and scan.records == sum(entry.records for entry in group)
        and scan.open_from == last.open_from
        and len(scan.aborted) == sum(entry.aborted for entry in group)
        and (scan.first_timestamp_ms, scan.last_timestamp_ms) == (min(times, default=None), max(times, default=None))
    )
