"""The record in the bucket of where a plan is applied, and of what it holds back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_core.errors import CorruptData, TransientError, UsageError
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX
from manifests import keys
from recovery.target_record import read_records, record_put_back, record_target, record_verified
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.plans import ENTRIES, a_head, a_topic, planned

PLAN = planned(a_topic(a_head(*ENTRIES), retention_ms="600"))
KEY = keys.recovery(PLAN.recovery_id)


def recorded(into: str = "log", directory_id: str = "d1") -> MemoryStore:
    store = MemoryStore(ManualClock())
    assert record_target(store, PLAN, Path(into), directory_id, host="here", started_ms=5).directory_id == directory_id
    return store


def test_a_plan_has_one_directory_and_keeps_its_id() -> None:
    store = recorded()
    held = record_target(store, PLAN, Path("log"), "d2", host="here", started_ms=6)
    assert (held.directory_id, held.started_ms) == ("d1", 5)
    for into, host in (("log", "there"), ("elsewhere", "here")):
        with pytest.raises(UsageError, match="was applied to"):
            record_target(store, PLAN, Path(into), "d2", host=host, started_ms=6)


def test_a_copy_is_refused_until_it_is_said_to_be_moved_and_then_all_others_are() -> None:
    store = recorded()
    for into, host in (("log", "there"), ("elsewhere", "here")):
        with pytest.raises(UsageError, match="add --moved"):
            record_target(store, PLAN, Path(into), "d1", host=host, started_ms=6)
    assert record_target(store, PLAN, Path("log"), "d1", host="there", started_ms=6, moved_as="d2").directory_id == "d2"
    for into, host in (("log", "here"), ("elsewhere", "there")):
        with pytest.raises(UsageError, match=r"was applied to .* on there"):
            record_target(store, PLAN, Path(into), "d1", host=host, started_ms=7, moved_as="d3")
    assert (
        record_target(store, PLAN, Path("log"), "d1", host="there", started_ms=8).directory_id == "d2"
    )  # its mark had not been written yet
    assert record_target(store, PLAN, Path("log"), "d2", host="there", started_ms=8, moved_as="d4").directory_id == "d2"


class Overtaken(MemoryStore):
    """Something else happens right before the next replacement."""

    def __init__(self, other: MemoryStore, meanwhile: Callable[[], object]) -> None:
        self.__dict__ = dict(other.__dict__)
        self.meanwhile: Callable[[], object] | None = meanwhile

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().replace(key, document, expected_tag=expected_tag)


def test_of_two_copies_that_are_moved_at_the_same_time_one_gets_it() -> None:
    store = recorded()

    def move(host: str, into: MemoryStore) -> str:
        return record_target(into, PLAN, Path("log"), "d1", host=host, started_ms=6, moved_as=f"of {host}").directory_id

    with pytest.raises(TransientError, match="run the same command again"):
        move("second", Overtaken(store, lambda: move("first", store)))
    with pytest.raises(UsageError, match="on first"):
        move("second", store)


def test_what_is_verified_somewhere_is_not_moved_and_what_was_moved_is_not_verified() -> None:
    store = recorded()

    def verify(host: str, directory_id: str, into: MemoryStore = store) -> None:
        record_verified(into, PLAN, Path("log"), directory_id, host=host, now_ms=9)

    def move(host: str, into: MemoryStore = store) -> str:
        return record_target(into, PLAN, Path("log"), "d1", host=host, started_ms=6, moved_as="d2").directory_id

    with pytest.raises(TransientError, match="changed meanwhile"):
        verify("here", "d1", Overtaken(store, lambda: move("there")))
    with pytest.raises(UsageError, match=r"continues in .* on there since"):
        verify("here", "d1")
    with pytest.raises(UsageError, match=r"continues in .* on there since"):
        verify("there", "d1")
    for _ in range(2):
        verify("there", "d2")
    with pytest.raises(UsageError, match="was applied to"):
        move("here")
    store = recorded()
    with pytest.raises(TransientError, match="changed meanwhile"):
        move("there", Overtaken(store, lambda: verify("here", "d1", store)))
    with pytest.raises(UsageError, match=f"was verified in .* delete {KEY}"):
        move("there", store)
    store.delete(KEY)
    with pytest.raises(TransientError, match="is gone"):
        verify("here", "d1", store)


def test_it_says_what_is_held_back_until_that_is_put_back_once() -> None:
    store = recorded()
    [record], wrong = read_records(store)
    assert ([(each.name, each.value, each.recovered) for each in record.held], record.put_back_ms, wrong) == (
        [("retention.bytes", None, "-1"), ("retention.ms", "600", "-1")],
        None,
        [],
    )
    for now_ms in (7, 8):
        record_put_back(store, PLAN.recovery_id, now_ms)
    [[record], _] = read_records(store)
    assert (record.put_back_ms, record.directory_id) == (7, "d1")


def test_what_was_never_recorded_is_not_recorded_then() -> None:
    store = MemoryStore(ManualClock())
    record_put_back(store, PLAN.recovery_id, 7)
    assert list(store.list("")) == []


def test_a_damaged_record_is_named_and_not_written_over() -> None:
    store = recorded()
    raw = store.get(KEY, max_bytes=DOCUMENT_BYTES_MAX)[0].replace(b"600", b"601")
    store.delete(KEY)
    store.create(KEY, raw)
    records, [wrong] = read_records(store)
    assert (records, KEY in wrong) == ([], True)
    with pytest.raises(CorruptData):
        record_put_back(store, PLAN.recovery_id, 7)
    assert store.get(KEY)[0] == raw


def test_a_host_that_has_another_name_is_told_what_to_add() -> None:
    """As the next pod of a Kubernetes Job, on the same volume."""
    with pytest.raises(
        UsageError, match=r"begun in /\S*log on here, and this is /\S*log on there.* only the host's name has changed.* --moved"
    ):
        record_target(recorded(), PLAN, Path("log"), "d1", host="there", started_ms=6)
