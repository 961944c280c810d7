"""The local tier alone."""

from pathlib import Path

import pytest

from headwater_core.errors import SourceChanged, TransientError
from headwater_core.segments.local_log import Generation, LocalLog, LocalSegment
from hydration.local.local_tier import LocalTier, OpenFiles
from hydration.local.scan_budget import ScanBudget
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import Broker


def a_tier(broker: Broker, clock: ManualClock | None = None) -> LocalTier:
    return LocalTier(broker.look, OpenFiles(), clock or ManualClock())


def test_a_directory_is_looked_at_once_a_second(tmp_path: Path) -> None:
    broker, clock = Broker(tmp_path), ManualClock()
    looks: list[LocalLog] = []

    def look() -> LocalLog:
        looks.append(broker.look())
        return looks[-1]

    tier = LocalTier(look, OpenFiles(), clock)
    for _ in range(5):
        tier.log()
    assert len(looks) == 1
    clock.advance(1_000)
    tier.log()
    assert len(looks) == 2


def test_a_partition_that_was_deleted_is_gone_at_the_next_look(tmp_path: Path) -> None:
    broker, clock = Broker(tmp_path), ManualClock()
    broker.write(0, a_segment(0, 3))
    broker.set_high_watermark(3)
    tier = a_tier(broker, clock)
    log = tier.log()
    assert log is not None
    piece, reached = tier.read(log, 0, 3, 100, ScanBudget())
    assert piece is not None
    assert reached == 1
    piece.slice.file.release()
    broker.directory.rename(tmp_path / "soup-0.0123456789abcdef0123456789abcdef-delete")
    clock.advance(1_000)
    assert tier.log() is None


def test_open_files_are_bounded_shared_and_let_go_when_deleted(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    for base in range(0, 50, 10):
        broker.write(base, a_segment(base, 10))
    segments = broker.look().segments
    files = OpenFiles(files_max=2)
    held = [files.get(segment) for segment in segments]
    assert files.get(segments[4]) is held[4]
    broker.drop(40)
    files.sweep()
    with pytest.raises(SourceChanged):
        files.get(segments[4])
    held[4].release()
    for file in held:
        assert file.read(0, 10)  # holders read on
        file.release()
    files.close()


def test_a_file_replaced_under_its_name_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.write(0, a_segment(0, 3))
    (segment,) = broker.look().segments
    broker.path(0, "log.swap").write_bytes(a_segment(0, 2))
    broker.path(0, "log.swap").rename(broker.path(0))
    with pytest.raises(SourceChanged):
        OpenFiles().get(segment)


def test_a_file_that_cannot_be_opened_is_worth_another_try(tmp_path: Path) -> None:
    loop = tmp_path / f"{0:020}.log"
    loop.symlink_to(loop)
    with pytest.raises(TransientError):
        OpenFiles().get(LocalSegment(base_offset=0, directory=tmp_path, size_bytes=0, generation=Generation(0, 0), is_active=False))


def test_the_end_of_the_log_counts_whole_batches(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.write(0, a_segment(0, 10))
    broker.write(10, a_segment(10, 5) + a_segment(15, 1)[:-1])
    broker.set_high_watermark(12)
    tier = a_tier(broker)
    tier.log()
    assert tier.end_offset(ScanBudget()) == 15


@pytest.mark.parametrize("limit", [14, 15])
def test_a_preallocated_segment_ends_where_its_batches_do(tmp_path: Path, limit: int) -> None:
    broker = Broker(tmp_path)
    broker.write(0, a_segment(0, 10))
    broker.write(10, a_segment(10, 5) + bytes(4096))
    broker.set_high_watermark(limit)
    tier = a_tier(broker)
    log = tier.log()
    assert log is not None
    found, moved = tier.read(log, 10, limit, 1 << 20, ScanBudget())
    assert found is not None
    assert (moved, found.slice.length) == (limit, len(a_segment(10, limit - 10)))
    found.slice.file.release()
    assert tier.end_offset(ScanBudget()) == 15
