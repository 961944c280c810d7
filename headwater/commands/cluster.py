"""`headwater cluster show|diff`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column
from headwater.options import configured
from headwater.output import emit, emit_document, format_option, say
from headwater.units import parse_time_ms
from headwater_core.clock import exact_time_text, time_text
from headwater_core.errors import NotFound, Partial

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.wiring import Bucket
    from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
    from manifests.cluster_list import ListedSnapshot
    from recovery.archived_groups import ArchivedGroups, ArchivedShares


def as_settings(value: Any) -> str:
    """A mapping, or a list, as people read it."""
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    return "" if value is None else str(value)


COLUMNS = {
    "topics": (
        Column("topic", "topic"),
        Column("topic_id", "topic id", leaves=2),
        Column("partitions", "partitions", numeric=True),
        Column("replicas", "replicas", numeric=True),
        Column("used_by", "used by", as_settings, leaves=1),
        Column("configs", "settings", as_settings),
    ),
    "configs": (Column("resource", "settings of"), Column("name", "name"), Column("key", "key"), Column("value", "value")),
    "users": (Column("user", "user"), Column("mechanism", "mechanism"), Column("iterations", "iterations", numeric=True)),
    "acls": (
        Column("principal", "principal"),
        Column("permission", "permission"),
        Column("operation", "operation"),
        Column("resource", "resource"),
        Column("name", "name"),
        Column("pattern", "pattern"),
        Column("host", "host"),
    ),
    "quotas": (Column("entity", "quota of"), Column("key", "key"), Column("value", "value", numeric=True)),
    "tokens": (Column("owner", "token of"), Column("expires_ms", "expires", lambda value: time_text(value))),
    "features": (Column("feature", "feature"), Column("level", "level", numeric=True)),
    "brokers": (
        Column("broker", "broker", numeric=True),
        Column("rack", "rack", as_settings),
        Column("endpoints", "endpoints", as_settings),
        Column("fenced", "fenced"),
    ),
    "controllers": (Column("controller", "controller", numeric=True), Column("endpoints", "endpoints", as_settings)),
    "groups": (
        Column("group", "group"),
        Column("topic", "topic"),
        Column("partition", "partition", numeric=True),
        Column("offset", "offset", numeric=True),
        Column("end", "archive end", as_settings, numeric=True),
        Column("lag", "lag", as_settings, numeric=True),
    ),
    "share-groups": (
        Column("group", "share group"),
        Column("topic", "topic"),
        Column("partition", "partition", numeric=True),
        Column("start", "start", as_settings, numeric=True),
        Column("end", "archive end", as_settings, numeric=True),
        Column("lag", "lag", as_settings, numeric=True),
    ),
    "unknown": (
        Column("api_key", "unknown: api key", numeric=True),
        Column("kind", "kind", as_settings),
        Column("records", "records", numeric=True),
    ),
}
DIFFERENCES = (
    Column("section", "section"),
    Column("name", "name"),
    Column("change", "change"),
    Column("before", "before", as_settings),
    Column("after", "after", as_settings),
)


@click.group()
def cluster() -> None:
    """Show what the archive knows of the Kafka cluster.

    Topics, settings, users, ACLs, quotas, groups. The agent archives it when it changes, at most once a minute. What is secret is
    never shown.
    """


@cluster.command()
@click.argument("sections", nargs=-1, metavar="[SECTION]...", type=click.Choice(list(COLUMNS)))
@click.option("--at", metavar="TIME|NUMBER", help="As it was then: a time, or a snapshot's number. Default: the newest.")
@click.option("--list", "listing", is_flag=True, help="List the snapshots instead.")
@format_option
@configured
def show(config: "Config", sections: tuple[str, ...], at: str | None, listing: bool, form: str) -> None:
    """Show the cluster as it was archived.

    With SECTIONs only those.

    Groups are read from the archive of __consumer_offsets, and their lag is counted to the end of each archive; with --at they are those
    of that time, as far as the topic's cleaner had left them, with the lag to where each log ended then. Share groups are read from
    __share_group_state: below `start` they are done, and what they are done with above it is no lag. `used by` is a guess by the topic's
    name.

    \b
    Example:
      headwater cluster show users acls

    \b
    Exit codes:
      0  all is shown
      3  some groups or records could not be read
      4  the snapshot is damaged
      6  there is no snapshot, or none of that time
    """
    from headwater.wiring import open_bucket

    bucket = open_bucket(config)
    if listing:
        emit(form, _SNAPSHOTS, _snapshots(bucket))
        return
    snapshot, state = _load(bucket, at)
    wanted = sections or tuple(COLUMNS)
    groups = _groups(bucket, snapshot, at) if "groups" in wanted else None
    shares = _shares(bucket, snapshot, at, state) if "share-groups" in wanted else None
    rows = {section: _rows(state, section, groups, shares) for section in COLUMNS if section in wanted}
    if form == "json":
        emit_document((json.dumps({"snapshot": _facts(snapshot), **rows}, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "replace"))
    elif form == "jsonl":
        emit(form, (), ({"section": section, **row} for section, found in rows.items() for row in found))
    else:
        print_sections(snapshot, rows)
    _report(state, [*(groups.unread if groups else ()), *(shares.unread if shares else ())])


@cluster.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@format_option
@configured
def diff(config: "Config", before: str, after: str, form: str) -> None:
    """Show what differs between two snapshots.

    Each is a time, a number, or `latest`.

    Leaders, replicas in sync and what a restart changes are left out. Of a password it says only that there is another one. Groups
    and share groups are those of the snapshots' times, or of the times that are given, with their lag then.

    \b
    Example:
      headwater cluster diff 1 latest

    \b
    Exit codes:
      0  all that differs is shown
      3  some groups could not be read
      4  a snapshot is damaged
      6  there is no such snapshot
    """
    from headwater.cluster_view import differences, group_differences, share_differences
    from headwater.wiring import open_bucket

    bucket = open_bucket(config)
    (taken, was), (taken_after, now) = _load(bucket, before), _load(bucket, after)
    had, has = _groups(bucket, taken, before), _groups(bucket, taken_after, after)
    shared, shares = _shares(bucket, taken, before, was), _shares(bucket, taken_after, after, now)
    groups = (*group_differences(had.offsets, has.offsets), *share_differences(shared.places, shares.places))
    emit(form, DIFFERENCES, (*differences(was, now), *groups))
    unread = sorted({*had.unread, *has.unread, *shared.unread, *shares.unread})
    for each in unread:
        say(f"not compared: {each}")
    if unread:
        raise Partial("some groups are not compared")


_SNAPSHOTS = (
    Column("number", "number", numeric=True),
    Column("taken", "taken"),
    Column("end_offset", "metadata offset", numeric=True),
    Column("end_epoch", "epoch", numeric=True),
    Column("size_bytes", "bytes", numeric=True),
    Column("has_secrets", "secrets"),
    Column("writer", "writer", leaves=1),
)


def _snapshots(bucket: "Bucket") -> list[dict[str, Any]]:
    from manifests.cluster_survey import survey_snapshots

    try:
        listed, _, note = survey_snapshots(bucket.manifests)
    except NotFound:
        return []
    if note:
        say(f"note: {note}")
    return [_facts(each) for each in listed.snapshots]


def _facts(snapshot: "ListedSnapshot") -> dict[str, Any]:
    return {
        "number": snapshot.number,
        "taken": exact_time_text(snapshot.taken_ms),
        "taken_ms": snapshot.taken_ms,
        "end_offset": snapshot.end_offset,
        "end_epoch": snapshot.end_epoch,
        "size_bytes": snapshot.size_bytes,
        "has_secrets": snapshot.has_secrets,
        "writer": snapshot.writer,
        "key": snapshot.key,
    }


def _load(bucket: "Bucket", at: str | None) -> "tuple[ListedSnapshot, ClusterMetadata]":
    from headwater.cluster_view import snapshot_at
    from manifests.cluster_snapshot import open_snapshot

    opened = open_snapshot(bucket.store, snapshot_at(bucket.manifests, at or "latest"))
    return opened.listed, opened.state


def _groups(bucket: "Bucket", snapshot: "ListedSnapshot", at: str | None) -> "ArchivedGroups":
    from recovery.archived_groups import read_groups

    return read_groups(bucket.manifests, until_ms=_until_ms(snapshot, at))


def _shares(bucket: "Bucket", snapshot: "ListedSnapshot", at: str | None, state: "ClusterMetadata") -> "ArchivedShares":
    from recovery.archived_groups import read_shares

    names = {topic.topic_id: name for name, topic in state.topics.items()}
    return read_shares(bucket.manifests, names, until_ms=_until_ms(snapshot, at))


def _until_ms(snapshot: "ListedSnapshot", at: str | None) -> int | None:
    """The time that `at` names; None: the present."""
    if at is None or at == "latest":
        return None
    from headwater.cluster_view import is_number

    return snapshot.taken_ms if is_number(at) else parse_time_ms(at)


def _rows(state: "ClusterMetadata", section: str, groups: "ArchivedGroups | None", shares: "ArchivedShares | None") -> list[dict[str, Any]]:
    from headwater.cluster_view import section_rows

    if section == "groups":
        return [each._asdict() | {"lag": each.lag} for each in groups.offsets] if groups else []
    if section == "share-groups":
        return [each._asdict() for each in shares.places] if shares else []
    return section_rows(state, section)


_WITHOUT = {True: "", False: ", without secrets", None: ", perhaps without secrets: its list was lost"}


def print_sections(snapshot: "ListedSnapshot", rows: dict[str, list[dict[str, Any]]]) -> None:
    """A table for each section that has rows."""
    title = f"snapshot {snapshot.number} of {exact_time_text(snapshot.taken_ms)}, metadata offset {snapshot.end_offset}"
    emit_document((title + _WITHOUT[snapshot.has_secrets] + "\n").encode())
    for section, found in rows.items():
        if found:
            emit("table", COLUMNS[section], found, title=f"\n{section}")


def _report(state: "ClusterMetadata", unread: Sequence[str]) -> None:
    """Raises Partial when something is not shown."""
    for each in unread:
        say(f"not shown: {each}")
    if state.unread:
        say(f"{sum(state.unread.values())} records of kinds or versions that this version of headwater does not know are in the snapshot")
    if state.unread or unread:
        raise Partial("some of the cluster's state is not shown")
