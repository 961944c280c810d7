"""What is requested of a recovery: the arguments and options of `headwater recover plan` and `apply`, and their values."""

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from headwater.options import LocalPath
from headwater.units import parse_path, parse_time_ms
from headwater_core.errors import UsageError
from headwater_core.partition import check_topic_name, parse_incarnation

if TYPE_CHECKING:
    from recovery.recovery_plan import TargetBroker

_REQUESTED = (
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
into_option = click.option("--into", type=LocalPath(), metavar="DIR", help="The log directory to create, new or empty.")


def take_over_option(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the option that gives the archive to the recovered cluster."""
    return click.option(
        "--take-over",
        is_flag=True,
        help="Give this bucket to the recovered cluster: it archives on here, and agents of the old cluster do not any more. Not with "
        "logs that end before their archive."
        "  [default: the bucket remains the old cluster's]",
    )(verb)


def running_options(verb: Callable[..., None]) -> Callable[..., None]:
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
    def with_running(running: bool, bootstrap_servers: str | None, requested: dict[str, Any], **rest: Any) -> None:
        if bootstrap_servers is not None and not running:
            raise UsageError("--bootstrap-servers is for --running: any other recovery needs the bucket alone")
        verb(requested=requested | {"running": running, "bootstrap_servers": bootstrap_servers}, **rest)

    return with_running


def brokers_option(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the option that names several brokers."""
    return click.option(
        "--brokers",
        metavar="N|FILE",
        help="Recover onto several brokers, each with a directory below --into: N of them, with ids from --node-id on, or those of a TOML "
        "FILE with a table [[broker]] (id, directory, rack) for each. New places for replicas. With --running: onto these of its brokers."
        "  [default: one broker; with --running: all]",
    )(verb)


def level_options(verb: Callable[..., None]) -> Callable[..., None]:
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
    def with_levels(kafka_release: str | None, metadata_version: str | None, requested: dict[str, Any], **rest: Any) -> None:
        verb(requested=requested | {"kafka_release": kafka_release, "metadata_version": metadata_version}, **rest)

    return with_levels


def topic_request(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the arguments that make up a recovery plan of topics."""

    @click.argument("topics", metavar="[NAME[@TOPIC_ID]|PATTERN]...", nargs=-1)
    @click.option(
        "--all", "everything", is_flag=True, help="All topics in the bucket, internal ones too, without damaged ones (then exit code 3)."
    )
    @take_over_option
    @brokers_option
    @click.option(
        "--as",
        "renames",
        metavar="[TOPIC=]NAME",
        multiple=True,
        help="Recover the topic under another name, with a new id. Without TOPIC: the only topic. May be repeated.",
    )
    @request_options
    @running_options
    @level_options
    @functools.wraps(verb)
    def with_topics(
        topics: Sequence[str],
        everything: bool,
        take_over: bool,
        brokers: str | None,
        renames: Sequence[str],
        requested: dict[str, Any],
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
        requested = requested | {"renames": _renames(renames, topics), "take_over": take_over}
        requested = requested | {"brokers": _brokers(brokers, requested["node_id"])}
        verb(names=None if everything else tuple(topics), requested=requested, **rest)

    return with_topics


def cluster_request(verb: Callable[..., None]) -> Callable[..., None]:
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
    @brokers_option
    @take_over_option
    @request_options
    @running_options
    @level_options
    @functools.wraps(verb)
    def with_cluster(
        at: str,
        unlisted_topics: bool,
        brokers: str | None,
        take_over: bool,
        requested: dict[str, Any],
        **rest: Any,
    ) -> None:
        requested = requested | {"cluster": at, "unlisted_topics": unlisted_topics, "take_over": take_over}
        requested = requested | {"brokers": _brokers(brokers, requested["node_id"])}
        verb(names=None, requested=requested, **rest)

    return with_cluster


def request_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the options of any recovery plan, as `requested`."""

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
        help="For transactions that are open at the end of a log. abort: write ABORT markers; cut: end the logs before them; "
        "keep: leave them, and transactional ids, to the recovered coordinator.",
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
        requested = {name: rest.pop(name) for name in _REQUESTED} | _partition_counts(counts) | {"to_offsets": _to_offsets(to_offsets)}
        if requested["count_all"] and to_time is None:
            raise UsageError("--count-all is for --to-time: nothing else leaves records out by their time")
        if to_time is not None:
            requested["to_time_ms"] = parse_time_ms(to_time)
        verb(requested=requested, **rest)

    return with_request


class ApplyOptions(NamedTuple):
    """What belongs to one `apply`, and not to the plan."""

    skip_damaged: bool
    unrecorded: bool
    moved: bool


def apply_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb` the options that belong to one `apply`, not to the plan, as `options`."""

    @click.option(
        "--skip-damaged",
        is_flag=True,
        help="Continue without missing or damaged data: it becomes a gap, other records keep their offsets (then exit code 3).",
    )
    @click.option("--unrecorded", is_flag=True, help="Do not record this recovery in the bucket. For a bucket that is read-only.")
    @click.option(
        "--moved",
        is_flag=True,
        help="Continue in a directory that was begun on another host, or under another path; also where the host's name alone has changed, "
        "as in another pod of a Kubernetes Job. Copies of it are refused from then on.",
    )
    @functools.wraps(verb)
    def with_options(skip_damaged: bool, unrecorded: bool, moved: bool, **rest: Any) -> None:
        verb(options=ApplyOptions(skip_damaged, unrecorded, moved), **rest)

    return with_options


def _brokers(given: str | None, first: int) -> tuple["TargetBroker", ...]:
    """From N or FILE. Raises UsageError."""
    from recovery.replica_placement import brokers_from, numbered_brokers

    if given is None:
        return ()
    if given.isascii() and given.isdecimal() and len(given) <= 4 and int(given):
        return numbered_brokers(int(given), first)
    try:
        return brokers_from(parse_path(given).read_text(), given)
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
