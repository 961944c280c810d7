"""`headwater archive` and `headwater flush`: one pass, then exit."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column, as_end, as_size
from headwater.options import configured, selection_argument
from headwater.output import emit, format_option, say
from headwater.units import parse_duration, size_text
from headwater_core.counts import count_text

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.session import PassRequest

COLUMNS = (
    Column("topic", "topic"),
    Column("partition", "partition", numeric=True),
    Column("objects", "objects", numeric=True),
    Column("archived_bytes", "archived", as_size, numeric=True),
    Column("released_bytes", "released", as_size, numeric=True, leaves=1),
    Column("last_offset", "archive end", as_end, numeric=True),
    Column("then", "next", free=True),
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only list the partitions that have something to archive.")


@click.command()
@selection_argument
@click.option("--before", type=click.IntRange(min=0), metavar="OFFSET", help="Only segments whose offsets are all smaller.")
@dry_run_option
@format_option
@configured
def archive(config: "Config", selection: str | None, before: int | None, dry_run: bool, form: str) -> None:
    """Archive sealed segments once, then exit.

    TOPIC or TOPIC:P limits it to a topic or a partition. If an agent runs on the data directory, the agent does the work and
    this command waits for it; Ctrl-C, or `headwater operations cancel`, ends it.

    \b
    Example:
      headwater archive orders.placed:0 --dry-run
    """
    from headwater.session import PassRequest

    _do(config, PassRequest(selection=selection, before=before), dry_run, form)


@click.command()
@selection_argument
@click.option(
    "--older-than", metavar="TIME", default="0s", show_default=True, help="Only records that have waited at least this long, such as 30m."
)
@dry_run_option
@format_option
@configured
def flush(config: "Config", selection: str | None, older_than: str, dry_run: bool, form: str) -> None:
    """Archive sealed segments and the committed part of active segments once, then exit.

    Otherwise like `headwater archive`. Made for cron.

    \b
    Example:
      headwater flush --older-than 30m
    """
    from headwater.session import PassRequest

    _do(config, PassRequest(selection=selection, tail_older_than_s=parse_duration(older_than)), dry_run, form)


def _do(config: "Config", order: "PassRequest", dry_run: bool, form: str) -> None:
    if dry_run:
        _show_due(config, order, form)
        return
    from headwater.session import run_pass

    rows: list[dict[str, Any]] = []
    try:
        run_pass(config, order, rows.append)
    finally:
        if rows:
            rows.sort(key=lambda row: (row["topic"], row["partition"]))
            emit(form, COLUMNS, rows if form != "table" else _done(rows))
            objects, archived, released = (sum(row[key] for row in rows) for key in ("objects", "archived_bytes", "released_bytes"))
            counts = f"{count_text(len(rows), 'partition')}, {count_text(objects, 'object')}"
            say(f"{counts}, {size_text(archived)} archived, {size_text(released)} released")


def _done(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of partitions that changed or failed, with what follows."""
    happened = [row for row in rows if row["objects"] or row["released_bytes"] or row["error"]]
    return [row | {"then": f"error: {row['error']}" if row["error"] else row["reason"]} for row in happened]


def _show_due(config: "Config", order: "PassRequest", form: str) -> None:
    from headwater.survey import survey_partitions

    columns = (
        Column("topic", "topic"),
        Column("partition", "partition", numeric=True),
        Column("lag_bytes", "lag bytes", as_size, numeric=True),
        Column("reason", "next", free=True),
    )
    due: list[dict[str, Any]] = []
    try:
        due.extend(asdict(each) for each in survey_partitions(config, order.selection, order.policy) if each.state == "due")
    finally:  # rows that are known without the bucket, or without its damaged topics, come before the error
        emit(form, columns, due)
