"""What is paused, as agents learn of it and obey."""

from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from archival.known_pauses import EXPLAINS_MS
from headwater_core.errors import TransientError
from headwater_core.partition import TopicPartition
from manifests import keys
from manifests.known_document import REFRESH_S
from manifests.pause_list import PauseList, PauseScope
from manifests.repository import ManifestRepository
from tests.archival.builders import SendingStore
from tests.headwater.broker import Bench

SOUP, SOUP_1 = PauseScope("soup"), PauseScope("soup", 1)


class Store(SendingStore):
    """`silent`: it does not answer."""

    silent = False

    def get(self, key: str, *, max_bytes: int = 1 << 26) -> tuple[bytes, str]:
        if self.silent:
            raise TransientError("no answer")
        return super().get(key, max_bytes=max_bytes)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path / "a", Store(), heeds_pauses=True)
    bench.broker.partition("soup", 0, 1)
    bench.broker.partition("stew", 0)
    return bench


def pause(bench: Bench, selection: PauseScope = SOUP) -> None:
    """By another agent, or a command without one."""
    _change(bench, lambda before: before.paused(selection, now_ms=bench.clock.now_ms(), by="cook"))


def resume(bench: Bench, selection: PauseScope = SOUP) -> None:
    _change(bench, lambda before: before.resumed(selection, now_ms=bench.clock.now_ms()))


def _change(bench: Bench, decide: Callable[[PauseList], PauseList]) -> None:
    ManifestRepository(bench.store).change_pauses(decide)


def work(bench: Bench) -> dict[str, int]:
    """The last offset of each partition when nothing is left to do."""
    bench.scheduler.rescan()
    bench.turns()
    return {f"{topic}:{number}": bench.last_offset(topic, number) for topic, number in (("soup", 0), ("soup", 1), ("stew", 0))}


def test_a_paused_topic_is_not_archived_and_the_others_are(bench: Bench) -> None:
    pause(bench)
    assert work(bench) == {"soup:0": -1, "soup:1": -1, "stew:0": 9}
    assert bench.head("soup", 0) is None
    bench.start()
    assert work(bench)["soup:0"] == -1


def test_one_partition_is_paused(bench: Bench) -> None:
    pause(bench, SOUP_1)
    assert work(bench) == {"soup:0": 9, "soup:1": -1, "stew:0": 9}


def test_another_node_that_takes_over_is_paused_too(bench: Bench, tmp_path: Path) -> None:
    work(bench)
    pause(bench)
    other = Bench(tmp_path / "b", bench.store, heeds_pauses=True)
    other.broker.partition("soup", 0, segments=3)
    other.scheduler.rescan()
    other.turns()
    assert bench.last_offset("soup", 0) == 9


def test_a_pause_by_another_node_is_known_after_a_while_and_at_once_when_announced(bench: Bench) -> None:
    work(bench)
    pause(bench)
    bench.broker.roll("soup", 0)
    bench.pauses.look(0)
    assert work(bench)["soup:0"] == 19
    bench.clock.advance(int(1000 * REFRESH_S))
    bench.broker.roll("soup", 0)
    assert work(bench)["soup:0"] == 19
    resume(bench)
    bench.pauses.look(2)
    bench.turns()
    assert bench.last_offset("soup", 0) == 29


def test_an_idle_agent_asks_the_bucket_nothing(bench: Bench) -> None:
    assert isinstance(bench.store, Store)
    work(bench)
    bench.store.silent = True
    with capture_logs() as events:
        for _ in range(3):
            bench.clock.advance(int(1000 * REFRESH_S))
            bench.pauses.look(0)
            bench.scheduler.rescan()
            bench.turns()
    assert not events


def test_an_older_list_in_the_announced_ones_place_is_read_once(bench: Bench) -> None:
    assert isinstance(bench.store, Store)
    work(bench)
    bench.pauses.look(7)
    bench.store.silent = True
    with capture_logs() as events:
        bench.pauses.look(7)
        assert not events
        bench.pauses.look(8)
    assert [event["event"] for event in events] == ["pauses_not_read"]


def test_a_pause_that_another_node_ends_is_noticed_though_nothing_is_archived(bench: Bench) -> None:
    pause(bench)
    assert work(bench)["soup:0"] == -1
    resume(bench)
    bench.clock.advance(int(1000 * REFRESH_S))
    bench.pauses.look(0)
    assert work(bench)["soup:0"] == 9


def test_an_upload_in_flight_is_stopped(bench: Bench) -> None:
    assert isinstance(bench.store, Store)
    store = bench.store

    def sending(key: str) -> None:
        if "/soup/" in key:
            store.sending = lambda key: None
            pause(bench)
            bench.pauses.refresh()

    store.sending = sending
    bench.scheduler.rescan()
    with capture_logs() as events:
        bench.turns()
    stopped = [event["reason"] for event in events if event["event"] == "upload_stopped"]
    assert len(stopped) == 1
    assert stopped[0].startswith("paused since ")
    assert not [event for event in events if event["log_level"] in ("warning", "error")]
    assert max(bench.last_offset("soup", 0), bench.last_offset("soup", 1)) == -1


def test_what_is_not_known_is_not_archived(bench: Bench) -> None:
    assert isinstance(bench.store, Store)
    bench.store.silent = True
    bench.scheduler.rescan()
    with capture_logs() as events:
        for _ in range(3):
            bench.scheduler.turn()
    assert {event["event"] for event in events} == {"archive_postponed"}
    bench.store.silent = False
    bench.store.create(keys.PAUSES, b"{}")
    bench.clock.advance(120_000)
    bench.turns()
    assert {bench.last_offset("soup", 0), bench.last_offset("stew", 0)} == {-1}
    assert "paused.json" in bench.fleet.troubles[TopicPartition("soup", 0)]


def test_what_was_known_holds_while_the_store_is_silent(bench: Bench) -> None:
    assert isinstance(bench.store, Store)
    pause(bench)
    bench.pauses.refresh()
    bench.store.silent = True
    bench.clock.advance(int(1000 * REFRESH_S))
    with capture_logs() as events:
        bench.pauses.look(9)
        bench.pauses.look(9)
    assert [event["event"] for event in events] == ["pauses_not_read"]
    assert bench.pauses.now().of(TopicPartition("soup", 0))


def test_a_pause_that_begins_and_ends_is_logged_once(bench: Bench) -> None:
    with capture_logs() as events:
        pause(bench)
        bench.pauses.refresh()
        bench.pauses.refresh()
        resume(bench)
        bench.pauses.refresh()
    assert [(event["event"], event["selection"]) for event in events] == [("topics_paused", "soup"), ("topics_resumed", "soup")]


@pytest.mark.parametrize(("later_ms", "reason"), [(0, "archiving was paused from "), (EXPLAINS_MS + 1, "")])
def test_what_the_broker_drops_meanwhile_is_a_gap_with_a_reason(bench: Bench, later_ms: int, reason: str) -> None:
    work(bench)
    pause(bench)
    bench.pauses.refresh()
    bench.broker.roll("soup", 0, 3)
    for path in bench.broker.segments("soup", 0)[:3]:
        path.unlink()
    resume(bench)
    bench.pauses.refresh()
    bench.clock.advance(later_ms)
    bench.broker.drop_history("soup", 0, 30)
    work(bench)
    head = bench.head("soup", 0)
    assert head
    gaps = [entry for entry in head.entries if entry.gap]
    assert [(entry.base_offset, entry.last_offset) for entry in gaps] == [(10, 29)]
    assert gaps[0].reason.startswith(reason)
    assert bool(gaps[0].reason) == bool(reason)
