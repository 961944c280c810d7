"""Files of a recovered directory: each appears under its name whole and durable, or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater_core.errors import DiskFull
from headwater_core.oserrors import kind_of

PARTIAL = ".partial"


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Translate what the operating system says about writing at `path`."""
    try:
        yield
    except OSError as error:
        kind = kind_of(error)
        advice = "; nothing is lost: make room and run the same command again" if kind is DiskFull else ""
        raise kind(f"{path}: {error.strerror}{advice}") from error


def read_if_there(path: Path) -> bytes | None:
    with disk_errors(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def publish(path: Path, content: bytes) -> None:
    """Write a small file; one that says the same already is left alone."""
    if read_if_there(path) == content:
        return
    partial = path.with_name(path.name + PARTIAL)
    with disk_errors(path):
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        partial.rename(path)
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
