"""Objects made of ranges of others: the service copies them, part by part, without sending them through us.

A part must have 5 MiB, unless it is the last, and there are at most 10,000: what is smaller is read, joined and sent. A range is only
copied out of an object larger than that (UploadPartCopy, x-amz-copy-source-range): one of exactly that length is copied without a range.
"""

import contextlib
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from headwater_core.errors import CorruptData, NotFound, UnknownOutcome, UsageError
from headwater_core.objectstore.digest import Digest, from_s3, to_s3, value_of
from headwater_core.objectstore.object_range import CopyPart, RangeSource, plan_copy
from headwater_core.objectstore.s3.bucket import S3Bucket
from headwater_core.objectstore.s3.error_codes import FOREIGN
from headwater_core.objectstore.s3.multipart import PARTS_MAX, MultipartUploads, SentPart
from headwater_core.objectstore.s3.request_body import PutSource
from headwater_core.objectstore.store import ObjectForm, ObjectRange, ObjectStore, Pace, at_once

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import CompletedPartTypeDef

_MIB = 1 << 20
_COPY_BYTES_MIN = 5 * _MIB
_COPY_BYTES_MAX = 128 * _MIB  # of one request, which answers when all of it is copied; 10,000 of them are a TiB
_WORKERS = 4  # each may hold a part that is sent: twice the least size


class PartCopies:
    """The copies of one bucket."""

    def __init__(self, bucket: S3Bucket, uploads: MultipartUploads) -> None:
        self._bucket, self._uploads = bucket, uploads

    def join(
        self, store: ObjectStore, key: str, ranges: Sequence[ObjectRange], digest: str, form: ObjectForm, pace: Pace = at_once
    ) -> None:
        """As ObjectStore.join. `store` reads what cannot be copied, and writes what needs no parts."""
        plan = plan_copy(ranges, part_bytes_min=_COPY_BYTES_MIN, part_bytes_max=_COPY_BYTES_MAX, parts_max=PARTS_MAX)
        if not any(not part.is_sent for part in plan) and len(plan) <= 1:
            source = RangeSource(store, ranges, digest, pace)
            store.put(key, source.as_file(), size_bytes=source.size_bytes, form=form)
            return
        where: Any = {"Bucket": self._bucket.name, "Key": self._bucket.full(key)}
        where["UploadId"] = self._uploads.begin(key, where, form)
        self._uploads.in_flight.add(where["UploadId"])
        try:
            parts = self._make_parts(store, key, where, plan, pace)
            found = _digest_of(parts, plan)
            if found is not None and found.text() != digest:
                raise CorruptData(key, 0, f"its parts have digest {found.text()}, {digest} is wanted")
            whole = Digest()
            whole.value = value_of(digest)
            try:
                self._complete(store, key, where, parts, plan, whole, pace)
            except NotFound as error:  # the upload: completed by our own lost request, or aborted by another client
                raise UnknownOutcome(f"{self._bucket.url}/{key}: the multipart upload is gone") from error
        except BaseException:
            with contextlib.suppress(*FOREIGN):
                self._bucket.client.abort_multipart_upload(**where)
            raise
        finally:
            self._uploads.in_flight.discard(where["UploadId"])

    def _complete(
        self, store: ObjectStore, key: str, where: Any, parts: list[SentPart], plan: Sequence[CopyPart], whole: Digest, pace: Pace
    ) -> None:
        """Some servers want the checksum of each part, and say none of one that they have copied: then it is read."""
        try:
            self._uploads.complete(key, where, parts, whole)
        except UsageError:
            if all(part.checksum >= 0 for part in parts):
                raise
            known = [_with_checksum(store, part, planned, pace) for part, planned in zip(parts, plan, strict=True)]
            self._uploads.complete(key, where, known, whole)

    def _make_parts(self, store: ObjectStore, key: str, where: Any, plan: Sequence[CopyPart], pace: Pace) -> list[SentPart]:
        """All of them, several at a time, in order."""
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="s3-copy") as pool:
            made = [pool.submit(self._make_part, store, key, where, number, part, pace) for number, part in enumerate(plan, 1)]
            wait(made, return_when=FIRST_EXCEPTION)
            for future in made:
                future.cancel()
        failed = next((future for future in made if not future.cancelled() and future.exception()), None)
        if failed is not None:
            failed.result()
        return [future.result() for future in made]

    def _make_part(self, store: ObjectStore, key: str, where: Any, number: int, part: CopyPart, pace: Pace) -> SentPart:
        if part.is_sent:
            body = PutSource(key, RangeSource(store, part.ranges, pace=pace).as_file(), self._uploads.progressed).take(part.size_bytes)
            return self._uploads.send_part(key, where, number, body)
        pace(0)
        [(source, start, size_bytes)] = part.ranges
        copied: Any = {"CopySource": {"Bucket": self._bucket.name, "Key": self._bucket.full(source)}}
        if start or size_bytes > _COPY_BYTES_MIN or store.stat(source).size_bytes != size_bytes:
            copied["CopySourceRange"] = f"bytes={start}-{start + size_bytes - 1}"
        with self._bucket.translated(source, write=False):
            answer = self._bucket.client.upload_part_copy(**where, PartNumber=number, **copied).get("CopyPartResult", {})
        self._uploads.progressed()
        if not answer.get("ETag"):
            raise UsageError(f"{self._bucket.url}: this service does not copy parts of objects: its answer names none")
        named: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"]}
        stored = answer.get("ChecksumCRC64NVME")
        if not stored:
            return SentPart(named, -1, size_bytes)
        checksum = value_of(from_s3(stored))
        return SentPart({**named, "ChecksumCRC64NVME": to_s3(checksum)}, checksum, size_bytes)


def _with_checksum(store: ObjectStore, part: SentPart, planned: CopyPart, pace: Pace) -> SentPart:
    if part.checksum >= 0:
        return part
    digest, source = Digest(), RangeSource(store, planned.ranges, pace=lambda _: pace(0)).as_file()
    while piece := source.read():
        digest.update(piece)
    return SentPart({**part.named, "ChecksumCRC64NVME": to_s3(digest.value)}, digest.value, part.size_bytes)


def _digest_of(parts: Sequence[SentPart], plan: Sequence[CopyPart]) -> Digest | None:
    """Of all of them; None where the store has not said it of one."""
    digest = Digest()
    for part, planned in zip(parts, plan, strict=True):
        if part.checksum < 0:
            return None
        digest.append(part.checksum, planned.size_bytes)
    return digest
