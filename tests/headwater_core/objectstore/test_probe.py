from contextlib import closing
from pathlib import Path

import pytest

from headwater_core.errors import UsageError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.probe import PROBE_KEY, Capabilities, probe_store
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectInfo, ObjectStore
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.s3server import S3Server

EVERYTHING = Capabilities(conditional_create=True, conditional_replace=True, digest_confirmed=True)


class Overwriting(MemoryStore):
    """As some stores do: takes the conditions and ignores them."""

    def create(self, key: str, document: bytes) -> str:
        self.delete(key)
        return super().create(key, document)

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        return self.create(key, document)

    def stat(self, key: str) -> ObjectInfo:
        info = super().stat(key)
        return ObjectInfo(key, info.size_bytes, info.tag)


def test_a_store_that_keeps_everything(tmp_path: Path, s3_environ: S3Server) -> None:
    with closing(S3Store(s3_environ.bucket(), endpoint_url=s3_environ.endpoint_url)) as s3:
        stores: list[ObjectStore] = [MemoryStore(), DirectoryStore(tmp_path / "new"), s3]
        for store in stores:
            assert probe_store(store) == EVERYTHING
            assert probe_store(store) == EVERYTHING  # what the first one left does not disturb
            assert [info.key for info in store.list("")] == [PROBE_KEY]
    assert EVERYTHING.many_agents


def test_a_store_that_ignores_conditions_is_found_out() -> None:
    found = probe_store(Overwriting())
    assert found == Capabilities(conditional_create=False, conditional_replace=False, digest_confirmed=False)
    assert not found.many_agents


def test_a_bucket_that_is_not_there_is_said(s3_environ: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(S3Store("no", endpoint_url=s3_environ.endpoint_url)) as store, pytest.raises(UsageError):
        probe_store(store)
