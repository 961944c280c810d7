"""`headwater jobs scrub`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwater.commands.verify import FINDINGS
from headwater.job_options import placed
from headwater.options import LocalPath, configured, parse_selection, selection_argument
from headwater.output import emit, format_option, progress, say, summarise
from headwater.units import parse_duration, size_text
from headwater_core.counts import count_text
from headwater_core.errors import UsageError

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.job_options import JobPlacement


@click.command(short_help="Compare every object with its manifest.")
@selection_argument
@click.option("--state", type=LocalPath(), metavar="FILE", help="Remember in FILE which objects are sound, and read only others.")
@click.option("--sample", metavar="PERCENT", help="Read a share such as 10%, another one every day.")
@click.option(
    "--grace",
    metavar="DURATION",
    default="24h",
    show_default=True,
    help="Report an object that no manifest lists when it is older than this.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be read. Reads manifests and listings only.")
@placed
@format_option
@configured
def scrub(
    config: "Config",
    selection: str | None,
    state: Path | None,
    sample: str | None,
    grace: str,
    dry_run: bool,
    placing: "JobPlacement",
    form: str,
) -> None:
    """Read every object and compare it with its manifest: batch CRCs, offsets, leader epochs, digests and indexes.

    Prints what is damaged or missing, and objects that no manifest lists. With --state a run reads only what earlier runs did
    not; with --sample it reads today's share; with both, new objects and today's share. Every run finds missing objects and
    wrong lengths. -o json prints a summary that includes the findings.

    \b
    Example:
      headwater jobs scrub --state scrub.state --sample 10%

    \b
    Exit codes:
       0  no damage
       3  no damage, but something could not be examined
       4  damage was found
      10  nothing to examine
    """
    from headwater.operation_report import reported
    from headwater.overrides import store_overrides
    from headwater.pipeline.scrub.scrub_state import ScrubState
    from headwater.pipeline.scrub.scrubber import Sample, Scrubber, ScrubScope
    from headwater.wiring import open_bucket
    from headwater_core.clock import SystemClock

    store, clock = open_bucket(config).store, SystemClock()
    topic, number = parse_selection(selection) if selection else (None, None)
    scope = ScrubScope(
        topic=topic,
        partition=number,
        sample=Sample.of_day(_fraction(sample), clock.now_ms()) if sample else None,
        grace_ms=round(parse_duration(grace) * 1000),
    )
    work = Scrubber(store, scope, clock, ScrubState.load(state, store.url) if state else None)
    if dry_run:
        due = list(work.due())
        due_bytes = sum(check.entry.size_bytes for check in due)
        if form != "table":
            summarise({"store": store.url, "due": len(due), "due_bytes": due_bytes, "skipped": work.report.skipped})
        say(f"would examine {count_text(len(due), 'object')}, {size_text(due_bytes)}, of {count_text(work.report.partitions, 'partition')}")
        return
    with reported(
        config.node.data_dir, "scrub", {"selection": selection, "sample": sample}, work.size_bytes, store_overrides(config)
    ) as operation:
        with (
            progress("scrubbing", work.size_bytes) as shown,
            placing.runner(config, store, "scrub", work.size_bytes) as runner,
        ):
            report = work.run(runner, operation.beside(shown.advance))
        operation.results = report.sums(scope.sample)
        rows = [finding.row() for finding in report.findings]
        facts = {
            "store": store.url,
            "partitions": report.partitions,
            "examined": report.examined,
            "skipped": report.skipped,
            "replaced": report.replaced,
            "read_bytes": report.read_bytes,
            "damaged": report.damaged,
            "unexamined": len(rows) - report.damaged,
        }
        if form == "json":
            summarise(facts | {"findings": rows})
        elif rows or form == "jsonl":
            emit(form, FINDINGS, rows)
        skipped = f", {report.skipped} were not due" if report.skipped else ""
        objects, partitions = count_text(report.examined, "object"), count_text(report.partitions, "partition")
        say(f"examined {objects} of {partitions}, read {size_text(report.read_bytes)}{skipped}")
        verdict = report.verdict(store.url)
        if verdict:
            raise verdict


def _fraction(text: str) -> float:
    number, percent, rest = text.strip().partition("%")
    try:
        if percent and not rest:
            return float(number) / 100
    except ValueError:
        pass
    raise UsageError(f"--sample {text[:40]}: not a share such as 10%")
