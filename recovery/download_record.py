"""A topic is downloaded once: the record in the bucket that one was, written when all of it is in its log directory and never before."""

from typing import TypeVar

import msgspec

from headwater_core.errors import AlreadyExists, NotFound, TransientError, UnknownOutcome
from headwater_core.objectstore.store import ObjectStore
from manifests import keys
from manifests.document import FORMAT, prepared, seal, unseal
from recovery.target_record import TargetRecord

_T = TypeVar("_T", bound=msgspec.Struct)


@prepared
class DownloadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was downloaded. directory_id is that of the record of its target; host and directory are for people."""

    format: tuple[int, int] = FORMAT
    recovery_id: str
    topic: str
    manifest_key: str
    host: str
    directory: str
    directory_id: str
    finished_ms: int


def read_begun(store: ObjectStore, recovery_id: str) -> TargetRecord | None:
    """Where it is, or was, downloaded to; None where that was never begun. Raises CorruptData, UnsupportedFormat."""
    return _read(store, keys.recovery(recovery_id), TargetRecord)


def read_done(store: ObjectStore, recovery_id: str) -> DownloadRecord | None:
    """None where it was never finished. Raises CorruptData, UnsupportedFormat."""
    return _read(store, keys.download(recovery_id), DownloadRecord)


def record_done(store: ObjectStore, record: DownloadRecord) -> None:
    """Say in the bucket that it was downloaded. May be repeated; what another one has said stays."""
    try:
        store.create(keys.download(record.recovery_id), seal(record))
    except (AlreadyExists, UnknownOutcome) as error:
        if read_done(store, record.recovery_id) is None:
            raise TransientError(str(error)) from error


def _read(store: ObjectStore, key: str, kind: type[_T]) -> _T | None:
    try:
        return unseal(store.get(key)[0], kind, key)
    except NotFound:
        return None
