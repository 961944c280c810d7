"""`headwater` on a terminal: a pseudo-terminal of a given width."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 180
_STEERING = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class Screen:
    """What a verb printed, without colours and cursor movements."""

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def on_terminal(
    width: int, *arguments: str, cwd: Path, height: int = 50, until: Callable[[str], bool] = lambda _: False, **environ: str
) -> Screen:
    """`headwater ARGUMENTS` to its end. Ctrl-C is pressed as soon as `until` is true of what it printed."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[2]), **environ}
    process = subprocess.Popen(
        [sys.executable, "-c", "from headwater.cli import main; main()", *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=cwd,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job would ignore Ctrl-C
    )
    os.close(its)
    printed, deadline, pressed = b"", time.monotonic() + DEADLINE_S, False
    try:
        while True:
            assert select.select([ours], [], [], max(0, deadline - time.monotonic()))[0], _plain(printed)
            try:
                printed += os.read(ours, 1 << 16)
            except OSError:  # the last process that had the terminal has ended
                break
            if not pressed and until(_plain(printed)):
                process.send_signal(signal.SIGINT)
                pressed = True
        return Screen(process.wait(DEADLINE_S), _plain(printed))
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _plain(printed: bytes) -> str:
    return _STEERING.sub("", printed.decode("utf-8", "replace")).replace("\r\n", "\n")
