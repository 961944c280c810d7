"""How much room a target has, less what recovery leaves free for others on that disk, and for its own small files."""

import shutil
from pathlib import Path

RESERVE_BYTES_MAX = 64 << 20
_RESERVE_SHARE = 100


def free_bytes(directory: Path) -> int:
    """What may be written on the file system of `directory`, which is there. Raises OSError."""
    usage = shutil.disk_usage(directory)
    return max(0, usage.free - min(RESERVE_BYTES_MAX, usage.total // _RESERVE_SHARE))
