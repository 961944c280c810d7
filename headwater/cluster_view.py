"""What a snapshot of the cluster says, as rows for people and programs. Nothing that is secret is in them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headwater.units import parse_time_ms
from headwater_core.clock import exact_time_text
from headwater_core.errors import NotFound
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER
from headwater_core.segments.metadata.record_schemas import (
    ACL,
    QUOTA,
    REGISTER_BROKER,
    REGISTER_CONTROLLER,
    SCHEMAS,
    SCRAM,
    TOKEN,
)
from headwater_core.segments.metadata.secret_settings import is_secret_setting
from manifests.cluster_list import ListedSnapshot
from manifests.cluster_survey import survey_snapshots
from manifests.repository import ManifestRepository
from recovery.archived_groups import CommittedOffset, SharePlace
from recovery.topic_roles import role_of

Row = dict[str, Any]
SECTIONS = ("topics", "configs", "users", "acls", "quotas", "tokens", "features", "brokers", "controllers", "unknown")
HIDDEN = "(hidden)"
_RESOURCES = {RESOURCE_BROKER: "broker", 16: "client-metrics", 32: "group"}
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_ACL_RESOURCES = {1: "any", 2: "topic", 3: "group", 4: "cluster", 5: "transactional-id", 6: "delegation-token", 7: "user"}
_PATTERNS = {1: "any", 2: "match", 3: "literal", 4: "prefixed"}
_OPERATIONS = dict(
    enumerate(
        (
            *("any", "all", "read", "write", "create", "delete", "alter", "describe", "cluster-action", "describe-configs"),
            *("alter-configs", "idempotent-write", "create-tokens", "describe-tokens", "two-phase-commit"),
        ),
        1,
    )
)
_PERMISSIONS = {1: "any", 2: "deny", 3: "allow"}


def is_number(at: str) -> bool:
    """Is it a snapshot's number, and not a time?"""
    return at.isascii() and at.isdecimal() and len(at) <= 10


def snapshot_at(manifests: ManifestRepository, at: str) -> ListedSnapshot:
    """The snapshot that `at` names: a time, a number, or `latest`. Raises NotFound, UsageError, and CorruptData for a damaged list."""
    listed = survey_snapshots(manifests).listed
    if at == "latest":
        return listed.newest
    if is_number(at):
        for each in listed.snapshots:
            if each.number == int(at):
                return each
        raise NotFound(f"there is no snapshot {int(at)}, or not any more; `headwater cluster show --list` has them")
    found = listed.at(parse_time_ms(at))
    if found is None:
        raise NotFound(f"the first snapshot that is kept is of {exact_time_text(listed.snapshots[0].taken_ms)}")
    return found


def section_rows(state: ClusterMetadata, section: str) -> list[Row]:
    """The rows of one of SECTIONS, in order."""
    return list(_ROWS[section](state))


def _topics(state: ClusterMetadata) -> Iterator[Row]:
    for name in sorted(state.topics):
        topic = state.topics[name]
        yield {
            "topic": name,
            "topic_id": topic.topic_id,
            "partitions": len(topic.partitions),
            "replicas": max((len(each.replicas) for each in topic.partitions.values()), default=0),
            "used_by": role_of(name),
            "configs": dict(sorted(topic.configs.items())),
        }


def _configs(state: ClusterMetadata) -> Iterator[Row]:
    for (resource, name), settings in sorted(state.configs.items()):
        for key, value in sorted(settings.items()):
            shown = HIDDEN if is_secret_setting(resource, key) else value
            yield {"resource": _RESOURCES.get(resource, str(resource)), "name": name or "(default)", "key": key, "value": shown}


def _users(state: ClusterMetadata) -> Iterator[Row]:
    for fields in _fields(state, SCRAM, "name", "mechanism"):
        mechanism = _MECHANISMS.get(fields["mechanism"], str(fields["mechanism"]))
        yield {"user": fields["name"], "mechanism": mechanism, "iterations": fields["iterations"]}


def _acls(state: ClusterMetadata) -> Iterator[Row]:
    for fields in _fields(state, ACL, "principal", "resourceType", "resourceName", "operation", "id"):
        yield {
            "principal": fields["principal"],
            "permission": _PERMISSIONS.get(fields["permissionType"], str(fields["permissionType"])),
            "operation": _OPERATIONS.get(fields["operation"], str(fields["operation"])),
            "resource": _ACL_RESOURCES.get(fields["resourceType"], str(fields["resourceType"])),
            "name": fields["resourceName"],
            "pattern": _PATTERNS.get(fields["patternType"], str(fields["patternType"])),
            "host": fields["host"],
            "id": fields["id"],
        }


def _quotas(state: ClusterMetadata) -> Iterator[Row]:
    rows = []
    for fields in _fields(state, QUOTA, "key"):
        entity = {each["entityType"]: each["entityName"] for each in fields["entity"]}
        text = ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in sorted(entity.items()))
        rows.append({"entity": text, "key": fields["key"], "value": fields["value"], "entities": entity})
    yield from sorted(rows, key=lambda row: (row["entity"], row["key"]))


def _tokens(state: ClusterMetadata) -> Iterator[Row]:
    for fields in _fields(state, TOKEN, "owner", "issueTimestamp"):
        yield {"owner": fields["owner"], "issued_ms": fields["issueTimestamp"], "expires_ms": fields["expirationTimestamp"]}


def _features(state: ClusterMetadata) -> Iterator[Row]:
    yield from ({"feature": name, "level": level} for name, level in sorted(state.features.items()))


