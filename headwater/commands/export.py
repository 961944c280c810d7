"""`headwater jobs export`."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column, as_size
from headwater.job_options import place_of, placed
from headwater.options import LocalPath, configured, isolation_option
from headwater.output import emit, format_option, progress, say, summarise
from headwater.units import parse_size, size_text
from headwater_core.counts import count_text
from headwater_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headwater.config import Config
    from headwater.job_options import JobPlacement
    from headwater.pipeline.export.backlog import Failure
    from headwater.pipeline.scan.archive_snapshot import OpenTransactionAtEnd
    from headwater.pipeline.scan.query import Query
    from headwater.pipeline.scan.splits import Split
    from headwater_core.objectstore.store import ObjectStore

RANGES = (
    Column("topic", "topic"),
    Column("partition", "partition", numeric=True),
    Column("first", "first offset", numeric=True),
    Column("end", "end offset", numeric=True),
    Column("size_bytes", "size", as_size, numeric=True),
)
FAILED = (*RANGES[:-1], Column("error", "error", free=True))


@click.command(short_help="Topics as Parquet, Iceberg or Delta.")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--to", "directory", type=LocalPath(), metavar="DIR", help="Output directory: DIR/topic=…/date=…/*.parquet.")
@click.option("--table", metavar="NAME", help="Output table in a catalog of Spark, such as lake.db.orders.")
@click.option(
    "--format", "table_format", type=click.Choice(["iceberg", "delta"]), default="iceberg", show_default=True, help="Format of a new table."
)
@isolation_option("read_committed")
@click.option(
    "--columns", metavar="NAME,…", help="Columns, from: key, value, partition, offset, timestamp, timestampType, headers.  [default: all]"
)
@click.option(
    "--from",
    "begin",
    metavar="earliest|TIME",
    default="earliest",
    show_default=True,
    help="Where to start a partition that was never exported.",
)
@click.option(
    "--split-bytes",
    metavar="SIZE",
    default="64MiB",
    show_default=True,
    help="About this much of the archive is one range, which one task writes.",
)
@click.option("--allow-data-loss", is_flag=True, help="Continue where offsets are missing in the archive.")
@click.option(
    "--on-recreated",
    type=click.Choice(["start-anew", "fail"]),
    default="start-anew",
    show_default=True,
    help="If a topic was deleted and created again. start-anew: also export the new topic from its start; fail: skip it and report it.",
)
@click.option("--commit-bytes", metavar="SIZE", help="About this much of the archive is one commit of a table.  [default: at least 4GiB]")
@click.option("--dry-run", is_flag=True, help="Only show which ranges would be exported.")
@placed
@format_option
@configured
def export(
    config: "Config",
    topics: tuple[str, ...],
    directory: Path | None,
    table: str | None,
    table_format: str,
    isolation: str,
    columns: str | None,
    begin: str,
    split_bytes: str,
    allow_data_loss: bool,
    on_recreated: str,
    commit_bytes: str | None,
    dry_run: bool,
    placing: "JobPlacement",
    form: str,
) -> None:
    """Export archived topics to Parquet files or to a table, by topic and day.

    TOPIC is a name, a pattern such as 'recipes.*', or '!recipes.none' to exclude a topic of a pattern. TOPIC@TOPIC_ID is a topic
    that was deleted and created again, as it was before.

    Each run continues where the last one ended, so run it from cron. Every offset is exported once, even if a run is killed.
    The columns topicId, leaderEpoch, object, rangeFirst and rangeEnd say where a row comes from. --table needs Spark with the
    package of the table format (docs/jobs.md). On Spark, DIR must be shared by all workers.

    \b
    Example:
      headwater jobs export 'recipes.*' '!recipes.none' --to lake

    \b
    Exit codes:
      0  everything was exported
      3  something could not be exported; the next run tries it again
    """
    from headwater.wiring import open_bucket

    if (directory is None) == (table is None):
        raise UsageError("give --to DIR or --table NAME")
    store = open_bucket(config).store
    query = _query(topics, columns, isolation, split_bytes, allow_data_loss, begin)
    if directory is not None:
        if commit_bytes is not None:
            raise UsageError("--commit-bytes needs --table")
        _to_directory(config, store, query, directory, on_recreated == "start-anew", placing, dry_run, form)
    elif not placing.on_spark:
        raise UsageError("--table needs Spark: --master local[4], or --spark under spark-submit")
    else:
        most = parse_size(commit_bytes) if commit_bytes else None
        _to_table(config, query, str(table), table_format, on_recreated == "start-anew", most, placing, dry_run, form)


def _query(topics: tuple[str, ...], columns: str | None, isolation: str, split_bytes: str, allow_data_loss: bool, begin: str) -> "Query":
    try:
        from headwater.pipeline.export.directory_export import NEEDED
        from headwater.pipeline.scan.query import COLUMNS
        from headwater.pipeline.scan.query_options import parse_query
    except ModuleNotFoundError as error:
        raise UsageError(f'{error.name} is not installed: pip install "headwater[scan]"') from None
    named = [name.strip() for name in columns.split(",")] if columns else list(COLUMNS)
    if unknown := [name for name in named if name not in COLUMNS]:
        raise UsageError(f"--columns {','.join(unknown)}: not one of {', '.join(COLUMNS)}")
    options: dict[str, object] = {
        "topics": list(topics),
        "columns": [name for name in COLUMNS if name in named or name in NEEDED],
        "isolation": isolation,
        "splitBytes": parse_size(split_bytes),
        "failOnDataLoss": not allow_data_loss,
    }
    if begin != "earliest":
        options["startingTimestamp"] = _time(begin)
    return parse_query(options)


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--from {text[:40]}: neither earliest nor a time such as 2026-01-31T06:00:00Z") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _to_directory(
    config: "Config",
    store: "ObjectStore",
    query: "Query",
    directory: Path,
    start_anew: bool,
    placing: "JobPlacement",
    dry_run: bool,
    form: str,
) -> None:
    from headwater.operation_report import reported
    from headwater.pipeline.export.checkpoint import open_checkpoint
    from headwater.pipeline.export.directory_export import DirectoryExport

    held = open_checkpoint(directory, store_url=store.url, read_committed=query.read_committed, columns=query.columns, read_only=dry_run)
    with held as checkpoint:
        work = DirectoryExport(store, query, checkpoint, start_anew=start_anew)
        if dry_run:
            _show(form, (task.split for task in work.tasks), work.size_bytes, work.failures, work.open_transactions)
            return
        with reported(config.node.data_dir, "export", {"to": str(directory)}, work.size_bytes) as operation:
            with progress("exporting", work.size_bytes) as shown, placing.runner(config, store, "export", work.size_bytes) as runner:
                summary = work.run(runner, operation.beside(shown.advance))
            facts = {
                "ranges": summary.ranges,
                "rows": summary.files.rows,
                "files": summary.files.files,
                "size_bytes": summary.files.size_bytes,
            }
            operation.results = facts
            _report(
                form,
                facts | {"directory": str(directory)},
                summary.failed,
                work.open_transactions,
                f"exported {count_text(facts['rows'], 'record')} of {count_text(facts['ranges'], 'range')} into "
                f"{count_text(facts['files'], 'file')}, {size_text(facts['size_bytes'])}",
            )


def _to_table(
    config: "Config",
    query: "Query",
    table: str,
    table_format: str,
    start_anew: bool,
    commit_bytes: int | None,
    placing: "JobPlacement",
    dry_run: bool,
    form: str,
) -> None:
    with placing.spark("export") as spark:
        from headwater.operation_report import reported
        from headwater.pipeline.spark.table_export import TableExport, check_format

        check_format(spark, table_format)
        work = TableExport(
            spark, place_of(config), query, table, table_format, start_anew=start_anew, commit_bytes=commit_bytes, read_only=dry_run
        )
        for note in work.notes:
            say(note)
        if dry_run:
            _show(form, work.splits, work.size_bytes, work.failures, work.open_transactions)
            return
        with reported(config.node.data_dir, "export", {"to": table}, work.size_bytes) as operation:
            with progress("exporting", work.size_bytes) as shown:
                done = work.run(operation.beside(shown.advance))
            facts = {"table": table, "ranges": done.ranges, "commits": done.commits}
            operation.results = {"ranges": done.ranges, "commits": done.commits}
            said = f"exported {count_text(done.ranges, 'range')} into {table} in {count_text(done.commits, 'commit')}"
            _report(form, facts, done.failed, work.open_transactions, said)


def _report(
    form: str, facts: dict[str, Any], failed: "Sequence[Failure]", open_transactions: "Sequence[OpenTransactionAtEnd]", said: str
) -> None:
    from headwater.pipeline.export.directory_export import verdict
    from headwater.pipeline.scan.archive_snapshot import describe_open

    rows = [asdict(each) for each in failed]
    if form == "json":
        summarise(facts | {"failed": rows, "open_transactions": [transaction._asdict() for transaction in open_transactions]})
    elif form == "jsonl" or failed:
        emit(form, FAILED, rows)
    say(said)
    if open_transactions:
        say(describe_open(open_transactions))
    if wrong := verdict(failed):
        raise wrong


def _show(
    form: str,
    splits: "Iterable[Split]",
    size_bytes: int,
    failures: "Sequence[Failure]",
    open_transactions: "Sequence[OpenTransactionAtEnd]",
) -> None:
    from headwater.pipeline.scan.archive_snapshot import describe_open

    rows = [_row(split) for split in splits]
    emit(form, RANGES, rows)
    say(f"would export {count_text(len(rows), 'range')}, {size_text(size_bytes)} of the archive")
    for each in failures:
        say(f"would not export {each.topic}{'' if each.partition is None else f':{each.partition}'}: {each.error}")
    if open_transactions:
        say(describe_open(open_transactions))


def _row(split: "Split") -> dict[str, Any]:
    return {"topic": split.topic, "partition": split.partition, "first": split.first, "end": split.end, "size_bytes": split.size_bytes}
