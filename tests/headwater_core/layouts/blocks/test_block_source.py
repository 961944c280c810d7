"""A block object as it is sent: whole, in parts at the same time, and again after a failure."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from headwater_core.errors import SourceChanged, UploadStopped
from headwater_core.layouts import run_source
from headwater_core.layouts.blocks import block_source
from headwater_core.layouts.blocks.block_format import encode_block_index
from headwater_core.layouts.blocks.block_plan import plan_blocks
from headwater_core.layouts.blocks.block_source import BlockSource
from headwater_core.layouts.run_source import RunSource
from headwater_core.layouts.segment_metadata import RunFacts
from headwater_core.layouts.testing import PARTITION, a_run, scanned
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.paced_file import paced

BEFORE = a_run(2, value_bytes=50, base_offset=0)
RUN = a_run(30, base_offset=100)


def a_source(source: BinaryIO, block_bytes: int = 40_000) -> BlockSource:
    scan = scanned(BEFORE + RUN, start=len(BEFORE))
    run = RunSource(source)
    plan = plan_blocks(run, scan, block_bytes, "run")
    facts = RunFacts(PARTITION, scan.base_offset, scan.last_offset, scan.index)
    index, _ = encode_block_index(facts, [each.block for each in plan.blocks], scan.batches_before, plan.frames, 777)
    return BlockSource(index, plan, run, scan.digest, "run")


def all_of(source: BlockSource) -> bytes:
    return b"".join(iter(lambda: bytes(source.as_file().read(70_000)), b""))


def part_of(source: BlockSource, start: int, size_bytes: int) -> bytes:
    """Read as far as it takes, as a request does."""
    out = b""
    for piece in source.part_pieces(start):
        out += piece[: size_bytes - len(out)]
        if len(out) == size_bytes:
            break
    return out


@pytest.mark.parametrize("window_bytes", [100, 4_096, 1 << 20])
def test_parts_are_what_the_whole_is_cut_into(tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_source, "WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(block_source, "WINDOW_BYTES", window_bytes)
    (tmp_path / "log").write_bytes(BEFORE + RUN)
    with (tmp_path / "log").open("rb") as file:
        source = a_source(file)
        whole = all_of(source)
        assert (len(whole), digest_of(whole)) == (source.size_bytes, source.digest())
        at = 0
        starts = []
        for part in source.parts:
            starts.append(at)
            at += part
        assert at == len(whole)
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda start, part: part_of(source, start, part), starts, source.parts)
            assert b"".join(found) == whole
        assert source.digest() == digest_of(whole)


def test_a_part_may_be_read_again_from_its_beginning() -> None:
    source = a_source(io.BytesIO(BEFORE + RUN))
    start, size_bytes = source.parts[:2]
    first = part_of(source, start, 1_000)
    assert part_of(source, start, size_bytes)[:1_000] == first
    with pytest.raises(io.UnsupportedOperation):
        source.seek(500)


def test_one_block_is_one_part() -> None:
    source = a_source(io.BytesIO(BEFORE + RUN), block_bytes=1 << 20)
    (part,) = source.parts
    whole = all_of(source)
    assert part == len(whole)


def test_each_piece_waits_for_leave_to_go_once() -> None:
    passed: list[int] = []
    source = a_source(paced(cast(BinaryIO, io.BytesIO(BEFORE + RUN)), passed.append))
    assert passed == [], "nothing goes while the blocks are planned"
    size_bytes = len(all_of(source))
    assert sum(passed) == size_bytes


def test_what_the_pace_raises_ends_it() -> None:
    def stop(size_bytes: int) -> None:
        raise UploadStopped("enough")

    with pytest.raises(UploadStopped):
        all_of(a_source(paced(cast(BinaryIO, io.BytesIO(BEFORE + RUN)), stop)))


def test_a_source_that_changes_after_the_plan_is_noticed_when_all_was_read() -> None:
    content = io.BytesIO(BEFORE + RUN)
    source = a_source(content)
    content.getbuffer()[-1] ^= 1
    all_of(source)
    with pytest.raises(SourceChanged, match="was scanned"):
        source.digest()
    source.seek(0)
    content.truncate(len(BEFORE) + 5_000)
    with pytest.raises(SourceChanged, match="ends at byte"):
        all_of(source)


def test_the_digest_of_what_nobody_has_read_is_found_too() -> None:
    source = a_source(io.BytesIO(BEFORE + RUN))
    part_of(source, *source.parts[:2])
    assert source.digest() == digest_of(all_of(source))
