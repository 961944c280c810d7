"""The order in which retention takes what is not archived."""

import struct
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archival.plan import retention_deadline
from archival.plan.retention_deadline import counted_from_ms, deadline_ms, too_near_ms
from headwater_core.segments.index_hints import TimeHint, largest_timestamp
from headwater_core.segments.local_log import Generation, LocalLog
from headwater_core.segments.metadata.cluster_metadata import Retention
from tests.archival.builders import a_log


def aged(*written_ms: int, retention: Retention | None) -> LocalLog:
    """Segments of ten records and 100 bytes, last written to at these times."""
    log = a_log(*range(0, 10 * len(written_ms), 10), hw=10 * len(written_ms))
    stamped = zip(log.segments, written_ms, strict=True)
    return replace(log, retention=retention, segments=tuple(replace(each, generation=Generation(1, ms * 10**6)) for each, ms in stamped))


def test_by_age_the_first_segment_that_is_not_archived_counts() -> None:
    log = aged(1000, 2000, 3000, retention=Retention(500, None))
    assert [deadline_ms(log, offset) for offset in (0, 9, 10, 25)] == [1500, 1500, 2500, 3500]


def test_by_size_it_is_due_when_enough_lies_after_it() -> None:
    """The log grew by 300 bytes in 3,000 ms; 200 lie after the first segment."""
    assert deadline_ms(aged(1000, 2000, 4000, retention=Retention(None, 250)), 0) == 4000 + 500
    assert deadline_ms(aged(1000, 2000, 4000, retention=Retention(None, 100)), 0) == 4000 - 1000  # overdue


def test_the_earlier_limit_counts() -> None:
    assert deadline_ms(aged(1000, 2000, 4000, retention=Retention(10_000, 250)), 0) == 4500
    assert deadline_ms(aged(1000, 2000, 4000, retention=Retention(100, 250)), 0) == 1100


@pytest.mark.parametrize("retention", [None, Retention(None, None)])
def test_without_retention_there_is_no_deadline(retention: Retention | None) -> None:
    assert deadline_ms(aged(1000, 2000, retention=retention), 0) is None


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8).map(sorted), st.integers(1, 10**6), st.none() | st.integers(0, 2000))
def test_what_comes_later_in_a_log_is_never_due_earlier(written_ms: list[int], age_ms: int, size_bytes: int | None) -> None:
    log = aged(*written_ms, retention=Retention(age_ms, size_bytes))
    due = [deadline_ms(log, offset) for offset in range(0, 10 * len(written_ms), 10)]
    assert all(before is not None and after is not None and before <= after for before, after in pairwise(due))


def test_of_some_more_segments_than_are_remembered_most_indexes_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = aged(*[9000] * 71, retention=None)
    segments = [replace(each, directory=tmp_path) for each in log.segments[:-1]]
    for at, each in enumerate(segments):
        each.path.with_suffix(".timeindex").write_bytes(struct.pack(">qi", at, 9))
    reads = 0

    def counted(path: Path, base_offset: int) -> TimeHint | None:
        nonlocal reads
        reads += 1
        return largest_timestamp(path, base_offset)

    monkeypatch.setattr(retention_deadline, "largest_timestamp", counted)
    monkeypatch.setattr(retention_deadline, "_known", retention_deadline._KnownTimes())
    monkeypatch.setattr(retention_deadline, "_KNOWN_MAX", 64)
    for rounds in range(6):
        before = reads
        assert [counted_from_ms(each) for each in segments] == list(range(70))
        assert reads - before <= (70 if rounds == 0 else 30)
    assert len(retention_deadline._known._times) == 64


@pytest.mark.parametrize(
    ("age_ms", "now_ms", "left_ms"),
    [
        (10_000_000, 8_000_000, None),  # less than nine tenths have passed
        (10_000_000, 9_500_000, 500_000),
        (10_000_000, 10_000_100, -100),
        (1_000_000_000, 990_000_000, None),  # a tenth would be more than a day
        (1_000_000_000, 999_000_000, 1_000_000),
        (30_000, 0, 30_000),  # at least a minute
        (None, 10_000_000, None),
    ],
)
def test_a_deadline_is_near_within_a_tenth_of_the_retention_time(age_ms: int | None, now_ms: int, left_ms: int | None) -> None:
    log = aged(0, 0, retention=Retention(age_ms, None))
    assert too_near_ms(log, 5, now_ms) == left_ms
    assert too_near_ms(log, 20, now_ms) is None  # all is archived
