"""Reading through the gateway while the ground moves: data leaves the disk, the cache, the network."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.gateway.config import GatewayConfig
from headwater.gateway.protocol import Api, Code
from headwater.gateway.server import GatewayServer
from headwater_core.errors import TransientError
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.log_dirs import LogDirs
from hydration.config import HydrationConfig
from hydration.logs import Logs, open_logs
from tests.fixtures import Isolation, expected, private_copy, unpack
from tests.headwater.gateway.archives import archive
from tests.headwater.gateway.raw import RawClient, a_fetch
from tests.headwater.gateway.readers import read_with_aiokafka, read_with_librdkafka
from tests.headwater.gateway.test_clients import ISOLATIONS, assert_same, places_of, without
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore

Opener = Callable[..., Logs]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    made: list[Logs] = []

    def make(store: ObjectStore, dirs: Path | None = None, **config: int) -> Logs:
        settings = HydrationConfig(**{"chunk_bytes": 64 << 10, **config})  # type: ignore[arg-type]
        cache = tmp_path / f"cache-{len(made)}"
        made.append(open_logs(settings, store=store, cache_directory=cache, dirs=LogDirs([dirs]) if dirs else None))
        return made[-1]

    yield make
    for logs in made:
        logs.close()


def drop_sealed_segments(root: Path) -> int:
    """All but the last segment of each partition, as a broker's own retention would after archiving."""
    dropped = 0
    for directory in root.iterdir():
        if directory.is_dir() and not directory.name.startswith("__"):
            for path in sorted(directory.glob("*.log"))[:-1]:
                path.unlink()
                dropped += 1
    return dropped


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", ["pantry", "pantry-live"])
def test_a_scan_crosses_from_the_archive_to_the_local_log(tmp_path: Path, opened: Opener, name: str, isolation: Isolation) -> None:
    root, store = private_copy(name, tmp_path), MemoryStore()
    archive(root, store)
    assert drop_sealed_segments(root) > 5
    with GatewayServer(opened(store, root), GatewayConfig(listen="127.0.0.1:0")) as server:
        rows = read_with_librdkafka(server.bootstrap_servers, places_of(name, isolation), isolation)
    assert_same(rows, expected(name, isolation))


def test_everything_may_be_evicted_in_mid_read(opened: Opener) -> None:
    store = MemoryStore()
    archive(unpack("pantry"), store)
    logs = opened(store)
    evicted: list[int] = []

    def evict(records: int) -> None:
        if records % 50 == 0:
            evicted.append(logs.hydrator.cache.evict())

    with GatewayServer(logs, GatewayConfig(listen="127.0.0.1:0")) as server:
        rows = read_with_librdkafka(
            server.bootstrap_servers,
            places_of("pantry", "read_committed"),
            "read_committed",
            after=evict,
            **{"fetch.message.max.bytes": 4096},
        )
    assert_same(rows, expected("pantry", "read_committed"))
    assert sum(evicted) > 0


def test_a_cache_too_small_for_anything_still_gets_there(opened: Opener) -> None:
    store = MemoryStore()
    archive(unpack("pantry"), store)
    with GatewayServer(opened(store, cache_bytes=0), GatewayConfig(listen="127.0.0.1:0")) as server:
        rows = read_with_librdkafka(server.bootstrap_servers, places_of("pantry", "read_committed"), "read_committed")
    assert_same(rows, expected("pantry", "read_committed"))


def test_the_local_log_may_vanish_in_mid_read(tmp_path: Path, opened: Opener) -> None:
    root, store = private_copy("pantry", tmp_path), MemoryStore()
    archive(root, store)

    def vanish(records: int) -> None:
        if records == 500:
            drop_sealed_segments(root)
        if records == 1500:
            for directory in root.glob("*-*"):
                if directory.is_dir() and not directory.name.startswith("__"):
                    shutil.rmtree(directory)

    with GatewayServer(opened(store, root), GatewayConfig(listen="127.0.0.1:0")) as server:
        rows = read_with_librdkafka(
            server.bootstrap_servers,
            places_of("pantry", "read_uncommitted"),
            "read_uncommitted",
            after=vanish,
            **{"fetch.message.max.bytes": 4096, "queued.min.messages": 10, "queued.max.messages.kbytes": 16},
        )
    assert_same(rows, expected("pantry", "read_uncommitted"))


