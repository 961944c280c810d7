import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from archival.config import ArchivalConfig
from archival.partition.tails import Tails
from headwater_core.errors import TransientError, UsageError
from headwater_core.partition import PartitionId
from tests.archival.builders import PARTITION
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.volatile_disk import VolatileDisk


def test_a_tail_waits_from_when_it_was_first_seen_across_restarts(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "tails.json"
    tails = Tails(path, clock)
    assert tails.age_ms(PARTITION, 10) == 0
    tails.save()
    clock.advance(500)
    assert Tails(path, clock).age_ms(PARTITION, 10) == 500


def test_a_commit_starts_the_clock_again() -> None:
    clock = ManualClock()
    tails = Tails(None, clock)
    tails.age_ms(PARTITION, 10)
    clock.advance(500)
    assert tails.age_ms(PARTITION, 15) == 0


def test_a_forgotten_tail_starts_again() -> None:
    clock = ManualClock()
    tails = Tails(None, clock)
    tails.age_ms(PARTITION, 10)
    tails.forget(PARTITION)
    clock.advance(500)
    assert tails.age_ms(PARTITION, 10) == 0


def test_a_clock_that_went_back_does_not_make_a_tail_wait_for_ever() -> None:
    clock = ManualClock()
    tails = Tails(None, clock)
    tails.age_ms(PARTITION, 10)
    clock.advance(-1000)
    assert tails.age_ms(PARTITION, 10) == 0
    clock.advance(500)
    assert tails.age_ms(PARTITION, 10) == 500


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a": 1}', b"\xff"])
def test_a_damaged_file_only_starts_clocks_again(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "tails.json").write_bytes(raw)
    assert Tails(tmp_path / "tails.json", ManualClock()).age_ms(PARTITION, 10) == 0


def test_a_file_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    tails = Tails(tmp_path / "missing" / "tails.json", ManualClock())
    tails.age_ms(PARTITION, 10)
    with pytest.raises(TransientError, match=r"tails\.json"):
        tails.save()


def test_what_was_saved_survives_a_power_loss(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    disk, clock = VolatileDisk(tmp_path / "data"), ManualClock()
    tails = Tails(tmp_path / "data" / "tails.json", clock)
    tails.age_ms(PARTITION, 10)
    with disk.watching():
        tails.save()
    clock.advance(500)
    assert Tails(disk.after_power_loss(tmp_path / "left") / "tails.json", clock).age_ms(PARTITION, 10) == 500


def test_two_passes_may_save_at_once(tmp_path: Path) -> None:
    tails = Tails(tmp_path / "tails.json", ManualClock())
    places = [PartitionId(PARTITION.cluster_id, PARTITION.topic_id, number, "soup") for number in range(500)]
    for each in places:
        tails.age_ms(each, 1)

    def save(worker: int) -> None:
        for at in range(100):
            tails.age_ms(places[worker], at + 2)
            tails.save()

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(save, range(4)))
    assert len(json.loads((tmp_path / "tails.json").read_bytes())) == 500
    assert [path.name for path in tmp_path.iterdir()] == ["tails.json"]


def test_tails_of_partitions_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "tails.json"
    other = PartitionId(PARTITION.cluster_id, PARTITION.topic_id, 1, "soup")
    tails = Tails(path, clock)
    for each in (PARTITION, other):
        tails.age_ms(each, 10)
    tails.save()
    tails = Tails(path, clock)
    tails.retain([other])
    tails.save()
    clock.advance(500)
    kept = Tails(path, clock)
    assert (kept.age_ms(PARTITION, 10), kept.age_ms(other, 10)) == (0, 500)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="seal_timeout"):
        ArchivalConfig(seal_timeout_s=-1)
    with pytest.raises(UsageError, match="rescan"):
        ArchivalConfig(rescan_s=0)


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[]", b'{"a": {"next_offset": -1, "since_ms": 0}}', b'{"a": {"x": ' + b"[" * 100_000])
def test_a_file_of_nonsense_only_starts_the_clocks_again(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "tails.json").write_bytes(raw)
    assert Tails(tmp_path / "tails.json", ManualClock()).age_ms(PARTITION, 3) == 0
