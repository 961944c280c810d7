"""One topic, and the list of them: settings, pauses, incarnations, pages."""

from typing import Any

import msgspec
import pytest

from archival.config import ArchivalConfig
from headwater.admin.status_board import BoardEntry
from headwater.admin.status_page import PageFacts
from headwater.admin.topic_page import TopicPage, TopicRules, TopicSources, page_of_topic, topic_list
from headwater.gateway.config import GatewayConfig
from hydration.config import HydrationConfig, ReadPriority
from manifests.pause_list import Pause, PauseList
from tests.headwater.admin.statuses import a_status

ENTRIES = [
    BoardEntry(a_status("orders", 1, state="waiting", lag_bytes=70, lag_s=5.0), 0.0, 0.0, is_sized=True),
    BoardEntry(a_status("orders", 0), 0.0, 0.0, is_sized=True),
    BoardEntry(a_status("orders", 0, state="archive-only", lag_bytes=None, lag_s=None), 0.0, 0.0, is_sized=True),
    BoardEntry(a_status("bills", 0), 0.0, 0.0),
]


def a_page(topic: str = "orders", *, sources: TopicSources | None = None, limit: int = 100, **asked: Any) -> TopicPage | None:
    return page_of_topic(topic, ENTRIES, PageFacts(), sources or TopicSources(), limit=limit, now_s=2.0, at_ms=1, **asked)


def test_the_list_has_each_topic_once_and_pages() -> None:
    whole = topic_list(ENTRIES, PageFacts(), after="", limit=9, now_s=2.0, at_ms=1)
    assert [(each.topic, each.partitions, each.local_partitions, each.unknown_sizes) for each in whole.topics] == [
        ("bills", 1, 1, 1),
        ("orders", 3, 2, 0),
    ]
    assert whole.next_after is msgspec.UNSET
    first = topic_list(ENTRIES, PageFacts(), after="", limit=1, now_s=2.0, at_ms=1)
    assert ([each.topic for each in first.topics], first.next_after) == (["bills"], "bills")
    assert topic_list(ENTRIES, PageFacts(), after="bills", limit=1, now_s=2.0, at_ms=1).topics == whole.topics[1:]


def test_a_topic_has_its_partitions_by_number_and_both_incarnations_of_one_on_one_page() -> None:
    whole, first = a_page(), a_page(limit=1)
    assert whole is not None
    assert first is not None
    assert [row.partition for row in whole.partitions] == [0, 0, 1]
    assert ([row.partition for row in first.partitions], first.next_after) == ([0, 0], 0)
    rest = a_page(after=0)
    assert rest is not None
    assert [row.partition for row in rest.partitions] == [1]
    assert whole.topic == first.topic == rest.topic
    assert (whole.topic.lag_bytes, whole.topic.local_partitions) == (70, 2)


def test_one_partition_and_one_that_is_not_known() -> None:
    one = a_page(partition=1)
    assert one is not None
    assert ([row.partition for row in one.partitions], one.topic.partitions) == ([1], 1)
    assert a_page(partition=7) is None
    assert a_page("absent") is None


def test_settings_and_pauses_that_hold_for_it() -> None:
    pauses = PauseList(
        pauses=(
            Pause(since_ms=1, by="me"),
            Pause(topic="orders", partition=1, since_ms=2, by="you"),
            Pause(topic="orders", since_ms=3, by="you", until_ms=4),
            Pause(topic="bills", since_ms=5, by="you"),
        )
    )
    settings = TopicRules.of(ArchivalConfig(retention_s=9), HydrationConfig(read_priority=ReadPriority.OFFLOADED_FIRST), GatewayConfig())
    sources = TopicSources(lambda topic: settings, lambda: pauses)
    whole, zero = a_page(sources=sources), a_page(sources=sources, partition=0)
    assert whole is not None
    assert zero is not None
    assert whole.pauses is not None
    assert [(each.topic, each.partition, each.by) for each in whole.pauses] == [(None, None, "me"), ("orders", 1, "you")]
    assert zero.pauses is not None
    assert len(zero.pauses) == 1
    assert (whole.settings.retention_s, whole.settings.read_priority) == (9, "offloaded-first")
    unknown = a_page()
    assert unknown is not None
    assert unknown.pauses is None


@pytest.mark.parametrize("kind", [ArchivalConfig])
def test_every_setting_that_may_be_of_a_topic_is_shown(kind: type) -> None:
    from headwater.config import _PER_TOPIC
    from headwater.setting_values import key_of

    shown = {key_of(name) for name in TopicRules.__struct_fields__}
    assert set(_PER_TOPIC) <= shown
