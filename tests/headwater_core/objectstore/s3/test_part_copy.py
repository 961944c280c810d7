"""Copies by the service when it or the network fails, and what they leave; what they make is the contract's."""

from typing import Any

import pytest

from headwater_core.errors import NotFound, TransientError, UnknownOutcome
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectForm, ObjectRange
from tests.headwater_core.objectstore.badnetwork import LOSE_REPLY, PASS, BadNetwork, error
from tests.headwater_core.objectstore.contract import put, read
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.objectstore.s3.calls import PART, some_bytes


def test_small_ranges_are_sent_and_large_ones_copied(store: S3Store) -> None:
    large, small = some_bytes(2 * PART), some_bytes(1000)
    put(store, "large", large)
    put(store, "small", small)
    whole = small + large + small
    ranges = [ObjectRange("small", 0, 1000), ObjectRange("large", 0, 2 * PART), ObjectRange("small", 0, 1000)]
    metered, paced = MeteredStore(store), list[int]()
    store._copies.join(metered, "whole", ranges, digest_of(whole), ObjectForm({"name": "value"}), paced.append)
    assert sum(paced) == PART + 1000, "what is sent; a copy waits for leave, and counts for nothing"
    assert 0 in paced
    assert metered.bytes_read == 1000 + (PART - 1000) + 1000  # the first part is filled up to the least size
    assert read(store, "whole", 0, len(whole)) == whole
    assert store.stat("whole").digest == digest_of(whole)
    assert store.stat("whole").tag.endswith("-3")
    assert store.read_into("whole", memoryview(bytearray(1)), start=0) == {"name": "value"}


def test_an_object_of_the_least_size_is_copied_without_a_range(store: S3Store, bucket: str) -> None:
    """Amazon takes a range only of a source that is larger than 5 MB, and `chunk_bytes = "5MiB"` is a natural choice."""
    least, longer = some_bytes(PART), some_bytes(PART + 1)
    put(store, "least", least)
    put(store, "longer", longer)
    requests: list[tuple[str, str | None]] = []

    def record(params: dict[str, Any], **_: object) -> None:
        headers = params["headers"]
        requests.append((headers["x-amz-copy-source"].rpartition("/")[2], headers.get("x-amz-copy-source-range")))

    store._bucket.client.meta.events.register("before-call.s3.UploadPartCopy", record)
    ranges = [
        ObjectRange("least", 0, PART),
        ObjectRange("longer", 0, PART),
        ObjectRange("longer", 1, PART),
        ObjectRange("longer", 0, PART + 1),
    ]
    whole = least + longer[:PART] + longer[1:] + longer
    store.join("whole", ranges, digest=digest_of(whole))
    assert sorted(requests, key=str) == sorted(
        [
            ("least", None),
            ("longer", f"bytes=0-{PART - 1}"),
            ("longer", f"bytes=1-{PART}"),
            ("longer", f"bytes=0-{PART}"),
        ],
        key=str,
    )
    assert read(store, "whole", 0, len(whole)) == whole


@pytest.mark.parametrize("which", [0, 1, 3])  # the beginning, a part, the completion
def test_a_copy_that_fails_leaves_nothing(store: S3Store, far: S3Store, network: BadNetwork, which: int) -> None:
    content = some_bytes(2 * PART)
    put(store, "a", content)
    network.plan.extend([PASS] * which + [error(503, "SlowDown")])
    with pytest.raises(TransientError):
        far.join("whole", [ObjectRange("a", 0, 2 * PART), ObjectRange("a", 0, PART)], digest=digest_of(content + content[:PART]))
    with pytest.raises(NotFound):
        store.stat("whole")
    assert list(store.unfinished("")) == []


def test_a_completion_whose_reply_is_lost_is_unknown_and_done(store: S3Store, far: S3Store, network: BadNetwork) -> None:
    content = some_bytes(2 * PART)
    put(store, "a", content)
    network.plan.extend([PASS] * 2 + [LOSE_REPLY])
    with pytest.raises(UnknownOutcome):
        far.join("whole", [ObjectRange("a", 0, 2 * PART)], digest=digest_of(content))
    assert store.stat("whole").digest == digest_of(content)
