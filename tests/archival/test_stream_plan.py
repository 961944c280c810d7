"""Which object is pending after a commit, and when an open one is closed."""

from itertools import count

import pytest
from msgspec.structs import replace

from archival.plan.policy import StreamLimits
from archival.plan.stream_plan import assigned_to, reason_to_close, with_assignment
from manifests.head import Head
from manifests.pending_list import FAILED, PendingObject
from tests.manifests.builders import a_head, an_entry

UIDS = count(1)


def after(before: Head | None, head: Head, *, streams: bool | None = True, fails: bool = False) -> Head:
    return with_assignment(
        before, head, streams=streams, fails=fails, new_uid=lambda _: f"{next(UIDS):032x}", next_fence=lambda _: 9, now_ms=7
    )


def listing(head: Head, last: int) -> Head:
    entry = an_entry(head.next_offset, last)
    return replace(head, entries=head.entries.followed_by(entry), last_offset=last)


STREAMING = after(None, a_head(an_entry(0, 9)))


def test_a_commit_that_lists_one_assigns_the_next() -> None:
    first = assigned_to(STREAMING)
    assert first is not None
    assert (first.base_offset, first.fence, first.assigned_ms) == (10, 1, 7)
    head = after(STREAMING, listing(STREAMING, 19))
    (following,) = head.pending
    assert (following.base_offset, following.uid != first.uid) == (20, True)


def test_what_begins_where_the_entries_end_stays_assigned() -> None:
    assert after(STREAMING, replace(STREAMING, fence=2)).pending == STREAMING.pending
    assert after(STREAMING, STREAMING) is STREAMING


def test_a_claim_fails_it_and_assigns_another_under_its_own_fence() -> None:
    failed, again = after(STREAMING, replace(STREAMING, fence=2), fails=True).pending
    assert (failed.uid, failed.status, failed.failed_ms) == (STREAMING.pending[0].uid, FAILED, 7)
    assert (again.fence, again.base_offset, again.is_assigned) == (2, 10, True)
    head = STREAMING
    for _ in range(5):
        head = after(head, head, fails=True)
    assert [each.status for each in head.pending] == [FAILED, FAILED, "assigned"], "a few are kept, for people"
    assert [each.status for each in after(head, listing(head, 19)).pending] == ["assigned"]


def test_switched_off_nothing_is_assigned() -> None:
    assert after(STREAMING, STREAMING, streams=False).pending == ()
    assert after(STREAMING, STREAMING, streams=None).pending == STREAMING.pending, "it is still to be completed"
    assert after(STREAMING, listing(STREAMING, 19), streams=None).pending == ()
    assert after(None, a_head(), streams=False).pending == ()


def test_what_others_have_pending_is_theirs() -> None:
    other = PendingObject(uid="f" * 32, fence=1, layout="another", base_offset=3)
    head = replace(STREAMING, pending=(other, *STREAMING.pending))
    assert after(head, listing(head, 19), fails=True).pending[0] == other
    assert after(head, head, streams=False).pending == (other,)


@pytest.mark.parametrize(
    ("limits", "closes"),
    [
        (StreamLimits(100, 1000), False),
        (StreamLimits(99, 1000), True),
        (StreamLimits(100, 500), True),
        (StreamLimits(100, 1000, completes=True), True),
    ],
)
def test_it_is_closed_by_size_by_age_or_by_request(limits: StreamLimits, closes: bool) -> None:
    assert bool(reason_to_close(limits, size_bytes=99, age_ms=500, is_full=False)) is closes
    assert reason_to_close(limits, size_bytes=99, age_ms=500, is_full=True)
