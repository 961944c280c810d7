"""`headwater status`."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headwater.options import configured, selection_argument
from headwater.output import Column, as_duration, as_size, emit, format_option

if TYPE_CHECKING:
    from headwater.config import Config


@click.command()
@selection_argument
@format_option
@configured
def status(config: "Config", selection: str | None, form: str) -> None:
    """How far each partition is archived, how far behind, and why.

    Looks at the log directories, where some are configured, and at the bucket; changes nothing. Asks a running agent what it
    knows besides. Where the bucket cannot be reached, says so and shows what is known without it. The lag in seconds is the
    age of the first record that is not archived, by its own timestamp.
    """
    from headwater.survey import survey

    columns = (
        Column("topic", "topic"),
        Column("partition", "p", numeric=True),
        Column("archive_start", "archive start", numeric=True),
        Column("local_start", "local start", numeric=True),
        Column("last_offset", "last offset", numeric=True),
        Column("high_watermark", "high watermark", numeric=True),
        Column("lag_bytes", "lag", as_size, numeric=True),
        Column("lag_s", "lag", as_duration, numeric=True),
        Column("cached_bytes", "cached", as_size, numeric=True),
        Column("state", "state"),
        Column("reason", "reason"),
    )
    rows = []
    try:
        for each in survey(config, selection):
            rows.append(asdict(each))
    finally:  # what is known of the local logs is wanted most when the bucket cannot be reached
        if rows:
            emit(form, columns, rows)
