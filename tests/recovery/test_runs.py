"""A run is checked by compiled code and without it alike, and so are its indexes."""

import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.errors import HeadwaterError
from headwater_core.segments.stretch import pass_batches
from recovery import runs
from recovery.indexes import Indexes
from tests.headwater_core.segments.builders import a_batch
from tests.headwater_core.segments.test_stretch import damaged_runs, needs_compiled
from tests.recovery.plans import an_entry


def checked(raw: bytes, interval_bytes: int, *, compiled: bool) -> tuple[object, dict[str, bytes]]:
    """The end of the run, or what is wrong with it; and the indexes as far as it was read."""
    entry = an_entry(0, 10**9, records=len(raw) % 7, size_bytes=len(raw) + 1, live_bytes=max(1, len(raw)), digest="")
    indexes = Indexes(0, interval_bytes)
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryFile() as file:
        patched.setattr(runs, "pass_batches", pass_batches if compiled else None)
        file.write(raw)
        file.flush()
        try:
            found: object = runs.check_run(file, entry, "run", indexes)
        except HeadwaterError as error:
            found = type(error), str(error)
    return found, indexes.files()


@needs_compiled
@settings(max_examples=300)
@given(raw=damaged_runs(), interval_bytes=st.sampled_from([0, 1, 100, 300, 4096]))
def test_compiled_code_finds_what_the_loop_finds(raw: bytes, interval_bytes: int) -> None:
    assert checked(raw, interval_bytes, compiled=True) == checked(raw, interval_bytes, compiled=False)


@needs_compiled
@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=60), st.sampled_from([100, 300, 1000]))
def test_the_largest_time_is_that_of_the_first_batch_that_has_it(batches: list[tuple[int, int]], interval_bytes: int) -> None:
    raw, offset = b"", 0
    for skipped, time_ms in batches:
        raw += a_batch(offset + skipped, 1, max_timestamp_ms=time_ms)
        offset += skipped + 1
    assert checked(raw, interval_bytes, compiled=True) == checked(raw, interval_bytes, compiled=False)
