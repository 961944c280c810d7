"""Operations over HTTP: lists them, shows one, cancels one."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.admin.operations import OPERATION_ID, Operation, OperationKey, Operations, OperationState
from headwater.admin.parameters import among, known, number, several, text
from headwater.admin.problem import ProblemCode, ProblemError

LIMIT, LIMIT_MAX = 100, 1000  # operations on a page


def routes_of(operations: Operations) -> list[Route]:
    async def show_operations(request: Request) -> Response:
        known(request, "state", "verb", "limit", "after")
        states = among(request, "state", [each.value for each in OperationState])
        after = text(request, "after", rf"[0-9]{{1,15}}-{OPERATION_ID}", "the next_after of another page")
        started_ms, _, last = (after or "").partition("-")
        page = operations.list(
            states={OperationState(each) for each in states},
            verbs=set(several(request, "verb")),
            after=OperationKey(int(started_ms), last) if after else None,
            limit=number(request, "limit", LIMIT, LIMIT_MAX),
        )
        return Response(msgspec.json.encode(page), media_type="application/json")

    async def show_operation(request: Request) -> Response:
        known(request)
        return _one(operations.find, request)

    async def cancel_operation(request: Request) -> Response:
        known(request)
        return _one(operations.cancel, request)

    return [
        Route("/v1/operations", show_operations),
        Route("/v1/operations/{id}", show_operation),
        Route("/v1/operations/{id}/cancel", cancel_operation, methods=["POST"]),
    ]


def operation_response(operation: Operation, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(operation), status, headers, "application/json")


def _one(do: Callable[[str], Operation | None], request: Request) -> Response:
    found = do(request.path_params["id"])
    if found is None:
        raise ProblemError(ProblemCode.UNKNOWN_OPERATION, "there is no such operation, or none any more")
    return operation_response(found)