def _brokers(state: ClusterMetadata) -> Iterator[Row]:
    for fields in _fields(state, REGISTER_BROKER, "brokerId"):
        yield {
            "broker": fields["brokerId"],
            "rack": fields["rack"],
            "endpoints": _end_points(fields),
            "fenced": fields["fenced"],
            "epoch": fields["brokerEpoch"],
            "incarnation": fields["incarnationId"],
            "directories": list(fields.get("logDirs", ())),
        }


def _controllers(state: ClusterMetadata) -> Iterator[Row]:
    for fields in _fields(state, REGISTER_CONTROLLER, "controllerId"):
        yield {"controller": fields["controllerId"], "endpoints": _end_points(fields), "incarnation": fields["incarnationId"]}


def _unknown(state: ClusterMetadata) -> Iterator[Row]:
    for api_key, count in sorted(state.unread.items()):
        yield {"api_key": api_key, "kind": SCHEMAS[api_key].name if api_key in SCHEMAS else None, "records": count}


def _fields(state: ClusterMetadata, api_key: int, *order: str) -> list[Mapping[str, Any]]:
    found = [record.fields for record in state.others.get(api_key, {}).values()]
    return sorted(found, key=lambda fields: [fields[name] for name in order])


def _end_points(fields: Mapping[str, Any]) -> list[str]:
    return [f"{each['name']}://{each['host']}:{each['port']}" for each in fields["endPoints"]]


_ROWS = {
    "topics": _topics,
    "configs": _configs,
    "users": _users,
    "acls": _acls,
    "quotas": _quotas,
    "tokens": _tokens,
    "features": _features,
    "brokers": _brokers,
    "controllers": _controllers,
    "unknown": _unknown,
}
_NAMES = {  # what a row is about; a row that has no more than that is there or not
    "topics": ("topic",),
    "configs": ("resource", "name", "key"),
    "users": ("user", "mechanism"),
    "acls": ("id",),
    "quotas": ("entity", "key"),
    "tokens": ("owner", "issued_ms"),
    "features": ("feature",),
    "brokers": ("broker",),
    "controllers": ("controller",),
    "unknown": ("api_key",),
}
_PASSING = ("epoch", "incarnation")  # a broker that has restarted has others


def differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Row]:
    """What differs between two states: section, name, change, and what was and is. Who leads, and what is in sync, is left out."""
    for section in SECTIONS:
        was, now = (_by_name(state, section) for state in (before, after))
        for name in sorted(was.keys() | now.keys()):
            if name not in was:
                yield _difference(section, name, "added", None, now[name])
            elif name not in now:
                yield _difference(section, name, "removed", was[name], None)
            elif was[name] != now[name]:
                keys = [key for key in now[name] if was[name].get(key) != now[name].get(key)]
                yield _difference(
                    section, name, "changed", {key: was[name].get(key) for key in keys}, {key: now[name][key] for key in keys}
                )
    yield from _other_secrets(before, after)


def group_differences(before: Iterable[CommittedOffset], after: Iterable[CommittedOffset]) -> Iterator[Row]:
    """What differs between what groups had committed at two times."""
    was, now = (
        {(each.group, each.topic, each.partition): {"offset": each.offset, "lag": each.lag} for each in some} for some in (before, after)
    )
    yield from _place_differences("groups", was, now)


def share_differences(before: Iterable[SharePlace], after: Iterable[SharePlace]) -> Iterator[Row]:
    """What differs between where share groups were at two times."""
    was, now = (
        {(each.group, each.topic, each.partition): {"start": each.start, "lag": each.lag} for each in some} for some in (before, after)
    )
    yield from _place_differences("share-groups", was, now)


def _place_differences(section: str, was: Mapping[tuple[str, str, int], Row], now: Mapping[tuple[str, str, int], Row]) -> Iterator[Row]:
    """By group, topic and partition."""
    for key in sorted(was.keys() | now.keys()):
        had, has = was.get(key), now.get(key)
        if had != has:
            change = "added" if had is None else "removed" if has is None else "changed"
            yield _difference(section, (key[0], f"{key[1]}:{key[2]}"), change, had, has)


def _difference(section: str, name: tuple[str, ...], change: str, before: Row | None, after: Row | None) -> Row:
    return {"section": section, "name": " ".join(name), "change": change, "before": before, "after": after}


def _by_name(state: ClusterMetadata, section: str) -> dict[tuple[str, ...], Row]:
    found = {}
    for row in section_rows(state, section):
        name = tuple(str(row[key]) for key in _NAMES[section])
        found[name] = {key: value for key, value in row.items() if key not in (*_NAMES[section], *_PASSING)}
    return found


def _other_secrets(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Row]:
    """Credentials and hidden settings that are others: that they are, and no more."""
    was, now = before.others.get(SCRAM, {}), after.others.get(SCRAM, {})
    for key in was.keys() & now.keys():
        if was[key].raw != now[key].raw and was[key].fields["iterations"] == now[key].fields["iterations"]:
            name = str(was[key].fields["name"]), _MECHANISMS.get(was[key].fields["mechanism"], "")
            yield _difference("users", name, "changed", {"credential": HIDDEN}, {"credential": "another one"})
    for (resource, resource_name), settings in sorted(after.configs.items()):
        for setting, value in sorted(settings.items()):
            old = before.configs.get((resource, resource_name), {}).get(setting)
            if is_secret_setting(resource, setting) and old is not None and old != value:
                place = _RESOURCES.get(resource, str(resource)), resource_name or "(default)", setting
                yield _difference("configs", place, "changed", {"value": HIDDEN}, {"value": "another one"})
