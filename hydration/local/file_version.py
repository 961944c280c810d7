"""The version of a segment's file: when it changes, what was known of the file no longer holds."""

from typing import NamedTuple

from headwater_core.segments.local_log import LocalLog, LocalSegment


class FileVersion(NamedTuple):
    """A file, and the newest leader epoch of its log: a newer leader may have had the file cut."""

    inode: int
    leader_epoch: int | None

    @classmethod
    def of(cls, segment: LocalSegment, log: LocalLog) -> "FileVersion":
        return cls(segment.generation.inode, log.epochs.newest)
