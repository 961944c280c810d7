"""Topic manifests, which incarnation a name means, whose bucket it is."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.document import seal
from manifests.topic import (
    PARTITIONS_MAX,
    PREVIOUS_MAX,
    Current,
    Owner,
    TopicManifest,
    decode_current,
    decode_owner,
    decode_topic,
    encode_current,
    encode_owner,
    encode_topic,
    merge,
    turn_to,
)
from model.errors import CorruptData, ForeignOwner, UnsupportedFormat
from model.partition import topic_id_text
from tests.manifests.builders import TOPIC_ID

topic_ids = st.binary(min_size=16, max_size=16).map(topic_id_text)


def seen(topic_id: str = TOPIC_ID, **fields: Any) -> TopicManifest:
    return TopicManifest(**{"cluster_id": "cluster-1", "topic": "orders", "topic_id": topic_id, "partitions": 3, **fields})


manifests = st.builds(
    seen,
    topic_ids,
    partitions=st.integers(1, 10_000),
    version=st.integers(0, 2**40),
    configs=st.none() | st.dictionaries(st.text(), st.text()),
)
currents = st.builds(
    Current,
    cluster_id=st.just("c"),
    topic=st.just("orders"),
    topic_id=topic_ids,
    version=st.integers(1, 2**40),
    previous=st.lists(topic_ids, max_size=5).map(tuple),
)


@given(manifests, currents)
def test_what_is_written_reads_back(manifest: TopicManifest, current: Current) -> None:
    assert decode_topic(encode_topic(manifest), manifest.topic, manifest.topic_id) == manifest
    assert decode_current(encode_current(current), "orders") == current
    assert decode_owner(encode_owner(Owner(cluster_id="c"))) == Owner(cluster_id="c")


@given(manifests, st.data())
def test_a_flipped_bit_never_yields_another_manifest(manifest: TopicManifest, data: st.DataObject) -> None:
    raw = bytearray(encode_topic(manifest))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptData, UnsupportedFormat):
        assert decode_topic(bytes(raw), manifest.topic, manifest.topic_id) == manifest


def test_documents_of_other_topics_and_impossible_ones_are_refused() -> None:
    with pytest.raises(ForeignOwner):
        decode_topic(encode_topic(seen()), "payments", TOPIC_ID)
    with pytest.raises(ForeignOwner):
        decode_current(encode_current(Current(cluster_id="c", topic="a", topic_id=TOPIC_ID)), "b")
    for document in (
        seen(partitions=0),
        seen(partitions=2**40),
        seen(partitions=PARTITIONS_MAX + 1),
        seen(topic="../x"),
        seen(cluster_id="a/b"),
        seen(version=-1),
    ):
        with pytest.raises(CorruptData):
            decode_topic(seal(document), document.topic, TOPIC_ID)
    with pytest.raises(CorruptData):
        decode_current(seal(Current(cluster_id="c", topic="a", topic_id=TOPIC_ID, previous=("../..",))), "a")
    with pytest.raises(CorruptData):
        decode_owner(seal(Owner(cluster_id="../..")))


def test_partitions_only_grow_and_unknown_settings_erase_nothing() -> None:
    held = merge(None, seen(configs={"retention.ms": "-1"}))
    assert held is not None
    assert held.version == 1
    assert merge(held, seen(partitions=2)) is None
    assert merge(held, seen()) is None
    grown = merge(held, seen(partitions=5))
    assert grown == msgspec.structs.replace(held, partitions=5, version=2)
    assert merge(held, seen(configs={})) == msgspec.structs.replace(held, configs={}, version=2)


def test_a_name_never_turns_back_to_an_incarnation_it_has_left() -> None:
    old, new = seen(topic_id_text(bytes(16))), seen()
    first = turn_to(None, old)
    second = turn_to(first, new)
    assert second is not None
    assert (second.topic_id, second.previous, second.version) == (new.topic_id, (old.topic_id,), 2)
    assert turn_to(second, old) is None
    assert turn_to(second, new) is None


def test_the_list_of_left_incarnations_is_bounded() -> None:
    ids = tuple(topic_id_text(number.to_bytes(16, "big")) for number in range(PREVIOUS_MAX))
    turned = turn_to(Current(cluster_id="c", topic="orders", topic_id=topic_id_text(b"x" * 16), previous=ids), seen())
    assert turned is not None
    assert len(turned.previous) == PREVIOUS_MAX
    assert turned.previous[-1] == topic_id_text(b"x" * 16)
