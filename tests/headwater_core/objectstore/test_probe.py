from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headwater_core.errors import Conflict, TransientError, UsageError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.probe import PROBE_KEY, Capabilities, probe_store
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectInfo, ObjectStore
from tests.headwater_core.objectstore.badnetwork import LOSE_REPLY, PASS, bad_network
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


class Encrypted(MemoryStore):
    """As S3 with SSE-KMS: each replacement has another tag. `between` is done once, after a document was read."""

    def __init__(self) -> None:
        super().__init__()
        self.between: list[Callable[[], object]] = []
        self.version = 0

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        content, version = super().get(key)[0], self.version
        if self.between:
            self.between.pop()()
        return content, f"{version:032x}"

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        if expected_tag != f"{self.version:032x}":
            raise Conflict(key)
        self.version += 1
        return f"{self.version:032x}"


def test_agents_that_probe_at_once_all_find_a_good_store_good() -> None:
    store, others = Encrypted(), list[Capabilities]()
    store.between.append(lambda: others.append(probe_store(store)))
    assert probe_store(store) == EVERYTHING
    assert others == [EVERYTHING]


def test_a_store_that_is_busy_with_probes_is_probed_again_later() -> None:
    store = Encrypted()

    def disturb() -> None:
        store.version += 1
        store.between.append(disturb)

    store.between.append(disturb)
    with pytest.raises(TransientError, match="by others"):
        probe_store(store)


def test_a_store_that_refuses_each_replacement_is_found_out() -> None:
    class Refusing(MemoryStore):
        def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
            raise Conflict(key)

    assert not probe_store(Refusing()).conditional_replace


def test_a_replacement_that_refuses_its_own_success_is_one(s3_environ: S3Server) -> None:
    """Botocore sends it again when its answer is lost."""
    bucket = s3_environ.bucket()
    with (
        bad_network(s3_environ.endpoint_url) as network,
        closing(S3Store(bucket, endpoint_url=network.endpoint_url, attempts=2)) as store,
    ):
        network.plan.extend([PASS, PASS, PASS, LOSE_REPLY])
        assert probe_store(store) == EVERYTHING


def test_a_bucket_that_is_not_there_is_said(s3_environ: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(S3Store("no", endpoint_url=s3_environ.endpoint_url)) as store, pytest.raises(UsageError):
        probe_store(store)
