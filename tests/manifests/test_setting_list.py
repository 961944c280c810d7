"""The list of what was set by command."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, UsageError
from headwater_core.objectstore.store import ObjectStore
from manifests import setting_list
from manifests.repository import ManifestRepository
from manifests.setting_list import SettingList, check_pattern, decode_settings, encode_settings
from tests.headwater_core.objectstore.memory import MemoryStore

changes = st.lists(
    st.tuples(st.sampled_from(["soup", "so*", "stew"]), st.sampled_from(["read_priority", "other"]), st.sampled_from(["a", "b", None])),
    max_size=20,
)


def made_of(made: list[tuple[str, str, str | None]]) -> SettingList:
    settings = SettingList()
    for pattern, key, value in made:
        settings = settings.changed(pattern, {key: value}, now_ms=1, by="cook")
    return settings


@given(changes)
def test_the_last_value_of_each_key_holds_and_what_is_set_anew_comes_last(made: list[tuple[str, str, str | None]]) -> None:
    settings, held = made_of(made), dict[tuple[str, str], str]()
    for pattern, key, value in made:
        if value is None:
            held.pop((pattern, key), None)
        elif held.get((pattern, key)) != value:
            held.pop((pattern, key), None)
            held[pattern, key] = value
    assert [((each.pattern, each.key), each.value) for each in settings.settings] == list(held.items())
    assert settings.version <= len(made)
    assert decode_settings(encode_settings(settings), "settings") == settings


@given(changes, st.data())
def test_a_flipped_bit_is_noticed(made: list[tuple[str, str, str | None]], data: st.DataObject) -> None:
    raw = bytearray(encode_settings(made_of(made)))
    digits = [at for at, byte in enumerate(raw) if chr(byte).isdigit()]
    at = data.draw(st.sampled_from(digits))
    raw[at] = ord("0") + (raw[at] - ord("0") + 1) % 10
    with pytest.raises(Exception, match=r"settings|digest|upgrade"):
        decode_settings(bytes(raw), "settings")


def test_a_change_that_changes_nothing_writes_nothing() -> None:
    store: ObjectStore = MemoryStore()
    repository = ManifestRepository(store)
    assert repository.load_settings() == SettingList()
    repository.change_settings(lambda before: before.changed("soup", {"read_priority": None}, now_ms=1, by="cook"))
    assert list(store.list("")) == []
    first = repository.change_settings(lambda before: before.changed("soup", {"read_priority": "a"}, now_ms=1, by="cook"))
    assert repository.change_settings(lambda before: before.changed("soup", {"read_priority": "a"}, now_ms=2, by="waiter")) == first
    assert repository.load_settings() == first
    assert [info.key for info in store.list("")] == ["meta/settings.json"]
    assert list(repository.incarnations()) == []


def test_what_is_no_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorruptData):
        decode_settings(b"{}", "settings")
    for wrong in ("", "a b", "a/b", "[a", "x" * 250):
        with pytest.raises(UsageError):
            check_pattern(wrong)
    monkeypatch.setattr(setting_list, "SETTINGS_MAX", 2)
    with pytest.raises(UsageError, match="use patterns"):
        made_of([("a", "x", "1"), ("b", "x", "1"), ("c", "x", "1")])
