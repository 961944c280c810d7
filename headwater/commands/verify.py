"""`headwater verify`: compare the archive with its manifests, from one machine."""

from typing import TYPE_CHECKING

import click

from headwater.columns import Column
from headwater.options import configured, parse_selection, selection_argument
from headwater.output import emit, format_option, progress, say
from headwater.units import size_text
from headwater_core.counts import count_text

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
@click.option("--data", is_flag=True, help="Read every object: check batch CRCs, offsets and digests.")
@format_option
@configured
def verify(config: "Config", selection: str | None, data: bool, form: str) -> None:
    """Check the archive against its manifests.

    Without --data it checks that each object exists, has the right length and digest, and that its index is valid. It prints
    what is damaged or missing, partitions without a manifest, and objects older than a day that no manifest lists. `headwater
    jobs scrub` does the same for large archives.

    \b
    Example:
      headwater verify orders.placed --data

    \b
    Exit codes:
       0  no damage
       3  no damage, but something could not be examined
       4  damage was found
      10  nothing to examine
    """
    from headwater.operation_report import reported
    from headwater.overrides import store_overrides
    from headwater.pipeline.runner import Threads
    from headwater.pipeline.scrub.scrubber import Scrubber, ScrubScope
    from headwater.wiring import open_bucket
    from headwater_core.clock import SystemClock

    store = open_bucket(config).store
    topic, number = parse_selection(selection) if selection else (None, None)
    scrub = Scrubber(store, ScrubScope(topic=topic, partition=number, data=data), SystemClock())
    with reported(
        config.node.data_dir, "verify", {"selection": selection, "data": data}, scrub.size_bytes, store_overrides(config)
    ) as operation:
        with progress("verifying", scrub.size_bytes) as shown:
            report = scrub.run(Threads(store, VERIFIERS), operation.beside(shown.advance))
        operation.results = report.sums()
        rows = [finding.row() for finding in report.findings]
        if rows or form != "table":
            emit(form, FINDINGS, rows)
        read = f", read {size_text(report.read_bytes)}" if data else ""
        say(f"examined {count_text(report.examined, 'object')} of {count_text(report.partitions, 'partition')}{read}")
        verdict = report.verdict(store.url)
        if verdict:
            raise verdict
