"""What an error answers: a status, a code that programs can rely on, and words for people (RFC 9457)."""

from collections.abc import Mapping
from enum import Enum
from http import HTTPStatus

import msgspec
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"


class ProblemCode(Enum):
    """Every code, and its status."""

    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    WRONG_HOST = "wrong_host"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    LENGTH_REQUIRED = "length_required"
    BODY_TOO_LARGE = "body_too_large"
    INTERNAL_ERROR = "internal_error"

    @property
    def status(self) -> HTTPStatus:
        return _STATUS[self]


_STATUS = {
    ProblemCode.BAD_REQUEST: HTTPStatus.BAD_REQUEST,
    ProblemCode.UNAUTHORIZED: HTTPStatus.UNAUTHORIZED,
    ProblemCode.WRONG_HOST: HTTPStatus.MISDIRECTED_REQUEST,
    ProblemCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ProblemCode.METHOD_NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    ProblemCode.LENGTH_REQUIRED: HTTPStatus.LENGTH_REQUIRED,
    ProblemCode.BODY_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ProblemCode.INTERNAL_ERROR: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is an error."""

    status: int
    code: ProblemCode
    title: str
    detail: str


class ProblemError(Exception):
    """A handler answers with this problem."""

    def __init__(self, code: ProblemCode, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


def problem_body(code: ProblemCode, detail: str) -> bytes:
    return msgspec.json.encode(Problem(status=code.status, code=code, title=code.status.phrase, detail=detail))


def problem_response(code: ProblemCode, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(problem_body(code, detail), code.status, headers, MEDIA_TYPE)
