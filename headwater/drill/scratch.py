"""Where a drill restores to: a directory of its own, that goes when the drill ends, or when the next one begins."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import structlog

from headwater_core import milestones
from headwater_core.errors import DiskFull, HeadwaterError, Locked, UsageError
from headwater_core.files import disk_errors, partial_of, replace_file, sync_path
from headwater_core.segments import checkpoints
from manifests.document import FORMAT, prepared, seal, unseal

LOCK = "drill.lock"
MARK = "scratch.json"  # in a scratch directory, from before anything else is there until nothing else is: a drill has made it
KEPT = "kept"  # in a scratch directory: by whose word it stays
RESERVE_BYTES = 64 << 20  # of room that is left to others, and for what a broker writes
_LOG, _WORK = "log", "work"
_NAME = re.compile(r"scratch-([0-9]{8}T[0-9]{6}\.[0-9]{3}Z-[0-9a-f]{8})")  # the id of an operation, as it is minted

log = structlog.get_logger()


@prepared
class ScratchMark(msgspec.Struct, frozen=True, kw_only=True):
    """Whose the directory is: what lacks this, or says another id than its name does, is not a drill's to remove."""

    format: tuple[int, int] = FORMAT
    drill_id: str


class Scratch:
    """One drill's. `log_dir` is what is restored into, `work_dir` for what else it needs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log_dir, self.work_dir = directory / _LOG, directory / _WORK
        self._is_kept = False

    @property
    def is_kept(self) -> bool:
        return self._is_kept

    def check_room(self, size_bytes: int) -> None:
        """Raises DiskFull when there is no room for so much, and a reserve."""
        with disk_errors(self.directory):
            free = shutil.disk_usage(self.directory).free
        if free < size_bytes + RESERVE_BYTES:
            raise DiskFull(
                f"{self.directory} needs {size_bytes + RESERVE_BYTES} bytes and has {free}; "
                "nothing was restored: make room, or drill a smaller sample (--sample, drill.scratch_bytes)"
            )

    def keep(self, why: str) -> None:
        """It stays when the drill has ended: until the next one begins, or, on request, until somebody deletes it."""
        with disk_errors(self.directory):
            (self.directory / KEPT).write_text(why)
        self._is_kept = True


@contextmanager
def open_scratch(base: Path, drill_id: str, foreign: Sequence[Path] = ()) -> Iterator[Scratch]:
    """A new scratch directory in `base`, removed at the end of the block unless it is kept. What killed drills have left there goes first.

    foreign  directories in which nothing of ours may be, such as a broker's logs

    Raises UsageError for a base that is in one of them, or holds one, or that is a log directory itself; Locked while another drill
    uses it.
    """
    check_base(base, foreign)
    with disk_errors(base):
        base.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(base / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with disk_errors(base / LOCK):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Locked(f"another drill uses {base}") from error
        sweep(base)
        scratch = Scratch(base / f"scratch-{drill_id}")
        with disk_errors(scratch.directory):
            scratch.directory.mkdir(mode=0o700)  # records are in it
        try:
            replace_file(scratch.directory / MARK, seal(ScratchMark(drill_id=drill_id)))
            with disk_errors(scratch.directory):
                scratch.work_dir.mkdir()
                sync_path(base)
            milestones.reached("drill.scratch")
            yield scratch
        finally:
            if not scratch.is_kept:
                _remove(scratch.directory)
    finally:
        os.close(descriptor)


def sweep(base: Path) -> None:
    """Remove what drills have left that were killed, and what failed ones have kept, and nothing else: the directory may hold other
    people's under any name. The caller holds the lock."""
    with disk_errors(base):
        found = sorted(path for path in base.iterdir() if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink())
    for path in found:
        if _kept_by_request(path):
            continue
        why = _why_foreign(path)
        if why:
            log.warning("drill_scratch_not_removed", path=str(path), reason=why)
            continue
        _remove(path)
        log.info("drill_scratch_removed", path=str(path))


def check_base(base: Path, foreign: Sequence[Path]) -> None:
    """Raises UsageError where a scratch directory must not be."""
    resolved = base.resolve()
    for each in foreign:
        if resolved.is_relative_to(each.resolve()):
            raise UsageError(f"a drill's directory may not be in {each}: {base}")
        if each.resolve().is_relative_to(resolved):
            raise UsageError(f"a drill's directory may not hold {each}: {base}")
    for parent in (resolved, *resolved.parents):
        if (parent / checkpoints.META_PROPERTIES).exists():
            raise UsageError(f"a drill's directory may not be in a broker's log directory: {parent} is one")


def _why_foreign(path: Path) -> str:
    """Why it may be somebody else's; "" when a drill has made it, and all that is in it."""
    mark = path / MARK
    try:
        names = set(os.listdir(path))
        if names <= {MARK, partial_of(mark).name}:
            return ""  # it was killed before it wrote anything else, or when all else was removed
        if others := names - {MARK, KEPT, _LOG, _WORK}:
            return f"no drill makes a {min(others)} in it"
        found = unseal(mark.read_bytes(), ScratchMark, str(mark))
    except (OSError, HeadwaterError) as error:
        return f"nothing says that a drill has made it: {error}"
    return "" if path.name == f"scratch-{found.drill_id}" else f"{MARK} is of another drill, {found.drill_id}"


def _kept_by_request(path: Path) -> bool:
    try:
        return (path / KEPT).read_text() == "request"
    except OSError:
        return False


def _remove(path: Path) -> None:
    """What cannot be removed now is left for the next drill, which knows it by its mark: that goes last."""
    with suppress(OSError):
        for each in sorted(path.iterdir()):
            if each.name != MARK and each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, onerror=_complain)
            elif each.name != MARK:
                each.unlink()
    if set(_names(path)) <= {MARK}:
        shutil.rmtree(path, onerror=_complain)
    with suppress(OSError):
        sync_path(path.parent)


def _names(path: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(path)
    return []


def _complain(_: object, path: str, error: tuple[object, BaseException, object]) -> None:
    log.warning("drill_scratch_not_removed", path=path, reason=str(error[1]))
