"""docs/operations.md lists every log event as the source has it, so that it cannot rot."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from headwater.repeated_events import OPPOSITES, SUBJECTS
from tests.test_layers import ROOT, sources

PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
LEVELS = ("debug", "info", "warning", "error")
LOGGERS = {"log", "_log"}
OWN_LOGGING = {  # they may use Python's own logging, and why
    "headwater/event_log.py": "takes in what libraries log",
    "headwater/pipeline/spark/tasks.py": "Spark gathers it from its workers",
}


class Event(NamedTuple):
    name: str
    levels: frozenset[str]
    fields: frozenset[str]
    where: str


def events(path: Path) -> Iterator[Event]:
    """The events of one module: `log.warning("name", field=...)`, with the fields that its logger is bound to."""
    where = path.relative_to(ROOT).as_posix()
    calls = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)]
    bound = frozenset(
        word.arg
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "bind"
        for word in call.keywords
        if word.arg
    )
    for call in calls:
        function, arguments = call.func, call.args
        if isinstance(function, ast.Name) and function.id == "partial" and arguments:
            function, arguments = arguments[0], arguments[1:]
        if isinstance(function, ast.Name) and function.id == "report_to_spark":
            methods, is_bound = ["info"], False
        else:
            found = list(_methods(function))
            methods, is_bound = [name for name, _ in found], any(own for _, own in found)
        if not methods:
            continue
        place = f"{where}:{call.lineno}"
        assert arguments, place
        if not isinstance(arguments[0], ast.Constant):
            assert where in OWN_LOGGING, f"{place}: the name of an event stands where it is logged"
            continue
        given = frozenset("exception" if word.arg == "exc_info" else word.arg for word in call.keywords if word.arg)
        if "exception" in methods:
            given |= {"exception"}
        levels = frozenset("error" if name == "exception" else name for name in methods)
        yield Event(str(arguments[0].value), levels, given | (bound if is_bound else frozenset()), place)


def _methods(function: ast.expr) -> Iterator[tuple[str, bool]]:
    """The logger's methods that may be called, and whether the logger is an object's own."""
    if isinstance(function, ast.IfExp):
        yield from _methods(function.body)
        yield from _methods(function.orelse)
    elif isinstance(function, ast.Attribute) and function.attr in (*LEVELS, "exception", "critical", "log"):
        logger = function.value
        is_own = isinstance(logger, ast.Attribute) and logger.attr in LOGGERS
        is_new = isinstance(logger, ast.Call) and isinstance(logger.func, ast.Attribute) and logger.func.attr == "get_logger"
        if is_own or is_new or (isinstance(logger, ast.Name) and logger.id in LOGGERS):
            yield function.attr, is_own


@cache
def in_the_source() -> dict[str, Event]:
    found: dict[str, Event] = {}
    for path in sources():
        for each in events(path):
            before = found.get(each.name, each)
            found[each.name] = Event(each.name, before.levels | each.levels, before.fields | each.fields, each.where)
    return found


def on_the_page() -> dict[str, Event]:
    """Rows of tables: | `event` | level | `field`, ... | meaning | what to do |"""
    rows = re.findall(r"^\| `(\w+)` \| ([a-z, ]+) \| (.*?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    assert len(rows) == len({name for name, *_ in rows}), "an event is listed twice"
    return {
        name: Event(name, frozenset(levels.split(", ")), frozenset(re.findall(r"`(\w+)`", fields)), "docs/operations.md")
        for name, levels, fields, *_ in rows
    }


def test_the_source_has_events() -> None:
    assert {"run_archived", "request_failed", "store_available", "gap_skipped"} <= in_the_source().keys()


def test_the_page_lists_every_event_and_no_other() -> None:
    source, page = in_the_source(), on_the_page()
    assert sorted(source.keys() - page.keys()) == []
    assert sorted(page.keys() - source.keys()) == []


@pytest.mark.parametrize("what", ["levels", "fields"])
def test_the_page_tells_levels_and_fields_as_the_source_has_them(what: str) -> None:
    page = on_the_page()
    differences = [
        f"{each.where}: {each.name} has {sorted(getattr(each, what))}, the page {sorted(getattr(page[each.name], what))}"
        for each in in_the_source().values()
        if each.name in page and getattr(each, what) != getattr(page[each.name], what)
    ]
    assert not differences, "\n".join(differences)


def test_every_field_is_explained_once() -> None:
    used = {field for each in in_the_source().values() for field in each.fields}
    explained = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert sorted(explained) == sorted({*used, "event", "level", "timestamp", "repeats", "subjects"})


def test_one_idea_has_one_field() -> None:
    used = {field for each in in_the_source().values() for field in each.fields}
    assert not used & {"ntp", "tp", "topic_partition", "object", "error", "err", "message", "msg", "size", "elapsed"}


def test_the_limit_of_repetitions_knows_these_events_and_fields() -> None:
    source = in_the_source()
    assert {name for pair in OPPOSITES for name in pair} <= source.keys()
    assert set(SUBJECTS) <= {field for each in source.values() for field in each.fields}


def test_everything_else_logs_by_structlog() -> None:
    """Python's own logging would go to stderr as bare text, between JSON lines."""
    others = [
        path.relative_to(ROOT).as_posix()
        for path in sources()
        if re.search(r"^\s*(import logging|from logging)\b", path.read_text(), re.MULTILINE)
    ]
    assert set(others) == set(OWN_LOGGING)
