"""A disk that hangs, for tests: each call to the operating system about a path in a directory waits until the disk answers."""

import io
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

MOST_S = 60.0  # no test takes so long

T = TypeVar("T")


class HungDisk:
    """`reached` is released for each call that begins to wait."""

    def __init__(self, root: Path) -> None:
        self.root = os.fspath(root)
        self.answers, self.reached = threading.Event(), threading.Semaphore(0)

    def pass_by(self, path: Any) -> None:
        if isinstance(path, str | os.PathLike) and f"{os.fspath(path)}/".startswith(f"{self.root}/") and not self.answers.is_set():
            self.reached.release()
            assert self.answers.wait(MOST_S)


@contextmanager
def hung_disk(root: Path) -> Iterator[HungDisk]:
    """Until the end, or until `answers` is set."""
    disk = HungDisk(root)

    def waiting(call: Callable[..., Any]) -> Callable[..., Any]:
        def after_the_disk(path: Any, *rest: Any, **named: Any) -> Any:
            disk.pass_by(path)
            return call(path, *rest, **named)

        return after_the_disk

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((os, "stat"), (os, "lstat"), (os, "scandir"), (os, "open"), (os, "listdir"), (io, "open")):
            patch.setattr(module, name, waiting(getattr(module, name)))
        try:
            yield disk
        finally:
            disk.answers.set()


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` comes to, though the test ends even if it hangs."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(seconds)
