"""Operations over HTTP: begins one, lists them, shows one, cancels one; and other processes report theirs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headwater.admin.operations import (
    AGENT,
    OPERATION_ID,
    OPERATIONS_MAX,
    RUNNING_MAX,
    Operation,
    OperationKey,
    Operations,
    OperationState,
    RunningOperation,
    TooManyOperations,
)
from headwater.admin.parameters import among, flag, known, number, several, text
from headwater.admin.problem import ProblemCode, ProblemError
from headwater.admin.row_pipe import RowPipe
from headwater.admin.verb import Verb
from headwater.admin.verb_threads import Stopping, VerbThreads, encoded
from headwater_core.errors import UsageError

LIMIT, LIMIT_MAX = 100, 200  # operations on a page; the largest has 23 KiB, mostly arguments and an error of escaped characters
RESULTS_MAX = 32
SILENCE_MAX_S = 60.0  # without a report for so long, an operation of another process is lost
JSON_LINES = "application/x-ndjson"
PROGRESS_S = 5.0  # between two lines of an answer, where no row comes in between

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
SumName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._-]{1,64}$")]


class ReportedBegin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command has begun to work by itself. id: as it calls the operation"""

    id: str
    verb: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z-]{0,31}$")]
    arguments: dict[str, Any] = {}
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class ReportedProgress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many of so many are done; total null: not known."""

    done: Count = 0
    total: Count | None = None
    unit: Annotated[str, msgspec.Meta(max_length=32)] = ""


class ReportedEnd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What came of it, as Operation has it. results: sums"""

    state: Literal["done", "failed", "cancelled"]
    results: Annotated[dict[SumName, Count], msgspec.Meta(max_length=RESULTS_MAX)] = {}
    error: str | None = None
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None


