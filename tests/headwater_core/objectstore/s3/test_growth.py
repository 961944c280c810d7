"""Objects that grow on S3, where what was sent is seen by every client."""

import contextlib
import gc

import pytest

from headwater_core.errors import AlreadyExists, NotFound, TransientError, UnknownOutcome
from headwater_core.objectstore.confirmed_put import complete_confirmed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.s3.s3_store import PART_BYTES_MIN
from tests.headwater_core.objectstore.badnetwork import PASS, Answer, BadNetwork, error
from tests.s3server import S3Server


def test_one_store_s_growing_object_is_another_one_s_unfinished_upload(
    store: S3Store, bucket: str, place: str, s3_environ: S3Server
) -> None:
    growing = store.grow("stream/a")
    growing.send(1, bytes(PART_BYTES_MIN), start=0)
    with contextlib.closing(S3Store(bucket, place, endpoint_url=s3_environ.endpoint_url)) as other:
        assert list(store.unfinished("stream/")) == []
        [upload] = other.unfinished("stream/")
        assert upload.key == "stream/a"
        other.abort(upload)
    for use in (lambda: growing.send(2, b"rest", start=PART_BYTES_MIN), lambda: growing.complete(b"rest")):
        with pytest.raises(NotFound):
            use()
    with pytest.raises(NotFound):
        complete_confirmed(growing, store, b"rest", 0, digest_of(b""))
    growing.abort()


def test_a_small_object_that_grew_is_one_request(store: S3Store) -> None:
    growing = store.grow("stream/a")
    assert growing.complete(b"small") == digest_of(b"small")
    assert "UploadId" not in growing._where  # type: ignore[attr-defined]  # nothing was begun


def test_what_is_refused_may_be_completed_no_more_and_stays_in_flight_until_it_is_aborted(store: S3Store) -> None:
    growing = store.grow("a")
    growing.send(1, bytes(PART_BYTES_MIN), start=0)
    store.create("a", b"first")
    with pytest.raises((AlreadyExists, NotFound)):
        growing.complete(b"")
    growing.abort()
    assert list(store.unfinished("")) == []
    assert store.get("a")[0] == b"first"


@pytest.mark.parametrize("which", [0, 1])  # the rest, the completion
def test_a_completion_that_failed_is_repeated_with_the_same_bytes(far: S3Store, network: BadNetwork, which: int) -> None:
    content = bytes(PART_BYTES_MIN) + b"rest"
    growing = far.grow("stream/a")
    growing.send(1, content[:PART_BYTES_MIN], start=0)
    network.plan.extend([PASS] * which + [error(503, "SlowDown")])
    with pytest.raises(TransientError):
        complete_confirmed(growing, far, b"rest", len(content), digest_of(content))
    complete_confirmed(growing, far, b"rest", len(content), digest_of(content))
    assert far.stat("stream/a").digest == digest_of(content)
    assert list(far.unfinished("")) == []


def test_what_could_not_be_aborted_is_unfinished(far: S3Store, network: BadNetwork) -> None:
    growing = far.grow("stream/a")
    growing.send(1, bytes(PART_BYTES_MIN), start=0)
    network.plan.append(error(503, "SlowDown"))
    with pytest.raises(TransientError):
        growing.abort()
    [upload] = far.unfinished("")
    assert upload.key == "stream/a"
    growing.abort()
    assert list(far.unfinished("")) == []


def test_what_nobody_holds_any_more_is_unfinished(store: S3Store) -> None:
    held, dropped = store.grow("stream/a"), store.grow("stream/b")
    for each in (held, dropped):
        each.send(1, bytes(PART_BYTES_MIN), start=0)
    assert list(store.unfinished("")) == []
    del dropped, each
    gc.collect()
    [upload] = store.unfinished("")
    assert upload.key == "stream/b"
    store.abort(upload)
    assert list(store.unfinished("")) == []
    held.abort()


def test_after_a_conflict_the_same_upload_is_not_completed_again(far: S3Store, network: BadNetwork) -> None:
    """Amazon wants a new one then (CompleteMultipartUpload, If-None-Match)."""
    growing = far.grow("a")
    growing.send(1, bytes(PART_BYTES_MIN), start=0)
    network.plan.append(error(409, "ConditionalRequestConflict"))
    with pytest.raises(NotFound):
        complete_confirmed(growing, far, b"", PART_BYTES_MIN, digest_of(bytes(PART_BYTES_MIN)))
    assert [request.partition(" ")[0] for request in network.requests[-4:]] == ["POST", "DELETE", "HEAD", "HEAD"]
    with pytest.raises(NotFound):
        far.stat("a")


def test_a_conflict_with_our_own_completion_is_a_success(far: S3Store, network: BadNetwork) -> None:
    """Its answer was lost, and it was sent again meanwhile."""
    content = bytes(PART_BYTES_MIN)
    growing = far.grow("a")
    growing.send(1, content, start=0)
    network.plan.append(Answer(status=409, code="ConditionalRequestConflict"))
    complete_confirmed(growing, far, b"", len(content), digest_of(content))
    assert far.stat("a").size_bytes == len(content)


def test_a_conflict_whose_upload_cannot_be_aborted_leaves_it_open(far: S3Store, network: BadNetwork) -> None:
    growing = far.grow("a")
    growing.send(1, bytes(PART_BYTES_MIN), start=0)
    network.plan.extend([error(409, "ConditionalRequestConflict"), error(503, "SlowDown")])
    with pytest.raises(UnknownOutcome):
        growing.complete(b"")
