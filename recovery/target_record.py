"""One plan is applied to one directory: the record in the bucket of which one that is, and of what it holds back."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from headwater_core.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    NotFound,
    TransientError,
    Unauthorised,
    UnknownOutcome,
    UnsupportedFormat,
    UsageError,
)
from headwater_core.objectstore.store import ObjectStore
from headwater_core.threads import ContextThreads
from manifests import keys
from manifests.document import FORMAT, prepared, seal, unseal
from recovery.recovery_plan import HeldSetting, RecoveryPlan

_READERS = 16


@prepared
class TargetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a plan is, or was, applied. directory_id distinguishes the directory from every other; where it lies, host and directory,
    distinguishes it from its copies.

    verified_ms  when all of it was there and verified: no copy of it is continued from then on. None: not yet, or by an earlier version
    held         the settings that the recovered cluster begins without, should its disk be lost before they are put back
    put_back_ms  when that was done; None: it was not, or the bucket does not record it
    """

    format: tuple[int, int] = FORMAT
    recovery_id: str
    cluster_id: str
    node_id: int
    host: str
    directory: str
    directory_id: str
    started_ms: int
    held: tuple[HeldSetting, ...] = ()
    put_back_ms: int | None = None
    verified_ms: int | None = None


def record_target(
    store: ObjectStore, plan: RecoveryPlan, into: Path, directory_id: str, *, host: str, started_ms: int, moved_as: str | None = None
) -> TargetRecord:
    """Say in the bucket that `plan` is applied to `into`; return what it says, which is an earlier run's directory id and time when this
    host began there before and lost the mark, or ended before it wrote one.

    moved_as  what has `directory_id` was moved here, or copied, and gets this id: all other copies have the former one and are refused from
              then on. None: it was not moved

    Raises UsageError when the plan belongs to another directory, or this one was moved and nobody says so, Unauthorised when the bucket
    cannot be written, TransientError when the same call may succeed later.
    """
    mine = TargetRecord(
        recovery_id=plan.recovery_id,
        cluster_id=plan.cluster_id,
        node_id=plan.node_id,
        host=host,
        directory=str(into.resolve()),
        directory_id=directory_id,
        started_ms=started_ms,
        held=plan.held,
    )
    key = keys.recovery(plan.recovery_id)
    try:
        store.create(key, seal(mine))
        return mine
    except (AlreadyExists, UnknownOutcome) as error:
        held, tag = _held(store, key, error)
    except Unauthorised as error:
        raise Unauthorised(
            f"{error}. The bucket must say that this plan is applied here, or it could be applied twice: allow writing {key}, or, with a "
            "bucket that can only be read, run with --unrecorded and make sure of it yourself"
        ) from error
    if (held.host, held.directory) == (mine.host, mine.directory):
        return held
    if held.directory_id == directory_id and moved_as is not None:
        return _move(store, held, tag, replace(held, host=mine.host, directory=mine.directory, directory_id=moved_as))
    if held.directory_id == directory_id:
        raise UsageError(
            f"this recovery was begun in {held.directory} on {held.host}, and this is {mine.directory} on {mine.host}, or a copy: two that "
            "are finished would be the same cluster and node twice. If the directory was moved, or only the host's name has changed, as in "
            "another pod of a Kubernetes Job, add --moved; it continues here alone then"
        )
    raise UsageError(
        f"this plan was applied to {held.directory} on {held.host}: a second directory of one plan would be the same cluster and node "
        "twice; make a new plan to recover again"
    )


def _held(store: ObjectStore, key: str, cause: Exception) -> tuple[TargetRecord, str]:
    try:
        raw, tag = store.get(key)
    except NotFound:
        raise TransientError(f"{key}: {cause}") from cause
    return unseal(raw, TargetRecord, key), tag


def _move(store: ObjectStore, held: TargetRecord, tag: str, moved: TargetRecord) -> TargetRecord:
    """Of several copies that are moved at the same time one gets the record, and its new id keeps the others from it."""
    key = keys.recovery(held.recovery_id)
    if held.verified_ms is not None:
        raise UsageError(
            f"this recovery was verified in {held.directory} on {held.host}, where a broker may have started: no copy of it is continued. "
            f"Make a new plan to recover again; if that directory is lost before it was finished, delete {key} from the bucket"
        )
    try:
        store.replace(key, seal(moved), expected_tag=tag)
    except (Conflict, UnknownOutcome) as error:
        raise TransientError(f"{key} has changed meanwhile, run the same command again: {error}") from error
    return moved


def record_verified(store: ObjectStore, plan: RecoveryPlan, into: Path, directory_id: str, *, host: str, now_ms: int) -> None:
    """Say in the bucket that what was begun in `into` is verified, so that none of its copies is continued. May be repeated.

    Raises UsageError when another directory has taken it over since, and then nothing that a broker starts on may be made of this one;
    TransientError when the same call may succeed later.
    """
    key = keys.recovery(plan.recovery_id)
    try:
        raw, tag = store.get(key)
    except NotFound as error:
        raise TransientError(f"{key} is gone from the bucket meanwhile: run the same command again") from error
    held = unseal(raw, TargetRecord, key)
    if (held.host, held.directory, held.directory_id) != (host, str(into.resolve()), directory_id):
        raise UsageError(
            f"this recovery continues in {held.directory} on {held.host} since; nothing more is done here, and no broker starts on {into}"
        )
    if held.verified_ms is not None:
        return
    try:
        store.replace(key, seal(replace(held, verified_ms=now_ms)), expected_tag=tag)
    except (Conflict, UnknownOutcome) as error:
        raise TransientError(f"{key} has changed meanwhile, run the same command again: {error}") from error


def record_put_back(store: ObjectStore, recovery_id: str, now_ms: int) -> None:
    """Say in the bucket that what this recovery held back is put back. May be repeated; where the bucket has no record, nothing is said.

    Raises CorruptData, UnsupportedFormat, TransientError, and what the store raises.
    """
    key = keys.recovery(recovery_id)
    try:
        raw, tag = store.get(key)
        held = unseal(raw, TargetRecord, key)
        if held.put_back_ms is None:
            store.replace(key, seal(replace(held, put_back_ms=now_ms)), expected_tag=tag)
    except NotFound:
        return
    except Conflict as error:
        raise TransientError(f"{key}: {error}") from error


def read_records(store: ObjectStore) -> tuple[list[TargetRecord], Sequence[str]]:
    """All of them, in order of time, and what is wrong with those that cannot be read. Raises what the store raises."""

    def read(key: str) -> TargetRecord | str | None:
        try:
            return unseal(store.get(key)[0], TargetRecord, key)
        except NotFound:
            return None
        except (CorruptData, UnsupportedFormat) as error:
            return str(error)

    with ContextThreads(_READERS, "recover-records") as pool:
        found = list(pool.map(read, [info.key for info in store.list(keys.RECOVERIES)]))
    records = sorted((each for each in found if isinstance(each, TargetRecord)), key=lambda each: each.started_ms)
    return records, [each for each in found if isinstance(each, str)]
