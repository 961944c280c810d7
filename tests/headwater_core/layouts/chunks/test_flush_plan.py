"""Which buffers go: never fewer than the limits want, never one that could have waited."""

from hypothesis import given
from hypothesis import strategies as st

from headwater_core.layouts.chunks.flush_plan import FlushLimits, Gathered, due_queues

LIMITS = st.builds(FlushLimits, st.integers(1, 100), st.integers(1, 100))
GATHERED = st.dictionaries(st.integers(0, 20), st.builds(Gathered, st.integers(0, 150), st.integers(0, 200), LIMITS))


@given(gathered=GATHERED, pool_bytes=st.integers(1, 1000), now_ms=st.integers(200, 400))
def test_what_is_left_is_within_all_limits(gathered: dict[int, Gathered], pool_bytes: int, now_ms: int) -> None:
    due = due_queues(gathered, pool_bytes, now_ms)
    left = [each for queue, each in gathered.items() if queue not in due]
    assert sum(each.size_bytes for each in left) < pool_bytes
    assert all(each.size_bytes < each.limits.size_bytes and now_ms - each.since_ms < each.limits.age_ms for each in left if each.size_bytes)
    assert all(gathered[queue].size_bytes for queue in due), "an empty buffer is no object"


@given(gathered=GATHERED, pool_bytes=st.integers(1, 1000), now_ms=st.integers(200, 400))
def test_of_those_that_could_wait_only_as_many_go_as_must(gathered: dict[int, Gathered], pool_bytes: int, now_ms: int) -> None:
    due = due_queues(gathered, pool_bytes, now_ms)
    early = {queue for queue in due if not gathered[queue].is_due(now_ms)}
    waiting = [each for queue, each in gathered.items() if not each.is_due(now_ms) and each.size_bytes]
    if not early:
        return
    assert sum(each.size_bytes for each in waiting) >= pool_bytes, "there was room for all"
    assert min(gathered[queue].size_bytes for queue in early) >= max(
        (each.size_bytes for queue, each in gathered.items() if queue not in due), default=0
    ), "a larger one stays"
    last = min(early, key=lambda queue: (gathered[queue].size_bytes, -gathered[queue].since_ms))
    left_bytes = sum(each.size_bytes for queue, each in gathered.items() if queue not in due)
    assert 2 * (left_bytes + gathered[last].size_bytes) >= pool_bytes, "one less would have been enough"


def test_of_equal_buffers_the_oldest_go_first() -> None:
    limits = FlushLimits(100, 1000)
    gathered = {name: Gathered(10, since_ms, limits) for name, since_ms in (("young", 30), ("old", 10), ("middle", 20))}
    assert due_queues(gathered, 30, 40) == {"old", "middle"}
