"""What the peer tests fetch, once for all processes that run them: kept in PEERS_CACHE, `.peers` by default."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

CACHE = Path(os.environ.get("PEERS_CACHE", Path(__file__).parents[2] / ".peers"))  # ignored by git


def fetched(name: str, fetch: Callable[[Path], object]) -> Path:
    """The directory CACHE/name, which `fetch` has filled; another process that wants it at the same time waits."""
    directory = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            partial = CACHE / f"{name}.{os.getpid()}.partial"
            fetch(partial)
            partial.rename(directory)
    return directory
