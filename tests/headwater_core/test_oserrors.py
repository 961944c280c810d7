import errno
import os

import pytest

from headwater_core.errors import DiskFull, HeadwaterError, TransientError, Unauthorised, UsageError
from headwater_core.oserrors import kind_of, translated


@pytest.mark.parametrize(
    ("number", "kind", "exit_code"),
    [
        (errno.ENOSPC, DiskFull, 5),
        (errno.EDQUOT, DiskFull, 5),
        (errno.EFBIG, DiskFull, 5),
        (errno.EROFS, Unauthorised, 8),
        (errno.EACCES, Unauthorised, 8),
        (errno.EPERM, Unauthorised, 8),
        (errno.ENAMETOOLONG, UsageError, 2),
        (errno.ENOTDIR, UsageError, 2),
        (errno.EIO, TransientError, 5),
        (errno.ESTALE, TransientError, 5),
        (errno.EMFILE, TransientError, 5),
    ],
)
def test_an_error_of_the_system_has_one_meaning_and_one_exit_code(number: int, kind: type[HeadwaterError], exit_code: int) -> None:
    with pytest.raises(kind, match=f"the file: {os.strerror(number)}") as raised, translated("the file"):
        raise OSError(number, os.strerror(number))
    assert raised.value.exit_code == exit_code


def test_what_the_table_does_not_name_is_the_callers_choice() -> None:
    assert kind_of(OSError("no number at all")) is TransientError
    assert kind_of(FileNotFoundError(errno.ENOENT, "gone"), UsageError) is UsageError
    assert kind_of(OSError(errno.ENOSPC, "full"), UsageError) is DiskFull
