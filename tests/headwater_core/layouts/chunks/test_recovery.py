"""States and interruptions on a directory, and on an S3 server that takes no parts below 5 MiB; on one that does, tests/peers has them."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headwater_core.layouts.chunks import SegmentPlace, SegmentState, Variant, consolidate, delete_chunks
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectStore
from tests.headwater.test_bad_input import can_mount
from tests.headwater_core.layouts.chunks.recovery import BOTH, WHOLE, Interruptions, Recovery, found, keys, put_chunks
from tests.headwater_core.objectstore.badnetwork import BadNetwork, bad_network
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.s3server import S3Server


class TestInMemory(Recovery):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore()


class TestInDirectory(Recovery):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return DirectoryStore(tmp_path)


@pytest.fixture
def bucket(s3_environ: S3Server) -> str:
    return s3_environ.bucket()


@pytest.fixture
def server_store(bucket: str, s3_environ: S3Server) -> Iterator[S3Store]:
    with closing(S3Store(bucket, "archive", endpoint_url=s3_environ.endpoint_url)) as store:
        yield store


class TestOnServer(Recovery):
    @pytest.fixture
    def store(self, server_store: S3Store) -> S3Store:
        return server_store


@pytest.mark.slow
class TestInterruptedOnServer(Interruptions):
    @pytest.fixture
    def store(self, server_store: S3Store) -> S3Store:
        return server_store

    @pytest.fixture
    def network(self, s3_environ: S3Server) -> Iterator[BadNetwork]:
        with bad_network(s3_environ.endpoint_url) as network:
            yield network

    @pytest.fixture
    def far(self, bucket: str, network: BadNetwork) -> Iterator[S3Store]:
        with closing(S3Store(bucket, "archive", endpoint_url=network.endpoint_url, attempts=1)) as store:
            yield store


def doomed(*arguments: str, prefix: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    command = [*prefix, sys.executable, "-m", "tests.headwater_core.layouts.chunks.doomed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@BOTH
@pytest.mark.parametrize("step", ["read:5", "directory.written:1", "directory.named:1", "delete:1", "delete:2", "delete:9"])
def test_a_consolidation_that_is_killed_is_taken_up_again(place: SegmentPlace, step: str, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    put_chunks(store, place)
    killed = doomed("kill", place.variant.value, str(tmp_path), step)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = keys(store)
    assert (place.segment_key in left) == (step.partition(":")[0] in ("directory.named", "delete"))
    assert found(store, place).read0(0, len(WHOLE)) == WHOLE
    assert consolidate(store, place, len(WHOLE)).state is SegmentState.LEFTOVER
    assert delete_chunks(store, place, len(WHOLE)).state is SegmentState.DONE
    assert found(store, place).read0(0, len(WHOLE)) == WHOLE
    assert keys(store) == [place.segment_key]


@pytest.mark.skipif(not can_mount(), reason="this kernel lets us mount nothing, not even in a namespace of our own")
@pytest.mark.parametrize("variant", [variant.value for variant in Variant])
def test_a_full_disk_costs_nothing_and_room_is_all_it_needs(variant: str, tmp_path: Path) -> None:
    ran = doomed("full", variant, str(tmp_path), prefix=("unshare", "-rm"))
    assert ran.returncode == 0, ran.stderr
