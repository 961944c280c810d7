"""What was restored against live logs: another log directory takes the live cluster's place here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from archival.plan.policy import Policy
from headwater.drill.drill_report import Amount, DrillOutcome, DrillReport, DrillRequest
from headwater.drill.drill_run import carry_out, prepare
from headwater.drill.equipment import DrillEquipment
from headwater.drill.read_path import DirectoryReadPath, PathBounds, open_directory
from headwater.drill.scratch import open_scratch
from headwater.drill_text import report_text
from headwater_core.clock import SystemClock
from headwater_core.errors import HeadwaterError, TransientError
from headwater_core.partition import TopicPartition
from headwater_core.segments.batches import read_batch_header
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive

ID = "20260131T120000.123Z-9f86d081"


class LiveDirectory:
    """starts: of logs that the broker has shortened; ids: of topics that were created again; lacking: batches that are not there;
    more: partitions that topics have besides; mute: topics that say nothing of their ends"""

    name = "live cluster"

    def __init__(self, path: DirectoryReadPath, cluster_id: str) -> None:
        self._path, self.cluster_id = path, cluster_id
        self.starts: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        self.lacking: set[tuple[str, int]] = set()
        self.silent_at: int | None = None
        self.more: dict[str, int] = {}
        self.mute: set[str] = set()

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
        return {
            place: 7 if place.partition >= self._count(place.topic) else self._path.bounds(place).end
            for place in places
            if place.topic not in self.mute
        }

    def partitions(self, topic: str) -> int:
        return self._count(topic) + self.more.get(topic, 0)

    def _count(self, topic: str) -> int:
        return len(self._path._logs.topics()[topic].partitions)

    def first_timestamp_ms(self, place: TopicPartition, offset: int) -> int | None:
        if place.partition >= self._count(place.topic):
            return None
        found = next(self._path.batches(place, offset, 10**9), None)
        return None if found is None else read_batch_header(found).max_timestamp_ms


@contextmanager
def pantry(tmp_path: Path) -> Iterator[LiveDirectory]:
    work = tmp_path / "live"
    work.mkdir()
    with open_directory(unpack("pantry"), work) as path:
        yield LiveDirectory(path, path._logs.cluster_id)


def drill(
    live: LiveDirectory,
    tmp_path: Path,
    policy: Policy | None = None,
    error: HeadwaterError | None = None,
    *,
    needs_live: bool = False,
    opening: Callable[[MemoryStore], object] = lambda _: None,
) -> DrillReport:
    """opening: what happens to the bucket when the live cluster's turn has come"""
    store = MemoryStore(SystemClock())
    archive(unpack("pantry"), store, policy=policy or Policy(tail_after_ms=0))

    @contextmanager
    def opened() -> Iterator[LiveDirectory]:
        if error is not None:
            raise error
        opening(store)
        yield live

    equipment = DrillEquipment(store=store, clock=SystemClock(), version="1", live=opened, needs_live=needs_live)
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


@pytest.mark.parametrize("how", ["refuses", "is another cluster", "has other topics", "has begun anew"])
def test_a_requested_comparison_that_compared_nothing_is_no_pass(how: str, tmp_path: Path) -> None:
    with pantry(tmp_path) as live:
        if how == "is another cluster":
            live.cluster_id = "other"
        if how == "has other topics":
            live.ids = dict.fromkeys(live._path._logs.topics(), "le4ruHkrRAmAJUx9PH5t3A")
        if how == "has begun anew":
            live.starts = dict.fromkeys(live._path._logs.topics(), 10**6)
        report = drill(live, tmp_path, error=TransientError("connection refused") if how == "refuses" else None, needs_live=True)
    assert report.outcome is DrillOutcome.INCOMPLETE
    [said] = report.unmet
    assert said.startswith("live cluster: nothing was compared: ")
    wanted = {"refuses": "connection refused", "is another cluster": "cluster other", "has other topics": "le4ruHkrRAmAJUx9PH5t3A"}
    assert wanted.get(how, "the live log begins at offset") in said
    assert said in report_text(report)


