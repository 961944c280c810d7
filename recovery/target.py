"""The directory that a recovery writes, and the mark in it: a recovery is begun once, may be resumed, and is never done twice."""

import fcntl
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from headwater_core.errors import CorruptData, ForeignOwner, Locked, UsageError
from headwater_core.files import PARTIAL, disk_errors, partial_of, rename_synced
from headwater_core.objectstore.digest import digest_of, is_digest
from manifests.document import FORMAT, seal, unseal
from recovery.plan_document import read_plan, write_plan
from recovery.recovery_plan import ClusterPlan, Place, RecoveryPlan, check_plan
from recovery.target_files import publish

MARK = ".headwater-recovery.json"
LOCK = ".headwater-recovery.lock"
_PLAN = ".headwater-recovery-plan-{}.json.gz"
_SNAPSHOT = ".headwater-recovery-cluster-{}"
_BESIDE = re.compile("|".join(re.escape(each).replace(r"\{\}", "[0-9a-z.]+") for each in (_PLAN, _SNAPSHOT)))  # the mark: what it names
_SHOWN = 5
_BYTES_MAX = 1 << 30  # of a mark; those of earlier versions hold the plan
REASSIGNMENT = "reassignment.json"  # for Kafka's own tool, beside what went into a running cluster
PLACED = ".headwater-placed.json"  # of what goes into a running broker's directories: it is on its way there
_TRACES = (".lock", ".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "__cluster_metadata-0", PLACED)


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """The mark as it is written: small, because it is written again when the recovery is finished.

    plan_digest  of the plan's document, which lies compressed in a file beside it, named by the digest
    put_back_ms  when what the recovery held back was put back; None: it was not, or not of every topic
    put_back     topics of which it was, while there are others
    handed_over_ms  when a running cluster was given what the recovery has beside topics; None: not all of it
    plan         where earlier versions kept it
    """

    format: tuple[int, int] = FORMAT
    plan_digest: str = ""
    directory_id: str
    started_ms: int
    finished_ms: int | None = None
    put_back_ms: int | None = None
    put_back: tuple[str, ...] = ()
    handed_over_ms: int | None = None
    plan: RecoveryPlan | None = None

    def __post_init__(self) -> None:
        if min(self.started_ms, self.finished_ms or 0, self.put_back_ms or 0, self.handed_over_ms or 0) < 0:
            raise ValueError(f"started at {self.started_ms} ms, finished at {self.finished_ms}, put back at {self.put_back_ms}")


@dataclass(frozen=True, slots=True)
class Mark:
    """What is being done here. `plan` is carried out to its end, whatever has been archived since it was made."""

    plan: RecoveryPlan
    plan_digest: str  # "" while the plan is not in a file of its own
    directory_id: str
    started_ms: int
    finished_ms: int | None = None
    put_back_ms: int | None = None
    put_back: tuple[str, ...] = ()
    handed_over_ms: int | None = None


@contextmanager
def locked(into: Path) -> Iterator[None]:
    """Make the directory if need be, and lock it against other recoveries. A foreign directory is refused before a lock file is left in it.

    The lock is on a file: a file system over the network takes none on a directory. Raises UsageError when it is no directory or holds
    something else, Locked when another recovery runs there.
    """
    with disk_errors(into):
        try:
            into.mkdir(parents=True, exist_ok=True)
            try:
                check_unused(into)
            except UsageError:
                if not (into / MARK).exists():  # looked for last: another recovery may begin there meanwhile, and the lock says so
                    raise
            fd = os.open(into / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"{into} is not a directory") from error
    try:
        with disk_errors(into / LOCK):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Locked(f"another recovery into {into} is running") from error
        yield
    finally:
        os.close(fd)


@contextmanager
def locked_mark(into: Path) -> Iterator[Mark | None]:
    """What the mark says while nobody else changes it, under the same lock; None, and nothing is locked, where no recovery was begun."""
    if not (into / MARK).exists():
        yield None
        return
    with locked(into):
        yield read_mark(into)


def read_mark(into: Path) -> Mark | None:
    """None when no recovery was ever begun there. Raises CorruptData when mark or plan are damaged, UnsupportedFormat."""
    path = into / MARK
    with disk_errors(path):
        try:
            with path.open("rb") as file:
                raw = file.read(_BYTES_MAX + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
    if len(raw) > _BYTES_MAX:
        raise CorruptData(str(path), 0, f"more than {_BYTES_MAX} bytes")
    found = unseal(raw, _Document, str(path), lambda document: document.plan is None or check_plan(document.plan))
    plan = found.plan or _read_plan(into, found.plan_digest)
    digest = found.plan_digest if found.plan is None else ""
    times = found.started_ms, found.finished_ms, found.put_back_ms
    return Mark(plan, digest, found.directory_id, *times, found.put_back, found.handed_over_ms)


def write_mark(into: Path, mark: Mark) -> Mark:
    """The plan first, where it has no file yet; then the mark that names it; then what no mark names any more is deleted.

    Raises UsageError for a plan that is too large to be read back.
    """
    if not mark.plan_digest:
        mark = replace(mark, plan_digest=_write_plan(into, mark.plan))
    document = _Document(
        plan_digest=mark.plan_digest,
        directory_id=mark.directory_id,
        started_ms=mark.started_ms,
        finished_ms=mark.finished_ms,
        put_back_ms=mark.put_back_ms,
        put_back=mark.put_back,
        handed_over_ms=mark.handed_over_ms,
    )
    publish(into / MARK, seal(document))
    with disk_errors(into):
        named = [plan_name(mark.plan_digest), *([copy_name(mark.plan.cluster)] if mark.plan.cluster else [])]
        for name in os.listdir(into):
            if _is_beside(name) and name not in named:
                (into / name).unlink()
    return mark


def plan_name(digest: str) -> str:
    """The file in which a plan of this digest lies."""
    return _PLAN.format(digest.rpartition(":")[2])


def copy_name(cluster: ClusterPlan) -> str:
    """Of the copy of the snapshot."""
    return _SNAPSHOT.format(cluster.key.rpartition("-")[2])


def _is_beside(name: str) -> bool:
    """What belongs to a mark, or was to belong to one: a run may have ended before it, and while it was written."""
    return _BESIDE.fullmatch(name.removesuffix(PARTIAL)) is not None


def _write_plan(into: Path, plan: RecoveryPlan) -> str:
    partial = partial_of(into / plan_name("new"))
    with disk_errors(partial):
        try:
            with partial.open("wb") as file:
                with gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
                    digest = write_plan(plan, packed)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            partial.unlink(missing_ok=True)  # a full disk gets its room back at once
            raise
        rename_synced(partial, into / plan_name(digest))
    return digest


def _read_plan(into: Path, digest: str) -> RecoveryPlan:
    if not is_digest(digest):
        raise CorruptData(str(into / MARK), 0, f"no plan and no digest of one: {digest[:40]!r}")
    path = into / plan_name(digest)
    with disk_errors(path):
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise CorruptData(str(path), 0, "the mark names this plan, and it is gone") from error
        try:
            with file, gzip.open(file) as unpacked:
                if unpacked.peek(2)[:2] != b"{\n":
                    return _unsealed(unpacked.read(_BYTES_MAX), path, digest)
                plan, found = read_plan(cast(BinaryIO, unpacked), str(path))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorruptData(str(path), 0, str(error)[:200]) from error
    if found != digest:
        raise CorruptData(str(path), 0, f"its digest is {found}, the mark says {digest[:40]}")
    return plan


def _unsealed(raw: bytes, path: Path, digest: str) -> RecoveryPlan:
    """As earlier versions wrote it, without a digest of its own."""
    if digest_of(raw) != digest:
        raise CorruptData(str(path), 0, f"its digest is {digest_of(raw)}, the mark says {digest[:40]}")
    try:
        return check_plan(msgspec.json.decode(raw, type=RecoveryPlan))
    except msgspec.MsgspecError as error:
        raise CorruptData(str(path), 0, str(error)[:200]) from error


def check_unused(into: Path) -> None:
    """Raises UsageError when the directory holds anything: no log is overwritten."""
    with disk_errors(into):
        ours = (MARK + PARTIAL, LOCK)
        found = sorted(name for name in os.listdir(into) if name not in ours and not _is_beside(name))
    if found == ["lost+found"]:
        raise UsageError(f"{into} is the root of a file system (lost+found): no broker starts on that; recover into a directory below it")
    if found:
        raise UsageError(f"{into} is not empty (it holds {found[0]}); a recovery needs a directory of its own")


def check_same(into: Path, mark: Mark, plan: RecoveryPlan, *, exact: bool = False) -> None:
    """Raises ForeignOwner when the directory belongs to a recovery of another request, or, when it has to be `exact`, to another plan."""
    begun = mark.plan
    if begun.recovery_id == plan.recovery_id:
        return
    if exact or (begun.request, begun.source_cluster_id) != (plan.request, plan.source_cluster_id):
        found = list(_differences(begun, plan))
        shown = "; ".join((*found[:_SHOWN], *([f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])))
        raise ForeignOwner(f"{into} holds another recovery, {begun.recovery_id}; a recovery needs a directory of its own: {shown}")


def _differences(begun: RecoveryPlan, plan: RecoveryPlan) -> Iterator[str]:
    """In which the plan that was begun differs from `plan`, for people."""
    if begun.source_cluster_id != plan.source_cluster_id:
        yield f"it is of the archive of {begun.source_cluster_id}, this one of {plan.source_cluster_id}"
    if begun.request.topics != plan.request.topics:
        yield f"it was requested of {_topics_text(begun)}, this one of {_topics_text(plan)}"
    for name in begun.request.options.__struct_fields__:
        was, given = getattr(begun.request.options, name), getattr(plan.request.options, name)
        if was != given:
            yield f"{name} was {was!s:.100}, and is {given!s:.100}"
    before, now = _heads(begun), _heads(plan)
    for topic, partition in sorted(before.keys() | now.keys()):
        was, given = before.get((topic, partition)), now.get((topic, partition))
        if was != given:
            yield f"{topic}:{partition} is planned there {_head_text(was)}, here {_head_text(given)}"
    yield f"it was planned as {begun.recovery_id}, this one as {plan.recovery_id}"


def _topics_text(plan: RecoveryPlan) -> str:
    return "all topics" if plan.request.topics is None else ", ".join(plan.request.topics)[:200]


def _heads(plan: RecoveryPlan) -> dict[Place, tuple[int, str]]:
    places = ((topic.topic, each) for topic in plan.topics for each in topic.partitions)
    return {(topic, each.partition): (each.manifest_version, each.manifest_digest) for topic, each in places}


def _head_text(head: tuple[int, str] | None) -> str:
    return "not at all" if head is None else f"from version {head[0]}" if head[0] else "as an empty log"


def broker_started(into: Path, directories: Iterable[str] = ("",)) -> bool:
    """Has a broker ever started there? directories: of several brokers, below it"""
    return any((into / directory / name).exists() for directory in directories for name in _TRACES)


def awaits_broker(into: Path) -> bool:
    """It is a recovered directory in which no broker has begun its first leader epoch: nothing new is in it."""
    return ((into / MARK).exists() or (into.parent / MARK).exists()) and not broker_started(into)
