"""Processes that end with the one that started them, however that ends: a test run that is interrupted leaves no server behind."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """For `preexec_fn`: SIGKILL when the thread that starts the process has ended, which is to be a main thread."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
