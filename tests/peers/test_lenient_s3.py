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
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.testing import OffloaderOnStore
from headwater_core.objectstore.s3 import S3Store
from tests.headwater_core.layouts.chunks.recovery import Consolidation, InterruptedConsolidation
from tests.headwater_core.layouts.chunks.segment_machine import SegmentMachine
from tests.headwater_core.layouts.chunks.test_chunks_layout import Append, Fixed
from tests.headwater_core.layouts.chunks.test_segment_machine import QUICK
from tests.headwater_core.objectstore.badnetwork import BadNetwork, bad_network
from tests.s3server import S3Server

pytestmark = pytest.mark.peer


@pytest.fixture
def bucket(lenient_environ: S3Server) -> str:
    return lenient_environ.bucket()


@pytest.fixture
def store(bucket: str, lenient_environ: S3Server) -> Iterator[S3Store]:
    with closing(S3Store(bucket, "archive", endpoint_url=lenient_environ.endpoint_url)) as store:
        yield store


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


@pytest.mark.parametrize(
    ("keys", "layout"), [(Append, ChunksLayout()), (Fixed, ChunksLayout(Variant.FIXED, 30_000))], ids=["append", "fixed"]
)
def test_a_run_is_read_as_it_was_written(keys: type[Append | Fixed], layout: Offloader, store: S3Store) -> None:
    contract = OffloaderOnStore()
    contract.KEY, contract.INDEX_KEY = keys.KEY, keys.INDEX_KEY
    assert contract.offload(layout, store).examine() == ""


class TestConsolidation(Consolidation):
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
