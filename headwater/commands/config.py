"""`headwater config check|show`."""

from typing import TYPE_CHECKING

import click

from headwater.columns import Column
from headwater.options import configured
from headwater.output import emit, emit_document, format_option
from headwater_core.errors import HeadwaterError, UsageError

if TYPE_CHECKING:
    from headwater.config import Config


@click.group()
def config() -> None:
    """Check or show the configuration."""


@config.command()
@configured
def check(config: "Config") -> None:
    """Check that the configuration is valid. Does not connect to the store.

    \b
    Example:
      headwater config check

    \b
    Exit codes:
      0  valid
      2  not valid; stderr says why
    """
    from headwater.wiring import open_bucket, open_log_dirs
    from headwater_core.control.peer_transport import check_config

    open_bucket(config)  # raises what is wrong with its URL
    check_config(config.control)
    if config.log.dirs:
        try:
            open_log_dirs(config).survey()
        except (HeadwaterError, OSError) as error:
            raise UsageError(f"log.dirs: {error}") from error
    emit_document(f"valid: node {config.node.id}, store {config.store.url}, {len(config.log.dirs)} log directories\n".encode())


@config.command()
@format_option
@configured
def show(config: "Config", form: str) -> None:
    """Show every setting, its value and where it was set.

    \b
    Example:
      headwater config show --set hydration.cache_bytes=20GiB
    """
    from headwater.config import shown

    columns = (Column("key", "setting"), Column("value", "value"), Column("origin", "set by", leaves=1))
    emit(form, columns, ({"key": key, "value": value, "origin": origin} for key, value, origin in shown(config)))
