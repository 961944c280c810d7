"""Sizes and durations as people write them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.units import duration_text, parse_duration, parse_size, parse_time_ms, size_text
from headwater_core.clock import exact_time_text
from headwater_core.counts import count_text
from headwater_core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("1048576", 1 << 20), ("4MiB", 4 << 20), ("20GiB", 20 << 30), ("20 gb", 20 * 10**9), ("1.5KiB", 1536), ("7B", 7)],
)
def test_sizes_as_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("24h", 86400), ("1 h 5 m", 3900), ("1m30s", 90), ("250ms", 0.25), ("1.5s", 1.5), ("7d", 604800), ("2w", 1209600)],
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "GiB", "-1MiB", "1 2", "4 mebi", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "30", "h", "-1s", "1 h 5", "1 h m", "1 h, 5 m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


@given(st.integers(0, 1 << 50))
def test_a_size_reads_back_to_within_its_precision(size_bytes: int) -> None:
    assert abs(parse_size(size_text(size_bytes)) - size_bytes) <= max(size_bytes * 0.06, 1)


@given(st.integers(0, 1 << 40))
def test_a_duration_reads_back_to_within_its_precision(seconds: int) -> None:
    assert abs(parse_duration(duration_text(seconds)) - seconds) <= max(seconds * 0.05, 0.1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.2 s"), (59.9, "59.9 s"), (61, "1 m 1 s"), (7500, "2 h 5 m"), (90000, "1 d 1 h"), (3600, "1 h"), (172801, "2 d")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_one_of_a_thing_is_no_plural() -> None:
    assert [count_text(count, "object") for count in range(3)] == ["0 objects", "1 object", "2 objects"]


@given(st.integers(0, 4_000_000_000_000))
@example(1_089_410_982_462)  # as seconds in a float it is a little earlier
def test_a_time_is_known_to_the_millisecond(time_ms: int) -> None:
    text = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).isoformat()
    assert parse_time_ms(text) == parse_time_ms(exact_time_text(time_ms)) == time_ms
