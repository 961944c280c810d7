"""`headwater pause` and `headwater resume`."""

from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column
from headwater.options import configured, selection_argument
from headwater.output import emit, format_option, say

if TYPE_CHECKING:
    from headwater.config import Config

AGENT_S = 30.0
COLUMNS = (Column("selection", "paused"), Column("since", "since"), Column("by", "by"))
all_option = click.option("--all", "everything", is_flag=True, help="All topics, those that are still to be created included.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be paused afterwards.")


@click.command()
@selection_argument
@all_option
@dry_run_option
@format_option
@configured
def pause(config: "Config", selection: str | None, everything: bool, dry_run: bool, form: str) -> None:
    """Stop archiving a topic, a partition, or everything, until `headwater resume`.

    It is written to the bucket, so it holds for all agents of the archive, also after an election or a restart. The agent
    on the data directory stops at once, uploads in flight included; others within a minute. What is archived stays and is served. What
    the broker deletes meanwhile is missing from the archive: a gap, with the pause as its reason.

    `headwater archive` and `flush` archive nothing of what is paused either. Prints all that is paused afterwards.

    \b
    Example:
      headwater pause orders.placed --dry-run
    """
    _do(config, {"selection": selection, "everything": everything, "by": config.node.id}, dry_run, form, resume=False)


@click.command()
@selection_argument
@all_option
@dry_run_option
@format_option
@configured
def resume(config: "Config", selection: str | None, everything: bool, dry_run: bool, form: str) -> None:
    """Archive again what `headwater pause` has stopped.

    TOPIC also resumes the partitions of it that were paused one by one; --all resumes everything. What is paused as a whole cannot be
    resumed in part. Prints what is still paused afterwards.

    \b
    Example:
      headwater resume orders.placed --dry-run
    """
    _do(config, {"selection": selection, "everything": everything, "by": config.node.id}, dry_run, form, resume=True)


def _do(config: "Config", request: dict[str, Any], dry_run: bool, form: str, *, resume: bool) -> None:
    from headwater.agent_api import AgentApi, NoAgent, tell_late_agent
    from headwater.command_operation import begin_operation
    from headwater.pause_change import PauseChange, pause_rows
    from headwater.status_answer import absence_note
    from headwater.store_identity import check_belongs
    from headwater.wiring import open_bucket
    from headwater_core.clock import time_text

    change = PauseChange(**request)
    decide = change.resume if resume else change.pause
    path = "/v1/resume" if resume else "/v1/pause"
    try:
        if dry_run:
            rows = list(pause_rows(decide(open_bucket(config).manifests.load_pauses())))
        else:
            operation_id = begin_operation()
            rows = list(AgentApi.of(config).rows(path, request, operation_id=operation_id, timeout_s=AGENT_S))
    except NoAgent:
        bucket = open_bucket(config)
        check_belongs(bucket.manifests, url=bucket.store.url, data_dir=config.node.data_dir, to_write=True)
        rows = list(pause_rows(bucket.manifests.change_pauses(decide)))
        tell_late_agent(config, path, request)
    emit(form, COLUMNS, rows if form != "table" else [row | {"since": time_text(row["since_ms"])} for row in rows])
    if not rows:
        say("nothing is paused")
    if change.selection is not None and (note := absence_note(config, change.selection)):
        say(note)
