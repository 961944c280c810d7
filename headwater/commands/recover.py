"""`headwater recover`, the group of the five verbs: plan, apply, place, finish, status."""

import click

from headwater.commands.recover_apply import apply
from headwater.commands.recover_finish import finish, status
from headwater.commands.recover_place import place
from headwater.commands.recover_plan import plan


@click.group()
def recover() -> None:
    """Rebuild a broker's log directory from the bucket alone.

    `plan` shows what a recovery would do, `apply` does it, `status` shows its progress and what is held back, `finish` puts that back.
    With --running topics are restored into a running cluster; there `place` moves what was recovered into the brokers' log directories.

    \b
    Example:
      headwater recover apply topic --all --into recovered
    """


for verb in (plan, apply, place, finish, status):
    recover.add_command(verb)
