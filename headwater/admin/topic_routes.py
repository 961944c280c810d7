"""Topics over HTTP: lists them, shows one, shows one partition of it."""

import re
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.admin.parameters import known, number, text
from headwater.admin.problem import ProblemCode, ProblemError
from headwater.admin.status_board import BoardEntry, StatusBoard
from headwater.admin.status_page import LIMIT, LIMIT_MAX, PageFacts
from headwater.admin.topic_page import TopicSources, page_of_topic, topic_list
from headwater_core.clock import Clock

PARTITION_MAX = 2**31 - 1
TOPIC = r"[A-Za-z0-9._-]{1,249}"


def routes_of(board: StatusBoard | None, facts: Callable[[], PageFacts], sources: TopicSources, clock: Clock) -> list[Route]:
    def entries() -> list[BoardEntry]:
        return [*board.entries(), *board.elsewhere()] if board is not None else []

    async def list_topics(request: Request) -> Response:
        known(request, "limit", "after")
        after = text(request, "after", TOPIC, "the next_after of another page") or ""
        limit = number(request, "limit", LIMIT, LIMIT_MAX)
        found = topic_list(entries(), facts(), after=after, limit=limit, now_s=clock.monotonic_s(), at_ms=clock.now_ms())
        return _answer(found)

    async def show_topic(request: Request) -> Response:
        known(request, "limit", "after")
        return _page(request, None, after=number(request, "after", -1, PARTITION_MAX, least=0))

    async def show_partition(request: Request) -> Response:
        known(request)
        return _page(request, partition_of(request))

    def _page(request: Request, partition: int | None, *, after: int = -1) -> Response:
        topic = topic_of(request)
        limit = number(request, "limit", LIMIT, LIMIT_MAX)
        now_s, at_ms = clock.monotonic_s(), clock.now_ms()
        found = page_of_topic(topic, entries(), facts(), sources, partition=partition, after=after, limit=limit, now_s=now_s, at_ms=at_ms)
        if found is None:
            raise ProblemError(ProblemCode.UNKNOWN_TOPIC, "nothing of that is in the log directories, or known to be archived")
        return _answer(found)

    return [
        Route("/v1/topics", list_topics),
        Route("/v1/topics/{topic}", show_topic),
        Route("/v1/topics/{topic}/partitions/{partition}", show_partition),
    ]


def topic_of(request: Request) -> str:
    """Of the path. Raises ProblemError for what is no topic's name."""
    topic = str(request.path_params["topic"])
    if not re.fullmatch(TOPIC, topic) or topic in (".", ".."):
        raise ProblemError(ProblemCode.BAD_REQUEST, "that is no topic's name")
    return topic


def partition_of(request: Request) -> int:
    """Of the path. Raises ProblemError for what is no partition's number."""
    given = str(request.path_params["partition"])
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", given) or int(given) > PARTITION_MAX:
        raise ProblemError(ProblemCode.BAD_REQUEST, f"a partition is a number from 0 to {PARTITION_MAX}")
    return int(given)


def _answer(page: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(page), media_type="application/json")
