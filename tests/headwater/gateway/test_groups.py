"""Consumer groups are refused, to real clients: a clear error within seconds, and assign() still works."""

import asyncio
import contextlib
import warnings
from collections.abc import Iterator

import aiokafka
import pytest
from aiokafka.errors import GroupAuthorizationFailedError
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from structlog.testing import capture_logs

from headwater.gateway.config import GatewayConfig
from headwater.gateway.handlers import VERSIONS
from headwater.gateway.protocol import Api, Code
from headwater.gateway.server import GatewayServer
from headwater_core.segments.log_dirs import LogDirs
from hydration.config import HydrationConfig
from hydration.logs import open_logs
from tests.fixtures import unpack
from tests.headwater.gateway.raw import RawClient
from tests.headwater_core.objectstore.memory import MemoryStore

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its own, on being imported
    import kafka
    import kafka.errors

TOPIC = "recipes.none"
PATIENCE_S = 15.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    root = unpack("pantry")
    logs = open_logs(HydrationConfig(), store=MemoryStore(), cache_directory=tmp_path_factory.mktemp("cache"), dirs=LogDirs([root]))
    try:
        with GatewayServer(logs, GatewayConfig(listen="127.0.0.1:0")) as running:
            yield running
    finally:
        logs.close()


def a_consumer(server: GatewayServer, **more: object) -> Consumer:
    return Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest", **more})


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafka_that_subscribes_is_refused(server: GatewayServer, protocol: str) -> None:
    consumer = a_consumer(server, **{"group.protocol": protocol})
    try:
        consumer.subscribe([TOPIC])
        with capture_logs() as logs:
            message = consumer.poll(PATIENCE_S)
        assert message is not None, "neither a record nor an error"
        error = message.error()
        assert error is not None
        assert error.code() == (KafkaError._FATAL if protocol == "consumer" else KafkaError.GROUP_AUTHORIZATION_FAILED)
        assert "Group authorization failed" in error.str()
        assert "group_refused" in [each["event"] for each in logs]
    finally:
        consumer.close()


def test_kafka_python_that_subscribes_is_refused(server: GatewayServer) -> None:
    consumer = kafka.KafkaConsumer(TOPIC, bootstrap_servers=server.bootstrap_servers, group_id="g", consumer_timeout_ms=15_000)
    try:
        with pytest.raises(kafka.errors.GroupAuthorizationFailedError):
            next(consumer)
    finally:
        consumer.close()


def test_aiokafka_that_subscribes_is_refused(server: GatewayServer) -> None:
    async def subscribe() -> None:
        consumer = aiokafka.AIOKafkaConsumer(TOPIC, bootstrap_servers=server.bootstrap_servers, group_id="g")
        try:
            with pytest.raises(GroupAuthorizationFailedError):
                await asyncio.wait_for(consumer.start(), PATIENCE_S)
        finally:
            await asyncio.wait_for(consumer.stop(), PATIENCE_S)

    asyncio.run(subscribe())


# -- assign() with a group id, as many tools do ----------------------------------------------------------------------


def test_librdkafka_reads_on_while_its_commits_are_refused(server: GatewayServer) -> None:
    consumer = a_consumer(server, **{"enable.auto.commit": True, "auto.commit.interval.ms": 10, "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(TOPIC, 0)])
        read: list[Message] = []
        while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
            read.append(message)
        assert message is not None
        assert message.error().code() == KafkaError._PARTITION_EOF  # type: ignore[union-attr]
        assert len(read) > 50
        with pytest.raises(KafkaException) as refused:
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    finally:
        consumer.close()


def test_kafka_python_does(server: GatewayServer) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=server.bootstrap_servers, group_id="g", auto_commit_interval_ms=10, auto_offset_reset="earliest"
    )
    try:
        place = kafka.TopicPartition(TOPIC, 0)
        consumer.assign([place])
        end, read = consumer.end_offsets([place])[place], 0
        while consumer.position(place) < end:
            read += sum(len(each) for each in consumer.poll(timeout_ms=500).values())
        assert read > 50
        with pytest.raises(kafka.errors.GroupAuthorizationFailedError):
            consumer.commit()
    finally:
        consumer.close()


def test_aiokafka_does(server: GatewayServer) -> None:
    async def read() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=server.bootstrap_servers, group_id="g", auto_commit_interval_ms=10, auto_offset_reset="earliest"
        )
        place = aiokafka.TopicPartition(TOPIC, 0)
        consumer.assign([place])
        await consumer.start()
        try:
            end, records = (await consumer.end_offsets([place]))[place], 0
            while await consumer.position(place) < end:
                with contextlib.suppress(GroupAuthorizationFailedError):  # of a refused auto commit, when one is answered meanwhile
                    records += sum(len(each) for each in (await consumer.getmany(timeout_ms=500)).values())
            assert records > 50
            with pytest.raises(GroupAuthorizationFailedError):
                await consumer.commit({place: 7})
        finally:
            await asyncio.wait_for(consumer.stop(), PATIENCE_S)

    asyncio.run(asyncio.wait_for(read(), 4 * PATIENCE_S))


# -- every version ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "version"), [(api, version) for api in (Api.JOIN_GROUP, Api.CONSUMER_GROUP_HEARTBEAT) for version in VERSIONS[api]]
)
def test_joining_is_refused_in_words_where_the_version_has_them(server: GatewayServer, api: Api, version: int) -> None:
    facts = {
        "group_id": "g",
        "member_id": "m",
        "session_timeout": 1000,
        "rebalance_timeout": 1000,
        "protocol_type": "consumer",
        "protocols": [],
        "member_epoch": 0,
        "subscribed_topic_names": [TOPIC],
        "topic_partitions": [],
    }
    with capture_logs() as logs, RawClient(server.address) as client:
        answer = client.ask(api, version, **facts)
    assert answer["error_code"] == Code.GROUP_AUTHORIZATION_FAILED
    if api is Api.CONSUMER_GROUP_HEARTBEAT:
        assert "use assign() instead of subscribe()" in answer["error_message"]
    [refused] = [each for each in logs if each["event"] == "group_refused"]
    assert (refused["group"], refused["peer"].partition(":")[0]) == ("g", "127.0.0.1")


@pytest.mark.parametrize("version", VERSIONS[Api.OFFSET_COMMIT])
def test_a_commit_is_refused_for_each_partition(server: GatewayServer, version: int) -> None:
    partitions = [{"partition_index": at, "committed_offset": 5, "committed_metadata": ""} for at in (0, 3)]
    topics = [{"name": TOPIC, "topic_id": b"t" * 16, "partitions": partitions}]
    with RawClient(server.address) as client:
        answer = client.ask(
            Api.OFFSET_COMMIT, version, group_id="g", generation_id_or_member_epoch=-1, member_id="", retention_time=-1, topics=topics
        )
    ((first, second),) = (topic["partitions"] for topic in answer["topics"])
    assert (first["partition_index"], first["error_code"]) == (0, Code.GROUP_AUTHORIZATION_FAILED)
    assert (second["partition_index"], second["error_code"]) == (3, Code.GROUP_AUTHORIZATION_FAILED)
