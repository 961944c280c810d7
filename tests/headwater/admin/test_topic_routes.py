"""Topics over HTTP: typed answers, whatever is written in a path."""

import asyncio
from typing import Any, cast

import msgspec
import pytest
from starlette.requests import Request
from starlette.routing import Route

from headwater.admin.problem import ProblemCode, ProblemError
from headwater.admin.status_board import BoardEntry, StatusBoard
from headwater.admin.status_page import PageFacts
from headwater.admin.topic_page import TopicSources
from headwater.admin.topic_routes import routes_of
from headwater_core.clock import SystemClock
from tests.headwater.admin.statuses import a_status


class Board:
    def entries(self) -> list[BoardEntry]:
        return [BoardEntry(a_status("orders", 0), 0.0, 0.0, is_sized=True)]

    def elsewhere(self) -> list[BoardEntry]:
        return [BoardEntry(a_status("gone", 3, state="archive-only"), 0.0, 0.0)]


LIST, TOPIC, PARTITION = routes_of(cast(StatusBoard, Board()), PageFacts, TopicSources(), SystemClock())


def asked(route: Route, query: str = "", **path: str) -> Any:
    scope = {"type": "http", "query_string": query.encode(), "path_params": path, "headers": []}
    return msgspec.json.decode(asyncio.run(route.endpoint(Request(scope))).body)


def refusal(route: Route, query: str = "", **path: str) -> ProblemCode:
    with pytest.raises(ProblemError) as refused:
        asked(route, query, **path)
    return refused.value.code


def test_what_is_here_and_what_is_archived_alone() -> None:
    assert [each["topic"] for each in asked(LIST)["topics"]] == ["gone", "orders"]
    assert asked(LIST, "limit=1")["next_after"] == "gone"
    assert asked(TOPIC, topic="gone")["partitions"][0]["state"] == "archive-only"
    assert asked(PARTITION, topic="orders", partition="0")["partitions"][0]["topic"] == "orders"


@pytest.mark.parametrize("topic", ["..", ".", "a/b", "a%2fb", "*", "o*", "", "x" * 250, "orders\n", "\u202eorders"])
def test_what_is_no_topics_name_is_refused(topic: str) -> None:
    assert refusal(TOPIC, topic=topic) is ProblemCode.BAD_REQUEST


@pytest.mark.parametrize("partition", ["-1", "01", "1.0", "", "9" * 11, "2147483648", "\u0663"])
def test_what_is_no_number_is_refused(partition: str) -> None:
    assert refusal(PARTITION, topic="orders", partition=partition) is ProblemCode.BAD_REQUEST


def test_what_is_not_known_has_a_code_of_its_own() -> None:
    """Other than that of a path that this version does not have."""
    assert refusal(TOPIC, topic="absent") is ProblemCode.UNKNOWN_TOPIC
    assert refusal(PARTITION, topic="orders", partition="7") is ProblemCode.UNKNOWN_TOPIC


@pytest.mark.parametrize("query", ["limit=0", "after=-1", "after=x", "page=2"])
def test_wrong_parameters_are_refused(query: str) -> None:
    assert refusal(TOPIC, query, topic="orders") is ProblemCode.BAD_REQUEST


def test_without_log_directories_there_are_none() -> None:
    everything = routes_of(None, PageFacts, TopicSources(), SystemClock())[0]
    assert asked(everything)["topics"] == []
