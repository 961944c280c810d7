"""`headwater recover plan|apply|place|finish|status`."""

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
from headwater.units import duration_text, parse_time, size_text, time_text
from headwater_core.errors import DiskFull, HeadwaterError, Locked, NotFound, Partial, UsageError, VerificationFailed
from headwater_core.partition import check_topic_name, parse_incarnation

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater_core.control.control_log import ControlLog
    from recovery import RecoveryPlan, RecoveryReport, RecoveryStatus
    from recovery.partition_swap import PlacedNode
    from recovery.recovery_plan import TargetBroker

COMMANDLINE = ParameterSource.COMMANDLINE
TOPICS = (
    Column("topic", "topic"),
    Column("partitions", "partitions", numeric=True),
    Column("segments", "segments", numeric=True, leaves=1),
    Column("records", "records", numeric=True),
    Column("size_bytes", "bytes", as_size, numeric=True),
)
PLANNED = (*TOPICS, Column("first", "oldest record", leaves=2), Column("last", "newest record", leaves=2))
BROKERS = (
    Column("node_id", "broker", numeric=True),
    Column("rack", "rack"),
    Column("directory", "directory"),
    Column("leads", "leads", numeric=True),
    Column("replicas", "replicas", numeric=True),
    Column("size_bytes", "bytes", as_size, numeric=True),
)
_ASKED = (
    "mode",
    "keep_bytes",
    "keep_ms",
    "drop_partitions",
    "apply_retention",
    "retention_ms",
    "retention_bytes",
    "cluster_id",
    "node_id",
    "open_transactions",
    "keep_offsets",
    "count_all",
)
into_option = click.option("--into", type=click.Path(path_type=Path), metavar="DIR", help="The log directory to create, new or empty.")


@click.group()
def recover() -> None:
    """Rebuild a broker's log directory from the bucket alone.

    `plan` shows what a recovery would do, `apply` does it, `status` shows its progress and what is held back, `finish` puts that back.
    With --running topics come back in a cluster that runs; there `place` moves what was recovered into the brokers' log directories.

    \b
    Example:
      headwater recover apply topic --all --into recovered
    """


