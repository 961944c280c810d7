"""`headwater explain`."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column, as_size
from headwater.options import configured, parse_selection
from headwater.output import emit, format_option, say
from headwater.units import duration_text, size_text
from headwater_core.counts import count_text
from headwater_core.errors import TransientError, Unauthorised, UsageError
from headwater_core.partition import TopicPartition

if TYPE_CHECKING:
    from headwater.config import Config

AGENT_S = 30.0  # as for status
RANGES = (
    Column("base_offset", "from offset", numeric=True),
    Column("next_offset", "to offset", numeric=True),
    Column("size_bytes", "bytes", as_size, numeric=True),
    Column("kind", "why"),
    Column("since", "since", leaves=1),
    Column("until", "until"),
    Column("reason", "reason", free=True),
)
OFFSET = (Column("what", "what"), Column("is", "is", free=True))


class OffsetSelection(click.ParamType[tuple[TopicPartition, int | None]]):
    """TOPIC:PARTITION or TOPIC:PARTITION@OFFSET."""

    name = "TOPIC:P[@OFFSET]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[TopicPartition, int | None]:
        place, at, offset = str(value).partition("@")
        try:
            topic, partition = parse_selection(place)
            if partition is None or (at and not re.fullmatch(r"[0-9]{1,19}", offset)):
                raise UsageError(f"{str(value)[:300]!r} is not TOPIC:P or TOPIC:P@OFFSET")
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return TopicPartition(topic, partition), int(offset) if at else None


@click.command()
@click.argument("selection", metavar="TOPIC:P[@OFFSET]", type=OffsetSelection())
@format_option
@configured
def explain(config: "Config", selection: tuple[TopicPartition, int | None], form: str) -> None:
    """Explain why local bytes are not archived, or where an offset is read.

    TOPIC:P lists every range of the local log that is not archived, with its bytes and what it waits for, since when and until when.
    Offsets are those of whole batches; the second one is exclusive. The agent on the data directory is asked; without an agent, only
    it would know of failures and of the order in which partitions are archived.

    TOPIC:P@OFFSET tells which tier answers for the offset and why, by the topic's read priority; which object and chunk hold it, whether
    the chunk is cached, and which document lists the object; or why the offset cannot be read; which group the release of the
    partition waits for; and whether the agent knows that the object is damaged.

    \b
    Examples:
      headwater explain orders.placed:0
      headwater explain orders.placed:0@50 -o json

    \b
    Exit codes:
      0  it is explained
      5  the bucket did not answer: what is known without it is shown
      6  the partition is neither local nor archived
    """
    place, offset = selection
    rows: list[dict[str, Any]] = []
    away: TransientError | Unauthorised | None = None
    try:
        rows.extend(_ask(config, place, offset))
    except (TransientError, Unauthorised) as error:
        if not rows:
            raise
        away = type(error)(f"{error}; shown is what is known without it")
    if form != "table":
        emit(form, (), rows)
    elif offset is None:
        emit(form, RANGES, map(_with_times, rows))
        count = f"{count_text(len(rows), 'range')}, {size_text(sum(row['size_bytes'] or 0 for row in rows))} not archived"
        if away is None:
            say(count if rows else "every local byte is archived")
    else:
        emit(form, OFFSET, [line for row in rows for line in _facts(row)])
    if away is not None:
        raise away


def _ask(config: "Config", place: TopicPartition, offset: int | None) -> Iterator[dict[str, Any]]:
    """Rows from the agent, else by a survey of our own."""
    from headwater.agent_api import AgentApi, NoAgent
    from headwater.inquiry import offset_rows, range_rows

    question = {"selection": str(place), "offset": offset}
    begun = False
    try:
        for row in AgentApi.of(config).rows("/v1/explain", question, timeout_s=AGENT_S):
            begun = True
            yield row
        return
    except (NoAgent, TransientError, Unauthorised):
        if begun:
            raise  # the agent's own conclusion
    yield from range_rows(config, place) if offset is None else offset_rows(config, place, offset)


def _with_times(row: dict[str, Any]) -> dict[str, Any]:
    from headwater_core.clock import SystemClock

    now_ms = SystemClock().now_ms()
    return row | {
        "since": "" if row["since_ms"] is None else f"{duration_text(max(0, now_ms - row['since_ms']) / 1000)} ago",
        "until": "" if row["until_ms"] is None else f"in {duration_text(max(0, row['until_ms'] - now_ms) / 1000)}",
    }


def _facts(row: dict[str, Any]) -> Iterator[dict[str, str]]:
    """One line for each thing that is known."""
    named = f"{row['topic']}:{row['partition']}@{row['offset']}"
    yield {"what": "offset", "is": f"{named} ({'readable' if row['readable'] else 'not readable'})"}
    chunk = f"{row['chunk']}: {row['chunk_bytes']} bytes from {row['chunk_position']}" if row["chunk"] is not None else ""
    held = f"{row['base_offset']} to {row['last_offset']}" if row["base_offset"] is not None else ""
    cached = "" if row["cached"] is None else "yes" if row["cached"] else "no"
    for what, value in (
        ("read from", ", then ".join(row["tiers"])),
        ("answers", f"{row['answers']} ({row['why']})" if row.get("answers") else ""),
        ("read priority", f"{row['read_priority']} ({row['read_priority_origin']})" if row.get("read_priority") else ""),
        ("local segment", row["segment"]),
        ("object", row["key"]),
        ("offsets of it", held),
        ("chunk", chunk),
        ("chunk cached", cached),
        ("listed in", row["listed_in"]),
        ("superseded", ", ".join(row["superseded"])),
        ("transaction", row.get("uncommitted")),
        ("dated", row.get("dated")),
        ("release", row.get("release")),
        ("damage", row.get("damage")),
        ("reason", row["reason"]),
    ):
        if value:
            yield {"what": what, "is": value}
