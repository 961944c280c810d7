"""A store that wraps each call: in a check that it is the right store, or in a watch for calls without an answer."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, TypeVar

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


class GuardedStore:
    """`inner`, each call of which enters a context that `guard` makes; a call that yields enters it each time it continues."""

    def __init__(self, inner: ObjectStore, guard: Callable[[], AbstractContextManager[object]]) -> None:
        self._inner, self._guard = inner, guard

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
        with self._guard():
            return self._inner.put(key, data, size_bytes=size_bytes, form=form)

    def put_all(self, objects: Sequence[NewObject]) -> list[str]:
        with self._guard():
            return self._inner.put_all(objects)

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        return _GuardedGrowth(self._inner.grow(key, metadata=metadata), self._guard)

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        with self._guard():
            self._inner.join(key, ranges, digest=digest, form=form, pace=pace)

    def create(self, key: str, document: bytes) -> str:
        with self._guard():
            return self._inner.create(key, document)

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        with self._guard():
            return self._inner.replace(key, document, expected_tag=expected_tag)

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        with self._guard():
            return self._inner.get(key, max_bytes=max_bytes)

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        with self._guard():
            return self._inner.read_into(key, buffer, start=start)

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        streaming = self._inner.stream_into(key, buffers, start=start)
        try:
            for _ in buffers:
                with self._guard():
                    next(streaming)
                yield
        finally:
            streaming.close()

    def stat(self, key: str) -> ObjectInfo:
        with self._guard():
            return self._inner.stat(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._guard():
            found = iter(self._inner.list(prefix, start_after=start_after))
        return self._each(found)

    def _each(self, found: Iterator[T]) -> Iterator[T]:
        while True:
            with self._guard():
                each = next(found, None)
            if each is None:
                return
            yield each

    def delete(self, key: str) -> None:
        with self._guard():
            self._inner.delete(key)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        with self._guard():
            found = iter(self._inner.unfinished(prefix))
        return self._each(found)

    def abort(self, upload: UnfinishedUpload) -> None:
        with self._guard():
            self._inner.abort(upload)


class _GuardedGrowth:
    """A growing object of a GuardedStore."""

    def __init__(self, inner: GrowingObject, guard: Callable[[], AbstractContextManager[object]]) -> None:
        self._inner, self._guard = inner, guard

    @property
    def key(self) -> str:
        return self._inner.key

    def send(self, number: int, content: bytes | bytearray | memoryview, *, start: int) -> int:
        with self._guard():
            return self._inner.send(number, content, start=start)

    def complete(self, rest: bytes | bytearray | memoryview) -> str:
        with self._guard():
            return self._inner.complete(rest)

    def abort(self) -> None:
        with self._guard():
            self._inner.abort()
