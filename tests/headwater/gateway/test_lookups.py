"""Look-ups while the store hangs: one deadline per request, and what was known before is answered."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

import headwater.gateway.lookups
from headwater.gateway.config import GatewayConfig
from headwater.gateway.handlers import list_offsets
from headwater.gateway.protocol import Api, Code
from headwater.gateway.server import GatewayServer
from headwater_core.errors import TransientError
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectStore
from hydration.answers import Bounds, Isolation, ReadResult
from hydration.config import HydrationConfig, ReadPriority
from hydration.logs import Logs, open_logs
from hydration.resumption import Pending
from hydration.scope import Scope, scope_of
from tests.fixtures import unpack
from tests.headwater.gateway.archives import archive
from tests.headwater.gateway.raw import RawClient
from tests.headwater_core.objectstore.memory import MemoryStore

EARLIEST, LATEST = -2, -1


class HangingStore(MemoryStore):
    """Heads are not answered while `answers` is clear."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        self.answers.wait()
        return super().get(key, max_bytes=max_bytes)


@pytest.fixture
def store() -> Iterator[HangingStore]:
    made = HangingStore()
    archive(unpack("pantry"), made)
    yield made
    made.answers.set()


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headwater.gateway.lookups, "LOOK_UP_S", 2.0)
    monkeypatch.setattr(headwater.gateway.lookups, "FRESH_S", 0.5)
    monkeypatch.setattr("hydration.views.MISS_AGE_S", 0.0)  # every look is a new one
    monkeypatch.setattr("headwater.gateway.topic_snapshot.LISTING_S", 3600.0)


def open_over(store: ObjectStore, cache: Path) -> Logs:
    logs = open_logs(HydrationConfig(), store=store, cache_directory=cache)
    logs.refresh()
    return logs


def ask(client: RawClient, logs: Logs, timestamp: int, isolation: int = 0) -> list[dict[str, Any]]:
    """The answers for every partition there is."""
    topics = [
        {
            "name": name,
            "partitions": [{"partition_index": at, "current_leader_epoch": -1, "timestamp": timestamp} for at in topic.partitions],
        }
        for name, topic in logs.topics().items()
    ]
    answer = client.ask(Api.LIST_OFFSETS, 7, replica_id=-1, isolation_level=isolation, topics=topics)
    return [partition for topic in answer["topics"] for partition in topic["partitions"]]


@pytest.mark.parametrize("isolation", [0, 1])
def test_known_extents_are_answered_while_the_store_hangs(store: HangingStore, tmp_path: Path, isolation: int) -> None:
    logs = open_over(store, tmp_path)
    config = GatewayConfig(listen="127.0.0.1:0", metadata_ttl_s=3600.0)
    with GatewayServer(logs, config) as server, RawClient(server.address) as client:
        before = [[each["offset"] for each in ask(client, logs, place, isolation)] for place in (EARLIEST, LATEST)]
        assert len(before[0]) > 3
        store.answers.clear()
        began_s = monotonic()
        during = [ask(client, logs, place, isolation) for place in (EARLIEST, LATEST)]
        assert monotonic() - began_s < 8.0  # both requests, every partition
        assert {each["error_code"] for answers in during for each in answers} == {Code.NONE}
        assert [[each["offset"] for each in answers] for answers in during] == before
        assert {each["error_code"] for each in ask(client, logs, 1)} == {Code.KAFKA_STORAGE_ERROR}
        store.answers.set()
    logs.close()


def ends_of_epochs(client: RawClient, logs: Logs) -> list[dict[str, Any]]:
    topics = [
        {"topic": name, "partitions": [{"partition": at, "current_leader_epoch": -1, "leader_epoch": 0} for at in topic.partitions]}
        for name, topic in logs.topics().items()
    ]
    answer = client.ask(Api.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=topics)
    return [partition for topic in answer["topics"] for partition in topic["partitions"]]


def test_the_end_of_an_epoch_comes_from_what_is_known_else_the_client_retries(store: HangingStore, tmp_path: Path) -> None:
    logs = open_over(store, tmp_path)
    config = GatewayConfig(listen="127.0.0.1:0", metadata_ttl_s=3600.0)
    store.answers.clear()  # before the gateway starts: it looks at heads in passing
    with GatewayServer(logs, config) as server, RawClient(server.address) as client:
        began_s = monotonic()
        never_seen = ends_of_epochs(client, logs)
        assert monotonic() - began_s < 7.0
        assert len(never_seen) > 3
        assert {(each["error_code"], each["leader_epoch"], each["end_offset"]) for each in never_seen} == {
            (Code.KAFKA_STORAGE_ERROR, -1, -1)
        }
        store.answers.set()
        seen = ends_of_epochs(client, logs)
        assert {each["error_code"] for each in seen} == {Code.NONE}
        store.answers.clear()
        began_s = monotonic()
        assert ends_of_epochs(client, logs) == seen
        assert monotonic() - began_s < 7.0
        store.answers.set()
    logs.close()


def test_what_was_never_seen_is_to_be_asked_again_by_one_deadline(store: HangingStore, tmp_path: Path) -> None:
    logs = open_over(store, tmp_path)
    store.answers.clear()
    with GatewayServer(logs, GatewayConfig(listen="127.0.0.1:0")) as server, RawClient(server.address) as client:
        began_s = monotonic()
        assert {each["error_code"] for each in ask(client, logs, LATEST)} == {Code.KAFKA_STORAGE_ERROR}
        assert monotonic() - began_s < 7.0
        store.answers.set()
    logs.close()


class SlowLog:
    """What is open at its end is not known, and takes a long time to find out."""

    partition = "slow:0"

    def try_bounds(self, isolation: Isolation) -> Pending[Bounds]:
        return Pending(Future())

    def known_scope(self) -> Scope:
        return scope_of(None, None, ReadPriority.LOCAL_FIRST)

    def read(self, offset: int, max_bytes: int, isolation: Isolation, *, timeout_s: float) -> ReadResult:
        sleep(timeout_s)
        raise TransientError("not there")


class SlowLogs:
    def partition(self, topic: str, number: int) -> SlowLog:
        return SlowLog()


def test_last_stable_offsets_of_many_partitions_have_one_deadline_together() -> None:
    with ThreadPoolExecutor(16) as threads:
        lookups = headwater.gateway.lookups.Lookups(SlowLogs(), lambda *_: -1, threads)  # type: ignore[arg-type]
        partitions = [{"partition_index": at, "timestamp": LATEST} for at in range(40)]
        began_s = monotonic()
        answer = asyncio.run(list_offsets.respond(lookups, {"isolation_level": 1, "topics": [{"name": "slow", "partitions": partitions}]}))
    assert monotonic() - began_s < 5.0  # not ten: a second each, four at a time
    assert {each["error_code"] for each in answer["topics"][0]["partitions"]} == {Code.KAFKA_STORAGE_ERROR}
