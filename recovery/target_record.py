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
    """Where a plan is, or was, applied. directory_id distinguishes the directory from every other; host and directory are for people.

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


def record_target(store: ObjectStore, plan: RecoveryPlan, into: Path, directory_id: str, *, host: str, started_ms: int) -> str:
    """Say in the bucket that `plan` is applied to `into`; return the directory id that it is applied under, which is an earlier
    one's when this host began there before and lost the mark.

    Raises UsageError when the plan belongs to another directory, Unauthorised when the bucket cannot be written.
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
        return directory_id
    except (AlreadyExists, UnknownOutcome) as error:
        held = _held(store, key, error)
    except Unauthorised as error:
        raise Unauthorised(
            f"{error}. The bucket must say that this plan is applied here, or it could be applied twice: allow writing {key}, or, with a "
            "bucket that can only be read, run with --unrecorded and make sure of it yourself"
        ) from error
    if held.directory_id == directory_id or (held.host, held.directory) == (mine.host, mine.directory):
        return held.directory_id
    raise UsageError(
        f"this plan was applied to {held.directory} on {held.host}: a second directory of one plan would be the same cluster and node "
        "twice; make a new plan to recover again"
    )


def _held(store: ObjectStore, key: str, cause: Exception) -> TargetRecord:
    try:
        return unseal(store.get(key)[0], TargetRecord, key)
    except NotFound:
        raise TransientError(f"{key}: {cause}") from cause


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
