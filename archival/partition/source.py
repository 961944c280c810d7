"""What is archived: the local log of one partition, looked at twice, and the bytes of its segments, each opened once."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, Protocol

from archival.partition.looks import CleanerLooks
from archival.plan.lineage import branches_at
from archival.plan.role import archiving_role
from headwater_core.errors import CorruptData, SourceChanged, SuspectedGap, TransientError, TruncatedData, Unauthorised, UnsupportedFormat
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.local_log import LocalLog, LocalSegment
from manifests.entry import Entry
from manifests.entry_tree import EntryTree


class LocalLogs(Protocol):
    """Where local logs are looked at: a broker's directories."""

    def look(self, partition: TopicPartition) -> LocalLog:
        """One fresh look at the partition's directory."""
        ...


OpenSegment = Callable[[LocalSegment], BinaryIO]


def open_segment(segment: LocalSegment) -> BinaryIO:
    """The segment's file, and no other one under its name.

    Raises SourceChanged when it is gone or replaced, Unauthorised, and TransientError for any other failure of the disk.
    """
    try:
        file = io.FileIO(segment.path)
    except FileNotFoundError as error:
        raise SourceChanged(f"{segment.path} is gone") from error
    except PermissionError as error:
        raise Unauthorised(f"{segment.path}: {error.strerror}") from error
    except OSError as error:
        raise TransientError(f"{segment.path}: {error.strerror}") from error
    try:
        check_unchanged(segment, file)
    except SourceChanged:
        file.close()
        raise
    return file


def check_unchanged(segment: LocalSegment, file: BinaryIO) -> int:
    """How many bytes of `file` may be read; SourceChanged when it is not what the look saw.

    An active segment grows, so of it only the inode is compared, and what the look saw must still be there.
    """
    status = os.fstat(file.fileno())
    if status.st_ino != segment.generation.inode or status.st_size < segment.size_bytes:
        raise SourceChanged(f"{segment.path} was replaced or cut")
    if segment.is_active:
        return status.st_size
    if (status.st_mtime_ns, status.st_size) != (segment.generation.modified_ns, segment.size_bytes):
        raise SourceChanged(f"{segment.path} was written to after it was sealed")
    return segment.size_bytes


class FoundBatch(NamedTuple):
    """Where in a segment's file a batch begins, and its base offset."""

    position: int
    base_offset: int


def find_batch(segment: LocalSegment, file: BinaryIO, offset: int, start: int, size_bytes: int) -> FoundBatch | None:
    """The first batch in file[start:size_bytes] whose last offset is `offset` or greater; None when there is none.

    An active segment may end in a batch that is still being written: it does not count. Raises CorruptData and UnsupportedFormat,
    and TruncatedData for a sealed segment that ends inside a batch.
    """
    try:
        for position, header in headers(file, start, size_bytes, where=str(segment.path)):
            if header.last_offset >= offset:
                return FoundBatch(position, header.base_offset)
    except TruncatedData:
        if not segment.is_active:
            raise
    return None


class PartitionSource:
    """One partition's log directory. One look is not atomic: topic id, listing and epoch history may be of different moments. So what was
    concluded from a look counts only when a second one finds the same log (design §4.2)."""

    def __init__(self, partition: PartitionId, logs: LocalLogs, looks: CleanerLooks, open_segment: OpenSegment) -> None:
        self._partition, self._logs, self._looks, self.open = partition, logs, looks, open_segment

    def look(self) -> LocalLog:
        """A fresh look. Raises SourceChanged when the directory is another incarnation's."""
        at_ms = self._looks.now_ms()
        log = self._logs.look(self._partition.topic_partition)
        if log.partition != self._partition:
            raise SourceChanged(f"{self._partition} is another incarnation now: {log.partition.topic_id}")
        self._looks.saw(log, at_ms)
        return log

    def look_again(self, log: LocalLog, *entries: Entry, segment: LocalSegment | None = None) -> LocalLog:
        """The second look. Raises SourceChanged unless it finds what `check_same` compares."""
        again = self.look()
        check_same(log, again, *entries, segment=segment)
        return again

    @contextmanager
    def unless_changed(self, log: LocalLog, segment: LocalSegment | None) -> Iterator[None]:
        """What looks like damage while a log is being cut or replaced is none: SourceChanged instead."""
        try:
            yield
        except (CorruptData, SuspectedGap, UnsupportedFormat):
            self.look_again(log, segment=segment)
            raise

    def batch_base(self, log: LocalLog, offset: int) -> int:
        """The base offset of the batch that holds `offset`; `offset` when none does."""
        holder = next((each for each in reversed(log.segments) if each.base_offset < offset), None)
        if holder is None:
            return offset
        with self.open(holder) as file, self.unless_changed(log, holder):
            found = find_batch(holder, file, offset, 0, check_unchanged(holder, file))
        return min(offset, found.base_offset) if found else offset


def check_same(log: LocalLog, again: LocalLog, *entries: Entry, segment: LocalSegment | None = None) -> None:
    """Raises SourceChanged when two looks at one log, `again` being the later one, may be of different logs.

    The role of this replica, the epoch history and the log start must be the same, the epochs of `entries` must lie on that history, and
    `segment` and all segments after it must be the same files. The end of the log may have grown.
    """
    partition = log.partition
    roles = archiving_role(log), archiving_role(again)
    if (again.settled, again.leftovers) != (log.settled, log.leftovers) or roles[0] != roles[1]:
        raise SourceChanged(f"{partition}: a compaction or an election came in between")
    if again.epochs != log.epochs or again.start_offset != log.start_offset:
        raise SourceChanged(f"{partition}: the leader epochs or the log start changed")
    if (again.high_watermark or 0) < (log.high_watermark or 0):
        raise SourceChanged(f"{partition}: the high watermark fell")
    if branches_at(log.epochs, EntryTree(entries)) is not None:
        raise SourceChanged(f"{partition}: leader epochs {[each.epochs for each in entries]} are not on the log's history")
    if segment and _files_from(segment.base_offset, again, log.segments[-1]) != _files_from(segment.base_offset, log, log.segments[-1]):
        raise SourceChanged(f"{partition}: segments were replaced or removed meanwhile")


def _files_from(first: int, log: LocalLog, last: LocalSegment) -> dict[int, int]:
    """Inodes by base offset, from `first` up to what was the last segment at the first look."""
    return {each.base_offset: each.generation.inode for each in log.segments if first <= each.base_offset <= last.base_offset}
