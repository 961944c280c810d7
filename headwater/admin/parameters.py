"""What stands behind the question mark of a request. A parameter that is not known is refused: it may be a known one, misspelt."""

import re
from collections.abc import Collection
from typing import TypeVar

from starlette.requests import Request

from headwater.admin.problem import ProblemCode, ProblemError

T = TypeVar("T")


def known(request: Request, *names: str) -> None:
    """Raises ProblemError for other parameters."""
    others = set(request.query_params) - set(names)
    if others:
        raise ProblemError(ProblemCode.BAD_REQUEST, f"unknown parameter {min(others)[:80]!r}; known are {', '.join(names) or 'none'}")


def flag(request: Request, name: str) -> bool:
    """`?name` and `?name=true` alike. Raises ProblemError."""
    match request.query_params.get(name):
        case None | "false":
            return False
        case "" | "true":
            return True
    raise ProblemError(ProblemCode.BAD_REQUEST, f"{name} is true or false")


def several(request: Request, name: str) -> list[str]:
    return request.query_params.getlist(name)


def number(request: Request, name: str, default: T, most: int, *, least: int = 1) -> int | T:
    """From `least` to `most`; `default` where it is not given. Raises ProblemError."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most):
        raise ProblemError(ProblemCode.BAD_REQUEST, f"{name} is a number from {least} to {most}")
    return int(text)


def seconds(request: Request, name: str) -> float | None:
    """Raises ProblemError."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise ProblemError(ProblemCode.BAD_REQUEST, f"{name} is a number of seconds")
    return float(text)


def among(request: Request, name: str, choices: Collection[str]) -> frozenset[str]:
    """All that were given. Raises ProblemError."""
    given = frozenset(several(request, name))
    if not given <= set(choices):
        raise ProblemError(ProblemCode.BAD_REQUEST, f"{name} is one of {', '.join(choices)}")
    return given


def text(request: Request, name: str, pattern: str, words: str) -> str | None:
    """Raises ProblemError where it is not `words`, which `pattern` says in full."""
    found = request.query_params.get(name)
    if found is not None and not re.fullmatch(pattern, found):
        raise ProblemError(ProblemCode.BAD_REQUEST, f"{name} is {words}")
    return found
