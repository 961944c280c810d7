"""Named steps on the way of bytes, so that a test can kill the process at each of them.

Production pays one comparison per step. With HEADWATER_KILL_AT=NAME in the environment the process sends itself SIGKILL
when it reaches that step; HEADWATER_KILL_AT=NAME:3 at the third time.
"""

import os
import signal

_KILL_AT, _, _times = os.environ.get("HEADWATER_KILL_AT", "").partition(":")
_left = int(_times) if _times.isdigit() else 1


def reached(step: str) -> None:
    global _left
    if _KILL_AT and step == _KILL_AT:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
