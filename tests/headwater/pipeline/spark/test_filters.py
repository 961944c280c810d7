"""Spark's filters as predicates: exact where they are called complete, never too narrow."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from headwater.pipeline.scan.query import EVERYTHING, Predicate
from headwater.pipeline.spark.filters import push

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPICS = ("orders", "pay", "refunds")
Row = dict[str, Any]

rows = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(TOPICS),
        "partition": st.integers(0, 3),
        "offset": st.integers(0, 6),
        "timestamp": st.one_of(st.none(), st.integers(-2, 5).map(lambda ms: EPOCH + timedelta(milliseconds=ms))),
    }
)
values = {
    "topic": st.sampled_from(TOPICS),
    "partition": st.integers(-1, 4),
    "offset": st.integers(-2, 8),
    "timestamp": st.integers(-3000, 6000).map(lambda us: EPOCH + timedelta(microseconds=us)),
}


@st.composite
def filters(draw: st.DrawFn) -> spark.Filter:
    column = draw(st.sampled_from(sorted(values)))
    value = draw(values[column])
    path = (column,)
    match draw(st.integers(0, 9)):
        case 0:
            return spark.EqualTo(path, value)
        case 1:
            return spark.EqualNullSafe(path, draw(st.sampled_from([value, None])))
        case 2:
            return spark.GreaterThan(path, value)
        case 3:
            return spark.GreaterThanOrEqual(path, value)
        case 4:
            return spark.LessThan(path, value)
        case 5:
            return spark.LessThanOrEqual(path, value)
        case 6:
            return spark.In(path, draw(st.lists(st.one_of(st.none(), values[column]), max_size=3)))  # type: ignore[arg-type]  # Spark hands out lists
        case 7:
            return spark.IsNull(path)
        case 8:
            return spark.Not(spark.EqualTo(path, value))
    return spark.IsNotNull(path)


def holds(each: spark.Filter, row: Row) -> bool:
    """What SQL says; null is not true."""
    match each:
        case spark.Not(child):
            return row[child.attribute[0]] is not None and not holds(child, row)  # type: ignore[attr-defined]
        case spark.IsNull((column,)):
            return row[column] is None
        case spark.IsNotNull((column,)):
            return row[column] is not None
        case spark.EqualNullSafe((column,), value):
            return bool(row[column] == value)
        case spark.In((column,), several):
            return row[column] is not None and row[column] in several
    column, value = each.attribute[0], each.value  # type: ignore[attr-defined]
    if row[column] is None or value is None:
        return False
    match each:
        case spark.EqualTo():
            return bool(row[column] == value)
        case spark.GreaterThan():
            return bool(row[column] > value)
        case spark.GreaterThanOrEqual():
            return bool(row[column] >= value)
        case spark.LessThan():
            return bool(row[column] < value)
    assert isinstance(each, spark.LessThanOrEqual)
    return bool(row[column] <= value)


def satisfies(predicate: Predicate, row: Row) -> bool:
    """What a scan lets through. A timestamp that Spark cannot hold is null in the row and far away in the record."""
    timestamp = 2**62 if row["timestamp"] is None else (row["timestamp"] - EPOCH) // timedelta(milliseconds=1)
    return (
        (predicate.topics is None or row["topic"] in predicate.topics)
        and (predicate.partitions is None or row["partition"] in predicate.partitions)
        and predicate.first_offset <= row["offset"] < predicate.end_offset
        and (predicate.first_timestamp_ms is None or timestamp >= predicate.first_timestamp_ms)
        and (predicate.end_timestamp_ms is None or timestamp < predicate.end_timestamp_ms)
    )


@given(st.lists(filters(), max_size=4), st.lists(rows, min_size=1, max_size=8))
def test_what_the_scan_and_spark_leave_is_what_the_filters_say(asked: list[spark.Filter], found: list[Row]) -> None:
    predicate, left = EVERYTHING, []
    for each in asked:
        pushed = push(each)
        if pushed is not None:
            predicate = predicate.and_(pushed.predicate)
        if pushed is None or not pushed.complete:
            left.append(each)
    kept = [row for row in found if satisfies(predicate, row) and all(holds(each, row) for each in left)]
    assert kept == [row for row in found if all(holds(each, row) for each in asked)]


@pytest.mark.parametrize(
    "each",
    [
        spark.IsNotNull(("offset",)),
        spark.EqualTo(("topic",), "orders"),
        spark.In(("topic",), ("orders", "pay")),
        spark.In(("partition",), (1, 3)),
        spark.EqualNullSafe(("offset",), 3),
        spark.GreaterThan(("offset",), 3),
        spark.LessThanOrEqual(("timestamp",), EPOCH),
        spark.EqualTo(("timestamp",), EPOCH + timedelta(microseconds=1)),
        spark.IsNull(("partition",)),
    ],
    ids=repr,
)
def test_these_need_no_second_look(each: spark.Filter) -> None:
    pushed = push(each)
    assert pushed is not None
    assert pushed.complete


def test_several_offsets_become_the_range_around_them_and_spark_looks_again() -> None:
    pushed = push(spark.In(("offset",), (7, 3, 5)))
    assert pushed == (Predicate(first_offset=3, end_offset=8), False)


UNKNOWN = [
    spark.IsNotNull(("value",)),
    spark.EqualTo(("key",), b"x"),
    spark.EqualTo(("headers", "key"), "x"),
    spark.GreaterThan(("topic",), "orders"),
    spark.GreaterThan(("partition",), 1),
    spark.EqualTo(("topic",), 3),
    spark.GreaterThan(("offset",), 1.5),
    spark.EqualTo(("offset",), True),
    spark.LessThan(("timestamp",), datetime(2020, 1, 1)),
    spark.EqualNullSafe(("timestamp",), None),
    spark.StringStartsWith(("topic",), "pay"),
]


@pytest.mark.parametrize("each", UNKNOWN, ids=repr)
def test_what_a_scan_cannot_do_stays_with_spark(each: spark.Filter) -> None:
    assert push(each) is None


def test_times_of_any_zone_mean_the_same_moment() -> None:
    noon = datetime(2020, 1, 1, 12, tzinfo=UTC)
    there = noon.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert push(spark.LessThan(("timestamp",), there)) == push(spark.LessThan(("timestamp",), noon))
