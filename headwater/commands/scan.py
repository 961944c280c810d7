"""`headwater scan`: archived topics to Parquet files, straight from the bucket."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column, as_size
from headwater.options import LocalPath, configured, from_option, isolation_option, to_option
from headwater.output import emit, format_option, progress, say
from headwater.units import duration_text, parse_size, parse_time, size_text
from headwater_core.counts import count_text
from headwater_core.errors import Partial, UsageError

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.pipeline.scan.parquet_directory import ParquetResult
    from headwater.pipeline.scan.query import Advice, Query
    from headwater.pipeline.scan.scan_plan import ScanPlan

_PLAN = (
    Column("topic", "topic"),
    Column("partition", "partition", numeric=True),
    Column("first", "first offset", numeric=True),
    Column("end", "end offset", numeric=True),
    Column("objects", "objects", numeric=True, leaves=2),
    Column("splits", "splits", numeric=True, leaves=1),
    Column("size_bytes", "size", as_size, numeric=True),
)


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--to-parquet", "directory", type=LocalPath(), metavar="DIR", required=True, help="Output directory, empty or new.")
@click.option(
    "--columns",
    metavar="NAME,…",
    help="Columns, from: key, value, topic, partition, offset, timestamp, timestampType, headers.  [default: all but headers]",
)
@click.option("--headers", is_flag=True, help="Also write the column headers.")
@from_option
@to_option
@isolation_option("read_uncommitted")
@click.option(
    "--on-corrupt",
    type=click.Choice(["fail", "quarantine"]),
    default="fail",
    show_default=True,
    help="fail: stop at damaged data; quarantine: list it and continue.",
)
@click.option("--quarantine", "quarantine_path", metavar="DIR", help="Directory or URL for the list of damaged data, as JSON lines.")
@click.option("--skip-gaps", is_flag=True, help="Continue over offsets that were never archived.")
@click.option(
    "--split-bytes",
    metavar="SIZE",
    help="About this much of the archive becomes one file.  [default: 128MiB, or less to give every worker a file]",
)
@click.option("--workers", type=click.IntRange(1, 256), help="Threads.  [default: one per processor]")
@click.option("--dry-run", is_flag=True, help="Only show what would be read. Reads manifests only.")
@format_option
@configured
def scan(
    config: "Config",
    topics: tuple[str, ...],
    directory: Path,
    columns: str | None,
    headers: bool,
    first: str,
    end: str,
    isolation: str,
    on_corrupt: str,
    quarantine_path: str | None,
    skip_gaps: bool,
    split_bytes: str | None,
    workers: int | None,
    dry_run: bool,
    form: str,
) -> None:
    """Write archived topics to Parquet files, with the columns of Spark's Kafka source.

    TOPIC is a name, a pattern such as 'recipes.*', or '!recipes.none' to exclude a topic of a pattern. TOPIC@TOPIC_ID is a topic
    that was deleted and created again, as it was before. A time means the first record at or after it.

    The output directory appears when it is complete: a scan that fails leaves nothing behind. -o json prints a summary.

    \b
    Example:
      headwater scan 'recipes.*' '!recipes.none' --to-parquet recipes

    \b
    Exit codes:
      0  everything was written
      3  everything was written but what --quarantine lists
      4  data is damaged; nothing was written
    """
    from headwater.operation_report import reported
    from headwater.pipeline.scan.archive_snapshot import describe_open
    from headwater.pipeline.scan.query_options import parse_query
    from headwater.wiring import open_bucket
    from headwater_core.clock import SystemClock

    options: dict[str, object] = {
        "topics": topics,
        "columns": columns,
        "includeHeaders": headers,
        "isolation": isolation,
        "onCorrupt": on_corrupt,
        "quarantinePath": quarantine_path,
        "failOnDataLoss": not skip_gaps,
        "splitBytes": parse_size(split_bytes) if split_bytes else None,
    }
    query = replace(_placed(parse_query(options | _times(first, end)), first, end), advice=_advice())
    try:
        from headwater.pipeline.scan.parquet_directory import check_unused, scan_to_parquet
        from headwater.pipeline.scan.scan_plan import plan_scan
    except ModuleNotFoundError as error:
        raise UsageError(f'a scan needs {error.name}, which is not installed: pip install "headwater[scan]"') from None

    target, store, clock = directory.absolute(), open_bucket(config).store, SystemClock()
    check_unused(target)
    plan = plan_scan(store, query, workers=workers)
    if dry_run:
        rows = _plan_rows(plan)
        emit(form, _PLAN, rows)
        say(f"would read {size_text(plan.size_bytes)} of {count_text(len(rows), 'partition')} in {count_text(len(plan.splits), 'split')}")
        if plan.open_transactions:
            say(describe_open(plan.open_transactions))
        return
    started_s = clock.monotonic_s()
    with reported(config.node.data_dir, "scan", {"topics": topics, "to": str(target)}, plan.size_bytes) as operation:
        with progress("scanning", plan.size_bytes) as shown:
            written = scan_to_parquet(store, plan, query, target, workers=workers, progressed=operation.beside(shown.advance))
        operation.results = {"records": written.counters.rows, "files": written.files, "size_bytes": written.size_bytes}
        elapsed_s = clock.monotonic_s() - started_s
        if form != "table":
            emit(form, (), [_summary(plan, written, target, elapsed_s)])
        say(
            f"{count_text(written.counters.rows, 'record')} of {count_text(len(plan.ranges), 'partition')} in "
            f"{count_text(written.files, 'file')}, {size_text(written.size_bytes)}"
            f" ({size_text(written.counters.bytes_fetched)} fetched, {duration_text(elapsed_s)})"
        )
        if plan.open_transactions:
            say(describe_open(plan.open_transactions))
        if written.counters.damaged or plan.lost:
            documents = f" and {len(plan.lost)} topics or partitions with damaged manifests" if plan.lost else ""
            raise Partial(
                f"{count_text(written.counters.damaged, 'damaged range')}{documents} were left out; they are listed in {quarantine_path}"
            )


def _advice() -> "Advice":
    from headwater.pipeline.scan.query import Advice

    return Advice(
        skip_loss="--skip-gaps continues without them", set_aside="--on-corrupt quarantine --quarantine DIR lists it and reads the rest"
    )


def _times(first: str, end: str) -> dict[str, object]:
    """The query's options for bounds that are times."""
    bounds = (("starting", "earliest", first), ("ending", "latest", end))
    return {f"{which}Timestamp": parse_time(where) for which, edge, where in bounds if where != edge and not _is_offset(where)}


