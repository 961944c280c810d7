from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from archival.collection.sightings import AHEAD_MS, Seen, Sightings
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


@dataclass(slots=True)
class SetClock(ManualClock):
    """A wall clock that people set."""

    ahead_ms: int = 0

    def now_ms(self) -> int:
        return self.at_ms + self.ahead_ms


def test_time_that_a_clock_was_put_ahead_has_not_passed(tmp_path: Path) -> None:
    clock = SetClock()
    sightings = Sightings(tmp_path, clock, "first")

    def age_ms() -> int:
        return clock.now_ms() - sightings.see(PARTITION, Seen.ORPHAN, {"a"})["a"]

    assert age_ms() == 0
    clock.advance(10_000)
    clock.ahead_ms = 3_600_000
    assert age_ms() == 10_000
    clock.advance(10_000)
    assert age_ms() == 20_000
    clock.ahead_ms += 3_600_000
    sightings = Sightings(tmp_path, clock, "first")  # the agent is started again
    assert age_ms() == 20_000
    for _ in range(5):
        clock.ahead_ms += AHEAD_MS // 2
        age_ms()
    assert age_ms() < 20_000 + AHEAD_MS
    clock.ahead_ms = 0
    assert age_ms() == 0
    clock.ahead_ms = 3_600_000
    assert age_ms() == 0
    clock.ahead_ms = 7_200_000
    sightings = Sightings(tmp_path, clock, "second")  # so is the machine, and its monotonic clock begins anew
    assert age_ms() == 3_600_000


def test_clocks_that_differ_in_milliseconds_write_nothing(tmp_path: Path) -> None:
    clock = SetClock()
    sightings = Sightings(tmp_path, clock)
    sightings.see(PARTITION, Seen.ORPHAN, {"a"})
    [path] = tmp_path.iterdir()
    before = path.stat().st_ino
    for ahead_ms in (1, -1, 2, 0):
        clock.ahead_ms = ahead_ms
        clock.advance(10)
        sightings.see(PARTITION, Seen.ORPHAN, {"a"})
    assert path.stat().st_ino == before


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


def test_a_flipped_bit_makes_nothing_older_than_it_is(tmp_path: Path) -> None:
    clock = ManualClock()
    began_ms = clock.now_ms()
    Sightings(tmp_path, clock).see(PARTITION, Seen.ORPHAN, {"a"})
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            with capture_logs() as logs:
                sightings = Sightings(tmp_path, clock)
                assert sightings.of(PARTITION, Seen.ORPHAN) == sightings.of(PARTITION, Seen.SUPERSEDED) == {}
            assert [(each["event"], each["path"]) for each in logs] == [("state_file_refused", str(path))]
    path.write_bytes(whole.partition(b"\n")[2])
    assert Sightings(tmp_path, clock).of(PARTITION, Seen.ORPHAN) == {"a": began_ms}, "an older version wrote it"
