"""Requests and answers over sockets, limits and hostile clients; the log is a fake with real batches."""

import asyncio
import errno
import socket
import struct
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headwater.gateway import messages
from headwater.gateway.config import GatewayConfig
from headwater.gateway.connection import RECEIVE_BYTES, Connection
from headwater.gateway.handlers import VERSIONS, metadata
from headwater.gateway.handlers.fetch import PER_TURN, Fetched, Fetcher
from headwater.gateway.messages import Fields, Schema
from headwater.gateway.patience import Patience, WantedOffset
from headwater.gateway.protocol import Api, Code
from headwater.gateway.server import GatewayServer
from headwater.gateway.topic_snapshot import ENCODINGS_BYTES_MAX, TopicSnapshot, TopicSnapshots, TopicView
from headwater_core.clock import SystemClock
from headwater_core.errors import CorruptData, DiskFull, NotFound, OffsetOutOfRange, TransientError, Unauthorised, UsageError
from headwater_core.partition import topic_id_bytes
from hydration.config import ReadPriority
from hydration.partition_log import Isolation
from tests.events import written_events
from tests.headwater.gateway.fakes import FakeLog, FakeLogs, a_batch, a_topic_partition, on_its_way
from tests.headwater.gateway.raw import RawClient, a_fetch, a_request
from tests.headwater_core.manual_clock import ManualClock


def a_config(**more: Any) -> GatewayConfig:
    return GatewayConfig(**{"listen": "127.0.0.1:0", "metadata_ttl_s": 0.0, "poll_s": 0.01, **more})


@pytest.fixture
def soup(tmp_path: Path) -> FakeLog:
    """Ten batches of ten records, offsets 0 to 99, timestamps 1000 to 1099."""
    batches = [a_batch(base, [b"v%d" % at for at in range(base, base + 10)], 1000 + base, leader_epoch=3) for base in range(0, 100, 10)]
    return FakeLog(a_topic_partition("soup"), tmp_path / "soup.log", batches, leader_epoch=3)


@pytest.fixture
def salad(tmp_path: Path) -> FakeLog:
    return FakeLog(a_topic_partition("salad"), tmp_path / "salad.log", [a_batch(0, [b"x" * 5000])])


@pytest.fixture
def server(soup: FakeLog, salad: FakeLog) -> Iterator[GatewayServer]:
    with GatewayServer(FakeLogs(soup, salad), a_config()) as running:
        yield running
    assert soup.open_results == salad.open_results == 0


@pytest.fixture
def client(server: GatewayServer) -> Iterator[RawClient]:
    with RawClient(server.address) as connected:
        yield connected


