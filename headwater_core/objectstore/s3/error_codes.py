"""What the errors of S3 and of its client mean to a caller.

A write that did not end in a definite answer is UnknownOutcome: botocore sends a request again when the answer to it was lost, so even
a last answer of "slow down" says nothing of the attempt before it. For the same reason a create may be refused by its own success.
Callers read back.
"""

from http.client import HTTPException

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
    CorruptData,
    HeadwaterError,
    NotFound,
    TransientError,
    TruncatedData,
    Unauthorised,
    UnknownOutcome,
    UsageError,
)
from headwater_core.redaction import redact

# A body is read through urllib3, and botocore translates only some of what that raises: a broken TLS record is no OSError there.
FOREIGN = (BotoCoreError, ClientError, HTTPError, OSError, HTTPException)

REFUSED_KEY = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidSecurity",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_DENIED = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "NotSignedUp", "UnauthorizedAccess"}
_WRONG_PLACE = {
    "AuthorizationHeaderMalformed",  # another region's
    "IllegalLocationConstraintException",
    "InvalidBucketName",
    "NoSuchBucket",
    "PermanentRedirect",
}
_RETRIABLE = {
    "BadDigest",  # damaged on the way
    "RequestTimeout",
    "RequestTimeoutException",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}


def as_headwater_error(where: str, error: Exception, *, write: bool) -> HeadwaterError:
    """What `error`, one of FOREIGN or a ValueError, means to the caller of the store.

    where   the object's URL, for the message
    write   the request would have changed what others see
    """
    text = redact(str(error))
    if isinstance(error, ClientError):
        return _refusal(where, error, write=write)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, ProfileNotFound)):
        return Unauthorised(f"{where}: {text}")
    if isinstance(error, (ParamValidationError, NoRegionError, ValueError)):
        return UsageError(f"{where}: {text}")
    if isinstance(error, FlexibleChecksumError):
        return CorruptData(where, 0, text)
    return _unanswered(f"{where}: {text}", write=write)


def is_conflict(error: BaseException | None) -> bool:
    """Did a conditional write meet another one in flight?"""
    return isinstance(error, ClientError) and error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 409


def _refusal(where: str, error: ClientError, *, write: bool) -> HeadwaterError:
    """What the server's own answer means."""
    answer = error.response
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    message = f"{where}: {status} {code}: {answer.get('Error', {}).get('Message', '')}"
    is_head = error.operation_name.startswith("Head")  # an answer to HEAD has no body, and so no code
    if code in _WRONG_PLACE or status in (301, 307):
        return UsageError(message)
    if code in REFUSED_KEY or (status == 400 and is_head):
        return Unauthorised(f"{message.rstrip()}: the store refuses the key; correct or renew the credentials of this process")
    if code == "RequestTimeTooSkewed":
        return Unauthorised(f"{message.rstrip()}: set the clock of this machine")
    if code in _DENIED or status in (401, 403):
        return Unauthorised(f"{message.rstrip()}: access denied; allow the user of these credentials {error.operation_name} there")
    if code in ("NoSuchKey", "NoSuchUpload") or (status == 404 and is_head):
        return NotFound(message)
    if status == 412:
        return AlreadyExists(message)
    if status == 416:
        return TruncatedData(where, 0, "the object ends before the range begins")
    if status == 409:  # a conditional write met another one in flight, which may be our own first attempt
        return _unanswered(message, write=write)
    if code in _RETRIABLE or status in (408, 429) or (status >= 500 and status != 501):
        return _unanswered(message, write=write)
    return UsageError(message)


def _unanswered(message: str, *, write: bool) -> HeadwaterError:
    return UnknownOutcome(message) if write else TransientError(message)
