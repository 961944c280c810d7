"""A proxy before a real broker whose logs begin in the middle: what is below is in the bucket alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from hydration.config import HydrationConfig
from hydration.logs import open_logs
from tests.fixtures import Isolation, expected, expected_offsets, private_copy, unpack
from tests.headwater.gateway.archives import archive
from tests.headwater.gateway.proxy.running_proxy import running_proxy
from tests.headwater.gateway.readers import Places
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.peers.kafka import KafkaBroker

OPEN = "refunds"  # its broker ends a transaction that is open in the fixture

_PROMPT = {
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 200,
}  # members notice each other at once


def bounds_of(isolation: Isolation) -> list[dict[str, Any]]:
    return [each for each in expected_offsets("pantry", isolation) if each["topic"] != OPEN]


def records_of(isolation: Isolation) -> list[dict[str, Any]]:
    return [each for each in expected("pantry", isolation) if each["topic"] != OPEN]


def places_of(isolation: Isolation) -> Places:
    return [(each["topic"], each["partition"]) for each in bounds_of(isolation)]


class Served(NamedTuple):
    broker: KafkaBroker
    address: str


@contextmanager
def proxied_pantry(work: Path) -> Iterator[Served]:
    """`pantry`: half of each partition of a topic that is not compacted is in the bucket alone."""
    store = MemoryStore()
    archive(unpack("pantry"), store)
    logs = open_logs(HydrationConfig(chunk_bytes=64 << 10), store=store, cache_directory=work / "cache")
    logs.refresh()
    try:
        with KafkaBroker(private_copy("pantry", work), work / "broker", compaction=False, properties=_PROMPT) as broker:
            halves = [TopicPartition(*place, middle) for place, middle in middles().items()]
            admin = broker.admin  # held: its futures die with it
            deleted = admin.delete_records(halves)
            assert sum(_is_deleted(future) for future in deleted.values()) > 10
            with running_proxy(broker.bootstrap, logs) as address:
                yield Served(broker, address)
    finally:
        logs.close()


def middles() -> dict[tuple[str, int], int]:
    """Where the broker's log begins, in topics that are not compacted."""
    return {(each["topic"], each["partition"]): (each["start"] + each["high_watermark"]) // 2 for each in bounds_of("read_uncommitted")}


def _is_deleted(future: object) -> bool:
    """Compacted topics keep their records."""
    try:
        return future.result(30).low_watermark > 0  # type: ignore[attr-defined,no-any-return]
    except KafkaException as error:
        if error.args[0].code() == KafkaError.POLICY_VIOLATION:
            return False
        raise
