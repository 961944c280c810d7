"""Objects in a dictionary, for tests and the simulation."""

import hashlib
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import count
from typing import BinaryIO

from awscrt.checksums import crc64nvme

from headwater_core.clock import Clock, SystemClock
from headwater_core.errors import AlreadyExists, Conflict, CorruptData, NotFound, SourceChanged, TruncatedData
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.object_range import RangeSource
from headwater_core.objectstore.store import (
    DOCUMENT_BYTES_MAX,
    NO_METADATA,
    PLAIN,
    GrowingObject,
    NewObject,
    ObjectForm,
    ObjectInfo,
    ObjectRange,
    Pace,
    UnfinishedUpload,
    at_once,
    check_key,
    check_prefix,
    put_each,
)


class MemoryStore:
    """What a strongly consistent store does, without the store. Tags follow content, as S3's ETags do."""

    url = "memory:"
    part_bytes_min = 0
    keeps_metadata = True

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._metadata: dict[str, Mapping[str, str]] = {}
        self._unfinished: list[UnfinishedUpload] = []
        self._growing: dict[UnfinishedUpload, _Growth] = {}
        self._uploads = count()

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        content = b"".join(_pieces(data, size_bytes))
        if len(content) != size_bytes:
            raise SourceChanged(f"{key}: {size_bytes} bytes promised, {len(content)} there")
        self.create(key, content)
        self._metadata[key] = dict(form.metadata)
        return digest_of(content)

    def put_all(self, objects: Sequence[NewObject]) -> list[str]:
        return put_each(self, objects)

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        return _Growth(self, check_key(key), metadata)

    def lose_writers(self, prefix: str = "") -> None:
        """Whoever was writing objects below `prefix` part by part is gone: killed, most likely."""
        with self._lock:
            self._growing = {upload: growth for upload, growth in self._growing.items() if not upload.key.startswith(prefix)}

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        source = RangeSource(self, ranges, digest, pace)
        self.put(key, source.as_file(), size_bytes=source.size_bytes, form=form)

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
            return self._begin(key)

    def _begin(self, key: str) -> UnfinishedUpload:
        upload = UnfinishedUpload(check_key(key), f"upload-{next(self._uploads)}", self._clock.now_ms())
        self._unfinished.append(upload)
        return upload

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        check_prefix(prefix)
        with self._lock:
            return iter([upload for upload in self._unfinished if upload.key.startswith(prefix) and upload not in self._growing])

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


class _Growth:
    """An object that grows. What was sent is the store's: `abort` of anybody takes it away."""

    def __init__(self, store: MemoryStore, key: str, metadata: Mapping[str, str]) -> None:
        self._store, self.key, self._metadata = store, key, dict(ObjectForm(metadata=metadata).metadata)
        self._upload: UnfinishedUpload | None = None
        self._ended = False
        self._parts: dict[int, tuple[int, bytes]] = {}

    def send(self, number: int, content: bytes | bytearray | memoryview, *, start: int) -> int:
        store = self._store
        with store._lock:
            if self._upload is None and not self._ended:
                self._upload = store._begin(self.key)
                store._growing[self._upload] = self
            self._check()
            self._parts[number] = start, bytes(content)
        return int(crc64nvme(content))

    def complete(self, rest: bytes | bytearray | memoryview) -> str:
        store = self._store
        with store._lock:
            if self._upload is not None or self._ended:
                self._check()
            content = b""
            for number in sorted(self._parts):
                start, part = self._parts[number]
                assert start == len(content), f"part {number} begins at {start}, {len(content)} bytes come before it"
                content += part
            content += bytes(rest)
            if self.key in store._objects:
                raise AlreadyExists(self.key)
            store._keep(self.key, content)
            store._metadata[self.key] = self._metadata
            self._end()
        return digest_of(content)

    def abort(self) -> None:
        with self._store._lock:
            self._end()

    def _check(self) -> None:
        if self._ended or self._upload not in self._store._unfinished:
            raise NotFound(f"{self.key}: what was sent of it is gone")

    def _end(self) -> None:
        self._ended = True
        if self._upload is not None:
            self._store._growing.pop(self._upload, None)
            self._store._unfinished = [each for each in self._store._unfinished if each != self._upload]


def _pieces(data: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """What `data` gives of `size_bytes`; less when it ends early."""
    while size_bytes > 0 and (piece := data.read(size_bytes)):
        size_bytes -= len(piece)
        yield bytes(piece)  # a source may use the same buffer for the next one
