"""A program that imports this can be killed at a milestone: with KILL_AT=NAME in the environment it sends itself SIGKILL there, with
KILL_AT=NAME:3 at the third time. `python -m tests.kill_at ARGUMENTS` is such a `headwater ARGUMENTS`.
"""

import os
import signal

from headwater_core import milestones

_name, _, _times = os.environ.get("KILL_AT", "").partition(":")
_left = int(_times) if _times.isdigit() else 1


def _observe(name: str) -> None:
    global _left
    if name == _name:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


if _name:
    milestones.observer = _observe

if __name__ == "__main__":
    from headwater.cli import main

    main()
