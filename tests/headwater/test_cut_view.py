"""The cut of a plan as text for people; its rows are tried with the cut itself (tests/recovery/test_cut.py)."""

from headwater.cut_view import cut_rows, rpo_summary
from tests.recovery.test_requested_ends import T0, at
from tests.recovery.written_archive import Archive


def test_the_worst_rpo_is_named_with_its_partition() -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 10), at(1, 20)], [at(2, 70_000)])
    archive.topic("menu", [at(0, 15)])
    plan = archive.plan(to_time_ms=T0 + 12)
    assert rpo_summary(plan) == (
        "RPO, the worst: 1 m 10 s before the newest archived record (orders:0); not known of 1 partition without a record that has a time"
    )
    assert [(row["topic"], row["rpo"]) for row in cut_rows(plan)] == [("menu", ""), ("orders", "1 m 10 s")]


def test_a_record_timed_in_microseconds_is_shown_by_its_number() -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 10), at(1, 1000 * T0 - T0)], [at(2, 20)])
    plan = archive.plan(to_offsets={"orders:0": 2})
    assert [row["newest"] for row in cut_rows(plan)] == [str(1000 * T0)]
