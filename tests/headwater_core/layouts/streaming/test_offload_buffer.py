"""What is buffered, by what it takes of the budget; windows of whole batches."""

import os
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from headwater_core.errors import SourceChanged, TransientError
from headwater_core.layouts.streaming.offload_buffer import (
    EXTENT_BYTES,
    FileExtent,
    LedgerEntries,
    OffloadBudget,
    OffloadBuffer,
    after,
    read_window,
)
from headwater_core.segments import stretch
from tests.headwater_core.segments.builders import a_batch, a_segment

RUN = a_segment(0, 20, value_bytes=100)
SIZE = len(RUN) // 20


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("window_bytes", [1, SIZE - 1, SIZE, SIZE + 1, 5 * SIZE + 7, 100 * SIZE])
def test_windows_are_whole_batches_and_all_of_them(window_bytes: int, *, compiled: bool) -> None:
    left: LedgerEntries | None = LedgerEntries(5, 3, RUN, 20)
    read, counted = b"", 0
    with patch.object(stretch, "batch_lengths", stretch.batch_lengths if compiled else None):
        while left is not None:
            assert left.entry_id == 3 + counted
            window = read_window(left, window_bytes, "run")
            assert sum(window.lengths) == len(window.content) <= max(window_bytes, SIZE)
            read += window.content
            counted += len(window.lengths)
            left = after(left, window)
    assert (read, counted) == (RUN, 20)


def test_a_batch_that_is_larger_than_a_window_is_read_whole() -> None:
    large = a_batch(0, [bytes(100_000)])
    assert read_window(LedgerEntries(5, 0, large + RUN, 21), 1000, "run").content == large


def test_an_extent_that_continues_the_last_one_is_joined_to_it(tmp_path: Path) -> None:
    budget = OffloadBudget(2 * EXTENT_BYTES)
    buffer = OffloadBuffer(budget)
    assert buffer.put(LedgerEntries(5, 0, FileExtent(9, 0, SIZE)))
    assert buffer.put(LedgerEntries(5, 1, FileExtent(9, SIZE, 2 * SIZE), 2))
    assert buffer.first == LedgerEntries(5, 0, FileExtent(9, 0, 3 * SIZE), 3)
    assert buffer.put(LedgerEntries(5, 3, FileExtent(8, 3 * SIZE, SIZE))), "another file"
    assert not buffer.put(LedgerEntries(5, 4, FileExtent(8, 9 * SIZE, SIZE))), "another place in it"
    assert (budget.used_bytes, buffer.size_bytes, buffer.last) == (2 * EXTENT_BYTES, 4 * SIZE, (5, 3))
    assert buffer.replace_first(LedgerEntries(5, 1, FileExtent(9, SIZE, 2 * SIZE), 2)) == 0
    assert buffer.replace_first(None) == EXTENT_BYTES
    assert buffer.size_bytes == SIZE


def test_what_cannot_be_read_is_no_batch(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(RUN)
    fd = os.open(tmp_path / "a.log", os.O_RDONLY)
    for wrong in (FileExtent(fd, 0, len(RUN) + 1), FileExtent(fd, 1, SIZE), FileExtent(fd, len(RUN), SIZE)):
        with pytest.raises(SourceChanged):
            read_window(LedgerEntries(5, 0, wrong), 1 << 20, "run")
    os.close(fd)
    with pytest.raises(TransientError):
        read_window(LedgerEntries(5, 0, FileExtent(fd, 0, SIZE)), 1 << 20, "run")


def test_a_finalizer_may_give_back_wherever_it_runs() -> None:
    """Within the lock too: the interpreter calls finalizers between any two instructions."""
    budget = OffloadBudget(10)
    assert budget.take(7)
    with budget._lock:
        giving = threading.Thread(target=budget.give_back, args=(3,), daemon=True)
        giving.start()
        giving.join(30)
        assert not giving.is_alive()
    assert (budget.used_bytes, budget.has_room(6), budget.take(7)) == (4, True, False)
    assert budget.take(6)
