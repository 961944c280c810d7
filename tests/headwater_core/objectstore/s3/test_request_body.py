import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_core.errors import (
    NotFound,
    SourceChanged,
    TransientError,
)
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.s3.request_body import RequestBody, pieces_of
from tests.headwater_core.objectstore.badnetwork import Answer, BadNetwork
from tests.headwater_core.objectstore.s3.calls import WRITES


def before_the_second_pass(patch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Do `change` when a source is read for the second time, which is when it is sent."""
    original = os.preadv
    passes = 0

    def preadv(fd: int, buffers: list[memoryview], position: int) -> int:
        nonlocal passes
        passes += position == 0
        if passes == 2:
            change()
        return original(fd, buffers, position)

    patch.setattr(os, "preadv", preadv)


def test_a_source_that_changes_while_it_is_sent_is_noticed(far: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(1 << 20))
    before_the_second_pass(monkeypatch, lambda: path.write_bytes(b"x" * (1 << 20)))
    with path.open("rb") as source, pytest.raises(SourceChanged):
        far.put("a", source, size_bytes=1 << 20)
    with pytest.raises(NotFound):
        far.stat("a")


def test_a_source_cut_while_it_is_sent_is_noticed_at_once(far: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(1 << 20))
    before_the_second_pass(monkeypatch, lambda: os.truncate(path, 1000))
    with path.open("rb") as source, pytest.raises(SourceChanged):
        far.put("a", source, size_bytes=1 << 20)


def test_bytes_damaged_on_their_way_are_refused(far: S3Store, network: BadNetwork) -> None:
    for write in WRITES[:2]:
        network.plan.append(Answer(flip=True))
        with pytest.raises(TransientError):
            write(far)
        with pytest.raises(NotFound):
            far.stat("new")


def test_bytes_that_go_again_are_no_progress() -> None:
    """A server that is silent lets each attempt put as much into the network's buffers as the one before, and the first some."""
    content = bytes(3 << 20)
    moved: list[int] = []
    body = RequestBody(lambda: pieces_of(content), len(content), "a", lambda: moved.append(body.tell()), lambda size_bytes: None)
    for upto in (1 << 20, 2 << 20, 2 << 20, 5 << 19):
        body.seek(0)
        while body.tell() <= upto:
            body.read()
    assert moved == sorted(set(moved))
    assert moved[0] > 1 << 20
    assert moved[-1] == 5 << 19
