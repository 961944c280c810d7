from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.drill.cron_schedule import CronSchedule, due_ms
from headwater_core.errors import UsageError

MINUTE_MS = 60_000
DAY_MS = 86_400_000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    ("schedule", "after", "due"),
    [
        ("* * * * *", "2026-01-31 23:59:59", "2026-02-01 00:00:00"),
        ("* * * * *", "2026-01-31 23:59:00", "2026-02-01 00:00:00"),
        ("0 3 * * *", "2026-01-31 02:59:59", "2026-01-31 03:00:00"),
        ("0 3 * * *", "2026-01-31 03:00:00", "2026-02-01 03:00:00"),
        ("0 3 * * 0", "2026-01-31 12:00:00", "2026-02-01 03:00:00"),
        ("0 3 * * 7", "2026-01-31 12:00:00", "2026-02-01 03:00:00"),
        ("0 3 * * sun", "2026-02-01 03:00:00", "2026-02-08 03:00:00"),
        ("@weekly", "2026-02-01 00:00:00", "2026-02-08 00:00:00"),
        ("30 4 1,15 * 5", "2026-01-02 05:00:00", "2026-01-09 04:30:00"),  # a Friday: either list of days
        ("30 4 1,15 * 5", "2026-01-09 05:00:00", "2026-01-15 04:30:00"),
        ("30 4 1,15 * *", "2026-01-02 05:00:00", "2026-01-15 04:30:00"),
        ("0 0 */10 * 5", "2026-01-02 00:00:00", "2026-05-01 00:00:00"),  # a list that begins with * restricts the other
        ("*/20 8-9 * * 1-5", "2026-01-30 09:40:00", "2026-02-02 08:00:00"),
        ("5/30 * * * *", "2026-01-30 09:06:00", "2026-01-30 09:35:00"),
        ("0 0 29 feb *", "2026-01-01 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 29 feb *", "2096-03-01 00:00:00", "2104-02-29 00:00:00"),
        ("0 0 31 * *", "2026-01-31 00:00:00", "2026-03-31 00:00:00"),
        ("59 23 31 12 *", "2026-12-31 23:59:00", "2027-12-31 23:59:00"),
        ("0 12 1 jan-mar,DEC *", "2026-03-01 12:00:00", "2026-12-01 12:00:00"),
    ],
)
def test_the_next_time(schedule: str, after: str, due: str) -> None:
    assert text(CronSchedule.parse(schedule).next_ms(ms(after))) == due


@pytest.mark.parametrize(
    "schedule",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *", "*/0 * * * *"),
        *("-1 * * * *", "a * * * *", "1,,2 * * * *", "1.5 * * * *", "*-5 * * * *", "@reboot", "0 0 30 feb *", "² * * * *", "100 * * * *"),
    ],
)
def test_what_is_no_schedule_or_never_comes_due_is_refused(schedule: str) -> None:
    with pytest.raises(UsageError):
        CronSchedule.parse(schedule)


LISTS = st.tuples(
    st.sampled_from(["*", "0", "*/7", "13,44", "50-59"]),
    st.sampled_from(["*", "0", "23", "*/5", "1-3"]),
    st.sampled_from(["*", "1", "28", "*/9", "3,30"]),
    st.sampled_from(["*", "2", "feb,nov", "*/4"]),
    st.sampled_from(["*", "0", "mon-wed", "6"]),
)


@given(LISTS, st.integers(0, 4_000_000_000_000))
def test_between_two_times_there_is_no_third(fields: tuple[str, ...], after_ms: int) -> None:
    schedule = CronSchedule.parse(" ".join(fields))
    due = schedule.next_ms(after_ms)
    assert after_ms < due
    assert due % MINUTE_MS == 0
    for between in (after_ms + 1, (after_ms + due) // 2, due - 1):
        if after_ms < between < due:
            assert schedule.next_ms(between) == due


def test_what_was_missed_is_made_up_for_by_one_run() -> None:
    daily, since = CronSchedule.parse("0 3 * * *"), ms("2026-01-01 03:00:00")
    assert due_ms(daily, since, ms("2026-01-02 02:59:59")) is None
    assert due_ms(daily, since, ms("2026-01-02 03:00:00")) == ms("2026-01-02 03:00:00")
    due = due_ms(daily, since, ms("2026-01-09 17:00:00"))
    assert due == ms("2026-01-09 03:00:00")
    assert due_ms(daily, due, ms("2026-01-09 17:00:01")) is None


def test_of_years_that_were_missed_not_every_minute_is_counted() -> None:
    always = CronSchedule.parse("* * * * *")
    now = ms("2036-01-01 00:00:30")
    assert due_ms(always, 0, now) == now
    assert due_ms(always, now, now) is None
