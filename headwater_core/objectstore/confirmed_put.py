"""An upload that counts only once the store has confirmed what it holds."""

from typing import BinaryIO

from headwater_core.errors import AlreadyExists, NotFound, SourceChanged, UnknownOutcome
from headwater_core.objectstore.digest import digest_in_store
from headwater_core.objectstore.store import ObjectStore


def put_confirmed(store: ObjectStore, key: str, data: BinaryIO, size_bytes: int, digest: str) -> None:
    """Create `key` from `size_bytes` bytes of `data`, which have this digest.

    A time-out and a taken key are both read back: a retried request may have refused its own success.

    Raises SourceChanged when other bytes were sent or are there, UnknownOutcome when the object may yet appear, and what the store raises.
    """
    try:
        sent = store.put(key, data, size_bytes=size_bytes)
    except (AlreadyExists, UnknownOutcome) as error:
        _confirm(store, key, size_bytes, digest, error)
        return
    if sent != digest:
        raise SourceChanged(f"{key}: {digest} was scanned, {sent} was sent")


def _confirm(store: ObjectStore, key: str, size_bytes: int, digest: str, why: AlreadyExists | UnknownOutcome) -> None:
    """Return when `key` holds exactly these bytes, no matter whose request put them there."""
    try:
        info = store.stat(key)
        found = info.digest
        if info.size_bytes == size_bytes and (found is None or not found.startswith("crc64nvme:")):
            found = digest_in_store(store, key, size_bytes)  # it keeps no digest of ours: read everything back
    except NotFound as missing:
        raise UnknownOutcome(f"{key} may yet appear: {why}") from missing
    if info.size_bytes != size_bytes or found != digest:
        raise SourceChanged(f"{key} holds {info.size_bytes} bytes, {found}; {size_bytes} bytes, {digest} were meant") from why
