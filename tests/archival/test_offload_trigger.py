"""What the triggers of an operator come to: which segments go, which wait, and when a trigger is not applied."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from archival.config import ArchivalConfig, ArchiveMode
from archival.plan.offload_trigger import LocalRetention, bounded, misfit, unknown_limit
from archival.plan.policy import Policy, Triggers
from archival.plan.retention_deadline import deadline_ms
from archival.plan.step_plan import next_steps
from archival.plan.steps import Idle, Upload
from archival.rest import Rest
from headwater_core.segments.local_log import Generation, LocalLog
from headwater_core.segments.metadata.cluster_metadata import Retention
from manifests.head import Head
from tests.archival.builders import a_log
from tests.archival.test_rest import WRITER
from tests.archival.test_rest import a_head as empty_head

NOW_MS = 1_000_000
DAY_MS = 86_400_000


def a_head(next_offset: int) -> Head:
    return replace_struct(empty_head(next_offset), leader_epoch=0)


def written(*ages_ms: int, retention: Retention | None = None, size_bytes: int = 100) -> LocalLog:
    """Segments of ten records, last written to so long ago; the last one is active, and all is committed."""
    log = a_log(*range(0, 10 * len(ages_ms), 10), hw=10 * len(ages_ms))
    aged = zip(log.segments, ages_ms, strict=True)
    segments = tuple(replace(each, size_bytes=size_bytes, generation=Generation(1, (NOW_MS - age) * 10**6)) for each, age in aged)
    return replace(log, segments=segments, retention=retention)


def waiting(after_ms: int | None = None, log_bytes: int | None = None, tail_after_ms: int | None = None) -> Policy:
    return Policy(tail_after_ms=tail_after_ms, triggers=Triggers(after_ms, log_bytes))


def end_of(log: LocalLog, policy: Policy) -> int:
    found = bounded(policy, log, NOW_MS)
    assert found.bound is not None
    return found.bound.end


def test_a_segment_goes_so_long_after_it_was_sealed() -> None:
    log = written(5000, 3000, 1000, 0)
    assert [end_of(log, waiting(after_ms)) for after_ms in (6000, 5000, 2000, 1000, 0)] == [0, 10, 20, 30, 30]


def test_a_segment_goes_when_more_than_that_lies_in_the_log_from_its_begin_on() -> None:
    log = written(0, 0, 0, 0)
    assert [end_of(log, waiting(None, log_bytes)) for log_bytes in (400, 399, 300, 299, 0)] == [0, 10, 10, 20, 30]


def test_the_first_of_both_triggers_counts() -> None:
    log = written(5000, 3000, 1000, 0)
    assert end_of(log, waiting(4000, 250)) == 20
    assert end_of(log, waiting(500, 400)) == 30


def test_it_is_said_when_time_alone_lets_the_next_one_go() -> None:
    bound = bounded(waiting(4000), written(5000, 3000, 1000, 0), NOW_MS).bound
    assert bound is not None
    assert bound.until_ms == NOW_MS + 1000
    by_size = bounded(waiting(None, 1000), written(5000, 3000, 1000, 0), NOW_MS).bound
    assert by_size is not None
    assert by_size.until_ms is None


def test_a_copied_segment_counts_from_its_records_as_the_brokers_retention_does(tmp_path: Path) -> None:
    """A replica that was moved here: the files are new, the records are not."""
    log = written(0, 0, 0)
    for base, newest_ms in ((0, NOW_MS - 5000), (10, NOW_MS - 3000)):
        (tmp_path / f"{base:020}.timeindex").write_bytes(struct.pack(">qIqI", newest_ms - 1, 0, newest_ms, 9))
    log = replace(log, segments=tuple(replace(each, directory=tmp_path) for each in log.segments), retention=Retention(6000, None))
    assert [end_of(log, waiting(after_ms)) for after_ms in (5001, 4000, 2000)] == [10, 10, 20]
    assert deadline_ms(log, 0) == NOW_MS + 1000


def test_a_file_from_the_future_is_taken_for_a_new_one() -> None:
    assert end_of(written(-5000, 3000, 0), waiting(6000)) == 0


def test_the_planner_uploads_what_is_due_and_waits_with_the_rest() -> None:
    log, policy = written(5000, 3000, 1000, 0), bounded(waiting(2000, tail_after_ms=0), written(5000, 3000, 1000, 0), NOW_MS)

    def planned(next_offset: int) -> object:
        return next(next_steps(log, a_head(next_offset), writer=WRITER, policy=policy, tail_age_ms=0))

    assert isinstance(planned(0), Upload)
    assert isinstance(planned(10), Upload)
    idle = planned(20)
    assert isinstance(idle, Idle)
    assert "2 s have passed" in idle.reason


def test_a_tail_counts_as_sealed_after_the_seal_timeout_and_waits_for_the_trigger_from_then_on() -> None:
    log = written(5000, 0)
    policy = bounded(waiting(2000, tail_after_ms=1000), log, NOW_MS)

    def planned(tail_age_ms: int) -> object:
        return next(next_steps(log, a_head(10), writer=WRITER, policy=policy, tail_age_ms=tail_age_ms))

    assert isinstance(planned(2999), Idle)
    assert isinstance(planned(3000), Upload)
    assert bounded(waiting(None, 50, tail_after_ms=1000), log, NOW_MS).tail_wait_ms is None


@pytest.mark.parametrize(
    ("triggers", "retention", "words"),
    [
        (Triggers(5000, None), Retention(5000, None, "the topic's retention.ms"), "not below the topic's retention.ms = 5000 ms"),
        (Triggers(4999, None), Retention(5000, None, "the topic's retention.ms"), ""),
        (Triggers(None, 100), Retention(None, 100, "", "log.retention.bytes"), "not below log.retention.bytes = 100 bytes"),
        (Triggers(None, 99), Retention(None, 100, "", "log.retention.bytes"), ""),
        (Triggers(10**12, 10**12), Retention(None, None), ""),
        (Triggers(10**12, 10**12), None, ""),
        (None, Retention(0, 0), ""),
    ],
)
def test_a_trigger_must_come_before_the_brokers_retention(triggers: Triggers | None, retention: Retention | None, words: str) -> None:
    found = misfit(triggers, LocalRetention(retention))
    assert (words in found) if words else not found


def test_of_a_compacted_log_a_trigger_must_come_before_its_tombstones_leave() -> None:
    log = replace(written(5000, 0), compacted=True, delete_retention_ms=DAY_MS)
    assert "delete.retention.ms" in misfit(Triggers(DAY_MS // 2, None), LocalRetention.of(log))
    assert not misfit(Triggers(DAY_MS // 2 - 1, None), LocalRetention.of(log))


def test_a_trigger_that_comes_too_late_is_not_applied_and_everything_goes_at_once() -> None:
    log = written(10, 10, 0, retention=Retention(5000, None, "the topic's retention.ms"))
    policy = bounded(waiting(5000, tail_after_ms=7), log, NOW_MS)
    assert (policy.bound, policy.tail_wait_ms) == (None, 7)
    assert isinstance(next(next_steps(log, a_head(10), writer=WRITER, policy=policy, tail_age_ms=0)), Upload)


def test_under_manual_it_is_the_same_and_without_a_trigger_nothing_goes() -> None:
    """It was set to be relied on: what waited for a command would be deleted by the broker (decision 18)."""
    log = written(5000, 3000, 1000, 0, retention=Retention(age_ms=DAY_MS, size_bytes=None, age_by="retention.ms"))
    late = Policy.of(ArchivalConfig(archive=ArchiveMode.MANUAL, offload_after_s=86_400))
    assert (late.off, bounded(late, log, NOW_MS).bound) == ("", None)
    assert isinstance(next(next_steps(log, a_head(0), writer=WRITER, policy=bounded(late, log, NOW_MS), tail_age_ms=0)), Upload)
    assert Policy.of(ArchivalConfig(archive=ArchiveMode.MANUAL)).off == "archive = manual"


def test_what_nobody_says_of_the_retention_is_only_a_warning() -> None:
    nothing = LocalRetention(Retention(7 * DAY_MS, None))
    assert "retention.ms" in unknown_limit(Triggers(5000, None), nothing)
    assert "retention.bytes" in unknown_limit(Triggers(None, 5000), nothing)
    assert not unknown_limit(Triggers(5000, None), LocalRetention(Retention(7 * DAY_MS, None, "the topic's retention.ms")))
    assert unknown_limit(Triggers(5000, None), LocalRetention(None))
    assert not unknown_limit(None, nothing)


def test_a_log_whose_next_segment_waits_is_at_rest_until_that_is_due() -> None:
    log, later = written(5000, 3000, 0), written(6000, 4000, 1000)
    policy = bounded(waiting(4000), log, NOW_MS)
    rest = Rest.of(log, a_head(10), policy, "waits", WRITER)
    assert rest is not None
    assert rest.policy == waiting(4000)
    assert rest.remains(log, policy, lambda: 0)
    assert not rest.remains(later, bounded(waiting(4000), later, NOW_MS), lambda: 0)
    assert not rest.remains(log, bounded(waiting(2000), log, NOW_MS), lambda: 0)  # the setting has changed


ages = st.lists(st.integers(0, 10_000), min_size=1, max_size=8)
limits = st.none() | st.integers(1, 12_000)


@given(ages, limits, limits, limits, limits, st.integers(0, 1000))
def test_what_retention_is_about_to_take_never_waits(
    ages_ms: list[int], after_ms: int | None, log_bytes: int | None, age_ms: int | None, size_bytes: int | None, each_bytes: int
) -> None:
    """Whatever is set: a sealed segment whose four fifths of the retention are over has gone, or goes now."""
    log = written(*ages_ms, retention=Retention(age_ms, size_bytes), size_bytes=each_bytes)
    policy = bounded(waiting(after_ms, log_bytes), log, NOW_MS)
    for at, segment in enumerate(log.segments[:-1]):
        next_base, after = log.segments[at + 1].base_offset, sum(each.size_bytes for each in log.segments[at:])
        near = (age_ms is not None and ages_ms[at] >= age_ms * 4 // 5) or (size_bytes is not None and after > size_bytes * 4 // 5)
        assert not near or policy.bound is None or policy.bound.end >= next_base > segment.base_offset


@given(ages, limits, limits, st.integers(0, 5000), st.integers(0, 1000))
def test_the_bound_never_goes_back_and_is_always_a_segments_begin(
    ages_ms: list[int], after_ms: int | None, log_bytes: int | None, later_ms: int, more_bytes: int
) -> None:
    """As time passes, and as the log grows; and the active segment never goes by it."""
    log, policy = written(*ages_ms), waiting(after_ms, log_bytes)
    grown = replace(log, segments=(*log.segments[:-1], replace(log.segments[-1], size_bytes=log.segments[-1].size_bytes + more_bytes)))
    now, then = (bounded(policy, each, at_ms).bound for each, at_ms in ((log, NOW_MS), (grown, NOW_MS + later_ms)))
    assert now is not None
    assert then is not None
    assert now.end <= then.end
    assert {now.end, then.end} <= {each.base_offset for each in log.segments}


@given(ages, st.integers(1, 12_000))
def test_what_is_due_at_a_time_is_due_by_the_word_given_before(ages_ms: list[int], after_ms: int) -> None:
    """Nothing moves before `until_ms`, and something does then."""
    log, policy = written(*ages_ms), waiting(after_ms)
    before = bounded(policy, log, NOW_MS).bound
    assert before is not None
    if before.until_ms is None:
        assert before.end == log.segments[-1].base_offset or len(log.segments) == 1
        return
    just_before, then = (bounded(policy, log, before.until_ms - ms).bound for ms in (1, 0))
    assert just_before is not None
    assert then is not None
    assert then.end > before.end
    assert just_before.end == before.end
