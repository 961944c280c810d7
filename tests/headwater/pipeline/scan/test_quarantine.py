"""The side table: who lists what, and once."""

import json
from pathlib import Path

from tests.headwater.pipeline.scan.damageable import flipped, overwrite, position_of, quarantined
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.hydration.world import Archive


def test_the_side_table_is_the_same_after_a_second_run(store: MemoryStore, archive: Archive, tmp_path: Path) -> None:
    store.delete(archive.head.entries[1].key)
    first = quarantined(store, tmp_path)
    assert quarantined(store, tmp_path) == first
    (path,) = (tmp_path / "side").glob("*.jsonl")
    assert [json.loads(line)["first_offset"] for line in path.read_text().splitlines()] == [100]


def test_damage_is_listed_by_the_task_whose_offsets_it_takes(store: MemoryStore, archive: Archive, tmp_path: Path) -> None:
    key = archive.head.entries[1].key
    overwrite(store, key, flipped(position_of(store, key, 157) + 5_000))
    found, damage = quarantined(store, tmp_path, split_bytes=30_000)
    assert [(each.first_offset, each.last_offset) for each in damage] == [(157, 157)]
    assert found == [offset for offset in range(300) if offset != 157]
