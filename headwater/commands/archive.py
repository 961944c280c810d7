"""`headwater archive` and `headwater flush`: one pass, then exit."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column, as_end, as_size
from headwater.options import configured, selection_argument
from headwater.output import emit, format_option, say
from headwater.units import parse_duration, size_text

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
    Column("then", "then", free=True),
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Say which partitions a pass would do something for.")


@click.command()
@selection_argument
@click.option("--before", type=click.IntRange(min=0), metavar="OFFSET", help="Only segments that lie wholly below it.")
@dry_run_option
@format_option
@configured
def archive(config: "Config", selection: str | None, before: int | None, dry_run: bool, form: str) -> None:
    """One pass over sealed segments. A running agent on the data directory does it for us."""
    from headwater.session import PassRequest

    _do(config, PassRequest(selection=selection, before=before), dry_run, form)


@click.command()
@selection_argument
@click.option("--older-than", metavar="TIME", default="0s", show_default=True, help="Only tails that have waited so long, as in 30m.")
@dry_run_option
@format_option
@configured
def flush(config: "Config", selection: str | None, older_than: str, dry_run: bool, form: str) -> None:
    """Like archive, and the committed tail of active segments too. Made for cron."""
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
            say(f"{len(rows)} partitions, {objects} objects, {size_text(archived)} archived, {size_text(released)} released")


def _done(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the partitions in which something happened: what, and what comes then."""
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
    finally:  # what is known without the bucket, or without a damaged topic in it, comes before what is wrong
        emit(form, columns, due)
