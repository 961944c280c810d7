"""Pieces in a file without a name."""

import errno
import gc
import os
import tempfile
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater_core.errors import DiskFull, TransientError
from recovery import entry_list
from recovery.plan_document import decode_plan, encode_plan
from recovery.spill_file import Spill, SpillFile
from tests.recovery.plans import a_head, a_topic, an_entry, planned


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
    with pytest.raises(DiskFull, match="TMPDIR"):
        file.append(b"x")
    os.close(full)


def test_a_write_that_the_disk_takes_in_parts_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, raw, at: write(fd, raw[:3], at))
    assert SpillFile().append(b"0123456789").read() == b"0123456789"


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOENT, TransientError), (errno.ENOTDIR, TransientError), (errno.ENOSPC, DiskFull)])
def test_without_a_place_for_temporary_files_nothing_else_is_to_blame(
    monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    """A usage error of a topic leaves it out of a plan, and one of a document is damage."""

    def refused(buffering: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    monkeypatch.setattr(entry_list, "_spill", Spill())
    heads = a_head(*(an_entry(at, at) for at in range(200)))
    with pytest.raises(kind, match="TMPDIR"):
        planned(a_topic(heads))
    monkeypatch.undo()
    raw = encode_plan(planned(a_topic(heads)))
    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    monkeypatch.setattr(entry_list, "_spill", Spill())
    with pytest.raises(kind, match="TMPDIR"):
        decode_plan(raw)