def _placed(query: "Query", first: str, end: str) -> "Query":
    """`query` with the bounds that are offsets: the same ones for every partition."""
    from headwater.pipeline.scan.query import END_OF_OFFSETS, Predicate

    first_offset, end_offset = (min(int(where), END_OF_OFFSETS) if _is_offset(where) else None for where in (first, end))
    return query.where(Predicate.of_offsets(first_offset or 0, END_OF_OFFSETS if end_offset is None else end_offset))


def _is_offset(where: str) -> bool:
    return where.isascii() and where.isdigit() and len(where) <= 19


def _plan_rows(plan: "ScanPlan") -> list[dict[str, Any]]:
    rows = []
    for each in plan.ranges:
        splits = [split for split in plan.splits if split.partition_id == each.head.partition_id]
        rows.append(
            {
                "topic": each.head.topic,
                "partition": each.head.partition,
                "first": each.first,
                "end": each.end,
                "objects": len({entry.key for split in splits for entry in split.entries}),
                "splits": len(splits),
                "size_bytes": sum(split.size_bytes for split in splits),
            }
        )
    return rows


def _summary(plan: "ScanPlan", written: "ParquetResult", directory: Path, elapsed_s: float) -> dict[str, Any]:
    counters = written.counters
    return {
        "directory": str(directory),
        "partitions": len(plan.ranges),
        "records": counters.rows,
        "files": written.files,
        "written_bytes": written.size_bytes,
        "fetched_bytes": counters.bytes_fetched,
        "gets": counters.gets,
        "objects_left_out": plan.entries_left_out,
        "gaps": counters.gaps_skipped,
        "damaged": counters.damaged,
        "damaged_documents": len(plan.lost),
        "open_transactions": [transaction._asdict() for transaction in plan.open_transactions],
        "elapsed_s": round(elapsed_s, 3),
    }
