"""Every rule of the plan is one line here; the archiver's tests show that it also happens."""

from dataclasses import replace
from typing import Any

import pytest

from archival.config import ArchivalConfig, ArchiveMode
from archival.plan.policy import Policy
from archival.plan.role import Acting, archiving_role
from archival.plan.step_plan import next_steps
from archival.plan.steps import ClaimPartition, CutEntries, Idle, RecordGap, Revive, Step, Stop, Upload
from headwater_core.errors import UnfinishedSwap, UnrelatedLog
from headwater_core.segments.local_log import LocalLog
from manifests.head import Head
from tests.archival.builders import PARTITION, a_log, led_by
from tests.manifests import builders
from tests.manifests.builders import a_gap


def an_entry(base: int, last: int, **fields: Any) -> Any:
    return builders.an_entry(base, last, partition=PARTITION, **fields)


def a_head(*entries: Any, **fields: Any) -> Head:
    return builders.a_head(*entries, partition=PARTITION, **{"writer": "me", "leader_epoch": 0, **fields})


def steps(log: LocalLog, head: Head | None, policy: Policy | None = None, tail_age_ms: int = 0, writer: str = "me") -> list[Step]:
    return list(next_steps(log, head, writer=writer, policy=policy or Policy(), tail_age_ms=tail_age_ms))


def first(*arguments: Any, **options: Any) -> Step:
    return steps(*arguments, **options)[0]


def idle(*arguments: Any, **options: Any) -> str:
    found = first(*arguments, **options)
    assert isinstance(found, Idle), found
    return found.reason


# Who archives


def test_a_leader_archives_under_its_epoch() -> None:
    assert archiving_role(a_log(0, hw=0, epochs=[(0, 0), (3, 0)], leadership=led_by(1, 3))) == Acting(3)


def test_a_follower_does_not() -> None:
    assert idle(a_log(0, hw=9, leadership=led_by(2, 0)), None) == "follower of broker 2"


def test_a_directory_without_a_metadata_log_is_archived() -> None:
    assert archiving_role(a_log(0, hw=9, epochs=[(0, 0), (7, 5)])) == Acting(7)


def test_without_a_leader_a_replica_that_was_in_sync_last_archives() -> None:
    log = a_log(0, hw=9, leadership=led_by(-1, 4, in_sync=(1,)))
    assert archiving_role(log) == Acting(0)


def test_without_a_leader_a_replica_that_lags_is_behind() -> None:
    """With eligible leader replicas none is in sync then. Under the epoch of the metadata log it would cut the archive."""
    log = a_log(0, 5, hw=10, epochs=[(1, 0)], leadership=led_by(-1, 3, in_sync=()))
    head = a_head(an_entry(0, 9, epochs=((1, 0),)), an_entry(10, 19, epochs=((2, 10),)), leader_epoch=2)
    assert "behind" in idle(log, head)


def test_without_a_leader_a_replica_that_was_not_in_sync_does_not() -> None:
    assert "not in sync" in idle(a_log(0, hw=9, leadership=led_by(-1, 4, in_sync=(2,))), None)


def test_a_leader_whose_epoch_is_not_in_its_history_yet_waits() -> None:
    """Where its epoch begins decides what of the archive is a dead branch."""
    assert "has not reached" in idle(a_log(0, hw=9, leadership=led_by(1, 1)), a_head())


def test_a_log_with_records_and_no_epoch_history_is_left_alone() -> None:
    assert "no leader epoch history" in idle(a_log(0, hw=9, epochs=[]), None)


def test_nothing_is_archived_without_a_high_watermark() -> None:
    assert "high watermark" in idle(a_log(0, 10, hw=None), None)


def test_a_compaction_in_its_renames_is_waited_for() -> None:
    assert "compaction" in idle(a_log(0, 10, hw=20, settled=False), None)


def test_swap_files_that_no_broker_will_finish_stop_the_partition() -> None:
    log = replace(a_log(0, 10, hw=20, settled=False), leftovers=("00000000000000000000.log.swap",))
    for head in (None, a_head(an_entry(0, 9))):
        found = first(log, head)
        assert isinstance(found, Stop)
        assert isinstance(found.error, UnfinishedSwap)
        assert "/logs/soup-0: 00000000000000000000.log.swap" in str(found.error)


# Claims and lineage


def test_at_first_sight_the_archive_starts_at_the_log_start() -> None:
    assert first(a_log(0, hw=60, start=54), None) == ClaimPartition(54, 0)


def test_an_empty_topic_is_claimed_too() -> None:
    assert first(a_log(0, hw=0, epochs=[]), None) == ClaimPartition(0, -1)


def test_retention_since_the_last_checkpoint_moves_the_log_start() -> None:
    assert first(a_log(50, 60, hw=60, start=40), None) == ClaimPartition(50, 0)


