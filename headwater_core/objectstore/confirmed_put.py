"""An upload that counts only once the store has confirmed what it holds."""

from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

from headwater_core.errors import AlreadyExists, HeadwaterError, NotFound, SourceChanged, UnknownOutcome
from headwater_core.objectstore.digest import digest_in_store
from headwater_core.objectstore.store import GrowingObject, NewObject, ObjectStore


def put_confirmed(store: ObjectStore, key: str, data: BinaryIO, size_bytes: int, digest: str) -> None:
    """`put_all_confirmed` for one object."""
    put_all_confirmed(store, [NewObject(key, data, size_bytes)], [digest])


def put_all_confirmed(store: ObjectStore, objects: Sequence[NewObject], digests: Sequence[str]) -> None:
    """Create `objects`, whose bytes have these digests.

    A time-out and a taken key are both read back: a retried request may have refused its own success. What is not there then, while
    others are, is sent again.

    Raises SourceChanged when other bytes were sent or are there, UnknownOutcome when the objects may yet appear, and what the store raises.
    """
    positions = [each.data.tell() for each in objects]
    try:
        sent = store.put_all(objects)
    except (AlreadyExists, UnknownOutcome) as error:
        missing = [at for at, each in enumerate(objects) if not _confirm(store, each.key, each.size_bytes, digests[at], error)]
        if len(missing) == len(objects):
            raise UnknownOutcome(f"{objects[0].key} may yet appear: {error}") from error
        for at in missing:
            objects[at].data.seek(positions[at])
        if missing:
            put_all_confirmed(store, [objects[at] for at in missing], [digests[at] for at in missing])
        return
    for each, digest, found in zip(objects, digests, sent, strict=True):
        if found != digest:
            raise SourceChanged(f"{each.key}: {digest} was scanned, {found} was sent")


def complete_confirmed(
    growing: GrowingObject, store: ObjectStore, rest: bytes | bytearray | memoryview, size_bytes: int, digest: str
) -> None:
    """Complete an object that grew, whose whole content has this length and digest; `rest` is what was not sent of it.

    A time-out, a taken key and an upload that is gone are read back: a retried request may have refused its own success. May be repeated.

    Raises SourceChanged when other bytes are there, UnknownOutcome when the object may yet appear: call it again; NotFound when it is
    not there and what was sent of it is gone: it will not appear; and what the store raises.
    """
    try:
        found = growing.complete(rest)
    except (AlreadyExists, UnknownOutcome, NotFound) as error:
        if _confirm(store, growing.key, size_bytes, digest, error):
            with suppress(HeadwaterError):
                growing.abort()  # nothing of it is kept open
            return
        if isinstance(error, AlreadyExists):
            raise UnknownOutcome(f"{growing.key} was there, and is not") from error
        raise
    if found != digest:
        raise SourceChanged(f"{growing.key}: {digest} was meant, {found} was sent")


def _confirm(store: ObjectStore, key: str, size_bytes: int, digest: str, why: Exception) -> bool:
    """Does `key` hold exactly these bytes, no matter whose request put them there? False when it is not there."""
    try:
        info = store.stat(key)
        found = info.digest
        if info.size_bytes == size_bytes and (found is None or not found.startswith("crc64nvme:")):
            found = digest_in_store(store, key, size_bytes)  # it keeps no digest of ours: read everything back
    except NotFound:
        return False
    if info.size_bytes != size_bytes or found != digest:
        raise SourceChanged(f"{key} holds {info.size_bytes} bytes, {found}; {size_bytes} bytes, {digest} were meant") from why
    return True
