"""The record in the bucket of where a plan is applied, and of what it holds back."""

from pathlib import Path

import pytest

from headwater_core.errors import CorruptData, UsageError
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX
from manifests import keys
from recovery.target_record import read_records, record_put_back, record_target
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.plans import ENTRIES, a_head, a_topic, planned

PLAN = planned(a_topic(a_head(*ENTRIES), retention_ms="600"))
KEY = keys.recovery(PLAN.recovery_id)


def recorded(into: str = "log", directory_id: str = "d1") -> MemoryStore:
    store = MemoryStore(ManualClock())
    assert record_target(store, PLAN, Path(into), directory_id, host="here", started_ms=5) == directory_id
    return store


def test_a_plan_has_one_directory_and_keeps_its_id() -> None:
    store = recorded()
    assert record_target(store, PLAN, Path("log"), "d2", host="here", started_ms=6) == "d1"
    for into, host in (("log", "there"), ("elsewhere", "here")):
        with pytest.raises(UsageError, match="was applied to"):
            record_target(store, PLAN, Path(into), "d2", host=host, started_ms=6)


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
