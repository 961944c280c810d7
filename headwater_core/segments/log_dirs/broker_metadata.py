"""A broker's own metadata log: found on whichever disk holds it; while that disk does not answer, the last known state counts."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headwater_core.errors import HeadwaterError, UnsupportedFormat, UsageError
from headwater_core.segments.disk import Disk, DiskHangs, Progressed
from headwater_core.segments.log_dirs.small_files import disk_error, is_directory
from headwater_core.segments.metadata import metadata_log
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_log import MetadataLog


class KnownMetadata(NamedTuple):
    """state: None when there is none. unread: why it cannot be read"""

    state: ClusterMetadata | None
    unread: HeadwaterError | None = None


class BrokerMetadata:
    """The metadata log below one of `dirs`, or below `named`, the broker's metadata.log.dir, when that is none of them.

    disks       of all these directories
    check_named  called before the first read of `named`; raises when it is another broker's

    Safe to use from many threads.
    """

    def __init__(self, dirs: Sequence[Path], named: Path | None, disks: Mapping[Path, Disk], check_named: Callable[[Path], object]) -> None:
        self._dirs, self._named, self._disks, self._check_named = dirs, named, disks, check_named
        self._log: MetadataLog | None = None
        self._lock = threading.Lock()  # one caller waits for its disk
        self._reading = threading.Lock()  # one thread reads: one that hung may continue
        self._known: KnownMetadata | None = None
        self._last: KnownMetadata | None = None  # the same, or why it could not be read
        self.only_beside = self._dirs[0] if len(self._dirs) == 1 and named is None else None  # a directory that alone can hold it

    def read(self) -> ClusterMetadata | None:
        """The newest state; None when there is no such log in these directories. While its disk hangs, the last known one: the broker
        gets no more from that disk either.

        Raises UsageError when there is none where it should be, ForeignOwner when it is another broker's, UnsupportedFormat
        when it holds what only a later version can read, and DiskHangs when it was never read.
        """
        with self._lock:
            try:
                self._known = KnownMetadata(self._find())
            except DiskHangs:
                if self._known is None:
                    raise
            return self._known.state

    def known(self) -> KnownMetadata:
        """The same, but what cannot be read is a part of the answer: after an upgrade of Kafka the log may hold what this version does
        not know, and its disk may hang. That is no reason to stop.

        Raises what `read` raises otherwise.
        """
        try:
            self._last = KnownMetadata(self.read())
        except (UnsupportedFormat, DiskHangs) as error:
            self._last = KnownMetadata(None, error)
        return self._last

    def known_beside(self, directory: Path, progressed: Progressed) -> KnownMetadata:
        """The same in a thread of `only_beside`'s own disk, which is asked something else besides: one wait for a thread is enough."""
        try:
            self._last = self._known = KnownMetadata(self._read_in(directory / metadata_log.DIRECTORY, progressed))
        except UnsupportedFormat as error:
            self._last = KnownMetadata(None, error)
        return self._last

    def last(self) -> KnownMetadata:
        """As `known` had it the last time, without asking a disk; read where it never was."""
        return self._last or self.known()

    def _find(self) -> ClusterMetadata | None:
        named, hangs = self._named, None
        if named and self._log is None and self._disks[named].ask("metadata", lambda _: is_directory(named / metadata_log.DIRECTORY)):
            self._check_named(named)
        for each in (named,) if named else self._dirs:
            try:
                found = self._disks[each].ask("metadata", partial(self._read_in, each / metadata_log.DIRECTORY))
            except DiskHangs as error:
                hangs = hangs or error
                continue
            if found is not None:
                return found
        if hangs is not None:
            raise hangs  # it may be there
        if named is None:
            return None
        raise UsageError(f"log.metadata_dir: {named} holds no {metadata_log.DIRECTORY}; it is the broker's metadata.log.dir")

    def _read_in(self, directory: Path, progressed: Progressed) -> ClusterMetadata | None:
        if not is_directory(directory):
            return None
        with self._reading:
            if self._log is None:
                self._log = MetadataLog(directory)
            try:
                return self._log.read(progressed)
            except OSError as error:
                raise disk_error(error, directory) from error
