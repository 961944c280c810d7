"""One prefix of one bucket, as boto3's client reaches it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from headwater_core.errors import CorruptData, HeadwaterError, NotFound, SourceChanged, UsageError
from headwater_core.objectstore.digest import from_s3
from headwater_core.objectstore.s3.credentials import followed_session, repeat_refused
from headwater_core.objectstore.s3.error_codes import FOREIGN, as_headwater_error
from headwater_core.objectstore.s3.request_body import PutEnded, RequestBody
from headwater_core.objectstore.s3.response_body import TimedSession
from headwater_core.objectstore.store import check_key, check_prefix

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_CONNECTIONS_MAX = 64
_CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 30.0  # for the next bytes of an answer, not for all of it

_Answer = TypeVar("_Answer")


class S3Bucket:
    """The client and the place it is used for. Requests are made inside `translated` or through `send`, so that only our errors leave.

    Credentials come from boto3's own chain, and follow its files. `endpoint_url` is for stores other than Amazon's; they get path-style
    addresses. `attempts` counts the first one; botocore repeats a request that got no answer, or one of "slow down".

    timeout_s  for the whole answer to a read, and more for one that is long

    Raises UsageError and Unauthorised when there can be no client.
    """

    def __init__(self, name: str, prefix: str, *, endpoint_url: str | None, region: str | None, attempts: int, timeout_s: float) -> None:
        self.name = name
        self.prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        check_prefix(self.prefix)
        if endpoint_url is not None and "@" in endpoint_url:
            raise UsageError("endpoint_url must not carry credentials; they come from boto3's own chain")
        config = Config(
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=_CONNECTIONS_MAX,
            tcp_keepalive=True,
            # Every body carries a CRC-64/NVME that we computed. A SHA-256 for the signature, which botocore adds over plain
            # HTTP, would be a second checksum at a tenth of the speed.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": False, "addressing_style": "path" if endpoint_url else "auto"},
        )
        try:
            session, credentials = followed_session()
            self.client: S3Client = boto3.session.Session(botocore_session=session).client(
                "s3", endpoint_url=endpoint_url, region_name=region, config=config
            )
        except (BotoCoreError, ValueError) as error:
            raise as_headwater_error(self.url, error, write=False) from error
        repeat_refused(self.client, credentials)
        endpoint = self.client._endpoint  # type: ignore[attr-defined]  # botocore has no other way in
        endpoint.http_session = TimedSession(endpoint.http_session, timeout_s)
        self.client.meta.events.register("before-parse.s3", _refuse_incomplete)

    @property
    def url(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")

    def full(self, key: str) -> str:
        """The name of `key` in the bucket. Raises UsageError when it is no key."""
        return self.prefix + check_key(key)

    @contextlib.contextmanager
    def translated(self, key: str, *, write: bool) -> Iterator[None]:
        """Around a request: what it raises is a HeadwaterError. `write`: it would change what others see."""
        try:
            yield
        except FOREIGN as error:
            raise as_headwater_error(f"{self.url}/{key}".rstrip("/"), error, write=write) from error

    def send(self, key: str, body: RequestBody, request: Callable[[], _Answer], *, write: bool) -> _Answer:
        """The answer to `request`, which sends `body`. Raises SourceChanged when its bytes changed meanwhile, whatever the answer was, and
        what the body's pace raises."""
        try:
            with self.translated(key, write=write):
                answer = request()
        except PutEnded as ended:
            raise ended.error from None
        except HeadwaterError as error:
            if body.difference():
                raise SourceChanged(f"{key}: {body.difference()}") from error
            raise
        if body.difference():
            raise SourceChanged(f"{key}: {body.difference()}")
        return answer

    def check_exists(self) -> None:
        """Raises UsageError when there is no such bucket, and what a request raises."""
        try:
            with self.translated("", write=False):
                self.client.head_bucket(Bucket=self.name)
        except NotFound:
            raise UsageError(f"{self.url}: there is no such bucket") from None

    def close(self) -> None:
        """Drop the connections."""
        self.client.close()


def _refuse_incomplete(operation_model: Any, response_dict: Any, **_: object) -> None:
    """An answer that ends before its announced length becomes a failure of the server, which botocore retries.

    botocore does not compare the two, and takes what has come for the answer: a listing without its body would be an empty one, a 404
    without its body that of no object store. The body of GetObject is no bytes yet; its reader counts them.
    """
    body, announced, status = response_dict["body"], response_dict["headers"].get("content-length"), response_dict["status_code"]
    method = operation_model.http["method"]
    if method == "HEAD" or status in (204, 304) or not isinstance(body, bytes):
        return
    if len(body) != int(announced) if announced is not None else method == "GET" and not body:
        message = f"the answer, of status {status}, ended after {len(body)} of {announced or 'some'} bytes"
        response_dict["status_code"] = 500  # as botocore's own handlers do with an error in an answer of status 200
        response_dict["body"] = f"<Error><Code>IncompleteAnswer</Code><Message>{message}</Message></Error>".encode()


def stored_digest(answer: Any) -> str | None:
    """The digest of the whole object, when the answer carries one. A composite ("…-4") is a checksum of checksums."""
    stored = answer.get("ChecksumCRC64NVME")
    if not stored or "-" in stored or answer.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    return from_s3(stored)


def confirmed(key: str, digest: str, answer: Any) -> str:
    """`digest`; CorruptData when the store says that it keeps something else."""
    stored = stored_digest(answer)
    if stored is not None and stored != digest:
        raise CorruptData(key, 0, f"{digest} was sent, the store keeps {stored}")
    return digest
