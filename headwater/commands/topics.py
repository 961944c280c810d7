"""`headwater topics list|show|entries|set`, and the form of set that Pulsar's proposal has."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from heapq import merge
from itertools import repeat
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column, as_end, as_size
from headwater.commands.leftovers import pending
from headwater.options import IncarnationSelection, configured, parse_incarnation_selection
from headwater.output import emit, format_option, say
from headwater_core.clock import time_text
from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, ForeignOwner, NotFound, Partial, UnsupportedFormat, UsageError

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.setting_change import SettingChange
    from headwater.wiring import Bucket
    from headwater_core.partition import PartitionId
    from manifests.repository import ManifestRepository
    from manifests.topic import TopicManifest


PRIORITY_FLAG = "--set-tiered-read-priority"
CHANGES = (
    Column("topic", "topic"),
    Column("key", "key"),
    Column("value", "value"),
    Column("before", "before"),
    Column("changed", "changed"),
)
SETTINGS = (
    Column("pattern", "topic"),
    Column("key", "setting"),
    Column("value", "value"),
    Column("origin", "set by"),
    Column("by", "node", leaves=2),
    Column("since_ms", "since", lambda value: time_text(value) if value else "", leaves=1),
)
AGENT_S = 30.0


class _Topics(click.Group):
    """Also takes an option in place of a command, as Pulsar's proposal spells it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if PRIORITY_FLAG in args:
            args = ["set-tiered-read-priority", *(each for each in args if each != PRIORITY_FLAG)]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, command in self.commands.items() if not command.hidden]


@click.group(cls=_Topics)
@click.option(
    PRIORITY_FLAG,
    nargs=2,
    metavar="TENANT/NAMESPACE/TOPIC POLICY",
    expose_value=False,
    help="As `topics set TENANT.NAMESPACE.TOPIC read_priority=POLICY`.",
)
def topics() -> None:
    """List and show archived topics, change their settings, and choose among those of one name.

    A topic that was deleted and created again has several incarnations in the archive, each with its own topic id.
    """


topics.add_command(pending)


@topics.command("list")
@click.option("--all", "everything", is_flag=True, help="Also list earlier incarnations: topics that were deleted and created again.")
@format_option
@configured
def list_(config: "Config", everything: bool, form: str) -> None:
    """List the topics in the bucket.

    `headwater read`, `recover`, `scan`, `jobs export` and Spark accept TOPIC@TOPIC_ID for an earlier incarnation.

    \b
    Example:
      headwater topics list --all

    \b
    Exit codes:
      0  all topics are listed
      3  some are damaged; stderr names them
    """
    from headwater.wiring import open_bucket

    columns: tuple[Column, ...] = (
        Column("topic", "topic"),
        Column("topic_id", "topic id"),
        Column("partitions", "partitions", numeric=True),
        Column("objects", "objects", numeric=True),
        Column("archived_bytes", "archived", as_size, numeric=True),
    )
    if everything:
        columns = (*columns[:2], Column("current", "current"), *columns[2:])
    problems: list[str] = []
    bucket = open_bucket(config)
    emit(form, columns, _topics(bucket, problems, everything=everything))
    try:
        commanded = len(bucket.manifests.load_settings().settings)
    except (CorruptData, UnsupportedFormat) as error:
        problems.append(f"what was set by command: {error}")
    else:
        if commanded:
            say(f"{commanded} set by command; `headwater topics show '*'` lists what")
    _check_all_shown(problems)


def _check_all_shown(problems: list[str]) -> None:
    """Print what could not be listed. Raises Partial when there is any."""
    for each in problems:
        say(f"not shown: {each}")
    if problems:
        raise Partial(f"{count_text(len(problems), 'manifest')} in the archive cannot be read; `headwater verify` shows what is wrong")


def _topics(bucket: "Bucket", problems: list[str], *, everything: bool) -> Iterator[dict[str, Any]]:
    from manifests.topic_survey import survey_topics

    manifests, lost = survey_topics(bucket.manifests.store)
    problems += (f"{each.topic}: {each.error}" for each in lost)
    current = {(manifest.topic, manifest.topic_id) for manifest in manifests}
    if everything:
        manifests = sorted([*manifests, *_former(bucket, current, problems)], key=lambda each: (each.topic, each.topic_id))
    for manifest in manifests:
        rows = list(_partitions(bucket, bucket.manifests.partitions(manifest.topic, manifest.topic_id), problems))
        yield {
            "topic": manifest.topic,
            "topic_id": manifest.topic_id,
            "current": (manifest.topic, manifest.topic_id) in current,
            "cluster_id": manifest.cluster_id,
            "partitions": manifest.partitions,
            "objects": sum(row["objects"] for row in rows),
            "archived_bytes": sum(row["archived_bytes"] for row in rows),
        }


