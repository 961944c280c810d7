"""Topic manifests, which incarnation a name means, whose bucket it is."""

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, ForeignOwner, UnsupportedFormat
from headwater_core.partition import topic_id_text
from manifests.document import seal
from manifests.topic import (
    NO_METADATA,
    PARTITIONS_MAX,
    PREVIOUS_MAX,
    Current,
    Owner,
    Sight,
    TopicManifest,
    choose,
    decode_current,
    decode_owner,
    decode_topic,
    encode_current,
    encode_owner,
    encode_topic,
    merge,
    turn_to,
)
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
    as_of=st.none() | st.integers(0, 2**62),
    chosen=st.booleans(),
)


def sealed(value: msgspec.Struct, fields: Mapping[str, object]) -> bytes:
    """`value` as a document that says `fields` instead, its digest right."""
    loose = msgspec.defstruct("Loose", [(name, Any) for name in value.__struct_fields__], kw_only=True)
    return seal(loose(**{**msgspec.to_builtins(value), **fields}))


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
    impossible: tuple[dict[str, object], ...] = (
        {"partitions": 0},
        {"partitions": 2**40},
        {"partitions": PARTITIONS_MAX + 1},
        {"topic": "../x"},
        {"cluster_id": "a/b"},
        {"version": -1},
    )
    for fields in impossible:
        with pytest.raises(CorruptData):
            decode_topic(sealed(seen(), fields), "orders", TOPIC_ID)
    current = Current(cluster_id="c", topic="a", topic_id=TOPIC_ID)
    names: tuple[dict[str, object], ...] = ({"previous": ["../.."]}, {"as_of": -1}, {"version": -1}, {"topic_id": "../.."})
    for wrong in names:
        with pytest.raises(CorruptData):
            decode_current(sealed(current, wrong), "a")
    with pytest.raises(CorruptData):
        decode_owner(sealed(Owner(cluster_id="c"), {"cluster_id": "../.."}))


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
    assert turn_to(first, new) is None  # it may be the older one
    second = turn_to(first, new, moves=lambda: False)
    assert second is not None
    assert (second.topic_id, second.previous, second.version) == (new.topic_id, (old.topic_id,), 2)
    assert turn_to(second, old) is None
    assert turn_to(second, new) is None


def named(*sights: tuple[TopicManifest, Sight], moves: bool = False) -> str:
    """Which incarnation the name means after agents have seen these, one after the other."""
    held: Current | None = None
    for manifest, sight in sights:
        held = turn_to(held, manifest, sight, lambda: moves) or held
    assert held is not None
    return held.topic_id


OLD, NEW, NEWER = (seen(topic_id_text(bytes([at]) * 16)) for at in (1, 2, 3))


def test_a_brokers_old_disk_does_not_take_the_name() -> None:
    assert named((NEW, Sight(as_of=50)), (OLD, Sight(as_of=40))) == NEW.topic_id
    assert named((NEW, Sight(as_of=50)), (OLD, Sight(is_replaced=True))) == NEW.topic_id
    assert named((NEW, Sight(as_of=50)), (OLD, NO_METADATA)) == NEW.topic_id
    assert named((NEW, NO_METADATA), (OLD, NO_METADATA), moves=True) == NEW.topic_id
    assert named((NEW, NO_METADATA), (OLD, Sight(is_replaced=True))) == NEW.topic_id


def test_a_topic_that_was_created_again_takes_the_name() -> None:
    assert named((OLD, Sight(as_of=50)), (NEW, Sight(as_of=60))) == NEW.topic_id
    assert named((OLD, NO_METADATA), (NEW, Sight(as_of=60)), moves=True) == NEW.topic_id
    assert named((OLD, NO_METADATA), (NEW, NO_METADATA)) == NEW.topic_id
    assert named((OLD, Sight(is_replaced=True)), (NEW, Sight(as_of=60))) == NEW.topic_id


