"""One rule for badly dated records (design.md, section 4), wherever a time decides: each decision against a model that knows the records,
and mistakes in the rule, each of which the model must notice."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import msgspec
import pytest
import structlog

from archival.config import ArchivalConfig
from archival.plan.trim import expired_to
from headwater.pipeline.scan.archive_snapshot import offset_for_time
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from recovery.cut import _partition_cut
from recovery.entry_list import EntryList
from recovery.local_part import PartBounds, select_part
from recovery.planner import plan_partition
from recovery.requested_ends import end_offset_at
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_batch, a_record
from tests.hydration.world import Archive

SEEDS = range(60)
T0 = 1_700_000_000_000
FAR_MS = (2**62, 1000 * T0, T0 + 365 * 86_400_000)  # no clock, microseconds, a year ahead
Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Run:
    """One archived run: the times of its records, a batch for each, and when it was published."""

    first: int
    times: tuple[int, ...]
    published_ms: int

    @property
    def end(self) -> int:
        return self.first + len(self.times)

    @property
    def newest_ms(self) -> int:
        return max(min(time, self.published_ms) for time in self.times)

    def retained_from_ms(self, now_ms: int) -> int:
        return min(max(self.times), self.published_ms) if max(self.times) > now_ms else max(self.times)


class Log:
    """A log whose clock rises; some of its records are dated ahead."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.runs: list[Run] = []
        now_ms, offset = T0, 0
        for _ in range(random.randint(2, 7)):
            times = []
            for _ in range(random.randint(1, 4)):
                now_ms += random.randint(0, 1000)
                times.append(random.choice((*FAR_MS, now_ms + 50_000)) if random.random() < 0.2 else now_ms)
            now_ms += random.randint(1, 500)
            self.runs.append(Run(offset, tuple(times), now_ms))
            offset += len(times)
        self.now_ms = now_ms + random.randint(0, 5000)
        self.store = MemoryStore()
        archive = Archive(self.store)
        for run in self.runs:
            archive.append(b"".join(a_batch(at, [a_record(at, timestamp=time)]) for at, time in enumerate(run.times, run.first)))
        listed = zip(archive.head.entries, self.runs, strict=True)
        self.entries: list[Entry] = [msgspec.structs.replace(entry, published_ms=run.published_ms) for entry, run in listed]
        self.head: Head = msgspec.structs.replace(archive.head, entries=EntryTree(self.entries))

    def moment(self) -> int:
        """A time within what was written, or shortly before or after it."""
        return self.random.randint(T0 - 10, self.now_ms + 10)

    def records(self) -> Iterator[tuple[int, int, bool]]:
        """Offset, time, and is it dated later than it was published?"""
        for run in self.runs:
            for offset, time in enumerate(run.times, run.first):
                yield offset, time, time > run.published_ms

    def differences(self) -> Iterator[str]:
        """The decisions that are not the model's."""
        end = self.head.next_offset
        for _ in range(4):
            time = self.moment()
            found = next((offset for offset, at, late in self.records() if at >= time and not late), None)
            late_ones = next((offset for offset, at, late in self.records() if at >= time and late), None)
            if offset_for_time(self.store, self.head, time, end) != found:
                yield "where a scan ends"
            if offset_for_time(self.store, self.head, time, end, starting=True) != (late_ones if found is None else found):
                yield "where a scan begins"
            if end_offset_at(self.head, time, self.store) != next((at for at, t, late in self.records() if t > time and not late), end):
                yield "where --to-time ends a log"
            age_ms = 1000 * self.random.randint(1, (self.now_ms - T0) // 1000 + 2)
            settings = ArchivalConfig(retention_s=age_ms // 1000)
            if self.expired(age_ms) != expired_to(self.head, settings, self.now_ms, lambda entry: entry.published_ms or 0):
                yield "what retention lets go"
            since_ms = max(run.newest_ms for run in self.runs) - age_ms
            part = select_part(self.head, PartBounds(mode="partial", keep_ms=age_ms))
            if part.entries[0].base_offset != next(run.first for run in self.runs if run.newest_ms >= since_ms):
                yield "what --keep-ms brings back"
        yield from self.losses()

    def expired(self, age_ms: int) -> int:
        start = 0
        for run in self.runs[:-1]:
            if run.retained_from_ms(self.now_ms) >= self.now_ms - age_ms:
                break
            start = run.end
        return start

    def losses(self) -> Iterator[str]:
        newest_ms = max(run.newest_ms for run in self.runs)
        whole = plan_partition(self.head)
        cut = _partition_cut("soup", whole, whole.next_offset, self.now_ms)
        if (cut.rpo_ms, cut.last_timestamp_ms) != (max(self.now_ms, newest_ms) - newest_ms, newest_ms):
            yield "what is lost before the snapshot"
        kept = self.random.randint(1, len(self.runs))
        shortened = msgspec.structs.replace(whole, entries=EntryList.of(self.entries[:kept]), next_offset=self.runs[kept - 1].end)
        back_ms = max(run.newest_ms for run in self.runs[:kept])
        if _partition_cut("soup", shortened, whole.next_offset, None).rpo_ms != newest_ms - back_ms:
            yield "what a recovery leaves out"


def differences(seed: int) -> list[str]:
    with structlog.testing.capture_logs():
        return list(Log(seed).differences())


@pytest.mark.parametrize("seed", SEEDS)
def test_badly_dated_records_decide_nothing_for_others(seed: int) -> None:
    assert differences(seed) == []


def late_records_count_as_they_say(patch: Patch) -> None:
    for module in ("entry", "page"):
        patch.setattr(f"manifests.{module}.newest_time", lambda last_ms, published_ms: last_ms)


def no_record_is_late(patch: Patch) -> None:
    patch.setattr(Entry, "is_late", lambda self, time_ms: False)


def what_is_as_young_as_its_publication_is_late(patch: Patch) -> None:
    patch.setattr(Entry, "is_late", lambda self, time_ms: self.published_ms is not None and time_ms >= self.published_ms - 400)


def retention_believes_the_future(patch: Patch) -> None:
    patch.setattr(Entry, "retained_from_ms", lambda self, now_ms: self.last_timestamp_ms)


def everything_is_as_old_as_its_publication(patch: Patch) -> None:
    for module in ("entry", "page"):
        patch.setattr(f"manifests.{module}.newest_time", lambda last_ms, published_ms: published_ms if last_ms is not None else None)


def a_plan_knows_raw_times(patch: Patch) -> None:
    honest: Callable[..., object] = plan_partition

    def raw(head: Head) -> object:
        times = [entry.last_timestamp_ms for entry in head.entries if entry.last_timestamp_ms is not None]
        return msgspec.structs.replace(honest(head), newest_ms=max(times, default=None))  # type: ignore[type-var]

    patch.setattr("tests.recovery.test_dated_records.plan_partition", raw)


MISTAKES = (
    late_records_count_as_they_say,
    no_record_is_late,
    what_is_as_young_as_its_publication_is_late,
    retention_believes_the_future,
    everything_is_as_old_as_its_publication,
    a_plan_knows_raw_times,
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: str(mistake.__name__))
def test_a_mistake_in_the_rule_is_noticed(mistake: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    assert any(differences(seed) for seed in SEEDS)
