"""What the process is made to allow before a gateway serves in it."""

import gc
import resource
import sys
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from headwater.gateway.config import GatewayConfig
from headwater.gateway.process import allowed_connections, prepare_process
from headwater.gateway.server import GatewayServer
from tests.headwater.gateway.fakes import FakeLogs
from tests.headwater.gateway.raw import RawClient


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    limits, interval_s = resource.getrlimit(resource.RLIMIT_NOFILE), sys.getswitchinterval()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    sys.setswitchinterval(interval_s)
    gc.unfreeze()


def test_a_gateway_takes_short_turns_and_all_the_descriptors_it_may_have() -> None:
    sys.setswitchinterval(0.005)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    with GatewayServer(FakeLogs(), GatewayConfig(listen="127.0.0.1:0")) as server, RawClient(server.address) as client:
        client.ask(18, 0)
        assert sys.getswitchinterval() == pytest.approx(0.0005, rel=0.1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_what_the_start_has_made_is_no_garbage_to_look_for() -> None:
    gc.unfreeze()
    before = len(gc.get_objects())
    for _ in range(2):
        with GatewayServer(FakeLogs(), GatewayConfig(listen="127.0.0.1:0")) as server, RawClient(server.address) as client:
            client.ask(18, 0)
            frozen = gc.get_freeze_count()
            assert frozen > before / 2
            assert len(gc.get_objects()) < frozen / 2


def test_an_interval_that_is_shorter_already_stays() -> None:
    sys.setswitchinterval(0.0001)
    prepare_process(1)
    assert sys.getswitchinterval() == pytest.approx(0.0001, rel=0.1)


@pytest.mark.parametrize(("descriptors", "allowed"), [(1 << 20, 1000), (1024, 256), (600, 1)])
def test_connections_leave_the_files_their_descriptors(descriptors: int, allowed: int) -> None:
    assert allowed_connections(1000, descriptors) == allowed


def test_a_proxied_connection_has_two_descriptors() -> None:
    assert allowed_connections(1000, 1024, sockets=2) == 128


def test_unless_it_is_configured_a_third_of_the_descriptors_may_be_connections() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with capture_logs() as logs:
        assert prepare_process(0) == allowed_connections(hard // 3, hard)
    assert not logs


def test_fewer_connections_than_configured_are_reported() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with capture_logs() as logs:
        allowed = prepare_process(hard)
    assert 0 < allowed < hard
    (said,) = logs
    assert (said["event"], said["allowed"], said["descriptors"]) == ("connections_limited", allowed, hard)
    assert said["needed"] == hard + said["reserved_for_files"] == 2 * hard - allowed
    assert f"Raise it to {said['needed']}" in said["reason"]
    assert "gateway.connections_max" in said["reason"]
    assert allowed_connections(hard, said["needed"]) == hard, "then it is enough"