def test_a_name_that_went_wrong_turns_back_when_the_cluster_says_so() -> None:
    assert named((NEW, NO_METADATA), (OLD, NO_METADATA), (NEW, Sight(as_of=60))) == NEW.topic_id
    assert named((NEW, NO_METADATA), (OLD, NO_METADATA), (NEW, NO_METADATA)) == OLD.topic_id


def test_the_first_offset_that_is_known_is_kept() -> None:
    held = turn_to(turn_to(None, NEW), NEW, Sight(as_of=7))
    assert held is not None
    assert (held.as_of, held.version) == (7, 2)
    assert turn_to(held, NEW, Sight(as_of=9)) is None


def test_what_a_recovered_cluster_makes_under_its_old_id_takes_the_name() -> None:
    held = turn_to(None, OLD, Sight(as_of=5_000_000))
    assert turn_to(held, NEW, Sight(as_of=400)) is None  # a broker with an old disk, for all that is known
    held = turn_to(held, OLD, Sight(as_of=300))  # the same incarnation after the recovery, whose metadata begins anew
    assert held is not None
    assert held.as_of == 300
    turned = turn_to(held, NEW, Sight(as_of=400))
    assert turned is not None
    assert turned.topic_id == NEW.topic_id


def test_offsets_of_another_cluster_are_not_compared() -> None:
    held = turn_to(None, msgspec.structs.replace(OLD, cluster_id="cluster-0"), Sight(as_of=900))
    turned = turn_to(held, NEW, Sight(as_of=5))
    assert turned is not None
    assert turned.topic_id == NEW.topic_id


@given(st.data())
def test_the_latest_sight_wins_in_whatever_order_they_come(data: st.DataObject) -> None:
    created = sorted(data.draw(st.sets(st.integers(0, 100), min_size=3, max_size=3)))
    sights = []
    for as_of in data.draw(st.lists(st.integers(created[0], 120), min_size=1, max_size=8)):
        manifest = [OLD, NEW, NEWER][max(at for at, offset in enumerate(created) if offset <= as_of)]
        sights.append((manifest, Sight(as_of=as_of)))
    stale = st.sampled_from([(OLD, NO_METADATA), (NEW, NO_METADATA), (OLD, Sight(is_replaced=True))])
    _, latest = max((sight.as_of or 0, manifest.topic_id) for manifest, sight in sights)
    order = data.draw(st.permutations([*sights, *data.draw(st.lists(stale, max_size=4))]))
    assert named(*order) == latest


def test_what_a_person_chose_stays_until_the_topic_is_created_again() -> None:
    held = turn_to(None, NEW, Sight(as_of=50))
    chosen = choose(held, OLD, [OLD.topic_id, NEW.topic_id])
    assert chosen is not None
    assert (chosen.topic_id, chosen.previous, chosen.chosen, chosen.as_of) == (OLD.topic_id, (NEW.topic_id,), True, 50)
    assert choose(chosen, OLD, [OLD.topic_id, NEW.topic_id]) is None
    assert turn_to(chosen, NEW, Sight(as_of=70)) is None
    assert turn_to(chosen, NEW) is None
    again = turn_to(chosen, NEWER, Sight(as_of=80))
    assert again is not None
    assert (again.topic_id, again.chosen) == (NEWER.topic_id, False)
    first = choose(None, NEW, [OLD.topic_id, NEW.topic_id])
    assert first is not None
    assert (first.topic_id, first.previous, first.version) == (NEW.topic_id, (OLD.topic_id,), 1)


def test_the_list_of_left_incarnations_is_bounded() -> None:
    ids = tuple(topic_id_text(number.to_bytes(16, "big")) for number in range(PREVIOUS_MAX))
    turned = turn_to(Current(cluster_id="c", topic="orders", topic_id=topic_id_text(b"x" * 16), previous=ids), seen(), Sight(as_of=1))
    assert turned is not None
    assert len(turned.previous) == PREVIOUS_MAX
    assert turned.previous[-1] == topic_id_text(b"x" * 16)
