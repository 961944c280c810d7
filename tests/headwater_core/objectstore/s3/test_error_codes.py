"""Answers that are no answers, and answers that are not about the object."""

import pytest
from botocore.exceptions import ClientError

from headwater_core.errors import (
    AlreadyExists,
    HeadwaterError,
    NotFound,
    TransientError,
    TruncatedData,
    Unauthorised,
    UnknownOutcome,
    UsageError,
)
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.s3.error_codes import as_headwater_error
from tests.headwater_core.objectstore.badnetwork import LOSE_REPLY, LOSE_REQUEST, PASS, Answer, BadNetwork, error
from tests.headwater_core.objectstore.s3.calls import READS, WRITES, replace_doc

UNANSWERED = [
    LOSE_REQUEST,
    LOSE_REPLY,
    error(500, "InternalError"),
    error(503, "SlowDown"),
    error(503, ""),
    error(429, "X"),
    error(408, ""),
]


@pytest.mark.parametrize("answer", UNANSWERED)
def test_a_write_without_a_definite_answer_has_an_unknown_outcome(far: S3Store, network: BadNetwork, answer: Answer) -> None:
    for write in WRITES:
        far.delete("new")
        far.delete("doc")
        far.create("doc", b"1")
        network.plan.extend([PASS, answer] if write is replace_doc else [answer])
        with pytest.raises(UnknownOutcome):
            write(far)


@pytest.mark.parametrize("answer", UNANSWERED)
def test_a_read_without_an_answer_may_be_tried_again(far: S3Store, network: BadNetwork, answer: Answer) -> None:
    far.create("doc", b"1")
    for use in READS:
        network.plan.append(answer)
        with pytest.raises(TransientError):
            use(far)
        use(far)


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (400, "ExpiredToken"), (403, "SignatureDoesNotMatch"), (403, "")])
def test_refused_credentials_are_no_absence(far: S3Store, network: BadNetwork, status: int, code: str) -> None:
    for use in [*READS, *WRITES[:2]]:
        network.plan.append(error(status, code))
        with pytest.raises(Unauthorised):
            use(far)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "AccessDenied", "access denied; allow the user of these credentials GetObject there"),
        (403, "", "access denied"),
        (400, "ExpiredToken", "refuses the key; correct or renew the credentials"),
        (403, "InvalidAccessKeyId", "refuses the key"),
        (403, "RequestTimeTooSkewed", "set the clock"),
    ],
)
def test_a_refusal_says_what_to_do(far: S3Store, network: BadNetwork, status: int, code: str, words: str) -> None:
    network.plan.append(error(status, code))
    with pytest.raises(Unauthorised, match=words):
        far.get("doc")


@pytest.mark.parametrize("code", ["", "PageNotFound"])
def test_a_404_of_something_that_is_no_object_store_is_no_absence(far: S3Store, network: BadNetwork, code: str) -> None:
    for use in READS:
        network.plan.extend([error(404, code)] * 2)
        with pytest.raises(UsageError):
            use(far)
        network.plan.clear()


@pytest.mark.parametrize("answer", [error(409, "ConditionalRequestConflict"), error(409, "OperationAborted")])
def test_two_conditional_writes_at_once_leave_the_outcome_open(far: S3Store, network: BadNetwork, answer: Answer) -> None:
    network.plan.append(answer)
    with pytest.raises(UnknownOutcome):
        far.create("a", b"")
    network.plan.append(answer)
    with pytest.raises(UnknownOutcome):
        far.replace("a", b"", expected_tag="0")


@pytest.mark.parametrize(
    ("operation", "status", "code", "write", "expected"),
    [
        ("PutObject", 412, "PreconditionFailed", True, AlreadyExists),
        ("PutObject", 409, "ConditionalRequestConflict", True, UnknownOutcome),
        ("PutObject", 503, "SlowDown", True, UnknownOutcome),
        ("GetObject", 503, "SlowDown", False, TransientError),
        ("GetObject", 501, "NotImplemented", False, UsageError),
        ("GetObject", 404, "NoSuchKey", False, NotFound),
        ("GetObject", 404, "NoSuchBucket", False, UsageError),
        ("GetObject", 404, "", False, UsageError),
        ("GetObject", 416, "InvalidRange", False, TruncatedData),
        ("HeadObject", 404, "404", False, NotFound),
        ("HeadObject", 400, "400", False, Unauthorised),
        ("HeadObject", 301, "301", False, UsageError),
        ("UploadPart", 404, "NoSuchUpload", False, NotFound),
    ],
)
def test_an_answer_means_one_thing(operation: str, status: int, code: str, write: bool, expected: type[HeadwaterError]) -> None:
    error = ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation)  # type: ignore[typeddict-item]
    assert type(as_headwater_error("s3://bucket/a", error, write=write)) is expected
