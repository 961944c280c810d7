"""Compiled code and the reference find the same: in sound runs, and in runs that are cut, flipped or hostile."""

import io
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.segments import batch_walk, run_scan, runindex
from headwater_core.segments.batches import LENGTH_FROM
from headwater_core.segments.run_scan import OpenTransaction
from headwater_core.segments.stretch import NO_END_OFFSET, Stretch, pass_batches
from tests.headwater_core.segments.builders import Producer, a_batch, a_commit, a_record, a_segment, an_abort, with_crc

ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "200000"))  # `make soak` has more
REQUIRED = bool(os.environ.get("REQUIRE_COMPILER"))  # in .ci/run a skipped test of compiled code is a failed one
needs_compiled = pytest.mark.skipif(pass_batches is None and not REQUIRED, reason="no compiler when Headwater was installed")
FIELDS = {0: "q", 8: "i", 12: "i", 16: "b", 21: "h", 23: "i", 27: "q", 35: "q", 43: "q", 51: "h", 53: "i", 57: "i"}  # by position
EDGES = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 4, 48, 49, 61, 2**31 - 1, 2**63 - 2, 2**63 - 1)


def fits(value: int, kind: str) -> bool:
    limit = 1 << (8 * struct.calcsize(f">{kind}") - 1)
    return -limit <= value < limit


@st.composite
def batch_lists(draw: st.DrawFn) -> list[bytes]:
    """Batches of every kind, the offsets between them not always taken."""
    offset, epoch = draw(st.integers(0, 20)), draw(st.integers(-1, 2))
    found = []
    for _ in range(draw(st.integers(1, 12))):
        epoch += draw(st.sampled_from([0, 0, 0, 1]))
        producer = draw(st.none() | st.builds(Producer, id=st.integers(0, 3), epoch=st.integers(0, 2), sequence=st.integers(0, 9)))
        if producer and draw(st.integers(0, 4)) == 0:
            found.append(draw(st.sampled_from([a_commit, an_abort]))(offset, producer, epoch=epoch))
            offset += 1
            continue
        records = [
            a_record(offset + n, timestamp=draw(st.sampled_from([-1, 0, 5, 9]) | st.integers(-1, 2**41)))
            for n in range(draw(st.integers(0, 3)))
        ]
        last = offset + max(len(records) - 1, 0) + draw(st.sampled_from([0, 0, 2]))
        found.append(
            a_batch(
                offset,
                records,
                epoch=epoch,
                producer=producer,
                transactional=draw(st.booleans()),
                log_append_time=draw(st.none() | st.integers(0, 2**41)) if records else None,
                delete_horizon=draw(st.none() | st.integers(0, 2**41)),
                last_offset=last,
                max_timestamp_ms=draw(st.none() | st.integers(-1, 9)),
            )
        )
        offset = last + 1 + draw(st.sampled_from([0, 0, 0, 3]))
    return found


