"""The requests of the agent's API: which paths there are, and what each answers."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headwater.admin.client_routes import clients_route
from headwater.admin.health import CheckResult, Health, report
from headwater.admin.metrics import STATES, Metrics
from headwater.admin.offload_routes import OffloadRoutes
from headwater.admin.openapi import openapi_document
from headwater.admin.operation_routes import OperationRoutes
from headwater.admin.parameters import among, flag, known, number, seconds, several, text
from headwater.admin.problem import ProblemCode, ProblemError, problem_response
from headwater.admin.recent_answers import keep_until
from headwater.admin.status_board import ARCHIVE_ONLY, StatusBoard
from headwater.admin.status_page import LIMIT, LIMIT_MAX, PageFacts, StatusKey, StatusQuery, page_of
from headwater.admin.topic_page import TopicSources
from headwater.admin.topic_routes import PARTITION_MAX, TOPIC, routes_of
from headwater.admin.verb import Verb
from headwater.gateway.client_facts import ClientFacts
from headwater_core.clock import Clock

WAIT_MAX_S = 5.0  # for looks at what has just happened
NO_TOPICS = TopicSources()
_CODES = {404: ProblemCode.NOT_FOUND, 405: ProblemCode.METHOD_NOT_ALLOWED}


def admin_app(
    health: Health,
    metrics: Metrics,
    board: StatusBoard | None,
    operations: OperationRoutes,
    clock: Clock,
    version: str,
    facts: Callable[[], PageFacts] = PageFacts,
    topics: TopicSources = NO_TOPICS,
    offload: Verb | None = None,
    clients: set[ClientFacts] | None = None,
) -> Starlette:
    """ASGI. What is read comes from what is known: no handler waits for a disk, a lock that is held for long, or a store. Work is done in
    the threads of `operations`.

    board    None where there are no log directories
    facts    what is known beside it
    topics   what holds for a topic
    clients  of the Kafka port, as they come and go in another thread
    offload  does what the offload endpoint is asked for; None where there are no log directories
    version  of the program
    """
    document = msgspec.json.encode(openapi_document(version, operations.verbs))

    async def livez(request: Request) -> Response:
        known(request, "verbose", "exclude")
        return _health("livez", request, health.live(several(request, "exclude")))

    async def readyz(request: Request) -> Response:
        known(request, "verbose", "exclude")
        return _health("readyz", request, health.ready(several(request, "exclude")), health.notices())

    async def show_openapi(request: Request) -> Response:
        known(request)
        return Response(document, media_type="application/json")

    async def show_status(request: Request) -> Response:
        query = _status_query(request)
        if board is not None and (wait_s := seconds(request, "wait_s")):
            await _seen(board, query, min(wait_s, WAIT_MAX_S))
        entries = [*board.entries(), *board.elsewhere()] if board is not None else []
        page = page_of(entries, query, facts(), now_s=clock.monotonic_s(), at_ms=clock.now_ms())
        return Response(msgspec.json.encode(page), media_type="application/json")

    async def show_metrics(request: Request) -> Response:
        rendered = metrics.render(request.headers.get("accept", ""))
        keep_until(request.scope, rendered.until_s)
        return Response(rendered.body, media_type=rendered.media_type)

    app = Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", show_metrics),
            Route("/v1/status", show_status),
            *routes_of(board, facts, topics, clock),
            *OffloadRoutes(operations, offload, board).all(),
            *operations.all(),
            clients_route(clients if clients is not None else set()),
            Route("/v1/openapi.json", show_openapi),
        ],
        exception_handlers={HTTPException: partial(_http_problem, version), ProblemError: _problem, Exception: _defect},
    )
    app.router.redirect_slashes = False  # a path is written in one way
    return app


async def _seen(board: StatusBoard, query: StatusQuery, wait_s: float) -> None:
    """What was done so far with what is asked for has been looked at, or that takes longer than this."""
    loop, seen = asyncio.get_running_loop(), asyncio.Event()

    def done() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(seen.set)

    board.when_seen(query.names, done)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(seen.wait(), wait_s)
    finally:
        board.forget(done)


def _health(what: str, request: Request, results: Collection[CheckResult], notices: Collection[CheckResult] = ()) -> Response:
    failed = any(each.reason for each in results)
    is_short = not failed and not notices and not flag(request, "verbose")
    body = "ok" if is_short else report(what, results, notices, reasons=request.scope["headwater.trusted"])
    return PlainTextResponse(body, 503 if failed else 200)


def _status_query(request: Request) -> StatusQuery:
    known(request, "topic", "partition", "state", "lag_above_s", "partitions", "limit", "after", "wait_s")
    after = text(request, "after", rf"{TOPIC}(:[0-9]{{1,10}})?", "the next_after of another page")
    topic, _, partition = (after or "").partition(":")
    return StatusQuery(
        topic=text(request, "topic", r"[A-Za-z0-9._*?-]{1,249}", "a topic's name, or a pattern with * and ?"),
        partition=number(request, "partition", None, PARTITION_MAX, least=0),
        states=among(request, "state", (*STATES, ARCHIVE_ONLY)),
        lag_above_s=seconds(request, "lag_above_s"),
        partitions=flag(request, "partitions"),
        after=StatusKey(topic, int(partition or -1)) if after else None,
        limit=number(request, "limit", LIMIT, LIMIT_MAX),
    )


async def _http_problem(version: str, request: Request, error: Exception) -> Response:
    """Version and path: the client may be of another version, which knows other paths."""
    assert isinstance(error, HTTPException)
    words = f"no such endpoint: {request.method[:20]} {request.url.path[:200]} (version {version})"
    return problem_response(_CODES.get(error.status_code, ProblemCode.BAD_REQUEST), words, error.headers)


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return problem_response(error.code, error.detail)


async def _defect(_: Request, error: Exception) -> Response:
    """It is raised again after this answer, and logged by who gave the request to the app."""
    return problem_response(ProblemCode.INTERNAL_ERROR, "see the agent's log")
