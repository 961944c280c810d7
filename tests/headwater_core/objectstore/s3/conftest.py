"""S3 stores on a real server: next to it, and on the other side of a bad network."""

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from headwater_core.objectstore.s3 import S3Store
from tests.headwater_core.objectstore.badnetwork import BadNetwork, bad_network
from tests.headwater_core.objectstore.s3.calls import PART
from tests.s3server import S3Server


@pytest.fixture(scope="session")
def bucket(s3_server: S3Server) -> str:
    """One for all tests, as a new one takes the server a while; prefixes keep them apart."""
    return s3_server.bucket()


@pytest.fixture
def place() -> str:
    return f"archives/{uuid.uuid4().hex}"


@pytest.fixture
def store(bucket: str, place: str, s3_environ: S3Server) -> Iterator[S3Store]:
    """One that uses parts as soon as it may."""
    with closing(S3Store(bucket, place, endpoint_url=s3_environ.endpoint_url, single_put_bytes_max=PART, part_bytes=PART)) as store:
        yield store


@pytest.fixture
def network(s3_environ: S3Server) -> Iterator[BadNetwork]:
    with bad_network(s3_environ.endpoint_url) as network:
        yield network


@pytest.fixture
def far(bucket: str, place: str, network: BadNetwork) -> Iterator[S3Store]:
    """A store on the other side of a bad network, that does not try again by itself."""
    with closing(
        S3Store(bucket, place, endpoint_url=network.endpoint_url, attempts=1, single_put_bytes_max=PART, part_bytes=PART)
    ) as store:
        yield store
