"""`headwater status`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column, as_duration, as_end, as_size
from headwater.options import configured, selection_argument
from headwater.output import emit, format_option
from headwater_core.errors import TransientError, Unauthorised

if TYPE_CHECKING:
    from headwater.config import Config

AGENT_S = 30.0  # it needs twice 5 s when the store is silent


@click.command()
@selection_argument
@format_option
@configured
def status(config: "Config", selection: str | None, form: str) -> None:
    """How far each partition is archived, how far behind, and why.

    Asks the agent that runs on the data directory; without one, looks at the log directories and at the bucket. Changes nothing.
    Where the bucket does not answer within 5 s, shows what is known without it, how old that is (known_age_s), and ends with exit
    code 5. The lag in seconds is the age of the first record that is not archived, by its own timestamp; what is committed is known
    from the broker's checkpoint, which by default is written every 5 s.
    """
    from headwater import agent_socket
    from headwater.survey import survey

    columns = (
        Column("topic", "topic"),
        Column("partition", "p", numeric=True),
        Column("archive_start", "archive start", numeric=True),
        Column("local_start", "local start", numeric=True),
        Column("last_offset", "archive end", as_end, numeric=True),
        Column("high_watermark", "high watermark", numeric=True),
        Column("lag_bytes", "lag bytes", as_size, numeric=True),
        Column("lag_s", "lag time", as_duration, numeric=True),
        Column("cached_bytes", "cached", as_size, numeric=True),
        Column("state", "state"),
        Column("reason", "reason", free=True),
    )
    rows: list[dict[str, Any]] = []
    try:
        try:
            for row in agent_socket.ask(config.node.data_dir, agent_socket.Ask("status", {"selection": selection}), timeout_s=AGENT_S):
                rows.append(row)
        except (agent_socket.NoAgent, TransientError, Unauthorised):
            if rows:
                raise  # what the agent has concluded
            for each in survey(config, selection):  # no agent, one that does not answer, or another user's
                rows.append(asdict(each))
    finally:  # what is known of the local logs is wanted most when the bucket cannot be reached
        if rows:
            emit(form, columns, rows)
