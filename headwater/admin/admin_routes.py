"""The admin port's requests: which paths there are, and what each answers."""

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headwater.admin.health import CheckResult, Health, report
from headwater.admin.metrics import Metrics
from headwater.admin.parameters import flag, known, several
from headwater.admin.problem import ProblemCode, ProblemError, problem_response

_CODES = {404: ProblemCode.NOT_FOUND, 405: ProblemCode.METHOD_NOT_ALLOWED}


def admin_app(health: Health, metrics: Metrics) -> Starlette:
    """ASGI. Every answer comes from what is known: no handler waits for a disk, a lock that is held for long, or a store."""

    async def livez(request: Request) -> Response:
        known(request, "verbose", "exclude")
        return _health("livez", request, health.live(several(request, "exclude")))

    async def readyz(request: Request) -> Response:
        known(request, "verbose", "exclude")
        return _health("readyz", request, health.ready(several(request, "exclude")))

    async def show_metrics(request: Request) -> Response:
        text = metrics.render(request.headers.get("accept", ""))
        return Response(text.body, media_type=text.media_type)

    app = Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", show_metrics),
        ],
        exception_handlers={HTTPException: _http_problem, ProblemError: _problem},
    )
    app.router.redirect_slashes = False  # a path is written in one way
    return app


def _health(what: str, request: Request, results: Collection[CheckResult]) -> Response:
    failed = any(each.reason for each in results)
    is_short = not failed and not flag(request, "verbose")
    text = "ok" if is_short else report(what, results, reasons=request.scope["headwater.trusted"])
    return PlainTextResponse(text, 503 if failed else 200)


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem_response(
        _CODES.get(error.status_code, ProblemCode.BAD_REQUEST), f"{request.method[:20]} is not answered here", error.headers
    )


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return problem_response(error.code, error.detail)
