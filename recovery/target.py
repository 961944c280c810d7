"""The directory that a recovery writes, and the mark in it: a recovery is begun once, resumed, and never done twice."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from manifests.document import FORMAT, seal, unseal
from model.errors import CorruptData, ForeignOwner, Locked, UsageError
from recovery.files import PARTIAL, disk_errors, publish
from recovery.plan import RecoveryPlan, check_plan

MARK = ".headwater-recovery.json"
_MARK_BYTES_MAX = 1 << 30


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What is being done here. `plan` is carried out to its end, whatever has been archived since it was made."""

    format: tuple[int, int] = FORMAT
    plan: RecoveryPlan
    directory_id: str
    started_ms: int
    finished_ms: int | None = None


@contextmanager
def locked(into: Path) -> Iterator[None]:
    """Make the directory if need be, and keep others out of it. The lock is on the directory itself and leaves nothing."""
    with disk_errors(into):
        try:
            into.mkdir(parents=True, exist_ok=True)
            fd = os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"{into} is not a directory") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Locked(f"another recovery into {into} is running") from error
        yield
    finally:
        os.close(fd)


def read_mark(into: Path) -> Mark | None:
    """None when no recovery was ever begun there."""
    path = into / MARK
    with disk_errors(path):
        try:
            with path.open("rb") as file:
                raw = file.read(_MARK_BYTES_MAX + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
    if len(raw) > _MARK_BYTES_MAX:
        raise CorruptData(str(path), 0, f"more than {_MARK_BYTES_MAX} bytes")
    return unseal(raw, Mark, lambda mark: check_plan(mark.plan), str(path))


def write_mark(into: Path, mark: Mark) -> None:
    publish(into / MARK, seal(mark))


def check_unused(into: Path) -> None:
    """Raises UsageError when the directory holds anything: nobody's log is overwritten."""
    with disk_errors(into):
        found = sorted(name for name in os.listdir(into) if name != MARK + PARTIAL)
    if found == ["lost+found"]:
        raise UsageError(f"{into} is the root of a file system (lost+found): no broker starts on that; recover into a directory below it")
    if found:
        raise UsageError(f"{into} is not empty (it holds {found[0]}); a recovery needs a directory of its own")


def check_same(into: Path, mark: Mark, plan: RecoveryPlan) -> None:
    """Raises ForeignOwner when the directory belongs to a recovery that was asked for in other words."""
    begun = mark.plan
    if begun.recovery_id == plan.recovery_id:
        return
    if (begun.request, begun.source_cluster_id) != (plan.request, plan.source_cluster_id):
        raise ForeignOwner(f"{into} holds another recovery, {begun.recovery_id}; a recovery needs a directory of its own")
