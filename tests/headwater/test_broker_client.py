"""The broker beside an agent, by its own protocol."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from archival.broker.broker_view import Group
from headwater.broker.broker_client import IDLE_S, PAUSE_S, REQUEST_TIMED_OUT, BrokerClient
from headwater.broker.broker_connection import BrokerAddress, BrokerApi
from headwater.broker.client_properties import ClientProperties
from headwater_core.epochs import EpochHistory
from headwater_core.errors import DeletionRefused, ForeignOwner, SourceChanged, TransientError, Unauthorised
from headwater_core.partition import TopicPartition, topic_id_text
from tests.headwater.socket_broker import SocketBroker
from tests.headwater_core.manual_clock import ManualClock

SOUP, BREAD = TopicPartition("soup", 0), TopicPartition("bread", 3)
SOUP_ID = bytes(15) + b"\1"
HISTORY = EpochHistory.of(((0, 0), (4, 20)))


class Kitchen(SocketBroker):
    """Broker 7 of cluster kitchen-1, which leads soup:0."""

    def __init__(self) -> None:
        super().__init__(
            {
                BrokerApi.METADATA: self._metadata,
                BrokerApi.LIST_OFFSETS: self._offsets,
                BrokerApi.OFFSET_FOR_LEADER_EPOCH: self._epochs,
                BrokerApi.DELETE_RECORDS: lambda fields: self._deleted(fields),
                BrokerApi.DESCRIBE_QUORUM: lambda _: self._quorum(),
                BrokerApi.LIST_GROUPS: lambda _: {"error_code": 0, "groups": [_group(each) for each in ("bills", "mail")]},
                BrokerApi.OFFSET_FETCH: lambda _: {"groups": [_commits("bills", 31), _commits("mail", 12)]},
            }
        )
        self.own = self.address
        self.cluster_id = "kitchen-1"
        self.delete_code = self.quorum_code = self.offset_code = 0

    def _metadata(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        topics = [
            {
                "error_code": 0 if each["name"] == "soup" else 3,
                "name": each["name"],
                "topic_id": SOUP_ID,
                "is_internal": False,
                "partitions": [],
            }
            | {"topic_authorized_operations": -1}
            for each in fields["topics"]
        ]
        brokers = [{"node_id": 7, "host": self.own.host, "port": self.own.port, "rack": None}]
        return {"brokers": brokers, "cluster_id": self.cluster_id, "controller_id": 7, "topics": topics}

    def _offsets(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        def of(topic: str, each: Mapping[str, Any]) -> Mapping[str, Any]:
            code = self.offset_code or (0 if topic == "soup" and each["current_leader_epoch"] in (-1, 4) else 6)
            offset = 33 if each["timestamp"] == -1 else 5
            return {"partition_index": each["partition_index"], "error_code": code, "timestamp": -1, "offset": offset, "leader_epoch": 4}

        return {
            "topics": [
                {"name": each["name"], "partitions": [of(each["name"], one) for one in each["partitions"]]} for each in fields["topics"]
            ]
        }

    def _epochs(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        ends = {0: (0, 20), 4: (4, 40)}
        return {
            "topics": [
                {
                    "topic": topic["topic"],
                    "partitions": [
                        {
                            "error_code": 0,
                            "partition": 0,
                            "leader_epoch": ends[each["leader_epoch"]][0],
                            "end_offset": ends[each["leader_epoch"]][1],
                        }
                        for each in topic["partitions"]
                    ],
                }
                for topic in fields["topics"]
            ]
        }

    def _deleted(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        (topic,) = fields["topics"]
        (one,) = topic["partitions"]
        answer = {"partition_index": one["partition_index"], "low_watermark": one["offset"], "error_code": self.delete_code}
        return {"topics": [{"name": topic["name"], "partitions": [answer]}]}

    def _quorum(self) -> Mapping[str, Any]:
        part = {
            "partition_index": 0,
            "error_code": 0,
            "leader_id": 7,
            "leader_epoch": 1,
            "high_watermark": 99,
            "current_voters": [],
            "observers": [],
        }
        return {"error_code": self.quorum_code, "topics": [{"topic_name": "__cluster_metadata", "partitions": [part]}]}

    def of(self, api: BrokerApi) -> list[Mapping[str, Any]]:
        return [fields for each, fields in self.asked if each == api]


def _group(name: str) -> Mapping[str, Any]:
    return {"group_id": name, "protocol_type": "consumer", "group_state": "Empty"}


def _commits(group: str, offset: int) -> Mapping[str, Any]:
    part = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "metadata": "", "error_code": 0}
    return {"group_id": group, "topics": [{"name": "soup", "partitions": [part]}], "error_code": 0}


@pytest.fixture
def kitchen() -> Iterator[Kitchen]:
    with Kitchen() as kitchen:
        yield kitchen


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def client(kitchen: Kitchen, clock: ManualClock) -> Iterator[BrokerClient]:
    client = BrokerClient([kitchen.address], ClientProperties(), cluster_id=lambda: "kitchen-1", node_id=lambda: 7, clock=clock)
    yield client
    client.close()


def test_one_request_covers_many_partitions(client: BrokerClient, kitchen: Kitchen) -> None:
    found = client.committed([SOUP, BREAD])
    assert found == {SOUP: (topic_id_text(SOUP_ID), 4, 33)}  # bread is led elsewhere
    assert len(kitchen.of(BrokerApi.LIST_OFFSETS)) == 1
    client.committed([SOUP])
    assert len(kitchen.of(BrokerApi.API_VERSIONS)) == 1  # over one connection


def test_the_leader_describes_its_log_in_one_epoch(client: BrokerClient, kitchen: Kitchen) -> None:
    with client.pinned() as broker:
        log = broker.leader_log(SOUP, 4, HISTORY)
        assert (log.topic_id, log.log_start, log.high_watermark) == (topic_id_text(SOUP_ID), 5, 33)
        assert log.confirms(HISTORY)
        assert not log.confirms(EpochHistory.of(((0, 0), (4, 21))))
        assert not log.confirms(EpochHistory())
        with pytest.raises(SourceChanged):
            broker.leader_log(SOUP, 5, HISTORY)
        assert broker.metadata_end() == 99
        broker.delete_records(SOUP, 20)
        kitchen.delete_code = REQUEST_TIMED_OUT  # followers are slow
        broker.delete_records(SOUP, 20)
        kitchen.delete_code = 1  # out of range
        with pytest.raises(SourceChanged):
            broker.delete_records(SOUP, 2000)
    assert all(each["topics"][0]["partitions"][0]["current_leader_epoch"] in (4, 5) for each in kitchen.of(BrokerApi.LIST_OFFSETS))
    assert len(kitchen.of(BrokerApi.API_VERSIONS)) == 1


def test_a_policy_that_forbids_deletion_says_so_and_costs_no_connection(client: BrokerClient, kitchen: Kitchen) -> None:
    kitchen.delete_code = 44
    for _ in range(2):
        with client.pinned() as broker, pytest.raises(DeletionRefused, match=r"cleanup.policy is compact alone"):
            broker.delete_records(SOUP, 20)
    assert len(kitchen.of(BrokerApi.API_VERSIONS)) == 1


def test_without_the_right_to_see_the_quorum_nothing_is_released(client: BrokerClient, kitchen: Kitchen) -> None:
    kitchen.quorum_code = 31
    with client.pinned() as broker, pytest.raises(DeletionRefused, match="may not describe the cluster"):
        broker.metadata_end()


def test_a_topic_that_may_not_be_described_is_reported(client: BrokerClient, kitchen: Kitchen) -> None:
    kitchen.offset_code = 29
    with capture_logs() as logs:
        assert client.committed([SOUP]) == {}
    assert [(each["event"], each["topic"]) for each in logs] == [("broker_refused", "soup")]


def test_a_silent_broker_is_reported_once_and_left_alone_for_a_while(client: BrokerClient, kitchen: Kitchen, clock: ManualClock) -> None:
    kitchen.answers[BrokerApi.LIST_OFFSETS] = lambda _: None
    assert client.outage() is None
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(TransientError):
                client.committed([SOUP])
        assert len(kitchen.of(BrokerApi.LIST_OFFSETS)) == 1
        clock.advance(int(1000 * PAUSE_S))
        with pytest.raises(TransientError):
            client.committed([SOUP])
        assert len(kitchen.of(BrokerApi.LIST_OFFSETS)) == 2
        assert (client.outage() or (0.0, ""))[0] == PAUSE_S, "since the first failure"
        kitchen.answers[BrokerApi.LIST_OFFSETS] = kitchen._offsets
        clock.advance(int(1000 * 2 * PAUSE_S))
        assert client.committed([SOUP])
        assert client.outage() is None
    assert [(each["event"], each["log_level"]) for each in logs] == [("broker_unavailable", "warning"), ("broker_answered", "info")]


def test_a_connection_that_was_idle_for_long_is_not_used_again(client: BrokerClient, kitchen: Kitchen, clock: ManualClock) -> None:
    client.committed([SOUP])
    clock.advance(int(1000 * IDLE_S))
    client.committed([SOUP])
    assert len(kitchen.of(BrokerApi.API_VERSIONS)) == 2


def test_a_kept_connection_that_the_broker_has_closed_is_no_silence(client: BrokerClient, kitchen: Kitchen) -> None:
    client.committed([SOUP])
    kitchen.hang_up()
    with capture_logs() as logs:
        assert client.committed([SOUP])
        kitchen.hang_up()
        with client.pinned() as broker:
            assert broker.leader_log(SOUP, 4, HISTORY).high_watermark == 33
            broker.delete_records(SOUP, 20)
        kitchen.hang_up()
        assert client.groups(())
    assert not logs
    assert len(kitchen.of(BrokerApi.DELETE_RECORDS)) == 1


def test_nor_is_one_that_it_closes_when_it_is_asked(client: BrokerClient, kitchen: Kitchen) -> None:
    client.committed([SOUP])

    def close_once(_: Mapping[str, Any]) -> None:
        kitchen.answers[BrokerApi.LIST_OFFSETS] = kitchen._offsets

    kitchen.answers[BrokerApi.LIST_OFFSETS] = close_once
    with capture_logs() as logs:
        assert client.committed([SOUP])
    assert not logs
    assert len(kitchen.of(BrokerApi.LIST_OFFSETS)) == 3


def test_a_second_connection_that_is_closed_is_silence(client: BrokerClient, kitchen: Kitchen) -> None:
    client.committed([SOUP])
    kitchen.answers[BrokerApi.LIST_OFFSETS] = lambda _: None
    with capture_logs() as logs, pytest.raises(TransientError, match="closed the connection"):
        client.committed([SOUP])
    assert [each["event"] for each in logs] == ["broker_unavailable"]
    assert len(kitchen.of(BrokerApi.LIST_OFFSETS)) == 3


def test_a_broker_that_has_stopped_is_silent(client: BrokerClient, kitchen: Kitchen) -> None:
    client.committed([SOUP])
    kitchen.close()
    with capture_logs() as logs, pytest.raises(TransientError):
        client.committed([SOUP])
    assert [(each["event"], "refused" in each["reason"]) for each in logs] == [("broker_unavailable", True)]


def test_one_that_takes_its_time_is_not_asked_twice(kitchen: Kitchen, clock: ManualClock) -> None:
    hurried = ClientProperties(request_timeout_s=0.1)
    client = BrokerClient([kitchen.address], hurried, cluster_id=lambda: "kitchen-1", node_id=lambda: 7, clock=clock)
    client.committed([SOUP])
    answer, gone = threading.Event(), threading.Event()

    def wait(_: Mapping[str, Any]) -> None:
        answer.wait(10)
        gone.set()

    kitchen.answers[BrokerApi.LIST_OFFSETS] = wait
    with pytest.raises(TransientError, match="timed out"):
        client.committed([SOUP])
    answer.set()
    assert gone.wait(10)
    assert len(kitchen.of(BrokerApi.LIST_OFFSETS)) == 2
    client.close()


def test_what_a_deletion_rests_on_is_read_over_its_own_connection(client: BrokerClient, kitchen: Kitchen) -> None:
    """Or it is not sent: another connection may lead to another broker process."""
    with client.pinned() as broker:
        broker.leader_log(SOUP, 4, HISTORY)
        kitchen.hang_up()
        with pytest.raises(TransientError, match="closed the connection"):
            broker.delete_records(SOUP, 20)
    assert not kitchen.of(BrokerApi.DELETE_RECORDS)


def test_nor_is_a_deletion_sent_twice(client: BrokerClient, kitchen: Kitchen) -> None:
    client.committed([SOUP])
    kitchen.answers[BrokerApi.DELETE_RECORDS] = lambda _: None
    with client.pinned() as broker, pytest.raises(TransientError, match="closed the connection"):
        broker.delete_records(SOUP, 20)
    assert len(kitchen.of(BrokerApi.DELETE_RECORDS)) == 1


def test_a_broker_of_another_cluster_is_not_asked(client: BrokerClient, kitchen: Kitchen) -> None:
    kitchen.cluster_id = "kitchen-2"
    with capture_logs() as logs, pytest.raises(ForeignOwner, match="is of cluster kitchen-2"):
        client.committed([SOUP])
    assert logs[0]["log_level"] == "error"


def test_this_nodes_own_broker_is_found_by_any_other(kitchen: Kitchen, clock: ManualClock) -> None:
    with Kitchen() as other:
        other.own = kitchen.address
        nowhere = BrokerAddress("127.0.0.1", 1)
        client = BrokerClient([nowhere, other.address], ClientProperties(), cluster_id=lambda: "kitchen-1", node_id=lambda: 7, clock=clock)
        assert client.committed([SOUP])
        client.close()
    assert not other.of(BrokerApi.LIST_OFFSETS)
    assert len(kitchen.of(BrokerApi.LIST_OFFSETS)) == 1


def test_a_node_that_no_broker_knows_is_not_mistaken_for_another(kitchen: Kitchen, clock: ManualClock) -> None:
    client = BrokerClient([kitchen.address], ClientProperties(), cluster_id=lambda: "kitchen-1", node_id=lambda: 8, clock=clock)
    with pytest.raises(TransientError, match="knows no broker 8"):
        client.committed([SOUP])


def test_groups_are_listed_over_the_cluster(client: BrokerClient) -> None:
    assert client.groups(()) == [Group("bills", False, {SOUP: 31}), Group("mail", False, {SOUP: 12})]


@pytest.mark.parametrize(("code", "kind"), [(30, Unauthorised), (14, TransientError)])
def test_groups_that_cannot_be_listed_are_not_taken_for_none(
    client: BrokerClient, kitchen: Kitchen, code: int, kind: type[Exception]
) -> None:
    kitchen.answers[BrokerApi.LIST_GROUPS] = lambda _: {"error_code": code, "groups": []}
    with pytest.raises(kind):
        client.groups(())
    assert client.committed([SOUP])  # the broker has answered: it is not left alone for that
