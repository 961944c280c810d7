"""States and interruptions on a directory, and on an S3 server that takes no parts below 5 MiB; on one that does, tests/peers has them."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headwater_core.errors import CorruptData, UsageError
from headwater_core.layouts.chunks import SegmentPlace, SegmentState, Variant, consolidate, delete_chunks
from headwater_core.layouts.chunks.chunk_segment import in_threads
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectStore
from tests.headwater.test_bad_input import can_mount
from tests.headwater_core.layouts.chunks.recovery import BOTH, CHUNK_BYTES, PLACES, WHOLE, Interruptions, Recovery, found, keys, put_chunks
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


@pytest.mark.parametrize(("lost", "writes"), [(0, 3), (20, 6), (130, 14)])
def test_a_writer_of_four_threads_that_is_killed_leaves_a_hole_that_is_filled(lost: int, writes: int, tmp_path: Path) -> None:
    """Who has the bytes writes them again from there on; what lies after the hole is compared, and not sent."""
    store, place = DirectoryStore(tmp_path), PLACES[Variant.FIXED]
    killed = doomed("write", "fixed", str(tmp_path), str(writes), str(lost))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = keys(store)
    assert len(before) >= writes
    assert place.chunk_key(lost) not in before
    segment = found(store, place)
    assert segment.found.damage is not None
    assert (segment.found.state, segment.end, segment.found.damage.key) == (SegmentState.LOST, lost, place.chunk_key(lost))
    assert segment.read0(0, lost) == WHOLE[:lost]
    for call in (consolidate, delete_chunks):
        with pytest.raises((CorruptData, UsageError)):
            call(store, place, len(WHOLE))
    assert keys(store) == before
    assert segment.commit0(lost, WHOLE[lost:], apply=in_threads(4)) == len(WHOLE)
    assert segment.found.state is SegmentState.OPEN
    assert consolidate(store, place, len(WHOLE)).state is SegmentState.LEFTOVER
    assert delete_chunks(store, place, len(WHOLE)).state is SegmentState.DONE
    assert found(store, place).read0(0, len(WHOLE)) == WHOLE


@BOTH
@pytest.mark.parametrize("writes", [1, 5])
def test_an_open_segment_with_a_short_tail_is_continued_after_a_kill(place: SegmentPlace, writes: int, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    killed = doomed("write", place.variant.value, str(tmp_path), str(writes), "")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    segment = found(store, place)
    assert segment.found.state is SegmentState.OPEN
    assert 0 < segment.end < len(WHOLE)
    assert segment.end % CHUNK_BYTES
    assert segment.read0(0, segment.end) == WHOLE[: segment.end]
    chunks = len(keys(store))
    assert segment.commit0(segment.end, WHOLE[segment.end :]) == len(WHOLE)
    if place.variant is Variant.FIXED:
        assert len(keys(store)) == -(-len(WHOLE) // CHUNK_BYTES), "the tail has grown"
    else:
        assert len(keys(store)) == chunks + 1
    assert found(store, place).read0(0, len(WHOLE)) == WHOLE


@pytest.mark.parametrize(
    ("place", "step"), [(PLACES[Variant.APPEND], "directory.written:1"), (PLACES[Variant.FIXED], "delete:2")], ids=["append", "fixed"]
)
def test_after_a_kill_two_owners_consolidate_at_once(place: SegmentPlace, step: str, tmp_path: Path) -> None:
    """The one that was killed has come back, and does not know that another one has claimed its queue meanwhile, and writes elsewhere."""
    store = DirectoryStore(tmp_path)
    put_chunks(store, place)
    killed = doomed("kill", place.variant.value, str(tmp_path), step)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    claimed = replace(place, queue=place.queue.replace("node.7", "other.8"))
    owner = found(store, claimed)
    owner.commit0(0, WHOLE[:25])
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: doomed("kill", place.variant.value, str(tmp_path), "never:1"), range(2)))
    assert [each.returncode for each in both] == [0, 0], both
    assert found(store, place).found.state is SegmentState.DONE
    assert found(store, place).read0(0, len(WHOLE)) == WHOLE
    assert owner.commit0(25, WHOLE[25:]) == len(WHOLE)
    assert found(store, claimed).read0(0, len(WHOLE)) == WHOLE


@pytest.mark.skipif(not can_mount(), reason="this kernel lets us mount nothing, not even in a namespace of our own")
@pytest.mark.parametrize("variant", [variant.value for variant in Variant])
def test_a_full_disk_costs_nothing_and_room_is_all_it_needs(variant: str, tmp_path: Path) -> None:
    ran = doomed("full", variant, str(tmp_path), prefix=("unshare", "-rm"))
    assert ran.returncode == 0, ran.stderr
