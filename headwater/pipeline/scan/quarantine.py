"""The side table of a scan that continues over damage: which offsets it left out, and why."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from headwater.pipeline.scan.archive_snapshot import ArchiveSnapshot, LostDocument
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.scan_counters import ScanCounters
from headwater.pipeline.scan.splits import Split
from headwater_core.errors import AlreadyExists, Conflict, CorruptData, HeadwaterError, TransientError, UnsupportedFormat
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import ObjectStore
from headwater_core.objectstore.store_url import open_store

_ATTEMPTS = 4

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Offsets of one partition, both inclusive, that could not be read.

    object, position   the object, and the byte in it where the damage was met

    A damaged document has no offsets: it is unknown which ones it concerns. A topic's document has no partition either.
    """

    topic: str
    partition: int | None
    object: str
    position: int
    first_offset: int | None
    last_offset: int | None
    reason: str


class Quarantine:
    """Writes damage as JSON lines, one object for each split that has any: `spark.read.json` reads them all as one table.

    The object has the name of its split, so a task that runs again replaces what it wrote before.
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
        owner = "topic" if lost.partition is None else str(lost.partition)
        self._put(f"{lost.topic}-{owner}-document.jsonl", [found])

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
    """The damage in one split. With a quarantine, `write` lists it there; without one, the first damage is raised."""

    def __init__(self, split: Split, query: Query, counters: ScanCounters) -> None:
        self._split, self._advice, self._counters = split, query.advice, counters
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
        """The same error, with the offsets and what to do."""
        advice = f" ({self._advice.set_aside})" if self.is_fatal and self._advice.set_aside else ""
        offsets = f"; offsets {first_offset} to {last_offset} of {self._split.partition_id}{advice}"
        if isinstance(error, CorruptData):
            return type(error)(error.where, error.position, error.reason + offsets)
        return UnsupportedFormat(f"{error}{offsets}")

    def write(self) -> None:
        """List the damage in the quarantine. Raises what its store raises."""
        if self._found and self._quarantine is not None:
            self._quarantine.write(self._split, list(self._found))


def open_quarantine(query: Query) -> Quarantine | None:
    """The query's quarantine, at a URL or in a directory of this machine; None when damage fails the scan. Raises UsageError."""
    if query.quarantine_path is None:
        return None
    if "://" not in query.quarantine_path:
        return Quarantine(DirectoryStore(Path(query.quarantine_path).absolute()))
    is_s3 = query.quarantine_path.startswith("s3://")
    return Quarantine(
        open_store(query.quarantine_path, endpoint_url=query.endpoint_url if is_s3 else None, region=query.region if is_s3 else None)
    )


def read_snapshot(store: ObjectStore, query: Query) -> ArchiveSnapshot:
    """The heads that the query selects. With a quarantine, damaged documents are listed there, and the others are returned; without
    one, raises what ArchiveSnapshot.read does."""
    quarantine = open_quarantine(query)
    if quarantine is None:
        return ArchiveSnapshot.read(store, query)
    found = ArchiveSnapshot.survey(store, query)
    for each in found.lost:
        quarantine.write_document(each)
        partition = None if each.partition is None else f"{each.topic}:{each.partition}"
        log.warning("document_set_aside", topic=each.topic, partition=partition, key=each.key, reason=str(each.error))
    return found
