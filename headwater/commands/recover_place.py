"""`headwater recover place`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwater.options import LocalPath, configure_events
from headwater.output import emit, format_option, say
from headwater_core.errors import UsageError

if TYPE_CHECKING:
    pass


@click.command()
@click.option("--into", type=LocalPath(), metavar="DIR", help="The directory of the recovery.")
@click.option(
    "--log-dir",
    "log_dirs",
    metavar="[NODE=]DIR",
    multiple=True,
    help="A log directory of the stopped broker, of those that its log.dirs names; repeat it for each of them. NODE: refuse it unless it "
    "belongs to this broker. Without this option everything is prepared that can be while the brokers run.",
)
@format_option
def place(into: Path | None, log_dirs: Sequence[str], form: str) -> None:
    """Move recovered partitions into a stopped broker's log directories.

    For a recovery with --running, once for each broker, on its own host. The broker must be stopped, best cleanly (SIGTERM), and cannot
    start meanwhile. Looks at everything before it changes anything: a partition that holds records, or belongs to another topic, is not
    replaced. What is on the file system of the log directories is moved, else it is copied. After an interruption, run the same command
    again before the broker starts.

    Reads everything once, and sets leader epochs to 0 in every batch. That takes longest; without --log-dir it is done alone, before the
    brokers are stopped.

    \b
    Example:
      headwater recover place --into staging --log-dir 1=/var/lib/kafka

    \b
    Exit codes:
      0  everything of these brokers is in place
      4  what was recovered, or what is in the log directories, is not as it
         should be; nothing was changed
      7  a broker runs there, or the directories are another broker's
    """
    import msgspec

    from headwater.running_recovery import PLACED, named_log_dirs, placed_rows
    from headwater_core.clock import SystemClock
    from recovery import partition_swap

    configure_events()
    if into is None:
        raise UsageError("--into DIR is needed")
    clock = SystemClock()
    placed = partition_swap.place(into, named_log_dirs(log_dirs), clock) if log_dirs else partition_swap.prepare(into, clock)
    emit(form, PLACED, list(placed_rows(placed)) if form == "table" else [msgspec.to_builtins(each) for each in placed])
    for each in placed if log_dirs else ():
        say(f"next: start broker {each.node_id}; once all are placed, `headwater recover finish --into {into}`")
