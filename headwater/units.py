"""Sizes, durations, times and paths as people write them: "20GiB", "30m", "2026-01-31T12:00:00Z", "/lake"."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path

from headwater_core.errors import UsageError

_SIZES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MOST = 1e18  # bytes or seconds: more than makes sense
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_DURATION = re.compile(r"(?:\s*\d+(?:\.\d+)?\s*[A-Za-z]+)+\s*")


def parse_size(text: str) -> int:
    """Bytes, from "4MiB", "20 GB" or "1048576". Raises UsageError."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if not match or match[2].lower() not in _SIZES:
        raise UsageError(f"not a size: {text!r} (a number and B, KB, MB, GB, TB, KiB, MiB, GiB or TiB)")
    size_bytes = float(match[1]) * _SIZES[match[2].lower()]
    if size_bytes > _MOST:
        raise UsageError(f"too large: {text[:80]!r}")
    return round(size_bytes)


def parse_duration(text: str) -> float:
    """Seconds, from "30m", "24h", "250ms" or, as they are shown, "1 h 5 m". Raises UsageError, also for a number without a unit."""
    parts = [(float(number), unit.lower()) for number, unit in _NUMBER_AND_UNIT.findall(text)] if _DURATION.fullmatch(text) else []
    if not parts or any(unit not in _SECONDS for _, unit in parts):
        raise UsageError(f"not a duration: {text!r} (a number and ms, s, m, h, d or w)")
    seconds = sum(number * _SECONDS[unit] for number, unit in parts)
    if seconds > _MOST:
        raise UsageError(f"too long: {text[:80]!r}")
    return seconds


def parse_time(text: str) -> datetime:
    """A time in ISO 8601, UTC if it has no time zone. Raises UsageError: where a time may stand, so may an offset."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text[:80]!r} is neither earliest nor latest, an offset or a time such as 2026-01-31T12:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def parse_time_ms(text: str) -> int:
    """The same as milliseconds since the epoch, to the millisecond: seconds as a float may lie just below one."""
    return round(parse_time(text).timestamp() * 1000)


def parse_path(text: str | os.PathLike[str]) -> Path:
    """A path on this machine. Raises UsageError for a URL, which would become a directory of that name."""
    if match := _URL.match(str(text)):
        raise UsageError(f"{str(text)[:200]!r} is a URL; give a path on this machine, without {match[0]}")
    return Path(text)


def size_text(size_bytes: float) -> str:
    """At most four characters and a binary unit: "0 B", "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 100 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def duration_text(seconds: float) -> str:
    """Return two units at most: "12.3 s", "4 m 10 s", "2 h", "3 d 1 h"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, lesser, lesser_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            count = whole % size // lesser
            return f"{whole // size} {unit}" + (f" {count} {lesser_unit}" if count else "")
    return f"{whole} s"
