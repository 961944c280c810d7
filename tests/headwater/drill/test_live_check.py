"""What was restored against live logs: another log directory takes the live cluster's place here."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from archival.plan.policy import Policy
from headwater.drill.drill_report import DrillOutcome, DrillReport, DrillRequest
from headwater.drill.drill_run import carry_out, prepare
from headwater.drill.equipment import DrillEquipment
from headwater.drill.read_path import DirectoryReadPath, PathBounds, open_directory
from headwater.drill.scratch import open_scratch
from headwater_core.clock import SystemClock
from headwater_core.errors import HeadwaterError, TransientError
from headwater_core.partition import TopicPartition
from headwater_core.segments.batches import read_batch_header
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive

ID = "20260131T120000.123Z-9f86d081"


class LiveDirectory:
    """starts: of logs that the broker has shortened; ids: of topics that were created again; damage: offsets at which a byte is another"""

    name = "live cluster"

    def __init__(self, path: DirectoryReadPath, cluster_id: str) -> None:
        self._path, self.cluster_id = path, cluster_id
        self.starts: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        self.lacking: set[tuple[str, int]] = set()
        self.silent_at: int | None = None

    def topic_id(self, topic: str) -> str | None:
        return self.ids.get(topic, self._path.topic_id(topic))

    def bounds(self, place: TopicPartition) -> PathBounds:
        found = self._path.bounds(place)
        return PathBounds(max(found.start, self.starts.get(place.topic, 0)), found.end)

    def batches(self, place: TopicPartition, first: int, end: int) -> Iterator[bytes]:
        for batch in self._path.batches(place, first, end):
            if self.silent_at is not None and read_batch_header(batch).next_offset > self.silent_at:
                raise TransientError("timed out")
            if (place.topic, read_batch_header(batch).base_offset) not in self.lacking:
                yield batch

    def ends(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: self._path.bounds(place).end for place in places}

    def first_timestamp_ms(self, place: TopicPartition, offset: int) -> int | None:
        found = next(self._path.batches(place, offset, 10**9), None)
        return None if found is None else read_batch_header(found).max_timestamp_ms


@contextmanager
def pantry(tmp_path: Path) -> Iterator[LiveDirectory]:
    work = tmp_path / "live"
    work.mkdir()
    with open_directory(unpack("pantry"), work) as path:
        yield LiveDirectory(path, path._logs.cluster_id)


def drill(live: LiveDirectory, tmp_path: Path, policy: Policy | None = None, error: HeadwaterError | None = None) -> DrillReport:
    store = MemoryStore(SystemClock())
    archive(unpack("pantry"), store, policy=policy or Policy(tail_after_ms=0))

    @contextmanager
    def opened() -> Iterator[LiveDirectory]:
        if error is not None:
            raise error
        yield live

    equipment = DrillEquipment(store=store, clock=SystemClock(), version="1", live=opened)
    prepared = prepare(equipment, DrillRequest(topics=None), ID)
    with open_scratch(tmp_path / "scratch", ID) as scratch:
        return carry_out(equipment, prepared, scratch)


def test_the_live_logs_hold_what_was_archived_and_nothing_is_lost(tmp_path: Path) -> None:
    with pantry(tmp_path) as live:
        report = drill(live, tmp_path)
    assert (report.outcome, report.findings) == (DrillOutcome.PASSED, ())
    sums = {each.name: each.amount for each in report.paths}
    assert sums["live cluster"].records == sums["headwater"].records > 0
    assert (report.rpo.source, report.rpo.behind, report.rpo.worst_s) == ("live cluster", 0, 0.0)


def test_what_is_not_archived_yet_would_be_lost_and_is_counted(tmp_path: Path) -> None:
    with pantry(tmp_path) as live:
        report = drill(live, tmp_path, Policy())  # sealed segments alone
    assert report.outcome in (DrillOutcome.PASSED, DrillOutcome.INCOMPLETE)
    assert report.rpo.behind > 0
    assert report.rpo.records >= report.rpo.worst[0].records > 0
    assert report.rpo.worst_s is not None
    assert report.rpo.worst_s > 0


def test_what_the_broker_deleted_is_not_compared_and_it_is_said_why(tmp_path: Path) -> None:
    with pantry(tmp_path) as live:
        live.starts = {"cookbook.1990": 100, "refunds": 49}
        report = drill(live, tmp_path)
    whys = {each.topic: each.live for each in report.windows if each.live}
    assert whys == {"cookbook.1990": "the live log begins at offset 100", "refunds": "the live log begins at offset 49"}
    by = {each.topic: each.by for each in report.windows}
    assert 80 <= by["cookbook.1990"]["live cluster"].records < 90  # from the batch that the log begins in
    assert by["refunds"]["live cluster"].records == 0
    assert report.outcome is DrillOutcome.PASSED


def test_a_live_log_that_lacks_a_record_fails_the_drill(tmp_path: Path) -> None:
    with pantry(tmp_path) as live:
        first = read_batch_header(next(live.batches(TopicPartition("recipes.lz4", 0), 0, 1))).next_offset
        live.lacking = {("recipes.lz4", first)}
        report = drill(live, tmp_path)
    assert report.outcome is DrillOutcome.FAILED
    [finding] = report.findings
    assert (finding.kind, finding.topic, finding.partition, finding.offset) == ("live differs", "recipes.lz4", 0, first)


def test_a_compacted_live_log_may_lack_records(tmp_path: Path) -> None:
    with pantry(tmp_path) as live:
        first = read_batch_header(next(live.batches(TopicPartition("fridge-state", 0), 0, 1))).base_offset
        live.lacking = {("fridge-state", first)}
        report = drill(live, tmp_path)
    assert report.outcome is DrillOutcome.PASSED


def test_a_topic_that_was_created_again_is_another_one(tmp_path: Path) -> None:
    with pantry(tmp_path) as live:
        live.ids = {"refunds": "le4ruHkrRAmAJUx9PH5t3A"}
        report = drill(live, tmp_path)
    [window] = [each for each in report.windows if each.topic == "refunds"]
    assert "le4ruHkrRAmAJUx9PH5t3A" in window.live
    assert window.by["live cluster"].runs == 0
    assert report.outcome is DrillOutcome.PASSED


@pytest.mark.parametrize("how", ["refuses", "goes silent", "is another cluster"])
def test_a_cluster_that_does_not_answer_is_no_damage(how: str, tmp_path: Path) -> None:
    with pantry(tmp_path) as live:
        if how == "goes silent":
            live.silent_at = 20
        if how == "is another cluster":
            live.cluster_id = "other"
        report = drill(live, tmp_path, error=TransientError("connection refused") if how == "refuses" else None)
    assert report.outcome is DrillOutcome.PASSED
    [live_sum] = [each for each in report.paths if each.name == "live cluster"]
    assert live_sum.why
    assert any(each.live for each in report.windows)
    if how != "goes silent":
        assert report.rpo.source == "archive alone"
        assert "the live cluster could not be read" in report.rpo.why
