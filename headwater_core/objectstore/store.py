"""What an object store must do for Headwater. The promises are tests/headwater_core/objectstore/contract.py, run over every one."""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import BinaryIO, NamedTuple, Protocol, runtime_checkable

from headwater_core.errors import UsageError

DOCUMENT_BYTES_MAX = 64 << 20  # no document of ours comes near it; a larger one is refused before it is read


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of one object.

    tag     changes whenever the object's content does; opaque, for `replace` only, never an integrity check; "" in a listing
            of a store that would have to read the object to know
    digest  "crc64nvme:<16 hex>" of the whole object when the store says one, else None; listings need not say it
    """

    key: str
    size_bytes: int
    tag: str
    digest: str | None = None
    modified_ms: int = 0

    def __post_init__(self) -> None:
        """Any key may be listed: others write to the bucket too."""
        if not self.key or self.size_bytes < 0:
            raise ValueError(f"object {self.key!r} of {self.size_bytes} bytes")


Pace = Callable[[int], object]


def at_once(size_bytes: int) -> None:
    """A pace that never waits."""


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """An upload that was begun and neither finished nor given up; the store keeps its bytes until it is aborted.

    key        of the object that it was to become; "" where the store does not know
    upload_id  the store's own name for it
    begun_ms   by the store's clock
    """

    key: str
    upload_id: str
    begun_ms: int


NO_METADATA: Mapping[str, str] = MappingProxyType({})
METADATA_BYTES_MAX = 2 << 10  # S3 takes no more of all names and values together
_METADATA_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_METADATA_VALUE = re.compile(r"[ -~]*")


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """How an object is stored.

    metadata  user metadata, for people who inspect the store: names [a-z0-9-], values in printable ASCII
    parts     how long each part must be when it is sent in parts; one part is one request; () leaves that to the store
    """

    metadata: Mapping[str, str] = field(default_factory=lambda: NO_METADATA)
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError for metadata that not every store takes."""
        named = all(_METADATA_NAME.fullmatch(name) and _METADATA_VALUE.fullmatch(value) for name, value in self.metadata.items())
        if not named or sum(len(name) + len(value) for name, value in self.metadata.items()) > METADATA_BYTES_MAX:
            raise UsageError(f"no user metadata: {str(dict(self.metadata))[:200]}")


PLAIN = ObjectForm()


class NewObject(NamedTuple):
    """What is to be created under `key`: `size_bytes` bytes of `data`, from its position on."""

    key: str
    data: BinaryIO
    size_bytes: int
    form: ObjectForm = PLAIN


@runtime_checkable
class PartSource(Protocol):
    """A source of `put` whose parts may be read at the same time, none of them held in memory."""

    def part_pieces(self, start: int) -> Iterator[memoryview]:
        """The bytes from byte `start` on, where a part begins, to the end of that part or further. Each piece is short, and valid until
        the next."""
        ...

    @property
    def pace(self) -> Callable[[int], object]:
        """As PacedFile.pace."""
        ...


class ObjectRange(NamedTuple):
    """`size_bytes` of the object `key`, from position `start` on."""

    key: str
    start: int
    size_bytes: int


class GrowingObject(Protocol):
    """An object that is written in parts over a long time; nobody sees any of it before `complete`. For many threads.

    Every method may raise TransientError, or UnknownOutcome when there was no answer: call it again, with the same bytes. NotFound means
    that what was sent is gone, as after an `abort` by somebody else, or after a disk failed to write it: begin again, under a new key.
    """

    @property
    def key(self) -> str: ...

    def send(self, number: int, content: bytes | bytearray | memoryview, *, start: int) -> int:
        """Part `number`, from 1 on, which begins at byte `start` of the object. Parts may go in any order and at the same time, and
        be sent again. All have at least the store's part_bytes_min bytes. Returns the CRC-64/NVME of it, when the store has it.
        """
        ...

    def complete(self, rest: bytes | bytearray | memoryview) -> str:
        """Create the object from all parts that were sent, which must abut, and from `rest`, of any length; return its digest.

        Without any part this is one request. Raises AlreadyExists when the key is taken, maybe by this very object:
        `complete_confirmed` reads back.
        """
        ...

    def abort(self) -> None:
        """Drop what was sent, unless it has become the object. Nothing else may follow; may be repeated."""
        ...


