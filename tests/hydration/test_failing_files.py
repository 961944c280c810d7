"""A file that cannot be read is an error of its tier: the other one is asked, and what is good is not forgotten."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater_core.errors import TransientError
from hydration.answers import Isolation
from hydration.runfile import RunFile
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import World

AWorld = Callable[..., World]
RUN = a_segment(0, 50, value_bytes=3000)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have reads of files with that suffix fail as a dying disk's do."""
    real = os.pread

    def fail(suffix: str) -> None:
        def pread(fd: int, size_bytes: int, position: int) -> bytes:
            if os.readlink(f"/proc/self/fd/{fd}").endswith(suffix):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(fd, size_bytes, position)

        monkeypatch.setattr(os, "pread", pread)

    return fail


@contextmanager
def without_descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*arguments: Any, **named: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        patch.setattr(os, "open", refuse)
        for module in ("chunk_cache", "cache_directory"):
            patch.setattr(f"hydration.cache.{module}.open", refuse, raising=False)
        yield


@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_segment_that_cannot_be_read_is_read_from_the_archive(
    a_world: AWorld, failing: Callable[[str], None], isolation: Isolation
) -> None:
    world = a_world()
    world.archive.append(RUN)
    world.broker.write(0, RUN)
    world.broker.set_high_watermark(50)
    failing(".log")
    assert world.read_all(isolation) == list(range(50))
    assert world.logs.hydrator.counters.fallbacks


@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_segment_that_cannot_be_read_and_is_nowhere_else_is_to_be_asked_for_again(
    a_world: AWorld, failing: Callable[[str], None], isolation: Isolation
) -> None:
    world = a_world()
    world.broker.write(0, RUN)
    world.broker.set_high_watermark(50)
    failing(".log")
    with pytest.raises(TransientError):
        world.log.read(3, 1 << 20, isolation)


def test_without_descriptors_a_chunk_is_to_be_asked_for_again(a_world: AWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world(local=False)
    world.archive.append(RUN)
    world.log.bounds()
    with without_descriptors(monkeypatch), pytest.raises(TransientError):
        world.log.read(3, 1 << 20, Isolation.READ_UNCOMMITTED)
    assert world.read_all() == list(range(50))


def test_without_descriptors_no_good_chunk_is_forgotten(a_world: AWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world(local=False)
    world.archive.append(RUN)
    assert world.read_all() == list(range(50))
    gets, cache = world.gets(), world.logs.hydrator.cache
    for kept in cache._table._entries.values():  # as the cache closes files when many are open
        assert kept.file is not None
        kept.file.drop()
        kept.file = None
        cache._table._open -= 1
    with without_descriptors(monkeypatch), pytest.raises(TransientError):
        world.log.read(3, 1 << 20, Isolation.READ_UNCOMMITTED)
    assert world.read_all() == list(range(50))
    assert world.gets() == gets


def test_a_descriptor_that_fails_is_a_transient_error(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(b"x")
    file = RunFile.open(path)
    os.close(file.fileno())
    for ask in (lambda: file.read(0, 1), lambda: file.size_bytes, lambda: file.is_named):
        with pytest.raises(TransientError):
            ask()
