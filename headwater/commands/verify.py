"""`headwater verify`: scrub the archive against its manifests, from one machine."""

from typing import TYPE_CHECKING

import click

from headwater.columns import Column
from headwater.options import configured, parse_selection, selection_argument
from headwater.output import emit, format_option, progress, say
from headwater.units import size_text

if TYPE_CHECKING:
    from headwater.config import Config

VERIFIERS = 4  # objects examined at once; each takes three pieces of a read
FINDINGS = (
    Column("topic", "topic"),
    Column("partition", "partition", numeric=True),
    Column("kind", "kind"),
    Column("key", "object"),
    Column("problem", "problem", free=True),
)


@click.command()
@selection_argument
@click.option("--data", is_flag=True, help="Read every byte: each batch's CRC, the offsets, the digest of each object.")
@format_option
@configured
def verify(config: "Config", selection: str | None, data: bool, form: str) -> None:
    """Check the archive against its manifests: is every object there, whole, and what the manifest says?

    Prints what is wrong: what is damaged or gone; each partition of an archived topic without a manifest, for a recovery would
    come back without it; data that no manifest speaks for, and objects older than a day that none lists. Exit code 0: all is
    well; 4: such damage was found; 3: no damage, but something could not be examined; 10: there was nothing to examine.
    `headwater jobs scrub` is the same check for large archives.
    """
    from headwater.pipeline.runner import Threads
    from headwater.pipeline.scrub.scrubber import Scope, Scrubber
    from headwater.wiring import open_bucket
    from headwater_core.clock import SystemClock

    store = open_bucket(config).store
    topic, number = parse_selection(selection) if selection else (None, None)
    scrub = Scrubber(store, Scope(topic=topic, partition=number, data=data), SystemClock())
    with progress("verifying", scrub.size_bytes) as shown:
        report = scrub.run(Threads(store, VERIFIERS), shown.advance)
    rows = [finding.row() for finding in report.findings]
    if rows or form != "table":
        emit(form, FINDINGS, rows)
    read = f", read {size_text(report.read_bytes)}" if data else ""
    say(f"examined {report.examined} objects of {report.partitions} partitions{read}")
    verdict = report.verdict(store.url)
    if verdict:
        raise verdict