class Unplugged:
    """A store on a cable that can be pulled: every call raises what a dead network makes of it."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.is_unplugged = False

    def __getattr__(self, name: str) -> object:
        if self.is_unplugged and name != "url":
            raise TransientError("no route to the store")
        return getattr(self._inner, name)


def test_without_the_store_what_is_here_is_served_and_the_rest_is_retried(tmp_path: Path, opened: Opener) -> None:
    """Librdkafka reads half, the store goes away, comes back, and librdkafka ends with everything, once."""
    root, inner = private_copy("pantry", tmp_path), MemoryStore()
    archive(root, inner)
    drop_sealed_segments(root)
    store = Unplugged(inner)
    logs = opened(store, root, readahead_chunks=0)

    def pull(records: int) -> None:
        if records == 400:
            store.is_unplugged = True
            logs.hydrator.cache.evict()
            threading.Timer(1.5, lambda: setattr(store, "is_unplugged", False)).start()

    with GatewayServer(logs, GatewayConfig(listen="127.0.0.1:0")) as server:
        rows = read_with_librdkafka(
            server.bootstrap_servers,
            places_of("pantry", "read_committed"),
            "read_committed",
            after=pull,
            **{"fetch.message.max.bytes": 4096, "queued.min.messages": 10, "queued.max.messages.kbytes": 16},
        )
    assert_same(rows, expected("pantry", "read_committed"))


def test_an_unreachable_store_is_a_retriable_error_and_local_offsets_are_served(tmp_path: Path, opened: Opener) -> None:
    root, inner = private_copy("pantry", tmp_path), MemoryStore()
    archive(root, inner)
    drop_sealed_segments(root)
    store = Unplugged(inner)
    logs = opened(store, root)
    with GatewayServer(logs, GatewayConfig(listen="127.0.0.1:0")) as server, RawClient(server.address) as client:
        client.ask(Api.METADATA, 7, topics=[], allow_auto_topic_creation=False)
        logs.partition("cookbook.1990", 0).bounds()  # its manifest is known
        store.is_unplugged = True
        assert client.fetch(a_fetch(("cookbook.1990", 0, 0)))["error_code"] == Code.KAFKA_STORAGE_ERROR
        here = client.fetch(a_fetch(("cookbook.1990", 0, 179), max_wait=5000))
        assert (here["error_code"], here["records"] != b"") == (0, True)
        store.is_unplugged = False
        assert client.fetch(a_fetch(("cookbook.1990", 0, 0), max_wait=5000))["records"] != b""


def test_two_hundred_readers_of_one_cold_chunk_cost_one_get(opened: Opener) -> None:
    inner = MemoryStore()
    archive(unpack("pantry"), inner)
    store = MeteredStore(inner, log_calls=10_000)
    logs = opened(store, readahead_chunks=0)
    with GatewayServer(logs, GatewayConfig(listen="127.0.0.1:0")) as server:
        with RawClient(server.address) as client:
            client.ask(Api.METADATA, 7, topics=[], allow_auto_topic_creation=False)

        def read(_: int) -> bytes:
            with RawClient(server.address) as client:
                return bytes(client.fetch(a_fetch(("cookbook.1990", 0, 0), max_wait=9000))["records"])

        with ThreadPoolExecutor(200) as readers:
            answers = set(readers.map(read, range(200)))
    assert len(answers) == 1
    assert answers != {b""}
    assert sum(call.operation == "read_into" and call.key.endswith(".log") and "cookbook" in call.key for call in store.log) == 1


def test_a_restart_of_the_gateway_is_not_noticed(opened: Opener) -> None:
    store = MemoryStore()
    archive(unpack("pantry"), store)
    for _ in range(2):
        with GatewayServer(opened(store), GatewayConfig(listen="127.0.0.1:0")) as server:
            rows = asyncio.run(read_with_aiokafka(server.bootstrap_servers, places_of("pantry", "read_committed"), "read_committed"))
        assert_same(rows, without(expected("pantry", "read_committed"), "leader_epoch"))
