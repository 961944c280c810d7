"""A whole run in parts: the very bytes that the same batches become when they are offered one after the other."""

import io
from array import array
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.errors import SourceChanged, TransientError
from headwater_core.layouts import NewRun
from headwater_core.layouts.run_source import RunSource
from headwater_core.layouts.streaming import LedgerEntries, OffloadBudget, StreamingLayout, StreamingOffloader, run_parts
from headwater_core.layouts.streaming.run_parts import RunPart, RunParts
from headwater_core.layouts.testing import PARTITION
from headwater_core.segments.run_scan import scan_run
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_batch

UID = UUID("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
KEY = f"data/0000000007/{UID}"
BEFORE = b"what comes before"


def parts_of(source: io.BytesIO, run: bytes, part_bytes: int) -> RunParts:
    scan = scan_run(io.BytesIO(BEFORE + run), start=len(BEFORE), end=len(BEFORE) + len(run), where="run")
    assert scan is not None
    return RunParts(RunSource(source), scan, scan.base_offset, part_bytes, "run")


def all_of(parts: RunParts) -> list[RunPart]:
    """Each in a space of its own."""
    found = []
    while parts.left_bytes:
        found.append(parts.cut(parts.new_space()))
    return found


def positions_of(parts: RunParts) -> "array[int]":
    """When all were cut."""
    all_of(parts)
    return parts.positions()


def written(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key)[0] for info in store.list("")}


def offered(batches: list[bytes], part_bytes: int) -> dict[str, bytes]:
    """The objects of the same batches, offered at once."""
    store = MemoryStore()
    offloader = StreamingOffloader(
        store, PARTITION, prefix="data/0000000007/", fence=7, budget=OffloadBudget(1 << 30), part_bytes=part_bytes
    )
    handle = offloader.streaming_offload(UID, {})
    handle.offer(LedgerEntries(0, 0, b"".join(batches), len(batches)))
    handle.close()
    handle.result()
    return written(store)


@given(sizes=st.lists(st.integers(0, 900), min_size=1, max_size=150), part_bytes=st.integers(1, 5_000))
@settings(max_examples=100, deadline=None)
def test_a_run_becomes_what_its_batches_become_that_are_offered(sizes: list[int], part_bytes: int) -> None:
    batches = [a_batch(offset, [bytes(size)]) for offset, size in enumerate(sizes)]
    run, store = b"".join(batches), MemoryStore()
    scan = scan_run(io.BytesIO(run), start=0, end=len(run), where="run")
    assert scan is not None
    new = NewRun(PARTITION, scan.base_offset, scan.last_offset, KEY, "", io.BytesIO(run), scan)
    StreamingLayout(part_bytes).offload(store, [new], {})
    assert written(store) == offered(batches, part_bytes)


def test_parts_abut_and_no_part_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches larger than a window, and than the space for a part, among small ones."""
    monkeypatch.setattr(run_parts, "WINDOW_BYTES", 4_000)
    batches = [a_batch(offset, [bytes(size)]) for offset, size in enumerate((10, 9_000, 5, 700, 20_000, *[50] * 300))]
    run, read = b"".join(batches), list[int]()

    class Counted(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            read.append(len(buffer))
            return super().readinto(buffer)

    parts = parts_of(Counted(BEFORE + run), run, 3_000)
    found = all_of(parts)
    assert sum(read) == len(run)
    assert [part.number for part in found] == list(range(1, len(found) + 1))
    assert all(len(part.content) >= 3_000 for part in found[:-1])
    whole, ends = b"", [*(block.position for block in parts.blocks[1:]), parts.size_bytes]
    for part, end in zip(found, ends, strict=True):
        assert part.start == len(whole)
        whole += part.content
        assert len(whole) == end
    for entry, batch in enumerate(batches):
        assert len(batch).to_bytes(4, "big") + entry.to_bytes(8, "big") + batch in whole
    assert next(iter(parts.positions())) == 128


def test_a_space_is_used_again() -> None:
    batches = [a_batch(offset, [bytes(300)]) for offset in range(100)]
    run = b"".join(batches)
    parts = parts_of(io.BytesIO(BEFORE + run), run, 5_000)
    space = parts.new_space()
    whole = b""
    while parts.left_bytes:
        part = parts.cut(space)
        assert part.space is space
        whole += part.content
    assert whole == b"".join(bytes(part.content) for part in all_of(parts_of(io.BytesIO(BEFORE + run), run, 5_000)))


def test_a_source_that_is_not_what_was_scanned_is_noticed() -> None:
    run = b"".join(a_batch(offset, [bytes(300)]) for offset in range(40))
    for now in (b"", run[:-1], run[:8] + b"\x7f" + run[9:], run[:8] + bytes(4) + run[12:], run[:200] + b"\x01" + run[201:]):
        parts = parts_of(io.BytesIO(BEFORE + now), run, 4_000)
        with pytest.raises(SourceChanged, match="run"):
            positions_of(parts)


def test_a_source_that_cannot_be_read_may_be_read_later(tmp_path: Path) -> None:
    run = a_batch(0, [b"x"])
    (tmp_path / "log").write_bytes(run)
    scan = scan_run(io.BytesIO(run), start=0, end=len(run), where="run")
    assert scan is not None
    with (tmp_path / "log").open("rb") as file:
        parts = RunParts(RunSource(file), scan, 0, 4_000, "run")
    with pytest.raises(TransientError, match="run: Bad file descriptor"):
        parts.cut(parts.new_space())
