"""Offsets by time and by meaning, and ends of epochs, of a log whose beginning is archived."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway.handlers.list_offsets import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP
from headwater.gateway.messages import Fields
from headwater.gateway.protocol import Api, Code
from headwater.gateway.proxy.broker_requests import BrokerRequests, encoded
from headwater.gateway.proxy.merged_offsets import OffsetMerges
from headwater_core.segments import flexible

SOUP = ("soup", 0)


@dataclass
class Log:
    """times: of the record at each offset from `start` on. epochs: where each ends"""

    start: int
    times: list[int]
    epochs: dict[int, int] = field(default_factory=dict)

    def find(self, timestamp: int) -> tuple[int, int]:
        """Offset and timestamp."""
        end = self.start + len(self.times)
        if timestamp == EARLIEST:
            return self.start, -1
        if timestamp < 0 and timestamp != MAX_TIMESTAMP:
            return end, -1
        wanted = max(self.times, default=-1) if timestamp == MAX_TIMESTAMP else timestamp
        return next(((self.start + at, time) for at, time in enumerate(self.times) if time >= wanted), (-1, -1))


def position(code: int, offset: int, timestamp: int = -1, epoch: int = 0) -> dict[str, Any]:
    return {"partition_index": 0, "error_code": code, "timestamp": timestamp, "offset": offset, "leader_epoch": epoch}


def answer(log: Log, timestamp: int, epoch: int) -> Fields:
    offset, found = log.find(timestamp)
    return {"topics": [{"name": "soup", "partitions": [position(0, offset, found, epoch if offset >= 0 else -1)]}]}


@dataclass
class Archive:
    log: Log | None
    code: Code = Code.NONE
    asked: int = 0
    is_listed: bool = True
    earliest: bool = True

    def is_earliest(self, topic: str) -> bool:
        return self.earliest

    def may_hold(self, topic: str, partition: int) -> bool:
        return self.log is not None

    def id_of(self, topic: str) -> bytes | None:
        return b"soup".ljust(16) if self.is_listed else None

    async def list_offsets(self, body: Fields) -> Fields:
        self.asked += 1
        [[wanted]] = [topic["partitions"] for topic in body["topics"]]
        if self.code is not Code.NONE:
            return {"topics": [{"name": "soup", "partitions": [position(self.code, -1)]}]}
        assert self.log is not None
        return answer(self.log, wanted["timestamp"], 1)

    async def epoch_ends(self, body: Fields) -> Fields:
        assert self.log is not None
        [[wanted]] = [topic["partitions"] for topic in body["topics"]]
        end = self.log.epochs.get(wanted["leader_epoch"], -1)
        fields = {"partition": 0, "error_code": 0, "leader_epoch": wanted["leader_epoch"] if end >= 0 else -1, "end_offset": end}
        return {"topics": [{"topic": "soup", "partitions": [fields]}]}


def merges(live: Log, archive: Archive, *, is_another: bool = False) -> OffsetMerges:
    async def ask(api_key: int, version: int, body: bytes) -> bytes:
        if api_key == Api.METADATA:
            topic_id = b"other".ljust(16) if is_another else b"soup".ljust(16)
            topic = {"error_code": 0, "name": "soup", "topic_id": topic_id, "is_internal": False, "partitions": []}
            return encoded(Api.METADATA, version, {"brokers": [], "cluster_id": "c", "controller_id": 1, "topics": [topic]})
        assert flexible.i64(EARLIEST) in body
        return encoded(Api.LIST_OFFSETS, version, answer(live, EARLIEST, 7))

    return OffsetMerges(archive, BrokerRequests(ask))


def listed(live: Log, archive: Archive, timestamp: int, *, code: int = 0, is_another: bool = False) -> Fields:
    body = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": "soup", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}],
    }
    told = answer(live, timestamp, 7)
    if code:
        told["topics"][0]["partitions"][0] = position(code, -1)
    merged = asyncio.run(merges(live, archive, is_another=is_another).list_offsets(body, told))
    [[found]] = [topic["partitions"] for topic in merged["topics"]]
    return dict(found)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_the_first_record_of_both_is_found_by_time(times: list[int], cut: int, overlap: int, wanted: int) -> None:
    """The log as a whole, of which the broker has the end and the archive the beginning."""
    whole, cut = Log(0, times), min(cut, len(times))
    live, cold = Log(cut, times[cut:]), Log(0, times[: min(len(times), cut + overlap)])
    for timestamp in (wanted, MAX_TIMESTAMP):
        found = listed(live, Archive(cold), timestamp)
        offset, time = whole.find(timestamp)
        if timestamp == MAX_TIMESTAMP:
            assert found["timestamp"] == time  # of several that have it, one
        else:
            assert (found["offset"], found["timestamp"]) == (offset, time)


def test_the_earliest_is_the_archive_s_with_its_epoch_and_ends_are_the_broker_s() -> None:
    live, archive = Log(5, [1, 2]), Archive(Log(2, [0, 0, 0]))
    assert listed(live, archive, EARLIEST) == position(0, 2, -1, 1)
    asked = archive.asked
    for timestamp in (LATEST, EARLIEST_LOCAL, LATEST_TIERED, -6):
        assert listed(live, archive, timestamp) == position(0, 7, -1, 7)
    assert archive.asked == asked


def test_the_earliest_is_the_broker_s_where_that_is_wanted() -> None:
    live, archive = Log(5, [3, 4]), Archive(Log(2, [1, 1, 1]), earliest=False)
    assert listed(live, archive, EARLIEST) == position(0, 5, -1, 7)
    assert archive.asked == 0
    assert listed(live, archive, 1)["offset"] == 2  # who asks by time means it


def test_the_archive_is_asked_by_time_only_where_the_broker_s_answer_may_not_be_the_first() -> None:
    live, archive = Log(5, [3, 4, 5]), Archive(Log(0, [1, 1, 2, 2, 2]))
    assert listed(live, archive, 4)["offset"] == 6
    assert archive.asked == 0
    assert listed(live, archive, 2)["offset"] == 2
    assert listed(live, archive, 9)["offset"] == -1
    assert archive.asked == 2


@pytest.mark.parametrize("timestamp", [EARLIEST, 0, MAX_TIMESTAMP])
def test_what_the_archive_cannot_say_is_no_absence(timestamp: int) -> None:
    live = Log(5, [3])
    assert listed(live, Archive(Log(0, []), Code.KAFKA_STORAGE_ERROR), timestamp)["error_code"] == Code.KAFKA_STORAGE_ERROR
    assert listed(live, Archive(Log(0, []), Code.UNKNOWN_TOPIC_OR_PARTITION), timestamp)["offset"] == 5


def test_before_the_archive_was_listed_no_offset_is_the_earliest() -> None:
    archive = Archive(Log(0, [1]), is_listed=False)
    assert listed(Log(5, [3]), archive, EARLIEST)["error_code"] == Code.KAFKA_STORAGE_ERROR
    assert listed(Log(5, [3]), archive, LATEST)["offset"] == 6


def test_what_the_broker_refuses_is_refused() -> None:
    archive = Archive(Log(0, [1]))
    assert listed(Log(5, [3]), archive, EARLIEST, code=Code.TOPIC_AUTHORIZATION_FAILED)["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
    assert archive.asked == 0


def test_another_topic_of_that_name_has_none_of_its_offsets() -> None:
    archive = Archive(Log(0, [1]))
    assert listed(Log(5, [3]), archive, EARLIEST, is_another=True)["offset"] == 5
    assert listed(Log(5, [3]), Archive(None), EARLIEST)["offset"] == 5
    assert archive.asked == 0


@pytest.mark.parametrize(("epoch", "expected"), [(0, (0, 3)), (1, (1, 5)), (2, (2, 9)), (8, (8, 8))])
def test_an_epoch_that_ended_before_the_broker_s_log_begins_is_the_archive_s(epoch: int, expected: tuple[int, int]) -> None:
    live, archive = Log(5, [1]), Archive(Log(0, [], {0: 3, 1: 5, 2: 7}))
    told = {0: (0, 5), 1: (1, 5), 2: (2, 9), 8: (8, 8)}[epoch]
    fields = {"partition": 0, "error_code": 0, "leader_epoch": told[0], "end_offset": told[1]}
    body = {"topics": [{"topic": "soup", "partitions": [{"partition": 0, "leader_epoch": epoch}]}]}
    merged = asyncio.run(merges(live, archive).epoch_ends(body, {"topics": [{"topic": "soup", "partitions": [fields]}]}))
    [[found]] = [topic["partitions"] for topic in merged["topics"]]
    assert (found["leader_epoch"], found["end_offset"]) == expected
