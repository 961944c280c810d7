"""`headwater jobs`: bulk work over an archive, on this machine or on Spark."""

import click

from headwater.commands.export import export
from headwater.commands.scrub import scrub


@click.group()
def jobs() -> None:
    """Bulk work over the archive.

    Runs on this machine; with --master, or under spark-submit with --spark, on Spark. Every job may be killed and run again.
    """


jobs.add_command(scrub)
jobs.add_command(export)
