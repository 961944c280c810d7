"""Counts what passes through a store, for tests that say how many requests something may take."""

import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

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
    put_each,
)


class Call(NamedTuple):
    """One call as it was made, also when it failed. `size_bytes` is 0 where the caller cannot know it."""

    operation: str
    key: str
    start: int
    size_bytes: int


class MeteredStore:
    """`inner`, counted. The newest `log_calls` calls are kept in `log`; none by default."""

    def __init__(self, inner: ObjectStore, *, log_calls: int = 0) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()  # by operation and error, as "get NotFound"
        self.bytes_read = 0
        self.bytes_written = 0
        self.log: deque[Call] = deque(maxlen=log_calls)

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
        with self._counted("put", key, 0, size_bytes):
            digest = self._inner.put(key, data, size_bytes=size_bytes, form=form)
        self._moved(written=size_bytes)
        return digest

    def put_all(self, objects: Sequence[NewObject]) -> list[str]:
        return put_each(self, objects)

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        return _CountedGrowth(self, self._inner.grow(key, metadata=metadata))

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        with self._counted("join", key, 0, sum(each.size_bytes for each in ranges)):
            self._inner.join(key, ranges, digest=digest, form=form, pace=pace)

    def create(self, key: str, document: bytes) -> str:
        with self._counted("create", key, 0, len(document)):
            tag = self._inner.create(key, document)
        self._moved(written=len(document))
        return tag

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        with self._counted("replace", key, 0, len(document)):
            tag = self._inner.replace(key, document, expected_tag=expected_tag)
        self._moved(written=len(document))
        return tag

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        with self._counted("get", key):
            document, tag = self._inner.get(key, max_bytes=max_bytes)
        self._moved(read=len(document))
        return document, tag

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        with self._counted("read_into", key, start, len(buffer)):
            metadata = self._inner.read_into(key, buffer, start=start)
        self._moved(read=len(buffer))
        return metadata

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        """Counted as a read_into of them all."""
        with self._counted("read_into", key, start, sum(map(len, buffers))):
            for buffer, _ in zip(buffers, self._inner.stream_into(key, buffers, start=start), strict=True):
                self._moved(read=len(buffer))
                yield

    def stat(self, key: str) -> ObjectInfo:
        with self._counted("stat", key):
            return self._inner.stat(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._counted("list", prefix):
            return self._inner.list(prefix, start_after=start_after)

    def delete(self, key: str) -> None:
        with self._counted("delete", key):
            self._inner.delete(key)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        with self._counted("unfinished", prefix):
            return self._inner.unfinished(prefix)

    def abort(self, upload: UnfinishedUpload) -> None:
        with self._counted("abort", upload.key):
            self._inner.abort(upload)

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self.calls.clear()
            self.failures.clear()
            self.log.clear()
            self.bytes_read = self.bytes_written = 0

    def _counted(self, operation: str, key: str, start: int = 0, size_bytes: int = 0) -> "_Counted":
        with self._lock:
            self.calls[operation] += 1
            self.log.append(Call(operation, key, start, size_bytes))
        return _Counted(self, operation)

    def _failed(self, operation: str, error: type[BaseException]) -> None:
        with self._lock:
            self.failures[f"{operation} {error.__name__}"] += 1

    def _moved(self, *, read: int = 0, written: int = 0) -> None:
        with self._lock:
            self.bytes_read += read
            self.bytes_written += written


class _Counted:
    def __init__(self, meter: MeteredStore, operation: str) -> None:
        self._meter, self._operation = meter, operation

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and kind is not GeneratorExit:  # the caller wanted no more
            self._meter._failed(self._operation, kind)


class _CountedGrowth:
    def __init__(self, meter: MeteredStore, inner: GrowingObject) -> None:
        self._meter, self._inner = meter, inner

    @property
    def key(self) -> str:
        return self._inner.key

    def send(self, number: int, content: bytes | bytearray | memoryview, *, start: int) -> int:
        with self._meter._counted("send", self.key, start, len(content)):
            checksum = self._inner.send(number, content, start=start)
        self._meter._moved(written=len(content))
        return checksum

    def complete(self, rest: bytes | bytearray | memoryview) -> str:
        with self._meter._counted("complete", self.key, 0, len(rest)):
            digest = self._inner.complete(rest)
        self._meter._moved(written=len(rest))
        return digest

    def abort(self) -> None:
        with self._meter._counted("abort", self.key):
            self._inner.abort()
