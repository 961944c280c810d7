"""`headwater namespaces`, as Pulsar's proposal spells the read priority of a namespace."""

from typing import TYPE_CHECKING

import click

from headwater.commands.topics import PRIORITY_FLAG, set_by_command
from headwater.options import configured
from headwater.output import format_option

if TYPE_CHECKING:
    from headwater.config import Config


@click.command()
@click.option(
    PRIORITY_FLAG,
    "wanted",
    nargs=2,
    required=True,
    metavar="TENANT/NAMESPACE POLICY",
    help="The read priority of all topics of a namespace, such as OFFLOADED_FIRST or bookkeeper-only.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@format_option
@configured
def namespaces(config: "Config", wanted: tuple[str, str], dry_run: bool, form: str) -> None:
    """Set the read priority of all topics of a namespace, as Pulsar's tools would.

    The topics of TENANT/NAMESPACE are those whose names match TENANT.NAMESPACE.*, so this is `headwater topics set 'TENANT.NAMESPACE.*'
    read_priority=POLICY`. That command removes it, too, with `read_priority=`; this one does not.

    \b
    Example:
      headwater namespaces --set-tiered-read-priority shop/orders offloaded-first
    """
    from headwater.setting_change import pulsar_pattern

    namespace, policy = wanted
    set_by_command(config, pulsar_pattern(namespace, 2), {"read_priority": policy}, form, dry_run=dry_run)
