"""A disk that has no room at its n-th write, or a process that ends there, for everything below one directory or not."""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


class Killed(BaseException):
    """Nothing of ours catches it, as nothing runs after a kill."""


class FullDisk:
    """Counts what takes room: writing, creating, renaming and syncing. fails_at: which of them fails, 0 for none"""

    def __init__(self, fails_at: int = 0, *, kills: bool = False) -> None:
        self.fails_at, self.kills = fails_at, kills
        self.count = 0

    def take(self) -> None:
        self.count += 1
        if self.count == self.fails_at:
            raise Killed if self.kills else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def mounted(self) -> Iterator[None]:
        real_open, disk = io.open, self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                disk.take()
                return super().write(data)

        def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
            if mode != "wb":
                return real_open(file, mode, buffering, *rest, **named)
            raw = File(file, mode)
            return io.BufferedWriter(raw) if buffering else raw

        def taking(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                self.take()
                return real(*arguments, **named)

            return call

        real_mkdir = os.mkdir

        def mkdir(path: Any, *rest: Any, **named: Any) -> None:
            if not os.path.lexists(path):  # else it fails for another reason, which takes no room
                self.take()
            real_mkdir(path, *rest, **named)

        with patch.object(io, "open", opened), patch.multiple(os, fsync=taking(os.fsync), rename=taking(os.rename), mkdir=mkdir):
            yield
