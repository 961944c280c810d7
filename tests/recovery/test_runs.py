"""A download that breaks off continues where it broke, and ends when no more of it comes."""

import errno
import os
from collections.abc import Generator, Sequence

import pytest

from headwater_core.errors import CorruptData, NotFound, TransientError
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from manifests.entry import Entry
from recovery import runs
from recovery.runs import ATTEMPTS, download
from tests.recovery.plans import an_entry

PIECE = 100
RUN = bytes(n % 251 for n in range(1050))


class Breaking:
    """One run, whose streams break off: after so many bytes each, in turn; None: not. It notes where each began."""

    def __init__(self, *broken_after: int | None, content: bytes = RUN) -> None:
        self._broken_after, self._content = iter(broken_after), content
        self.begun: list[tuple[int, int]] = []
        self.closed = 0

    def read_offloaded(self, store: ObjectStore, run: Entry) -> "Breaking":
        return self

    def stream_into(self, buffers: Sequence[memoryview], start: int) -> Generator[None, None, None]:
        self.begun.append((start, start + sum(map(len, buffers))))
        broken_after, at = next(self._broken_after, None), start
        try:
            for buffer in buffers:
                if broken_after is not None and at + len(buffer) > start + broken_after:
                    buffer[:] = b"?" * len(buffer)  # what has come of it
                    raise TransientError("the connection ended")
                buffer[:] = self._content[at : at + len(buffer)]
                at += len(buffer)
                yield
        finally:
            self.closed += 1


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> "Written":
    monkeypatch.setattr(runs, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(runs, "REQUEST_BYTES", 4 * PIECE)
    return Written(monkeypatch)


class Written:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.arrived, self.room_bytes = b"", 2 * len(RUN)

    def by(self, layout: Breaking, *, live_bytes: int = len(RUN)) -> bytes:
        self._monkeypatch.setattr(runs, "open_layout", lambda name: layout)
        entry = an_entry(0, 9, size_bytes=len(RUN), live_bytes=live_bytes, digest=digest_of(RUN))
        download(None, entry, self._take)  # type: ignore[arg-type]  # no store is needed
        return self.arrived

    def _take(self, live: memoryview) -> None:
        if len(self.arrived) + len(live) > self.room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.arrived += live


def test_no_request_is_longer_than_a_bound(written: Written) -> None:
    layout = Breaking()
    assert written.by(layout) == RUN
    assert (layout.begun, layout.closed) == ([(0, 400), (400, 800), (800, 1050)], 3)


def test_a_download_goes_on_where_it_broke(written: Written) -> None:
    layout = Breaking(0, 250, None, 0, 0)
    assert written.by(layout) == RUN
    assert layout.begun == [(0, 400), (0, 400), (200, 600), (600, 1000), (600, 1000), (600, 1000), (1000, 1050)]


def test_a_download_of_which_no_more_comes_ends(written: Written) -> None:
    layout = Breaking(250, *[0] * ATTEMPTS)  # the first has got to byte 200 and no further
    with pytest.raises(TransientError, match="the connection ended"):
        written.by(layout)
    assert layout.begun[1:] == [(200, 600)] * (ATTEMPTS - 1)
    assert written.arrived == RUN[:200]


def test_the_connection_is_given_back_when_there_is_no_room(written: Written) -> None:
    layout = Breaking()
    written.room_bytes = PIECE
    with pytest.raises(OSError, match="No space"):
        written.by(layout)
    assert (layout.begun, layout.closed) == ([(0, 400)], 1)


def test_the_dead_part_is_digested_and_not_written(written: Written) -> None:
    assert written.by(Breaking(), live_bytes=150) == RUN[:150]
    with pytest.raises(CorruptData, match="the manifest says"):
        written.by(Breaking(content=RUN[:-1] + b"?"), live_bytes=150)


def test_what_is_gone_is_named(written: Written) -> None:
    class Gone(Breaking):
        def stream_into(self, buffers: Sequence[memoryview], start: int) -> Generator[None, None, None]:
            raise NotFound("404")
            yield  # type: ignore[unreachable]

    with pytest.raises(NotFound, match="and it is gone"):
        written.by(Gone())