def _former(bucket: "Bucket", current: set[tuple[str, str]], problems: list[str]) -> "Iterator[TopicManifest]":
    for topic, topic_id in bucket.manifests.incarnations():
        if (topic, topic_id) not in current:
            try:
                manifest = bucket.manifests.load_topic(topic, topic_id)
            except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
                problems.append(f"{topic}@{topic_id}: {error}")
                continue
            if manifest is None:
                problems.append(f"{topic}@{topic_id}: its manifest is gone")
            else:
                yield manifest


@topics.command()
@click.argument("topic", metavar="TOPIC|PATTERN")
@format_option
@configured
def show(config: "Config", topic: str, form: str) -> None:
    """Show the partitions of a topic, or what is set for a pattern.

    A pattern such as 'team-a.*' gives a row for each setting, by command or in [topics] of the configuration file, of the names and
    patterns that it matches; '*' all of them. So does a topic that is not archived, with the settings that hold for it.

    read priority says which copy readers get first, and set by where that was set. JSON also has archive and the triggers,
    offload_after and offload_when_local_exceeds. archive end is the offset after the last archived one.
    superseded counts objects that newer ones have replaced. fence is the
    number of the latest claim on the partition, and writer the agent that holds it.

    \b
    Examples:
      headwater topics show orders.placed
      headwater topics show 'orders.*'

    \b
    Exit codes:
      0  shown
      3  some manifests cannot be read; stderr names them
      6  the topic is not in the archive, and nothing is set for it
    """
    from headwater.wiring import open_bucket

    columns = (
        Column("topic", "topic"),
        Column("partition", "partition", numeric=True),
        Column("start_offset", "archive start", numeric=True, leaves=4),
        Column("last_offset", "archive end", as_end, numeric=True),
        Column("objects", "objects", numeric=True),
        Column("superseded", "superseded", numeric=True, leaves=2),
        Column("archived_bytes", "archived", as_size, numeric=True),
        Column("fence", "fence", numeric=True, leaves=3),
        Column("writer", "writer", leaves=1),
        Column("read_priority", "read priority", leaves=6),
        Column("read_priority_origin", "set by", leaves=5),
    )
    bucket = open_bucket(config)
    problems: list[str] = []
    if set(topic) & set("*?["):
        _show_settings(config, bucket, topic, form)
        return
    try:
        topic_id = bucket.manifests.resolve(topic).topic_id
    except NotFound as error:
        _show_settings(config, bucket, topic, form, error)
        return
    rows = _partitions(bucket, bucket.manifests.partitions(topic, topic_id), problems)
    config = config.with_commands(bucket.manifests.load_settings())
    archival = config.archival_for(topic)
    settings = {
        "read_priority": config.hydration_for(topic).read_priority.value,
        "read_priority_origin": config.origin_for(topic, "read_priority"),
        "archive": archival.archive.value,
        "archive_origin": config.origin_for(topic, "archive"),
        "offload_after_s": archival.offload_after_s,
        "offload_after_origin": config.origin_for(topic, "offload_after"),
        "offload_when_local_exceeds": archival.offload_when_local_exceeds,
        "offload_when_local_exceeds_origin": config.origin_for(topic, "offload_when_local_exceeds"),
    }
    emit(form, columns, (row | settings for row in rows))
    _check_all_shown(problems)


def _show_settings(config: "Config", bucket: "Bucket", selection: str, form: str, not_archived: NotFound | None = None) -> None:
    """A row for each setting of a pattern, or of a topic that is `not_archived`, which is raised where nothing is set for it."""
    from headwater.config import rule_values
    from manifests.setting_list import check_pattern

    found = [each._asdict() for each in rule_values(config, bucket.manifests.load_settings(), check_pattern(selection))]
    if not found and not_archived is not None:
        raise not_archived
    if not found:
        say(f"nothing is set for {selection}, by command or in the file")
    elif not_archived is not None:
        say(f"{selection} is not archived; this is what is set for it")
    emit(form, SETTINGS, found)


