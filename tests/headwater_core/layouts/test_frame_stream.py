"""A run out of a block object: any stretch of it, and whatever is wrong with the object."""

import io
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import cache
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.layouts import NewRun, frame_stream
from headwater_core.layouts.blocks import BlocksLayout
from headwater_core.layouts.blocks.block_format import decode_block_index
from headwater_core.layouts.blocks.blocks_layout import FORM
from headwater_core.layouts.frame_stream import stream_run
from headwater_core.layouts.run_maps import RunMap
from headwater_core.layouts.testing import PARTITION, a_run, scanned
from headwater_core.segments.stretch import take_frames
from tests.headwater_core.objectstore.memory import MemoryStore

RUN = a_run(30, value_bytes=5_000)


SMALL_RUN = a_run(10, value_bytes=300)


@cache
def an_object(block_bytes: int, content: bytes = RUN) -> tuple[bytes, RunMap]:
    store, scan = MemoryStore(), scanned(content)
    run = NewRun(PARTITION, scan.base_offset, scan.last_offset, "run", "", io.BytesIO(content), scan)
    (done,) = BlocksLayout(block_bytes).offload(store, [run], {})
    raw, _ = store.get("run")
    return raw, decode_block_index(memoryview(raw)[: int(done.context["index_bytes"])], len(raw), "run")


def streamed(raw: bytes, found: RunMap, sizes: Sequence[int], start: int) -> list[bytes]:
    def fetch(pieces: Sequence[memoryview], at: int) -> Generator[None, None, None]:
        for piece in pieces:
            content = raw[at : at + len(piece)]
            if len(content) < len(piece):
                raise TruncatedData("run", len(raw), "cut")
            piece[:] = content
            at += len(piece)
            yield

    buffers = [bytearray(size) for size in sizes]
    for _ in stream_run(
        FORM, found, found.blocks[-1].position + found.blocks[-1].size_bytes, fetch, [memoryview(each) for each in buffers], start, "run"
    ):
        pass
    return [bytes(each) for each in buffers]


@given(
    block_bytes=st.sampled_from([200, 3_000, 6_000, 40_000, 1 << 20]),
    window_bytes=st.sampled_from([64, 65, 100, 1_000, 1 << 20]),
    start=st.integers(0, len(RUN) - 1),
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_any_stretch_through_any_window(block_bytes: int, window_bytes: int, start: int, sizes: list[int]) -> None:
    raw, found = an_object(block_bytes)
    fitting, at = [], start
    for size in sizes:
        fitting.append(min(size, len(RUN) - at))
        at += fitting[-1]
    with patch.object(frame_stream, "WINDOW_BYTES", window_bytes):
        compiled = streamed(raw, found, fitting, start)
        with patch.object(frame_stream, "take_frames", None):
            assert streamed(raw, found, fitting, start) == compiled
    assert b"".join(compiled) == RUN[start:at]


@pytest.mark.parametrize("block_bytes", [300, 700, 40_000])
def test_every_byte_of_headers_frames_and_padding_is_looked_at(block_bytes: int) -> None:
    """A flip in a batch is its checksum's; any other one is noticed by the stream itself, or changes what it gives."""
    raw, found = an_object(block_bytes, SMALL_RUN)
    for at in range(found.index_bytes, len(raw)):
        spoilt = raw[:at] + bytes([raw[at] ^ (1 << at % 8)]) + raw[at + 1 :]
        for walk in (take_frames, None):
            with suppress(CorruptData), patch.object(frame_stream, "take_frames", walk):
                assert streamed(spoilt, found, [len(SMALL_RUN)], 0) != [SMALL_RUN]


@pytest.mark.parametrize("block_bytes", [3_000, 1 << 20])
def test_an_object_that_was_cut_is_noticed(block_bytes: int) -> None:
    raw, found = an_object(block_bytes)
    for size_bytes in (0, found.index_bytes, found.index_bytes + 10, len(raw) // 2, len(raw) - 1):
        with pytest.raises(TruncatedData):
            streamed(raw[:size_bytes], found, [len(RUN)], 0)


@pytest.mark.parametrize(("start", "size"), [(-1, 5), (0, len(RUN) + 1), (len(RUN), 1), (1 << 40, 1)])
def test_what_is_not_in_the_run_is_refused(start: int, size: int) -> None:
    raw, found = an_object(3_000)
    with pytest.raises(TruncatedData):
        streamed(raw, found, [size], start)


def test_an_index_whose_points_are_implausibly_far_apart_is_refused() -> None:
    """Before anything is made for the range, or asked for."""
    _, found = an_object(1 << 20)
    far = found._replace(blocks=(found.blocks[0]._replace(size_bytes=1 << 60),))

    def fetch(pieces: Sequence[memoryview], at: int) -> Generator[None, None, None]:
        raise AssertionError("asked for")

    size_bytes = far.index_bytes + (1 << 60)
    with pytest.raises(CorruptData, match="for 1 of the run"):
        list(stream_run(FORM, far, size_bytes, fetch, [memoryview(bytearray(1))], len(RUN) - 1, "run"))
