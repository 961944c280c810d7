"""One object that goes up in parts over a long time: a multipart upload that begins with the first of them."""

import contextlib
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from headwater_core.errors import NotFound, UnknownOutcome
from headwater_core.objectstore.digest import Digest, to_s3
from headwater_core.objectstore.s3.bucket import S3Bucket, confirmed
from headwater_core.objectstore.s3.error_codes import is_conflict
from headwater_core.objectstore.s3.multipart import MultipartUploads, SentPart
from headwater_core.objectstore.s3.request_body import RequestBody, pieces_of
from headwater_core.objectstore.store import ObjectForm

Content = bytes | bytearray | memoryview


class S3Growth:
    """A GrowingObject. What has begun stands in `uploads.in_flight` until it ends, or nobody has it any more: then it is unfinished."""

    def __init__(self, bucket: S3Bucket, uploads: MultipartUploads, key: str, metadata: Mapping[str, str]) -> None:
        self.key, self._bucket, self._uploads = key, bucket, uploads
        self._form = ObjectForm(metadata=metadata)
        self._where: Any = {"Bucket": bucket.name, "Key": bucket.full(key)}
        self._lock = threading.Lock()
        self._ended = False
        self._parts: dict[int, tuple[int, SentPart]] = {}  # with the byte each begins at

    def send(self, number: int, content: Content, *, start: int) -> int:
        self._begin()
        part = self._uploads.send_part(self.key, self._where, number, self._body(content))
        with self._lock:
            self._parts[number] = start, part
        return part.checksum

    def complete(self, rest: Content) -> str:
        with self._lock:
            if self._ended:
                raise self._gone()
            parts = [self._parts[number] for number in sorted(self._parts)]
            rest_number = max(self._parts, default=0) + 1
        digest = Digest()
        for start, part in parts:
            assert start == digest.size_bytes, f"{self.key}: a part begins at {start}, {digest.size_bytes} bytes come before it"
            digest.append(part.checksum, part.size_bytes)
        if not parts:
            return self._put(rest)
        sent = [part for _, part in parts]
        try:
            if rest:  # under the same number when this is repeated: it is not kept beside the parts
                sent.append(self._uploads.send_part(self.key, self._where, rest_number, self._body(rest)))
                digest.append(sent[-1].checksum, sent[-1].size_bytes)
            answer = self._uploads.complete(self.key, self._where, sent, digest)
        except NotFound as error:
            raise self._gone() from error
        except UnknownOutcome as error:
            if is_conflict(error.__cause__):  # Amazon wants a new upload then; once this one is aborted, it becomes no object any more
                self._abort_upload()
                raise self._gone() from error
            raise
        self._end()
        return confirmed(self.key, digest.text(), answer)

    def abort(self) -> None:
        """See GrowingObject. Where that fails, `uploads` lists it as unfinished from now on."""
        with self._lock:
            self._ended = True
        try:
            if "UploadId" in self._where:
                self._abort_upload()
        finally:
            self._end()

    def _abort_upload(self) -> None:
        with contextlib.suppress(NotFound), self._bucket.translated(self.key, write=True):
            self._bucket.client.abort_multipart_upload(**self._where)

    def _begin(self) -> None:
        """One upload for all parts, whichever comes first."""
        with self._lock:
            if self._ended:
                raise self._gone()
            if "UploadId" not in self._where:
                upload_id = self._where["UploadId"] = self._uploads.begin(self.key, self._where, self._form)
                self._uploads.in_flight.add(upload_id)
                weakref.finalize(self, self._uploads.in_flight.discard, upload_id).atexit = False

    def _put(self, content: Content) -> str:
        body = self._body(content)
        answer = self._bucket.send(
            self.key,
            body,
            lambda: self._bucket.client.put_object(
                **self._where,
                Body=body.content,
                ContentLength=body.size_bytes,
                ChecksumCRC64NVME=to_s3(body.checksum),
                Metadata=dict(self._form.metadata),
                IfNoneMatch="*",
            ),
            write=True,
        )
        digest = Digest()
        digest.append(body.checksum, body.size_bytes)
        self._end()
        return confirmed(self.key, digest.text(), answer)

    def _body(self, content: Content) -> RequestBody:
        return RequestBody(lambda: pieces_of(content), len(content), self.key, self._uploads.progressed, lambda size_bytes: None)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
        self._uploads.in_flight.discard(self._where.get("UploadId", ""))

    def _gone(self) -> NotFound:
        return NotFound(f"{self._bucket.url}/{self.key}: what was sent of it is gone")