def test_another_writers_partition_is_claimed_under_our_epoch() -> None:
    assert first(a_log(0, hw=9, epochs=[(0, 0), (2, 5)]), a_head(writer="she")) == ClaimPartition(0, 2)


def test_a_new_epoch_claims_again() -> None:
    assert first(a_log(0, hw=9, epochs=[(0, 0), (2, 5)]), a_head()) == ClaimPartition(0, 2)


def test_a_claim_does_not_stamp_a_lineage_it_has_not_followed() -> None:
    head = a_head(an_entry(0, 9), writer="she", leader_epoch=0)
    assert first(a_log(0, hw=9, epochs=[(0, 0), (2, 5)]), head) == ClaimPartition(0, 0)


def test_a_log_behind_the_head_claims_nothing() -> None:
    assert "behind" in idle(a_log(0, hw=9, epochs=[(0, 0), (2, 5)]), a_head(leader_epoch=3, writer="she"))


def test_a_dead_branch_is_cut_before_anything_else() -> None:
    assert first(a_log(0, 20, hw=40, epochs=[(0, 0), (2, 5)]), a_head(an_entry(0, 9))) == CutEntries(5, 2)


def test_a_superseded_run_that_lies_on_the_history_again_is_revived_before_it_is_uploaded() -> None:
    dead = an_entry(10, 29, epochs=((2, 10),), uid="b" * 32)
    head = a_head(an_entry(0, 9), superseded=(dead,), leader_epoch=4)
    assert first(a_log(0, 40, hw=40, epochs=[(0, 0), (2, 10), (4, 25)]), head) == Revive(dead, 25)
    assert first(a_log(0, 40, hw=18, epochs=[(0, 0), (2, 10), (4, 25)]), head) == Revive(dead, 18)


def test_a_superseded_run_stays_dead_without_proof() -> None:
    dead = an_entry(10, 29, epochs=((2, 10),), uid="b" * 32)
    head = a_head(an_entry(0, 9), superseded=(dead,), leader_epoch=4)
    log = a_log(30, 40, hw=40, epochs=[(4, 30)])
    assert not any(isinstance(step, Revive) for step in steps(log, head))


def test_a_superseded_run_is_not_revived_from_the_middle_of_its_object() -> None:
    dead = an_entry(10, 29, epochs=((2, 10),), uid="b" * 32, key=an_entry(5, 29, uid="b" * 32).key)
    head = a_head(an_entry(0, 9), superseded=(dead,), leader_epoch=2)
    assert not any(isinstance(step, Revive) for step in steps(a_log(0, 40, hw=40, epochs=[(0, 0), (2, 10)]), head))


def test_a_compacted_log_that_holds_the_offsets_revives_nothing() -> None:
    dead = an_entry(10, 29, epochs=((2, 10),), uid="b" * 32)
    head = a_head(an_entry(0, 9), superseded=(dead,), leader_epoch=2)
    log = a_log(0, 40, hw=40, epochs=[(0, 0), (2, 10)], compacted=True)
    assert not any(isinstance(step, Revive) for step in steps(log, head))


# Logs that are not the archive's


def test_a_log_that_shares_no_epoch_with_the_archive_stops_before_it_claims_or_cuts() -> None:
    log = a_log(0, hw=5, epochs=[(4, 0)])
    for writer in ("me", "she"):
        found = steps(log, a_head(an_entry(0, 9)), writer=writer)
        assert [type(step) for step in found] == [Stop]
        assert isinstance(found[0], Stop)
        assert isinstance(found[0].error, UnrelatedLog)
        assert found[0].error.begins_in == 4


def test_an_epoch_that_wrote_nothing_is_not_shared() -> None:
    assert isinstance(first(a_log(0, hw=5, epochs=[(0, 0), (4, 0)]), a_head(an_entry(0, 9))), Stop)


def test_what_the_archive_has_given_up_is_not_shared_either() -> None:
    head = a_head(an_entry(0, 9, epochs=((3, 0),)), superseded=(an_entry(0, 9, uid="b" * 32),), leader_epoch=3)
    assert isinstance(first(a_log(0, hw=9, epochs=[(0, 0), (4, 5)]), head), Stop)


def test_consent_holds_for_logs_that_began_by_then() -> None:
    log, head = a_log(0, hw=5, epochs=[(4, 0), (5, 3)]), a_head(an_entry(0, 9))
    assert isinstance(first(log, head, Policy(begin_anew_epoch=3)), Stop)
    assert first(log, head, Policy(begin_anew_epoch=4)) == CutEntries(0, 5)


# Gaps


def test_what_no_log_holds_is_a_gap_up_to_the_log_start() -> None:
    assert first(a_log(0, 20, hw=30, start=15), a_head(an_entry(0, 9))) == RecordGap(10, 14)


