"""The progress of an export: a file in its directory, for one process at a time."""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec

from headwater.pipeline.export.backlog import Places, TopicProgress, decode_places, encode_places
from headwater.pipeline.scan.progress import Progress, TopicIdentity, decode_progress
from headwater_core.errors import Locked, UnsupportedFormat, UsageError
from headwater_core.files import disk_errors, replace_file
from headwater_core.partition import PartitionId
from manifests.document import FORMAT, seal, unseal

FOLDER = "_headwater"  # the leading underscore hides it from readers of the directory
_TEXT = re.compile(  # a topic's name that no reader of paths takes for a number, a date, a truth value or null
    r"(?!(?:epoch|false|inf|infinity|nan|none|now|null|today|tomorrow|true|yesterday|__hive_default_partition__)$)[a-z_].*", re.IGNORECASE
)


class FileLayout(IntEnum):
    """How the files of a directory tell their topic, and the day of records without one."""

    PATH_ONLY = 1  # the topic's name in the path alone; Hive's null as a day, with which pandas reads nothing
    SELF_CONTAINED = 2

    def folder(self, topic: str) -> str:
        is_text = self is FileLayout.PATH_ONLY or _TEXT.fullmatch(topic)
        return f"topic={topic}" if is_text else f"topic={topic}@"

    @property
    def no_day(self) -> str:
        return "__HIVE_DEFAULT_PARTITION__" if self is FileLayout.PATH_ONLY else "1970-01-01"


class PlannedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets [first, end) of one partition that are planned and not written yet. The names of their files follow from them."""

    cluster_id: str
    topic: str
    topic_id: str
    partition: int
    first: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end:
            raise ValueError(f"offsets out of order: {self.first} to {self.end}")

    @property
    def partition_id(self) -> PartitionId:
        return PartitionId(self.cluster_id, self.topic_id, self.partition, self.topic)

    @property
    def name(self) -> str:
        return f"{self.topic_id}-{self.partition}-{self.first:020}-{self.end:020}"


class CheckpointDocument(msgspec.Struct, frozen=True, kw_only=True):
    """progress: all offsets below it are written, except `pending`. earlier: the same for earlier incarnations of topics.
    file_layout: the FileLayout that it began with; an older version wrote none. The other fields must be equal in all runs."""

    format: tuple[int, int] = FORMAT
    store: str
    read_committed: bool
    columns: tuple[str, ...]
    progress: dict[str, Any]
    pending: tuple[PlannedRange, ...]
    earlier: tuple[TopicProgress, ...] = ()
    file_layout: int = FileLayout.PATH_ONLY


class Checkpoint:
    """The checkpoint of one directory, from `open_checkpoint`."""

    def __init__(self, directory: Path, document: CheckpointDocument) -> None:
        self.directory, self._document = directory, document
        progress = decode_progress(document.progress)
        self._current = progress.incarnations
        self.places: Places = decode_places(document.earlier, str(_path(directory))) | {
            PartitionId(
                progress.incarnations[each.topic].cluster_id, progress.incarnations[each.topic].topic_id, each.partition, each.topic
            ): at
            for each, at in progress.reached.items()
        }

    @property
    def file_layout(self) -> FileLayout:
        return FileLayout(self._document.file_layout)

    @property
    def pending(self) -> tuple[PlannedRange, ...]:
        return self._document.pending

    def save(self, places: Places, current: Mapping[str, TopicIdentity], pending: Iterable[PlannedRange]) -> None:
        """Save atomically. Raises DiskFull and UsageError; then the file is as before.

        current  the current incarnation of a topic, where it has changed
        """
        current = {**{each.topic: TopicIdentity(each.cluster_id, each.topic_id) for each in places}, **self._current, **current}
        now = {each: at for each, at in places.items() if current[each.topic].topic_id == each.topic_id}
        progress = Progress(
            incarnations={each.topic: current[each.topic] for each in now}, reached={each.topic_partition: at for each, at in now.items()}
        )
        ordered = tuple(sorted(pending, key=lambda each: (each.topic, each.topic_id, each.partition, each.first)))
        earlier = encode_places({each: at for each, at in places.items() if each not in now})
        document = msgspec.structs.replace(self._document, progress=progress.encode(), pending=ordered, earlier=earlier)
        path = _path(self.directory)
        replace_file(path, seal(document), UsageError)
        self._document, self.places, self._current = document, places, current


@contextmanager
def open_checkpoint(
    directory: Path, *, store_url: str, read_committed: bool, columns: tuple[str, ...], read_only: bool
) -> Iterator[Checkpoint]:
    """The directory's checkpoint, a new one for a new directory.

    read_only  change nothing and take no lock

    Raises Locked while another export runs, UsageError when the directory holds other files or an export with other settings,
    and CorruptData for a damaged checkpoint.
    """
    new = CheckpointDocument(
        store=store_url,
        read_committed=read_committed,
        columns=columns,
        progress=Progress(incarnations={}, reached={}).encode(),
        pending=(),
        file_layout=max(FileLayout),
    )
    if read_only:
        yield Checkpoint(directory, _read(directory) or new)
        return
    with disk_errors(directory, UsageError):
        is_new = not _path(directory).exists()
        if is_new and directory.exists() and any(each.name != FOLDER for each in directory.iterdir()):
            raise UsageError(f"{directory} is not empty and holds no export; name an empty or a new directory")
        (directory / FOLDER).mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / FOLDER / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(f"another export runs in {directory}") from None
        held = _read(directory) or new
        for what, was, now in (
            ("archive", held.store, new.store),
            ("isolation", held.read_committed, new.read_committed),
            ("columns", held.columns, new.columns),
        ):
            if was != now:
                raise UsageError(f"{directory} holds an export of another {what}: {was}, not {now}; name another directory")
        yield Checkpoint(directory, held)
    finally:
        os.close(lock)


def pending_of(partition: PartitionId, first: int, end: int) -> PlannedRange:
    return PlannedRange(
        cluster_id=partition.cluster_id,
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.partition,
        first=first,
        end=end,
    )


def _path(directory: Path) -> Path:
    return directory / FOLDER / "export.json"


def _read(directory: Path) -> CheckpointDocument | None:
    path = _path(directory)
    with disk_errors(path, UsageError):
        try:
            raw = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
    document = unseal(raw, CheckpointDocument, str(path))
    if document.file_layout not in set(FileLayout):
        raise UnsupportedFormat(f"{path} is of a newer version, with files that this one does not write: upgrade it")
    return document
