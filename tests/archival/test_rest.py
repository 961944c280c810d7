"""When a look alone shows that there is nothing to do."""

from dataclasses import replace
from typing import Any

import pytest

from archival.plan.policy import Policy
from archival.rest import Rest
from headwater_core.epochs import EpochHistory
from headwater_core.segments.local_log import LocalLog
from manifests.head import Head
from tests.archival.builders import PARTITION, a_log, led_by

WRITER = "agent-a"
LOG = a_log(0, 10, 20, hw=20)
HOUR = Policy(tail_after_ms=3_600_000)


def a_head(next_offset: int) -> Head:
    return Head(
        cluster_id=PARTITION.cluster_id,
        topic=PARTITION.topic,
        topic_id=PARTITION.topic_id,
        partition=PARTITION.partition,
        version=3,
        commit_id="c",
        fence=1,
        writer=WRITER,
        start_offset=next_offset,
        last_offset=next_offset - 1,
    )


def at_rest(log: LocalLog = LOG, next_offset: int = 20, policy: Policy = HOUR) -> Rest:
    rest = Rest.of(log, a_head(next_offset), policy, "caught up", WRITER)
    assert rest is not None
    assert rest.is_ours
    return rest


def test_what_did_not_change_remains_at_rest() -> None:
    rest = at_rest()
    assert rest.remains(a_log(0, 10, 20, hw=20), replace(HOUR), lambda: 0)
    assert rest.is_quiet(LOG)


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": EpochHistory.of([(0, 0), (1, 20)])},
        {"log_start": 10, "epochs": EpochHistory.of([(0, 10)])},
        {"segments": LOG.segments[1:]},
        {"settled": False},
        {"leftovers": ("x.swap",)},
        {"high_watermark": None},
        {"high_watermark": 19},
        {"leadership": led_by(2, 0)},
        {"leadership": led_by(1, 0, in_sync=(1,))},
        {"leadership_unread": True},
    ],
)
def test_a_log_that_is_another_is_stepped(changes: dict[str, Any]) -> None:
    assert not at_rest().remains(replace(LOG, **changes), HOUR, lambda: 0)


def test_so_is_one_under_another_policy() -> None:
    assert not at_rest().remains(LOG, Policy(), lambda: 0)


def test_what_is_committed_waits_for_its_segment_to_be_sealed_or_for_its_time() -> None:
    rest, growing, rolled = at_rest(), a_log(0, 10, 20, hw=25), a_log(0, 10, 20, 25, hw=25)
    assert rest.remains(growing, HOUR, lambda: 3_599_999)
    assert not rest.is_quiet(growing)
    assert not rest.remains(growing, HOUR, lambda: 3_600_000)
    assert not rest.remains(rolled, HOUR, lambda: 0)
    assert rest.remains(a_log(0, 10, 20, 30, hw=25), HOUR, lambda: 0), "sealed, but not committed"
    assert at_rest(policy=Policy()).remains(growing, Policy(), lambda: 10**12)


def test_a_follower_rests_whatever_its_log_gets() -> None:
    rest = at_rest(replace(LOG, leadership=led_by(2, 0)))
    longer = replace(a_log(0, 10, 20, 30, hw=30), leadership=led_by(2, 0))
    assert rest.remains(longer, HOUR, lambda: 10**12)
    assert rest.is_quiet(longer)
    assert not rest.remains(replace(longer, leadership=led_by(1, 0)), HOUR, lambda: 0)


def test_a_compacted_log_does_not_rest() -> None:
    log = a_log(0, 10, 20, hw=20, compacted=True)
    assert Rest.of(log, a_head(20), HOUR, "", WRITER) is None
    assert Rest.by_hint(log, 20, HOUR) is None


@pytest.mark.parametrize("log", [a_log(0, 10, 20, hw=21), a_log(0, 10, 20, hw=None), a_log(0, 10, 20, hw=20, settled=False)])
def test_no_hint_is_followed_where_there_may_be_something_to_do(log: LocalLog) -> None:
    assert Rest.by_hint(log, 20, HOUR) is None


def test_what_only_a_hint_says_is_believed_once() -> None:
    rest = Rest.by_hint(LOG, 20, HOUR)
    assert rest is not None
    assert rest.is_quiet(LOG)
    assert not rest.remains(LOG, HOUR, lambda: 0)
