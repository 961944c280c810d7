"""Real clients, each reading everything there is; what they got, in the fields of the expected files."""

import base64
import hashlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import aiokafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stub re-exports nothing

from tests.fixtures import Isolation

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its own, on being imported
    import kafka

Places = list[tuple[str, int]]
Rows = list[dict[str, Any]]
Paused = Callable[[int], None]

TIMEOUT_S = 20.0
_SHOWN_BYTES = 2048  # longer values stand in the expected files as length and digest


def text(raw: bytes | None) -> Any:
    if raw is None:
        return None
    if len(raw) > _SHOWN_BYTES:
        return {"len": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    return base64.b64encode(raw).decode()


def _raw(value: str | bytes | None) -> bytes | None:
    assert not isinstance(value, str)  # it is said to be possible, and is not
    return value


def in_order(rows: Iterable[dict[str, Any]]) -> Rows:
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def _librdkafka(bootstrap: str, isolation: Isolation, **settings: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.queue.backoff.ms": 2,
            **settings,
        }
    )


def librdkafka_watermarks(bootstrap: str, places: Places, isolation: Isolation) -> dict[tuple[str, int], tuple[int, int]]:
    """Low and high watermark (or last stable offset) per partition: from the admin client, which requests all at once. The consumer takes a
    tenth of a second for each: its answer for the first one must agree."""
    level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
    admin = AdminClient({"bootstrap.servers": bootstrap})
    low, high = (
        {(at.topic, at.partition): future.result().offset for at, future in found.items()}
        for found in (
            admin.list_offsets({TopicPartition(*place): spec for place in places}, isolation_level=level, request_timeout=TIMEOUT_S)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        )
    )
    consumer = _librdkafka(bootstrap, isolation)
    try:
        first = consumer.get_watermark_offsets(TopicPartition(*places[0]), timeout=TIMEOUT_S)
    finally:
        consumer.close()
    assert first == (low[places[0]], high[places[0]])
    return {place: (low[place], high[place]) for place in places}


def read_with_librdkafka(bootstrap: str, places: Places, isolation: Isolation, *, after: Paused = lambda _: None, **settings: Any) -> Rows:
    """All records. `after` is called after each, with how many there are."""
    consumer = _librdkafka(bootstrap, isolation, **settings)
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in places])
        rows: Rows = []
        unfinished = set(places)
        while unfinished:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"nothing came for {TIMEOUT_S} s, {unfinished} are unfinished"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unfinished.discard((message.topic(), message.partition()))
                continue
            timestamp_type, timestamp = message.timestamp()
            rows.append(
                {
                    "topic": message.topic(),
                    "partition": message.partition(),
                    "offset": message.offset(),
                    "timestamp": timestamp,
                    "timestamp_type": {1: "CreateTime", 2: "LogAppendTime"}[timestamp_type],
                    "leader_epoch": message.leader_epoch(),
                    "key": text(_raw(message.key())),
                    "value": text(_raw(message.value())),
                    "headers": [[header[0], text(_raw(header[1]))] for header in message.headers() or []],
                }
            )
            after(len(rows))
        return in_order(rows)
    finally:
        consumer.close()


def read_with_kafka_python(bootstrap: str, places: Places, isolation: Isolation, **settings: Any) -> Rows:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, group_id=None, check_crcs=True, **settings)
    try:
        wanted = [kafka.TopicPartition(*place) for place in places]
        consumer.assign(wanted)
        consumer.seek_to_beginning(*wanted)
        ends = consumer.end_offsets(wanted)
        rows: Rows = []
        while any(consumer.position(each) < end for each, end in ends.items()):
            for records in consumer.poll(timeout_ms=500).values():
                rows += [_row(each, leader_epoch=each.leader_epoch) for each in records]
        return in_order(rows)
    finally:
        consumer.close()


async def read_with_aiokafka(bootstrap: str, places: Places, isolation: Isolation) -> Rows:
    """aiokafka does not tell a record's leader epoch."""
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, group_id=None, check_crcs=True)
    await consumer.start()
    try:
        wanted = [aiokafka.TopicPartition(*place) for place in places]
        consumer.assign(wanted)
        await consumer.seek_to_beginning(*wanted)
        ends = await consumer.end_offsets(wanted)
        rows: Rows = []
        while any([await consumer.position(each) < end for each, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                rows += [_row(each) for each in records]
        return in_order(rows)
    finally:
        await consumer.stop()


def _row(record: Any, **more: Any) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": {0: "CreateTime", 1: "LogAppendTime"}[record.timestamp_type],
        "key": text(record.key),
        "value": text(record.value),
        "headers": [[name, text(value)] for name, value in record.headers],
        **more,
    }
