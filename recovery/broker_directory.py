"""A log directory of a stopped broker: whose it is, that no broker starts on it meanwhile, and its checkpoints."""

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headwater_core.errors import Locked, Unauthorised, UsageError
from headwater_core.files import disk_errors
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints
from recovery.target_files import publish, read_if_there

_LOCK = ".lock"


@contextmanager
def broker_lock(log_dir: Path) -> Iterator[None]:
    """Hold the lock that a broker holds while it runs: Java's is a POSIX lock on the same file, which a broker that stops deletes.

    log_dir  has an identity (`identity_of`)

    Raises Locked where a broker runs, Unauthorised where the files would get another owner than the broker's.
    """
    path, owner = log_dir / _LOCK, _owner(log_dir)
    if os.geteuid() not in (0, owner.st_uid):
        raise Unauthorised(
            f"{log_dir} is user {owner.st_uid}'s, and the broker reads and writes it as that: run this as user {owner.st_uid}, or as root"
        )
    with disk_errors(path):
        is_ours = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with disk_errors(path):
            give_to_owner(path, log_dir)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                raise Locked(f"a broker runs on {log_dir}: stop it, and run the same command again") from error
        try:
            yield
        finally:
            if is_ours:
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _owner(log_dir: Path) -> os.stat_result:
    with disk_errors(log_dir):
        return os.stat(log_dir / checkpoints.META_PROPERTIES)


def identity_of(log_dir: Path) -> checkpoints.MetaProperties:
    """Raises UsageError for what is no formatted log directory, CorruptData, UnsupportedFormat."""
    path = log_dir / checkpoints.META_PROPERTIES
    raw = read_if_there(path)
    if raw is None:
        raise UsageError(f"{log_dir} is no log directory of a broker: it has no {checkpoints.META_PROPERTIES}")
    return checkpoints.decode_meta_properties(raw, where=str(path))


def give_to_owner(path: Path, log_dir: Path) -> None:
    """`path`, and all in it, belongs to whom the log directory belongs to. Raises OSError."""
    wanted = _owner(log_dir)
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        found = each.stat()
        if (found.st_uid, found.st_gid) != (wanted.st_uid, wanted.st_gid):
            os.chown(each, wanted.st_uid, wanted.st_gid)


OffsetLines = Mapping[TopicPartition, int]


def changed_lines(held: OffsetLines, wanted: OffsetLines, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """An offset checkpoint in which `places` have what is `wanted`, or nothing, and all others what they had."""
    return {place: offset for place, offset in held.items() if place not in places} | {
        place: offset for place, offset in wanted.items() if place in places
    }


def change_checkpoints(log_dir: Path, wanted: Mapping[str, OffsetLines], places: Collection[TopicPartition]) -> None:
    """Let the directory's checkpoints say of `places` what is `wanted`, by the files' names, and nothing where that says nothing.

    Raises CorruptData, UnsupportedFormat for a checkpoint that cannot be read, and what `disk_errors` makes of errors.
    """
    for name in (checkpoints.LOG_STARTS, checkpoints.CLEANED, checkpoints.HIGH_WATERMARKS, checkpoints.RECOVERY_POINTS):
        path = log_dir / name
        raw = read_if_there(path)
        held = {} if raw is None else checkpoints.decode_offsets(raw, where=str(path))
        lines = changed_lines(held, wanted.get(name, {}), places)
        if lines != held:
            publish(path, checkpoints.encode_offsets(lines))
            with disk_errors(path):
                give_to_owner(path, log_dir)
