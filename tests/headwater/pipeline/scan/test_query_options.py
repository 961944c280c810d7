"""Options as Spark hands them out, and as Python does, become one checked value."""

import pickle
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest

from headwater.pipeline.scan.query import COLUMNS, Bound, Edge, Time
from headwater.pipeline.scan.query_options import parse_query
from headwater_core.errors import UsageError
from headwater_core.partition import TopicPartition


def test_options_of_spark_and_of_python_are_the_same() -> None:
    spark = parse_query(
        {
            "SUBSCRIBE": "orders, refunds",
            "startingoffsets": '{"orders": {"0": 23, "1": -2, "2": -1}}',
            "endingTimestamp": "1767225600000",
            "includeheaders": "TRUE",
            "kafka.isolation.level": "read_committed",
            "splitbytes": "8m",
            "endpoint_url": "http://localhost:9000",
        }
    )
    python = parse_query(
        {
            "subscribe": ["orders", "refunds"],
            "starting_offsets": {"orders": {"0": 23, 1: -2, "2": -1}},
            "ending_timestamp": datetime(2026, 1, 1, tzinfo=UTC),
            "include_headers": True,
            "isolation": "read_committed",
            "split_bytes": 8 << 20,
            "endpointUrl": "http://localhost:9000",
            "region": None,
        }
    )
    assert spark == python
    assert pickle.loads(pickle.dumps(spark)) == spark
    assert spark.selection.named == ("orders", "refunds")
    assert spark.starting == Bound(
        Edge.EARLIEST,
        {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): Edge.EARLIEST, TopicPartition("orders", 2): Edge.LATEST},
    )
    assert spark.ending == Bound(Time(1767225600000))
    assert spark.columns == COLUMNS
    assert spark.read_committed
    assert spark.split_bytes == 8 << 20


def test_what_is_not_said_is_as_in_sparks_kafka_source() -> None:
    query = parse_query({"subscribe": "orders"})
    assert (query.starting, query.ending) == (Bound(Edge.EARLIEST), Bound(Edge.LATEST))
    assert query.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert not query.read_committed
    assert query.fail_on_data_loss
    assert query.quarantine_path is None


@pytest.mark.parametrize(
    ("options", "matched", "unmatched"),
    [
        ({"topics": "orders,pay*"}, ["payments", "pay"], ["orders", "repay", "__pay"]),
        ({"topics": "*"}, ["orders", "a.b"], ["__consumer_offsets"]),
        ({"topics": "__*"}, ["__consumer_offsets"], ["orders", "_x"]),
        ({"subscribePattern": "o.*|p"}, ["orders", "p"], ["pp", "__o"]),
    ],
)
def test_which_topics_are_meant(options: dict[str, object], matched: list[str], unmatched: list[str]) -> None:
    selection = parse_query(options).selection
    assert [name for name in (*matched, *unmatched) if selection.matches(name)] == matched


def test_assigned_partitions_are_the_only_ones() -> None:
    selection = parse_query({"assign": {"orders": [0, 2]}}).selection
    assert selection.named == ("orders",)
    assert [number for number in range(4) if selection.holds("orders", number)] == [0, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "which topics"),
        ({"topics": "a", "subscribe": "b"}, "not topics and subscribe"),
        ({"topics": " , "}, "names no topic"),
        ({"topics": "a/b"}, "not a topic name"),
        ({"subscribe": "pay*"}, "not a topic name"),
        ({"topics": "a", "startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"topics": "a", "frobnicate": "1"}, "known options are topics"),
        ({"topics": "a", "isolation": "read_commited"}, "read_committed"),
        ({"topics": "a", "isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"}, "twice"),
        ({"topics": "a", "columns": "key,vlaue"}, "vlaue"),
        ({"topics": "a", "columns": ","}, "none"),
        ({"topics": "a", "splitBytes": "0"}, "positive"),
        ({"topics": "a", "splitBytes": "-5"}, "positive"),
        ({"topics": "a", "splitBytes": "9" * 18 + "t"}, "positive"),
        ({"topics": "a", "failOnDataLoss": "yes"}, "true or false"),
        ({"topics": "a", "onCorrupt": "quarantine"}, "quarantinePath"),
        ({"topics": "a", "quarantinePath": "/tmp/x"}, "onCorrupt"),
        ({"topics": "a", "startingOffsets": "soon"}, "earliest or latest"),
        ({"topics": "a", "startingOffsets": '{"a": 5}'}, "needs partitions"),
        ({"topics": "a", "startingOffsets": '{"a": {"0": -3}}'}, "not an offset"),
        ({"topics": "a", "startingOffsets": '{"a": {"zero": 3}}'}, "whole number"),
        ({"topics": "a", "startingOffsets": '{"a": {"0": true}}'}, "whole number"),
        ({"topics": "a", "startingOffsets": '{"a": {"0": 1e400}}'}, "whole number"),
        ({"topics": "a", "startingOffsets": "[" * 100_000}, "expected"),
        ({"topics": "a", "startingTimestamp": "noon"}, "whole number"),
        ({"topics": "a", "startingTimestamp": "noon"}, "milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z"),
        ({"topics": "a", "startingTimestamp": 1.5e12}, "milliseconds since 1970"),
        ({"topics": "a", "startingTimestamp": 1_760_000_000}, "seems to be in seconds"),
        ({"topics": "a", "endingTimestamp": 1_760_000_000_000_000}, "seems to be in microseconds"),
        ({"topics": "a", "endingTimestamp": 1_760_000_000_000_000_000}, "seems to be in nanoseconds"),
        ({"topics": "a", "endingOffsetsByTimestamp": {"a": {0: 1_760_000_000}}}, "seems to be in seconds"),
        ({"topics": "a", "startingOffsetsByTimestamp": {("a", 0): 5}}, "are expected as keys"),
        ({"topics": b"a"}, "not bytes"),
        ({"topics": "a", "startingTimestamp": "5", "startingOffsets": "latest"}, "contradict each other"),
        ({"assign": "{}"}, "no partition"),
        ({"assign": '{"a": 1}'}, "list of partitions"),
        ({"assign": '{"a": [-1]}'}, "partition"),
        ({"subscribePattern": "("}, "regular expression"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_query(options)


@pytest.mark.parametrize(
    "time",
    [
        1767225600000,
        "1767225600000",
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "2026-01-01T01:00+01:00",
        date(2026, 1, 1),
        datetime(2026, 1, 1),  # without a time zone: UTC, wherever this runs
        datetime(2025, 12, 31, 19, tzinfo=timezone(timedelta(hours=-5))),
        np.datetime64("2026-01-01", "ns"),
        np.int64(1767225600000),
    ],
    ids=repr,
)
def test_a_time_is_a_number_a_datetime_or_text(time: object) -> None:
    assert parse_query({"topics": "a", "starting_timestamp": time}).starting == Bound(Time(1767225600000))
    named = parse_query({"topics": "a", "ending_offsets_by_timestamp": {"a": {0: time}}}).ending.named
    assert named == {TopicPartition("a", 0): Time(1767225600000)}


def test_numbers_that_are_no_time_of_kafkas_are_taken_as_they_are() -> None:
    for number in (0, 5, -1, 10**11, 2**63 - 1):
        assert parse_query({"topics": "a", "ending_timestamp": number}).ending == Bound(Time(number))
    assert parse_query({"topics": "a", "ending_timestamp": "1760000000"}).ending == Bound(Time(1_760_000_000))  # as a stream may have it
