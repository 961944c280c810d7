"""`headwater cache show|evict`. A running agent notices what was deleted: every file may go at any time."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headwater.columns import Column, as_duration, as_size
from headwater.options import Selection, configured, parse_selection, selection_argument
from headwater.output import emit, format_option, say
from headwater.units import size_text
from headwater_core.errors import NotFound, UsageError

if TYPE_CHECKING:
    from headwater.config import Config


@click.group()
def cache() -> None:
    """Show or empty the local cache of hydrated chunks."""


@cache.command()
@selection_argument
@format_option
@configured
def show(config: "Config", selection: str | None, form: str) -> None:
    """What is cached, least recently used first."""
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
@click.argument("selection", metavar="[TOPIC[:P]]", required=False, type=Selection())
@click.option("--all", "everything", is_flag=True, help="Every topic's chunks.")
@click.option("--dry-run", is_flag=True, help="Say what would go.")
@configured
def evict(config: "Config", selection: str | None, everything: bool, dry_run: bool) -> None:
    """Drop cached chunks. Readers lose time, never data: what is being read stays readable to its end."""
    from headwater.wiring import open_cache

    if (selection is None) != everything:
        raise UsageError("either a TOPIC[:P] or --all")
    kept = open_cache(config)
    prefixes = _prefixes(config, selection)
    if dry_run:
        say(f"would drop {size_text(sum(file.size_bytes for prefix in prefixes for file in kept.show(prefix)))}")
    else:
        say(f"dropped {size_text(sum(kept.evict(prefix) for prefix in prefixes))}")
    kept.close()


def _prefixes(config: "Config", selection: str | None) -> list[str]:
    """The beginnings of the names of the files that `selection` means: every incarnation's."""
    if selection is None:
        return [""]
    from headwater.wiring import open_bucket

    topic, partition = parse_selection(selection)
    ids = [topic_id for name, topic_id in open_bucket(config).manifests.incarnations() if name == topic]
    if not ids:
        raise NotFound(f"{topic} is not in {config.store.url}")
    return [f"{topic_id}-" if partition is None else f"{topic_id}-{partition}/" for topic_id in ids]
