"""A program that imports this can be killed at a milestone: with KILL_AT=NAME in the environment it sends itself SIGKILL there, with
KILL_AT=NAME:3 at the third time; with HOLD_AT=NAME:FILE it waits there until FILE exists. `python -m tests.kill_at ARGUMENTS` is such a
`headwater ARGUMENTS`.
"""

import os
import signal
import time

from headwater_core import milestones

_name, _, _times = os.environ.get("KILL_AT", "").partition(":")
_left = int(_times) if _times.isdigit() else 1
_held, _, _file = os.environ.get("HOLD_AT", "").partition(":")


def _observe(name: str) -> None:
    global _left
    if name == _name:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    while name == _held and not os.path.exists(_file):
        time.sleep(0.02)


if _name or _held:
    milestones.observer = _observe

if __name__ == "__main__":
    from headwater.cli import main

    main()