def until(what: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not what():
        pause.wait(0.005)


# -- who is here ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS[Api.API_VERSIONS])
def test_every_version_of_api_versions_lists_what_is_offered(client: RawClient, version: int) -> None:
    asked = {"client_software_name": "raw", "client_software_version": "1"}
    answer = client.ask(Api.API_VERSIONS, version, **asked)
    assert {each["api_key"]: range(each["min_version"], each["max_version"] + 1) for each in answer["api_keys"]} == VERSIONS
    assert answer["error_code"] == Code.NONE


def test_schemas_are_loaded_when_a_client_speaks_their_version_and_beside_the_event_loop(
    soup: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[str, int, int]] = []
    real = messages._schema

    def schema(api_key: int, version: int, kind: str) -> Schema:
        loaded.append((threading.current_thread().name, api_key, version))
        return real(api_key, version, kind)

    frames = a_request(Api.FETCH, 4, a_fetch(("soup", 0, 0))), struct.pack(">ihhih", 14, Api.API_VERSIONS, 99, 1, -1) + b"what"
    monkeypatch.setattr(messages, "_schema", schema)
    for each in (messages.request_schema, messages.response_schema):
        each.cache_clear()
    with GatewayServer(FakeLogs(soup), a_config()) as server, RawClient(server.address) as client:
        for frame in frames:
            client.socket.sendall(frame)
            client.frame()
    newest = {(api, versions[-1]) for api, versions in VERSIONS.items()}
    assert {(api, version) for _, api, version in loaded} == newest | {(Api.FETCH, 4), (Api.API_VERSIONS, 0)}
    assert "gateway" not in {thread for thread, _, _ in loaded}


def test_a_newer_client_gets_the_versions_in_the_oldest_form(client: RawClient) -> None:
    client.socket.sendall(struct.pack(">ihhih", 14, Api.API_VERSIONS, 99, 1, -1) + b"what")
    answer = client.answer(Api.API_VERSIONS, 0)
    assert answer["error_code"] == Code.UNSUPPORTED_VERSION
    assert len(answer["api_keys"]) == len(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS[Api.METADATA])
def test_metadata_names_every_topic_and_this_listener(client: RawClient, server: GatewayServer, version: int) -> None:
    answer = client.ask(Api.METADATA, version, topics=[] if version == 0 else None, allow_auto_topic_creation=True, **_operations(version))
    assert [(broker["host"], broker["port"]) for broker in answer["brokers"]] == [server.address]
    assert [topic["name"] for topic in answer["topics"]] == ["salad", "soup"]
    (partition,) = answer["topics"][1]["partitions"]
    assert partition["leader_id"] == answer["brokers"][0]["node_id"]
    if version >= 7:
        assert partition["leader_epoch"] == 3
    if version >= 10:
        assert answer["topics"][1]["topic_id"] == topic_id_bytes(a_topic_partition("soup").topic_id)


def _operations(version: int) -> dict[str, Any]:
    return {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False} if version >= 8 else {}


def test_an_unknown_topic_is_unknown_and_not_created(client: RawClient) -> None:
    asked = [{"name": "soup"}, {"name": "nobody"}, {"name": "soup"}, {"name": "../etc"}]
    answer = client.ask(Api.METADATA, 4, topics=asked, allow_auto_topic_creation=True)
    assert [(topic["name"], topic["error_code"]) for topic in answer["topics"]] == [("soup", 0), ("nobody", 3), ("../etc", 3)]


def test_a_topic_is_found_by_its_id(client: RawClient) -> None:
    known, unknown = topic_id_bytes(a_topic_partition("soup").topic_id), b"u" * 16
    asked = [{"topic_id": known, "name": None}, {"topic_id": unknown, "name": None}]
    answer = client.ask(Api.METADATA, 12, topics=asked, include_topic_authorized_operations=False)
    assert [(topic["name"], topic["error_code"]) for topic in answer["topics"]] == [("soup", 0), (None, Code.UNKNOWN_TOPIC_ID)]


def test_clients_are_sent_where_the_operator_says(soup: FakeLog) -> None:
    config = a_config(advertised="kafka.example:9999")
    with GatewayServer(FakeLogs(soup), config) as server, RawClient(server.address) as client:
        (broker,) = client.ask(Api.METADATA, 1, topics=None)["brokers"]
        assert (broker["host"], broker["port"]) == ("kafka.example", 9999)
        coordinator = client.ask(Api.FIND_COORDINATOR, 2, key="g", key_type=0)
        assert (coordinator["host"], coordinator["port"]) == ("kafka.example", 9999)


def test_metadata_shows_a_new_leader_epoch(client: RawClient, soup: FakeLog) -> None:
    soup.leader_epoch = 8
    answer = client.ask(Api.METADATA, 7, topics=[{"name": "soup"}], allow_auto_topic_creation=False)
    assert answer["topics"][0]["partitions"][0]["leader_epoch"] == 8


@pytest.mark.parametrize("version", VERSIONS[Api.FIND_COORDINATOR])
def test_every_group_is_coordinated_here(client: RawClient, server: GatewayServer, version: int) -> None:
    answer = client.ask(Api.FIND_COORDINATOR, version, key="g", key_type=0, coordinator_keys=["g"])
    found = answer["coordinators"][0] if version >= 4 else answer
    assert (found["host"], found["port"], found["error_code"]) == (*server.address, 0)


@pytest.mark.parametrize("version", VERSIONS[Api.OFFSET_FETCH])
def test_no_group_has_committed_anything(client: RawClient, version: int) -> None:
    asked = [{"name": "soup", "topic_id": b"t" * 16, "partition_indexes": [0, 7]}]
    answer = client.ask(
        Api.OFFSET_FETCH, version, group_id="g", topics=asked, groups=[{"group_id": "g", "topics": asked}], require_stable=True
    )
    group = answer["groups"][0] if version >= 8 else answer
    assert [partition["committed_offset"] for partition in group["topics"][0]["partitions"]] == [-1, -1]
    assert group.get("error_code", 0) == 0


@pytest.mark.parametrize("version", VERSIONS[Api.DESCRIBE_CLUSTER])
def test_the_cluster_is_this_endpoint(client: RawClient, version: int) -> None:
    answer = client.ask(
        Api.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=False
    )
    assert answer["cluster_id"] == "fake-cluster"
    assert len(answer["brokers"]) == 1


@pytest.mark.parametrize("version", VERSIONS[Api.PRODUCE])
def test_producing_is_refused(client: RawClient, version: int) -> None:
    data = [{"name": "soup", "topic_id": b"t" * 16, "partition_data": [{"index": 0, "records": a_batch(0, [b"v"])}]}]
    with capture_logs() as logs:
        answer = client.ask(Api.PRODUCE, version, transactional_id=None, acks=-1, timeout=1000, topic_data=data)
    (topic,) = answer["responses"]
    assert topic["partition_responses"][0]["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
    assert [each["event"] for each in logs] == ["produce_refused"]


# -- where things are -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS[Api.LIST_OFFSETS])
@pytest.mark.parametrize(
    ("timestamp", "offset", "found_timestamp"),
    [(-1, 100, -1), (-2, 0, -1), (-3, 99, 1099), (-4, 0, -1), (-5, -1, -1), (-6, 0, -1), (0, 0, 1000), (1042, 42, 1042), (5000, -1, -1)],
)
def test_offsets_are_listed(client: RawClient, version: int, timestamp: int, offset: int, found_timestamp: int) -> None:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = [{"name": "soup", "partitions": [partition]}]
    answer = client.ask(Api.LIST_OFFSETS, version, replica_id=-1, isolation_level=1, topics=topics, timeout=1000)
    ((found,),) = (topic["partitions"] for topic in answer["topics"])
    assert (found["error_code"], found["offset"], found["timestamp"]) == (0, offset, found_timestamp)
    if version >= 4 and timestamp in (-1, 1042):
        assert found["leader_epoch"] == 3


def test_offsets_of_an_unknown_partition_are_unknown(client: RawClient) -> None:
    topics = [{"name": "soup", "partitions": [{"partition_index": 9, "timestamp": -1}]}]
    answer = client.ask(Api.LIST_OFFSETS, 2, replica_id=-1, isolation_level=0, topics=topics)
    assert answer["topics"][0]["partitions"][0]["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", VERSIONS[Api.OFFSET_FOR_LEADER_EPOCH])
@pytest.mark.parametrize(("epoch", "answer"), [(3, (3, 100)), (9, (-1, -1)), (1, (1, 0))])
def test_epochs_end_where_the_log_says(client: RawClient, version: int, epoch: int, answer: tuple[int, int]) -> None:
    topics = [{"topic": "soup", "partitions": [{"partition": 0, "current_leader_epoch": 3, "leader_epoch": epoch}]}]
    (topic,) = client.ask(Api.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=topics)["topics"]
    (found,) = topic["partitions"]
    assert (found["error_code"], found["leader_epoch"], found["end_offset"]) == (0, *answer)


# -- fetching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS[Api.FETCH])
@pytest.mark.parametrize("isolation", [0, 1])
def test_what_is_fetched_is_the_file_byte_for_byte(client: RawClient, soup: FakeLog, version: int, isolation: int) -> None:
    facts = a_fetch(("soup", 0, 25), isolation_level=isolation)
    facts["topics"][0]["topic_id"] = topic_id_bytes(soup.partition.topic_id)
    answer = client.fetch(facts, version)
    assert answer["error_code"] == 0
    assert answer["records"][:8] == (20).to_bytes(8, "big")  # the batch that holds offset 25
    assert soup.path.read_bytes().endswith(answer["records"])
    assert answer["high_watermark"] == 100
    assert answer["last_stable_offset"] == (100 if isolation else -1)
    assert answer["aborted_transactions"] == ([] if isolation else None)


def test_an_unknown_topic_id_has_its_own_code(client: RawClient) -> None:
    facts = a_fetch(("soup", 0, 0))
    facts["topics"][0]["topic_id"] = b"u" * 16
    assert client.fetch(facts, 13)["error_code"] == Code.UNKNOWN_TOPIC_ID


def test_one_batch_comes_however_small_the_limits(client: RawClient, salad: FakeLog) -> None:
    for facts in (a_fetch(("salad", 0, 0), partition_max_bytes=1), a_fetch(("salad", 0, 0), max_bytes=1)):
        assert client.fetch(facts)["records"] == salad.path.read_bytes()


def test_max_bytes_bounds_the_whole_answer(client: RawClient, soup: FakeLog) -> None:
    size = soup.path.stat().st_size
    answer = client.ask(Api.FETCH, 12, **a_fetch(("soup", 0, 0), ("salad", 0, 0), max_bytes=size + 100))
    first, second = (topic["partitions"][0] for topic in answer["responses"])
    assert len(first["records"]) == size
    assert second["records"] == b""  # 5000 bytes would not fit
    assert (second["error_code"], second["high_watermark"]) == (0, 1)


def test_partitions_after_a_full_answer_still_tell_their_high_watermark(client: RawClient) -> None:
    answer = client.ask(Api.FETCH, 12, **a_fetch(("salad", 0, 0), ("soup", 0, 0), max_bytes=100))
    assert [topic["partitions"][0]["high_watermark"] for topic in answer["responses"]] == [1, 100]
    assert [len(topic["partitions"][0]["records"]) > 0 for topic in answer["responses"]] == [True, False]


def test_a_fetch_at_the_end_waits_for_more(client: RawClient, soup: FakeLog) -> None:
    client.socket.sendall(a_request(Api.FETCH, 12, a_fetch(("soup", 0, 100), max_wait=8000)))
    until(lambda: soup.reads >= 3)  # it looks again and again
    soup.append(a_batch(100, [b"new"]))
    assert client.answer(Api.FETCH, 12)["responses"][0]["partitions"][0]["records"] == a_batch(100, [b"new"])
    assert soup.reads < 1000


def test_a_fetch_at_the_end_is_empty_when_its_time_is_over(client: RawClient) -> None:
    answer = client.fetch(a_fetch(("soup", 0, 100), max_wait=30))
    assert (answer["error_code"], answer["records"], answer["high_watermark"]) == (0, b"", 100)


def test_min_bytes_are_waited_for_and_then_not(client: RawClient, soup: FakeLog) -> None:
    size = soup.path.stat().st_size
    assert len(client.fetch(a_fetch(("soup", 0, 0), max_wait=30, min_bytes=size + 1))["records"]) == size
    assert soup.reads == 1  # it has something: it is not read again


def test_a_chunk_on_its_way_is_waited_for(client: RawClient, soup: FakeLog) -> None:
    pending = on_its_way()
    soup.next_reads = [pending]
    client.socket.sendall(a_request(Api.FETCH, 12, a_fetch(("soup", 0, 0), max_wait=0)))
    threading.Timer(0.05, lambda: pending.future.set_result(soup.read(0, 1 << 20, Isolation.READ_UNCOMMITTED))).start()
    assert client.answer(Api.FETCH, 12)["responses"][0]["partitions"][0]["records"] == soup.path.read_bytes()


def test_a_chunk_that_takes_long_is_an_empty_answer_and_no_error(soup: FakeLog) -> None:
    soup.next_reads = [on_its_way()]
    config = a_config(hydration_wait_s=0.05)
    with GatewayServer(FakeLogs(soup), config) as server, RawClient(server.address) as client:
        answer = client.fetch(a_fetch(("soup", 0, 0)))
        assert (answer["error_code"], answer["records"]) == (0, b"")
        assert [answer[name] for name in ("high_watermark", "last_stable_offset", "log_start_offset")] == [100, 100, 0]
        assert client.fetch(a_fetch(("soup", 0, 0)))["records"] == soup.path.read_bytes()


def test_a_chunk_that_never_comes_is_a_retriable_error_in_the_end(soup: FakeLog) -> None:
    config = a_config(hydration_wait_s=0.0, storage_wait_s=0.2)
    with GatewayServer(FakeLogs(soup), config) as server, RawClient(server.address) as client:
        codes: list[int] = []
        began_s = monotonic()
        while not codes or (codes[-1] == 0 and monotonic() - began_s < 20):
            soup.next_reads = [on_its_way()]
            codes.append(client.fetch(a_fetch(("soup", 0, 0)))["error_code"])
        assert codes[0] == 0
        assert codes[-1] == Code.KAFKA_STORAGE_ERROR
        assert monotonic() - began_s >= 0.2


def test_data_at_hand_does_not_wait_for_a_chunk_of_another_partition(client: RawClient, soup: FakeLog) -> None:
    soup.next_reads = [on_its_way()]
    answer = client.ask(Api.FETCH, 12, **a_fetch(("soup", 0, 0), ("salad", 0, 0), max_wait=60_000))
    assert [len(topic["partitions"][0]["records"]) > 0 for topic in answer["responses"]] == [False, True]


@pytest.mark.parametrize(
    ("error", "code", "level"),
    [
        (OffsetOutOfRange(5, 10, 20), Code.OFFSET_OUT_OF_RANGE, None),
        (TransientError("store unreachable"), Code.KAFKA_STORAGE_ERROR, "warning"),
        (DiskFull("cache"), Code.KAFKA_STORAGE_ERROR, "error"),
        (Unauthorised("bucket"), Code.KAFKA_STORAGE_ERROR, "error"),
        (CorruptData("soup", 7, "CRC"), Code.CORRUPT_MESSAGE, "error"),
        (OSError(errno.EIO, "Input/output error"), Code.KAFKA_STORAGE_ERROR, "error"),
        (RecursionError(), Code.KAFKA_STORAGE_ERROR, "error"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_errors_become_codes(client: RawClient, soup: FakeLog, error: Any, code: Code, level: str | None, late: bool) -> None:
    """At once, and for each of two fetches; one event for the operator."""
    if late:
        failing = on_its_way()
        failing.future.set_exception(error)
        soup.next_reads = [failing, error]
    else:
        soup.next_reads = [error, error]
    with written_events(ManualClock()) as logs:
        for _ in range(2):
            answer = client.fetch(a_fetch(("soup", 0, 0), max_wait=60_000))
            assert (answer["error_code"], answer["records"]) == (code, b"")
    assert [each["log_level"] for each in logs] == ([level] if level else [])


def test_an_unexpected_error_is_one_partitions_and_comes_with_its_traceback(client: RawClient, soup: FakeLog, salad: FakeLog) -> None:
    soup.next_reads = [OSError(errno.EIO, "Input/output error")]
    with capture_logs() as logs:
        answer = client.ask(Api.FETCH, 12, **a_fetch(("soup", 0, 0), ("salad", 0, 0)))
    first, second = (topic["partitions"][0] for topic in answer["responses"])
    assert (first["error_code"], first["records"]) == (Code.KAFKA_STORAGE_ERROR, b"")
    assert (second["error_code"], second["records"]) == (0, salad.path.read_bytes())
    assert isinstance(logs[0]["exc_info"], OSError)


def test_an_older_leader_epoch_than_metadata_tells_is_fenced_and_a_newer_one_served(client: RawClient, soup: FakeLog) -> None:
    client.ask(Api.METADATA, 7, topics=[], allow_auto_topic_creation=False)
    soup.leader_epoch = 9  # not advertised yet
    assert client.fetch(a_fetch(("soup", 0, 0), current_leader_epoch=3))["error_code"] == 0
    assert client.fetch(a_fetch(("soup", 0, 0), current_leader_epoch=2))["error_code"] == Code.FENCED_LEADER_EPOCH
    assert client.fetch(a_fetch(("soup", 0, 0), current_leader_epoch=4))["error_code"] == 0


def test_an_epoch_that_cannot_be_known_now_is_not_advertised_and_not_fenced(soup: FakeLog) -> None:
    """librdkafka says 0 when Metadata said -1; sent back to Metadata for that, it would retry forever."""
    soup.next_bounds = [TransientError("store unreachable")] * 2
    with GatewayServer(FakeLogs(soup), a_config()) as server, RawClient(server.address) as client:
        answer = client.ask(Api.METADATA, 7, topics=[{"name": "soup"}], allow_auto_topic_creation=False)
        assert answer["topics"][0]["partitions"][0]["leader_epoch"] == -1
        assert client.fetch(a_fetch(("soup", 0, 0), current_leader_epoch=0))["error_code"] == 0
        answer = client.ask(Api.METADATA, 7, topics=[{"name": "soup"}], allow_auto_topic_creation=False)
        assert answer["topics"][0]["partitions"][0]["leader_epoch"] == 3


def test_there_are_no_fetch_sessions(client: RawClient) -> None:
    for session in ({"session_id": 5, "session_epoch": 1}, {"session_id": 0, "session_epoch": 1}):
        answer = client.ask(Api.FETCH, 12, **a_fetch(("soup", 0, 0), **session))
        assert (answer["error_code"], answer["session_id"]) == (Code.FETCH_SESSION_ID_NOT_FOUND, 0)
    assert client.fetch(a_fetch(("soup", 0, 0), session_id=0, session_epoch=0))["error_code"] == 0


def test_a_repeated_partition_is_answered_once(client: RawClient, soup: FakeLog) -> None:
    answer = client.ask(Api.FETCH, 12, **a_fetch(*[("soup", 0, 0)] * 1000))
    assert len(answer["responses"]) == 1
    assert soup.reads == 1


def test_pipelined_requests_are_answered_in_order(client: RawClient) -> None:
    client.socket.sendall(
        b"".join(a_request(Api.FETCH, 12, a_fetch(("soup", 0, at * 10), max_wait=20 if at % 2 else 0), at) for at in range(10))
    )
    for at in range(10):
        (topic,) = client.answer(Api.FETCH, 12, correlation_id=at)["responses"]
        assert topic["partitions"][0]["records"][:8] == (at * 10).to_bytes(8, "big")


def test_a_log_that_shrinks_under_an_answer_ends_the_connection(server: GatewayServer, soup: FakeLog) -> None:
    soup.path.write_bytes(soup.path.read_bytes()[:100])  # as a broker truncates after an election
    with RawClient(server.address) as client, pytest.raises(ConnectionError):
        client.fetch(a_fetch(("soup", 0, 0)))


# -- hostile and slow clients ---------------------------------------------------------------------------------------


HOSTILE = {
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "a negative size": struct.pack(">i", -5),
    "a size of nothing": struct.pack(">i", 0),
    "a huge size": struct.pack(">i", 2**31 - 1),
    "an unknown api": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "a negative api": struct.pack(">ihhih", 10, -1, 0, 1, -1),
    "a version not offered": struct.pack(">ihhih", 10, 1, 3, 1, -1),
    "a client id too long": struct.pack(">ihhih", 10, 1, 12, 1, 500),
    "half a body": struct.pack(">ihhih", 20, 1, 12, 1, -1) + bytes(10),
    "an endless array": struct.pack(">ihhih", 10 + 26 + 5, 1, 12, 1, -1) + bytes(26) + b"\xff\xff\xff\xff\x0f",
    "a negative array": struct.pack(">ihhih", 14, 3, 1, 1, -1) + struct.pack(">i", -7),
    "text that is none": struct.pack(">ihhih", 18, 3, 1, 1, -1) + struct.pack(">ih", 1, 2) + b"\xff\xfe",
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_malformed_frame_closes_its_connection_and_nothing_else(server: GatewayServer, client: RawClient, hostile: str) -> None:
    with capture_logs() as logs, RawClient(server.address) as other:
        other.socket.sendall(HOSTILE[hostile])
        assert other.is_closed_by_peer()
    assert [each["event"] for each in logs] == ["malformed_request"]
    assert logs[0]["peer"].startswith("127.0.0.1:")
    assert logs[0]["reason"]
    assert client.fetch(a_fetch(("soup", 0, 0)))["error_code"] == 0


def test_a_frame_cut_short_is_reported(server: GatewayServer) -> None:
    with capture_logs() as logs, RawClient(server.address) as client:
        client.socket.sendall(a_request(Api.FETCH, 12, a_fetch(("soup", 0, 0)))[:20])
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_closed_by_peer()
    assert [each["event"] for each in logs] == ["malformed_request"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_bytes_hurt_the_gateway(server: GatewayServer, data: st.DataObject) -> None:
    """Whatever one connection sends, the next is served."""
    frame = bytearray(a_request(Api.FETCH, data.draw(st.sampled_from([4, 11, 12])), a_fetch(("soup", 0, 0), ("salad", 0, 0))))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(frame)))
        frame[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    with RawClient(server.address) as hostile, RawClient(server.address) as client:
        hostile.socket.sendall(frame)
        hostile.socket.shutdown(socket.SHUT_WR)
        assert client.fetch(a_fetch(("soup", 0, 0)))["error_code"] == 0


def test_one_connection_too_many_is_closed_and_those_at_work_stay(soup: FakeLog, salad: FakeLog) -> None:
    with (
        capture_logs() as logs,
        GatewayServer(FakeLogs(soup, salad), a_config(connections_max=2)) as server,
        RawClient(server.address) as one,
        RawClient(server.address) as two,
    ):
        one.socket.sendall(a_request(Api.FETCH, 12, a_fetch(("soup", 0, 100), max_wait=60_000)))
        two.socket.sendall(a_request(Api.FETCH, 12, a_fetch(("salad", 0, 1), max_wait=60_000)))
        until(lambda: soup.reads > 0 and salad.reads > 0)
        for _ in range(3):
            with RawClient(server.address) as three:
                assert three.is_closed_by_peer()
        soup.append(a_batch(100, [b"new"]))
        assert one.answer(Api.FETCH, 12)["responses"][0]["partitions"][0]["error_code"] == 0
    assert [each["event"] for each in logs] == ["connection_refused"] * 3


def test_idle_connections_of_one_host_keep_no_other_host_out(soup: FakeLog) -> None:
    with capture_logs() as logs, GatewayServer(FakeLogs(soup), a_config(connections_max=3)) as server:
        many = [RawClient(server.address) for _ in range(3)]
        until(lambda: server._gateway._meter.connections == 3)
        with RawClient(server.address, source="127.0.0.2") as other:
            assert other.fetch(a_fetch(("soup", 0, 0)))["error_code"] == 0
            assert many[0].is_closed_by_peer()  # it was idle for longest
            assert many[2].fetch(a_fetch(("soup", 0, 0)))["error_code"] == 0
        for client in many:
            client.close()
        until(lambda: server._gateway._meter.connections == 0)
    assert [event["event"] for event in logs] == ["idle_connection_closed"]


def test_a_host_at_its_own_limit_loses_its_own_idle_connections(soup: FakeLog) -> None:
    with (
        GatewayServer(FakeLogs(soup), a_config(connections_per_ip_max=1)) as server,
        RawClient(server.address, source="127.0.0.2") as other,
        RawClient(server.address) as first,
    ):
        assert [client.fetch(a_fetch(("soup", 0, 0)))["error_code"] for client in (other, first)] == [0, 0]
        with RawClient(server.address) as second:
            assert second.fetch(a_fetch(("soup", 0, 0)))["error_code"] == 0
            assert first.is_closed_by_peer()
        assert other.fetch(a_fetch(("soup", 0, 0)))["error_code"] == 0


def test_clients_that_read_no_metadata_take_bounded_memory_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {f"topic-{at}": TopicView(f"topic-{at}", at.to_bytes(16, "big"), tuple((p, 5) for p in range(6_000))) for at in range(8)}
    monkeypatch.setattr(TopicSnapshots, "_take", lambda _: TopicSnapshot("fake-cluster", topics))
    limit_bytes = 500 << 10
    with capture_logs() as logs, GatewayServer(FakeLogs(), a_config(unread_bytes_max=limit_bytes, metadata_ttl_s=3600)) as server:
        meter, slow = server._gateway._meter, []
        server._gateway._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # its connections inherit that
        for name in topics:
            slow.append(RawClient(server.address, source="127.0.0.2", receive_bytes=4096))
            slow[-1].socket.sendall(a_request(Api.METADATA, 7, {"topics": [{"name": name}], "allow_auto_topic_creation": False}))
        until(lambda: meter.unread_dropped >= 6)
        assert 0 < meter.unread_bytes <= limit_bytes
        with RawClient(server.address) as client:
            answer = client.ask(Api.METADATA, 7, topics=[{"name": "topic-0"}], allow_auto_topic_creation=False)
            assert len(answer["topics"][0]["partitions"]) == 6_000
        for client in slow:
            client.close()
        until(lambda: meter.connections == 0)
        assert meter.unread_bytes == 0
    assert {event["event"] for event in logs} >= {"unread_response_dropped"}


@pytest.mark.parametrize("sent", [b"", a_request(Api.FETCH, 12, a_fetch(("soup", 0, 0)))[:30]])
def test_a_client_that_says_nothing_more_is_let_go(soup: FakeLog, sent: bytes) -> None:
    config = a_config(idle_timeout_s=0.05, request_timeout_s=0.05)
    with GatewayServer(FakeLogs(soup), config) as server, RawClient(server.address) as client:
        client.socket.sendall(sent)
        assert client.is_closed_by_peer()


def test_a_hundred_clients_that_take_nothing_are_closed_and_delay_no_other(tmp_path: Path) -> None:
    big = FakeLog(a_topic_partition("big"), tmp_path / "big.log", [a_batch(at, [bytes(1 << 20)]) for at in range(32)])
    config = a_config(send_timeout_s=0.5, slowest_bytes_per_s=1 << 30)
    with capture_logs() as logs, GatewayServer(FakeLogs(big), config) as server:
        slow = [RawClient(server.address) for _ in range(100)]
        for each in slow:
            each.socket.sendall(a_request(Api.FETCH, 12, a_fetch(("big", 0, 0), partition_max_bytes=32 << 20)))
        with RawClient(server.address) as client:
            assert len(client.fetch(a_fetch(("big", 0, 5)))["records"]) > 1 << 20
        until(lambda: len(logs) == 100)
        for each in slow:
            with pytest.raises(ConnectionError):
                each.frame()
            each.close()
    assert big.open_results == 0
    assert [each["event"] for each in logs] == ["connection_closed"] * 100


def test_a_taken_port_is_a_clear_error(server: GatewayServer) -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        GatewayServer(FakeLogs(), GatewayConfig(listen="{}:{}".format(*server.address)))


def test_stopping_ends_connections_that_wait(soup: FakeLog) -> None:
    with GatewayServer(FakeLogs(soup), a_config()) as server:
        client = RawClient(server.address)
        client.socket.sendall(a_request(Api.FETCH, 12, a_fetch(("soup", 0, 100), max_wait=60_000)))
        until(lambda: soup.reads > 0)
    assert client.is_closed_by_peer()
    client.close()
    assert soup.open_results == 0


# -- clients that leave ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("ahead", [b"", a_request(Api.FETCH, 12, a_fetch(("soup", 0, 100), max_wait=60_000))])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_while_it_waits_frees_its_slot(soup: FakeLog, pending: bool, ahead: bytes, reset: bool) -> None:
    soup.next_reads = [on_its_way()] if pending else []
    with GatewayServer(FakeLogs(soup), a_config(connections_max=1)) as server:
        with RawClient(server.address) as leaver:
            leaver.socket.sendall(a_request(Api.FETCH, 12, a_fetch(("soup", 0, 100), max_wait=60_000)) + ahead)
            until(lambda: soup.reads > 0)
            if reset:
                leaver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: is_served(server))


def is_served(server: GatewayServer) -> bool:
    with RawClient(server.address) as client:
        try:
            return client.fetch(a_fetch(("soup", 0, 0))).get("error_code") is not None
        except ConnectionError:
            return False


def test_a_client_that_closes_its_sending_end_is_answered_at_once(client: RawClient, soup: FakeLog) -> None:
    client.socket.sendall(a_request(Api.FETCH, 12, a_fetch(("soup", 0, 100), max_wait=60_000)))
    until(lambda: soup.reads > 0)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.answer(Api.FETCH, 12)["responses"][0]["partitions"][0]["records"] == b""
    assert client.is_closed_by_peer()


def test_what_is_sent_while_a_fetch_waits_is_not_lost(client: RawClient, soup: FakeLog) -> None:
    """Cut in the middle of a frame, and more of it than is taken in while waiting."""
    many = b"".join(a_request(Api.FETCH, 12, a_fetch(("soup", 0, at % 100)), at) for at in range(1500))
    assert len(many) > RECEIVE_BYTES
    client.socket.sendall(a_request(Api.FETCH, 12, a_fetch(("soup", 0, 100), max_wait=8000)))
    until(lambda: soup.reads > 0)
    client.socket.sendall(many[:50])
    sender = threading.Thread(target=client.socket.sendall, args=(many[50:],))
    sender.start()
    until(lambda: soup.reads > 10)
    soup.append(a_batch(100, [b"new"]))
    assert client.answer(Api.FETCH, 12)["responses"][0]["partitions"][0]["records"] == a_batch(100, [b"new"])
    for at in range(1500):
        (topic,) = client.answer(Api.FETCH, 12, correlation_id=at)["responses"]
        assert topic["partitions"][0]["records"][:8] == (at % 100 // 10 * 10).to_bytes(8, "big")
    sender.join()


# -- what one request may ask for -----------------------------------------------------------------------------------


def test_names_that_clients_invent_are_not_kept(server: GatewayServer, client: RawClient) -> None:
    kept = server._gateway._requests.snapshots._encodings
    for at in range(5):
        asked = [{"name": "soup"}, {"name": f"nobody-{at}" + "x" * 10_000}]
        answer = client.ask(Api.METADATA, 4, topics=asked, allow_auto_topic_creation=False)
        assert [topic["error_code"] for topic in answer["topics"]] == [0, Code.UNKNOWN_TOPIC_OR_PARTITION]
        known = topic_id_bytes(a_topic_partition("soup").topic_id)
        topics = [{"topic_id": known, "name": "y" * 10_000 + str(at)}]
        answer = client.ask(Api.METADATA, 12, topics=topics, include_topic_authorized_operations=False)
        assert answer["topics"][0]["name"] == "soup"
    assert len(kept) == 1
    assert "yyy" not in repr(list(kept))


def test_kept_encodings_are_bounded_in_bytes() -> None:
    with ThreadPoolExecutor(1) as executor:
        snapshots = TopicSnapshots(FakeLogs(), executor, SystemClock(), 1.0)
        for at in range(100):
            snapshots.keep(at, snapshots._snapshot, bytes(1 << 20))
    assert sum(len(each) for each in snapshots._encodings.values()) <= ENCODINGS_BYTES_MAX
    assert 99 in snapshots._encodings


@pytest.mark.parametrize("asked", [[f"topic-{at}" for at in range(101)], ["topic-0", "nobody", *(f"topic-{at}" for at in range(60))], None])
def test_long_metadata_is_encoded_beside_the_event_loop_and_each_topic_once(
    asked: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = {f"topic-{at}": TopicView(f"topic-{at}", at.to_bytes(16, "big"), tuple((p, 5) for p in range(10))) for at in range(200)}
    encoded: list[tuple[str, str]] = []
    real = metadata._topic

    def topic(view: TopicView, node_id: int) -> Fields:
        encoded.append((threading.current_thread().name, view.name))
        return real(view, node_id)

    def looked(_: TopicSnapshots) -> TopicSnapshot:
        """The same topics each time, in new objects; one of them has a new leader."""
        views["topic-150"] = replace(views["topic-150"], partitions=((0, len(encoded)),))
        return TopicSnapshot("fake-cluster", {name: replace(view, encodings={}) for name, view in views.items()})

    monkeypatch.setattr(metadata, "_topic", topic)
    monkeypatch.setattr(TopicSnapshots, "_take", looked)
    facts = {"topics": None if asked is None else [{"name": name} for name in asked], "allow_auto_topic_creation": False}
    with GatewayServer(FakeLogs(), a_config()) as server, RawClient(server.address) as client:
        answers = [client.ask(Api.METADATA, 7, **facts)["topics"] for _ in range(3)]
    names = list(views) if asked is None else list(dict.fromkeys(asked))
    assert [[topic["name"] for topic in answer] for answer in answers] == [names] * 3
    assert all(topic["error_code"] == (0 if topic["name"] in views else 3) for answer in answers for topic in answer)
    assert {name for thread, name in encoded if thread == "gateway"} <= {"topic-150"}  # one topic alone is quick
    counts = Counter(name for _, name in encoded)
    assert {name: count for name, count in counts.items() if count > 1}.keys() <= {"topic-150"}
    if asked is None:
        assert answers[2][150]["partitions"][0]["leader_epoch"] > 0


@pytest.mark.parametrize(
    ("api", "version", "facts"),
    [
        (Api.METADATA, 4, {"topics": [{"name": str(at)} for at in range(10_001)], "allow_auto_topic_creation": False}),
        (Api.OFFSET_FETCH, 6, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0] * 40_001}], "require_stable": False}),
    ],
)
def test_a_request_for_too_much_closes_its_connection(server: GatewayServer, api: Api, version: int, facts: dict[str, Any]) -> None:
    with capture_logs() as logs, RawClient(server.address) as client:
        client.socket.sendall(a_request(api, version, facts))
        assert client.is_closed_by_peer()
    assert [each["event"] for each in logs] == ["malformed_request"]


def test_a_fetch_that_waits_keeps_none_of_its_request(server: GatewayServer, soup: FakeLog) -> None:
    facts = a_fetch(("soup", 0, 100), max_wait=60_000)
    facts["topics"][0]["partitions"] *= 19_000
    frame = a_request(Api.FETCH, 4, facts)
    with RawClient(server.address) as client:
        client.ask(Api.FETCH, 4, **a_fetch(("soup", 0, 100)))
        tracemalloc.start()
        try:
            client.socket.sendall(frame)
            before = soup.reads
            until(lambda: soup.reads > before + 1)  # it waits between its looks; the first is still the request's own turn
            kept_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(frame) > 300_000
    assert kept_bytes < 200_000


def test_unknown_topic_ids_wait_for_news_once(
    server: GatewayServer, client: RawClient, soup: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.ask(Api.METADATA, 7, topics=[], allow_auto_topic_creation=False)
    snapshots, asked = server._gateway._requests.snapshots, []
    real = snapshots.snapshot

    async def snapshot() -> TopicSnapshot:
        asked.append(1)
        return await real()

    monkeypatch.setattr(snapshots, "snapshot", snapshot)
    facts = a_fetch(*[("soup", 0, 0)] * 500)
    for at, topic in enumerate(facts["topics"]):
        topic["topic_id"] = at.to_bytes(16, "big")
    facts["topics"][7]["topic_id"] = topic_id_bytes(soup.partition.topic_id)
    answer = client.ask(Api.FETCH, 13, **facts)
    codes = [topic["partitions"][0]["error_code"] for topic in answer["responses"]]
    assert codes == [0 if at == 7 else Code.UNKNOWN_TOPIC_ID for at in range(500)]
    assert len(asked) == 1


def test_look_ups_of_unknown_partitions_take_no_worker_each(server: GatewayServer, client: RawClient, soup: FakeLog) -> None:
    submitted: list[object] = []
    executor = server._gateway._executor
    real = executor.submit

    def submit(work: Callable[..., Any], *arguments: Any) -> Any:
        submitted.append(work)
        return real(work, *arguments)

    client.ask(Api.API_VERSIONS, 0)
    executor.submit = submit  # type: ignore[method-assign, assignment]
    topics = [{"name": "soup", "partitions": [{"partition_index": at, "timestamp": -1} for at in range(2000)]}]
    answer = client.ask(Api.LIST_OFFSETS, 2, replica_id=-1, isolation_level=0, topics=topics)
    codes = [each["error_code"] for each in answer["topics"][0]["partitions"]]
    assert codes == [0] + [Code.UNKNOWN_TOPIC_OR_PARTITION] * 1999
    assert len(submitted) < 10


def test_a_reader_of_ten_thousand_partitions_is_served(tmp_path: Path) -> None:
    logs = [FakeLog(a_topic_partition("wide", at), tmp_path / "one.log", []) for at in range(10_000)]
    logs[9_999].append(a_batch(0, [b"v"]))
    with GatewayServer(FakeLogs(*logs), a_config(metadata_ttl_s=1.0)) as server, RawClient(server.address, 60) as client:

        def known() -> int:
            answer = client.ask(Api.METADATA, 7, topics=[{"name": "wide"}], allow_auto_topic_creation=False)
            return len(answer["topics"][0]["partitions"])

        until(lambda: known() == 10_000)  # a busy machine may take longer to look at them than a client waits for a look
        partitions = [{"partition_index": at, "current_leader_epoch": -1, "timestamp": -1} for at in range(10_000)]
        listed = client.ask(
            Api.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[{"name": "wide", "partitions": partitions}], timeout=1000
        )
        assert [each["error_code"] for each in listed["topics"][0]["partitions"]] == [0] * 10_000
        facts = a_fetch(("wide", 0, 0), max_wait=60_000)
        (one,) = facts["topics"][0]["partitions"]
        facts["topics"][0]["partitions"] = [{**one, "partition": at} for at in range(10_000)]
        fetched = client.ask(Api.FETCH, 12, **facts)["responses"][0]["partitions"]
        assert [each["error_code"] for each in fetched] == [0] * 10_000
        assert fetched[9_999]["records"] == a_batch(0, [b"v"])


@pytest.mark.parametrize("known", [False, True])
def test_a_fetch_of_many_partitions_leaves_others_their_turns(soup: FakeLog, known: bool) -> None:
    """Between two turns of the event loop it does no more than PER_TURN of them."""
    calls, most = 0, 0

    class CountedLogs(FakeLogs):
        def partition(self, topic: str, partition: int, priority: ReadPriority | None = None) -> FakeLog:
            nonlocal calls
            calls += 1
            if known:
                return soup
            raise NotFound(f"{topic}:{partition}")

    async def others() -> None:
        nonlocal calls, most
        while True:
            most, calls = max(most, calls), 0
            await asyncio.sleep(0)

    async def fetched() -> Fetched:
        ours, theirs = socket.socketpair()
        with ours, theirs, ThreadPoolExecutor(1) as executor:
            logs, config = CountedLogs(soup), a_config()
            fetcher = Fetcher(logs, TopicSnapshots(logs, executor, SystemClock(), 1.0), config)
            facts = a_fetch(("soup", 0, 100))
            facts["topics"][0]["partitions"] = [{**facts["topics"][0]["partitions"][0], "partition": at} for at in range(5000)]
            other = asyncio.create_task(others())
            try:
                return await fetcher.fetch(facts, 12, Connection(ours, config))
            finally:
                other.cancel()

    assert len(asyncio.run(fetched()).fields["responses"][0]["partitions"]) == 5000
    assert 0 < most <= PER_TURN


def test_a_fetch_that_waits_for_nothing_asks_for_no_places(
    server: GatewayServer, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many partitions it names."""
    asked: list[WantedOffset] = []
    monkeypatch.setattr(Patience, "got", lambda _, place: asked.append(place))
    assert client.fetch(a_fetch(("soup", 0, 0)))["error_code"] == 0
    assert not asked
