"""The contract that is shipped, over every layout, on a directory and on S3; and that it notices a layout that does not keep it."""

import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

from headwater_core.errors import CorruptData, SourceChanged
from headwater_core.layouts import Offloaded, Offloader, open_layout
from headwater_core.layouts.blocks import BlocksLayout
from headwater_core.layouts.streaming import LedgerEntries, OfferResult, OffloadBudget, StreamingLayout, StreamingOffloader
from headwater_core.layouts.streaming.stream_format import decode_stream_index
from headwater_core.layouts.testing import EXTRA, PARTITION, Archived, OffloaderContract, OffloaderOnStore, a_run, scanned
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.run_scan import OpenTransaction, RunScan
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


class Handles:
    """What a handle has written is read as what the layout has. Its entries come in three ledgers."""

    def write(self, layout: Offloader, store: ObjectStore, ledgers: Sequence[LedgerEntries], scan: RunScan) -> Offloaded:
        raise NotImplementedError

    def _offload(self, layout: Offloader, store: ObjectStore, source: io.BytesIO, scan: RunScan) -> Offloaded:
        return self.write(layout, store, in_ledgers(source.getvalue()[scan.start_position : scan.end_position]), scan)

    def test_a_source_that_is_no_longer_what_was_scanned_is_noticed(self, layout: Offloader, store: ObjectStore) -> None:
        """As far as a handle can: what it is offered is not what the offer says."""
        run = a_run(6)
        for at in range(3):
            ledgers = in_ledgers(run)
            content = cast(bytes, ledgers[at].content)
            for now in (content[:-1], content[:70] + b"\xff" + content[71:]):
                ledgers[at] = ledgers[at]._replace(content=now)
                with pytest.raises((SourceChanged, CorruptData)):
                    self.write(layout, store, ledgers, scanned(run))
                for info in list(store.list("data/")):
                    store.delete(info.key)


def in_ledgers(run: bytes) -> list[LedgerEntries]:
    found = list(headers(io.BytesIO(run), 0, len(run), where="run"))
    cuts = sorted({0, len(found) // 3, len(found) // 2, len(found)})
    ledgers = []
    for first, end in pairwise(cuts):
        start = found[first][0]
        size_bytes = sum(header.size_bytes for _, header in found[first:end])
        ledgers.append(LedgerEntries(found[first][1].base_offset, 0, run[start : start + size_bytes], end - first))
    return ledgers


class StreamHandles(Handles):
    def write(self, layout: Offloader, store: ObjectStore, ledgers: Sequence[LedgerEntries], scan: RunScan) -> Offloaded:
        part_bytes = cast(StreamingLayout, layout)._part_bytes
        offloader = StreamingOffloader(
            store, PARTITION, prefix=StreamingKeys.KEY.removesuffix(UID), fence=7, budget=OffloadBudget(64 << 20), part_bytes=part_bytes
        )
        open_before = (OpenTransaction(6, 2),)
        handle = offloader.streaming_offload(UUID(UID), {}, base_offset=scan.base_offset, open_before=open_before, extra_metadata=EXTRA)
        for each in ledgers:
            assert handle.offer(each) is OfferResult.SUCCESS
            while handle.send_part():
                pass
        handle.close()
        return handle.offloaded()


class TestStreamsOnDirectory(StreamHandles, TestStreamingOnDirectory):
    """Parts of some batches, in which a ledger ends and the next one begins."""

    @pytest.fixture
    def layout(self) -> Offloader:
        return StreamingLayout(30_000)


@pytest.mark.slow
class TestStreamingOnS3(StreamingKeys, OnS3):
    @pytest.fixture
    def layout(self) -> Offloader:
        return StreamingLayout()


@pytest.mark.slow
class TestStreamsOnS3(StreamHandles, TestStreamingOnS3):
    """What fills no part of S3's least size goes by one request."""


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
