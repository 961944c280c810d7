"""One document that all agents share, as one of them knows it. tests/archival/test_known_pauses.py has the same with pauses."""

import pytest

from headwater_core.errors import StoreGone, TransientError
from manifests import keys
from manifests.known_document import REFRESH_S, KnownDocument
from manifests.repository import ManifestRepository
from manifests.setting_list import SettingList
from tests.headwater_core.manual_clock import ManualClock
from tests.hydration.flaky_store import FlakyStore


class Known:
    """With everything that is told of it."""

    def __init__(self) -> None:
        self.store, self.clock = FlakyStore(), ManualClock()
        self.repository = ManifestRepository(self.store)
        self.taken: list[tuple[int, int]] = []
        self.unread = self.changed = self.gets = 0
        self.in_use = True
        self.document = KnownDocument(
            self._load, self.repository.change_settings, self.clock, taken=self._take, unread=self._note, in_use=lambda _: self.in_use
        )
        self.document.changed = self._change

    def _load(self) -> SettingList:
        self.gets += 1
        return self.repository.load_settings()

    def _take(self, before: SettingList | None, found: SettingList) -> bool:
        self.taken.append((before.version if before else -1, found.version))
        return before is not None and before.version != found.version

    def _note(self, _: object) -> None:
        self.unread += 1

    def _change(self) -> None:
        self.changed += 1

    def set(self, value: str) -> None:
        """By another node."""
        self.repository.change_settings(lambda before: before.changed("soup", {"read_priority": value}, now_ms=1, by="cook"))


def test_it_is_read_once_when_asked_for_again_when_announced_and_now_and_then_while_in_use() -> None:
    known = Known()
    assert known.document.now() == known.document.now() == SettingList()
    known.set("local-only")
    known.document.look(0)
    assert (known.gets, known.changed) == (1, 0)
    known.document.look(1)
    known.document.look(1)
    assert (known.gets, known.changed, known.document.now().version) == (2, 1, 1)
    known.set("local-first")
    known.clock.advance(round(REFRESH_S * 1000))
    known.in_use = False
    known.document.look(1)
    assert known.gets == 2, "nobody needs it"
    known.in_use = True
    known.document.look(1)
    assert (known.gets, known.document.now().version) == (3, 2)
    assert known.taken == [(-1, 0), (0, 1), (1, 2)]


def test_a_silent_bucket_leaves_what_was_known_and_is_asked_once_in_a_while() -> None:
    known = Known()
    known.store.refuse = lambda operation, key: TransientError("away")
    for _ in range(3):
        known.document.look(1)
    assert (known.gets, known.unread) == (1, 1)
    with pytest.raises(TransientError):
        known.document.now()
    known.store.refuse = lambda operation, key: None
    known.set("local-only")
    known.clock.advance(round(REFRESH_S * 1000))
    known.document.look(1)
    assert known.document.now().version == 1
    known.store.refuse = lambda operation, key: TransientError("away")
    known.document.look(2)
    assert (known.document.now().version, known.unread) == (1, 2)


def test_a_bucket_that_has_lost_it_leaves_what_was_known() -> None:
    """The mount point of a bucket that is not mounted is empty."""
    known = Known()
    known.set("local-only")
    known.document.refresh()
    known.store.delete(keys.SETTINGS)
    known.document.look(2)
    assert (known.document.now().version, known.unread) == (1, 1)
    with pytest.raises(StoreGone, match="mount the bucket"):
        known.document.refresh()


def test_a_change_of_our_own_is_known_at_once() -> None:
    known = Known()
    after = known.document.change(lambda before: before.changed("soup", {"read_priority": "local-only"}, now_ms=1, by="cook"))
    assert (known.document.now(), known.gets) == (after, 0)


def test_what_expires_is_read_by_the_next_look_also_when_a_read_was_in_flight() -> None:
    known = Known()
    known.document.refresh()
    known.set("local-only")
    known.document.expire()
    known.document.look(0)
    known.document.look(0)
    assert (known.gets, known.document.now().version) == (2, 1)

    def write_and_expire(operation: str, key: str) -> None:
        known.store.refuse = lambda *_: None
        known.document.expire()

    known.store.refuse = write_and_expire
    known.document.refresh()
    known.set("local-first")
    known.document.look(0)
    assert (known.gets, known.document.now().version) == (4, 2)