@st.composite
def damaged_runs(draw: st.DrawFn) -> bytes:
    """Sound, or with impossible fields under a right checksum, or a flipped bit, or an end that is missing."""
    found = draw(batch_lists())
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at, place = draw(st.integers(0, len(found) - 1)), draw(st.sampled_from(sorted(FIELDS)))
        kind = FIELDS[place]
        value = draw(st.sampled_from([each for each in EDGES if fits(each, kind)]) | st.integers(0, 40))
        changed = bytearray(found[at])
        struct.pack_into(f">{kind}", changed, place, value)
        found[at] = with_crc(bytes(changed))
    raw = bytearray(b"".join(found))
    if draw(st.integers(0, 3)) == 0:
        raw[draw(st.integers(0, len(raw) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(raw[: draw(st.integers(0, len(raw)))]) if draw(st.integers(0, 3)) == 0 else bytes(raw)


def outcome(work: Callable[[], object], *, compiled: bool, window_bytes: int = 1 << 20, spacing_bytes: int = 64 << 10) -> Any:
    """What came of it, or how it failed."""
    with (
        patch.object(batch_walk, "pass_batches", pass_batches if compiled else None),
        patch.object(run_scan, "pass_batches", pass_batches if compiled else None),
        patch.object(batch_walk, "WINDOW_BYTES", window_bytes),
        patch.object(runindex, "POINT_SPACING_BYTES", spacing_bytes),
    ):
        try:
            return work()
        except Exception as error:
            return type(error), str(error)


@needs_compiled
@settings(max_examples=300)
@given(
    raw=damaged_runs(),
    end=st.none() | st.integers(0, 60),
    opened=st.sampled_from([(), (OpenTransaction(1, 0),)]),
    window_bytes=st.sampled_from([150, 400, 1 << 20]),
    spacing_bytes=st.sampled_from([1, 200, 64 << 10]),
)
def test_a_scan_by_compiled_code_equals_the_reference(
    raw: bytes, end: int | None, opened: tuple[OpenTransaction, ...], window_bytes: int, spacing_bytes: int
) -> None:
    def scan() -> object:
        return run_scan.scan_run(io.BytesIO(raw), start=0, end=len(raw), open_before=opened, end_offset=end, where="test")

    found = partial(outcome, scan, window_bytes=window_bytes, spacing_bytes=spacing_bytes)
    assert found(compiled=True) == found(compiled=False)


@needs_compiled
@settings(max_examples=300)
@given(raw=damaged_runs())
def test_a_check_by_compiled_code_equals_the_reference(raw: bytes) -> None:
    def check() -> object:
        return batch_walk.check_batches(memoryview(raw), where="test")

    assert outcome(check, compiled=True) == outcome(check, compiled=False)


@needs_compiled
@pytest.mark.parametrize("place", sorted(FIELDS))
def test_every_field_at_its_limits_is_judged_alike(place: int) -> None:
    """Of the middle one of three batches with two offsets each, under a right checksum."""
    for value in EDGES:
        if fits(value, FIELDS[place]):
            hostile = bytearray(a_batch(2, 2, producer=1))
            struct.pack_into(f">{FIELDS[place]}", hostile, place, value)
            raw = a_batch(0, 2) + with_crc(bytes(hostile)) + a_batch(4, 2)

            def scan(raw: bytes = raw) -> object:
                return run_scan.scan_run(io.BytesIO(raw), start=0, end=len(raw), where="test")

            def check(raw: bytes = raw) -> object:
                return batch_walk.check_batches(memoryview(raw), where="test")

            assert outcome(scan, compiled=True) == outcome(scan, compiled=False), value
            assert outcome(check, compiled=True) == outcome(check, compiled=False), value


@needs_compiled
def test_more_producers_than_one_stretch_holds() -> None:
    raw = b"".join(a_batch(offset, 1, producer=offset % 700, transactional=offset % 3 == 0) for offset in range(3000))

    def scan() -> object:
        return run_scan.scan_run(io.BytesIO(raw), start=0, end=len(raw), where="test")

    found = outcome(scan, compiled=True)
    assert found == outcome(scan, compiled=False)
    assert len(found.index.producers) == 700


@needs_compiled
def test_a_stretch_ends_before_what_is_not_plain() -> None:
    assert pass_batches is not None
    plain, marker, later = a_segment(5, 3, records=2), a_commit(11, 7), a_batch(12, 1, epoch=1)
    raw = plain + marker + later
    whole, none = len(raw), NO_END_OFFSET

    def passed(point: int = whole, end_offset: int = none, *, end: int = whole, collect: bool = True) -> Stretch:
        assert pass_batches is not None
        return Stretch(*pass_batches(raw, 0, end, point, end_offset, 4, 0, collect))

    assert (passed().at, passed().last_offset, passed().records, passed().first_gap) == (len(plain), 10, 6, -1)
    assert (passed(collect=False).at, passed(collect=False).last_offset, passed(collect=False).epoch) == (whole, 12, 1)
    assert passed(end_offset=9).last_offset == 8
    assert passed(end_offset=10).last_offset == 8  # a batch across it is none before it
    assert passed(point=1).last_offset == 6  # the batch that begins before the point, whole
    assert passed(point=0).at == 0
    assert passed(end=len(plain) - 1).last_offset == 8
    batch_bytes = LENGTH_FROM + struct.unpack_from(">i", raw, 8)[0]
    assert Stretch(*pass_batches(raw, batch_bytes, whole, whole, NO_END_OFFSET, 4, 0, True)).first_gap == 5


@needs_compiled
@pytest.mark.parametrize(("at", "end", "last_offset"), [(-1, 10, -1), (11, 10, -1), (0, 11, -1), (0, 10, -2), (0, 10, 2**63 - 1)])
def test_places_outside_of_the_buffer_are_refused(at: int, end: int, last_offset: int) -> None:
    assert pass_batches is not None
    with pytest.raises(ValueError, match="of 10"):
        pass_batches(bytes(10), at, end, end, NO_END_OFFSET, last_offset, -1, True)


@pytest.mark.slow
def test_the_sanitizers_find_nothing_in_damaged_batches(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None and not REQUIRED:
        pytest.skip("no C compiler")
    assert compiler is not None
    here = Path(__file__).parent
    program, sound = tmp_path / "fuzzer", tmp_path / "sound"
    options = ["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    includes = ["-I", str(Path(batch_walk.__file__).parent)]
    subprocess.run([compiler, *options, *includes, str(here / "compiled_walk_fuzzer.c"), "-o", str(program)], check=True)
    parts = [a_batch(offset, 1, producer=offset % 5, transactional=offset % 2 == 0) for offset in range(20)]
    sound.write_bytes(b"".join([*parts, a_commit(20, 4), a_batch(21, [b"." * 5000]), a_batch(22, 1, epoch=1)]))
    done = subprocess.run([program, sound, "1", str(ROUNDS)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
