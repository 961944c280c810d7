"""`headwater agent`."""

from typing import TYPE_CHECKING

import click

from headwater.options import configured
from headwater.output import say

if TYPE_CHECKING:
    from headwater.config import Config

INTERRUPTED = 130


@click.command()
@configured
def agent(config: "Config") -> int:
    """Archive the log directories and serve everything on a Kafka port, until stopped.

    SIGTERM ends it cleanly with exit code 0. Events go to stderr: readable on a terminal, JSON lines elsewhere.
    """
    import signal

    from headwater import logs

    logs.configure(quiet=False)
    from headwater.agent import run

    stopped_by = run(config, started=lambda address: say("serving on {}:{}".format(*address)))
    return INTERRUPTED if stopped_by is signal.SIGINT else 0
