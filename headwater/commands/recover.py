"""`headwater recover plan|apply|status`."""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from headwater.columns import Column, as_size
from headwater.options import configured
from headwater.output import emit, emit_document, format_option, progress, say
from headwater.units import duration_text, size_text
from headwater_core.errors import HeadwaterError, Locked, NotFound, Partial, UsageError, VerificationFailed
from headwater_core.partition import check_topic_name, parse_incarnation

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater_core.control.control_log import ControlLog
    from recovery import RecoveryPlan, RecoveryReport

COMMANDLINE = ParameterSource.COMMANDLINE
TOPICS = (
    Column("topic", "topic"),
    Column("partitions", "partitions", numeric=True),
    Column("segments", "segments", numeric=True, leaves=1),
    Column("records", "records", numeric=True),
    Column("size_bytes", "bytes", as_size, numeric=True),
)
_ASKED = ("apply_retention", "retention_ms", "retention_bytes", "cluster_id", "node_id", "open_transactions", "keep_offsets")
into_option = click.option("--into", type=click.Path(path_type=Path), metavar="DIR", help="The log directory to make; new or empty.")


@click.group()
def recover() -> None:
    """Rebuild log directories from nothing but the bucket."""


def what_to_recover(verb: Callable[..., None]) -> Callable[..., None]:
    """The arguments that make up a recovery plan."""

    @click.argument("topics", metavar="[NAME[@TOPIC_ID]]...", nargs=-1)
    @click.option(
        "--all", "everything", is_flag=True, help="Every topic in the bucket, internal ones too; damaged ones are left out: exit code 3."
    )
    @click.option("--mode", type=click.Choice(["full"]), default="full", show_default=True, help="full: everything live in the archive.")
    @click.option(
        "--partitions",
        "counts",
        metavar="[TOPIC=]N",
        multiple=True,
        help="When the archive's count is not to be believed; may be repeated. Without TOPIC: of the one topic.",
    )
    @click.option(
        "--open-transactions",
        type=click.Choice(["abort", "keep", "cut"]),
        default="abort",
        show_default=True,
        help="Where a log ends inside a transaction that the recovered coordinator does not know: write its ABORT marker; leave it open; "
        "or end the log before it.",
    )
    @click.option("--keep-offsets", is_flag=True, help="Leave committed offsets alone that lie beyond the end of the recovered logs.")
    @click.option("--apply-retention", is_flag=True, help="Let the topics' own retention bound what comes back.")
    @click.option("--retention-ms", type=click.IntRange(min=0), help="Leave out what is older; stays in the topics' settings.")
    @click.option("--retention-bytes", type=click.IntRange(min=0), help="Leave out what exceeds it, per partition.")
    @click.option("--cluster-id", help="Of the recovered cluster [default: a new one].")
    @click.option(
        "--node-id", type=click.IntRange(min=0), default=1, show_default=True, help="Of the broker that will start on the directory."
    )
    @functools.wraps(verb)
    def with_request(topics: Sequence[str], everything: bool, mode: str, counts: Sequence[str], **rest: Any) -> None:
        if bool(topics) == everything:
            raise UsageError("either topic names or --all")
        names = None if everything else tuple(topics)
        for topic in topics:
            parse_incarnation(topic)
        asked = {name: rest.pop(name) for name in _ASKED} | _partition_counts(counts)
        verb(names=names, asked=asked, **rest)

    return with_request


def _partition_counts(given: Sequence[str]) -> dict[str, Any]:
    """N alone is of the one topic that is recovered."""
    counts: dict[str, int] = {}
    for each in given:
        topic, _, number = each.rpartition("=")
        if not re.fullmatch(r"[1-9][0-9]{0,9}", number) or (not topic and len(given) > 1):
            raise UsageError(f"--partitions {each[:100]}: N, or TOPIC=N for each of several topics")
        counts[check_topic_name(topic) if topic else ""] = int(number)
    return {"partitions": counts[""]} if "" in counts else {"partition_counts": counts}


@recover.group()
def plan() -> None:
    """Say what a recovery would do. Only reads."""