def _partitions(bucket: "Bucket", partitions: "Iterable[PartitionId]", problems: list[str]) -> Iterator[dict[str, Any]]:
    from headwater.wiring import load_head

    for partition in partitions:
        try:
            head = load_head(bucket, partition)
        except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
            problems.append(f"{partition}: {error}")
            continue
        if head is not None:
            yield asdict(partition) | {
                "start_offset": head.start_offset,
                "last_offset": head.last_offset,
                "leader_epoch": head.leader_epoch,
                "manifest_version": head.version,
                "objects": head.entries.objects,
                "gaps": head.entries.gaps,
                "superseded": len(head.superseded),
                "archived_bytes": head.entries.live_bytes,
                "fence": head.fence,
                "writer": head.writer,
            }


@topics.command()
@click.argument("selection", metavar="[TOPIC[@TOPIC_ID][:P]]", required=False, type=IncarnationSelection())
@format_option
@configured
def entries(config: "Config", selection: str | None, form: str) -> None:
    """List the archived runs, a row for each.

    Without TOPIC, those of all topics; of earlier incarnations only with TOPIC@TOPIC_ID. This is the catalogue of the archive, in the
    order of offsets, which are inclusive. JSON lines have every field, for DuckDB, Spark, pandas or jq; they are streamed. A row with
    gap true stands for offsets that are not in the archive. A row with superseded true is no longer read: another run has replaced it,
    or an unclean election took its offsets away.

    \b
    Example:
      headwater topics entries orders.placed:0 -o jsonl

    \b
    Exit codes:
      0  all entries are printed
      3  some manifests cannot be read; stderr names them
      6  the topic or partition is not in the archive
    """
    from headwater.wiring import open_bucket

    columns = (
        Column("topic", "topic"),
        Column("partition", "partition", numeric=True),
        Column("base_offset", "base offset", numeric=True),
        Column("last_offset", "last offset", numeric=True),
        Column("records", "records", numeric=True, leaves=3),
        Column("live_bytes", "archived", as_size, numeric=True),
        Column("gap", "gap", leaves=2),
        Column("superseded", "superseded", leaves=1),
    )
    problems: list[str] = []
    emit(form, columns, _entries(open_bucket(config), selection, problems))
    _check_all_shown(problems)


def _entries(bucket: "Bucket", selection: str | None, problems: list[str]) -> Iterator[dict[str, Any]]:
    """Live and superseded entries of the selected partitions, all of them without a selection. Raises NotFound."""
    from headwater.wiring import load_head

    for partition in _selected(bucket, selection, problems):
        identity = {"topic": partition.topic, "topic_id": partition.topic_id, "partition": partition.partition}
        try:
            head = load_head(bucket, partition)
            superseded = sorted(head.superseded, key=lambda entry: entry.base_offset) if head is not None else []
            live = head.entries if head is not None else ()
            rows = (zip(live, repeat(False)), zip(superseded, repeat(True)))
            for entry, is_superseded in merge(*rows, key=lambda row: (row[0].base_offset, row[1])):
                yield identity | entry.fields() | {"superseded": is_superseded}
        except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
            problems.append(f"{partition}: {error}")


def _selected(bucket: "Bucket", selection: str | None, problems: list[str]) -> "Iterator[PartitionId]":
    from manifests.topic_survey import survey_topics

    if selection is None:
        manifests, unreadable = survey_topics(bucket.manifests.store)
        problems += (f"{each.topic}: {each.error}" for each in unreadable)
        for manifest in manifests:
            yield from bucket.manifests.partitions(manifest.topic, manifest.topic_id)
        return
    topic, topic_id, number = parse_incarnation_selection(selection)
    found = bucket.manifests.partitions(topic, topic_id or bucket.manifests.resolve(topic).topic_id)
    chosen = [each for each in found if number in (None, each.partition)]
    if not chosen:
        raise NotFound(f"{selection} is not in {bucket.store.url}")
    yield from chosen


