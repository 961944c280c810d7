"""One plan is applied to one directory: the record in the bucket of which one that is."""

from pathlib import Path

import msgspec

from headwater_core.errors import AlreadyExists, NotFound, TransientError, Unauthorised, UnknownOutcome, UsageError
from headwater_core.objectstore.store import ObjectStore
from manifests import keys
from manifests.document import FORMAT, prepared, seal, unseal
from recovery.recovery_plan import RecoveryPlan


@prepared
class TargetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a plan is, or was, applied. directory_id distinguishes the directory from every other; the rest is for people."""

    format: tuple[int, int] = FORMAT
    recovery_id: str
    cluster_id: str
    node_id: int
    host: str
    directory: str
    directory_id: str
    started_ms: int


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
