"""Which archivers are kept, which are dropped to make room, and what is forgotten."""

import threading
from typing import cast

import pytest

from archival import members
from archival.members import Members
from archival.partition.archiver import PartitionArchiver
from archival.plan.policy import Policy
from archival.rest import Rest
from headwater_core.partition import PartitionId, topic_id_text
from tests.archival.builders import a_log

REST = Rest.by_hint(a_log(0, 10, 20, hw=20), 20, Policy())


class Archiver:
    """As far as members look at one."""

    def __init__(self) -> None:
        self.head, self.head_bytes, self.is_waiting, self.is_streaming = None, 100, False, False
        self.given_up = 0
        self.keeps, self.hangs = False, threading.Event()
        self.hangs.set()

    def end(self) -> bool:
        self.hangs.wait()
        return not self.keeps

    def give_up(self, reason: str) -> None:
        assert reason
        self.given_up += 1


def a_partition(number: int, topic: str = "soup") -> PartitionId:
    return PartitionId("cluster", topic_id_text(bytes([number]) * 16), 0, topic)


ONE, TWO, THREE = a_partition(1, "one"), a_partition(2, "two"), a_partition(3, "three")


@pytest.fixture
def known() -> Members:
    return Members(lambda partition: cast(PartitionArchiver, Archiver()))


def step(known: Members, partition: PartitionId, rest: Rest | None = REST) -> PartitionArchiver:
    with known.in_hand(partition) as member:
        member.rest = rest
        return known.archiver(member, partition)


def holding(known: Members) -> set[PartitionId]:
    return {partition for partition, member in known.known().items() if member.archiver is not None}


@pytest.mark.parametrize(("limit", "value"), [("RESTING_MAX", 2), ("RESTING_BYTES_MAX", 250)])
def test_of_those_without_work_the_last_keep_their_archivers(
    known: Members, limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, limit, value)
    first = step(known, ONE)
    step(known, TWO)
    assert step(known, ONE) is first
    step(known, THREE)
    assert holding(known) == {ONE, THREE}
    assert set(known.known()) == {ONE, TWO, THREE}, "what is known beside an archiver stays"
    assert step(known, TWO)
    assert holding(known) == {TWO, THREE}


def test_what_has_work_or_is_in_hand_makes_no_room(known: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "RESTING_MAX", 0)
    at_work = step(known, ONE, rest=None)
    with known.in_hand(TWO) as member:
        member.rest = REST
        archiver = known.archiver(member, TWO)
        assert step(known, TWO) is archiver
        assert holding(known) == {ONE, TWO}
    assert holding(known) == {ONE}
    assert step(known, ONE, rest=None) is at_work


def test_what_is_wanted_for_a_moment_leaves_nothing(known: Members) -> None:
    with known.archiver_of(ONE):
        assert holding(known) == {ONE}
    assert known.known() == {}
    kept = step(known, ONE, rest=None)
    with known.archiver_of(ONE) as archiver:
        assert archiver is kept
    assert holding(known) == {ONE}


@pytest.mark.parametrize("state", ["is_waiting", "is_streaming"])
def test_what_waits_for_its_commit_or_holds_an_open_object_is_kept(known: Members, state: str) -> None:
    with known.archiver_of(ONE) as archiver:
        setattr(archiver, state, True)
    assert holding(known) == {ONE}
    with known.archiver_of(ONE) as again:
        assert again is archiver


def test_what_holds_an_open_object_makes_no_room(known: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "RESTING_MAX", 0)
    archiver = cast(Archiver, step(known, ONE, rest=None))
    archiver.is_streaming = True
    step(known, ONE)
    with known.archiver_of(ONE):
        pass
    assert holding(known) == {ONE}
    archiver.is_streaming = False
    step(known, ONE)
    assert holding(known) == set()


@pytest.mark.parametrize("how", ["forget", "retain"])
def test_what_is_forgotten_gives_up_what_it_holds_open_while_others_go_on(known: Members, how: str) -> None:
    class Last(Archiver):
        def give_up(self, reason: str) -> None:
            super().give_up(reason)
            assert set(known.known()) == {TWO}, "the lock is free"

    gone = Last()
    known._new_archiver = lambda partition: cast(PartitionArchiver, gone if partition == ONE else Archiver())
    step(known, ONE)
    other = cast(Archiver, step(known, TWO))
    if how == "forget":
        known.forget(ONE.topic_partition)
    else:
        known.retain([TWO.topic_partition])
    assert (gone.given_up, other.given_up) == (1, 0)


def test_at_the_end_what_is_open_is_dropped_and_what_stays_is_named(known: Members) -> None:
    dropped, kept, hanging = (cast(Archiver, step(known, each, rest=None)) for each in (ONE, TWO, THREE))
    for each in (dropped, kept, hanging):
        each.is_streaming = True
    assert known.end_streams(60.0) == []
    kept.keeps = True
    assert known.end_streams(60.0) == [TWO]
    dropped.is_streaming = False
    hanging.hangs.clear()
    assert known.end_streams(0.01) == [TWO, THREE]
    hanging.hangs.set()
    kept.is_streaming = hanging.is_streaming = False
    assert known.end_streams(60.0) == []


def test_what_is_gone_is_forgotten_with_its_place(known: Members) -> None:
    step(known, ONE)
    step(known, TWO)
    known.forget(ONE.topic_partition)
    assert set(known.known()) == {TWO}
    assert known.identity(ONE.topic_partition) is None
    assert known.at(ONE.topic_partition) is None


def test_a_topic_that_was_created_again_is_another_member_at_the_same_place(known: Members) -> None:
    former, present = a_partition(1), a_partition(2)
    step(known, former)
    step(known, present)
    assert known.at(present.topic_partition) is known.known()[present]
    assert known.retain([present.topic_partition]) == {present}
    assert set(known.known()) == {present}


def test_nothing_is_forgotten_while_it_is_in_hand(known: Members) -> None:
    with known.in_hand(ONE):
        assert known.retain([]) == set()
        assert set(known.known()) == {ONE}
    assert known.retain([]) == set()
    assert known.known() == {}


def test_which_one_a_place_has_is_known_only_once_it_was_looked_at(known: Members) -> None:
    step(known, ONE)
    assert known.retain([ONE.topic_partition, TWO.topic_partition]) == {ONE}
    known.identify(TWO)
    assert known.retain([ONE.topic_partition, TWO.topic_partition]) == {ONE, TWO}
    assert known.at(TWO.topic_partition) is None
