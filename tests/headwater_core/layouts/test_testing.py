"""The contract that is shipped, over every layout, on a directory and on S3; and that it notices a layout that does not keep it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headwater_core.layouts import Offloader, open_layout
from headwater_core.layouts.testing import OffloaderContract
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectStore
from tests.s3server import S3Server


class OnDirectory(OffloaderContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return DirectoryStore(tmp_path / "archive")


class OnS3(OffloaderContract):
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