def test_the_recovery_point_names_each_partition_that_it_does_not_measure(tmp_path: Path) -> None:
    with pantry(tmp_path) as live:
        live.ids, live.mute, live.more = {"refunds": "le4ruHkrRAmAJUx9PH5t3A"}, {"recipes.lz4"}, {"cookbook.1990": 2}
        report = drill(live, tmp_path)
    rpo = report.rpo
    assert {each.topic: each.numbers for each in rpo.unmeasured} == {"refunds": "0", "recipes.lz4": "0-1"}
    assert rpo.partitions + sum(each.partitions for each in rpo.unmeasured) == report.partitions + 2
    assert [(lag.topic, lag.archived_end, lag.live_end) for lag in rpo.worst] == [("cookbook.1990", 0, 7)] * 2  # unknown to the archive
    assert rpo.worst_s is None
    assert "not measured     refunds:0: the live topic has id le4ruHkrRAmAJUx9PH5t3A" in report_text(report)


def test_without_the_end_of_any_live_log_no_recovery_point_is_claimed(tmp_path: Path) -> None:
    with pantry(tmp_path) as live:
        live.mute = set(live._path._logs.topics())
        report = drill(live, tmp_path)
    assert report.rpo.source == "archive alone"
    assert "does not say where its log ends" in report.rpo.why
    assert sum(each.partitions for each in report.rpo.unmeasured) == report.partitions


def test_a_compacted_live_log_that_has_nothing_left_was_not_compared(tmp_path: Path) -> None:
    with pantry(tmp_path) as live:
        batches = live._path.batches(TopicPartition("fridge-state", 0), 0, 10**9)
        live.lacking = {("fridge-state", read_batch_header(batch).base_offset) for batch in batches}
        report = drill(live, tmp_path)
    [window] = [each for each in report.windows if each.topic == "fridge-state"]
    assert window.by["live cluster"] == Amount()
    assert window.live.startswith("0 of ")


def test_a_store_that_fails_meanwhile_is_no_silence_of_the_cluster(tmp_path: Path) -> None:
    def fail(store: MemoryStore) -> None:
        def failing(*_: object, **__: object) -> int:
            raise TransientError("throttled")

        store.read_into = failing  # type: ignore[method-assign, assignment]

    with pantry(tmp_path) as live, pytest.raises(TransientError, match="throttled"):
        drill(live, tmp_path, opening=fail)


def test_damage_that_shows_only_now_is_found_all_the_same(tmp_path: Path) -> None:
    def flip(store: MemoryStore) -> None:
        key = min(info.key for info in store.list("data/") if info.key.endswith(".log"))
        raw = bytearray(store.get(key)[0])
        raw[-1] ^= 1
        store.delete(key)
        store.create(key, bytes(raw))

    with pantry(tmp_path) as live:
        report = drill(live, tmp_path, opening=flip)
    assert report.outcome is DrillOutcome.FAILED
    assert [each.kind for each in report.findings] == ["damaged"]


def test_a_difference_stays_one_while_the_live_log_begins_later(tmp_path: Path) -> None:
    """Only what the log has lost since is none."""
    with pantry(tmp_path) as live:
        place = TopicPartition("cookbook.1990", 0)
        offsets = [read_batch_header(batch).base_offset for batch in live.batches(place, 0, 10**9)]
        live.lacking = {("cookbook.1990", offsets[-1])}
        bounds = live.bounds

        def moving(of: TopicPartition) -> PathBounds:
            found = bounds(of)
            live.starts = {"cookbook.1990": offsets[1]}
            return found

        live.bounds = moving  # type: ignore[method-assign, assignment]
        report = drill(live, tmp_path)
    assert [(each.kind, each.offset) for each in report.findings] == [("live differs", offsets[-1])]
