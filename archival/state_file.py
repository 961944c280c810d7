"""State of a process that outlives it in the data directory, where losing it costs time or evidence and nothing else."""

from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from headwater_core.files import without_checksum

log = structlog.get_logger()

T = TypeVar("T")


def load(path: Path, kind: type[T], consequence: str) -> T | None:
    """Return what the file says; None where there is none, and where it is refused: damaged, of a newer version, or not to be read.

    consequence  of a refusal, for the log. A file that can be read is kept aside then, since the next write would replace it
    """
    try:
        return msgspec.json.decode(without_checksum(path.read_bytes()), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or str(error)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        reason = str(error)
        with suppress(OSError):
            path.rename(path.with_name(f"{path.name}.unreadable"))
    log.warning("state_file_refused", path=str(path), reason=reason, consequence=consequence)
    return None