class OperationRoutes:
    def __init__(self, operations: Operations, threads: VerbThreads, verbs: Sequence[Verb]) -> None:
        self._operations, self._threads, self.verbs = operations, threads, verbs

    def all(self) -> list[Route]:
        return [
            Route("/v1/operations", self._list),
            Route("/v1/operations", self._report_begin, methods=["POST"]),
            Route("/v1/operations/{id}/progress", self._report_progress, methods=["POST"]),
            Route("/v1/operations/{id}/end", self._report_end, methods=["POST"]),
            Route("/v1/operations/{id}", partial(self._one, self._operations.find)),
            Route("/v1/operations/{id}/cancel", partial(self._one, self._operations.cancel), methods=["POST"]),
            *(Route(f"/v1/{each.name}", partial(self._begin, each), methods=["POST"]) for each in self.verbs),
        ]

    async def _list(self, request: Request) -> Response:
        known(request, "state", "verb", "limit", "after")
        states = among(request, "state", [each.value for each in OperationState])
        after = text(request, "after", rf"[0-9]{{1,15}}-{OPERATION_ID}", "the next_after of another page")
        started_ms, _, last = (after or "").partition("-")
        page = self._operations.list(
            states={OperationState(each) for each in states},
            verbs=set(several(request, "verb")),
            after=OperationKey(int(started_ms), last) if after else None,
            limit=number(request, "limit", LIMIT, LIMIT_MAX),
        )
        return Response(msgspec.json.encode(page), media_type="application/json")

    async def _one(self, do: Callable[[str], Operation | None], request: Request) -> Response:
        known(request)
        found = do(request.path_params["id"])
        if found is None:
            raise ProblemError(ProblemCode.UNKNOWN_OPERATION, "there is no such operation, or none any more")
        return _document(found)

    async def _report_begin(self, request: Request) -> Response:
        known(request)
        begun = _reported(await request.body(), ReportedBegin)
        by = f"process {begun.pid}"
        if (before := self._operations.find(begun.id)) is not None:
            if (before.verb, before.by) != (begun.verb, by):
                raise ProblemError(ProblemCode.OPERATION_ID_TAKEN, f"{before.id} is the id of another operation")
            return _document(before)
        try:
            running = self._operations.begin(begun.verb, begun.arguments, operation_id=begun.id, by=by, silence_max_s=SILENCE_MAX_S)
        except UsageError as error:
            raise ProblemError(ProblemCode.BAD_REQUEST, str(error)) from error
        except TooManyOperations as error:
            raise ProblemError(ProblemCode.TOO_MANY_OPERATIONS, str(error)) from error
        return _document(running.facts, 201, {"Location": f"/v1/operations/{running.id}"})

    async def _report_progress(self, request: Request) -> Response:
        known(request)
        progress = _reported(await request.body(), ReportedProgress)
        if (running := self._of_a_process(request)) is not None:
            running.advance(progress.done, progress.total, progress.unit)
        return self._one_now(request)

    async def _report_end(self, request: Request) -> Response:
        known(request)
        end = _reported(await request.body(), ReportedEnd)
        if (running := self._of_a_process(request)) is not None:
            self._operations.finish(running, OperationState(end.state), end.error, end.exit_code, end.results)
        return self._one_now(request)

    def _of_a_process(self, request: Request) -> RunningOperation | None:
        """None when it has ended, or there is none."""
        running = self._operations.running(request.path_params["id"])
        if running is not None and running.facts.by == AGENT:
            raise ProblemError(ProblemCode.OPERATION_ID_TAKEN, f"{running.id} is the agent's own operation")
        return running

    def _one_now(self, request: Request) -> Response:
        found = self._operations.find(request.path_params["id"])
        if found is None:
            raise ProblemError(ProblemCode.UNKNOWN_OPERATION, "there is no such operation, or none any more")
        return _document(found)

    async def _begin(self, verb: Verb, request: Request) -> Response:
        known(request, "wait")
        if verb.is_local and not request.scope.get("headwater.local"):
            raise ProblemError(ProblemCode.LOCAL_ONLY, f"{verb.name} is requested over the socket in the agent's data directory alone")
        waits = verb.is_look or flag(request, "wait") or JSON_LINES in request.headers.get("accept", "")
        arguments = _decoded(await request.body(), verb)
        if (before := self.begun_before(verb, arguments, request)) is not None:
            return Response(_line(before), media_type=JSON_LINES) if waits else _document(before)
        pipe = RowPipe(asyncio.get_running_loop()) if waits else None
        running = self.begin(verb, arguments, request, pipe)
        if pipe is None:
            return accepted(running.facts)
        return _Rows(self._operations, running, pipe)

    def begun_before(self, verb: Verb, arguments: msgspec.Struct, request: Request) -> Operation | None:
        """By an earlier request of the same id. Raises ProblemError where that is another operation's."""
        operation_id = request.headers.get("operation-id")
        before = self._operations.find(operation_id) if operation_id is not None else None
        if before is not None and (before.verb, before.arguments) != (verb.name, msgspec.to_builtins(arguments)):
            raise ProblemError(ProblemCode.OPERATION_ID_TAKEN, f"{before.id} is the id of another operation")
        return before

    def begin(self, verb: Verb, arguments: msgspec.Struct, request: Request, pipe: RowPipe | None = None) -> RunningOperation:
        """pipe: as VerbThreads.begin takes it. Raises ProblemError."""
        try:
            return self._threads.begin(verb, arguments, request.headers.get("operation-id"), pipe)
        except UsageError as error:
            raise ProblemError(ProblemCode.BAD_REQUEST, str(error)) from error
        except TooManyOperations as error:
            raise ProblemError(ProblemCode.TOO_MANY_OPERATIONS, str(error)) from error
        except Stopping as error:
            raise ProblemError(ProblemCode.STOPPING, str(error)) from error

    def last(self, verb: str, wanted: Callable[[Mapping[str, Any]], bool]) -> Operation | None:
        """The newest one of the agent's own that is known, of a verb and with such arguments."""
        return next(self._own(verb, wanted), None)

    def running(self, verb: str, wanted: Callable[[Mapping[str, Any]], bool]) -> Operation | None:
        """One of the agent's own that has not ended, of a verb and with such arguments."""
        return next((each for each in self._own(verb, wanted) if each.state is OperationState.RUNNING), None)

    def _own(self, verb: str, wanted: Callable[[Mapping[str, Any]], bool]) -> Iterator[Operation]:
        page = self._operations.list(verbs={verb}, limit=OPERATIONS_MAX + 2 * RUNNING_MAX)
        return (each for each in page.operations if each.by == AGENT and wanted(each.arguments))


class _Rows(StreamingResponse):
    """A line for each row, and lines of the operation: at its begin, while it is slow, and the last one at its end. A client that leaves
    cancels it."""

    def __init__(self, operations: Operations, running: RunningOperation, pipe: RowPipe) -> None:
        self._operations, self._running, self._pipe = operations, running, pipe
        super().__init__(self._lines(), media_type=JSON_LINES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._operations.cancel(self._running.id)  # first: what it ends with when its pipe breaks is no failure then
            self._pipe.abandon()

    async def _lines(self) -> AsyncIterator[bytes]:
        yield _line(self._running.begun)
        async for rows in self._pipe.take(PROGRESS_S):
            yield rows or _line(self._operations.find(self._running.id) or self._running.facts)
        yield _line(self._running.facts)


_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # text that is no UTF-8 is no error of msgspec's own


def _reported(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except _MALFORMED as error:
        raise ProblemError(ProblemCode.BAD_REQUEST, f"not a report of an operation: {error}"[:500]) from error


def _decoded(body: bytes, verb: Verb) -> msgspec.Struct:
    try:
        return msgspec.json.decode(body or b"{}", type=verb.arguments)
    except (UsageError, *_MALFORMED) as error:
        raise ProblemError(ProblemCode.BAD_REQUEST, f"not the arguments of {verb.name}: {error}"[:500]) from error


def accepted(operation: Operation) -> Response:
    """It has begun."""
    return _document(operation, 202, {"Location": f"/v1/operations/{operation.id}"})


def _document(operation: Operation, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(operation), status, headers, "application/json")


def _line(operation: Operation) -> bytes:
    return encoded({"operation": msgspec.to_builtins(operation)})
