"""A document of the bucket with a right digest and numbers that cannot be: a HeadwaterError names it, or all that reads it can."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from archival.plan.lineage import branches_at, may_lack, verdict
from headwater_core.epochs import EpochHistory
from headwater_core.errors import HeadwaterError
from headwater_core.partition import topic_id_text
from hydration.archive.manifest_view import extent_of
from manifests.cluster_list import ClusterList, DroppedSnapshot, ListedSnapshot, decode_cluster_list, encode_cluster_list
from manifests.document import _digest
from manifests.entry import OFFSET_MAX, Entry, EpochOffset
from manifests.head import Head, decode_head, encode_head
from manifests.pause_list import Pause, PauseList, decode_pauses, encode_pauses
from manifests.pending_list import PendingObject
from manifests.setting_list import SettingList, TopicSetting, decode_settings, encode_settings
from manifests.topic import (
    Current,
    Owner,
    choose,
    decode_current,
    decode_owner,
    decode_topic,
    encode_current,
    encode_owner,
    encode_topic,
    merge,
)
from tests.manifests.builders import PARTITION, TOPIC_ID, a_gap, a_head, a_topic, an_entry
from tests.manifests.trees import Pages, grown

EXTREMES = [-(2**64), -(2**63) - 1, -(2**63), -(2**31), -1, 0, 1, 2**31 - 1, 2**31, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**400]
Path = tuple[str | int, ...]


def a_deep_head() -> tuple[Head, Pages]:
    pages = Pages()
    entries = [
        an_entry(at, at + 9, open_from=at, aborted=1, aborted_from=at, displaced_by=EpochOffset(0, at), published_ms=at)
        if at % 50
        else a_gap(at, at + 9)
        for at in range(10, 400, 10)
    ]
    tree = grown(pages, entries)
    assert tree.references
    pending = PendingObject(uid="ab" * 16, fence=1, layout="streaming", base_offset=400, last_offset=410, assigned_ms=5, failed_ms=6)
    superseded = pages.packed_superseded(a_head(superseded=[an_entry(at, at + 20) for at in range(0, 300, 10)]).superseded)
    head = a_head(start_offset=12, last_offset=399, leader_epoch=3, clean_to=5, format=(2, 3), pending=(pending,))
    return replace(head, entries=tree, superseded=superseded), pages


HEAD, PAGES = a_deep_head()
CURRENT = Current(cluster_id="c", topic="orders", topic_id=TOPIC_ID, as_of=5)


def _next_entries(head: Head) -> list[Entry]:
    return [an_entry(head.next_offset, head.next_offset + 9)] if head.next_offset + 9 <= OFFSET_MAX else []


def read_head(raw: bytes) -> None:
    """Everything that a reader, an archiver or a report makes of it."""
    head = decode_head(raw, PARTITION, PAGES.reader)
    encode_head(head)
    history = EpochHistory.of([(0, 0), (2, 100)])
    for questions in (
        lambda: list(head.entries),
        lambda: len(head.entries),
        lambda: (head.entries.spans(), list(head.entries.gap_spans()), head.entries.at(55)),
        lambda: list(head.superseded),
        lambda: len(head.superseded),
        lambda: (branches_at(history, head.entries), may_lack(history, head.entries), verdict(history, 2, head)),
        lambda: extent_of(head),
        lambda: PAGES.packed(head.entries.followed_by(*_next_entries(head))),
        lambda: encode_head(replace(head, version=head.version + 1)),
    ):
        try:
            questions()
        except HeadwaterError:  # each alone: one that finds it out must not hide the others
            continue


DOCUMENTS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "head": (encode_head(HEAD), read_head),
    "topic": (
        encode_topic(replace(a_topic(), version=3, configs={"a": "b"})),
        lambda raw: encode_topic(merge(decode_topic(raw, "orders", TOPIC_ID), a_topic(partitions=9)) or a_topic()),
    ),
    "current": (
        encode_current(CURRENT),
        lambda raw: encode_current(choose(decode_current(raw, "orders"), a_topic(topic_id=topic_id_text(b"t" * 16)), []) or CURRENT),
    ),
    "owner": (encode_owner(Owner(cluster_id="c")), lambda raw: encode_owner(decode_owner(raw))),
    "pauses": (
        encode_pauses(PauseList(pauses=(Pause(topic="orders", partition=3, since_ms=5, until_ms=6, by="me"),))),
        lambda raw: encode_pauses(decode_pauses(raw, "pauses").paused(Pause(since_ms=1, by="x").selection, now_ms=10, by="x")),
    ),
    "settings": (
        encode_settings(SettingList(settings=(TopicSetting(pattern="a*", key="k", value="v", since_ms=5, by="me"),))),
        lambda raw: encode_settings(decode_settings(raw, "settings").changed("b", {"k": "v"}, now_ms=10, by="x")),
    ),
    "cluster list": (
        encode_cluster_list(
            ClusterList(
                cluster_id="c",
                snapshots=(
                    ListedSnapshot(number=2, end_offset=5, end_epoch=1, uid="ab" * 16, taken_ms=5, size_bytes=100, has_secrets=None),
                ),
                dropped=(DroppedSnapshot(number=1, uid="cd" * 16, dropped_ms=5),),
            )
        ),
        lambda raw: encode_cluster_list(decode_cluster_list(raw).only([], now_ms=10)),
    ),
}


def numbers(value: Any, at: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for key in value:
            yield from numbers(value[key], (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from numbers(item, (*at, index))
    elif value is None or (isinstance(value, int) and not isinstance(value, bool)):
        yield at


def changed(raw: bytes, changes: dict[Path, int]) -> bytes:
    body = json.loads(raw)
    del body["digest"]
    for path, number in changes.items():
        part = body
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = number
    text = json.dumps(body).encode()
    try:
        body["digest"] = _digest(msgspec.json.decode(text))
    except (OverflowError, msgspec.MsgspecError):  # no digest can be right
        body["digest"] = "crc64nvme:0000000000000000"
    return json.dumps(body).encode()


def check_read(name: str, changes: dict[Path, int]) -> None:
    raw, read = DOCUMENTS[name]
    try:
        read(changed(raw, changes))
    except HeadwaterError:
        return


def test_what_is_not_changed_is_read() -> None:
    for raw, read in DOCUMENTS.values():
        read(changed(raw, {}))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_one_impossible_number_is_named(name: str) -> None:
    paths = list(numbers(json.loads(DOCUMENTS[name][0])))
    assert paths
    unnamed = []
    for path in paths:
        for number in EXTREMES:
            try:
                check_read(name, {path: number})
            except Exception as error:
                unnamed.append((path, number, repr(error)))
    assert not unnamed


@settings(deadline=None)
@given(data=st.data(), name=st.sampled_from(list(DOCUMENTS)))
def test_several_impossible_numbers_are_named(data: st.DataObject, name: str) -> None:
    paths = list(numbers(json.loads(DOCUMENTS[name][0])))
    check_read(name, data.draw(st.dictionaries(st.sampled_from(paths), st.sampled_from(EXTREMES), min_size=1, max_size=5)))
