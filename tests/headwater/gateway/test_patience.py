"""Waiting over many requests."""

from headwater.gateway import patience
from headwater.gateway.patience import Patience, WantedOffset

PLACE = WantedOffset("soup:0", 7)


def test_patience_counts_from_the_first_request_that_did_not_get_it() -> None:
    waits = Patience(10.0)
    assert [waits.is_over(PLACE, at_s) for at_s in (0.0, 4.0, 9.9, 10.0, 11.0)] == [False, False, False, True, True]


def test_what_was_got_is_waited_for_again() -> None:
    waits = Patience(10.0)
    waits.is_over(PLACE, 0.0)
    waits.got(PLACE)
    waits.got(PLACE)
    assert not waits.is_over(PLACE, 10.0)


def test_an_offset_without_requests_is_waited_for_again() -> None:
    waits = Patience(10.0)
    waits.is_over(PLACE, 0.0)
    assert not waits.is_over(PLACE, 10.0)
    assert not waits.is_over(PLACE, 19.0)
    assert waits.is_over(PLACE, 20.0)


def test_only_so_many_places_are_remembered() -> None:
    waits = Patience(10.0)
    waits.is_over(PLACE, 0.0)
    for number in range(patience.OFFSETS_MAX):
        waits.is_over(WantedOffset("full", number), 5.0)
    assert not waits.is_over(PLACE, 10.0)


def test_whether_anything_is_waited_for_is_known() -> None:
    waits = Patience(10.0)
    known = [waits.has_any]
    waits.is_over(PLACE, 0.0)
    known.append(waits.has_any)
    waits.got(PLACE)
    known.append(waits.has_any)
    assert known == [False, True, False]
