"""The operating system's errors as ours: one table, so that a full disk is the same error wherever it is met."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from headwater_core.errors import DiskFull, HeadwaterError, TransientError, Unauthorised, UsageError

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


def kind_of(error: OSError, otherwise: type[HeadwaterError] = TransientError) -> type[HeadwaterError]:
    """What `error` means to a caller; `otherwise` for what the table does not name, such as EIO, which may pass."""
    return _KIND.get(error.errno or 0, otherwise)


@contextmanager
def translated(where: object, otherwise: type[HeadwaterError] = TransientError) -> Iterator[None]:
    """Raise an OSError of the block as ours, beginning with `where`."""
    try:
        yield
    except OSError as error:
        raise kind_of(error, otherwise)(f"{where}: {error.strerror or error}") from error
