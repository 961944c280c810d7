"""A run is checked by compiled code and without it alike, in pieces of any size, and so are its indexes."""

import tempfile
from contextlib import suppress
from io import BytesIO
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headwater_core.epochs import EpochStart
from headwater_core.errors import HeadwaterError
from headwater_core.objectstore.digest import digest_of
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.batches import BatchHeader
from headwater_core.segments.stretch import SegmentPass
from manifests.entry import Entry
from recovery import run_check
from recovery.indexes import Indexes
from recovery.run_check import RunCheck, check_run
from tests.headwater_core.segments.builders import a_batch, a_commit
from tests.headwater_core.segments.test_stretch import damaged_runs, needs_compiled
from tests.recovery.plans import an_entry


def entry_of(raw: bytes) -> Entry:
    """What a manifest would list of these bytes, if they are sound; of others, one that it could."""
    batches: list[BatchHeader] = []
    with suppress(HeadwaterError):
        batches += (header for _, header in headers(BytesIO(raw), 0, len(raw), where="run"))
    epochs: list[EpochStart] = []
    for each in batches:
        if each.leader_epoch > (epochs[-1].epoch if epochs else -1):
            epochs.append(EpochStart(each.leader_epoch, each.base_offset))
    size_bytes = max(1, len(raw))
    sizes: dict[str, Any] = {"size_bytes": size_bytes, "live_bytes": size_bytes, "digest": digest_of(raw)}
    try:
        return an_entry(
            batches[0].base_offset,
            batches[-1].last_offset,
            epochs=tuple(epochs),
            records=sum(each.records for each in batches if not each.is_control),
            **sizes,
        )
    except (IndexError, ValueError):
        return an_entry(0, 10**9, records=len(raw) % 7, **sizes)


def checked(raw: bytes, entry: Entry, interval_bytes: int, *, compiled: bool) -> tuple[object, dict[str, bytes]]:
    """The end of the run, or what is wrong with it; and the indexes as far as it was read."""
    indexes = Indexes(entry.base_offset, interval_bytes)
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryFile() as file:
        patched.setattr(run_check, "SegmentPass", SegmentPass if compiled else None)
        file.write(raw)
        file.flush()
        file.seek(0)
        try:
            found: object = check_run(file, entry, "run", indexes)
        except HeadwaterError as error:
            found = type(error), str(error)
    return found, indexes.files()


@needs_compiled
@settings(max_examples=200)
@given(raw=damaged_runs(), interval_bytes=st.sampled_from([0, 1, 100, 300, 4096]), listed=st.integers(0, 9), below=st.integers(0, 3))
def test_compiled_code_finds_what_the_loop_finds(raw: bytes, interval_bytes: int, listed: int, below: int) -> None:
    entry = entry_of(raw)
    if listed == 0:
        entry = replace(entry, records=entry.records + 1)
    elif listed == 1:
        entry = replace(entry, epochs=())
    elif listed == 2 and entry.base_offset >= below:
        entry = replace(entry, base_offset=entry.base_offset - below)
    elif listed == 3:
        entry = replace(entry, digest=digest_of(raw + b"."))
    end, files = checked(raw, entry, interval_bytes, compiled=False)
    assert checked(raw, entry, interval_bytes, compiled=True) == (end, files)
    check = RunCheck(entry, Indexes(entry.base_offset, interval_bytes))
    check.update(memoryview(raw))
    is_of_digest_alone = listed == 3  # which is compared by others
    assert is_of_digest_alone or check.finish() == (end if isinstance(end, int) else None)


@needs_compiled
@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=60),
    st.sampled_from([100, 300, 1000]),
    st.lists(st.integers(0, 200) | st.integers(0, 2000), min_size=1, max_size=9).filter(any),
)
def test_the_pieces_may_end_anywhere(batches: list[tuple[int, int]], interval_bytes: int, pieces: list[int]) -> None:
    raw, offset = b"", 5
    for skipped, time_ms in batches:
        raw += a_batch(offset + skipped, 1, max_timestamp_ms=time_ms)
        offset += skipped + 1
    entry = entry_of(raw)
    end, files = checked(raw, entry, interval_bytes, compiled=False)
    assert end == offset
    indexes = Indexes(entry.base_offset, interval_bytes)
    check, rest = RunCheck(entry, indexes), memoryview(raw)
    for piece_bytes in cycle(pieces):
        check.update(rest[:piece_bytes])
        rest = rest[piece_bytes:]
        if not rest:
            break
    assert (check.finish(), indexes.files()) == (end, files)


@needs_compiled
@pytest.mark.parametrize("cut_bytes", [1, 30, 61, 70])
def test_what_ends_within_a_batch_is_not_the_run(cut_bytes: int) -> None:
    raw = a_batch(0, 2) + a_batch(2, 2)
    entry = entry_of(raw)
    check = RunCheck(entry, Indexes(0))
    check.update(memoryview(raw)[:-cut_bytes])
    assert check.finish() is None
    check.update(memoryview(raw)[-cut_bytes:])
    assert check.finish() is None  # it has ended


@needs_compiled
def test_nothing_follows_what_is_not_sound() -> None:
    raw = a_batch(0, 2)
    assert SegmentPass is not None
    passing = SegmentPass(0, 4096)
    assert passing.update(raw)
    assert not passing.update(raw)  # the same offsets again
    assert not passing.update(a_batch(2, 2))
    assert passing.finish() is None
    with pytest.raises(ValueError, match="base offset -1"):
        SegmentPass(-1, 4096)


@needs_compiled
@pytest.mark.parametrize("count", [256, 257])
def test_a_run_of_more_leader_epochs_than_compiled_code_keeps(count: int) -> None:
    raw = b"".join(a_batch(offset, 1, epoch=offset) for offset in range(count)) + a_commit(count, 1, epoch=count - 1)
    entry = entry_of(raw)
    indexes = Indexes(0)
    check = RunCheck(entry, indexes)
    check.update(memoryview(raw))
    assert check.finish() == (count + 1 if count == 256 else None)
    assert checked(raw, entry, 4096, compiled=True) == checked(raw, entry, 4096, compiled=False)
    assert checked(raw, entry, 4096, compiled=True)[0] == count + 1


def test_offsets_below_the_run_have_no_place_in_an_index() -> None:
    raw = b"".join(a_batch(offset, 1) for offset in range(200))
    entry = replace(entry_of(raw), base_offset=150, epochs=(EpochStart(0, 150),))
    for compiled in (False, True):
        found, _ = checked(raw, entry, 0, compiled=compiled)
        assert "offsets 0 to 0, the manifest says 150 to 199" in str(found)
