"""`headwater status`."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import click

from headwater.columns import Column, as_size
from headwater.options import configured, parse_selection, selection_argument
from headwater.output import emit, format_option, say
from headwater.units import parse_duration
from headwater_core.errors import Partial, TransientError, UsageError

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.status_answer import StatusAnswer

INTERVAL = "5s"
INTERVAL_MIN_S = 0.5  # without an agent each refresh sends requests to the store
_LINES_AROUND = 7  # of a watched table: its title, what is away, the summary, what went wrong, the cursor
PARTITIONS = (
    Column("topic", "topic", shrinks=True),
    Column("partition", "partition", numeric=True),
    Column("archive_start", "archive start", numeric=True, leaves=3),
    Column("local_start", "local start", numeric=True, leaves=2),
    Column("archive_end", "archive end", numeric=True),
    Column("high_watermark", "high watermark", numeric=True),
    Column("lag_bytes", "lag bytes", numeric=True, leaves=4),
    Column("lag_time", "lag time", numeric=True),
    Column("cached_bytes", "cached", as_size, numeric=True, leaves=1),
    Column("state", "state"),
    Column("reason", "reason", free=True),
)
TOPICS = (
    Column("topic", "topic", shrinks=True),
    Column("partitions", "partitions", numeric=True),
    Column("current", "current", numeric=True),
    Column("archived_bytes", "archived", numeric=True, leaves=2),
    Column("lag_bytes", "lag bytes", numeric=True, leaves=3),
    Column("lag_time", "lag time", numeric=True),
    Column("worst", "worst partition", numeric=True, leaves=4),
    Column("cached_bytes", "cached", as_size, numeric=True, leaves=1),
    Column("state", "state"),
    Column("reason", "reason", free=True),
)


@click.command()
@selection_argument
@click.option("-p", "--partitions", "by_partition", is_flag=True, help="One row per partition. TOPIC:P and JSON always have that.")
@click.option("--max-lag", metavar="TIME", help="Exit with code 4 when a partition lags more than this, such as 10m.")
@click.option("--watch", is_flag=True, help="Refresh the table until Ctrl-C.")
@click.option("--interval", metavar="TIME", help=f"Time between refreshes of --watch.  [default: {INTERVAL}]")
@format_option
@configured
def status(
    config: "Config", selection: str | None, by_partition: bool, max_lag: str | None, watch: bool, interval: str | None, form: str
) -> None:
    """Show how much of each topic is archived, its lag and its state. The worst topic comes first.

    The facts are what the agent on the data directory knows: age_s in JSON is how long ago a partition was last seen to be so, and
    known_age_s how long ago the bucket confirmed what is said of the archive. Without an agent that answers, the log directories and
    the bucket are looked at, and a note says why; without the bucket's answer the table shows what is known without it. An agent,
    and then a bucket, that does not answer is given up after 5 s each; one that answers may take longer for very many partitions.

    A partition is current when its archive end equals its high watermark: all that is committed is archived. The lag time is the
    age of the first record that is not archived, by its own timestamp. The high watermark comes from the broker, where
    log.bootstrap_servers names it and it leads the partition; else from its checkpoint, which Kafka writes every 5 s by default:
    high_watermark_source and high_watermark_age_s in JSON, and the reason of TOPIC:P, say which and how old it is. The state,
    reason and lag time of a topic are those of its worst partition.

    \b
    Examples:
      headwater status orders.placed --partitions
      headwater status --max-lag 10m

    \b
    Exit codes:
       0  with --max-lag: no partition lags more
       3  some topics in the bucket are damaged
       4  with --max-lag: a partition lags more, is stopped, or its lag is unknown
       5  the bucket did not answer (the agent: for more than 5 s)
      10  with --max-lag: no partition here is to be archived
    """
    lag_max_s = None if max_lag is None else parse_duration(max_lag)
    number = parse_selection(selection)[1] if selection else None
    show = partial(_show, config, by_partition=by_partition or number is not None, explained=number is not None)
    if watch:
        if form != "table" or lag_max_s is not None:
            raise UsageError("--watch cannot be used with -o or --max-lag; a script runs status again instead")
        _watch(partial(_look, config, selection, with_cluster=selection is None), show, interval or INTERVAL)
    if interval is not None:
        raise UsageError("--interval needs --watch")
    is_table = form == "table"
    rows = _look(config, selection, show if is_table else partial(_print, form), with_cluster=is_table and selection is None)
    if lag_max_s is not None:
        from headwater.overview import check_lag

        check_lag(rows, lag_max_s)


def _look(
    config: "Config", selection: str | None, show: Callable[["StatusAnswer"], None], *, with_cluster: bool = False
) -> list[dict[str, Any]]:
    """The rows, shown also when an error follows. with_cluster: say how old the snapshot of the cluster's metadata is"""
    from headwater.status_answer import find_status

    answer = find_status(config, selection)
    show(answer)
    if answer.cluster and with_cluster:
        say(answer.cluster)
    if answer.note:
        say(answer.note)
    if answer.failure is not None:
        raise answer.failure
    return answer.rows


def _print(form: str, answer: "StatusAnswer") -> None:
    emit(form, (), answer.rows)
    for outage in answer.outages:
        say(outage)


def _show(config: "Config", answer: "StatusAnswer", *, by_partition: bool, explained: bool, **how: Any) -> None:
    """Print a table below what is away. how: arguments of `emit`."""
    from headwater.drill.report_store import ReportStore
    from headwater.drill_text import drill_summary
    from headwater.overview import partition_rows, summary, topic_rows
    from headwater_core.clock import SystemClock

    rows = answer.rows
    for outage in answer.outages:
        say(outage)
    if by_partition:
        emit("table", PARTITIONS, partition_rows(rows, explained=explained), **how)
    else:
        emit("table", TOPICS, topic_rows(rows), **how)
    say(summary(rows))
    last = ReportStore(config.node.data_dir, config.drill.kept_reports).last()
    if last is not None:
        say(drill_summary(last, SystemClock().now_ms()))


def _watch(look: Callable[[Callable[["StatusAnswer"], None]], object], show: Callable[..., None], interval: str) -> NoReturn:
    """On a terminal each table replaces the one before; elsewhere it follows it."""
    import shutil
    import time
    from datetime import UTC, datetime

    interval_s = parse_duration(interval)
    if interval_s < INTERVAL_MIN_S:
        raise UsageError(f"--interval {interval}: at least {INTERVAL_MIN_S:g} s")

    def redraw(answer: "StatusAnswer") -> None:
        click.clear()  # does nothing but on a terminal
        title = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}, again every {interval}; Ctrl-C ends it"
        show(answer, title=title, lines_max=shutil.get_terminal_size().lines - _LINES_AROUND, ends_with_reader=True)

    while True:
        try:
            look(redraw)
        except (TransientError, Partial) as error:
            say(f"headwater: {error}")
        time.sleep(interval_s)
