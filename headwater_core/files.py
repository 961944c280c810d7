"""Small files that survive a crash, and what the operating system says about files as our errors: one home for both."""

import errno
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from headwater_core.errors import DiskFull, HeadwaterError, TransientError, Unauthorised, UsageError

PARTIAL = ".partial"
_OPEN_MODE = 0o666

_KINDS: dict[type[HeadwaterError], tuple[int, ...]] = {
    DiskFull: (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    Unauthorised: (errno.EACCES, errno.EPERM, errno.EROFS),
    UsageError: (
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.EMLINK,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.EOPNOTSUPP,
    ),
}
_KIND = {number: kind for kind, numbers in _KINDS.items() for number in numbers}


def error_kind(error: OSError, otherwise: type[HeadwaterError] = TransientError) -> type[HeadwaterError]:
    """What `error` means to a caller; `otherwise` for what the table does not name, such as EIO, which may pass."""
    return _KIND.get(error.errno or 0, otherwise)


@contextmanager
def disk_errors(where: object, otherwise: type[HeadwaterError] = TransientError) -> Iterator[None]:
    """Raise an OSError of the block as ours, beginning with `where`; a full disk with the advice to make room."""
    try:
        yield
    except OSError as error:
        kind = error_kind(error, otherwise)
        advice = "; nothing is lost: make room and try again" if kind is DiskFull else ""
        raise kind(f"{where}: {error.strerror or error}{advice}") from error


def replace_file(path: Path, content: bytes, otherwise: type[HeadwaterError] = TransientError, *, mode: int = _OPEN_MODE) -> None:
    """Let `path` hold `content`: after a crash at any moment it holds the old bytes or the new ones, never a part.

    mode  its permissions, less the umask

    One writer at a time: the partial file has one name. Raises what `disk_errors` makes of the operating system's errors.
    """
    with disk_errors(path, otherwise):
        rename_synced(write_partial(path, content, mode=mode), path)


def write_partial(path: Path, content: bytes, *, mode: int = _OPEN_MODE) -> Path:
    """Write `content` beside `path`, under a name that no reader looks at, and sync it. A failure leaves no file. Raises OSError."""
    partial = partial_of(path)
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode != _OPEN_MODE:
                os.fchmod(descriptor, mode)  # one that a killed writer left may have others
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            partial.unlink()  # a full disk gets its room back at once
        raise
    return partial


def partial_of(path: Path) -> Path:
    """The name of `path` while it is written."""
    return path.with_name(path.name + PARTIAL)


def rename_synced(partial: Path, path: Path) -> None:
    """Give `partial`, a synced file or directory, the name `path` in the same directory, and sync that name. Raises OSError."""
    os.rename(partial, path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Put a file's bytes, or a directory's names, on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def with_checksum(content: bytes) -> bytes:
    """Return JSON behind a line with its CRC-32: a flipped bit must not make a number of it another one."""
    return b"%08x\n%s" % (zlib.crc32(content), content)


def without_checksum(raw: bytes) -> bytes:
    """Return what `with_checksum` was called with, or the bare JSON object that an older version wrote. Raises ValueError for others."""
    checksum, _, content = raw.partition(b"\n")
    if raw.startswith(b"{"):
        return raw
    if checksum != b"%08x" % zlib.crc32(content):
        raise ValueError("the checksum is another one's")
    return content


class Fingerprint(NamedTuple):
    """Tell one state of a file from another. The last time is that of a change of its rights, too."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


def fingerprint(path: Path) -> Fingerprint | None:
    """Return that of the file that `path` leads to, through links; None where there is none to be read."""
    try:
        found = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Fingerprint(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
