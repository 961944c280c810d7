"""`headwater drill`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column, as_size
from headwater.options import LocalPath, configured
from headwater.output import emit, emit_document, format_option, progress, say
from headwater.units import parse_size, size_text
from headwater_core.counts import count_text
from headwater_core.errors import NothingExamined, Partial, UsageError, VerificationFailed

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.drill.drill_run import Prepared

WINDOWS = (
    Column("topic", "topic"),
    Column("partition", "partition", numeric=True),
    Column("base_offset", "first offset", numeric=True),
    Column("last_offset", "last offset", numeric=True),
    Column("runs", "runs", numeric=True, leaves=1),
    Column("records", "records", numeric=True),
    Column("size_bytes", "bytes", as_size, numeric=True),
)
SEED_MAX = 2**53 - 1  # as JSON has it


@click.command()
@click.argument("topics", metavar="[NAME[@TOPIC_ID]|PATTERN]...", nargs=-1)
@click.option("--cluster", is_flag=True, help="The whole cluster, with the newest snapshot of its metadata.")
@click.option("--sample", metavar="PERCENT", help="How much of the archived bytes to restore and compare, such as 5%.")
@click.option("--seed", type=click.IntRange(0, SEED_MAX), help="Draw the sample that this number draws, as the report of a drill has it.")
@click.option("--scratch", type=LocalPath(), metavar="DIR", help="Make the scratch directory in DIR (drill.directory).")
@click.option("--scratch-bytes", metavar="SIZE", help="Restore at most so much (drill.scratch_bytes).")
@click.option(
    "--kafka-home",
    type=LocalPath(),
    metavar="DIR",
    help="An unpacked Kafka: start a broker on what was restored, and read it, too (drill.kafka_home).",
)
@click.option(
    "--live/--no-live",
    "live",
    default=None,
    help="Compare with the live cluster; with --live a drill that could not is incomplete.  [default: where it is configured, and answers]",
)
@click.option("--keep", is_flag=True, help="Keep the scratch directory.")
@click.option("--dry-run", is_flag=True, help="Only show what would be restored.")
@format_option
@configured
def drill(
    config: "Config",
    topics: Sequence[str],
    cluster: bool,
    sample: str | None,
    seed: int | None,
    scratch: Path | None,
    scratch_bytes: str | None,
    kafka_home: Path | None,
    live: bool | None,
    keep: bool,
    dry_run: bool,
    form: str,
) -> None:
    """Restore into a scratch directory, read back, compare, report.

    Without topics: all; PATTERN has *, ? or [...]. A recovery is planned and applied to a sample of the archive, and what comes of it is
    read back and compared, byte for byte, with the objects in the bucket, read again, and with the live cluster as far as its logs
    reach. Nothing is written but the scratch directory, which is removed (kept where something differs), and the report: JSON, and text
    for people, in drills/ of the data directory. The bucket and the cluster are only read.

    \b
    Examples:
      headwater drill
      headwater drill orders.placed --sample 5% -o json
      headwater drill 'orders.*' --no-live

    \b
    Exit codes (--dry-run: of what is known without restoring):
       0  all that was drawn came back as it was archived
       3  the same, but a recovery leaves something out, or brings
          transactions back in part, or --live compared nothing
       4  something is damaged, missing or differs
       5  the drill, or the broker of --kafka-home, could not be run now
      10  nothing was compared
    """
    from dataclasses import replace

    from headwater.drill.config import check_selected

    given: dict[str, Any] = {
        "sample": sample,
        "directory": scratch,
        "scratch_bytes": None if scratch_bytes is None else parse_size(scratch_bytes),
        "kafka_home": kafka_home,
    }
    if topics or cluster:
        for topic in topics:
            check_selected(topic)
        if topics and cluster:
            raise UsageError("give topic names, or --cluster")
        given |= {"topics": tuple(topics), "cluster": cluster}
    config = replace(config, drill=replace(config.drill, **{name: value for name, value in given.items() if value is not None}))
    _drill(config, seed, form, live=live, keep=keep, dry_run=dry_run)


def _drill(config: "Config", seed: int | None, form: str, *, live: bool | None, keep: bool, dry_run: bool) -> None:
    from msgspec.structs import replace

    from headwater.command_operation import begin_operation
    from headwater.drill.drill_report import encode_report
    from headwater.drill_session import configured_request, do_drill, prepare_only

    request = replace(configured_request(config.drill, by="command"), live=live)
    if seed is not None:
        request = replace(request, seed=seed)
    drill_id = begin_operation()
    if dry_run:
        _show(prepare_only(config, request, drill_id), form)
        return
    with _reported(config, request.topics, cluster=request.cluster) as (shown, results):
        done = do_drill(config, request, drill_id, keep=keep, shown=shown)
        report = done.report
        results |= {"partitions": report.compared_partitions, "records": report.compared.records, "findings": report.finding_count}
        if form == "table":
            click.echo(done.text, nl=False)
        else:
            document = encode_report(report)
            emit_document(document if form == "json" else b"".join(line.strip() for line in document.splitlines()) + b"\n")
        if report.scratch:
            say(f"kept: {report.scratch}")
        verdict = done.verdict()
        if verdict:
            raise verdict
        unused = [f"{path.name}: nothing compared, {path.why}" for path in report.paths if not path.amount.batches]
        say("; ".join(["passed", *unused, f"the report is {done.path}"]))


def _show(prepared: "Prepared", form: str) -> None:
    """Raises what the drill would end with, as far as that is known."""
    rows = [
        {
            "topic": topic.topic,
            "partition": partition.partition,
            "base_offset": partition.files[0].base_offset,
            "last_offset": partition.files[-1].last_offset,
            "runs": len(partition.files),
            "records": partition.records,
            "size_bytes": partition.size_bytes,
        }
        for topic in prepared.planned.topics
        for partition in topic.partitions
        if partition.files
    ]
    emit(form, WINDOWS, rows)
    for finding in prepared.findings:
        say(f"already known: {finding}")
    whole = prepared.whole
    say(
        f"would restore {size_text(prepared.size_bytes)} of {size_text(whole.size_bytes)}, {count_text(len(rows), 'partition')}, with "
        f"--seed {prepared.request.seed}"
    )
    for each in whole.left_out:
        say(f"left out: {each}")
    for transaction in whole.torn:
        say(transaction)
    if prepared.findings:
        raise VerificationFailed(f"the drill would fail: {count_text(len(prepared.findings), 'problem')} known already")
    if not rows:
        raise NothingExamined("the drill would compare nothing, which proves nothing")
    lacks = [f"left out of a recovery: {count_text(len(whole.left_out), 'part')} of the archive"] if whole.left_out else []
    if whole.cut and whole.cut.torn:
        lacks.append(f"restored in part: {count_text(len(whole.cut.torn), 'transaction')}")
    if lacks:
        raise Partial("; ".join(lacks))


@contextmanager
def _reported(config: "Config", topics: Sequence[str] | None, *, cluster: bool) -> Iterator[tuple[Any, dict[str, Any]]]:
    """For the time of the block the agent beside it, where there is one, knows of the drill; and progress is shown."""
    from headwater.operation_report import reported

    arguments = {"topics": list(topics) if topics else None, "cluster": cluster}
    with reported(config.node.data_dir, "drill", arguments) as operation:

        @contextmanager
        def shown(prepared: "Prepared") -> Iterator[Callable[[int], object]]:
            total = 2 * prepared.size_bytes
            operation.expect(total)
            with progress("drilling", total) as bar:
                yield operation.beside(bar.advance)

        yield shown, operation.results
