"""`headwater gc` and `headwater delete-before`: what the archive need not keep any more."""

import sys
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column, as_size
from headwater.options import IncarnationSelection, configured, parse_incarnation_selection, selection_argument
from headwater.output import emit, format_option, say
from headwater.units import size_text
from headwater_core.counts import count_text
from headwater_core.errors import UsageError

if TYPE_CHECKING:
    from headwater.collection import CollectionRequest
    from headwater.config import Config

COLUMNS = (
    Column("topic", "topic"),
    Column("partition", "partition", numeric=True),
    Column("start_offset", "archive start", numeric=True),
    Column("trimmed_entries", "runs trimmed", numeric=True, leaves=2),
    Column("trimmed_bytes", "trimmed", as_size, numeric=True),
    Column("orphans", "orphans", numeric=True, leaves=1),
    Column("orphan_bytes", "orphaned", as_size, numeric=True),
    Column("deleted_bytes", "deleted", as_size, numeric=True),
    Column("then", "note", free=True),
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command()
@selection_argument
@click.option("--dry-run", is_flag=True, help="Only show what would be trimmed, and what nothing refers to.")
@yes_option
@format_option
@configured
def gc(config: "Config", selection: str | None, dry_run: bool, yes: bool, form: str) -> None:
    """Apply retention to the archive, and delete objects that nothing refers to.

    What retention lets go (archival.retention, archival.retention_bytes) leaves the manifest. An object that no manifest
    refers to is deleted once it has been seen so for archival.reader_lease (24 h): so the first run only notes it. A running
    agent does the same by itself, every archival.gc_interval (6 h). Partitions that another agent holds are left to it.

    \b
    Example:
      headwater gc orders.placed --dry-run
    """
    from headwater.collection import CollectionRequest

    if not dry_run:
        confirm("this deletes objects that nothing refers to, and applies the archive's retention", selection or "everything", yes)
    collect(config, CollectionRequest(selection=selection, dry_run=dry_run), form)


@click.command()
@click.argument("selection", metavar="TOPIC:P", type=IncarnationSelection())
@click.argument("offset", metavar="OFFSET", type=click.IntRange(min=0))
@click.option("--dry-run", is_flag=True, help="Only show what would be trimmed.")
@yes_option
@format_option
@configured
def delete_before(config: "Config", selection: str, offset: int, dry_run: bool, yes: bool, form: str) -> None:
    """Delete the records of one partition below OFFSET from the archive.

    The archive then begins at OFFSET. A run that also holds later records stays as a whole until all of them are let go; the newest run
    always stays listed. Objects are deleted as `headwater gc` does it. Records that the broker still has are not touched. TOPIC means its
    present incarnation; TOPIC@TOPIC_ID:P is a former one, whose topic was deleted or created again.

    \b
    Example:
      headwater delete-before orders.placed:0 5 --dry-run
    """
    from headwater.collection import CollectionRequest

    topic, _, partition = parse_incarnation_selection(selection)
    if partition is None:
        raise UsageError(f"one partition at a time: {topic}:P")
    if not dry_run:
        confirm(f"records of {selection} below {offset} cannot be brought back", topic, yes)
    collect(config, CollectionRequest(selection=selection, before=offset, dry_run=dry_run), form)


def confirm(consequence: str, word: str, yes: bool) -> None:
    """A person types the word; a script gives --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{consequence}; without a terminal to confirm it, give --yes")
    if click.prompt(f"{consequence}; to continue, type {word}", err=True) != word:
        raise UsageError("not confirmed; nothing was changed")


def collect(config: "Config", request: "CollectionRequest", form: str) -> None:
    from headwater.collection import run_collection

    rows: list[dict[str, Any]] = []
    try:
        run_collection(config, request, rows.append)
    finally:
        if rows:
            rows.sort(key=lambda row: (row["topic"], row["topic_id"], row["partition"]))
            emit(form, COLUMNS, rows if form != "table" else _notable(rows))
            sums = {
                name: sum(row[name] for row in rows) for name in ("trimmed_bytes", "orphans", "orphan_bytes", "deleted", "deleted_bytes")
            }
            trimmed = f"{size_text(sums['trimmed_bytes'])} {'would be trimmed' if request.dry_run else 'trimmed'}"
            orphans = f"{count_text(sums['orphans'], 'orphan')} of {size_text(sums['orphan_bytes'])}"
            deleted = f"{sums['deleted']} of them deleted, {size_text(sums['deleted_bytes'])}"
            say(f"{count_text(len(rows), 'partition')}, {trimmed}, {orphans}, {'nothing was changed' if request.dry_run else deleted}")


def _notable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of partitions of which there is something to say."""
    said = [row | {"then": f"error: {row['error']}" if row["error"] else row["reason"]} for row in rows]
    return [row for row in said if row["then"] or row["trimmed_entries"] or row["forgotten_entries"] or row["orphans"] or row["aborted"]]
