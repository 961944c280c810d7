"""A run, read batch by batch."""

import io
from unittest.mock import patch

import pytest

from headwater_core.errors import SourceChanged
from headwater_core.layouts import run_source
from headwater_core.layouts.run_source import RunSource, Window, windows
from headwater_core.layouts.testing import a_run
from headwater_core.segments import stretch
from headwater_core.segments.batch_frames import framed_bytes_max, put_framed
from headwater_core.segments.batch_walk import headers

BEFORE = b"what comes before"
RUN = a_run(30)
BATCHES = [RUN[at : at + header.size_bytes] for at, header in headers(io.BytesIO(RUN), 0, len(RUN), where="run")]
FRAMED = b"".join(len(each).to_bytes(4, "big") + each for each in BATCHES)


class Trickle(io.BytesIO):
    """Gives a few bytes at a time, as an object of the archive may."""

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return super().readinto(buffer[:700])


def frames_of(window: Window) -> bytes:
    space = memoryview(bytearray(framed_bytes_max(len(window.content))))
    return bytes(space[: put_framed(window.content, window.lead, window.lengths, space)])


@pytest.mark.parametrize("window_bytes", [100, 5_000, 1 << 20])
def test_each_batch_gets_a_frame(window_bytes: int) -> None:
    """A window holds a batch's header at least; the reference makes what compiled code makes."""

    def framed(source: io.BytesIO) -> bytes:
        found = windows(RunSource(source), len(BEFORE), len(BEFORE) + len(RUN), "run")
        return b"".join(frames_of(window) for window in found)

    with patch.object(run_source, "WINDOW_BYTES", window_bytes):
        assert framed(io.BytesIO(BEFORE + RUN)) == FRAMED
        assert framed(Trickle(BEFORE + RUN)) == FRAMED
        with patch.object(stretch, "batch_lengths", None), patch.object(stretch, "put_frames", None):
            assert framed(io.BytesIO(BEFORE + RUN)) == FRAMED


def test_a_source_that_was_cut_or_holds_no_batches_is_noticed() -> None:
    for content in (RUN[:-1], b"", RUN[:8] + b"\x7f" + RUN[9:], RUN[:8] + bytes(4) + RUN[12:]):
        with pytest.raises(SourceChanged):
            list(windows(RunSource(io.BytesIO(content)), 0, len(RUN), "run"))


def test_a_window_is_filled_as_far_as_there_are_bytes() -> None:
    window = memoryview(bytearray(5_000))
    assert RunSource(Trickle(RUN)).fill(window, 100) == 5_000
    assert window == RUN[100:5_100]
    assert RunSource(Trickle(RUN)).fill(window, len(RUN) - 10) == 10
