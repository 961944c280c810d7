"""What an error answers: a status, a code that programs can rely on, and words for people (RFC 9457)."""

from collections.abc import Mapping
from enum import Enum
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from headwater_core.errors import AlreadyExists, HeadwaterError, NotFound, TransientError, Unauthorised, UsageError

MEDIA_TYPE = "application/problem+json"


class ProblemCode(Enum):
    """Every code, and its status."""

    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    TOKEN_NEEDED = "token_needed"
    LOCAL_ONLY = "local_only"
    WRONG_HOST = "wrong_host"
    NOT_FOUND = "not_found"
    UNKNOWN_OPERATION = "unknown_operation"
    UNKNOWN_TOPIC = "unknown_topic"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    OPERATION_ID_TAKEN = "operation_id_taken"
    OFFLOAD_RUNNING = "offload_running"
    LENGTH_REQUIRED = "length_required"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    INTERNAL_ERROR = "internal_error"
    TOO_MANY_OPERATIONS = "too_many_operations"
    STOPPING = "stopping"

    @property
    def status(self) -> HTTPStatus:
        return _STATUS[self]


_STATUS = {
    ProblemCode.BAD_REQUEST: HTTPStatus.BAD_REQUEST,
    ProblemCode.UNAUTHORIZED: HTTPStatus.UNAUTHORIZED,
    ProblemCode.WRONG_HOST: HTTPStatus.MISDIRECTED_REQUEST,
    ProblemCode.TOKEN_NEEDED: HTTPStatus.FORBIDDEN,
    ProblemCode.LOCAL_ONLY: HTTPStatus.FORBIDDEN,
    ProblemCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ProblemCode.UNKNOWN_OPERATION: HTTPStatus.NOT_FOUND,
    ProblemCode.UNKNOWN_TOPIC: HTTPStatus.NOT_FOUND,
    ProblemCode.OPERATION_ID_TAKEN: HTTPStatus.CONFLICT,
    ProblemCode.OFFLOAD_RUNNING: HTTPStatus.CONFLICT,
    ProblemCode.METHOD_NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    ProblemCode.LENGTH_REQUIRED: HTTPStatus.LENGTH_REQUIRED,
    ProblemCode.BODY_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ProblemCode.UNSUPPORTED_MEDIA_TYPE: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    ProblemCode.INTERNAL_ERROR: HTTPStatus.INTERNAL_SERVER_ERROR,
    ProblemCode.TOO_MANY_OPERATIONS: HTTPStatus.SERVICE_UNAVAILABLE,
    ProblemCode.STOPPING: HTTPStatus.SERVICE_UNAVAILABLE,
}

_EXIT_CODES = {
    ProblemCode.BAD_REQUEST: UsageError.exit_code,
    ProblemCode.BODY_TOO_LARGE: UsageError.exit_code,
    ProblemCode.UNAUTHORIZED: Unauthorised.exit_code,
    ProblemCode.TOKEN_NEEDED: Unauthorised.exit_code,
    ProblemCode.LOCAL_ONLY: Unauthorised.exit_code,
    ProblemCode.UNKNOWN_OPERATION: NotFound.exit_code,
    ProblemCode.UNKNOWN_TOPIC: NotFound.exit_code,
    ProblemCode.OPERATION_ID_TAKEN: AlreadyExists.exit_code,
    ProblemCode.OFFLOAD_RUNNING: TransientError.exit_code,
    ProblemCode.INTERNAL_ERROR: HeadwaterError.exit_code,
    ProblemCode.TOO_MANY_OPERATIONS: TransientError.exit_code,
    ProblemCode.STOPPING: TransientError.exit_code,
}


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every answer that is an error. exit_code: what a command ends with by it; absent where no command would meet it."""

    status: int
    code: ProblemCode
    title: str
    detail: str
    exit_code: int | msgspec.UnsetType = msgspec.UNSET


class ProblemError(Exception):
    """A handler answers with this problem."""

    def __init__(self, code: ProblemCode, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


def problem_body(code: ProblemCode, detail: str) -> bytes:
    exit_code = _EXIT_CODES.get(code, msgspec.UNSET)
    return msgspec.json.encode(Problem(status=code.status, code=code, title=code.status.phrase, detail=detail, exit_code=exit_code))


def problem_response(code: ProblemCode, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(problem_body(code, detail), code.status, headers, MEDIA_TYPE)
