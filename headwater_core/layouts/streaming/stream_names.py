"""The names of a streaming object, of those beside it, and of what stands in their user metadata."""

import base64
import binascii
import re
from uuid import UUID

from headwater_core.errors import CorruptData, UsageError

VERSION_NAME = "headwater-streaming-version"
FENCE_NAME = "headwater-fence"
SEGMENT_NAME = "headwater-segment"
_FENCE = re.compile(r"[0-9]{1,10}")


def index_key(key: str) -> str:
    """Of the index of the data object `key`; readers start from it."""
    return f"{key}-index"


def meta_key(key: str) -> str:
    """Of what is said of the segment where the index object's user metadata has no room for it."""
    return f"{key}-meta"


def uuid_of(key: str) -> UUID:
    """Of a data object: the last component of its key. Raises UsageError for another kind of key."""
    name = key.rpartition("/")[2]
    try:
        found = UUID(name)
    except ValueError:
        found = None
    if found is None or str(found) != name:
        raise UsageError(f"{key[:200]!r} does not end in a uuid, as the key of a streaming object does")
    return found


def fence_of(key: str) -> int | None:
    """The component before the last, where that is a fence."""
    name = key.rpartition("/")[0].rpartition("/")[2]
    return int(name) if _FENCE.fullmatch(name) else None


def encode_segment_name(metadata: bytes) -> str:
    return base64.b64encode(metadata).decode()


def decode_segment_name(value: str, where: str) -> bytes:
    """Raises CorruptData."""
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptData(where, 0, f"{SEGMENT_NAME} is not base64: {value[:40]!r}") from error


def driver_metadata(url: str) -> dict[str, str]:
    """What is said of the store at `url` in the index object, for people: bucket and prefix; nothing of a store that is no bucket, whose
    path would be one machine's."""
    if not url.startswith("s3://"):
        return {}
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return {"bucket": bucket, "prefix": prefix} if prefix else {"bucket": bucket}