def _take_over(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the option that gives the archive to the recovered cluster."""
    return click.option(
        "--take-over",
        is_flag=True,
        help="Give this bucket to the recovered cluster: it archives on here, and agents of the old cluster do not any more. Not with "
        "logs that end before their archive."
        "  [default: the bucket remains the old cluster's]",
    )(verb)


def _in_running(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the options of a recovery into a running cluster."""

    @click.option(
        "--running",
        is_flag=True,
        help="Recover into a running cluster that has to be kept; a new one gets more back. `apply` creates the topics, with new ids and "
        "one replica; `place` moves the records into the brokers' log directories, each broker stopped once; `finish` gives offsets, ACLs "
        "and quotas. Users with SCRAM passwords are left out.",
    )
    @click.option(
        "--bootstrap-servers",
        metavar="HOST:PORT[,HOST:PORT]",
        help="Brokers of the running cluster.  [default: log.bootstrap_servers]",
    )
    @functools.wraps(verb)
    def with_running(running: bool, bootstrap_servers: str | None, asked: dict[str, Any], **rest: Any) -> None:
        if bootstrap_servers is not None and not running:
            raise UsageError("--bootstrap-servers is for --running: any other recovery needs the bucket alone")
        verb(asked=asked | {"running": running, "bootstrap_servers": bootstrap_servers}, **rest)

    return with_running


def _onto_brokers(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the option that names several brokers."""
    return click.option(
        "--brokers",
        metavar="N|FILE",
        help="Recover onto several brokers, each with a directory below --into: N of them, with ids from --node-id on, or those of a TOML "
        "FILE with a table [[broker]] (id, directory, rack) for each. New places for replicas. With --running: onto these of its brokers."
        "  [default: one broker; with --running: all]",
    )(verb)


def _levels(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the options that say which Kafka is to start on the result."""

    @click.option(
        "--kafka-release",
        metavar="X.Y",
        help="Kafka release that will start on it. Refuse when it does not, naming those that do. One newer than all that are known gets "
        "the records that this version does not know.  [default: any that does]",
    )
    @click.option(
        "--metadata-version",
        metavar="LEVEL|X.Y",
        help="Raise the recovered cluster's metadata.version to LEVEL, or to the highest of that Kafka release. It is never lowered."
        "  [default: as in the newest snapshot of the cluster, or that is recovered]",
    )
    @functools.wraps(verb)
    def with_levels(kafka_release: str | None, metadata_version: str | None, asked: dict[str, Any], **rest: Any) -> None:
        verb(asked=asked | {"kafka_release": kafka_release, "metadata_version": metadata_version}, **rest)

    return with_levels


def what_to_recover(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the arguments that make up a recovery plan of topics."""

    @click.argument("topics", metavar="[NAME[@TOPIC_ID]|PATTERN]...", nargs=-1)
    @click.option(
        "--all", "everything", is_flag=True, help="All topics in the bucket, internal ones too, without damaged ones (then exit code 3)."
    )
    @_take_over
    @_onto_brokers
    @click.option(
        "--as",
        "renames",
        metavar="[TOPIC=]NAME",
        multiple=True,
        help="Recover the topic under another name, with a new id. Without TOPIC: the only topic. May be repeated.",
    )
    @_how_to_recover
    @_in_running
    @_levels
    @functools.wraps(verb)
    def with_topics(
        topics: Sequence[str],
        everything: bool,
        take_over: bool,
        brokers: str | None,
        renames: Sequence[str],
        asked: dict[str, Any],
        **rest: Any,
    ) -> None:
        from manifests.setting_list import check_pattern
        from recovery import is_pattern

        if bool(topics) == everything:
            raise UsageError("give topic names, or --all")
        for topic in topics:
            check_pattern(topic) if is_pattern(topic) else parse_incarnation(topic)
        if take_over and not everything:
            raise UsageError("--take-over is for all topics: add --all, or recover the cluster")
        asked = asked | {"renames": _renames(renames, topics), "take_over": take_over, "brokers": _brokers(brokers, asked["node_id"])}
        verb(names=None if everything else tuple(topics), asked=asked, **rest)

    return with_topics


def _which_cluster(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the arguments that make up a recovery plan of the whole cluster."""

    @click.option(
        "--at",
        metavar="TIME|NUMBER",
        default="latest",
        help="With the cluster's metadata as it was then: a time, or a snapshot's number. Data comes back as far as it is archived."
        "  [default: the newest]",
    )
    @click.option(
        "--unlisted-topics",
        is_flag=True,
        help="Recover topics too that the snapshot does not have: deleted before it, or created after it.",
    )
    @_onto_brokers
    @_take_over
    @_how_to_recover
    @_in_running
    @_levels
    @functools.wraps(verb)
    def with_cluster(
        at: str,
        unlisted_topics: bool,
        brokers: str | None,
        take_over: bool,
        asked: dict[str, Any],
        **rest: Any,
    ) -> None:
        asked = asked | {"cluster": at, "unlisted_topics": unlisted_topics, "take_over": take_over}
        verb(names=None, asked=asked | {"brokers": _brokers(brokers, asked["node_id"])}, **rest)

    return with_cluster


def _how_to_recover(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the options of any recovery plan, as `asked`."""

    @click.option(
        "--mode",
        type=click.Choice(["full", "partial", "instant"]),
        default="full",
        show_default=True,
        help="full: everything that the archive holds; partial: the newest of it; instant: no records, logs start where the archive ends. "
        "A gateway serves the rest. Compacted and internal topics always come back in full.",
    )
    @click.option("--keep-bytes", type=click.IntRange(min=1), help="partial: the newest runs of a partition that hold so many bytes.")
    @click.option(
        "--keep-ms",
        type=click.IntRange(min=1),
        help="partial: the runs with records of the last so many ms before a partition's newest one.",
    )
    @click.option(
        "--to-time",
        metavar="TIME",
        help="End each log before the first batch with a later timestamp, the internal topics' too, and abort what is open there.",
    )
    @click.option(
        "--count-all",
        is_flag=True,
        help="With --to-time, count every record after the end that is not later, reading as much as that takes.  [default: as many as are "
        "in 16 runs of a partition, then `at least`]",
    )
    @click.option(
        "--to-offset",
        "to_offsets",
        metavar="TOPIC:P=OFFSET",
        multiple=True,
        help="End this log before the offset, or the batch that holds it. May be repeated.",
    )
    @click.option(
        "--partitions",
        "counts",
        metavar="[TOPIC=]N",
        multiple=True,
        help="Number of partitions, if the archive's number is wrong. Without TOPIC: of the only topic. May be repeated.",
    )
    @click.option("--drop-partitions", is_flag=True, help="Let --partitions be fewer than are archived; the others do not come back.")
    @click.option(
        "--open-transactions",
        type=click.Choice(["abort", "keep", "cut"]),
        default="abort",
        show_default=True,
        help="For a transaction that is open at the end of a log and unknown to the recovered coordinator. abort: write an ABORT marker; "
        "keep: leave it open; cut: end the log before it.",
    )
    @click.option("--keep-offsets", is_flag=True, help="Keep committed offsets that are beyond the end of the recovered logs.")
    @click.option("--apply-retention", is_flag=True, help="Apply the topics' own retention settings.")
    @click.option("--retention-ms", type=click.IntRange(min=0), help="Apply this retention.ms, and keep it in the topics' settings.")
    @click.option(
        "--retention-bytes",
        type=click.IntRange(min=0),
        help="Apply this retention.bytes, per partition, and keep it in the topics' settings.",
    )
    @click.option("--cluster-id", help="Cluster id of the recovered cluster.  [default: a new one]")
    @click.option(
        "--node-id", type=click.IntRange(min=0), default=1, show_default=True, help="Id of the broker that will start on the directory."
    )
    @functools.wraps(verb)
    def with_request(counts: Sequence[str], to_time: str | None, to_offsets: Sequence[str], **rest: Any) -> None:
        asked = {name: rest.pop(name) for name in _ASKED} | _partition_counts(counts) | {"to_offsets": _to_offsets(to_offsets)}
        if asked["count_all"] and to_time is None:
            raise UsageError("--count-all is for --to-time: nothing else leaves records out by their time")
        if to_time is not None:
            asked["to_time_ms"] = int(parse_time(to_time).timestamp() * 1000)
        verb(asked=asked, **rest)

    return with_request


def _brokers(given: str | None, first: int) -> tuple["TargetBroker", ...]:
    """From N or FILE. Raises UsageError."""
    from recovery.replica_placement import brokers_from, numbered_brokers

    if given is None:
        return ()
    if given.isascii() and given.isdecimal() and len(given) <= 4 and int(given):
        return numbered_brokers(int(given), first)
    try:
        return brokers_from(Path(given).read_text(), given)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--brokers {given[:200]}: neither a number nor a file that can be read: {error}") from error


def _partition_counts(given: Sequence[str]) -> dict[str, Any]:
    """From N, for the only topic, or TOPIC=N. Raises UsageError."""
    counts: dict[str, int] = {}
    for each in given:
        topic, _, number = each.rpartition("=")
        if not re.fullmatch(r"[1-9][0-9]{0,9}", number) or (not topic and len(given) > 1):
            raise UsageError(f"--partitions {each[:100]}: N, or TOPIC=N for each of several topics")
        counts[check_topic_name(topic) if topic else ""] = int(number)
    return {"partitions": counts[""]} if "" in counts else {"partition_counts": counts}


def _to_offsets(given: Sequence[str]) -> dict[str, int]:
    """From TOPIC:P=OFFSET. Raises UsageError."""
    offsets: dict[str, int] = {}
    for each in given:
        match = re.fullmatch(r"([^:=]+:[0-9]{1,10})=([0-9]{1,18})", each)
        if match is None or match[1] in offsets:
            raise UsageError(f"--to-offset {each[:100]}: TOPIC:P=OFFSET, once for a partition")
        offsets[match[1]] = int(match[2])
    return offsets


def _renames(given: Sequence[str], topics: Sequence[str]) -> dict[str, str]:
    """From NAME, for the only topic, or TOPIC=NAME. Raises UsageError."""
    from recovery import is_pattern

    renames: dict[str, str] = {}
    for each in given:
        topic, _, name = each.rpartition("=")
        if not topic and (len(topics) != 1 or is_pattern(topics[0])):
            raise UsageError(f"--as {each[:100]}: TOPIC=NAME for each of several topics")
        topic = parse_incarnation(topic or topics[0])[0]
        if topic in renames:
            raise UsageError(f"--as {each[:100]}: {topic} has a name already")
        renames[topic] = check_topic_name(name)
    return renames


@recover.group()
def plan() -> None:
    """Show what a recovery would do, and change nothing."""


@plan.command("topic")
@what_to_recover
@into_option
@format_option
@configured
def plan_topic(config: "Config", names: tuple[str, ...] | None, asked: dict[str, Any], into: Path | None, form: str) -> None:
    """Show what a recovery of topics would do.

    PATTERN has *, ? or [...]. NAME@TOPIC_ID is a topic that was deleted and created again, as it was before;
    `headwater topics list --all` lists the ids. With -o json the plan is a document for `headwater recover apply --plan FILE`.

    \b
    Example:
      headwater recover plan topic orders.placed refunds -o json
    """
    _show_plan(config, _plan(config, names, asked, thorough=True), into, form)


@plan.command("cluster")
@_which_cluster
@into_option
@format_option
@configured
def plan_cluster(config: "Config", names: None, asked: dict[str, Any], into: Path | None, form: str) -> None:
    """Show what recovering a cluster would do.

    All topics, with users, ACLs, quotas, settings and feature levels of a snapshot of the cluster's metadata (`headwater cluster show`).

    \b
    Example:
      headwater recover plan cluster
    """
    _show_plan(config, _plan(config, names, asked, thorough=True), into, form)


def _show_plan(config: "Config", made: "RecoveryPlan", into: Path | None, form: str) -> None:
    made = _with_forecast(config, made, into)
    if form == "table":
        _show_table(made)
    else:
        from recovery import encode_plan

        document = encode_plan(made)
        emit_document(document if form == "json" else b"".join(line.strip() for line in document.splitlines()) + b"\n")
    _say_forecast(made)
    _conclude(made, into)


def _show_table(made: "RecoveryPlan") -> None:
    from headwater.cut_view import CUT, cut_rows, cut_summary, rpo_summary

    emit("table", PLANNED, _planned(made))
    if made.brokers:
        emit("table", BROKERS, _planned_brokers(made), title="\nbrokers")
    if rows := list(cut_rows(made)):
        emit("table", CUT, rows, title="\ncut")
    for summary in filter(None, (cut_summary(made), rpo_summary(made))):
        say(summary)


def _how_to_apply(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the options that belong to one run, not to the plan."""
    skip = click.option(
        "--skip-damaged",
        is_flag=True,
        help="Continue without missing or damaged data: it becomes a gap, other records keep their offsets (then exit code 3).",
    )
    unrecorded = click.option(
        "--unrecorded", is_flag=True, help="Do not record this recovery in the bucket. For a bucket that is read-only."
    )
    moved = click.option(
        "--moved",
        is_flag=True,
        help="Continue in a directory that was begun on another host, or under another path. Copies of it are refused from then on.",
    )
    return skip(unrecorded(moved(verb)))


@recover.group(invoke_without_command=True)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Apply this plan, made by `headwater recover plan topic … -o json`, unless the archive has changed since.",
)
@into_option
@click.option(
    "--bootstrap-servers",
    metavar="HOST:PORT[,HOST:PORT]",
    help="Brokers of the running cluster that the plan is for.  [default: log.bootstrap_servers]",
)
@_how_to_apply
@format_option
@configured
@click.pass_context
def apply(
    ctx: click.Context,
    config: "Config",
    plan_file: Path | None,
    into: Path | None,
    bootstrap_servers: str | None,
    skip_damaged: bool,
    unrecorded: bool,
    moved: bool,
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
    from recovery import decode_plan

    try:
        raw = plan_file.read_bytes()
    except OSError as error:
        raise UsageError(f"{plan_file}: {error.strerror}") from error
    if raw.lstrip()[:1] != b"{":
        raise UsageError(f"{plan_file} is no plan; `headwater recover plan topic … -o json` prints one")
    made = decode_plan(raw, str(plan_file))
    _apply(config, made, into, form, bootstrap_servers, skip_damaged=skip_damaged, unrecorded=unrecorded, moved=moved, unchanged=True)


@apply.command("topic")
@what_to_recover
@into_option
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
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
    moved: bool,
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
    _plan_and_apply(config, names, asked, into, dry_run, form, skip_damaged=skip_damaged, unrecorded=unrecorded, moved=moved)


@apply.command("cluster")
@_which_cluster
@into_option
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@_how_to_apply
@format_option
@configured
def apply_cluster(
    config: "Config",
    names: None,
    asked: dict[str, Any],
    into: Path | None,
    dry_run: bool,
    skip_damaged: bool,
    unrecorded: bool,
    moved: bool,
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
    _plan_and_apply(config, names, asked, into, dry_run, form, skip_damaged=skip_damaged, unrecorded=unrecorded, moved=moved)


def _plan_and_apply(
    config: "Config",
    names: tuple[str, ...] | None,
    asked: dict[str, Any],
    into: Path | None,
    dry_run: bool,
    form: str,
    *,
    skip_damaged: bool,
    unrecorded: bool,
    moved: bool,
) -> None:
    if into is None:
        raise UsageError("--into DIR is needed: the log directory to create")
    made = _plan(config, names, asked, into)
    if dry_run:
        _show_table(made) if form == "table" else emit(form, TOPICS, _planned(made))
        made = _with_forecast(config, made, into)
        _say_forecast(made)
        _conclude(made, into)
        return
    _apply(config, made, into, form, asked["bootstrap_servers"], skip_damaged=skip_damaged, unrecorded=unrecorded, moved=moved)


@recover.command()
@click.option("--into", type=click.Path(path_type=Path), metavar="DIR", help="The log directory of the recovery.")
@format_option
def status(into: Path | None, form: str) -> None:
    """Show the progress of a recovery.

    And which settings it holds back, until `headwater recover finish`.

    \b
    Example:
      headwater recover status --into recovered
    """
    import msgspec

    import recovery

    if into is None:
        raise UsageError("--into DIR is needed")
    found = recovery.status(into)
    if found is None:
        raise NotFound(f"no recovery was started in {into}")
    state = "damaged" if found.problem else "unfinished" if found.finished_ms is None else "finished"
    held = recovery.held_of(into)
    placed = recovery.placed_in(into)
    row = msgspec.to_builtins(found) | {"state": state, "held": msgspec.to_builtins(held), "held_settings": len(held)}
    row |= {"placed": msgspec.to_builtins(placed)}
    columns = (
        Column("recovery_id", "recovery"),
        Column("state", "state"),
        Column("files_placed", "files placed", numeric=True),
        Column("files", "files", numeric=True),
        Column("bytes_placed", "bytes placed", as_size, numeric=True),
        Column("size_bytes", "bytes", as_size, numeric=True),
        Column("held_settings", "held back", numeric=True),
    )
    emit(form, columns, [row])
    if form == "table":
        for each in held:
            say(f"held back: {each.topic} {each.name}, {_held_text(each.value)}; it has {_held_text(each.recovered)}")
        _say_placed(found, placed)
    if found.problem:
        raise VerificationFailed(found.problem)


def _say_placed(found: "RecoveryStatus", placed: "Sequence[PlacedNode]") -> None:
    """What of a recovery into a running cluster is left to do, as far as this directory knows."""
    from headwater.running_recovery import placed_rows

    known = {each.node_id for each in placed}
    for row in placed_rows(placed):
        say(f"broker {row['node_id']}: {row['partitions']} partitions, {row['state']}, in {row['log_dirs']}")
    for node_id in found.brokers if found.running else ():
        if node_id not in known:
            say(f"broker {node_id}: not placed, or from a copy of this directory; `headwater recover place` does it")
    if found.running and found.handed_over_ms is None:
        say("offsets, ACLs, quotas and settings: not given to the cluster, or not all of them; `headwater recover finish` does it")


def _held_text(value: str | None) -> str:
    return "none" if value is None else value


@recover.command()
@click.option("--into", type=click.Path(path_type=Path), metavar="DIR", help="The log directory of the recovery.")
@click.option(
    "--bootstrap-servers", metavar="HOST:PORT[,HOST:PORT]", help="Brokers of the recovered cluster.  [default: log.bootstrap_servers]"
)
@click.option(
    "--unchecked", is_flag=True, help="Put it back although logs do not begin and end as they were recovered; pass over deleted topics."
)
@format_option
@configured
def finish(config: "Config", into: Path | None, bootstrap_servers: str | None, unchecked: bool, form: str) -> None:
    """Put back the retention that a recovery held back.

    For the running recovered cluster. After a recovery with --running it also gives the cluster committed offsets and, where the whole
    cluster was recovered, ACLs, quotas and settings, each where it has nothing of the kind; what it has stays, and is listed.

    The logs of a topic must begin and end as they were recovered, else it waits; the other topics do not wait for it. A setting that was
    changed since stays. Connects as log.client_properties says. May be repeated.
    The bucket records it: until then a recovery of the recovered cluster holds the same settings back.

    \b
    Example:
      headwater recover finish --into recovered --bootstrap-servers localhost:9092

    \b
    Exit codes:
      0  what was held back is put back
      3  some topics are not as they were recovered, nothing was put back there;
         or not everything was given to the running cluster
      4  not one topic is as it was recovered; nothing was put back
      7  the brokers are of another cluster
    """
    import recovery
    from headwater.running_recovery import check_handed, running_cluster, say_handed, write_reassignment
    from headwater.wiring import open_bucket
    from headwater_core.clock import SystemClock

    if into is None:
        raise UsageError("--into DIR is needed")
    running = recovery.running_plan(into)
    with running_cluster(config, bootstrap_servers) as cluster:
        handed = None if running is None else recovery.hand_over(into, cluster, SystemClock(), checked=not unchecked)
        done = recovery.finish(into, cluster, SystemClock(), checked=not unchecked, store=open_bucket(config).store)
    columns = (Column("topic", "topic"), Column("name", "setting"), Column("value", "value"), Column("state", "state"))
    states = (("put back", done.put_back), ("changed since, stays", done.changed), ("held back", done.left))
    rows = [{"topic": each.topic, "name": each.name, "value": each.value, "state": state} for state, some in states for each in some]
    shown = rows
    if running is not None:
        say_handed(handed, form, shown)
    emit(form, columns, shown)
    if done.left:
        say("note: settings of remote storage are held back: give them to the topics yourself once brokers have a remote tier")
    say(f"{len(done.put_back)} settings are put back" + (", and were before: nothing was done" if done.again else ""))
    if done.unreported:
        say(f"note: the bucket does not record it, run the same command again: {done.unreported}")
    for why in done.unlike.values():
        say(f"{'passed over' if unchecked else 'not put back'}: {why}")
    if done.unlike and not unchecked:
        raise Partial(
            f"{len(done.unlike)} topics are not as they were recovered: nothing was put back there; --unchecked does it all the same"
        )
    if running is not None:
        write_reassignment(into, running)
        check_handed(handed)


@recover.command()
@click.option("--into", type=click.Path(path_type=Path), metavar="DIR", help="The directory of the recovery.")
@click.option(
    "--log-dir",
    "log_dirs",
    metavar="[NODE=]DIR",
    multiple=True,
    help="A log directory of the stopped broker, of those that its log.dirs names; repeat it for each of them. NODE: refuse it unless it "
    "belongs to this broker. Without this option everything is prepared that can be while the brokers run.",
)
@format_option
def place(into: Path | None, log_dirs: Sequence[str], form: str) -> None:
    """Move recovered partitions into a stopped broker's log directories.

    For a recovery with --running, once for each broker, on its own host. The broker must be stopped, best cleanly (SIGTERM), and cannot
    start meanwhile. Looks at everything before it changes anything: a partition that holds records, or belongs to another topic, is not
    replaced. What is on the file system of the log directories is moved, else it is copied. After an interruption, run the same command
    again before the broker starts.

    Reads everything once, and sets leader epochs to 0 in every batch. That takes longest; without --log-dir it is done alone, before the
    brokers are stopped.

    \b
    Example:
      headwater recover place --into staging --log-dir 1=/var/lib/kafka

    \b
    Exit codes:
      0  everything of these brokers is in place
      4  what was recovered, or what is in the log directories, is not as it
         should be; nothing was changed
      7  a broker runs there, or the directories are another broker's
    """
    import msgspec

    from headwater.running_recovery import PLACED, named_log_dirs, placed_rows
    from headwater_core.clock import SystemClock
    from recovery import partition_swap

    if into is None:
        raise UsageError("--into DIR is needed")
    clock = SystemClock()
    placed = partition_swap.place(into, named_log_dirs(log_dirs), clock) if log_dirs else partition_swap.prepare(into, clock)
    emit(form, PLACED, list(placed_rows(placed)) if form == "table" else [msgspec.to_builtins(each) for each in placed])
    for each in placed if log_dirs else ():
        say(f"next: start broker {each.node_id}; once all are placed, `headwater recover finish --into {into}`")


def _plan(
    config: "Config", names: tuple[str, ...] | None, asked: dict[str, Any], into: Path | None = None, *, thorough: bool = False
) -> "RecoveryPlan":
    """into: where a recovery may have begun of which no other plan is the same by now; its own plan is carried out then"""
    import recovery
    from headwater.running_recovery import running_cluster
    from headwater.wiring import open_bucket

    manifests = open_bucket(config).manifests
    bootstrap_servers = asked["bootstrap_servers"]
    asked = {name: value for name, value in asked.items() if name != "bootstrap_servers"}
    if asked.get("cluster", "latest") != "latest":
        from headwater.cluster_view import snapshot_at

        asked = asked | {"cluster": str(snapshot_at(manifests, asked["cluster"]).number)}
    options = recovery.Options(**asked)
    begun = None if into is None else recovery.begun_plan(into, recovery.request_of(names, options))
    if begun is not None:
        return begun
    if not options.running:
        return recovery.plan(manifests, names, options, thorough=thorough)
    with running_cluster(config, bootstrap_servers) as cluster:
        return recovery.plan(manifests, names, options, running=cluster)


def _with_forecast(config: "Config", made: "RecoveryPlan", into: Path | None) -> "RecoveryPlan":
    """With room and time, by a short download."""
    from msgspec.structs import replace

    from headwater.wiring import open_bucket
    from headwater_core.clock import SystemClock
    from recovery.forecast import estimate

    return replace(made, forecast=estimate(made, open_bucket(config).store, into, SystemClock()))


def _say_forecast(made: "RecoveryPlan") -> None:
    """Room, time, and which brokers start on it."""
    from recovery.initial_metadata import starting_on
    from recovery.restoration import WORKERS

    if (found := made.forecast) is not None:
        free = "" if found.free_bytes is None else f", {size_text(found.free_bytes)} are free"
        say(f"room: {size_text(found.needed_bytes)} are needed{free}" + ("" if found.has_room else ": NOT ENOUGH"))
        if found.seconds is not None and found.bytes_per_s is not None:
            rate = f"{size_text(round(found.bytes_per_s))}/s each, as just measured with one"
            say(f"time: about {duration_text(found.seconds)} to download and verify, {WORKERS} downloads at a time of {rate}")
    if made.running is None:
        say(f"brokers: Kafka {starting_on(made)} starts on it")


def _conclude(made: "RecoveryPlan", into: Path | None) -> None:
    """Print notes and totals of a plan. Raises the error that applying it would end with."""
    for note in (*made.notes, *made.endings):
        say(f"note: {note}")
    say(f"{len(made.topics)} topics, {made.records} records, {size_text(made.size_bytes)}" + (f", into {into}" if into else ""))
    if made.problems:
        _say_left_out(made.left_out)
        raise UsageError("the plan cannot be applied: " + "; ".join(made.problems))
    if made.holes:
        _say_left_out(made.left_out)
        listed = "".join(f"\n  {lost}" for lost in made.holes)
        raise VerificationFailed(
            f"{len(made.holes)} archived runs are missing or damaged; "
            f"`headwater recover apply --skip-damaged` continues without them:{listed}"
        )
    if (forecast := made.forecast) is not None and not forecast.has_room:
        _say_left_out(made.left_out)
        needed, free = size_text(forecast.needed_bytes), size_text(forecast.free_bytes or 0)
        raise DiskFull(f"{into} has no room for what would be recovered: {needed} are needed, {free} are free")
    _check_complete(made.left_out)


def _say_left_out(left_out: Sequence[str]) -> None:
    for each in left_out:
        say(f"left out: {each}")


def _check_complete(left_out: Sequence[str]) -> None:
    """Raises Partial unless nothing was left out."""
    _say_left_out(left_out)
    if left_out:
        raise Partial(f"{len(left_out)} parts of the archive are left out; `headwater verify` shows what is wrong with them")


def _planned(made: "RecoveryPlan") -> Iterator[dict[str, Any]]:
    from recovery.forecast import time_range

    for topic in made.topics:
        times = time_range(topic)
        yield {
            "topic": topic.topic,
            "topic_id": topic.topic_id,
            "partitions": len(topic.partitions),
            "segments": sum(len(partition.files) for partition in topic.partitions),
            "records": topic.records,
            "size_bytes": topic.size_bytes,
            "first": time_text(times.first_ms) if times else None,
            "last": time_text(times.last_ms) if times else None,
            "left_in_archive": sum(partition.left.records for partition in topic.partitions if partition.left),
        }


def _planned_brokers(made: "RecoveryPlan") -> Iterator[dict[str, Any]]:
    """bytes: that lie in its directory; those of its other replicas come over the network."""
    partitions = [partition for topic in made.topics for partition in topic.partitions]
    for broker in made.brokers:
        led = [each for each in partitions if each.replicas[0] == broker.node_id]
        yield {
            "node_id": broker.node_id,
            "rack": broker.rack,
            "directory": broker.directory,
            "leads": len(led),
            "replicas": sum(broker.node_id in each.replicas for each in partitions),
            "size_bytes": sum(each.size_bytes for each in led),
        }


def _apply(
    config: "Config",
    made: "RecoveryPlan",
    into: Path,
    form: str,
    bootstrap_servers: str | None,
    *,
    skip_damaged: bool,
    unrecorded: bool,
    moved: bool,
    unchanged: bool = False,
) -> None:
    """bootstrap_servers: of the running cluster, for a plan that has one"""
    import msgspec

    import recovery
    from headwater.operation_report import reported
    from headwater.running_recovery import topic_creator
    from headwater.wiring import open_bucket

    arguments = {"topics": sorted({each.topic for each in made.topics}), "into": str(into)}
    with reported(config.node.data_dir, "recover", arguments, made.size_bytes) as operation:
        with _control(config) as control, progress("recovering", made.size_bytes) as shown:
            done: RecoveryReport = recovery.apply(
                made,
                into,
                open_bucket(config).store,
                control=control,
                progress=operation.beside(shown.advance),
                skip_damaged=skip_damaged,
                recorded=not unrecorded,
                unchanged=unchanged,
                create=topic_creator(config, made, bootstrap_servers),
                moved=moved,
            )
        operation.results = {"topics": len(done.topics), "records": done.records, "size_bytes": done.size_bytes}
        if form == "table":
            emit(form, TOPICS, map(msgspec.to_builtins, done.topics))
        else:
            emit("json" if form == "json" else "jsonl", (), [msgspec.to_builtins(done)])
        for note in done.notes:
            say(f"note: {note}")
        took = duration_text((done.finished_ms - done.started_ms) / 1000)
        how = "finished before, nothing was done" if done.again else f"verified, {took}"
        amount = f"{done.records} records, {size_text(done.size_bytes)}"
        say(f"{amount} in {done.into}, cluster id {done.cluster_id}, node id {done.node_id}: {how}")
        if not done.again:
            _say_what_next(done)
        _check_complete(done.left_out)


def _say_what_next(done: "RecoveryReport") -> None:
    if done.running:
        from headwater.running_recovery import say_what_to_place

        say_what_to_place(done)
        return
    if done.brokers:
        _say_brokers(done)
    else:
        _say_broker(done)
    if done.taken_over:
        say(f"this bucket is the archive of the recovered cluster now, {done.cluster_id}: start its agents with it as before")
    elif done.cluster_id != done.source_cluster_id:
        say(
            f"next: this bucket remains the archive of cluster {done.source_cluster_id}. It refuses an agent of the recovered cluster, "
            f"{done.cluster_id}, with exit code 7. Give that agent another bucket. To continue in this bucket instead, recover with "
            f"--take-over, which keeps the old cluster out, or with --cluster-id {done.source_cluster_id}; then the old cluster must never "
            "start again"
        )


def _say_brokers(done: "RecoveryReport") -> None:
    from recovery.replica_placement import voters

    controllers = voters(done.brokers)
    quorum = ",".join(f"{each.node_id}@HOST{each.node_id}:PORT" for each in controllers)
    say(
        f"next: bring each directory to its host, and start Kafka {done.kafka} on all of them, without kafka-storage format, and with "
        f"these lines in server.properties:\n\n  controller.quorum.voters={quorum}\n"
    )
    for each in done.brokers:
        rack = "" if each.rack is None else f"  broker.rack={each.rack}\n"
        roles = "broker,controller" if each in controllers else "broker"
        directory = Path(done.into).resolve() / each.directory
        say(f"  process.roles={roles}\n  node.id={each.node_id}\n{rack}  log.dirs={directory}\n")


def _say_broker(done: "RecoveryReport") -> None:
    say(
        f"next: start Kafka {done.kafka} on it, without kafka-storage format, and with these lines in its server.properties:\n\n"
        f"  process.roles=broker,controller\n"
        f"  node.id={done.node_id}\n"
        f"  controller.quorum.voters={done.node_id}@HOST:PORT\n"
        f"  log.dirs={Path(done.into).resolve()}\n"
    )


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
