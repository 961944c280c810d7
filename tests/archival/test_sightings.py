from pathlib import Path

import pytest

from archival.collection.sightings import Seen, Sightings
from headwater_core.errors import DiskFull, HeadwaterError
from tests.archival.builders import PARTITION
from tests.headwater_core.manual_clock import ManualClock


def test_a_name_is_as_old_as_its_first_look_in_a_row(tmp_path: Path) -> None:
    clock = ManualClock()
    sightings = Sightings(tmp_path / "sightings", clock)
    began_ms = clock.now_ms()
    assert sightings.see(PARTITION, Seen.ORPHAN, {"a", "b"}) == {"a": began_ms, "b": began_ms}
    clock.advance(10)
    assert sightings.see(PARTITION, Seen.ORPHAN, {"b", "c"}) == {"b": began_ms, "c": began_ms + 10}
    assert Sightings(tmp_path / "sightings", clock).see(PARTITION, Seen.ORPHAN, {"a", "b"}) == {"a": began_ms + 10, "b": began_ms}


def test_what_is_seen_as_one_thing_says_nothing_of_another(tmp_path: Path) -> None:
    clock = ManualClock()
    sightings = Sightings(tmp_path, clock)
    sightings.see(PARTITION, Seen.SUPERSEDED, {"a"})
    clock.advance(10)
    assert sightings.see(PARTITION, Seen.ORPHAN, {"a"}) == {"a": clock.now_ms()}
    assert sightings.of(PARTITION, Seen.SUPERSEDED) == {"a": clock.now_ms() - 10}


def test_there_is_a_file_only_while_there_is_something_to_remember(tmp_path: Path) -> None:
    sightings = Sightings(tmp_path / "sightings", ManualClock())
    assert sightings.see(PARTITION, Seen.ORPHAN, ()) == {}
    assert not (tmp_path / "sightings").exists()
    sightings.see(PARTITION, Seen.ORPHAN, {"a"})
    sightings.see(PARTITION, Seen.SUPERSEDED, {"b"})
    sightings.see(PARTITION, Seen.ORPHAN, ())
    assert [path.name for path in (tmp_path / "sightings").iterdir()] == [f"{PARTITION.topic_id}-0.json"]
    sightings.see(PARTITION, Seen.SUPERSEDED, ())
    assert list((tmp_path / "sightings").iterdir()) == []


def test_without_a_directory_everything_is_new(tmp_path: Path) -> None:
    clock = ManualClock()
    sightings = Sightings(None, clock)
    sightings.see(PARTITION, Seen.ORPHAN, {"a"})
    clock.advance(10)
    assert sightings.see(PARTITION, Seen.ORPHAN, {"a"}) == {"a": clock.now_ms()}


def test_a_full_disk_keeps_what_was_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    sightings = Sightings(tmp_path, clock)
    before = sightings.see(PARTITION, Seen.ORPHAN, {"a"})

    def full(*_: object) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr("archival.collection.sightings.replace_file", full)
    with pytest.raises(HeadwaterError):
        sightings.see(PARTITION, Seen.ORPHAN, {"a", "b"})
    assert sightings.of(PARTITION, Seen.ORPHAN) == before
