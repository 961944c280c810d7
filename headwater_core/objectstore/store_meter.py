"""What the calls of a store cost, and when it last answered: counted around each call, for metrics and health."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, TypeVar

from headwater_core.clock import Clock
from headwater_core.durations import Durations
from headwater_core.errors import ENVIRONMENT_ERRORS, HeadwaterError, SourceChanged, UploadStopped
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
)

T = TypeVar("T")

OPERATIONS = (
    *("abort", "complete", "create", "delete", "get", "join", "list", "put", "put_all"),
    *("read", "replace", "send", "stat", "unfinished"),
)
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_OURS = (SourceChanged, UploadStopped)  # raised by what the caller passes in: it says nothing of the store


@dataclass(slots=True)
class OperationCount:
    """The calls of one operation that have ended.

    errors  of them: without an answer, or refused; that an object is absent, or taken, is an answer
    sent_bytes, received_bytes  of those that succeeded
    """

    seconds: Durations = field(default_factory=lambda: Durations(BOUNDS_S))
    errors: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class StoreHealth(NamedTuple):
    """
    answered_s  how long ago the store last answered a call; None: it never did
    failing_s   how long it has answered none, though it was called; 0 while it answers
    reason      what came of the last call without an answer; "" while it answers
    """

    answered_s: float | None
    failing_s: float
    reason: str


class StoreMeter:
    """Safe to use from many threads.

    silent_s  how long calls in flight have heard nothing of the store, in seconds; 0 while none waits
    """

    def __init__(self, clock: Clock, silent_s: Callable[[], float] = lambda: 0.0) -> None:
        self.clock, self._silent_s, self._lock = clock, silent_s, threading.Lock()
        self._counts = {operation: OperationCount() for operation in OPERATIONS}
        self._answered_at_s: float | None = None
        self._failing_from_s: float | None = None
        self._reason = ""

    def record(
        self, operation: str, seconds: float, *, sent_bytes: int = 0, received_bytes: int = 0, error: BaseException | None = None
    ) -> None:
        """One call has ended, after `seconds` of waiting for the store."""
        is_trouble = isinstance(error, ENVIRONMENT_ERRORS) and not isinstance(error, _OURS)
        is_answer = error is None or (isinstance(error, HeadwaterError) and not isinstance(error, (*ENVIRONMENT_ERRORS, *_OURS)))
        now_s = self.clock.monotonic_s()
        with self._lock:
            count = self._counts[operation]
            count.seconds.add(seconds)
            count.errors += is_trouble
            count.sent_bytes += sent_bytes
            count.received_bytes += received_bytes
            if is_answer:
                self._answered_at_s, self._failing_from_s, self._reason = now_s, None, ""
            elif is_trouble:
                if self._failing_from_s is None:  # others may have been answered while this one waited
                    self._failing_from_s = max(now_s - seconds, float("-inf") if self._answered_at_s is None else self._answered_at_s)
                self._reason = str(error)

    def counts(self) -> dict[str, OperationCount]:
        """By operation, as they are now."""
        with self._lock:
            return {
                operation: OperationCount(each.seconds.copy(), each.errors, each.sent_bytes, each.received_bytes)
                for operation, each in self._counts.items()
            }

    def health(self) -> StoreHealth:
        silent_s = self._silent_s()
        with self._lock:
            now_s, answered_at_s, failing_from_s, reason = self.clock.monotonic_s(), self._answered_at_s, self._failing_from_s, self._reason
        failing_s = 0.0 if failing_from_s is None else now_s - failing_from_s
        return StoreHealth(
            answered_s=None if answered_at_s is None else now_s - answered_at_s,
            failing_s=max(failing_s, silent_s),
            reason=reason or ("calls in flight hear nothing" if silent_s else ""),
        )


class MeteredStore:
    """`inner`, each call of which `meter` counts."""

    def __init__(self, inner: ObjectStore, meter: StoreMeter) -> None:
        self._inner, self._meter = inner, meter

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def part_bytes_min(self) -> int:
        return self._inner.part_bytes_min

    @property
    def keeps_metadata(self) -> bool:
        return self._inner.keeps_metadata

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        with self._call("put") as call:
            digest = self._inner.put(key, data, size_bytes=size_bytes, form=form)
            call.sent_bytes = size_bytes
        return digest

    def put_all(self, objects: Sequence[NewObject]) -> list[str]:
        with self._call("put_all") as call:
            digests = self._inner.put_all(objects)
            call.sent_bytes = sum(each.size_bytes for each in objects)
        return digests

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        return _MeteredGrowth(self._inner.grow(key, metadata=metadata), self._call)

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        with self._call("join"):
            self._inner.join(key, ranges, digest=digest, form=form, pace=pace)

    def create(self, key: str, document: bytes) -> str:
        with self._call("create") as call:
            tag = self._inner.create(key, document)
            call.sent_bytes = len(document)
        return tag

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        with self._call("replace") as call:
            tag = self._inner.replace(key, document, expected_tag=expected_tag)
            call.sent_bytes = len(document)
        return tag

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        with self._call("get") as call:
            found = self._inner.get(key, max_bytes=max_bytes)
            call.received_bytes = len(found[0])
        return found

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        with self._call("read") as call:
            metadata = self._inner.read_into(key, buffer, start=start)
            call.received_bytes = len(buffer)
        return metadata

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        streaming, call = self._inner.stream_into(key, buffers, start=start), _Call()
        try:
            for buffer in buffers:
                with self._part(call):
                    next(streaming)
                    call.received_bytes += len(buffer)
                yield
        finally:
            streaming.close()
            self._end("read", call)

    def stat(self, key: str) -> ObjectInfo:
        with self._call("stat"):
            return self._inner.stat(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._each("list", lambda: self._inner.list(prefix, start_after=start_after))

    def delete(self, key: str) -> None:
        with self._call("delete"):
            self._inner.delete(key)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        return self._each("unfinished", lambda: self._inner.unfinished(prefix))

    def abort(self, upload: UnfinishedUpload) -> None:
        with self._call("abort"):
            self._inner.abort(upload)

    def _each(self, operation: str, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """One call, however far it is followed."""
        call = _Call()
        try:
            with self._part(call):
                found = iter(begin())
            while True:
                with self._part(call):
                    each = next(found, None)
                if each is None:
                    return
                yield each
        finally:
            self._end(operation, call)

    @contextmanager
    def _call(self, operation: str) -> Iterator["_Call"]:
        call = _Call()
        try:
            with self._part(call):
                yield call
        finally:
            self._end(operation, call)

    @contextmanager
    def _part(self, call: "_Call") -> Iterator[None]:
        begun_s = self._meter.clock.monotonic_s()
        try:
            yield
        except BaseException as error:
            call.error = error
            raise
        finally:
            call.waited_s += self._meter.clock.monotonic_s() - begun_s

    def _end(self, operation: str, call: "_Call") -> None:
        self._meter.record(operation, call.waited_s, sent_bytes=call.sent_bytes, received_bytes=call.received_bytes, error=call.error)


@dataclass(slots=True)
class _Call:
    """waited_s: for the store, in all parts of the call"""

    waited_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    error: BaseException | None = None


class _MeteredGrowth:
    """A growing object of a MeteredStore. What its last part has of bytes counts with `complete`."""

    def __init__(self, inner: GrowingObject, called: Callable[[str], AbstractContextManager[_Call]]) -> None:
        self._inner, self._called = inner, called

    @property
    def key(self) -> str:
        return self._inner.key

    def send(self, number: int, content: bytes | bytearray | memoryview, *, start: int) -> int:
        with self._called("send") as call:
            checksum = self._inner.send(number, content, start=start)
            call.sent_bytes = len(content)
        return checksum

    def complete(self, rest: bytes | bytearray | memoryview) -> str:
        with self._called("complete") as call:
            digest = self._inner.complete(rest)
            call.sent_bytes = len(rest)
        return digest

    def abort(self) -> None:
        with self._called("abort"):
            self._inner.abort()
