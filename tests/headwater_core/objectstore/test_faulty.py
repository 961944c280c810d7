import contextlib
import random

import pytest

from headwater_core.errors import AlreadyExists, Conflict, HeadwaterError, NotFound, TransientError, UnknownOutcome
from headwater_core.objectstore.store import ObjectStore
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.contract import ObjectStoreContract, put
from tests.headwater_core.objectstore.faulty import BAD_NETWORK, NO_FAULTS, Faults, FaultyStore
from tests.headwater_core.objectstore.memory import MemoryStore


class TestFaultyStoreOnAGoodDay(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return FaultyStore(MemoryStore(ManualClock()), random.Random(1), NO_FAULTS)


def a_store(faults: Faults, seed: int = 1) -> tuple[MemoryStore, FaultyStore]:
    inner = MemoryStore(ManualClock())
    return inner, FaultyStore(inner, random.Random(seed), faults)


def test_a_lost_request_does_nothing() -> None:
    inner, store = a_store(Faults(lost_request=1))
    with pytest.raises(UnknownOutcome):
        store.create("a", b"1")
    assert list(inner.list("")) == []


def test_a_lost_reply_is_of_a_write_that_was_done() -> None:
    inner, store = a_store(Faults(lost_reply=1))
    with pytest.raises(UnknownOutcome):
        put(store, "a", b"1")
    assert inner.get("a")[0] == b"1"


def test_a_delayed_write_arrives_later_and_its_refusal_is_not_heard() -> None:
    inner, store = a_store(Faults(delayed=1))
    for content in (b"1", b"2"):
        with pytest.raises(UnknownOutcome):
            store.create("a", content)
    assert store.in_flight + len(list(inner.list(""))) == 2
    store.land()
    assert inner.get("a")[0] in (b"1", b"2")
    assert store.in_flight == 0


def test_an_echoed_write_refuses_its_own_success() -> None:
    inner, store = a_store(Faults(echoed=1))
    with pytest.raises(AlreadyExists):
        store.create("a", b"1")
    with pytest.raises(Conflict):
        store.replace("a", b"2", expected_tag=inner.get("a")[1])
    assert inner.get("a")[0] == b"2"


def test_a_refusal_is_definite() -> None:
    inner, store = a_store(Faults(refused=1))
    with pytest.raises(TransientError) as refusal:
        store.create("a", b"1")
    assert not isinstance(refusal.value, UnknownOutcome)
    assert list(inner.list("")) == []


def test_a_stale_listing_shows_part_of_what_changed() -> None:
    inner, store = a_store(Faults(stale_list=1))
    old = [f"old/{number:02}" for number in range(20)]
    for key in old:
        inner.create(key, b"")
    for _ in range(2):
        list(store.list(""))
    for key in old[:10]:
        inner.delete(key)
    inner.create("kept", b"")
    shown = {info.key for info in store.list("old/")}
    assert set(old[10:]) < shown < set(old)


@pytest.mark.parametrize("seed", range(50))
def test_what_is_heard_is_true(seed: int) -> None:
    """Success means done, a refusal that there was a reason, silence that it was done entirely or not at all."""
    inner, store = a_store(BAD_NETWORK, seed)
    source = random.Random(seed)
    believed: dict[str, set[bytes | None]] = {}
    for step in range(300):
        key = f"k{source.randrange(30)}"
        content = b"%d" % step
        possible = believed.setdefault(key, {None})
        try:
            if source.random() < 0.5:
                store.create(key, content)
                assert None in possible
            else:
                store.replace(key, content, expected_tag=inner.get(key)[1])
            assert inner.get(key)[0] == content
            possible.add(content)
        except NotFound:
            assert None in possible
        except (AlreadyExists, Conflict, TransientError):
            possible.add(content)
        with contextlib.suppress(NotFound, TransientError):
            assert store.get(key)[0] in possible
    store.land()
    for info in inner.list(""):
        assert inner.get(info.key)[0] in believed[info.key]


def test_a_seed_replays_exactly() -> None:
    def story(seed: int) -> list[str]:
        _, store = a_store(BAD_NETWORK, seed)
        outcomes = []
        for step in range(200):
            try:
                outcomes.append(store.create(f"k{step % 7}", b"%d" % step))
            except HeadwaterError as error:
                outcomes.append(repr(error))
        return outcomes

    assert story(3) == story(3)
    assert story(3) != story(4)
