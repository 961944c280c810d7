"""One pass over what is there, beside a loop or alone."""

import threading

from archival.archive_pass import ArchivePass, archive_all
from archival.fleet import PartitionOutcome
from headwater_core.partition import TopicPartition
from tests.archival.builders import SEALED, SendingStore, number_of
from tests.headwater.broker import Bench


def test_a_one_shot_pass_ends_however_fast_a_partition_grows(bench: Bench, store: SendingStore) -> None:
    bench.broker.partition("busy", 0, segments=3)
    bench.broker.partition("quiet", 0)
    store.sending = lambda key: bench.broker.roll("busy", 0) if "/busy/" in key else None
    rows = {each.place.topic: each for each in archive_all(bench.fleet, lambda _: SEALED)}
    assert {topic: (row.objects, row.last_offset, row.error) for topic, row in rows.items()} == {
        "busy": (2, 19, None),
        "quiet": (1, 9, None),
    }
    assert len(bench.broker.segments("busy", 0)) == 5


def test_a_pass_and_the_loop_run_side_by_side(bench: Bench, store: SendingStore) -> None:
    """The pass is asked for while the loop is in the middle of a step."""
    bench.broker.partition("soup", 0, 1, segments=3)
    rows: list[PartitionOutcome] = []

    def ask(key: str) -> None:
        store.sending = lambda _: None
        rows.extend(archive_all(bench.fleet, lambda _: SEALED, wanted=lambda place: place.partition != number_of(key)))

    store.sending = ask
    bench.scheduler.rescan()
    bench.turns()
    [row] = rows
    assert (row.objects, row.last_offset, row.error) == (2, 19, None)
    assert [bench.last_offset("soup", number) for number in (0, 1)] == [19, 19]
    assert len(list(store.list("data/"))) == 2 * 2 * 2  # each once, with its index


def test_a_pass_archives_nothing_at_or_past_the_ends_that_it_was_given(bench: Bench) -> None:
    bench.broker.partition("soup", 0, 1, segments=3)
    places = [TopicPartition("soup", number) for number in (0, 1)]
    one_pass = ArchivePass(bench.fleet, lambda _: SEALED, {places[0]: 10, places[1]: None}, threading.Event())
    while one_pass.turn():
        pass
    assert [bench.last_offset("soup", number) for number in (0, 1)] == [9, 19]


def test_a_pass_that_is_stopped_before_it_begins_does_nothing(bench: Bench) -> None:
    bench.broker.partition("soup", 0)
    stop = threading.Event()
    stop.set()
    assert list(archive_all(bench.fleet, lambda _: SEALED, stop=stop)) == []
    assert bench.head("soup", 0) is None
