"""How a time is shown, whoever wrote it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater_core.clock import exact_time_text, time_text

ROOT = Path(__file__).parents[2]
PACKAGES = ("archival", "headwater", "headwater_core", "hydration", "manifests", "pyspark_headwater", "recovery")
OF_THIS_MACHINE = {  # its clock, which counts nanoseconds in 64 bits, never goes beyond the year 2262
    "headwater/admin/operations.py",
    "headwater/drill/cron_schedule.py",
}


@given(st.integers(-(2**63), 2**63 - 1))
@example(-62_135_596_800_000)
@example(-62_135_596_800_001)
@example(253_402_300_799_999)
@example(253_402_300_800_000)
def test_each_int64_can_be_shown_and_read_again(time_ms: int) -> None:
    text, exact = time_text(time_ms), exact_time_text(time_ms)
    if text == exact == str(time_ms):
        assert not -62_135_596_800_000 <= time_ms < 253_402_300_800_000
        return
    assert datetime.fromisoformat(text) <= datetime.fromisoformat(exact)
    since = datetime.fromisoformat(exact) - datetime(1970, 1, 1, tzinfo=UTC)
    assert (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000 == time_ms


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (1_769_860_800_250, "2026-01-31T12:00:00Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00Z"),
        (1_795_824_284_378_000, "1795824284378000"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
    ],
)
def test_what_is_no_date_is_shown_as_a_number(time_ms: int, text: str) -> None:
    assert time_text(time_ms) == text


def test_a_number_from_outside_becomes_a_date_in_one_place() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "fromtimestamp(" in path.read_text()
    }
    assert found == OF_THIS_MACHINE
