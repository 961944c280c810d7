"""`headwater operations list|show|cancel`."""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column
from headwater.options import configured
from headwater.output import emit, format_option, say
from headwater.units import duration_text, size_text
from headwater_core.clock import time_text

if TYPE_CHECKING:
    from headwater.agent_api import AgentApi
    from headwater.config import Config

AGENT_S = 5.0  # as for status
PAGE = 100  # operations in one answer
STATES = ("running", "done", "failed", "cancelled", "lost")
WATCH_S = 2.0
COLUMNS = (
    Column("id", "operation"),
    Column("verb", "verb"),
    Column("arguments", "of", leaves=3),
    Column("state", "state"),
    Column("progress", "done", numeric=True),
    Column("left", "left", numeric=True, leaves=2),
    Column("took", "took", numeric=True, leaves=1),
    Column("error", "error", free=True),
)
FACTS = (Column("what", "what"), Column("is", "is", free=True))


@click.group()
def operations() -> None:
    """List, show or cancel operations requested of the agent.

    Each command that passes its work to the agent on the data directory is an operation, and so is each request to its API. The
    agent knows those that run, and for a day the last 1,000 that have ended. A command's error names its operation.
    """


@operations.command("list")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="Only those in this state. May be repeated.")
@click.option("--verb", "verbs", metavar="VERB", multiple=True, help="Only those of this verb, such as archive. May be repeated.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many at most.")
@click.option("--watch", is_flag=True, help=f"Refresh the table every {WATCH_S:g} s until Ctrl-C.")
@format_option
@configured
def list_(config: "Config", states: tuple[str, ...], verbs: tuple[str, ...], limit: int, watch: bool, form: str) -> None:
    """List operations, the newest first.

    With how far each is, and what came of it.

    \b
    Examples:
      headwater operations list --state running
      headwater operations list --verb gc -o json

    \b
    Exit codes:
      0  they are listed
      5  the agent does not answer within 5 s
      6  no agent runs on the data directory
      8  the agent is another user's
    """
    from time import sleep

    from headwater_core.errors import UsageError

    if watch and form != "table":
        raise UsageError("--watch cannot be used with -o; a script runs the command again instead")
    query = {"state": states, "verb": verbs}
    while True:
        found = _answered(config, lambda api: _newest(api, query, limit))
        if watch:
            click.clear()  # does nothing but on a terminal
        emit(form, COLUMNS, found if form != "table" else map(_line, found), ends_with_reader=watch)
        if not watch:
            return
        sleep(WATCH_S)


def _newest(api: "AgentApi", query: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = api.get("/v1/operations", query | {"limit": min(PAGE, limit - len(found))}, timeout_s=AGENT_S)
        found += page["operations"]
        if len(found) >= limit or "next_after" not in page:
            return found
        query = query | {"after": page["next_after"]}


@operations.command()
@click.argument("operation", metavar="ID")
@format_option
@configured
def show(config: "Config", operation: str, form: str) -> None:
    """Show one operation.

    Its arguments, how far it is, its error, and sums of what was done.

    \b
    Example:
      headwater operations show 20260131T120000.123Z-9f86d081

    \b
    Exit codes:
      0  it is shown
      5  the agent does not answer within 5 s
      6  no agent runs on the data directory, or it knows no such operation
      8  the agent is another user's
    """
    _print(_answered(config, lambda api: api.get(_path(operation), timeout_s=AGENT_S)), form)


@operations.command()
@click.argument("operation", metavar="ID")
@format_option
@configured
def cancel(config: "Config", operation: str, form: str) -> None:
    """Have an operation end soon.

    It stops between two steps: what is archived or deleted by then stays so, and the same command continues later. Whoever waits for
    the operation gets exit code 5. One that has ended stays as it is.

    \b
    Example:
      headwater operations cancel 20260131T120000.123Z-9f86d081

    \b
    Exit codes:
      0  it ends soon, or has ended
      5  the agent does not answer within 5 s
      6  no agent runs on the data directory, or it knows no such operation
      8  the agent is another user's
    """
    found = _answered(config, lambda api: api.post(f"{_path(operation)}/cancel", timeout_s=AGENT_S))
    _print(found, form)
    if found["state"] != "running":
        say(f"it had ended before: {found['state']}")


def _answered(config: "Config", ask: "Callable[[AgentApi], Any]") -> Any:
    from headwater.agent_api import AgentApi, NoAgent
    from headwater_core.errors import NotFound

    try:
        return ask(AgentApi.of(config))
    except NoAgent as error:
        raise NotFound(str(error)) from error


def _path(operation: str) -> str:
    import re

    from headwater.admin.operations import OPERATION_ID
    from headwater_core.errors import UsageError

    if not re.fullmatch(OPERATION_ID, operation):
        raise UsageError(f"{operation[:80]!r} is not the id of an operation")
    return f"/v1/operations/{operation}"


def _print(found: dict[str, Any], form: str) -> None:
    emit(form, FACTS, [found] if form != "table" else _facts(found))


def _line(found: dict[str, Any]) -> dict[str, Any]:
    """As people read it."""
    ended_ms, total = found["ended_ms"], found["total"]
    amount = size_text if found["unit"] == "bytes" else str
    return found | {
        "state": "cancelling" if found["cancelling"] else found["state"],
        "arguments": _arguments(found),
        "progress": amount(found["done"]) if total is None else f"{amount(found['done'])} of {amount(total)}",
        "left": "" if found["eta_s"] is None else duration_text(found["eta_s"]),
        "took": "" if ended_ms is None else duration_text(max(0, ended_ms - found["started_ms"]) / 1000),
        "error": found["error"] or "",
    }


def _facts(found: dict[str, Any]) -> Iterator[dict[str, str]]:
    """A line for each thing that is known."""
    line = _line(found)
    for what, value in (
        ("operation", found["id"]),
        ("verb", f"{found['verb']} {line['arguments']}".rstrip()),
        ("by", found["by"]),
        ("state", line["state"]),
        ("done", line["progress"] if found["unit"] == "bytes" else f"{line['progress']} {found['unit']}"),
        ("left", line["left"]),
        ("started", time_text(found["started_ms"])),
        ("ended", "" if found["ended_ms"] is None else time_text(found["ended_ms"])),
        ("took", line["took"]),
        ("error", line["error"]),
        ("exit code", "" if found["exit_code"] is None else str(found["exit_code"])),
        *(_result(name, value) for name, value in found["results"].items()),
    ):
        if value:
            yield {"what": what, "is": value}


def _result(name: str, value: Any) -> tuple[str, str]:
    if name.endswith("_bytes") and isinstance(value, int):
        return name.removesuffix("_bytes").replace("_", " "), size_text(value)
    return name.replace("_", " "), str(value)


def _arguments(found: dict[str, Any]) -> str:
    """As in `orders.placed:0 before=5`."""
    others = {name: value for name, value in found["arguments"].items() if value is not None}
    words = [str(others.pop("selection"))] if "selection" in others else []
    return " ".join([*words, *(f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in others.items())])
