"""`headwater recover apply`, of topics, of the cluster, or of a plan."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from headwater.commands.recover_plan import requested_plan, with_forecast
from headwater.options import LocalPath, configured
from headwater.output import emit, format_option, progress, say
from headwater.recovery_options import ApplyOptions, apply_options, cluster_request, into_option, topic_request
from headwater.recovery_text import RECOVERED, check_complete, conclude, planned_rows, say_forecast, say_what_next, show_plan_table
from headwater.units import duration_text, size_text
from headwater_core.counts import count_text
from headwater_core.errors import HeadwaterError, Locked, UsageError

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.wiring import Bucket
    from headwater_core.control.control_log import ControlLog
    from recovery import RecoveryPlan, RecoveryReport

COMMANDLINE = ParameterSource.COMMANDLINE
_BLANKS_MAX = 4096  # before a plan


@click.group(invoke_without_command=True)
@click.option(
    "--plan",
    "plan_file",
    type=LocalPath(dir_okay=False),
    help="Apply this plan, made by `headwater recover plan topic … -o json`, unless the archive has changed since.",
)
@into_option
@click.option(
    "--bootstrap-servers",
    metavar="HOST:PORT[,HOST:PORT]",
    help="Brokers of the running cluster that the plan is for.  [default: log.bootstrap_servers]",
)
@apply_options
@format_option
@configured
@click.pass_context
def apply(
    ctx: click.Context,
    config: "Config",
    plan_file: Path | None,
    into: Path | None,
    bootstrap_servers: str | None,
    options: ApplyOptions,
    form: str,
) -> None:
    """Recover topics, or the whole cluster, into a new log directory.

    After an interruption, run the same command again: it continues. Once the recovery is finished, it does nothing.

    \b
    Example:
      headwater recover apply topic --all --into recovered
    """
    if ctx.invoked_subcommand is not None:
        early = [each.opts[0] for each in ctx.command.params if each.name and ctx.get_parameter_source(each.name) is COMMANDLINE]
        if early:
            raise UsageError(f"{', '.join(early)} has no effect before `{ctx.invoked_subcommand}`: write options after it")
        return
    if plan_file is None or into is None:
        raise UsageError("give --plan FILE --into DIR, or topic NAME… --into DIR, or cluster --into DIR")
    from headwater.wiring import open_bucket
    from recovery import read_plan

    try:
        with plan_file.open("rb") as file:
            document = file if file.seekable() else BytesIO(file.read())
            if document.read(_BLANKS_MAX).lstrip()[:1] != b"{":
                raise UsageError(f"{plan_file} is no plan; `headwater recover plan topic … -o json` prints one")
            document.seek(0)
            made = read_plan(document, str(plan_file)).plan
    except OSError as error:
        raise UsageError(f"{plan_file}: {error.strerror}") from error
    _apply(config, open_bucket(config), made, into, form, bootstrap_servers, options, unchanged=True)


@apply.command("topic")
@topic_request
@into_option
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@apply_options
@format_option
@configured
def apply_topic(
    config: "Config",
    names: tuple[str, ...] | None,
    requested: dict[str, Any],
    into: Path | None,
    dry_run: bool,
    options: ApplyOptions,
    form: str,
) -> None:
    """Recover topics into a new log directory.

    A new broker can start on that directory. NAME@TOPIC_ID is a topic that was deleted and created again, as it was before;
    `headwater topics list --all` lists the ids. After an interruption, run the same command again: it continues.

    \b
    Example:
      headwater recover apply topic --all --into recovered

    \b
    Exit codes:
      0  everything was recovered
      3  damaged parts of the archive were left out
      4  archived data is missing or damaged; --skip-damaged continues without it
      5  there is no room for it, or the store does not answer
    """
    _plan_and_apply(config, names, requested, into, dry_run, form, options)


@apply.command("cluster")
@cluster_request
@into_option
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@apply_options
@format_option
@configured
def apply_cluster(
    config: "Config",
    names: None,
    requested: dict[str, Any],
    into: Path | None,
    dry_run: bool,
    options: ApplyOptions,
    form: str,
) -> None:
    """Recover the cluster into a log directory.

    A new one, for one broker, or with --brokers a directory for each of several below it.

    All topics, with the users (old passwords hold), ACLs, quotas, settings and feature levels of a snapshot of the cluster's metadata.
    What else the old brokers had in server.properties (listeners, the authorizer, certificates) must be given to the new one.

    \b
    Example:
      headwater recover apply cluster --into recovered-cluster

    \b
    Exit codes:
      0  everything was recovered
      3  something was left out; stderr names it
      4  archived data is missing or damaged; --skip-damaged continues without it
      5  there is no room for it, or the store does not answer
      6  there is no snapshot of the cluster
    """
    _plan_and_apply(config, names, requested, into, dry_run, form, options)


def _plan_and_apply(
    config: "Config",
    names: tuple[str, ...] | None,
    requested: dict[str, Any],
    into: Path | None,
    dry_run: bool,
    form: str,
    options: ApplyOptions,
) -> None:
    from headwater.wiring import open_bucket

    if into is None:
        raise UsageError("--into DIR is needed: the log directory to create")
    bucket = open_bucket(config)
    made = requested_plan(config, bucket, names, requested, into)
    if dry_run:
        show_plan_table(made) if form == "table" else emit(form, RECOVERED, planned_rows(made))
        made = with_forecast(bucket, made, into)
        say_forecast(made)
        conclude(made, into)
        return
    _apply(config, bucket, made, into, form, requested["bootstrap_servers"], options)


def _apply(
    config: "Config",
    bucket: "Bucket",
    made: "RecoveryPlan",
    into: Path,
    form: str,
    bootstrap_servers: str | None,
    options: ApplyOptions,
    *,
    unchanged: bool = False,
) -> None:
    """bootstrap_servers: of the running cluster, for a plan that has one"""
    import msgspec

    import recovery
    from headwater.operation_report import reported
    from headwater.running_recovery import topic_creator

    arguments = {"topics": sorted({each.topic for each in made.topics}), "into": str(into)}
    with reported(config.node.data_dir, "recover", arguments, made.size_bytes) as operation:
        with _control(config) as control, progress("recovering", made.size_bytes) as shown:
            done: RecoveryReport = recovery.apply(
                made,
                into,
                bucket.store,
                control=control,
                progress=operation.beside(shown.advance),
                skip_damaged=options.skip_damaged,
                recorded=not options.unrecorded,
                unchanged=unchanged,
                create=topic_creator(config, made, bootstrap_servers),
                moved=options.moved,
            )
        operation.results = {"topics": len(done.topics), "records": done.records, "size_bytes": done.size_bytes}
        if form == "table":
            emit(form, RECOVERED, map(msgspec.to_builtins, done.topics))
        else:
            emit("json" if form == "json" else "jsonl", (), [msgspec.to_builtins(done)])
        for note in done.notes:
            say(f"note: {note}")
        took = duration_text((done.finished_ms - done.started_ms) / 1000)
        how = "finished before, nothing was done" if done.again else f"verified, {took}"
        amount = f"{count_text(done.records, 'record')}, {size_text(done.size_bytes)}"
        say(f"{amount} in {done.into}, cluster id {done.cluster_id}, node id {done.node_id}: {how}")
        if not done.again:
            say_what_next(done)
        check_complete(done.left_out, done.torn)


@contextmanager
def _control(config: "Config") -> "Iterator[ControlLog | None]":
    """The control log, to mark the recovery in. None where it cannot be opened or a running agent holds it: the recovery needs the
    bucket alone, which also records that a plan is applied once."""
    from headwater_core.control.lock import DataDirLock
    from headwater_core.control.node import ControlNode

    with ExitStack() as stack:
        control = None
        try:
            stack.enter_context(DataDirLock(config.node.data_dir))
            control = stack.enter_context(ControlNode(config.node.data_dir, config.control))
            control.ready(5)
        except Locked:
            pass
        except HeadwaterError as error:
            say(f"note: not marked in the control log: {error}")
        yield control
