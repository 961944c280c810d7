"""Answers leave as they are meant, whether their records are in memory, in the page cache or on the disk alone."""

import asyncio
import errno
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway import server
from headwater.gateway.connection import PeerGone
from headwater.gateway.response import Records, Response
from headwater.gateway.server import BUFFERS_MAX, READ_BYTES, after_bytes, send
from hydration.answers import Slice
from hydration.disk_threads import DiskThreads
from hydration.runfile import RunFile

SIZE = 3 * READ_BYTES + 17


def sent(*records: Slice) -> bytes:
    return asyncio.run(sent_in_loop(*records))


async def sent_in_loop(*records: Slice, readers: DiskThreads | None = None, timeout_s: float = 30.0) -> bytes:
    """What arrives of an answer of 'before', each of the records and 'after', less the frame's size."""
    readers = readers or DiskThreads(1, "reader")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        answer = Response()
        answer.buffer += b"before"
        for each in records:
            answer.attach(Records([each], each.length))
        answer.buffer += b"after"

        async def received() -> bytes:
            loop, got = asyncio.get_running_loop(), bytearray()
            while some := await loop.sock_recv(theirs, 1 << 20):
                got += some
            return bytes(got[4:])

        receiving = asyncio.create_task(received())
        try:
            await send(ours, answer.frame(), timeout_s, readers)
        finally:
            ours.shutdown(socket.SHUT_WR)
            arrived = await receiving
        return arrived


@pytest.fixture
def content() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> RunFile:
    path = tmp_path / "run"
    path.write_bytes(content)
    return RunFile.open(path)


@pytest.fixture
def read_in(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Ranges that were read from the disk ahead of sending, none of them on the loop's thread."""
    ranges, read, here = [], server._read_in, threading.get_ident()

    def noting(source: int, start: int, end: int) -> None:
        assert threading.get_ident() != here
        ranges.append((start, end))
        read(source, start, end)

    monkeypatch.setattr(server, "_read_in", noting)
    return ranges


def test_from_the_page_cache(file: RunFile, content: bytes, read_in: list[tuple[int, int]]) -> None:
    assert sent(Slice(file, 5, SIZE - 9)) == b"before" + content[5:-4] + b"after"
    assert not read_in, "it has just been written"


def test_from_the_disk(file: RunFile, content: bytes, read_in: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_is_cached", lambda *_: False)
    assert sent(Slice(file, 0, SIZE)) == b"before" + content + b"after"
    assert read_in == [(start, min(start + READ_BYTES, SIZE)) for start in range(0, SIZE, READ_BYTES)]


def test_work_elsewhere_in_the_process_keeps_no_cold_read_waiting(
    file: RunFile, content: bytes, read_in: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop's own threads are shared by many: verbs, name look-ups, libraries."""
    monkeypatch.setattr(server, "_is_cached", lambda *_: False)
    go = threading.Event()

    async def busy() -> bytes:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        others = [loop.run_in_executor(None, go.wait, 60) for _ in range(3)]
        try:
            return await asyncio.wait_for(sent_in_loop(Slice(file, 0, SIZE)), 30)
        finally:
            go.set()
            await asyncio.gather(*others)

    assert asyncio.run(busy()) == b"before" + content + b"after"
    assert read_in


def test_a_disk_that_hangs_keeps_no_answer_from_another_disk(
    file: RunFile, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").write_bytes(content)
    hanging, go, read = RunFile.open(tmp_path / "other"), threading.Event(), server._read_in
    hanging.device = -1

    def read_in(source: int, start: int, end: int) -> None:
        if source == hanging.fileno():
            go.wait(60)
        read(source, start, end)

    monkeypatch.setattr(server, "_is_cached", lambda *_: False)
    monkeypatch.setattr(server, "_read_in", read_in)

    async def both() -> bytes:
        readers = DiskThreads(1, "reader")
        waiting = asyncio.create_task(sent_in_loop(Slice(hanging, 0, SIZE), readers=readers, timeout_s=0.5))
        await asyncio.sleep(0)
        try:
            arrived = await asyncio.wait_for(sent_in_loop(Slice(file, 0, SIZE), readers=readers), 20)
            with pytest.raises(PeerGone, match="hangs"):
                await asyncio.wait_for(waiting, 20)
            return arrived
        finally:
            go.set()

    assert asyncio.run(both()) == b"before" + content + b"after"


def test_a_file_that_ends_before_its_slice_is_doubted(file: RunFile) -> None:
    os.truncate(file.where, 1000)
    with pytest.raises(PeerGone):
        sent(Slice(file, 0, SIZE))
    assert file.unproven


def test_a_file_that_was_just_read_counts_as_cached(file: RunFile) -> None:
    file.read(0, SIZE)
    assert server._is_cached(file.fileno(), 0, SIZE)


def test_from_memory(file: RunFile, content: bytes) -> None:
    os.ftruncate(os.open(file.where, os.O_RDWR), 0)  # so that it can come from nowhere else
    file.memory = memoryview(content)
    assert sent(Slice(file, 1, SIZE - 1)) == b"before" + content[1:] + b"after"


def test_from_memory_and_file_by_turns(file: RunFile, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(content)
    other = RunFile.open(tmp_path / "other")
    other.memory = memoryview(content)
    slices = [Slice((file, other)[at % 2], at, 100 + at) for at in range(20)]
    assert sent(*slices) == b"before" + b"".join(content[each.position : each.position + each.length] for each in slices) + b"after"


def test_more_pieces_than_one_system_call_takes(file: RunFile, content: bytes) -> None:
    file.memory = memoryview(content)
    slices = [Slice(file, at, 700) for at in range(3 * BUFFERS_MAX)]
    assert sent(*slices) == b"before" + b"".join(content[at : at + 700] for at in range(3 * BUFFERS_MAX)) + b"after"


@given(st.lists(st.binary(max_size=5), max_size=8), st.data())
def test_what_was_not_sent_is_sent_next(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    sent_bytes = data.draw(st.integers(0, len(whole)))
    left = after_bytes(list(pieces), sent_bytes)
    assert b"".join(left) == whole[sent_bytes:]
    assert bool(left) == (sent_bytes < len(whole))


def test_a_file_that_its_disk_cannot_read_has_failed(file: RunFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "sendfile", failing)
    with pytest.raises(PeerGone, match="Input/output error"):
        sent(Slice(file, 0, SIZE))
    assert file.failure == "Input/output error"
