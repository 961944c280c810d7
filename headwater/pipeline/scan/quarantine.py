"""The side table of a scan that goes on over damage: what was left out, and why."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from headwater.pipeline.scan.archive_snapshot import ArchiveSnapshot, LostDocument
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.scan_counters import ScanCounters
from headwater.pipeline.scan.splits import Split
from headwater_core.errors import AlreadyExists, Conflict, CorruptData, HeadwaterError, TransientError, UnsupportedFormat
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.open import open_store
from headwater_core.objectstore.store import ObjectStore

_ATTEMPTS = 4

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Offsets of one partition, both inclusive, that could not be read, and where they should have been.

    object, position   the object, and the byte in it where the damage was met
    Of a damaged document: which offsets it takes along nobody can tell, nor, when it is a topic's, of which partitions.
    """

    topic: str
    partition: int | None
    object: str
    position: int
    first_offset: int | None
    last_offset: int | None
    reason: str


class Quarantine:
    """Writes damage as JSON lines, one object per split that met some: `spark.read.json` reads them all as one table.

    The object is named by its split, so a task that is run again replaces what its predecessor wrote.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def write(self, split: Split, found: Sequence[Damage]) -> None:
        self._put(f"{split.topic}-{split.topic_id}-{split.partition}-{split.first:020}-{split.end:020}.jsonl", found)

    def write_document(self, lost: LostDocument) -> None:
        error = lost.error
        found = Damage(
            topic=lost.topic,
            partition=lost.partition,
            object=lost.key,
            position=error.position if isinstance(error, CorruptData) else 0,
            first_offset=None,
            last_offset=None,
            reason=error.reason if isinstance(error, CorruptData) else str(error),
        )
        whose = "topic" if lost.partition is None else str(lost.partition)
        self._put(f"{lost.topic}-{whose}-document.jsonl", [found])

    def _put(self, key: str, found: Sequence[Damage]) -> None:
        lines = "".join(json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in found).encode()
        for _ in range(_ATTEMPTS):
            try:
                self._store.create(key, lines)
                return
            except AlreadyExists:
                pass
            try:
                held, tag = self._store.get(key)
                if held != lines:
                    self._store.replace(key, lines, expected_tag=tag)
                return
            except Conflict:
                continue
        raise TransientError(f"{key} in {self._store.url} is being written by another task")


class SplitDamage:
    """The damage that is met while a split is read. With a quarantine it is listed there in the end; without one, the first is raised."""

    def __init__(self, split: Split, query: Query, counters: ScanCounters) -> None:
        self._split, self._words, self._counters = split, query.words, counters
        self._quarantine = open_quarantine(query)
        self._found: dict[Damage, None] = {}  # a set that keeps the order

    @property
    def is_fatal(self) -> bool:
        return self._quarantine is None

    def add(self, error: CorruptData | UnsupportedFormat, key: str, position: int, first_offset: int, last_offset: int) -> None:
        """Note that offsets, both inclusive, cannot be read, as far as they are the split's. Without a quarantine, raises `located`.

        key, position  the object, and the byte in it where the damage was met
        """
        if self.is_fatal:
            raise self.located(error, first_offset, last_offset) from error
        first_offset, last_offset = max(first_offset, self._split.first), min(last_offset, self._split.end - 1)
        if first_offset > last_offset:
            return
        found = Damage(
            topic=self._split.topic,
            partition=self._split.partition,
            object=key,
            position=position,
            first_offset=first_offset,
            last_offset=last_offset,
            reason=error.reason if isinstance(error, CorruptData) else str(error),
        )
        if found not in self._found:
            self._found[found] = None
            self._counters.damaged += 1
            log.warning(
                "damage_set_aside",
                partition=str(self._split.partition_id),
                key=key,
                position=position,
                first_offset=first_offset,
                last_offset=last_offset,
                reason=found.reason,
            )

    def located(self, error: CorruptData | UnsupportedFormat, first_offset: int, last_offset: int) -> HeadwaterError:
        """The same error, which also names the offsets and what to do."""
        advice = f" ({self._words.set_aside})" if self.is_fatal and self._words.set_aside else ""
        offsets = f"; offsets {first_offset} to {last_offset} of {self._split.partition_id}{advice}"
        if isinstance(error, CorruptData):
            return type(error)(error.where, error.position, error.reason + offsets)
        return UnsupportedFormat(f"{error}{offsets}")

    def write(self) -> None:
        """List the damage in the quarantine. Raises what its store raises."""
        if self._found and self._quarantine is not None:
            self._quarantine.write(self._split, list(self._found))


def open_quarantine(query: Query) -> Quarantine | None:
    """Where the query wants damage listed: a URL, or a directory of this machine; None when damage shall fail the scan."""
    if query.quarantine_path is None:
        return None
    if "://" not in query.quarantine_path:
        return Quarantine(DirectoryStore(Path(query.quarantine_path).absolute()))
    is_s3 = query.quarantine_path.startswith("s3://")
    return Quarantine(
        open_store(query.quarantine_path, endpoint_url=query.endpoint_url if is_s3 else None, region=query.region if is_s3 else None)
    )


def read_snapshot(store: ObjectStore, query: Query) -> ArchiveSnapshot:
    """What the query is about. With a quarantine, documents that are damaged are listed there, and the rest goes on; without one
    they are the end, as ArchiveSnapshot.read has it."""
    quarantine = open_quarantine(query)
    if quarantine is None:
        return ArchiveSnapshot.read(store, query)
    found = ArchiveSnapshot.survey(store, query)
    for each in found.lost:
        quarantine.write_document(each)
        partition = None if each.partition is None else f"{each.topic}:{each.partition}"
        log.warning("document_set_aside", topic=each.topic, partition=partition, key=each.key, reason=str(each.error))
    return found


def read_quarantine(store: ObjectStore) -> Iterable[Damage]:
    """Everything that scans have written there."""
    for info in store.list(""):
        for line in store.get(info.key)[0].splitlines():
            yield Damage(**json.loads(line))
