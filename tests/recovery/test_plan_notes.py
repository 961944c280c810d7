"""What people should know of a plan beside what it brings back."""

from typing import Any

from msgspec.structs import replace

from recovery.discovery import Found
from recovery.plan_notes import notes_of
from recovery.planner import make_plan
from recovery.recovery_plan import Options, Request, RequestedEnd
from tests.recovery.plans import CLUSTER, ENTRIES, NOW, a_head, a_topic, planned


def test_what_stays_in_the_archive_is_said_and_which_cluster_id_it_takes_to_serve_it() -> None:
    notes = planned(a_topic(a_head(*ENTRIES)), mode="instant").notes
    assert [note for note in notes if "serves them: 30 records of 1 partition;" in note]
    assert [note for note in notes if f"--cluster-id {CLUSTER}" in note]
    assert not [note for note in planned(a_topic(a_head(*ENTRIES)), mode="instant", cluster_id=CLUSTER).notes if "--cluster-id" in note]
    full = planned(a_topic(a_head(*ENTRIES), retention_ms="600")).notes
    assert [note for note in full if "everything live in the archive comes back" in note and "--apply-retention" in note]


def test_a_plan_of_all_topics_names_both_ways_to_archive_on() -> None:
    def said(**options: Any) -> list[str]:
        return [
            note
            for note in planned(a_topic(a_head(*ENTRIES)), **options).notes
            if "--take-over" in note or "takes the archive over" in note
        ]

    [note] = said()
    assert f"the bucket remains the archive of cluster {CLUSTER}, the recovered cluster needs another one for its own" in note
    assert "with --take-over it archives on in this one" in note
    [note] = said(take_over=True)
    assert f"takes the archive over from cluster {CLUSTER}" in note
    assert said(cluster_id=CLUSTER) == []
    some = Request(topics=("orders",), options=Options())
    plan = make_plan(Found(topics=(a_topic(a_head(*ENTRIES)),)), some, now_ms=NOW, recovery_id="r1", cluster_id="new")
    assert not [note for note in plan.notes if "--take-over" in note], "they cannot take it over"


def test_a_requested_end_says_what_it_leaves_out() -> None:
    [topic] = planned(a_topic(a_head(*ENTRIES))).topics

    def text(end: RequestedEnd) -> str:
        [note] = notes_of(replace(topic, partitions=(replace(topic.partitions[0], end=end),)))
        return note

    assert text(RequestedEnd(offset=20, records=10)).endswith("ends at offset 20 or before, as requested, without 10 records after it")
    disorder = text(RequestedEnd(offset=20, records=10, out_of_order=3, at_least=True))
    assert disorder.endswith(", at least 3 of them out of order: not later than that")


def test_more_partitions_than_there_were_move_keys() -> None:
    notes = planned(a_topic(a_head(*ENTRIES)), partitions=3).notes
    assert [note for note in notes if "comes back with 3 partitions, its manifest has 1" in note]


def test_topics_with_records_that_are_dated_ahead_are_named() -> None:
    first, second, third = ENTRIES
    late = replace(second, last_timestamp_ms=10**18, published_ms=5)
    old = replace(third, last_timestamp_ms=10**18)
    notes = [note for note in planned(a_topic(a_head(first, late, old))).notes if "dated later" in note]
    assert [note.split(" that ")[0] for note in notes] == [
        "orders:0 has records from offset 10 on",
        "orders:0 has records from offset 20 on",
    ]
    assert "count as published then" in notes[0]
    assert "older version" in notes[1]
    assert not [note for note in planned(a_topic(a_head(*ENTRIES))).notes if "dated later" in note]
