"""Spark's filters as a predicate: which rows a scan leaves out by itself, and which filters Spark still applies. Pure."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from headwater.pipeline.scan.query import END_OF_OFFSETS, EVERYTHING, Predicate

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING = Predicate(topics=frozenset())
_NEVER_NULL = ("topic", "partition", "offset")
_COLUMNS = (*_NEVER_NULL, "timestamp")
_FIRST_MS, _END_MS = -(2**63 // 1000), (2**63 - 1) // 1000 + 1  # microseconds in 64 bits hold no others; those are null


class Pushed(NamedTuple):
    """`complete`: the predicate is equal to the filter, so that Spark need not apply it again."""

    predicate: Predicate
    complete: bool


def push(filter_: Filter) -> Pushed | None:
    """The part of a filter that a scan can apply; None when there is none. Spark has cast literals to the column's type before."""
    match filter_:
        case IsNotNull((column,)) if column in _COLUMNS:
            return Pushed(EVERYTHING if column in _NEVER_NULL else _times(None, None), True)
        case IsNull((column,)) if column in _NEVER_NULL:
            return Pushed(_NOTHING, True)
        case EqualNullSafe((column,), None) if column not in _NEVER_NULL:
            return None
        case EqualTo((column,), value) | EqualNullSafe((column,), value) if column in _COLUMNS:
            return _among(column, [value])
        case In((column,), values) if column in _COLUMNS:
            return _among(column, values)
        case GreaterThanOrEqual((column,), value) if column in _RANGES:
            return _between(column, _number(value), None)
        case GreaterThan((column,), value) if column in _RANGES:
            return _between(column, _above(value), None)
        case LessThan((column,), value) if column in _RANGES:
            return _between(column, None, _number(value))
        case LessThanOrEqual((column,), value) if column in _RANGES:
            return _between(column, None, _above(value))
    return None


def _among(column: str, values: Iterable[object]) -> Pushed | None:
    """One of `values`; nothing equals a null."""
    known = {value for value in values if value is not None}
    if not known:
        return Pushed(_NOTHING, True)
    if column == "topic":
        names = frozenset(value for value in known if isinstance(value, str))
        return Pushed(Predicate(topics=names), True) if len(names) == len(known) else None
    numbers = {number for number in map(_number, known) if number is not None}
    if len(numbers) < len(known):
        return None
    if column == "partition":
        return Pushed(Predicate(partitions=frozenset(numbers)), True)
    # A predicate has only ranges of offsets and times: several values become the range around them.
    return Pushed(_RANGES[column](min(numbers), max(numbers) + 1), len(numbers) == 1)


def _between(column: str, first: int | None, end: int | None) -> Pushed | None:
    return None if first is None and end is None else Pushed(_RANGES[column](first, end), True)


def _number(value: object) -> int | None:
    """An offset or a partition as it is, a time in microseconds since 1970; None for anything else."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1) if value.tzinfo else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _above(value: object) -> int | None:
    """The next greater number."""
    number = _number(value)
    return None if number is None else number + 1


def _offsets(first: int | None, end: int | None) -> Predicate:
    return Predicate.of_offsets(first or 0, END_OF_OFFSETS if end is None else end)


def _times(first_us: int | None, end_us: int | None) -> Predicate:
    """Records have whole milliseconds, so bounds are rounded up to them. A null timestamp is in no range."""
    return Predicate.of_times(
        _FIRST_MS if first_us is None else -(-first_us // 1000),
        _END_MS if end_us is None else -(-end_us // 1000),
    )


_RANGES: dict[str, Callable[[int | None, int | None], Predicate]] = {"offset": _offsets, "timestamp": _times}  # [first, end)
