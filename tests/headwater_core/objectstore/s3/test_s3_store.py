from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from headwater_core.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
)
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectStore
from tests.headwater_core.objectstore.badnetwork import LOSE_REPLY, LOSE_REQUEST, BadNetwork, error
from tests.headwater_core.objectstore.contract import ObjectStoreContract, put
from tests.headwater_core.objectstore.s3.calls import some_bytes
from tests.s3server import S3Server


class TestS3Store(ObjectStoreContract):
    races = 2  # SeaweedFS lets the losers wait for a second

    @pytest.fixture
    def store(self, bucket: str, place: str, s3_environ: S3Server) -> Iterator[ObjectStore]:
        with closing(S3Store(bucket, place, endpoint_url=s3_environ.endpoint_url)) as store:
            yield store


def test_a_prefix_keeps_archives_apart(store: S3Store, bucket: str, place: str, s3_environ: S3Server) -> None:
    put(store, "a/b", b"1")
    with closing(S3Store(bucket, endpoint_url=s3_environ.endpoint_url)) as whole:
        put(whole, f"{place}-2/a", b"2")
        assert {info.key for info in whole.list(place)} == {f"{place}-2/a", f"{place}/a/b"}
    assert [info.key for info in store.list("")] == ["a/b"]
    assert [info.key for info in store.list("a", start_after="a/a")] == ["a/b"]


def test_foreign_keys_are_not_listed(store: S3Store, bucket: str, place: str, s3_environ: S3Server) -> None:
    put(store, "a", b"1")
    with closing(s3_environ.client()) as client:
        client.put_object(Bucket=bucket, Key=f"{place}/odd name", Body=b"")
    assert [info.key for info in store.list("")] == ["a"]


def test_a_listing_longer_than_a_page(store: S3Store) -> None:
    keys = [f"k/{number:04}" for number in range(1010)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.create(key, b""), keys))
    assert [info.key for info in store.list("k/")] == keys
    assert [info.key for info in store.list("k/", start_after="k/1004")] == keys[1005:]


def test_a_create_that_refuses_its_own_success_already_exists(bucket: str, place: str, network: BadNetwork) -> None:
    with closing(S3Store(bucket, place, endpoint_url=network.endpoint_url, attempts=2)) as store:
        network.plan.append(LOSE_REPLY)
        with pytest.raises(AlreadyExists):
            put(store, "a", b"mine")
        assert store.stat("a").digest == digest_of(b"mine")


def test_a_replacement_that_refuses_its_own_success_conflicts(bucket: str, place: str, network: BadNetwork) -> None:
    with closing(S3Store(bucket, place, endpoint_url=network.endpoint_url, attempts=2)) as store:
        tag = store.create("doc", b"1")
        network.plan.append(LOSE_REPLY)
        with pytest.raises(Conflict):
            store.replace("doc", b"2", expected_tag=tag)
        assert store.get("doc")[0] == b"2"


def test_a_replacement_of_what_amazon_says_is_not_there_conflicts(far: S3Store, network: BadNetwork) -> None:
    network.plan.append(error(404, "NoSuchKey"))
    with pytest.raises(Conflict):
        far.replace("a", b"", expected_tag="0")


def test_a_lost_request_is_sent_again(bucket: str, place: str, network: BadNetwork, tmp_path: Path) -> None:
    content = some_bytes(700_000)
    (tmp_path / "segment").write_bytes(content)
    with (
        closing(S3Store(bucket, place, endpoint_url=network.endpoint_url, attempts=2)) as store,
        (tmp_path / "segment").open("rb") as source,
    ):
        network.plan.append(LOSE_REQUEST)
        assert store.put("a", source, size_bytes=len(content)) == digest_of(content)
        assert store.get("a")[0] == content


def test_damage_that_the_store_did_not_notice_is_noticed_on_reading(far: S3Store, network: BadNetwork) -> None:
    far.create("doc", b"1234")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwater_core.objectstore.s3.s3_store.digest_of", lambda _: "crc64nvme:0000000000000000")
        with pytest.raises(CorruptData):
            far.get("doc")
