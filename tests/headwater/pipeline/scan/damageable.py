"""An archive large enough for its indexes to be used, what reads it, and what damages it."""

import functools
import io
import json
from collections.abc import Callable
from pathlib import Path

from headwater.pipeline.scan.archive_snapshot import ArchiveSnapshot
from headwater.pipeline.scan.quarantine import Damage
from headwater.pipeline.scan.query import Query
from headwater.pipeline.scan.query_options import parse_query
from headwater.pipeline.scan.split_reader import read_split
from headwater.pipeline.scan.splits import Split, plan_splits
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.batch_walk import headers
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import Archive


@functools.cache
def three_objects() -> MemoryStore:
    """Offsets 0 to 299 in three objects of 15 KB batches, each with several index points."""
    store = MemoryStore()
    archive = Archive(store)
    archive.append(*(a_segment(first, 100, value_bytes=15_000) for first in (0, 100, 200)))
    return store


def a_query(**options: object) -> Query:
    return parse_query({"topics": "soup", "columns": "offset,value", **options})


def plan(store: MemoryStore | MeteredStore, query: Query) -> list[Split]:
    return plan_splits(ArchiveSnapshot.read(store, query).ranges(store, query), query)


def offsets(store: MemoryStore | MeteredStore, query: Query, splits: list[Split] | None = None) -> list[int]:
    found = [batch for split in splits or plan(store, query) for batch in read_split(store, split, query)]
    return [offset for batch in found for offset in batch["offset"].to_pylist()]


def overwrite(store: MemoryStore, key: str, change: Callable[[bytearray], bytes | bytearray | None]) -> None:
    content = change(bytearray(store.get(key)[0]))
    store.delete(key)
    if content is not None:
        store.create(key, bytes(content))


def flipped(at: int) -> Callable[[bytearray], bytearray]:
    def flip(content: bytearray) -> bytearray:
        content[at] ^= 0x10
        return content

    return flip


def position_of(store: MemoryStore, key: str, offset: int) -> int:
    content = store.get(key)[0]
    return next(at for at, header in headers(io.BytesIO(content), 0, len(content), where=key) if header.last_offset >= offset)


def damaged_offsets(found: list[Damage]) -> set[int]:
    lost: set[int] = set()
    for each in found:
        assert each.first_offset is not None
        assert each.last_offset is not None
        lost.update(range(each.first_offset, each.last_offset + 1))
    return lost


def quarantined(store: MemoryStore, tmp_path: Path, **options: object) -> tuple[list[int], list[Damage]]:
    query = a_query(on_corrupt="quarantine", quarantine_path=str(tmp_path / "side"), **options)
    return offsets(store, query), read_quarantine(DirectoryStore(tmp_path / "side"))


def read_quarantine(store: ObjectStore) -> list[Damage]:
    """Everything that scans have listed there."""
    return [Damage(**json.loads(line)) for info in store.list("") for line in store.get(info.key)[0].splitlines()]
