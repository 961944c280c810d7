"""The compiled loops by themselves; what they make of batches is in test_decoder.py."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from awscrt import checksums
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipeline.scan import kernels

ROOT = Path(__file__).parents[4]


@given(data=st.binary(max_size=300), start=st.integers(0, 20))
def test_the_crc_is_the_one_that_the_hardware_computes(data: bytes, start: int) -> None:
    start = min(start, len(data))
    assert kernels.crc32c(np.frombuffer(data, np.uint8), start, len(data)) == checksums.crc32c(data[start:])


def test_a_kernel_runs_where_no_directory_can_keep_it() -> None:
    """Of a function that came from no file, numba cannot keep anything, just as where nothing is writable."""
    made: dict[str, Any] = {}
    exec("def double(number): return number * 2", made)
    assert kernels.compiled(made["double"])(21) == 42


def test_no_kernel_waits_for_the_interpreter_or_counts_references() -> None:
    for name in ("scan_batches", "scan_records", "gather_headers"):
        assert getattr(kernels, name).targetoptions["nogil"], name
        assert not getattr(kernels, name).targetoptions["_nrt"], name


@pytest.mark.long
def test_damaged_records_never_lead_outside_an_array(tmp_path: Path) -> None:
    """The tests of damage once more, with numba checking every index."""
    settings = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    overrun = "import numpy; from headwater.pipeline.scan.kernels import crc32c; crc32c(numpy.zeros(3, numpy.uint8), 0, 100)"
    done = subprocess.run([sys.executable, "-c", overrun], cwd=ROOT, env=os.environ | settings, capture_output=True, text=True)
    assert "IndexError: index is out of bounds" in done.stderr  # the checks are really on
    damage = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/headwater/pipeline/scan/test_decoder.py"]
    done = subprocess.run(damage, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("mode", "owner", "is_used"), [(0o700, None, True), (0o777, None, False), (0o770, None, False), (0o700, 9, False)])
def test_a_directory_that_others_can_write_keeps_no_code(mode: int, owner: int | None, is_used: bool, tmp_path: Path) -> None:
    """Numba unpickles what lies there."""
    directory = tmp_path / "cache"
    directory.mkdir()
    directory.chmod(mode)
    if owner is not None:
        if os.geteuid():
            pytest.skip("only root can give a directory away")
        os.chown(directory, owner, owner)
    assert kernels._is_private(directory) is is_used
    inner = directory / "inner"
    inner.mkdir(0o700)
    assert kernels._is_private(inner) is is_used
    assert not kernels._is_private(tmp_path / "gone")


def test_a_kernel_is_compiled_without_a_cache_that_others_can_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(number: int) -> int:
        return number + 1

    monkeypatch.setattr(kernels, "_is_private", lambda _: False)
    assert kernels.compiled(one).stats.cache_path is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_first", [True, False])
def test_the_first_scan_of_a_machine_says_what_it_waits_for(is_first: bool, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    program = (
        "import numpy as np; from headwater.pipeline.scan import kernels;"
        "raw = np.zeros(16, np.uint8); raw.flags.writeable = False; kernels._number(raw, 0, 8); kernels._number(raw, np.int32(0), 8)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"NUMBA_CACHE_DIR": str(cache)}, capture_output=True, text=True, check=True
        )
        for _ in range(1 if is_first else 2)
    ]
    said = runs[-1].stdout + runs[-1].stderr
    assert said.count("decoder_not_compiled") == is_first
    assert (str(cache) in said) is is_first
