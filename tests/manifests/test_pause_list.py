"""What is paused, as a value and as a document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, UsageError
from headwater_core.partition import TopicPartition
from manifests import pause_list
from manifests.pause_list import KEPT_MS, Pause, PauseList, PauseScope, decode_pauses, encode_pauses

EVERYTHING, SOUP, SOUP_1 = PauseScope(), PauseScope("soup"), PauseScope("soup", 1)
PLACES = [TopicPartition("soup", 0), TopicPartition("soup", 1), TopicPartition("stew", 0)]


def paused(pauses: PauseList) -> list[str]:
    return [str(place) for place in PLACES if pauses.of(place)]


def test_what_is_selected_is_paused_and_nothing_else() -> None:
    none = PauseList()
    assert paused(none.paused(SOUP_1, now_ms=5, by="a")) == ["soup:1"]
    assert paused(none.paused(SOUP, now_ms=5, by="a")) == ["soup:0", "soup:1"]
    assert paused(none.paused(EVERYTHING, now_ms=5, by="a")) == ["soup:0", "soup:1", "stew:0"]


def test_the_same_again_changes_nothing() -> None:
    once = PauseList().paused(SOUP, now_ms=5, by="a")
    assert once.paused(SOUP, now_ms=9, by="b") is once
    over = once.resumed(SOUP, now_ms=9)
    assert over.resumed(SOUP, now_ms=12) is over
    assert (once.version, over.version) == (1, 2)


def test_resuming_more_resumes_its_parts_and_a_part_cannot_be_resumed() -> None:
    both = PauseList().paused(SOUP_1, now_ms=5, by="a").paused(SOUP, now_ms=6, by="a")
    with pytest.raises(UsageError, match="soup is paused as a whole"):
        both.resumed(SOUP_1, now_ms=9)
    assert paused(both.resumed(SOUP, now_ms=9)) == []
    whole = both.paused(EVERYTHING, now_ms=7, by="a")
    with pytest.raises(UsageError, match="everything is paused"):
        whole.resumed(SOUP, now_ms=9)
    assert paused(whole.resumed(EVERYTHING, now_ms=9)) == []


def test_what_is_over_is_remembered() -> None:
    over = PauseList().paused(SOUP, now_ms=5, by="a").resumed(SOUP, now_ms=9)
    last = over.last_of(PLACES[0])
    assert last
    assert (last.since_ms, last.until_ms) == (5, 9)
    assert over.last_of(PLACES[2]) is None
    clock_put_back = PauseList().paused(SOUP, now_ms=5, by="a").resumed(SOUP, now_ms=1)
    assert paused(clock_put_back) == []


def test_what_is_long_over_is_forgotten() -> None:
    over = PauseList().paused(SOUP, now_ms=5, by="a").resumed(SOUP, now_ms=9)
    assert len(over.paused(SOUP, now_ms=9 + KEPT_MS, by="a").pauses) == 2
    assert len(over.paused(SOUP, now_ms=10 + KEPT_MS, by="a").pauses) == 1


def test_the_oldest_that_is_over_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_list, "PAUSES_MAX", 3)
    found = PauseList()
    for number in range(3):
        found = found.paused(PauseScope("soup", number), now_ms=number, by="a")
    with pytest.raises(UsageError, match="3 pauses are in force"):
        found.paused(PauseScope("stew"), now_ms=9, by="a")
    found = (
        found.resumed(PauseScope("soup", 2), now_ms=7).resumed(PauseScope("soup", 1), now_ms=8).paused(PauseScope("stew"), now_ms=9, by="a")
    )
    assert [(str(each.selection), each.in_force) for each in found.pauses] == [("soup:0", True), ("soup:1", False), ("stew", True)]


@given(
    changes=st.lists(
        st.tuples(st.sampled_from([EVERYTHING, SOUP, SOUP_1, PauseScope("stew", 0)]), st.booleans(), st.integers(0, 10**12)), max_size=12
    )
)
def test_what_is_written_reads_back(changes: list[tuple[PauseScope, bool, int]]) -> None:
    found = PauseList()
    for selection, resume, now_ms in changes:
        try:
            found = found.resumed(selection, now_ms=now_ms) if resume else found.paused(selection, now_ms=now_ms, by="a")
        except UsageError:
            continue
    assert decode_pauses(encode_pauses(found), "paused.json") == found


def test_damage_is_noticed() -> None:
    raw = encode_pauses(PauseList().paused(SOUP, now_ms=5, by="a"))
    with pytest.raises(CorruptData):
        decode_pauses(raw.replace(b"soup", b"stew"), "paused.json")
    with pytest.raises(ValueError, match="impossible"):
        Pause(since_ms=-1, by="a")
