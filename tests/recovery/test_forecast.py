"""What a recovery will take."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from headwater_core.errors import TransientError
from recovery.forecast import TimeRange, estimate, time_range
from recovery.recovery_plan import Forecast
from recovery.restoration import WORKERS
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.interrupted import Failing
from tests.recovery.plans import ENTRIES, a_head, a_topic, planned
from tests.recovery.written_archive import Archive, plain


class Slow(MemoryStore):
    """A request takes 100 ms, and each byte one more."""

    def __init__(self, other: MemoryStore, clock: ManualClock) -> None:
        self.__dict__ = dict(other.__dict__)
        self.clock = clock

    def stat(self, key: str):  # type: ignore[no-untyped-def]
        self.clock.advance(100)
        return super().stat(key)

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        self.clock.advance(100 + len(buffer))
        return super().read_into(key, buffer, start=start)


def test_room_and_time_are_those_of_what_comes_back(tmp_path: Path) -> None:
    archive, clock = Archive(), ManualClock()
    entries = archive.topic("orders", [plain(0, 5)], [plain(5, 50)])
    size_bytes = sum(each.live_bytes for each in entries)
    found = estimate(archive.plan(), Slow(archive.store, clock), tmp_path / "not" / "there", clock)
    assert found.bytes_per_s is not None
    assert round(found.bytes_per_s) == 1000
    assert found.seconds is not None
    assert abs(found.seconds - (2 * 0.1 + size_bytes / 1000) / WORKERS) < 0.01
    assert size_bytes < found.needed_bytes < size_bytes + 200
    assert found.free_bytes is not None
    assert abs(found.free_bytes - shutil.disk_usage(tmp_path).free) < 1 << 30
    assert found.has_room
    assert not replace(found, free_bytes=found.needed_bytes - 1).has_room
    assert estimate(archive.plan(mode="instant"), archive.store, None, clock) == Forecast(0, None, None, None)


def test_a_store_that_does_not_answer_says_no_time() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    plan = archive.plan()
    found = estimate(plan, Failing(archive.store, TransientError("timed out"), 0), None, ManualClock())
    assert (found.seconds, found.bytes_per_s) == (None, None)
    assert found.needed_bytes > 0


def test_the_time_of_what_comes_back_is_not_that_of_what_stays_away() -> None:
    [topic] = planned(a_topic(a_head(*ENTRIES))).topics
    assert time_range(topic) == TimeRange(0, 500)
    [part] = planned(a_topic(a_head(*ENTRIES)), mode="partial", keep_bytes=1).topics
    assert time_range(part) == TimeRange(20, 300)
    [none] = planned(a_topic(a_head(*ENTRIES)), mode="instant").topics
    assert time_range(none) is None
