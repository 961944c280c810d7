"""A store on a bad network, for the simulation. What it loses, delays or shows late is decided by a seeded random source.

Everything it does a real store and a retrying client do too: `inner` stays strongly consistent, its promises hold, and only
the caller's knowledge suffers.
"""

import contextlib
import io
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, BinaryIO, TypeVar

from headwater_core.errors import HeadwaterError, SourceChanged, TransientError, UnknownOutcome
from headwater_core.objectstore.store import (
    DOCUMENT_BYTES_MAX,
    NO_METADATA,
    PLAIN,
    GrowingObject,
    NewObject,
    ObjectForm,
    ObjectInfo,
    ObjectRange,
    ObjectStore,
    Pace,
    UnfinishedUpload,
    at_once,
    check_prefix,
    put_each,
)

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How likely each is, per call; all 0 by default. The sum must not exceed 1.

    refused       a definite "slow down": not done
    lost_request  a write that never arrives, answered by a time-out; a read that times out
    lost_reply    a write that is done, answered by a time-out
    delayed       a write that is done later, in any order with other delayed ones, answered by a time-out
    echoed        a write whose reply is lost, and that the client library sends again: it refuses its own success
    stale_list    a listing that shows, of what changed since the last one here, any part
    """

    refused: float = 0.0
    lost_request: float = 0.0
    lost_reply: float = 0.0
    delayed: float = 0.0
    echoed: float = 0.0
    stale_list: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.refused + self.lost_request + self.lost_reply + self.delayed + self.echoed <= 1:
            raise ValueError(f"probabilities exceed 1: {self}")


NO_FAULTS = Faults()
BAD_NETWORK = Faults(refused=0.02, lost_request=0.03, lost_reply=0.05, delayed=0.04, echoed=0.03, stale_list=0.3)


class FaultyStore:
    """`inner` through a network with `faults`, which may be set again at any time. One wrapper is one client's view."""

    def __init__(self, inner: ObjectStore, random: Random, faults: Faults = BAD_NETWORK) -> None:
        self.inner = inner
        self.faults = faults
        self._random = random
        self._in_flight: list[Callable[[], object]] = []
        self._listed: dict[str, ObjectInfo] = {}

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def part_bytes_min(self) -> int:
        return self.inner.part_bytes_min

    @property
    def keeps_metadata(self) -> bool:
        return self.inner.keeps_metadata

    @property
    def in_flight(self) -> int:
        """Writes that were sent and have not arrived yet. They outlive their sender."""
        return len(self._in_flight)

    def land(self, count: int | None = None) -> None:
        """Let `count` of the writes in flight arrive, in any order; all of them by default."""
        for _ in range(len(self._in_flight) if count is None else min(count, len(self._in_flight))):
            write = self._in_flight.pop(self._random.randrange(len(self._in_flight)))
            _unheard(write)

    def lose(self) -> None:
        """None of the writes in flight will ever arrive."""
        self._in_flight.clear()

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        content = b""
        while len(content) < size_bytes and (piece := data.read(size_bytes - len(content))):
            content += piece
        if len(content) != size_bytes:
            raise SourceChanged(f"{key}: {size_bytes} bytes promised, {len(content)} there")
        return self._write("put", key, lambda: self.inner.put(key, io.BytesIO(content), size_bytes=size_bytes, form=form))

    def put_all(self, objects: Sequence[NewObject]) -> list[str]:
        return put_each(self, objects)

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        return _FaultyGrowth(self._write, self.inner.grow(key, metadata=metadata))

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        self._write("join", key, lambda: self.inner.join(key, ranges, digest=digest, form=form, pace=pace))

    def create(self, key: str, document: bytes) -> str:
        return self._write("create", key, lambda: self.inner.create(key, document))

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        return self._write("replace", key, lambda: self.inner.replace(key, document, expected_tag=expected_tag))

    def delete(self, key: str) -> None:
        self._write("delete", key, lambda: self.inner.delete(key))

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        self._read("get", key)
        return self.inner.get(key, max_bytes=max_bytes)

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        self._read("read_into", key)
        return self.inner.read_into(key, buffer, start=start)

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        self._read("read_into", key)
        yield from self.inner.stream_into(key, buffers, start=start)

    def stat(self, key: str) -> ObjectInfo:
        self._read("stat", key)
        return self.inner.stat(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        self._read("list", prefix)
        now = {info.key: info for info in self.inner.list("")}
        shown = dict(now)
        if self._random.random() < self.faults.stale_list:
            for key in sorted(now.keys() ^ self._listed.keys()):
                if self._random.random() < 0.5:
                    if key in now:
                        del shown[key]  # made since, not shown yet
                    else:
                        shown[key] = self._listed[key]  # deleted since, still shown
        self._listed = now
        return iter([shown[key] for key in sorted(shown) if key.startswith(prefix) and key > start_after])

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        self._read("unfinished", prefix)
        return self.inner.unfinished(prefix)

    def abort(self, upload: UnfinishedUpload) -> None:
        self._write("abort", upload.key, lambda: self.inner.abort(upload))

    def _write(self, operation: str, key: str, write: Callable[[], _Answer]) -> _Answer:
        self._let_some_land()
        match self._fault():
            case "refused":
                raise TransientError(f"{operation} {key}: slow down")
            case "lost_request":
                raise UnknownOutcome(f"{operation} {key}: no answer (the request was lost)")
            case "lost_reply":
                _unheard(write)
                raise UnknownOutcome(f"{operation} {key}: no answer (the reply was lost)")
            case "delayed":
                self._in_flight.append(write)
                raise UnknownOutcome(f"{operation} {key}: no answer (the request is in flight)")
            case "echoed":
                write()
        return write()

    def _read(self, operation: str, key: str) -> None:
        self._let_some_land()
        if self._fault() in ("refused", "lost_request", "lost_reply"):
            raise TransientError(f"{operation} {key}: timed out")

    def _let_some_land(self) -> None:
        if self._in_flight and self._random.random() < 0.25:
            self.land(1)

    def _fault(self) -> str:
        """One of the faults by its likelihood, "" mostly. Takes one random number whatever the outcome."""
        drawn = self._random.random()
        for name in ("refused", "lost_request", "lost_reply", "delayed", "echoed"):
            drawn -= float(getattr(self.faults, name))
            if drawn < 0:
                return name
        return ""


class _FaultyGrowth:
    """A growing object through the same network. Its writes may arrive late, too, and are of no use then where it has ended."""

    def __init__(self, write: Callable[[str, str, Callable[[], Any]], Any], inner: GrowingObject) -> None:
        self._write, self._inner = write, inner

    @property
    def key(self) -> str:
        return self._inner.key

    def send(self, number: int, content: bytes | bytearray | memoryview, *, start: int) -> int:
        sent = bytes(content)
        return int(self._write("send", self.key, lambda: self._inner.send(number, sent, start=start)))

    def complete(self, rest: bytes | bytearray | memoryview) -> str:
        sent = bytes(rest)
        return str(self._write("complete", self.key, lambda: self._inner.complete(sent)))

    def abort(self) -> None:
        self._write("abort", self.key, self._inner.abort)


def _unheard(write: Callable[[], object]) -> None:
    """Do it; whatever it answers, the answer is lost."""
    with contextlib.suppress(HeadwaterError):
        write()
