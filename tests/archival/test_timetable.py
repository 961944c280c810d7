from archival.schedule.timetable import Timetable, earliest
from tests.archival.builders import place


def test_what_has_been_due_longest_comes_first() -> None:
    table = Timetable()
    for number, at_s in enumerate((30.0, 10.0, 20.0)):
        table.add(place("soup", number), at_s)
    assert (table.take(9.0), table.wait_s(9.0)) == (None, 1.0)
    assert [table.take(30.0) for _ in range(4)] == [place("soup", 1), place("soup", 2), place("soup", 0), None]
    assert table.wait_s(30.0) is None


def test_an_earlier_time_counts_and_a_later_one_does_not() -> None:
    table = Timetable()
    for at_s in (20.0, 10.0, 30.0):
        table.add(place("soup"), at_s)
    assert table.take(10.0) == place("soup")
    assert table.take(40.0) is None


def test_what_is_passed_over_keeps_its_time() -> None:
    table = Timetable()
    table.add(place("soup", 0), 1.0)
    table.add(place("soup", 1), 2.0)
    assert table.take(5.0, lambda each: each.partition == 0) == place("soup", 1)
    assert table.take(5.0) == place("soup", 0)


def test_what_is_gone_is_forgotten() -> None:
    table = Timetable()
    table.add(place("soup", 0), 1.0)
    table.add(place("soup", 1), 2.0)
    table.retain([place("soup", 1)])
    assert (len(table), table.take(5.0), table.take(5.0)) == (1, place("soup", 1), None)


def test_the_earliest_of_several_waits() -> None:
    assert (earliest(None, 3.0, 2.0), earliest(None, None)) == (2.0, None)
