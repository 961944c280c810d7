"""The ways by which a log is read back, all of one form: whole batches from one offset to another."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from headwater_core.errors import NotFound
from headwater_core.files import disk_errors
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.partition import TopicPartition
from headwater_core.segments.batches import check_batch, read_batch_header
from headwater_core.segments.log_dirs import LogDirs
from hydration.answers import Isolation
from hydration.config import HydrationConfig, ReadPriority
from hydration.logs import Logs, open_logs

FETCH_BYTES = 4 << 20


class PathBounds(NamedTuple):
    """First offset that can be read, and the end."""

    start: int
    end: int


class ReadPath(Protocol):
    """Raises HeadwaterError of any kind where something cannot be read."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    def topic_id(self, topic: str) -> str | None:
        """None: there is no such topic."""
        ...

    def bounds(self, place: TopicPartition) -> PathBounds: ...

    def batches(self, place: TopicPartition, first: int, end: int) -> Iterator[bytes]:
        """Every batch with an offset in [first, end), whole, in order, its CRC verified."""
        ...


def split_batches(raw: bytes | memoryview, where: str, *, may_be_cut: bool) -> Iterator[bytes]:
    """The batches that `raw` consists of, verified. may_be_cut: the last one may lack its end, and is left out then. Raises CorruptData."""
    view, position = memoryview(raw), 0
    while position < len(view):
        if may_be_cut and _is_cut(view[position:], where):
            return
        header = check_batch(view, position, where=where)
        yield bytes(view[position : position + header.size_bytes])
        position += header.size_bytes


def _is_cut(rest: memoryview, where: str) -> bool:
    return len(rest) < 61 or read_batch_header(rest, where=where).size_bytes > len(rest)


class DirectoryReadPath:
    """A log directory alone, read as `headwater read` does. Nothing else can help it: the bucket that its reader knows is empty."""

    name = "headwater"

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def topic_id(self, topic: str) -> str | None:
        found = self._logs.topics().get(topic)
        return found.topic_id if found else None

    def bounds(self, place: TopicPartition) -> PathBounds:
        found = self._logs.partition(place.topic, place.partition).bounds()
        return PathBounds(found.log_start, found.high_watermark)

    def batches(self, place: TopicPartition, first: int, end: int) -> Iterator[bytes]:
        log, cursor = self._logs.partition(place.topic, place.partition), first
        end = min(end, log.bounds().high_watermark)
        while cursor < end:
            with log.read(cursor, FETCH_BYTES, Isolation.READ_UNCOMMITTED) as answer:
                reached = answer.next_offset
                for piece in answer.slices:
                    for batch in split_batches(piece.read(), piece.file.where, may_be_cut=False):
                        header = read_batch_header(batch)
                        if header.base_offset >= end:
                            return
                        reached = max(reached, header.next_offset)
                        if header.next_offset > first:
                            yield batch
            if reached <= cursor:
                raise NotFound(f"{place} ends at offset {cursor}, not at {end}")
            cursor = reached


@contextmanager
def open_directory(log_dir: Path, work_dir: Path) -> Iterator[DirectoryReadPath]:
    """`work_dir` is for a bucket that stays empty, and a cache that does, too."""
    empty = work_dir / "empty"
    with disk_errors(empty):
        empty.mkdir(exist_ok=True)
    logs = open_logs(
        HydrationConfig(read_priority=ReadPriority.LOCAL_ONLY, cache_bytes=0),
        store=DirectoryStore(empty),
        cache_directory=work_dir / "cache",
        dirs=LogDirs([log_dir]),
    )
    try:
        logs.refresh()
        yield DirectoryReadPath(logs)
    finally:
        logs.close()
