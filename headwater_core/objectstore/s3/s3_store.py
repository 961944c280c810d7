"""An archive in S3, or in a store that speaks it.

What the service promises and this package leans on: strong consistency, `If-None-Match: *` on PutObject and on CompleteMultipartUpload,
`If-Match` on PutObject, and a stored CRC-64/NVME of the whole object that the service checked against what arrived.
`headwater_core/objectstore/probe.py` finds out which of these a store keeps. Not every store arbitrates completions of the same key at the
same moment (SeaweedFS 4.48 does not), so whatever is raced for has to be a document, which is one PutObject.
"""

import contextlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, BinaryIO

from headwater_core.errors import AlreadyExists, Conflict, CorruptData, NotFound, TransientError, TruncatedData, UsageError
from headwater_core.objectstore.digest import Digest, digest_of, text_of, to_s3
from headwater_core.objectstore.s3.bucket import S3Bucket, confirmed, stored_digest
from headwater_core.objectstore.s3.growth import S3Growth
from headwater_core.objectstore.s3.multipart import MultipartUploads
from headwater_core.objectstore.s3.part_copy import PartCopies
from headwater_core.objectstore.s3.request_body import PutSource
from headwater_core.objectstore.s3.response_body import SLOWEST_BYTES_PER_S, fill, pieces, release
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

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import GetObjectOutputTypeDef

_MIB = 1 << 20
PART_BYTES_MIN = 5 * _MIB  # S3 refuses a smaller part, unless it is the last
SINGLE_PUT_BYTES_MAX = 64 * _MIB  # one request up to here: parts cost the server a second pass
_MEMORY_PART_BYTES = 8 * _MIB  # of what is no file and must be held while it is sent


