"""Pieces in a file without a name."""

import gc
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater_core.errors import DiskFull, TransientError, UsageError
from recovery.spill_file import Spill, SpillFile


def test_pieces_come_back_from_whichever_file_they_are_in() -> None:
    spill = Spill(file_bytes_max=100)
    contents = [bytes([number]) * (number % 40 + 1) for number in range(200)]
    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(spill.append, contents))
    assert [piece.read() for piece in pieces] == contents
    assert len({piece.file for piece in pieces}) > 10


def test_a_file_is_closed_with_its_last_piece() -> None:
    spill = Spill()
    pieces = [spill.append(b"a"), spill.append(b"b")]
    file, descriptor = weakref.ref(pieces[0].file), pieces[0].file.fd
    assert os.fstat(descriptor).st_nlink == 0
    del pieces[0]
    assert pieces[0].read() == b"b"
    pieces.clear()
    gc.collect()
    assert file() is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert spill.append(b"c").read() == b"c"


def test_what_the_disk_does_not_take_or_give_back_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    file = SpillFile()
    piece = file.append(b"0123456789")
    os.ftruncate(file.fd, 4)
    with pytest.raises(TransientError, match="4 bytes at 0, 10 were written"):
        piece.read()
    full = os.open("/dev/full", os.O_RDWR)
    monkeypatch.setattr(file, "fd", full)
    with pytest.raises(DiskFull, match="make room"):
        file.append(b"x")
    os.close(full)


def test_a_write_that_the_disk_takes_in_parts_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, raw, at: write(fd, raw[:3], at))
    assert SpillFile().append(b"0123456789").read() == b"0123456789"


def test_without_a_directory_for_temporary_files_nothing_is_kept_silently(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("recovery.spill_file.TemporaryFile", lambda buffering: (tmp_path / "gone" / "x").open("wb"))
    with pytest.raises(UsageError, match="TMPDIR"):
        Spill().append(b"x")