@plan.command("topic")
@what_to_recover
@into_option
@format_option
@configured
def plan_topic(config: "Config", names: tuple[str, ...] | None, asked: dict[str, Any], into: Path | None, form: str) -> None:
    """Plan the recovery of topics. NAME@TOPIC_ID means an incarnation that was deleted and created again since; `headwater topics list
    --all` has the ids. With -o json the plan is a document that `recover apply --plan FILE` carries out."""
    made = _plan(config, names, asked)
    if form == "table":
        emit(form, TOPICS, _planned(made))
    else:
        from recovery import encode_plan

        document = encode_plan(made)
        emit_document(document if form == "json" else b"".join(line.strip() for line in document.splitlines()) + b"\n")
    _conclude(made, into)


def _how_to_apply(verb: Callable[..., None]) -> Callable[..., None]:
    """The options that belong to one run, not to the plan."""
    skip = click.option(
        "--skip-damaged",
        is_flag=True,
        help="Leave out what is missing or damaged in the bucket: it becomes a gap, everything else keeps its offsets; exit code 3.",
    )
    unrecorded = click.option(
        "--unrecorded", is_flag=True, help="Do not write into the bucket where this plan is applied: for a bucket that can only be read."
    )
    return skip(unrecorded(verb))


@recover.group(invoke_without_command=True)
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path, dir_okay=False), help="Carry out this plan, made by `recover plan … -o json`."
)
@into_option
@_how_to_apply
@format_option
@configured
@click.pass_context
def apply(
    ctx: click.Context,
    config: "Config",
    plan_file: Path | None,
    into: Path | None,
    skip_damaged: bool,
    unrecorded: bool,
    form: str,
) -> None:
    """Carry out a recovery. The same command again goes on after an interruption, and does nothing once it is finished."""
    if ctx.invoked_subcommand is not None:
        early = [each.opts[0] for each in ctx.command.params if each.name and ctx.get_parameter_source(each.name) is COMMANDLINE]
        if early:
            raise UsageError(f"{', '.join(early)} before `{ctx.invoked_subcommand}` has no effect; options come after it")
        return
    if plan_file is None or into is None:
        raise UsageError("recover apply --plan FILE --into DIR, or recover apply topic NAME… --into DIR")
    from recovery import decode_plan

    try:
        raw = plan_file.read_bytes()
    except OSError as error:
        raise UsageError(f"{plan_file}: {error.strerror}") from error
    if raw.lstrip()[:1] != b"{":
        raise UsageError(f"{plan_file} is no plan: it is made by `headwater recover plan … -o json`")
    _apply(config, decode_plan(raw, str(plan_file)), into, form, skip_damaged=skip_damaged, unrecorded=unrecorded)


@apply.command("topic")
@what_to_recover
@into_option
@click.option("--dry-run", is_flag=True, help="Only print the plan.")
@_how_to_apply
@format_option
@configured
def apply_topic(
    config: "Config",
    names: tuple[str, ...] | None,
    asked: dict[str, Any],
    into: Path | None,
    dry_run: bool,
    skip_damaged: bool,
    unrecorded: bool,
    form: str,
) -> None:
    """Recover topics into a new log directory, on which a freshly started broker finds everything in place.

    NAME@TOPIC_ID means an incarnation that was deleted and created again since; `headwater topics list --all` has the ids.
    """
    if into is None:
        raise UsageError("--into DIR is needed: the log directory to make")
    made = _plan(config, names, asked)
    if dry_run:
        emit(form, TOPICS, _planned(made))
        _conclude(made, into)
        return
    _apply(config, made, into, form, skip_damaged=skip_damaged, unrecorded=unrecorded)


@recover.command()
@click.option("--into", type=click.Path(path_type=Path), metavar="DIR", help="The log directory that a recovery was begun in.")
@format_option
def status(into: Path | None, form: str) -> None:
    """How far the recovery in a directory is."""
    import msgspec

    import recovery

    if into is None:
        raise UsageError("--into DIR is needed")
    found = recovery.status(into)
    if found is None:
        raise NotFound(f"no recovery was begun in {into}")
    state = "damaged" if found.problem else "unfinished" if found.finished_ms is None else "finished"
    row = msgspec.to_builtins(found) | {"state": state}
    columns = (
        Column("recovery_id", "recovery"),
        Column("state", "state"),
        Column("files_placed", "files placed", numeric=True),
        Column("files", "files", numeric=True),
        Column("bytes_placed", "bytes placed", as_size, numeric=True),
        Column("size_bytes", "bytes", as_size, numeric=True),
    )
    emit(form, columns, [row])
    if found.problem:
        raise VerificationFailed(found.problem)


