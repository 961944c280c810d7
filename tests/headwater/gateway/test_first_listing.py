"""While nothing could be listed yet, topics are unknown, and no client hears that there are none."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater import wiring
from headwater.config import load
from headwater.gateway.config import GatewayConfig
from headwater.gateway.protocol import Api, Code
from headwater.gateway.server import GatewayServer
from headwater.wiring import Bucket
from headwater_core.errors import TransientError
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectInfo
from headwater_core.segments.log_dirs import LogDirs, Roster
from hydration.config import HydrationConfig
from hydration.logs import Logs, open_logs
from manifests.repository import ManifestRepository
from tests.headwater.gateway.raw import RawClient, a_fetch
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import PARTITION, TOPIC, Archive, Broker


class Away(MemoryStore):
    """Answers once `is_back`; until then each call waits for that, or fails at once."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__()
        self.hangs, self.is_back = hangs, threading.Event()
        self.is_back.set()

    def _answer(self) -> None:
        if not self.is_back.is_set():
            if not self.hangs:
                raise TransientError("the store is away")
            assert self.is_back.wait(60)

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        self._answer()
        return super().get(key, max_bytes=max_bytes)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self._answer()
        yield from super().list(prefix, start_after=start_after)


@pytest.fixture(params=[True, False], ids=["hangs", "fails"])
def store(request: pytest.FixtureRequest) -> Iterator[Away]:
    made = Away(hangs=request.param)
    Archive(made).append(a_segment(0, 10))
    made.is_back.clear()
    yield made
    made.is_back.set()


@pytest.fixture
def logs(store: Away, tmp_path: Path) -> Iterator[Logs]:
    opened = open_logs(HydrationConfig(), store=store, cache_directory=tmp_path / "cache")
    yield opened
    store.is_back.set()
    opened.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LISTING_S", 0.1), ("WAIT_S", 0.2), ("EARLY_S", 0.1), ("FIRST_WAIT_S", 0.3)):
        monkeypatch.setattr(f"headwater.gateway.topic_snapshot.{name}", seconds)


def a_server(logs: Logs) -> GatewayServer:
    return GatewayServer(logs, GatewayConfig(listen="127.0.0.1:0", metadata_ttl_s=0.05))


def metadata_code(client: RawClient) -> int:
    (topic,) = client.ask(Api.METADATA, 1, topics=[{"name": TOPIC}])["topics"]
    return int(topic["error_code"])


def test_what_may_be_there_is_to_be_asked_for_again_until_the_store_is_back(store: Away, logs: Logs) -> None:
    with a_server(logs) as server, RawClient(server.address, 30) as client:
        assert client.ask(Api.METADATA, 1, topics=[])["brokers"], "clients can begin"
        assert client.ask(Api.FIND_COORDINATOR, 0, key="readers")["error_code"] is not None
        assert metadata_code(client) == Code.LEADER_NOT_AVAILABLE
        asked = [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -2}]}]
        places = client.ask(Api.LIST_OFFSETS, 2, replica_id=-1, isolation_level=0, topics=asked)["topics"][0]["partitions"]
        assert [each["error_code"] for each in places] == [Code.KAFKA_STORAGE_ERROR]
        assert client.fetch(a_fetch((TOPIC, 0, 0)))["error_code"] == Code.KAFKA_STORAGE_ERROR
        store.is_back.set()
        pause = threading.Event()
        while metadata_code(client) != Code.NONE:
            pause.wait(0.02)
        assert [each["name"] for each in client.ask(Api.METADATA, 1, topics=None)["topics"]] == [TOPIC]
        while client.fetch(a_fetch((TOPIC, 0, 0)))["error_code"]:
            pause.wait(0.02)
        unknown = client.ask(Api.METADATA, 1, topics=[{"name": "other"}])["topics"]
        assert [each["error_code"] for each in unknown] == [Code.UNKNOWN_TOPIC_OR_PARTITION]


def test_no_client_learns_that_there_are_no_topics(logs: Logs) -> None:
    with a_server(logs) as server, RawClient(server.address, 30) as client, pytest.raises(ConnectionError):
        client.ask(Api.METADATA, 1, topics=None)


@pytest.mark.parametrize("store", [True], ids=["hangs"], indirect=True)
def test_who_asks_for_every_topic_waits_for_the_first_listing(store: Away, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.gateway.topic_snapshot.FIRST_WAIT_S", 30.0)
    with a_server(logs) as server, RawClient(server.address, 60) as client, ThreadPoolExecutor(1) as other:
        asked = other.submit(client.ask, Api.METADATA, 1, topics=None)
        with RawClient(server.address, 30) as beside:
            assert metadata_code(beside) == Code.LEADER_NOT_AVAILABLE
        assert not asked.done()
        store.is_back.set()
        assert [each["name"] for each in asked.result(30)["topics"]] == [TOPIC]


def test_local_logs_are_advertised_while_the_archive_is_not_listed(store: Away, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "kafka")
    broker.write(0, a_segment(0, 10))
    broker.set_high_watermark(10)
    opened = open_logs(HydrationConfig(), store=store, cache_directory=tmp_path / "cache", dirs=LogDirs([broker.root]))
    try:
        with a_server(opened) as server, RawClient(server.address, 30) as client:
            pause = threading.Event()
            while metadata_code(client) != Code.NONE:
                pause.wait(0.02)
            assert client.fetch(a_fetch((TOPIC, 0, 0)))["error_code"] == Code.NONE
            assert client.ask(Api.METADATA, 1, topics=[{"name": "other"}])["topics"][0]["error_code"] == Code.LEADER_NOT_AVAILABLE
    finally:
        store.is_back.set()
        opened.close()


def test_an_agent_without_log_directories_starts_while_its_store_is_away(
    store: Away, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "LISTING_WAIT_S", 0.1)
    config = load(None, {}, {"node.data_dir": str(tmp_path / "state"), "store.url": "file:///nowhere"})
    with wiring.open_logs(config, Bucket(store, ManifestRepository(store)), patient=True) as opened:
        with pytest.raises(TransientError, match="not known yet"):
            opened.partition(TOPIC, 0)
        store.is_back.set()
        opened.refresh()
        assert opened.partition(TOPIC, 0).partition == PARTITION


def test_an_agent_begins_to_work_once_its_log_directories_are_listed(store: Away, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Archiving competes with the listing from then on; the store may be away."""
    monkeypatch.setattr(wiring, "LISTING_WAIT_S", 0.01)
    broker, roster = Broker(tmp_path / "kafka"), LogDirs.roster
    broker.write(0, a_segment(0, 10))

    def slow(dirs: LogDirs) -> Roster:
        threading.Event().wait(0.5)
        return roster(dirs)

    monkeypatch.setattr(LogDirs, "roster", slow)
    config = load(None, {}, {"node.data_dir": str(tmp_path / "state"), "store.url": "file:///nowhere", "log.dirs": [str(broker.root)]})
    with wiring.open_logs(config, Bucket(store, ManifestRepository(store)), patient=True) as opened:
        assert opened.has_listed_dirs
        store.is_back.set()
