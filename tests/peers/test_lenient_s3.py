"""Chunks on an S3 server that takes parts of any size: they become one object there as on the other one, which takes none below 5 MiB.

This server says no checksum of an object that it has copied, so that the consolidated one is read to be confirmed.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from headwater_core.layouts import Offloader
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunk_handle import CommitLimits
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.testing import OffloaderOnStore
from headwater_core.objectstore.s3 import S3Store
from tests.headwater_core.layouts.chunks.recovery import InterruptedConsolidation, Recovery
from tests.headwater_core.layouts.chunks.segment_machine import SegmentMachine
from tests.headwater_core.layouts.chunks.test_chunks_layout import Append, ChunkHandles, Fixed, FixedHandles
from tests.headwater_core.layouts.chunks.test_segment_machine import QUICK
from tests.headwater_core.objectstore.badnetwork import BadNetwork, bad_network
from tests.peers.lenient_s3 import set_credentials
from tests.s3server import S3Server

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def bucket(lenient_s3: S3Server) -> str:
    """One for all tests: to make one takes longer than most of them."""
    return lenient_s3.bucket()


@pytest.fixture(scope="module")
def connected(bucket: str, lenient_s3: S3Server) -> Iterator[S3Store]:
    with pytest.MonkeyPatch.context() as patch:
        set_credentials(lenient_s3, patch)
        with closing(S3Store(bucket, "archive", endpoint_url=lenient_s3.endpoint_url)) as store:
            yield store


@pytest.fixture
def store(connected: S3Store, lenient_environ: S3Server) -> Iterator[S3Store]:
    """An empty one."""
    yield connected
    for info in list(connected.list("")):
        connected.delete(info.key)
    for upload in list(connected.unfinished("")):
        connected.abort(upload)


@pytest.fixture
def network(lenient_environ: S3Server) -> Iterator[BadNetwork]:
    with bad_network(lenient_environ.endpoint_url) as network:
        yield network


@pytest.fixture
def far(bucket: str, network: BadNetwork) -> Iterator[S3Store]:
    with closing(S3Store(bucket, "archive", endpoint_url=network.endpoint_url, attempts=1)) as store:
        yield store


def join_two_bytes(server: S3Server) -> bytes:
    """An object of two parts, of a byte each."""
    where: Any = {"Bucket": server.bucket(), "Key": "small"}
    with closing(server.client()) as client:
        upload = client.create_multipart_upload(**where)["UploadId"]
        parts = [client.upload_part(**where, UploadId=upload, PartNumber=number, Body=b"x") for number in (1, 2)]
        named: Any = [{"PartNumber": number, "ETag": part["ETag"]} for number, part in enumerate(parts, 1)]
        client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": named})
        return client.get_object(**where)["Body"].read()


def test_the_two_servers_differ_in_what_they_take(lenient_s3: S3Server, s3_server: S3Server) -> None:
    assert join_two_bytes(lenient_s3) == b"xx"
    with pytest.raises(ClientError, match="EntityTooSmall"):
        join_two_bytes(s3_server)


class TestAppend(Append, OffloaderOnStore):
    pass


class TestFixed(Fixed, OffloaderOnStore):
    @pytest.fixture
    def layout(self) -> Offloader:
        """One chunk for all of the run would be the append variant's request."""
        return ChunksLayout(Variant.FIXED, 100_000)


class TestAppendHandle(ChunkHandles, Append, OffloaderOnStore):
    variant, limits = Variant.APPEND, CommitLimits(commit_bytes=64 << 20)


class TestFixedHandle(FixedHandles, Fixed, OffloaderOnStore):
    """Its chunk that is not full is rewritten under its tag."""

    limits = CommitLimits(commit_bytes=150_000, chunk_bytes=100_000)


class TestRecovery(Recovery):
    pass


class TestInterruptedConsolidation(InterruptedConsolidation):
    pass


def test_any_order_of_commits_and_consolidations(store: S3Store) -> None:
    class OnLenient(SegmentMachine):
        @staticmethod
        def new_store() -> S3Store:
            for info in list(store.list("")):
                store.delete(info.key)
            return store

    run_state_machine_as_test(OnLenient, settings=settings(QUICK, max_examples=10, stateful_step_count=20))