def _plan(config: "Config", names: tuple[str, ...] | None, asked: dict[str, Any]) -> "RecoveryPlan":
    import recovery
    from headwater.wiring import open_bucket

    return recovery.plan(open_bucket(config).manifests, names, recovery.Options(**asked))


def _conclude(made: "RecoveryPlan", into: Path | None) -> None:
    """What else there is to say of a plan; the exit code tells what its application would come to."""
    for note in (*made.notes, *made.endings):
        say(f"note: {note}")
    say(f"{len(made.topics)} topics, {made.records} records, {size_text(made.size_bytes)}" + (f", into {into}" if into else ""))
    if made.problems:
        _say_left_out(made.left_out)
        raise UsageError("the plan cannot be applied: " + "; ".join(made.problems))
    if made.holes:
        _say_left_out(made.left_out)
        listed = "".join(f"\n  {hole}" for hole in made.holes)
        raise VerificationFailed(f"{len(made.holes)} archived runs are missing or damaged; `recover apply` needs --skip-damaged:{listed}")
    _check_complete(made.left_out)


def _say_left_out(left_out: Sequence[str]) -> None:
    for each in left_out:
        say(f"left out: {each}")


def _check_complete(left_out: Sequence[str]) -> None:
    """Raises Partial unless nothing was left out."""
    _say_left_out(left_out)
    if left_out:
        raise Partial(f"{len(left_out)} parts of the archive are left out; `headwater verify` says what is wrong with it")


def _planned(made: "RecoveryPlan") -> Iterator[dict[str, Any]]:
    for topic in made.topics:
        yield {
            "topic": topic.topic,
            "topic_id": topic.topic_id,
            "partitions": len(topic.partitions),
            "segments": sum(len(partition.files) for partition in topic.partitions),
            "records": topic.records,
            "size_bytes": topic.size_bytes,
        }


def _apply(config: "Config", made: "RecoveryPlan", into: Path, form: str, *, skip_damaged: bool, unrecorded: bool) -> None:
    import msgspec

    import recovery
    from headwater.wiring import open_bucket

    with _control(config) as control, progress("recovering", made.size_bytes) as shown:
        done: RecoveryReport = recovery.apply(
            made,
            into,
            open_bucket(config).store,
            control=control,
            progress=shown.advance,
            skip_damaged=skip_damaged,
            recorded=not unrecorded,
        )
    if form == "table":
        emit(form, TOPICS, map(msgspec.to_builtins, done.topics))
    else:
        emit("json" if form == "json" else "jsonl", (), [msgspec.to_builtins(done)])
    for note in done.notes:
        say(f"note: {note}")
    took = duration_text((done.finished_ms - done.started_ms) / 1000)
    how = "was finished before, nothing was done" if done.again else f"verified, {took}"
    say(f"{done.records} records, {size_text(done.size_bytes)} in {done.into}, cluster id {done.cluster_id}, node id {done.node_id}: {how}")
    if not done.again:
        _say_what_next(done)
    _check_complete(done.left_out)


def _say_what_next(done: "RecoveryReport") -> None:
    say(
        f"next: start Kafka 4.3 or newer on it; it needs no kafka-storage format, but in its server.properties:\n\n"
        f"  process.roles=broker,controller\n"
        f"  node.id={done.node_id}\n"
        f"  controller.quorum.voters={done.node_id}@HOST:PORT\n"
        f"  log.dirs={Path(done.into).resolve()}\n"
    )
    if done.cluster_id != done.source_cluster_id:
        say(
            f"next: this bucket stays the archive of cluster {done.source_cluster_id} and refuses (exit code 7) an agent on the recovered "
            f"cluster, {done.cluster_id}. Give that one a bucket of its own; or recover with --cluster-id {done.source_cluster_id}, and it "
            "goes on in this bucket, but then the old cluster must never start again"
        )


@contextmanager
def _control(config: "Config") -> "Iterator[ControlLog | None]":
    """The control log, to mark the recovery in. A recovery from nothing but the bucket goes on without one, and beside a running
    agent, which holds it: that a plan is applied once, the bucket says."""
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
