"""Large objects go up in parts, several at a time."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater_core.errors import NotFound, UnknownOutcome, UsageError
from headwater_core.objectstore.digest import Digest, to_s3
from headwater_core.objectstore.s3.bucket import S3Bucket, confirmed
from headwater_core.objectstore.s3.error_codes import FOREIGN
from headwater_core.objectstore.s3.request_body import PutSource, RequestBody
from headwater_core.objectstore.store import PLAIN, ObjectForm, UnfinishedUpload, check_key, check_prefix

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import CompletedPartTypeDef

PARTS_MAX = 10_000  # S3's own limit
_SENDERS = 8  # parts in flight, over all uploads of one store


class SentPart(NamedTuple):
    """One part that the store has. `named` is how the completion names it."""

    named: "CompletedPartTypeDef"
    checksum: int
    size_bytes: int


class MultipartUploads:
    """The multipart uploads of one bucket. Its threads, named `name`, start with the first of them.

    in_flight   the ids of uploads that somebody in this process holds open: nobody is to abort them
    progressed  called while bytes move
    """

    def __init__(self, bucket: S3Bucket, name: str, progressed: Callable[[], object] = lambda: None) -> None:
        self._bucket, self._name, self.progressed = bucket, name, progressed
        self.in_flight: set[str] = set()
        self._senders: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()

    def put(self, key: str, source: PutSource, size_bytes: int, *, part_bytes: int, form: ObjectForm = PLAIN) -> str:
        """Create `key` from the next `size_bytes` of `source`; return their digest.

        part_bytes  of each part, more where there would be over 10,000; of no meaning where `form` has parts

        Raises what ObjectStore.put does; UnknownOutcome also when the upload is gone. No parts remain unless the abort fails too.
        """
        where: Any = {"Bucket": self._bucket.name, "Key": self._bucket.full(key)}
        where["UploadId"] = self.begin(key, where, form)
        try:
            parts = self._send_parts(key, where, source, form.parts or _equal_parts(size_bytes, part_bytes))
            digest = Digest()
            for part in parts:
                digest.append(part.checksum, part.size_bytes)
            answer = self.complete(key, where, parts, digest)
        except NotFound as error:  # the upload, not the object: completed by our own lost request, or aborted by another client
            raise UnknownOutcome(f"{self._bucket.url}/{key}: the multipart upload is gone") from error
        except BaseException:
            # Also after a lost answer: once this is done, whether the object is there does not change any more.
            with contextlib.suppress(*FOREIGN):
                self._bucket.client.abort_multipart_upload(**where)
            raise
        return confirmed(key, digest.text(), answer)

    def begin(self, key: str, where: Any, form: ObjectForm) -> str:
        """The id of a new upload of `key`. `where` names bucket and key, here and below, and then the upload too, as boto3's arguments."""
        with self._bucket.translated(key, write=False):  # nothing that others see has happened yet
            return self._bucket.client.create_multipart_upload(
                **where, ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT", Metadata=dict(form.metadata)
            )["UploadId"]

    def complete(self, key: str, where: Any, parts: Sequence[SentPart], digest: Digest) -> Any:
        """The answer to the request that makes an object of `parts`, which have `digest`. Raises NotFound when the upload is gone."""
        with self._bucket.translated(key, write=True):
            return self._bucket.client.complete_multipart_upload(
                **where,
                MultipartUpload={"Parts": [part.named for part in parts]},
                ChecksumCRC64NVME=to_s3(digest.value),
                ChecksumType="FULL_OBJECT",
                IfNoneMatch="*",
            )

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """As ObjectStore.unfinished, without those in flight. Of others' the service does not know which are still being sent."""
        wanted = self._bucket.prefix + check_prefix(prefix)
        pages = iter(self._bucket.client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket.name, Prefix=wanted))
        while True:
            with self._bucket.translated(prefix, write=False):
                page = next(pages, None)
            if page is None:
                return
            for found in page.get("Uploads", ()):
                if found["Key"].startswith(wanted) and found["UploadId"] not in self.in_flight:  # not every server filters by prefix
                    with contextlib.suppress(UsageError):  # another one's object
                        key = check_key(found["Key"].removeprefix(self._bucket.prefix))
                        yield UnfinishedUpload(key, found["UploadId"], int(found["Initiated"].timestamp() * 1000))

    def abort(self, upload: UnfinishedUpload) -> None:
        """As ObjectStore.abort."""
        with contextlib.suppress(NotFound), self._bucket.translated(upload.key, write=True):
            self._bucket.client.abort_multipart_upload(
                Bucket=self._bucket.name, Key=self._bucket.full(upload.key), UploadId=upload.upload_id
            )

    def _send_parts(self, key: str, where: Any, source: PutSource, cuts: Iterable[int]) -> Sequence[SentPart]:
        """Send every part, several at a time; return them in order."""
        slots = threading.BoundedSemaphore(_SENDERS)  # a part is read only when it can be sent, so that few are held
        sent: list[Future[SentPart]] = []
        try:
            for part_bytes in cuts:
                slots.acquire()
                if any(future.done() and future.exception() for future in sent):
                    break
                body = source.take(part_bytes)
                sent.append(self._pool().submit(self.send_part, key, where, len(sent) + 1, body))
                sent[-1].add_done_callback(lambda _: slots.release())
            wait(sent, return_when=FIRST_EXCEPTION)
        finally:
            for future in sent:
                future.cancel()
            wait(sent)  # nothing of ours is in flight any more when the upload is aborted
        failed = next((future for future in sent if not future.cancelled() and future.exception()), None)
        if failed is not None:
            failed.result()
        return [future.result() for future in sent]

    def send_part(self, key: str, where: Any, number: int, body: RequestBody) -> SentPart:
        """Part `number` of an upload, from 1. Raises NotFound when the upload is gone."""
        checksum = to_s3(body.checksum)
        answer = self._bucket.send(
            key,
            body,
            lambda: self._bucket.client.upload_part(
                **where, PartNumber=number, Body=body.content, ContentLength=body.size_bytes, ChecksumCRC64NVME=checksum
            ),
            write=False,
        )
        return SentPart({"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC64NVME": checksum}, body.checksum, body.size_bytes)

    def _pool(self) -> ThreadPoolExecutor:
        with self._starting:
            if self._senders is None:
                self._senders = ThreadPoolExecutor(_SENDERS, thread_name_prefix=self._name)
            return self._senders

    def close(self) -> None:
        """Wait for the parts in flight and end the threads."""
        if self._senders is not None:
            self._senders.shutdown()


def _equal_parts(size_bytes: int, part_bytes: int) -> Iterator[int]:
    part_bytes = max(part_bytes, -(-size_bytes // PARTS_MAX))
    return (min(part_bytes, size_bytes - start) for start in range(0, size_bytes, part_bytes))
