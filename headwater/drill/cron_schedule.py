"""When a schedule in crontab's five fields comes due, in UTC: no hour is there twice, and none is missing. Pure."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headwater_core.errors import UsageError

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
YEARS_MAX = 9  # 29 February may be eight years away, around 2100
_ITEM = re.compile(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/([0-9]{1,2}))?")


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Minutes, hours, days of the month, months and weekdays (0 is Sunday), each sorted. As crontab has it, a day counts that is in either
    list of days, when both are restricted.

    any_day, any_weekday  that list begins with `*`
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    any_day: bool
    any_weekday: bool

    @classmethod
    def parse(cls, text: str) -> "CronSchedule":
        """As in "0 3 * * sun", "*/15 8-18 * * 1-5" or "@weekly". Raises UsageError, also for one that never comes due."""
        fields = SHORTHANDS.get(text.strip().lower(), text).lower().split()
        if len(fields) != 5:
            raise UsageError(
                f"not a schedule: {text[:80]!r} (minute, hour, day of the month, month and weekday, as in crontab: '0 3 * * 0')"
            )
        minutes, hours, days, months, weekdays = fields
        found = cls(
            minutes=_numbers(minutes, 0, 59, "minute"),
            hours=_numbers(hours, 0, 23, "hour"),
            days=_numbers(days, 1, 31, "day of the month"),
            months=_numbers(months, 1, 12, "month", MONTHS, names_from=1),
            weekdays=tuple(sorted({number % 7 for number in _numbers(weekdays, 0, 7, "weekday", WEEKDAYS)})),
            any_day=days.startswith("*"),
            any_weekday=weekdays.startswith("*"),
        )
        try:
            found.next_ms(0)
        except LookupError:
            raise UsageError(f"schedule {text[:80]!r} never comes due") from None
        return found

    def next_ms(self, after_ms: int) -> int:
        """The first time after `after_ms`, both in milliseconds since the epoch. Raises LookupError when there is none."""
        after = datetime.fromtimestamp(after_ms // 60_000 * 60, UTC) + timedelta(minutes=1)
        first = after
        for day in self._days_from(after):
            if day.date() != after.date():
                first = day
            for hour in self.hours[bisect_left(self.hours, first.hour) :]:
                from_minute = first.minute if hour == first.hour else 0
                at = bisect_left(self.minutes, from_minute)
                if at < len(self.minutes):
                    return round(day.replace(hour=hour, minute=self.minutes[at]).timestamp() * 1000)
        raise LookupError("never")

    def _days_from(self, after: datetime) -> Iterator[datetime]:
        """Midnights of the days that count, from the one of `after` on."""
        day = after.replace(hour=0, minute=0)
        for _ in range(YEARS_MAX * 366):
            if day.month in self.months and self._is_due_on(day):
                yield day
            day += timedelta(days=1)

    def _is_due_on(self, day: datetime) -> bool:
        by_number, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_number and by_weekday
        return by_number or by_weekday


def due_ms(schedule: CronSchedule, since_ms: int, now_ms: int) -> int | None:
    """The time for which a run is due now; None while there is none. Of several that were missed it is the newest, for one run makes up
    for all of them.

    since_ms  up to when nothing is due any more: of the last run, or when the schedule was first seen
    """
    due = None
    at = schedule.next_ms(max(since_ms, now_ms - 366 * 86_400_000))
    for _ in range(1000):
        if at > now_ms:
            return due
        due, at = at, schedule.next_ms(at)
    return now_ms  # missed more often than is worth counting


def _numbers(text: str, least: int, most: int, what: str, names: tuple[str, ...] = (), *, names_from: int = 0) -> tuple[int, ...]:
    """Of a list of numbers, ranges and steps. Raises UsageError."""
    values = {name: number for number, name in enumerate(names, names_from)}

    def number(word: str) -> int:
        if word in values:
            return values[word]
        if not word.isdecimal() or len(word) > 2 or not least <= int(word) <= most:
            raise UsageError(f"not a {what}: {word[:40]!r} ({least} to {most})")
        return int(word)

    found: set[int] = set()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if not match or (match[1] == "*" and match[2]):
            raise UsageError(f"not a {what}: {item[:40]!r}")
        step = int(match[3] or 1)
        if match[1] == "*":
            first, last = least, most
        else:
            first = number(match[1])
            last = number(match[2]) if match[2] else most if match[3] else first
        if not first <= last or step < 1:
            raise UsageError(f"not a {what}: {item[:40]!r}")
        found.update(range(first, last + 1, step))
    return tuple(sorted(found))
