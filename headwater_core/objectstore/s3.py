"""Objects in S3, or in a store that speaks it. The only module that knows boto3.

What the service promises and this module leans on: strong consistency, `If-None-Match: *` on PutObject and on
CompleteMultipartUpload, `If-Match` on PutObject, and a stored CRC-64/NVME of the whole object that the service checked
against what arrived. `headwater_core/objectstore/probe.py` tells which of these a store keeps. Not every store arbitrates completions of
the same key at the same moment (SeaweedFS 4.48 does not), so whatever is raced for has to be a document, which is one PutObject.

Errors. A write that did not end in a definite answer is UnknownOutcome: botocore sends a request again when the answer to it
was lost, so even a last answer of "slow down" says nothing of the attempt before it. For the same reason a create may be
refused by its own success. Callers read back.
"""

import contextlib
import io
import os
import stat as modes
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from http.client import HTTPException
from time import monotonic
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)
from urllib3.exceptions import HTTPError

from headwater_core.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    HeadwaterError,
    NotFound,
    SourceChanged,
    TransientError,
    TruncatedData,
    Unauthorised,
    UnknownOutcome,
    UsageError,
)
from headwater_core.objectstore.digest import Digest, digest_of, from_s3, text_of, to_s3
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectInfo, check_key, check_prefix

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import CompletedPartTypeDef

_Answer = TypeVar("_Answer")

# A body is read through urllib3, and botocore translates only some of what that raises: a broken TLS record is no OSError there.
_FOREIGN = (BotoCoreError, ClientError, HTTPError, OSError, HTTPException)

_MIB = 1 << 20
SINGLE_PUT_BYTES_MAX = 64 * _MIB  # one request up to here: parts cost the server a second pass
_MEMORY_PART_BYTES = 8 * _MIB  # of what is no file and must be held while it is sent
_PARTS_MAX = 10_000
_WINDOW_BYTES = 256 << 10  # what goes to the socket at once; urllib3's own 16 KiB cost as much CPU as the copying
_POOL = 64  # connections
_SLOWEST_BYTES_PER_S = 256 << 10
_TRICKLE_BYTES = 64 << 10  # asked for at once where a read returns only when it has all
_SENDERS = 8  # parts in flight, over all uploads of this store

_REFUSED_CREDENTIALS = {
    "AccessDenied",
    "AllAccessDisabled",
    "AccountProblem",
    "ExpiredToken",
    "Forbidden",
    "InvalidAccessKeyId",
    "InvalidSecurity",
    "InvalidToken",
    "NotSignedUp",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "UnauthorizedAccess",
}
_WRONG_PLACE = {
    "AuthorizationHeaderMalformed",  # another region's
    "IllegalLocationConstraintException",
    "InvalidBucketName",
    "NoSuchBucket",
    "PermanentRedirect",
}
_TRY_AGAIN = {
    "BadDigest",  # damaged on the way
    "RequestTimeout",
    "RequestTimeoutException",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}


