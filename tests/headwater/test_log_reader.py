"""Logs of a cluster, read by Kafka's protocol: from the leader, wherever that is; and nothing but reading."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from headwater.broker.broker_connection import BrokerAddress, BrokerApi
from headwater.broker.client_properties import ClientProperties
from headwater.broker.log_reader import LogReader, open_log_reader
from headwater_core.errors import CorruptData, HeadwaterError, NotFound, TransientError, Unauthorised
from headwater_core.partition import TopicPartition, topic_id_bytes
from tests.headwater.socket_broker import SocketBroker
from tests.recovery.plans import TOPIC_ID
from tests.recovery.written_archive import data, marker, plain

PLACE = TopicPartition("orders", 0)
LOG = [plain(10, 5), data(15, 1000, b"a", b"b"), marker(17, 1000), plain(18, 2), plain(20)]


class OneTopic:
    """codes: answered to the next fetches; refused: of the topic in Metadata; per_fetch: bytes that one answer holds"""

    def __init__(self) -> None:
        self.log, self.high_watermark, self.per_fetch = list(LOG), 20, 1 << 20
        self.codes: list[int] = []
        self.isolation_level, self.stable_end = 0, 0
        self.refused = 0
        self.broker = SocketBroker(
            {BrokerApi.METADATA: self.metadata, BrokerApi.LIST_OFFSETS: self.list_offsets, BrokerApi.FETCH: self.fetch}
        )

    def metadata(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        assert asked["allow_auto_topic_creation"] is False
        host, port = self.broker.address
        topics = []
        for each in asked["topics"]:
            code = self.refused or (0 if each["name"] == "orders" else 3)
            partitions: list[dict[str, Any]] = (
                [{"error_code": 0, "partition_index": 0, "leader_id": 4, "leader_epoch": 0}] if not code else []
            )
            partitions = [each | {"replica_nodes": [4], "isr_nodes": [4], "offline_replicas": []} for each in partitions]
            topic_id = topic_id_bytes(TOPIC_ID) if not code else None
            topics.append({"error_code": code, "name": each["name"], "topic_id": topic_id, "is_internal": False, "partitions": partitions})
        brokers = [{"node_id": 4, "host": host, "port": port, "rack": None}]
        return {"brokers": brokers, "cluster_id": "kitchen", "controller_id": 4, "topics": topics}

    def list_offsets(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        [topic] = asked["topics"]
        answers = []
        for each in topic["partitions"]:
            offset = self.high_watermark if each["timestamp"] == -1 else 10
            answers.append(
                {"partition_index": each["partition_index"], "error_code": 0, "timestamp": -1, "offset": offset, "leader_epoch": 0}
            )
        return {"topics": [{"name": "orders", "partitions": answers}]}

    def fetch(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        self.isolation_level = asked["isolation_level"]
        code = self.codes.pop(0) if self.codes else 0
        offset = asked["topics"][0]["partitions"][0]["fetch_offset"]
        bases = [10, 15, 17, 18, 20, 21]
        raw = b"".join(batch for batch, end in zip(self.log, bases[1:], strict=True) if end > offset)[: self.per_fetch]
        answer: dict[str, Any] = {
            "partition_index": 0,
            "error_code": code,
            "high_watermark": self.high_watermark,
            "aborted_transactions": None,
        }
        answer |= {
            "last_stable_offset": self.stable_end,
            "log_start_offset": 10,
            "preferred_read_replica": -1,
            "records": b"" if code else raw,
        }
        return {"error_code": 0, "session_id": 0, "responses": [{"topic": "orders", "partitions": [answer]}]}


@contextmanager
def reading(stand: OneTopic) -> Iterator[LogReader]:
    properties = ClientProperties(request_timeout_s=5)
    with stand.broker, open_log_reader("live", [stand.broker.address], properties) as found:
        yield found


@pytest.mark.parametrize("per_fetch", [1 << 20, 400, len(LOG[0]) + 10])
def test_batches_as_they_are_and_nothing_that_is_not_committed(per_fetch: int) -> None:
    stand = OneTopic()
    stand.per_fetch = per_fetch
    with reading(stand) as found:
        assert found.cluster_id == "kitchen"
        assert found.topic_id("orders") == TOPIC_ID
        assert found.topic_id("other") is None
        assert tuple(found.bounds(PLACE)) == (10, 20)
        assert found.ends([PLACE, TopicPartition("other", 0)]) == {PLACE: 20}
        assert list(found.batches(PLACE, 0, 100)) == LOG[:4]
        assert list(found.batches(PLACE, 16, 18)) == LOG[1:3]
        assert stand.isolation_level == 0
        assert found.first_timestamp_ms(PLACE, 17) is not None
        assert found.first_timestamp_ms(PLACE, 20) is None
    only = {BrokerApi.API_VERSIONS, BrokerApi.METADATA, BrokerApi.LIST_OFFSETS, BrokerApi.FETCH}
    assert {api for api, _ in stand.broker.asked} == only


@pytest.mark.parametrize("per_fetch", [1 << 20, len(LOG[0]) + 10])
def test_readers_of_committed_data_end_where_the_leader_says(per_fetch: int) -> None:
    stand = OneTopic()
    stand.per_fetch, stand.stable_end = per_fetch, 18
    with reading(stand) as found:
        assert found.stable_end(PLACE, 10) == 18
        assert stand.isolation_level == 1
        stand.codes = [29]
        with pytest.raises(Unauthorised):
            found.stable_end(PLACE, 10)


def test_a_leader_that_moves_is_found_again() -> None:
    stand = OneTopic()
    stand.codes = [6, 74]
    with reading(stand) as found:
        assert list(found.batches(PLACE, 10, 20)) == LOG[:4]


@pytest.mark.parametrize(("code", "error"), [(29, Unauthorised), (3, NotFound), (1, TransientError), (6, TransientError)])
def test_what_is_refused_is_an_error_and_no_absence(code: int, error: type[HeadwaterError]) -> None:
    stand = OneTopic()
    stand.codes = [code] * 5
    with reading(stand) as found, pytest.raises(error):
        list(found.batches(PLACE, 10, 20))


def test_a_topic_that_may_not_be_described_is_not_absent() -> None:
    stand = OneTopic()
    stand.refused = 29
    with reading(stand) as found, pytest.raises(Unauthorised):
        found.topic_id("orders")


def test_a_partition_that_is_not_there() -> None:
    stand = OneTopic()
    with reading(stand) as found, pytest.raises(NotFound):
        found.bounds(TopicPartition("orders", 7))


def test_damage_on_the_way_is_found() -> None:
    stand = OneTopic()
    raw = bytearray(LOG[1])
    raw[70] ^= 1
    stand.log[1] = bytes(raw)
    with reading(stand) as found, pytest.raises(CorruptData):
        list(found.batches(PLACE, 10, 20))


def test_brokers_that_do_not_answer_are_said_to() -> None:
    with pytest.raises(TransientError):
        LogReader("live", [BrokerAddress("127.0.0.1", 1)], ClientProperties(request_timeout_s=1))
