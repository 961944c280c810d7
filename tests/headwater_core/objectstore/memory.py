"""Objects in a dictionary, for tests and the simulation."""

import hashlib
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import BinaryIO

from headwater_core.clock import Clock, SystemClock
from headwater_core.errors import AlreadyExists, Conflict, CorruptData, NotFound, SourceChanged, TruncatedData
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import (
    DOCUMENT_BYTES_MAX,
    NO_METADATA,
    PLAIN,
    NewObject,
    ObjectForm,
    ObjectInfo,
    UnfinishedUpload,
    check_key,
    check_prefix,
    put_each,
)


class MemoryStore:
    """What a strongly consistent store does, without the store. Tags follow content, as S3's ETags do."""

    url = "memory:"
    part_bytes_min = 0

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._metadata: dict[str, Mapping[str, str]] = {}
        self._unfinished: list[UnfinishedUpload] = []

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        content = b"".join(_pieces(data, size_bytes))
        if len(content) != size_bytes:
            raise SourceChanged(f"{key}: {size_bytes} bytes promised, {len(content)} there")
        self.create(key, content)
        self._metadata[key] = dict(form.metadata)
        return digest_of(content)

    def put_all(self, objects: Sequence[NewObject]) -> list[str]:
        return put_each(self, objects)

    def create(self, key: str, document: bytes) -> str:
        with self._lock:
            if check_key(key) in self._objects:
                raise AlreadyExists(key)
            return self._keep(key, document)

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        with self._lock:
            held = self._objects.get(check_key(key))
            if held is None or held[1].tag != expected_tag:
                raise Conflict(f"{key}: {'gone' if held is None else 'changed'} since it was read")
            return self._keep(key, document)

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        content, info = self._held(key)
        if info.size_bytes > max_bytes:
            raise CorruptData(key, 0, f"{info.size_bytes} bytes, limit {max_bytes}")
        return content, info.tag

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        content, _ = self._held(key)
        piece = memoryview(content)[start : start + len(buffer)]
        if len(piece) != len(buffer):
            raise TruncatedData(key, len(content), f"{len(buffer)} bytes wanted from {start}")
        buffer[:] = piece
        return self._metadata.get(key, NO_METADATA)

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        for buffer in buffers:
            self.read_into(key, buffer, start=start)
            start += len(buffer)
            yield

    def stat(self, key: str) -> ObjectInfo:
        return self._held(key)[1]

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            found = [info for key, (_, info) in self._objects.items() if key.startswith(prefix) and key > start_after]
        return iter(sorted(found, key=lambda info: info.key))

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)
            self._metadata.pop(key, None)

    def begin(self, key: str) -> UnfinishedUpload:
        """An upload that ends here, as when its process is killed."""
        with self._lock:
            upload = UnfinishedUpload(check_key(key), f"upload-{len(self._unfinished)}", self._clock.now_ms())
            self._unfinished.append(upload)
            return upload

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        check_prefix(prefix)
        with self._lock:
            return iter([upload for upload in self._unfinished if upload.key.startswith(prefix)])

    def abort(self, upload: UnfinishedUpload) -> None:
        with self._lock:
            self._unfinished = [each for each in self._unfinished if each != upload]

    def _held(self, key: str) -> tuple[bytes, ObjectInfo]:
        with self._lock:
            held = self._objects.get(check_key(key))
        if held is None:
            raise NotFound(key)
        return held

    def _keep(self, key: str, content: bytes) -> str:
        content = bytes(content)
        tag = hashlib.sha256(content).hexdigest()
        self._objects[key] = content, ObjectInfo(key, len(content), tag, digest_of(content), self._clock.now_ms())
        return tag


def _pieces(data: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """What `data` gives of `size_bytes`; less when it ends early."""
    while size_bytes > 0 and (piece := data.read(size_bytes)):
        size_bytes -= len(piece)
        yield piece
