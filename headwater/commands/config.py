"""`headwater config check|show|reload`."""

from typing import TYPE_CHECKING

import click

from headwater.columns import Column
from headwater.options import configured
from headwater.output import emit, emit_document, format_option, say
from headwater_core.errors import HeadwaterError, UsageError

if TYPE_CHECKING:
    from headwater.config import Config

_RELOAD_S = 60.0


@click.group()
def config() -> None:
    """Check or show the configuration, or have a running agent read it again."""


@config.command()
@configured
def check(config: "Config") -> None:
    """Check that the configuration is valid. Does not connect to the store or a broker.

    Also that offload_after and offload_when_local_exceeds are below what the broker keeps of each topic, as its metadata log has it.

    \b
    Example:
      headwater config check

    \b
    Exit codes:
      0  valid
      2  not valid; stderr says why
    """
    from headwater.trigger_check import check_triggers
    from headwater.wiring import open_broker, open_bucket, open_log_dirs
    from headwater_core.control.peer_transport import check_config

    open_bucket(config)  # raises what is wrong with its URL
    check_config(config.control)
    if config.log.dirs:
        try:
            dirs = open_log_dirs(config)
            dirs.survey()
        except (HeadwaterError, OSError) as error:
            raise UsageError(f"log.dirs: {error}") from error
        open_broker(config, dirs)  # raises what is wrong with its client properties
        checked = check_triggers(config, dirs)
        checked.raise_refused()
        if checked.warning:
            say(f"warning: {checked.warning}")
    emit_document(f"valid: node {config.node.id}, store {config.store.url}, {len(config.log.dirs)} log directories\n".encode())


@config.command()
@format_option
@configured
def show(config: "Config", form: str) -> None:
    """Show every setting, its value and where it was set. Does not connect to the store.

    What was set by command is in the bucket: `headwater topics show '*'` lists it, with what [topics] says.

    \b
    Example:
      headwater config show --set hydration.cache_bytes=20GiB
    """
    from headwater.config import shown

    columns = (Column("key", "setting"), Column("value", "value"), Column("origin", "set by", leaves=1))
    emit(form, columns, ({"key": key, "value": value, "origin": origin} for key, value, origin in shown(config)))


@config.command()
@format_option
@configured
def reload(config: "Config", form: str) -> None:
    """Have the agent on the data directory read its configuration again.

    What stands under [archival] and in the archiving settings of [topics] is taken up at once, without a restart. Prints each setting
    that differs, and whether it was taken up or needs a restart. A configuration that is not valid changes nothing.

    \b
    Example:
      headwater config reload

    \b
    Exit codes:
      0  done
      2  not valid; stderr says why
      6  no agent runs on the data directory
    """
    from headwater.agent_api import AgentApi, NoAgent
    from headwater.command_operation import begin_operation
    from headwater.overrides import stated_settings
    from headwater_core.errors import NotFound

    columns = (Column("key", "setting"), Column("effect", "effect"))
    try:
        (done,) = AgentApi(config.node.data_dir, stated_settings(config, of_file=False)).rows(
            "/v1/reload", operation_id=begin_operation(), timeout_s=_RELOAD_S
        )
    except NoAgent as error:
        raise NotFound(str(error)) from error
    rows = [{"key": key, "effect": "changed"} for key in done["changed"]]
    emit(form, columns, rows + [{"key": key, "effect": "needs a restart"} for key in done["needs_restart"]])
