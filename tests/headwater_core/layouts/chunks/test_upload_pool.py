"""The pool counts what has gathered, and says whose turn it is."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from headwater_core.layouts.chunks.flush_plan import FlushLimits
from headwater_core.layouts.chunks.upload_pool import UploadPool


def test_a_pool_that_is_full_lets_go_what_is_largest_and_counts_what_is_left() -> None:
    now = [0]
    pool = UploadPool(100)
    limits = FlushLimits(1000, 50)
    small, large = (pool.share(limits, lambda: now[0]) for _ in range(2))
    pool.set_gathered(small, 30)
    pool.set_gathered(large, 60)
    assert (pool.size_bytes, pool.queues, small.is_due, large.is_due) == (90, 2, False, False)
    pool.set_gathered(small, 40)
    assert (small.is_due, large.is_due) == (False, True)
    now[0] = 20
    pool.committed(large, 5)
    assert (pool.size_bytes, large.is_due) == (45, False)
    now[0] = 50
    assert (small.is_due, large.is_due) == (True, False), "what came since begins to wait now"
    pool.set_failed(small, is_failed=True)
    assert pool.failed == 1
    pool.leave(small)
    assert (pool.size_bytes, pool.queues, pool.failed) == (5, 1, 0)


def test_what_is_due_and_not_sent_keeps_nobody_else_from_being_due() -> None:
    pool, limits = UploadPool(1000), FlushLimits(10**9, 10**9)
    stuck = pool.share(limits, lambda: 0)
    pool.set_gathered(stuck, 1000)
    pool.set_failed(stuck, is_failed=True)
    shares = [pool.share(limits, lambda: 0) for _ in range(50)]
    for count, share in enumerate(shares, start=1):
        pool.set_gathered(share, 900)
        assert 900 * sum(not each.is_due for each in shares[:count]) < 1000
    assert stuck.is_due


def test_a_finalizer_may_leave_wherever_it_runs() -> None:
    pool, limits = UploadPool(100), FlushLimits(10**9, 10**9)
    gone, other = (pool.share(limits, lambda: 0) for _ in range(2))
    pool.set_gathered(gone, 100)
    pool.set_failed(gone, is_failed=True)
    pool.set_gathered(other, 99)
    assert (gone.is_due, other.is_due) == (True, False)
    with pool._lock:
        leaving = threading.Thread(target=pool.leave, args=(gone,), daemon=True)
        leaving.start()
        leaving.join(30)
        assert not leaving.is_alive()
    assert (pool.size_bytes, pool.queues, pool.failed) == (99, 1, 0)
    pool.set_gathered(other, 100)
    assert other.is_due, "nobody else is"


@given(st.lists(st.tuples(st.sampled_from(["gathers", "commits", "fails", "leaves"]), st.integers(0, 4), st.integers(0, 120)), max_size=60))
def test_whatever_happens_less_than_the_bound_is_left_that_is_not_due_and_has_not_failed(steps: list[tuple[str, int, int]]) -> None:
    pool, limits = UploadPool(200), FlushLimits(10**9, 10**9)
    shares = [pool.share(limits, lambda: 0) for _ in range(5)]
    failed, sizes = set[int](), [0] * 5
    for what, at, size_bytes in steps:
        match what:
            case "gathers":
                sizes[at] += size_bytes
                pool.set_gathered(shares[at], sizes[at])
            case "commits":
                sizes[at] = min(size_bytes, sizes[at])
                pool.committed(shares[at], sizes[at])
                failed.discard(at)
            case "fails":
                pool.set_failed(shares[at], is_failed=True)
                failed.add(at)
            case _:
                sizes[at] = 0
                pool.leave(shares[at])
                failed.discard(at)
        assert pool.size_bytes == sum(sizes)
        if what == "gathers" and size_bytes:
            assert sum(size for n, size in enumerate(sizes) if n not in failed and not shares[n].is_due) < 200


def test_what_is_more_than_all_of_the_room_is_sent_alone() -> None:
    pool, waited = UploadPool(sent_bytes_max=10), list[bool]()
    with pool.sending(1000, lambda: waited.append(True)):
        pass
    with pool.sending(6, lambda: waited.append(True)), pool.sending(4, lambda: waited.append(True)):
        pass
    assert not waited
