"""`headwater agent`."""

from functools import partial
from typing import TYPE_CHECKING

import click

from headwater.event_log import LogLevel
from headwater.options import configured
from headwater.output import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.config import Config

INTERRUPTED = 130


@click.command()
@partial(configured, log_level=LogLevel.INFO, takes_reload=True)
def agent(config: "Config", reload: "Callable[[], Config]") -> int:
    """Archive and serve until stopped.

    Archives each segment of the log directories after the broker has sealed it. Serves archived and local records as one log on
    a Kafka port. Answers /livez, /readyz, /metrics and /v1/status over HTTP on admin.listen, 127.0.0.1:9293 unless set otherwise.
    SIGTERM or Ctrl-C stops it. SIGHUP, or `headwater config reload`, makes it read the configuration again: what stands under
    [archival] and [topics] is taken up at once.

    \b
    Example:
      headwater agent --set gateway.listen=127.0.0.1:9292

    \b
    Exit codes:
        0  stopped by SIGTERM
        7  another agent runs on the data directory
      130  stopped by Ctrl-C
    """
    import signal

    from headwater.agent import run

    stopped_by = run(config, started=lambda address: say("serving on {}:{}".format(*address)), reload=reload)
    return INTERRUPTED if stopped_by is signal.SIGINT else 0
