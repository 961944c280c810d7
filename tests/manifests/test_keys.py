"""Keys are written in one place and read back there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests import keys
from tests.manifests.builders import PARTITION, TOPIC_ID


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 10**10 - 1), st.uuids())
def test_a_data_key_says_what_it_was_made_from(base: int, last: int, fence: int, uid: object) -> None:
    text = str(uid).replace("-", "")
    key = keys.data(PARTITION, base, last, fence, text)
    assert keys.parse_data(key) == keys.DataName(base, last, fence, text, "log")
    assert keys.parse_data(keys.index(key)) == keys.DataName(base, last, fence, text, "index")
    assert key.startswith(keys.data_prefix(PARTITION))
    assert keys.partition_of(key) == str(PARTITION)


def test_what_is_written_while_it_fills_has_names_without_offsets() -> None:
    key = keys.data(PARTITION, 5, 9, 7, "a" * 32, "streaming")
    assert key == f"{keys.stream_prefix(PARTITION)}0000000007/aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
    assert keys.stream_prefix(PARTITION) == keys.data_prefix(PARTITION).replace("data/", "stream/", 1)
    assert keys.index(key) == ""
    for each in (key, key + "-index", key + "-meta"):
        assert keys.beside(each) == key
        assert keys.parse_object(each) == (7, "a" * 32)
        assert keys.home(each) == keys.data_prefix(PARTITION)
        assert keys.partition_of(each) == str(PARTITION)
    assert keys.parse_object(keys.data(PARTITION, 5, 9, 7, "a" * 32)) == (7, "a" * 32)
    assert [keys.parse_object(each) for each in (key + ".tmp", key.replace("0000000007", "7"), "stream/x")] == [None] * 3


@pytest.mark.parametrize(
    "key", ["", "data/x", "data/1-2-3-4.log", "data/" + "٣" * 20 + "-" + "0" * 20 + "-" + "0" * 10 + "-" + "a" * 32 + ".log"]
)
def test_other_names_are_no_data_keys(key: str) -> None:
    assert keys.parse_data(key) is None
    assert keys.partition_of(key) == ""


def test_manifest_keys_read_back() -> None:
    assert keys.parse_manifest(keys.head(PARTITION)) == ("orders", TOPIC_ID, 3)
    assert keys.parse_manifest(keys.topic_manifest("orders", TOPIC_ID)) == ("orders", TOPIC_ID, None)


@pytest.mark.parametrize(
    "key",
    [
        f"meta/../{TOPIC_ID}/3/manifest.json",
        f"meta/orders/{TOPIC_ID}/03/manifest.json",
        f"meta/orders/{TOPIC_ID}/-3/manifest.json",
        f"meta/orders/{TOPIC_ID}/9999999999/manifest.json",
        f"meta/orders/{TOPIC_ID}/٣/manifest.json",
        "meta/orders/not-an-id/3/manifest.json",
        "meta/orders/current.json",
        f"data/orders/{TOPIC_ID}/3/manifest.json",
        f"meta/a/b/{TOPIC_ID}/3/manifest.json",
    ],
)
def test_names_we_would_not_write_are_passed_over(key: str) -> None:
    assert keys.parse_manifest(key) is None