@topics.command("set")
@click.argument("topic")
@click.argument("assignments", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--incarnation", "topic_id", metavar="TOPIC_ID", help="The topic id that the name shall mean.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@format_option
@configured
def set_(config: "Config", topic: str, assignments: tuple[str, ...], topic_id: str | None, dry_run: bool, yes: bool, form: str) -> None:
    """Change a topic's settings, or what its name refers to.

    KEY=VALUE holds for all agents of the archive, without a restart, and wins over every configuration file; KEY= removes it. TOPIC may
    be a pattern such as 'team-a.*'. A topic's own setting wins over those of patterns, and of patterns the one that was set last.

    \b
    Keys:
      read_priority  which copy readers get: local-first, local-only,
                     offloaded-first, offloaded-only
      archive        auto, manual, or off: nothing is archived, and there
                     is no lag
      offload_after  a sealed segment waits so long before it is archived
      offload_when_local_exceeds
                     or until the local log exceeds this size

    With --incarnation, readers, exports and recoveries that use the name get the chosen incarnation from then on. Nothing is deleted. The
    choice stays until the cluster creates the topic again.

    \b
    Examples:
      headwater topics set orders.placed read_priority=offloaded-first
      headwater topics set 'orders.*' read_priority= --dry-run
      headwater topics set 'orders.*' offload_after=6h
      headwater topics set 'debug.*' archive=off
      headwater topics set photos --incarnation IM3fuUQPS0Gn8Gxkq3Kigw --dry-run
    """
    from headwater.setting_change import parse_assignments

    if (topic_id is None) == (not assignments):
        raise UsageError("either KEY=VALUE or --incarnation TOPIC_ID")
    if topic_id is None:
        set_by_command(config, topic, parse_assignments(assignments), form, dry_run=dry_run)
    else:
        _choose_incarnation(config, topic, topic_id, dry_run, yes, form)


@topics.command("set-tiered-read-priority", hidden=True)
@click.argument("topic", metavar="TENANT/NAMESPACE/TOPIC")
@click.argument("policy")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@format_option
@configured
def set_tiered_read_priority(config: "Config", topic: str, policy: str, dry_run: bool, form: str) -> None:
    """What `headwater topics --set-tiered-read-priority` does."""
    from headwater.setting_change import pulsar_pattern

    set_by_command(config, pulsar_pattern(topic, 3), {"read_priority": policy}, form, dry_run=dry_run)


def set_by_command(config: "Config", topic: str, values: dict[str, str | None], form: str, *, dry_run: bool) -> None:
    """By the agent on the data directory, so that it and its peers know at once; else in the bucket. Prints what has changed."""
    from headwater.agent_api import AgentApi, NoAgent, tell_late_agent
    from headwater.setting_change import SettingChange, change_rows
    from headwater.status_answer import absence_note
    from headwater.store_identity import check_belongs
    from headwater.wiring import open_bucket

    change = SettingChange(topic=topic, values=values, by=config.node.id)
    if dry_run:
        manifests = open_bucket(config).manifests
        _check_triggers(config, change, manifests)
        emit(form, CHANGES, change_rows(change, lambda decide: decide(manifests.load_settings()), dry_run=True))
        return
    body = {"topic": topic, "values": values, "by": config.node.id}
    try:
        rows = list(AgentApi.of(config).rows("/v1/settings", body, timeout_s=AGENT_S))
    except NoAgent:
        bucket = open_bucket(config)
        check_belongs(bucket.manifests, url=bucket.store.url, data_dir=config.node.data_dir, to_write=True)
        _check_triggers(config, change, bucket.manifests)
        rows = list(change_rows(change, bucket.manifests.change_settings))
        tell_late_agent(config, "/v1/settings", body)
    emit(form, CHANGES, rows)
    if not set(topic) & set("*?[") and (note := absence_note(config, topic)):
        say(note)


def _check_triggers(config: "Config", change: "SettingChange", manifests: "ManifestRepository") -> None:
    """Raises UsageError where one comes to be set that is too late for the broker beside us."""
    from headwater.wiring import open_log_dirs

    if config.log.dirs:
        change.check(manifests.load_settings(), config, open_log_dirs(config))


def _choose_incarnation(config: "Config", topic: str, topic_id: str, dry_run: bool, yes: bool, form: str) -> None:
    from headwater.wiring import open_bucket
    from headwater_core.partition import check_topic_id, check_topic_name

    check_topic_name(topic)
    check_topic_id(topic_id)
    manifests = open_bucket(config).manifests
    before = manifests.current(topic)
    if not dry_run:
        _confirm(topic, yes)
    manifests.choose_incarnation(topic, topic_id, dry_run=dry_run)
    columns = (Column("topic", "topic"), Column("topic_id", "topic id"), Column("before", "before"), Column("changed", "changed"))
    changed = before is None or before.topic_id != topic_id
    row = {"topic": topic, "topic_id": topic_id, "before": before.topic_id if before else None, "changed": changed, "dry_run": dry_run}
    emit(form, columns, [row])


def _confirm(topic: str, yes: bool) -> None:
    """A person types the topic's name; a script gives --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this changes what readers of the topic get; without a terminal to confirm it, give --yes")
    if click.prompt("this changes what readers of the topic get; to confirm, type the topic's name", err=True) != topic:
        raise UsageError("that is not the topic's name; nothing was changed")