def test_a_gap_is_refilled_as_soon_as_the_log_holds_its_offsets() -> None:
    head = a_head(an_entry(0, 9), a_gap(10, 19), an_entry(20, 29))
    found = first(a_log(5, 15, 40, hw=40), head)
    assert isinstance(found, Upload)
    assert (found.first, found.end, found.refills) == (10, 15, head.entries[1])


def test_a_gap_is_refilled_as_far_as_the_log_reaches_back() -> None:
    head = a_head(an_entry(0, 9), a_gap(10, 19), an_entry(20, 29))
    found = first(a_log(10, 40, hw=40, start=14), head)
    assert isinstance(found, Upload)
    assert (found.first, found.end) == (14, 20)


def test_a_gap_below_the_log_start_stays() -> None:
    assert idle(a_log(20, 30, hw=30), a_head(an_entry(0, 9), a_gap(10, 19), an_entry(20, 29))) == "caught up"


def test_a_gap_at_the_end_does_not_bound_what_refills_it() -> None:
    found = first(a_log(5, 40, hw=40), a_head(an_entry(0, 9), a_gap(10, 19)))
    assert isinstance(found, Upload)
    assert found.end == 40


# Uploads


def test_a_sealed_segment_below_the_high_watermark_is_uploaded() -> None:
    found = first(a_log(0, 10, hw=10), a_head())
    assert isinstance(found, Upload)
    assert (found.segment.base_offset, found.first, found.end, found.cover_end) == (0, 0, 10, None)


def test_a_sealed_segment_above_it_waits() -> None:
    assert "not sealed and committed" in idle(a_log(0, 10, hw=9), a_head())


def test_an_active_segment_waits_for_its_roll() -> None:
    assert "not sealed and committed" in idle(a_log(0, 10, hw=15), a_head(an_entry(0, 9)))


def test_the_rest_of_a_segment_whose_beginning_is_archived_comes_next() -> None:
    found = first(a_log(0, 20, hw=30), a_head(an_entry(0, 9)))
    assert isinstance(found, Upload)
    assert (found.segment.base_offset, found.first, found.end) == (0, 10, 20)


def test_small_sealed_segments_come_one_by_one() -> None:
    found = [step for step in steps(a_log(0, 3, 6, hw=6), a_head()) if isinstance(step, Upload)]
    assert [(step.segment.base_offset, step.end) for step in found] == [(0, 3), (3, 6)]


@pytest.mark.parametrize(("age_ms", "due"), [(999, False), (1000, True)])
def test_the_committed_tail_comes_when_it_has_waited(age_ms: int, due: bool) -> None:
    found = first(a_log(0, 10, hw=15), a_head(an_entry(0, 9)), Policy(tail_after_ms=1000), age_ms)
    assert isinstance(found, Upload) is due
    if isinstance(found, Upload):
        assert (found.segment.base_offset, found.end) == (10, 15)


def test_a_tail_may_end_inside_a_sealed_segment() -> None:
    found = first(a_log(0, 10, 20, hw=15), a_head(an_entry(0, 9)), Policy(tail_after_ms=0))
    assert isinstance(found, Upload)
    assert (found.segment.base_offset, found.end, found.cover_end) == (10, 15, None)


def test_with_proof_of_compaction_an_entry_may_reach_the_next_segment() -> None:
    found = first(a_log(0, 10, hw=10, compacted=True), a_head())
    assert isinstance(found, Upload)
    assert found.cover_end == 10


def test_a_prefix_ends_before_its_offset() -> None:
    assert "beyond 5" in idle(a_log(0, 10, hw=10), a_head(), Policy(end=5))
    assert isinstance(first(a_log(0, 10, hw=10), a_head(), Policy(end=10)), Upload)
    assert "not sealed" in idle(a_log(0, 10, hw=15), a_head(an_entry(0, 9)), Policy(end=12, tail_after_ms=0))


def test_an_emptied_log_has_nothing_to_archive() -> None:
    assert idle(a_log(0, hw=54, start=54), a_head(start_offset=54, last_offset=53)) == "caught up"


def test_a_caught_up_log_is_idle() -> None:
    assert idle(a_log(0, 10, hw=10), a_head(an_entry(0, 9))) == "caught up"


def test_a_log_truncated_below_its_checkpointed_start_begins_where_its_history_does() -> None:
    log = replace(a_log(0, 10, hw=20), log_start=15)
    assert first(log, None) == ClaimPartition(0, 0)


def test_where_archiving_is_off_nothing_is_planned_not_even_a_claim() -> None:
    for settings, requested in ((ArchivalConfig(archive=ArchiveMode.OFF), True), (ArchivalConfig(archive=ArchiveMode.MANUAL), False)):
        policy = Policy.of(settings, requested=requested)
        [step] = next_steps(a_log(0, 10, hw=20), None, writer="agent-a", policy=policy, tail_age_ms=0)
        assert step == Idle(f"archive = {settings.archive.value}", compared=False)
    assert not Policy.of(ArchivalConfig(archive=ArchiveMode.MANUAL), requested=True).off
