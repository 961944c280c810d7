"""`headwater cache show|evict`. A running agent notices what was deleted: every file may go at any time."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headwater.columns import Column, as_duration, as_size
from headwater.options import SelectionType, configured, parse_selection, selection_argument
from headwater.output import emit, format_option, say
from headwater.units import size_text
from headwater_core.errors import NotFound, UsageError

if TYPE_CHECKING:
    from headwater.config import Config


@click.group()
def cache() -> None:
    """Show or empty the local cache of archived data.

    The cache holds chunks of objects that readers have fetched from the bucket.
    """


@cache.command()
@selection_argument
@format_option
@configured
def show(config: "Config", selection: str | None, form: str) -> None:
    """List the cached files, the least recently used first.

    \b
    Example:
      headwater cache show orders.placed
    """
    from headwater.wiring import open_cache

    kept = open_cache(config)
    columns = (
        Column("size_bytes", "bytes", as_size, numeric=True),
        Column("idle_s", "idle", as_duration, numeric=True),
        Column("name", "file"),
    )
    emit(form, columns, (asdict(file) for prefix in _prefixes(config, selection) for file in kept.show(prefix)))
    kept.close()


@cache.command()
@click.argument("selection", metavar="[TOPIC[:P]]", required=False, type=SelectionType())
@click.option("--all", "everything", is_flag=True, help="The chunks of all topics.")
@click.option("--dry-run", is_flag=True, help="Only show how much would be deleted.")
@configured
def evict(config: "Config", selection: str | None, everything: bool, dry_run: bool) -> None:
    """Delete cached chunks. They are fetched again when they are needed; reads in progress are not disturbed.

    \b
    Example:
      headwater cache evict --all --dry-run
    """
    from headwater.wiring import open_cache

    if (selection is None) != everything:
        raise UsageError("give TOPIC, TOPIC:P, or --all")
    kept = open_cache(config)
    prefixes = _prefixes(config, selection)
    if dry_run:
        say(f"would delete {size_text(sum(file.size_bytes for prefix in prefixes for file in kept.show(prefix)))}")
    else:
        say(f"deleted {size_text(sum(kept.evict(prefix) for prefix in prefixes))}")
    kept.close()


def _prefixes(config: "Config", selection: str | None) -> list[str]:
    """The prefixes of the file names of `selection`, for all incarnations of the topic. Raises NotFound."""
    if selection is None:
        return [""]
    from headwater.wiring import open_bucket

    topic, partition = parse_selection(selection)
    ids = [topic_id for name, topic_id in open_bucket(config).manifests.incarnations() if name == topic]
    if not ids:
        raise NotFound(f"{topic} is not in {config.store.url}")
    return [f"{topic_id}-" if partition is None else f"{topic_id}-{partition}/" for topic_id in ids]
