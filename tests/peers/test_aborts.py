"""The harness itself: the log of aborts is what other tests take it for, and a broker answers what is in it."""

from bisect import bisect_right

import pytest

from tests.peers.aborts import GROUP, Answers

pytestmark = [pytest.mark.peer, GROUP]


def test_the_log_of_aborts_is_what_it_should_be(answers: Answers) -> None:
    """Data over several segments, the marker two segments or more after the last of it, and read_committed shows none of it."""
    committed = {record["offset"] for record in answers.reads["read_committed"].records}
    for abort in answers.aborts:
        first, last, marker = (bisect_right(answers.bases, offset) for offset in abort)
        assert first < last
        assert marker - last >= 2
        assert committed.isdisjoint({abort.first, abort.last})


def test_the_java_client_shows_what_is_there(answers: Answers) -> None:
    raw, committed = answers.reads["read_uncommitted"], answers.reads["read_committed"]
    assert raw.bounds == committed.bounds
    assert len(raw.records) > len(committed.records) > 0
    assert len(answers.bases) >= 6
    assert answers.from_middle == [record for record in committed.records if record["offset"] >= answers.middle][:5]
    assert answers.offsets_for_times[0]["offset"] == 0


def test_a_broker_names_the_same_records_for_times_but_for_markers(answers: Answers) -> None:
    """A broker may name a transaction marker's offset, which no reader ever sees, and whose time may lie after that of the next record."""
    seen = {record["offset"] for record in answers.reads["read_uncommitted"].records}
    for ours, found in zip(answers.first_records(), answers.offsets_for_times, strict=True):
        theirs = found["offset"]
        assert ours == theirs or (theirs is not None and theirs not in seen and (ours is None or theirs < ours))