class S3Store:
    """One prefix of one bucket.

    Credentials come from boto3's own chain. `endpoint_url` is for stores other than Amazon's; they get path-style addresses.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        single_put_bytes_max: int = SINGLE_PUT_BYTES_MAX,
        part_bytes: int = SINGLE_PUT_BYTES_MAX // 2,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 30.0,
        transfer_timeout_s: float = 60.0,
        attempts: int = 4,
    ) -> None:
        """transfer_timeout_s   for a whole ranged GET, and a second more for every _SLOWEST_BYTES_PER_S: a body that trickles ends"""
        self._bucket = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        check_prefix(self._prefix)
        if endpoint_url is not None and "@" in endpoint_url:
            raise UsageError("endpoint_url must not carry credentials; they come from boto3's own chain")
        self._transfer_timeout_s = transfer_timeout_s
        self._single_put_bytes_max = single_put_bytes_max
        self._part_bytes = part_bytes
        self._memory_part_bytes = min(part_bytes, _MEMORY_PART_BYTES)
        config = Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=_POOL,
            tcp_keepalive=True,
            # Every body carries a CRC-64/NVME that we computed. A SHA-256 for the signature, which botocore adds over plain
            # HTTP, would be a second checksum at a tenth of the speed.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": False, "addressing_style": "path" if endpoint_url else "auto"},
        )
        try:
            self._s3: S3Client = boto3.session.Session().client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
        except (BotoCoreError, ValueError) as error:
            raise self._words("", error, write=False) from error
        self._senders: ThreadPoolExecutor | None = None
        self.progressed: Callable[[], object] = lambda: None  # told while bytes move
        self._starting = threading.Lock()

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def close(self) -> None:
        """Stop the upload threads and drop the connections. For tests; a program's end does as well."""
        if self._senders is not None:
            self._senders.shutdown()
        self._s3.close()

    # Writing

    def put(self, key: str, data: BinaryIO, *, size_bytes: int) -> str:
        source = _Source(key, data, self.progressed)
        if size_bytes > (self._single_put_bytes_max if source.is_file else self._memory_part_bytes):
            return self._put_parts(key, source, size_bytes)
        body = source.take(size_bytes)
        answer = self._send(
            key,
            body,
            lambda: self._s3.put_object(
                Bucket=self._bucket,
                Key=self._full(key),
                Body=body.content,
                ContentLength=size_bytes,
                ChecksumCRC64NVME=to_s3(body.checksum),
                IfNoneMatch="*",
            ),
        )
        return _confirmed(key, text_of(body.checksum), answer)

    def create(self, key: str, document: bytes) -> str:
        return self._put_document(key, document, IfNoneMatch="*")

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        try:
            return self._put_document(key, document, IfMatch=f'"{expected_tag}"')
        except (NotFound, AlreadyExists):
            raise Conflict(f"{self.url}/{key}: changed or gone since it was read") from None

    def delete(self, key: str) -> None:
        with contextlib.suppress(NotFound), self._translated(key, write=True):
            self._s3.delete_object(Bucket=self._bucket, Key=self._full(key))

    # Reading

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        with self._translated(key, write=False):
            answer = self._s3.get_object(Bucket=self._bucket, Key=self._full(key), ChecksumMode="ENABLED")
            with contextlib.closing(answer["Body"]) as body:
                if answer["ContentLength"] > max_bytes:
                    raise CorruptData(key, 0, f"{answer['ContentLength']} bytes, limit {max_bytes}")
                content = body.read()
        stored = _stored_digest(answer)
        if stored is not None and stored != digest_of(content):
            raise CorruptData(key, 0, f"{digest_of(content)} arrived, the store keeps {stored}")
        return content, _tag(answer["ETag"])

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> None:
        for _ in self.stream_into(key, (buffer,), start=start):
            pass

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        wanted = sum(map(len, buffers))
        if not wanted:
            yield from (None for _ in buffers)
            return
        end_s = monotonic() + self._transfer_timeout_s + wanted / _SLOWEST_BYTES_PER_S
        with self._translated(key, write=False):
            answer = self._s3.get_object(Bucket=self._bucket, Key=self._full(key), Range=f"bytes={start}-{start + wanted - 1}")
            with contextlib.closing(answer["Body"]) as body:
                placed = answer.get("ContentRange", "").startswith(f"bytes {start}-")
                if not placed and (start or answer["ContentLength"] != wanted):
                    raise UsageError(f"{self.url}: this store does not answer ranged requests")
                if answer["ContentLength"] != wanted:
                    raise TruncatedData(key, start + answer["ContentLength"], f"{wanted} bytes wanted from {start}")
                for at, buffer in enumerate(buffers, 1):
                    if not _fill(body, buffer, end_s, self.progressed):
                        raise TransientError(f"{self.url}/{key}: the connection ended before the {wanted} bytes that were announced")
                    if at == len(buffers):
                        _release(body)
                    yield

    def stat(self, key: str) -> ObjectInfo:
        try:
            with self._translated(key, write=False):
                answer = self._s3.head_object(Bucket=self._bucket, Key=self._full(key), ChecksumMode="ENABLED")
        except NotFound:
            self._check_bucket()  # an answer to HEAD has no body to say what is missing
            raise
        return ObjectInfo(
            key,
            answer["ContentLength"],
            _tag(answer["ETag"]),
            _stored_digest(answer),
            int(answer["LastModified"].timestamp() * 1000),
        )

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        wanted = {"Bucket": self._bucket, "Prefix": self._prefix + check_prefix(prefix)}
        if start_after:
            wanted["StartAfter"] = self._prefix + start_after
        pending = iter(self._s3.get_paginator("list_objects_v2").paginate(**wanted))  # type: ignore[arg-type]
        while True:
            with self._translated(prefix, write=False):
                page = next(pending, None)
            if page is None:
                return
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._prefix)
                with contextlib.suppress(UsageError):  # somebody else's object
                    yield ObjectInfo(
                        check_key(key), found["Size"], _tag(found["ETag"]), None, int(found["LastModified"].timestamp() * 1000)
                    )

    # Requests

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _put_document(self, key: str, document: bytes, **condition: Any) -> str:
        digest = Digest()
        digest.update(document)
        with self._translated(key, write=True):
            answer = self._s3.put_object(
                Bucket=self._bucket, Key=self._full(key), Body=document, ChecksumCRC64NVME=to_s3(digest.value), **condition
            )
        _confirmed(key, digest.text(), answer)
        return _tag(answer["ETag"])

    def _put_parts(self, key: str, source: "_Source", size_bytes: int) -> str:
        where: Any = {"Bucket": self._bucket, "Key": self._full(key)}
        with self._translated(key, write=False):  # an upload that nobody knows of is no outcome
            upload = self._s3.create_multipart_upload(**where, ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT")
        where["UploadId"] = upload["UploadId"]
        try:
            parts, digest = self._send_parts(key, where, source, size_bytes)
            with self._translated(key, write=True):
                answer = self._s3.complete_multipart_upload(
                    **where,
                    MultipartUpload={"Parts": parts},
                    ChecksumCRC64NVME=to_s3(digest.value),
                    ChecksumType="FULL_OBJECT",
                    IfNoneMatch="*",
                )
        except NotFound as error:  # the upload, not the object: done by our own lost request, or aborted by somebody
            raise UnknownOutcome(f"{self.url}/{key}: the multipart upload is gone") from error
        except BaseException:
            # Also after a lost answer: once this is through, whether the object is there will not change any more.
            with contextlib.suppress(*_FOREIGN):
                self._s3.abort_multipart_upload(**where)
            raise
        return _confirmed(key, digest.text(), answer)

    def _send_parts(self, key: str, where: Any, source: "_Source", size_bytes: int) -> "tuple[Sequence[CompletedPartTypeDef], Digest]":
        """Send every part, several at a time; return them in order, and the digest of the whole."""
        part_bytes = max(self._part_bytes if source.is_file else self._memory_part_bytes, -(-size_bytes // _PARTS_MAX))
        in_flight = threading.BoundedSemaphore(_SENDERS)
        sent: list[Future[tuple[CompletedPartTypeDef, int, int]]] = []  # of what was sent: its name, checksum and length

        def send(number: int, body: _Body) -> "tuple[CompletedPartTypeDef, int, int]":
            checksum = to_s3(body.checksum)
            answer = self._send(
                key,
                body,
                lambda: self._s3.upload_part(
                    **where, PartNumber=number, Body=body.content, ContentLength=body.size_bytes, ChecksumCRC64NVME=checksum
                ),
                publishes=False,
            )
            part: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC64NVME": checksum}
            return part, body.checksum, body.size_bytes

        def finished(future: Future[Any]) -> None:
            in_flight.release()

        try:
            for start in range(0, size_bytes, part_bytes):
                in_flight.acquire()
                if any(future.done() and future.exception() for future in sent):
                    break
                body = source.take(min(part_bytes, size_bytes - start))
                sent.append(self._sender().submit(send, len(sent) + 1, body))
                sent[-1].add_done_callback(finished)
            wait(sent, return_when=FIRST_EXCEPTION)
        finally:
            for future in sent:
                future.cancel()
            wait(sent)  # nothing of ours is under way any more when the upload is aborted
        failed = next((future for future in sent if not future.cancelled() and future.exception()), None)
        if failed is not None:
            failed.result()
        digest = Digest()
        parts = []
        for future in sent:
            part, value, length = future.result()
            digest.append(value, length)
            parts.append(part)
        return parts, digest

    def _sender(self) -> ThreadPoolExecutor:
        with self._starting:
            if self._senders is None:
                self._senders = ThreadPoolExecutor(_SENDERS, thread_name_prefix="s3-send")
            return self._senders

    def _send(self, key: str, body: "_Body", request: Callable[[], _Answer], *, publishes: bool = True) -> _Answer:
        try:
            with self._translated(key, write=publishes):
                answer = request()
        except HeadwaterError as error:
            if body.difference():
                raise SourceChanged(f"{key}: {body.difference()}") from error
            raise
        if body.difference():
            raise SourceChanged(f"{key}: {body.difference()}")
        return answer

    def _check_bucket(self) -> None:
        try:
            with self._translated("", write=False):
                self._s3.head_bucket(Bucket=self._bucket)
        except NotFound:
            raise UsageError(f"{self.url}: there is no such bucket") from None

    @contextlib.contextmanager
    def _translated(self, key: str, *, write: bool) -> Iterator[None]:
        try:
            yield
        except _FOREIGN as error:
            raise self._words(key, error, write=write) from error

    def _words(self, key: str, error: Exception, *, write: bool) -> HeadwaterError:
        """What `error` means to a caller. `write`: the request would have changed what others see."""
        where = f"{self.url}/{key}".rstrip("/")
        unanswered = UnknownOutcome if write else TransientError
        if not isinstance(error, ClientError):
            if isinstance(error, (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, ProfileNotFound)):
                return Unauthorised(f"{where}: {error}")
            if isinstance(error, (ParamValidationError, NoRegionError, ValueError)):
                return UsageError(f"{where}: {error}")
            if isinstance(error, FlexibleChecksumError):
                return CorruptData(where, 0, str(error))
            return unanswered(f"{where}: {error}")
        answer = error.response
        code = str(answer.get("Error", {}).get("Code", ""))
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        said = f"{where}: {status} {code}: {answer.get('Error', {}).get('Message', '')}"
        if code in _WRONG_PLACE or status in (301, 307):
            return UsageError(said)
        if code in _REFUSED_CREDENTIALS or status in (401, 403) or (status == 400 and error.operation_name.startswith("Head")):
            return Unauthorised(said)
        if code in ("NoSuchKey", "NoSuchUpload") or (status == 404 and error.operation_name.startswith("Head")):
            return NotFound(said)
        if status == 412:
            return AlreadyExists(said)
        if status == 416:
            return TruncatedData(where, 0, "the object ends before the range begins")
        if status == 409:  # a conditional write met another one under way, which may be our own first attempt
            return unanswered(said)
        if code in _TRY_AGAIN or status in (408, 429) or (status >= 500 and status != 501):
            return unanswered(said)
        return UsageError(said)


def _direct(body: Any) -> Any:
    """The answer below urllib3, which would make new bytes and copy them; None where it has to unpack what comes."""
    answer = getattr(getattr(body, "_raw_stream", None), "_fp", None)
    return None if getattr(answer, "chunked", True) else answer


def _fill(body: Any, buffer: memoryview, end_s: float, progressed: Callable[[], object]) -> bool:
    """Whether the answer had enough left. Raises TimeoutError when it has not come by `end_s`."""
    source = _direct(body)
    while buffer:
        if monotonic() > end_s:
            raise TimeoutError("the answer came too slowly")
        count = body.readinto(buffer[:_TRICKLE_BYTES]) if source is None else _receive(source, buffer)
        if not count:
            return False
        progressed()
        buffer = buffer[count:]
    return True


def _receive(answer: Any, buffer: memoryview) -> int:
    """What has come. HTTPResponse.readinto would return when all of it has, however slowly that is."""
    if answer.fp is None or answer.length is None:
        return int(answer.readinto(buffer))
    count = int(answer.fp.readinto1(buffer[: answer.length]))
    answer.length -= count
    if not count or not answer.length:
        answer._close_conn()
    return count


def _release(body: Any) -> None:
    """Give the connection back, which urllib3 does by itself only for what was read through it."""
    if _direct(body) is not None:
        body._raw_stream.release_conn()


class _Body:
    """The bytes of one request, read through a window as the socket takes them.

    The checksum goes into a header, so it is computed before, and once more over what is sent.
    """

    def __init__(self, read_at: Callable[[memoryview, int], int], size_bytes: int, key: str, progressed: Callable[[], object]) -> None:
        self._read_at, self.size_bytes, self._progressed = read_at, size_bytes, progressed
        self._window = memoryview(bytearray(min(_WINDOW_BYTES, size_bytes)))
        self._passed = Digest()
        self._ended_early = False
        while self._next_window():
            pass
        if self._ended_early:
            raise SourceChanged(f"{key}: {self.difference()}")
        self.checksum = self._passed.value
        self.seek(0)

    @property
    def content(self) -> Any:
        """What botocore takes for a body: read(), seek(0), tell() and len() are all it uses of a file."""
        return self if self.size_bytes else b""

    def __len__(self) -> int:
        return self.size_bytes

    def tell(self) -> int:
        return self._passed.size_bytes

    def seek(self, position: int) -> int:
        """Only back to the beginning, which is where another attempt starts."""
        assert position == 0
        self._passed = Digest()
        return 0

    def read(self, _size: int = -1) -> memoryview:
        """The next window, whatever size was asked for: the caller hands it to the socket and comes back. Valid until then."""
        self._progressed()
        piece = self._next_window()
        if self._ended_early:
            raise SourceChanged(self.difference())  # or the server would wait for the rest
        return piece

    def _next_window(self) -> memoryview:
        at = self._passed.size_bytes
        piece = self._window[: self.size_bytes - at]
        piece = piece[: self._read_at(piece, at)]
        self._passed.update(piece)
        self._ended_early = not piece and at < self.size_bytes
        return piece

    def difference(self) -> str:
        """How what was sent differs from what was announced; "" when it does not, or not all was sent."""
        if self._ended_early:
            return f"{self.size_bytes} bytes promised, {self._passed.size_bytes} there"
        if self._passed.size_bytes == self.size_bytes and self._passed.value != self.checksum:
            return "the bytes changed while they were sent"
        return ""


class _Source:
    """Where a put's bytes come from, one request at a time: a file's descriptor, else pieces held in memory."""

    def __init__(self, key: str, data: BinaryIO, progressed: Callable[[], object]) -> None:
        raw = data.raw if isinstance(data, io.BufferedReader) else data
        self._key, self._data, self._progressed = key, data, progressed
        self.is_file = isinstance(raw, io.FileIO) and modes.S_ISREG(os.fstat(raw.fileno()).st_mode)
        self._position = data.tell() if self.is_file else 0

    def take(self, size_bytes: int) -> _Body:
        """The next `size_bytes`. Raises SourceChanged when they are not there."""
        if self.is_file:
            fd, position = self._data.fileno(), self._position
            self._position += size_bytes
            return _Body(
                lambda window, at: os.preadv(fd, [window], position + at) if window else 0, size_bytes, self._key, self._progressed
            )
        pieces = bytearray()
        while len(pieces) < size_bytes and (piece := self._data.read(size_bytes - len(pieces))):
            pieces += piece
        held = memoryview(pieces)

        def read_at(window: memoryview, at: int) -> int:
            piece = held[at : at + len(window)]
            window[: len(piece)] = piece
            return len(piece)

        return _Body(read_at, size_bytes, self._key, self._progressed)


def _tag(etag: str) -> str:
    return etag.strip('"')


def _stored_digest(answer: Any) -> str | None:
    """The digest of the whole object, when the answer carries one. A composite ("…-4") is a checksum of checksums."""
    stored = answer.get("ChecksumCRC64NVME")
    if not stored or "-" in stored or answer.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    return from_s3(stored)


def _confirmed(key: str, digest: str, answer: Any) -> str:
    """`digest`, unless the store says that it keeps something else."""
    stored = _stored_digest(answer)
    if stored is not None and stored != digest:
        raise CorruptData(key, 0, f"{digest} was sent, the store keeps {stored}")
    return digest
