"""The contract that is shipped, over every layout, on a directory and on S3; and that it notices a layout that does not keep it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headwater_core.layouts import Offloader, open_layout
from headwater_core.layouts.blocks import BlocksLayout
from headwater_core.layouts.streaming import StreamingLayout
from headwater_core.layouts.streaming.stream_format import decode_stream_index
from headwater_core.layouts.testing import Archived, OffloaderContract, OffloaderOnStore, a_run
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectStore
from tests.headwater_core.layouts.blocks.page_reader import read_object
from tests.headwater_core.layouts.recompression import Recompression
from tests.s3server import S3Server

UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


class OnDirectory(OffloaderContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        (tmp_path / "archive").mkdir()
        return DirectoryStore(tmp_path / "archive")


class OnS3(OffloaderOnStore):
    @pytest.fixture
    def store(self, s3_environ: S3Server) -> Iterator[ObjectStore]:
        with closing(S3Store(s3_environ.bucket(), "archive", endpoint_url=s3_environ.endpoint_url)) as store:
            yield store


class TestSegmentOnDirectory(OnDirectory):
    @pytest.fixture
    def layout(self) -> Offloader:
        return open_layout("segment")


@pytest.mark.slow
class TestSegmentOnS3(OnS3):
    @pytest.fixture
    def layout(self) -> Offloader:
        return open_layout("segment")


class TestBlocksOnDirectory(OnDirectory):
    """One block, some, and one for each batch, which is larger than a block; of small batches two fit."""

    KEY, INDEX_KEY = "data/run.blocks", ""

    @pytest.fixture(params=[64 << 20, 70_000, 300])
    def layout(self, request: pytest.FixtureRequest) -> Offloader:
        return BlocksLayout(request.param)


class TestRecompressedSegmentOnDirectory(OnDirectory):
    """It gives back the same records in other batches."""

    @pytest.fixture
    def layout(self) -> Offloader:
        return Recompression(open_layout("segment"))


class TestRecompressedBlocksOnDirectory(OnDirectory):
    KEY, INDEX_KEY = "data/run.blocks", ""

    @pytest.fixture
    def layout(self) -> Offloader:
        return Recompression(BlocksLayout(600))


@pytest.mark.slow
class TestBlocksOnS3(OnS3):
    KEY, INDEX_KEY = "data/run.blocks", ""

    @pytest.fixture
    def layout(self) -> Offloader:
        return BlocksLayout()


class StreamingKeys:
    """Two objects, or three: what is said of the segment has one of its own where the index object's metadata has no room for it."""

    KEY, INDEX_KEY = f"data/0000000007/{UID}", f"data/0000000007/{UID}-index"


class TestStreamingOnDirectory(StreamingKeys, OnDirectory):
    """One block, and blocks of one batch or two each."""

    @pytest.fixture(params=[5 << 20, 200])
    def layout(self, request: pytest.FixtureRequest) -> Offloader:
        return StreamingLayout(request.param)

    def held_keys(self, archived: Archived) -> list[str]:
        return [self.KEY, self.INDEX_KEY, f"{self.KEY}-meta"]


@pytest.mark.slow
class TestStreamingOnS3(StreamingKeys, OnS3):
    @pytest.fixture
    def layout(self) -> Offloader:
        return StreamingLayout()


@pytest.mark.slow
def test_a_streaming_object_of_several_parts_on_s3(s3_environ: S3Server) -> None:
    run = a_run(220, value_bytes=100_000)
    with closing(S3Store(s3_environ.bucket(), "archive", endpoint_url=s3_environ.endpoint_url)) as store:
        archived = TestStreamingOnS3().offload(StreamingLayout(), store, run)
        assert archived.examine() == ""
        assert len(decode_stream_index(store.get(archived.stored.index_key)[0], "index").blocks) > 1
        assert list(store.unfinished("")) == []


@pytest.mark.slow
def test_an_object_of_several_parts_on_s3(s3_environ: S3Server) -> None:
    """SeaweedFS refuses parts of less than 5 MiB, as S3 does: the index is padded to that."""
    run = a_run(200, value_bytes=90_000)
    with closing(S3Store(s3_environ.bucket(), "archive", endpoint_url=s3_environ.endpoint_url)) as store:
        archived = TestBlocksOnS3().offload(BlocksLayout(5 << 20), store, run)
        assert archived.examine() == ""
        seen = read_object(store.get(archived.stored.key)[0])
        assert (len(seen.blocks) > 1, seen.padded_index_bytes) == (True, 5 << 20)
        assert list(store.unfinished("")) == []
        again = TestBlocksOnS3().offload(BlocksLayout(5 << 20), store, run)
        assert again.done == archived.done, "found where it is, although its key is taken"
