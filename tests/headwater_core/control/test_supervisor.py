"""Whatever ends a control node, it is opened again, and until then it stops no caller."""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import headwater_core.control.journal
from headwater_core.control.config import ControlConfig
from headwater_core.control.node import ControlNode
from headwater_core.control.supervisor import LEADERLESS_S, REOPEN_S, ControlSupervisor
from headwater_core.errors import DiskFull, HeadwaterError, TransientError, UsageError
from tests.headwater_core.control.builders import PARTITION, advanced
from tests.headwater_core.manual_clock import ManualClock
from tests.peers.kafka import free_port

WAIT_S = 20.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def supervised(tmp_path: Path, clock: ManualClock) -> Iterator[ControlSupervisor]:
    supervisor = ControlSupervisor(tmp_path, clock=clock)
    assert supervisor.ready(WAIT_S)
    yield supervisor
    supervisor.close()


class FullDisk:
    """`os` for the journal, of a disk without room."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwrite(self, *_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def the_only(events: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    [event] = [event for event in events if event["event"] == name]
    return event


def until_it_failed(supervisor: ControlSupervisor) -> None:
    """Every publish of a failed node raises; the first may be answered by it while it fails."""
    while supervisor._node and supervisor._node.failure is None:
        with pytest.raises(HeadwaterError):
            supervisor.publish(advanced(2), timeout_s=WAIT_S)


def test_its_health_says_for_how_long_there_was_no_leader_also_over_several_nodes(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_taken = False

    def open_node(data_dir: Path, config: ControlConfig) -> ControlNode:
        if is_taken:
            raise TransientError("the port is taken")
        return ControlNode(data_dir, config)

    supervisor = ControlSupervisor(tmp_path, clock=clock, open_node=open_node)
    assert supervisor.ready(WAIT_S)
    applied = supervisor.health().applied
    supervisor.publish(advanced(1))
    supervisor.step()
    clock.advance(60_000)
    assert supervisor.health() == ("leader", 0.0, applied + 1)
    supervisor.step()
    with monkeypatch.context() as full:
        full.setattr(headwater_core.control.journal, "os", FullDisk())
        until_it_failed(supervisor)
    is_taken = True
    for _ in range(3):
        supervisor.step()
        clock.advance(int(REOPEN_S * 1000))
    assert supervisor.health() == ("none", 3 * REOPEN_S, 0)
    is_taken = False
    supervisor.step()
    assert supervisor.ready(WAIT_S)
    assert supervisor.health()[:2] == ("leader", 0.0)
    supervisor.close()
    assert supervisor.health().applied == 0


def test_a_node_that_found_the_disk_full_is_opened_again_when_there_is_room(
    supervised: ControlSupervisor, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised.publish(advanced(1))
    assert supervised.needs_rebuild == (not supervised.informed)  # its files are new: the bucket may know more
    supervised.rebuilt()
    assert supervised.informed
    with capture_logs() as events, monkeypatch.context() as full:
        full.setattr(headwater_core.control.journal, "os", FullDisk())
        until_it_failed(supervised)
        supervised.step()
        assert "No space left" in the_only(events, "control_log_unavailable")["reason"]
        assert supervised.state().known_version(PARTITION) == 1
        with pytest.raises(TransientError):
            supervised.publish(advanced(2))
    supervised.step()
    with pytest.raises(TransientError):  # not before the pause is over
        supervised.publish(advanced(2))
    clock.advance(int(REOPEN_S * 1000))
    supervised.step()
    assert supervised.ready(WAIT_S)
    supervised.publish(advanced(2))
    with capture_logs() as events:
        supervised.step()
    assert the_only(events, "control_log_available")["log_level"] == "info"
    assert supervised.state().known_version(PARTITION) == 2


def fails_first(error: Exception) -> Callable[[Path, ControlConfig], ControlNode]:
    tried = list[Path]()

    def open_node(data_dir: Path, config: ControlConfig) -> ControlNode:
        tried.append(data_dir)
        if len(tried) == 1:
            raise error
        return ControlNode(data_dir, config)

    return open_node


@pytest.mark.parametrize("error", [DiskFull("full"), TransientError("the port is in use"), UsageError("no directory"), ZeroDivisionError()])
def test_a_node_that_cannot_be_opened_stops_no_start(error: Exception, tmp_path: Path, clock: ManualClock) -> None:
    supervisor = ControlSupervisor(tmp_path, clock=clock, open_node=fails_first(error))
    assert not supervisor.ready(0)
    assert supervisor.state().known_version(PARTITION) == 0
    with pytest.raises(TransientError):
        supervisor.publish(advanced(1))
    clock.advance(int(REOPEN_S * 1000))
    supervisor.step()
    assert supervisor.ready(WAIT_S)
    supervisor.publish(advanced(1))
    supervisor.close()


def test_without_a_quorum_there_is_a_start_and_an_event_about_it(tmp_path: Path, clock: ManualClock) -> None:
    listen, *peers = (f"127.0.0.1:{free_port()}" for _ in range(3))
    with capture_logs() as events:
        supervisor = ControlSupervisor(tmp_path, ControlConfig(listen=listen, peers=tuple(peers)), clock=clock)
        assert not supervisor.ready(0)
        assert not events  # an election takes a while
        assert not supervisor.informed
        clock.advance(int(LEADERLESS_S * 1000))
        supervisor.step()
    assert "leader" in the_only(events, "control_log_unavailable")["reason"]
    supervisor.close()


def test_a_configuration_that_cannot_work_is_refused_at_once(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(UsageError, match="control"):
        ControlSupervisor(tmp_path, ControlConfig(listen="nonsense", peers=("127.0.0.1:9000",)), clock=clock)


def test_a_closed_one_stays_closed(supervised: ControlSupervisor, clock: ManualClock) -> None:
    supervised.publish(advanced(3))
    supervised.start()
    supervised.close()
    supervised.close()
    clock.advance(int(REOPEN_S * 1000))
    supervised.step()
    assert supervised.state().known_version(PARTITION) == 3
    with pytest.raises(TransientError, match="closed"):
        supervised.publish(advanced(4))
