"""When the next piece of an upload may go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archival.schedule.upload_permit import BURST_S, SLICE_S, StepWatch, UploadPermit, UploadRate
from headwater_core.errors import UploadStopped
from tests.headwater_core.manual_clock import ManualClock

RATE = 1000


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 2000)), max_size=50))
def test_no_more_goes_in_any_time_than_the_rate_allows(pieces: list[tuple[int, int]]) -> None:
    """Pieces of any length come after pauses of any length; each goes when its wait is over."""
    clock = ManualClock(0)
    rate = UploadRate(lambda: RATE, clock)
    gone: list[tuple[float, int]] = []
    for size_bytes, pause_ms in pieces:
        clock.advance(pause_ms)
        gone.append((clock.monotonic_s() + rate.reserve(size_bytes), size_bytes))
    for first, (from_s, _) in enumerate(gone):
        for last in range(first, len(gone)):
            before_the_last = sum(size_bytes for _, size_bytes in gone[first:last])
            assert before_the_last <= (gone[last][0] - from_s + BURST_S) * RATE + 1e-6


def test_what_is_reserved_at_once_goes_one_after_the_other() -> None:
    rate = UploadRate(lambda: RATE, ManualClock(0))
    assert [rate.reserve(500) for _ in range(4)] == pytest.approx([0, 0.5, 1, 1.5])


def test_the_limit_is_read_each_time() -> None:
    limit: int | None = 100
    rate = UploadRate(lambda: limit, ManualClock(0))
    rate.reserve(1000)
    assert rate.reserve(1) == pytest.approx(10)
    limit = None
    assert rate.reserve(10**9) == 0
    limit = RATE
    assert rate.reserve(10**3) == 0, "what went without a limit is not owed"
    assert rate.reserve(1) == pytest.approx(1)


class Upload:
    """One that waits on a manual clock, and is not wanted any more from a certain time on."""

    def __init__(self, unwanted_at_s: float) -> None:
        self.clock, self.waits = ManualClock(0), 0
        lost = lambda: "gone" if self.clock.monotonic_s() >= unwanted_at_s else ""  # noqa: E731
        self.permit = UploadPermit(UploadRate(lambda: RATE, self.clock), lost, self._wait)

    def _wait(self, for_s: float) -> None:
        self.waits += 1
        assert for_s <= SLICE_S
        self.clock.advance(round(for_s * 1000))


def test_a_piece_waits_as_long_as_it_must() -> None:
    upload = Upload(unwanted_at_s=100)
    upload.permit(2000)
    assert upload.waits == 0
    upload.permit(1)
    assert upload.clock.monotonic_s() == pytest.approx(2)


def test_an_upload_ends_before_its_next_piece_and_in_the_middle_of_a_wait() -> None:
    upload = Upload(unwanted_at_s=1)
    upload.permit(2000)
    with pytest.raises(UploadStopped, match="gone"):
        upload.permit(1)
    assert 1 <= upload.clock.monotonic_s() < 1 + 2 * SLICE_S
    upload = Upload(unwanted_at_s=0)
    with pytest.raises(UploadStopped):
        upload.permit(1)


def test_a_step_is_silent_while_nothing_moves() -> None:
    clock = ManualClock(0)
    watch = StepWatch(clock)
    clock.advance(5000)
    assert watch.silent_s == 5
    watch.moved()
    assert watch.silent_s == 0