class ObjectStore(Protocol):
    """Holds the archive's objects under keys. Safe to use from many threads.

    Every method may raise TransientError (retry later), Unauthorised, or UnknownOutcome when a write got no answer.
    Absence is NotFound, and only on the store's own definite answer.
    """

    @property
    def url(self) -> str:
        """For people, without credentials."""
        ...

    @property
    def part_bytes_min(self) -> int:
        """Least size of every part but the last, where an object is sent in parts of the caller's choice."""
        ...

    @property
    def keeps_metadata(self) -> bool:
        """Is user metadata as safe as the object's bytes, in copies of the store too? Else it is for people alone."""
        ...

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        """Create `key` from exactly `size_bytes` bytes read from `data`'s position on; return the digest of what was sent
        ("crc64nvme:<16 hex>"), which the store has confirmed where it can.

        Large objects go in parts; memory stays bounded by a few parts. Raises AlreadyExists when the key is taken,
        SourceChanged when `data` ends early, and what the pace of a PacedFile raises; then nothing was created.
        """
        ...

    def put_all(self, objects: Sequence[NewObject]) -> list[str]:
        """As `put` for each of them, in this order, where what makes them durable may be done for all at once.

        Raises what `put` raises; then any of them may have been created.
        """
        ...

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        """An object to be written over a long time. Asks for nothing yet. While it is neither complete nor aborted, `unfinished` of
        this very store, as opened in this process, does not list it.

        metadata  user metadata of the object, as ObjectForm's
        """
        ...

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        """Create `key` from ranges of other objects, one after the other: copied by the store where it can, else read and sent.

        digest  what all of them have together
        form    its parts are of no meaning
        pace    is called before what is read is sent, with its length, and with 0 before the store copies; what it raises, a
                HeadwaterError, ends the join, and nothing was created

        Raises AlreadyExists; NotFound and TruncatedData for a range that is not there, CorruptData where they have another digest; then
        nothing was created, as far as the store compares: the caller does, too.
        """
        ...

    def create(self, key: str, document: bytes) -> str:
        """Create a small document; return its tag. Raises AlreadyExists."""
        ...

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        """Compare-and-swap a small document; return the new tag. Raises Conflict when the tag differs or the key is gone."""
        ...

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        """A whole small object and its tag. Raises NotFound, and CorruptData when it is larger than `max_bytes`."""
        ...

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        """Fill `buffer` with the object's bytes from position `start`: one ranged GET. Returns the object's user metadata, as far as it
        is known; it may be read only when it is looked at.

        Raises NotFound, and TruncatedData when the object ends before the buffer is full.
        """
        ...

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        """Fill `buffers` one after the other from position `start` on: one ranged GET for all. Yields as each is full; a caller
        that wants no more closes the iterator. Raises what read_into does.
        """
        ...

    def stat(self, key: str) -> ObjectInfo:
        """What the store says of `key`. Raises NotFound."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, those of one folder in key order. A listing is a hint: it may miss what is
        being written.

        start_after  continue after this key of an earlier listing of the same prefix, or after where it would stand
        """
        ...

    def delete(self, key: str) -> None:
        """Remove `key`; silent when it is not there."""
        ...

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Uploads of keys that begin with `prefix`, and those whose key is not known, unless their process is known to live."""
        ...

    def abort(self, upload: UnfinishedUpload) -> None:
        """Drop what has arrived of an upload; silent when it is not there any more, or has become an object."""
        ...


def put_each(store: ObjectStore, objects: Iterable[NewObject]) -> list[str]:
    """`put_all` of a store that gains nothing by more."""
    return [store.put(key, data, size_bytes=size_bytes, form=form) for key, data, size_bytes, form in objects]


_KEY = re.compile(r"(?:(?!\.\.?(?:/|\Z))[A-Za-z0-9._=-]+(?:/(?=[^/])|\Z))+")  # each entry of a head has two
_KEY_CHARS_MAX = 1000  # S3 takes 1,024 bytes; a prefix of ours goes in front


def check_key(key: str) -> str:
    """`key`, when every store can hold it safely; UsageError otherwise. Components are [A-Za-z0-9._=-]+, none "." or ".."."""
    if len(key) <= _KEY_CHARS_MAX and _KEY.fullmatch(key):
        return key
    raise UsageError(f"not an object key: {key[:200]!r}")


def check_prefix(prefix: str) -> str:
    """`prefix`, when it can begin a key: whole components as in `check_key`, then any beginning of one, or nothing."""
    *parts, last = prefix.split("/")
    if last in ("", ".", ".."):
        last = "x"
    check_key("/".join((*parts, last)))
    return prefix


@runtime_checkable
class HoldsConnections(Protocol):
    """A store that keeps connections open between calls."""

    def close(self) -> None:
        """End them. No call follows."""
        ...