class S3Store:
    """One prefix of one bucket. Credentials, `endpoint_url` and `region` are S3Bucket's."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        single_put_bytes_max: int = SINGLE_PUT_BYTES_MAX,
        part_bytes: int = SINGLE_PUT_BYTES_MAX // 2,
        transfer_timeout_s: float = 60.0,
        attempts: int = 4,
    ) -> None:
        """transfer_timeout_s   for a whole answer to a read, and a second more for every SLOWEST_BYTES_PER_S: a body that trickles ends

        Raises UsageError and Unauthorised when there can be no client.
        """
        self._bucket = S3Bucket(bucket, prefix, endpoint_url=endpoint_url, region=region, attempts=attempts, timeout_s=transfer_timeout_s)
        self._uploads = MultipartUploads(self._bucket, "s3-send", lambda: self.progressed())
        self._cut_uploads = MultipartUploads(self._bucket, "s3-send-parts")  # cut by the caller; neither waits for the others' parts
        self._copies = PartCopies(self._bucket, self._uploads)
        self._s3 = self._bucket.client
        self._transfer_timeout_s = transfer_timeout_s
        self._single_put_bytes_max = single_put_bytes_max
        self._part_bytes = part_bytes
        self._memory_part_bytes = min(part_bytes, _MEMORY_PART_BYTES)
        self.part_bytes_min = PART_BYTES_MIN
        self.keeps_metadata = True
        self.progressed: Callable[[], object] = lambda: None  # called while bytes move

    @property
    def url(self) -> str:
        return self._bucket.url

    def close(self) -> None:
        """Stop the upload threads and drop the connections."""
        self._uploads.close()
        self._cut_uploads.close()
        self._bucket.close()

    # Writing

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        source = PutSource(key, data, self.progressed)
        if len(form.parts) > 1:
            return self._cut_uploads.put(key, source, size_bytes, part_bytes=size_bytes, form=form)
        if not form.parts and size_bytes > (self._single_put_bytes_max if source.is_file else self._memory_part_bytes):
            part_bytes = self._part_bytes if source.is_file else self._memory_part_bytes
            return self._uploads.put(key, source, size_bytes, part_bytes=part_bytes, form=form)
        body = source.take(size_bytes)
        answer = self._bucket.send(
            key,
            body,
            lambda: self._s3.put_object(
                Bucket=self._bucket.name,
                Key=self._bucket.full(key),
                Body=body.content,
                ContentLength=size_bytes,
                ChecksumCRC64NVME=to_s3(body.checksum),
                Metadata=dict(form.metadata),
                IfNoneMatch="*",
            ),
            write=True,
        )
        return confirmed(key, text_of(body.checksum), answer)

    def put_all(self, objects: Sequence[NewObject]) -> list[str]:
        return put_each(self, objects)

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        return S3Growth(self._bucket, self._uploads, key, metadata)

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        self._copies.join(self, key, ranges, digest, form, pace)

    def create(self, key: str, document: bytes) -> str:
        return self._put_document(key, document, IfNoneMatch="*")

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        try:
            return self._put_document(key, document, IfMatch=f'"{expected_tag}"')
        except (NotFound, AlreadyExists):
            raise Conflict(f"{self.url}/{key}: changed or gone since it was read") from None

    def _put_document(self, key: str, document: bytes, **condition: Any) -> str:
        digest = Digest()
        digest.update(document)
        with self._bucket.translated(key, write=True):
            answer = self._s3.put_object(
                Bucket=self._bucket.name,
                Key=self._bucket.full(key),
                Body=document,
                ChecksumCRC64NVME=to_s3(digest.value),
                **condition,
            )
        confirmed(key, digest.text(), answer)
        return _tag(answer["ETag"])

    def delete(self, key: str) -> None:
        with contextlib.suppress(NotFound), self._bucket.translated(key, write=True):
            self._s3.delete_object(Bucket=self._bucket.name, Key=self._bucket.full(key))

    # Reading

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        with self._bucket.translated(key, write=False):
            answer = self._s3.get_object(Bucket=self._bucket.name, Key=self._bucket.full(key), ChecksumMode="ENABLED")
            with contextlib.closing(answer["Body"]) as body:
                content = self._read_document(key, body, answer.get("ContentLength"), max_bytes)
        stored = stored_digest(answer)
        if stored is not None and stored != digest_of(content):
            raise CorruptData(key, 0, f"{digest_of(content)} arrived, the store keeps {stored}")
        return content, _tag(answer["ETag"])

    def _read_document(self, key: str, body: Any, announced: int | None, max_bytes: int) -> bytes:
        """announced: None for an answer in chunks, whose last one says that it is whole"""
        raw, content = body._raw_stream, bytearray()
        if announced is None and not raw.chunked:
            raise TransientError(f"{self.url}/{key}: the answer does not say where it ends")
        if announced is not None and announced > max_bytes:
            raise CorruptData(key, 0, f"{announced} bytes, limit {max_bytes}")
        for piece in pieces(raw, self._transfer_timeout_s):
            content += piece
            if len(content) > max_bytes:
                raise CorruptData(key, 0, f"more than {max_bytes} bytes")
        if announced is not None and len(content) != announced:
            raise TransientError(f"{self.url}/{key}: the connection ended after {len(content)} of {announced} bytes")
        raw.release_conn()
        return bytes(content)

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        metadata: dict[str, str] = {}
        for _ in self._stream(key, (buffer,), start, metadata):
            pass
        return metadata

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        return self._stream(key, buffers, start, {})

    def _stream(self, key: str, buffers: Sequence[memoryview], start: int, metadata: dict[str, str]) -> Generator[None, None, None]:
        size_bytes = sum(map(len, buffers))
        if not size_bytes:
            yield from (None for _ in buffers)
            return
        end_s = monotonic() + self._transfer_timeout_s + size_bytes / SLOWEST_BYTES_PER_S
        wanted = f"bytes={start}-{start + size_bytes - 1}"
        with self._bucket.translated(key, write=False):
            answer = self._s3.get_object(Bucket=self._bucket.name, Key=self._bucket.full(key), Range=wanted)
            with contextlib.closing(answer["Body"]) as body:
                self._check_range(key, answer, start, size_bytes)
                metadata.update(answer.get("Metadata", {}))
                for at, buffer in enumerate(buffers, 1):
                    if not fill(body, buffer, end_s, self.progressed):
                        raise TransientError(f"{self.url}/{key}: the connection ended before the {size_bytes} bytes that were announced")
                    if at == len(buffers):
                        release(body)
                    yield

    def _check_range(self, key: str, answer: "GetObjectOutputTypeDef", start: int, size_bytes: int) -> None:
        """Raises UsageError when the answer is not of the range, TruncatedData when the object ends in it."""
        covered = re.match(rf"bytes {start}-(\d+)/", answer.get("ContentRange", ""))
        length = answer.get("ContentLength", int(covered[1]) + 1 - start if covered else -1)  # of an answer in chunks nothing else says it
        if not covered and (start or length != size_bytes):
            raise UsageError(f"{self.url}: this store does not answer ranged requests")
        if length != size_bytes:
            raise TruncatedData(key, start + length, f"{size_bytes} bytes wanted from {start}")

    def stat(self, key: str) -> ObjectInfo:
        try:
            with self._bucket.translated(key, write=False):
                answer = self._s3.head_object(Bucket=self._bucket.name, Key=self._bucket.full(key), ChecksumMode="ENABLED")
        except NotFound:
            self._bucket.check_exists()  # an answer to HEAD has no body to say what is missing
            raise
        if not {"ContentLength", "LastModified", "ETag"} <= answer.keys():
            raise UsageError(f"{self.url}: this store, or a proxy before it, does not say how long and how old an object is")
        modified_ms = int(answer["LastModified"].timestamp() * 1000)
        return ObjectInfo(key, answer["ContentLength"], _tag(answer["ETag"]), stored_digest(answer), modified_ms)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        wanted = {"Bucket": self._bucket.name, "Prefix": self._bucket.prefix + check_prefix(prefix)}
        if start_after:
            wanted["StartAfter"] = self._bucket.prefix + start_after
        pages = iter(self._s3.get_paginator("list_objects_v2").paginate(**wanted))  # type: ignore[arg-type]
        while True:
            with self._bucket.translated(prefix, write=False):
                page = next(pages, None)
            if page is None:
                return
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._bucket.prefix)
                modified_ms = int(found["LastModified"].timestamp() * 1000)
                with contextlib.suppress(UsageError):  # a foreign object
                    yield ObjectInfo(check_key(key), found["Size"], _tag(found["ETag"]), None, modified_ms)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        return self._uploads.unfinished(prefix)

    def abort(self, upload: UnfinishedUpload) -> None:
        self._uploads.abort(upload)


def _tag(etag: str) -> str:
    return etag.strip('"')
