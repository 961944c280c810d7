"""Real clients read a log through the proxy: its end from a broker, its beginning from the archive."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.gateway.config import GatewayConfig
from headwater.gateway.server import GatewayServer
from hydration.config import ReadPriority
from tests.fixtures import Isolation, expected, private_copy
from tests.headwater.gateway.archives import archive
from tests.headwater.gateway.proxy.running_proxy import running_proxy
from tests.headwater.gateway.readers import Places, Rows, read_with_aiokafka, read_with_librdkafka
from tests.headwater.gateway.test_clients import ISOLATIONS, assert_same, places_of, without
from tests.headwater.gateway.test_tiers import Opener, drop_sealed_segments
from tests.headwater.gateway.test_tiers import opened as opened  # the fixture
from tests.headwater_core.objectstore.memory import MemoryStore


def with_aiokafka(bootstrap: str, places: Places, isolation: Isolation) -> Rows:
    return asyncio.run(read_with_aiokafka(bootstrap, places, isolation))


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", ["pantry", "pantry-live"])
@pytest.mark.parametrize("read", [read_with_librdkafka, with_aiokafka])
def test_a_client_reads_on_from_the_archive_to_the_broker(
    tmp_path: Path, opened: Opener, name: str, isolation: Isolation, read: Callable[[str, Places, Isolation], Rows]
) -> None:
    root, store = private_copy(name, tmp_path), MemoryStore()
    archive(root, store)
    assert drop_sealed_segments(root) > 5
    logs = opened(store)
    logs.refresh()
    with (
        GatewayServer(opened(MemoryStore(), root), GatewayConfig(listen="127.0.0.1:0")) as broker,
        running_proxy(broker.bootstrap_servers, logs) as address,
    ):
        rows = read(address, places_of(name, isolation), isolation)
    wanted = expected(name, isolation)
    assert_same(rows, wanted if read is read_with_librdkafka else without(wanted, "leader_epoch"))  # aiokafka tells none


def test_where_readers_are_to_have_the_broker_s_alone_the_archive_answers_nothing(tmp_path: Path, opened: Opener) -> None:
    root, store = private_copy("pantry", tmp_path), MemoryStore()
    archive(root, store)
    assert drop_sealed_segments(root) > 5
    logs = opened(store)
    logs.refresh()
    logs._priority_for = lambda topic: ReadPriority.LOCAL_ONLY
    places = places_of("pantry", "read_uncommitted")
    with (
        GatewayServer(opened(MemoryStore(), root), GatewayConfig(listen="127.0.0.1:0")) as broker,
        running_proxy(broker.bootstrap_servers, logs) as address,
    ):
        rows = read_with_librdkafka(address, places, "read_uncommitted")
        assert_same(rows, read_with_librdkafka(broker.bootstrap_servers, places, "read_uncommitted"))
    assert len(rows) < len(expected("pantry", "read_uncommitted"))
