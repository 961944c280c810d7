"""`headwater agent`."""

from functools import partial
from typing import TYPE_CHECKING

import click

from headwater.event_log import LogLevel
from headwater.options import configured
from headwater.output import say

if TYPE_CHECKING:
    from headwater.config import Config

INTERRUPTED = 130


@click.command()
@partial(configured, log_level=LogLevel.INFO)
def agent(config: "Config") -> int:
    """Archive the log directories and serve everything on a Kafka port, until stopped.

    SIGTERM ends it cleanly with exit code 0. Events go to stderr: text on a terminal, JSON lines elsewhere (--log-format).
    """
    import signal

    from headwater.agent import run

    stopped_by = run(config, started=lambda address: say("serving on {}:{}".format(*address)))
    return INTERRUPTED if stopped_by is signal.SIGINT else 0
