"""Pages are written once, confirmed before anything refers to them, and damage only while a head refers to them."""

from typing import BinaryIO

import pytest

from headwater_core.errors import CorruptData, ManifestChanged, TransientError, UnknownOutcome
from headwater_core.objectstore.store import PLAIN, ObjectForm
from manifests.page import PageRef, page_key
from manifests.page_store import PageStore
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.manifests.builders import PARTITION, an_entry

ENTRIES = tuple(an_entry(at * 10, at * 10 + 9) for at in range(5))


class SilentStore(MemoryStore):
    """Puts get the answers of `plan`, one each: "lost" is a request that never arrives, "silent" one whose reply never does."""

    def __init__(self, *plan: str) -> None:
        super().__init__()
        self.plan = list(plan)

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        answer = self.plan.pop(0) if self.plan else ""
        if answer == "lost":
            raise UnknownOutcome("no reply")
        if answer == "busy":
            raise TransientError("slow down")
        digest = super().put(key, data, size_bytes=size_bytes, form=form)
        if answer == "silent":
            raise UnknownOutcome("no reply")
        return digest


def pages_of(store: MemoryStore | MeteredStore, *, still_refers: bool = True, kept_bytes: int = 1 << 20) -> PageStore:
    names = iter(range(1, 1 << 20))
    return PageStore(store, lambda: f"{next(names):032x}", lambda partition, ref: still_refers, kept_bytes)


def keys_in(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list("")]


def test_what_is_written_is_read_without_a_request_and_by_others_with_one() -> None:
    store = MeteredStore(MemoryStore())
    pages = pages_of(store)
    ref = pages.write(PARTITION, 1, 0, ENTRIES)
    assert pages.read(PARTITION, ref) == ENTRIES
    assert store.calls["get"] == 0
    other = pages_of(store)
    assert [other.read(PARTITION, ref) for _ in range(3)] == [ENTRIES] * 3
    assert store.calls["get"] == 1


def test_what_is_kept_is_bounded() -> None:
    store = MeteredStore(MemoryStore())
    pages = pages_of(store, kept_bytes=1)
    ref = pages.write(PARTITION, 1, 0, ENTRIES)
    assert [pages.read(PARTITION, ref) for _ in range(3)] == [ENTRIES] * 3
    assert store.calls["get"] == 3


def test_a_page_for_a_commit_that_did_not_come_about_is_used_again_under_the_same_fence() -> None:
    store = MemoryStore()
    pages = pages_of(store)
    first = pages.write(PARTITION, 1, 0, ENTRIES)
    assert pages.write(PARTITION, 1, 0, ENTRIES) == first
    assert len(keys_in(store)) == 1
    other = pages.write(PARTITION, 2, 0, ENTRIES)
    assert other.uid != first.uid
    assert keys_in(store) == sorted([page_key(PARTITION, first), page_key(PARTITION, other)])
    assert pages.write(PARTITION, 1, 0, ENTRIES[1:]).uid not in (first.uid, other.uid)


def test_a_write_without_an_answer_is_read_back() -> None:
    store = SilentStore("silent")
    ref = pages_of(store).write(PARTITION, 1, 0, ENTRIES)
    assert keys_in(store) == [page_key(PARTITION, ref)]


@pytest.mark.parametrize("answer", ["lost", "busy"])
def test_a_write_that_failed_takes_a_new_name(answer: str) -> None:
    store = SilentStore(answer)
    pages = pages_of(store)
    with pytest.raises(TransientError):
        pages.write(PARTITION, 1, 0, ENTRIES)
    assert pages.write(PARTITION, 1, 0, ENTRIES).uid == f"{2:032x}"
    assert len(keys_in(store)) == 1


def a_missing_page(*, still_refers: bool) -> tuple[PageStore, PageRef]:
    store = MemoryStore()
    ref = pages_of(store).write(PARTITION, 1, 0, ENTRIES)
    store.delete(page_key(PARTITION, ref))
    return pages_of(store, still_refers=still_refers), ref


def test_a_missing_page_is_damage_while_the_head_refers_to_it() -> None:
    pages, ref = a_missing_page(still_refers=True)
    with pytest.raises(CorruptData, match="refers to it"):
        pages.read(PARTITION, ref)


def test_a_missing_page_that_no_head_refers_to_any_more_was_replaced() -> None:
    pages, ref = a_missing_page(still_refers=False)
    with pytest.raises(ManifestChanged, match="replaced"):
        pages.read(PARTITION, ref)
