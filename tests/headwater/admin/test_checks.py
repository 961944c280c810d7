"""What makes an agent alive and ready."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from archival.schedule.scheduler import Work
from headwater.admin.checks import Heartbeat, agent_health
from headwater.admin.fleet_watch import FleetWatch
from headwater.admin.health import Health, report
from headwater.admin.status_board import BoardSources, StatusBoard
from headwater.gateway.gateway_meter import GatewayMeter
from headwater_core.errors import TransientError
from headwater_core.objectstore.store_meter import StoreMeter
from headwater_core.segments.log_dirs import Listing
from tests.headwater_core.manual_clock import ManualClock

A_DIR = Path("/logs-a")


class Listed:
    """A fleet that can only be listed."""

    def __init__(self, listing: Callable[[], Listing]) -> None:
        self.listing = listing


class Stage:
    """One agent's health, on a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.heartbeat, self.meter, self.listens = Heartbeat(self.clock), StoreMeter(self.clock), True
        self.found: Listing | Exception = Listing(partitions={})
        board = StatusBoard(cast(BoardSources, None), self.clock)
        self.fleet = FleetWatch(cast(Work, Listed(self._list)), [A_DIR], board, self.clock)

    def _list(self) -> Listing:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    @property
    def health(self) -> Health:
        return agent_health(self.heartbeat, gateway_listens=lambda: self.listens, store=self.meter, fleet=self.fleet, rescan_s=lambda: 30)

    def unready(self) -> dict[str, str]:
        return {name: reason for name, reason in self.health.ready() if reason}


def test_an_agent_is_ready_once_it_listens_and_store_and_directories_have_answered() -> None:
    stage = Stage()
    stage.listens = False
    assert set(stage.unready()) == {"gateway", "store", "log_directories"}
    stage.listens = True
    stage.meter.record("get", 0.1)
    stage.fleet.listing()
    assert stage.unready() == {}


def test_a_store_may_fail_for_a_while_before_readiness_drops_and_says_why() -> None:
    stage = Stage()
    stage.meter.record("get", 0.1)
    stage.fleet.listing()
    stage.clock.advance(5_000)
    stage.meter.record("get", 5.0, error=TransientError("connection refused"))
    assert stage.unready() == {}
    stage.clock.advance(26_000)
    assert stage.unready() == {"store": "unavailable for 31 s: connection refused"}
    stage.meter.record("get", 0.1)
    assert stage.unready() == {}


def test_a_store_that_nobody_calls_stays_as_it_was() -> None:
    stage = Stage()
    stage.meter.record("get", 0.1)
    stage.fleet.listing()
    stage.clock.advance(50_000)
    assert stage.unready() == {}


def test_a_log_directory_that_cannot_be_read_is_named_and_a_damaged_partition_in_it_is_not() -> None:
    stage = Stage()
    stage.meter.record("get", 0.1)
    stage.found = Listing(partitions={}, problems=((A_DIR / "orders-0", TransientError("damaged")),))
    stage.fleet.listing()
    assert stage.unready() == {}
    stage.found = Listing(partitions={}, problems=((A_DIR, TransientError("/logs-a: I/O error")),))
    stage.fleet.listing()
    assert stage.unready() == {"log_directories": "/logs-a: I/O error"}


def test_directories_that_cannot_be_listed_or_whose_listing_does_not_end_are_not_ready() -> None:
    stage = Stage()
    stage.meter.record("get", 0.1)
    stage.fleet.listing()
    stage.found = TransientError("no log directory answers")
    for _ in range(2):
        with suppress(TransientError):
            stage.fleet.listing()
    assert stage.unready() == {"log_directories": "no log directory answers"}
    stage.found = Listing(partitions={})
    stage.fleet.listing()
    stage.clock.advance(91_000)
    assert stage.unready() == {"log_directories": "not listed for 91 s"}


def test_an_event_loop_that_does_not_turn_is_dead() -> None:
    stage = Stage()
    assert [each.reason for each in stage.health.live()] == [""]
    stage.clock.advance(61_000)
    assert [each.reason for each in stage.health.live()] == ["the event loop has not turned for 61 s"]
    stage.heartbeat.beat()
    assert [each.reason for each in stage.health.live()] == [""]


def test_a_check_that_cannot_be_made_has_not_held() -> None:
    def broken() -> str:
        raise RuntimeError("oops")

    assert "oops" in Health(live={}, ready={"x": broken}).ready()[0].reason


def test_damage_is_shown_and_fails_nothing() -> None:
    health = agent_health(
        Heartbeat(ManualClock()),
        gateway_listens=lambda: True,
        store=StoreMeter(ManualClock()),
        fleet=None,
        rescan_s=lambda: 30,
        damaged=lambda: {"a-0": {"x"}},
    )
    assert [(each.name, each.reason) for each in health.notices()] == [
        ("archive", "1 object damaged in the store; `headwater status` says which")
    ]
    assert "[!]archive: 1 object damaged" in report("readyz", health.ready(), health.notices(), reasons=True)
    assert "archive" not in {each.name for each in health.ready()}
    assert not Stage().health.notices()


def test_a_proxy_is_ready_while_a_broker_answers_and_names_those_that_do_not() -> None:
    meter = GatewayMeter()
    health = agent_health(
        Heartbeat(ManualClock()),
        gateway_listens=lambda: True,
        store=StoreMeter(ManualClock()),
        fleet=None,
        rescan_s=lambda: 30,
        unreached=lambda: meter.upstream_failing,
    )

    def told() -> tuple[str, str]:
        [ready] = [result.reason for result in health.ready() if result.name == "upstream"]
        [notice] = [result.reason for result in health.notices() if result.name == "brokers"] or [""]
        return ready, notice

    assert told() == ("", "")
    meter.reached(None, failure="a:9092: refused")
    meter.reached(3, failure="refused")
    assert told() == ("a:9092: refused", "not reached: 3 (refused)")
    meter.reached(1)
    assert told() == ("", "not reached: 3 (refused)")
    meter.reached(3)
    assert told() == ("", "")
