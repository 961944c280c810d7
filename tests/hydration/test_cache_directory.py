"""Cached files by name: written whole or not at all, and nothing of anybody else's is touched."""

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from headwater_core.errors import CorruptData
from hydration.cache.cache_directory import PARTIAL_AGE_MS, CacheDirectory, chunk_name, folder, index_name
from tests.headwater_core.manual_clock import ManualClock
from tests.hydration.world import PARTITION

NAME = chunk_name(PARTITION, "u", 0, 3)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files(tmp_path: Path, clock: ManualClock) -> CacheDirectory:
    return CacheDirectory(tmp_path / "cache", clock)


def test_what_was_written_is_found_and_removed(files: CacheDirectory) -> None:
    assert files.scan(clear=False) == {}

    def fill(file: BinaryIO) -> None:
        file.write(b"abc")

    fd = files.write(NAME, fill)
    assert os.pread(fd, 10, 0) == b"abc"
    os.close(fd)
    assert {name: status.st_size for name, status in files.scan(clear=False).items()} == {NAME: 3}
    files.remove(NAME)
    files.remove(NAME)
    assert files.scan(clear=False) == {}


def test_nothing_is_left_of_what_could_not_be_filled(files: CacheDirectory, tmp_path: Path) -> None:
    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise CorruptData("x", 0, "no")

    with pytest.raises(CorruptData):
        files.write(NAME, fail)
    assert not list(tmp_path.rglob("*.*"))


def test_what_a_crash_left_is_cleared_after_a_while(files: CacheDirectory, tmp_path: Path, clock: ManualClock) -> None:
    left = tmp_path / "cache" / folder(PARTITION) / "u.0-3.run.0123456789abcdef.partial"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    written_ms = left.stat().st_mtime_ns // 1_000_000
    clock.advance(written_ms - clock.now_ms())
    files.scan(clear=True)
    assert left.exists()
    clock.advance(PARTIAL_AGE_MS + 1)
    files.scan(clear=False)
    assert left.exists()
    files.scan(clear=True)
    assert not left.exists()


@pytest.mark.parametrize("uid", ["", "../u", "a/b", "x" * 65, "ü"])
def test_no_name_leads_out_of_the_directory(uid: str) -> None:
    with pytest.raises(CorruptData):
        chunk_name(PARTITION, uid, 0, 3)
    with pytest.raises(CorruptData):
        index_name(PARTITION, uid)
