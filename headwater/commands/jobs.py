"""`headwater jobs`: bulk work over an archive, on this machine or on Spark."""

import click

from headwater.commands.export import export
from headwater.commands.scrub import scrub


@click.group()
def jobs() -> None:
    """Check or export a large archive, on this machine or on Spark.

    A job runs on Spark with --master, or with --spark under spark-submit. Any job may be killed and run again.
    """


jobs.add_command(scrub)
jobs.add_command(export)
