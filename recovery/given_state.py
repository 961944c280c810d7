"""What a running cluster is given beside topics: committed offsets of groups, and of a whole cluster ACLs, quotas and settings.

What the running cluster has stays: it is newer, and somebody meant it. What cannot be given is listed.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from msgspec.structs import replace

from headwater_core import milestones
from headwater_core.clock import Clock
from headwater_core.counts import count_text
from headwater_core.errors import ForeignOwner, HeadwaterError, NotFound, TransientError, UsageError, VerificationFailed
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER
from headwater_core.segments.metadata.record_schemas import ACL, QUOTA
from recovery.cluster_state import copied_state
from recovery.held_settings import ClusterAdmin, unlike_topics
from recovery.recovered_groups import CommittedPlace
from recovery.recovery_plan import GroupCommit, Place, RecoveryPlan
from recovery.target import Mark, locked_mark, write_mark

MILESTONES = ("finish.given", "finish.handed_over")
"""Those of handing over: `given` after ACLs, quotas, the settings of each resource, and the offsets of each group."""

State = Literal["given", "there", "stays", "failed"]
"""given: just now; there: it had the same already; stays: it has another one, which stays; failed: it could not be given"""


class Acl(NamedTuple):
    """Numbers are Kafka's own."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


QuotaEntity = tuple[tuple[str, str | None], ...]
"""(type, name) of each part, in order of the types; None: the default"""
Resource = tuple[int, str]
"""Type, by Kafka's numbers, and name; broker "" is the default of all"""


class StateAdmin(ClusterAdmin, Protocol):
    """The running cluster, as its brokers answer. What is changed returns why that failed, in order, "" where it was done."""

    def acls(self) -> Collection[Acl]: ...

    def create_acls(self, acls: Sequence[Acl]) -> Sequence[str]: ...

    def quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]: ...

    def set_quotas(self, quotas: Sequence[tuple[QuotaEntity, Mapping[str, float]]]) -> Sequence[str]: ...

    def dynamic_settings(self, resources: Collection[Resource]) -> Mapping[Resource, Mapping[str, str | None]]:
        """Those that were set by a request. A secret has no value."""
        ...

    def set_dynamic(self, resource: Resource, values: Mapping[str, str]) -> str: ...

    def commit(self, group: str, commits: Sequence[GroupCommit]) -> Mapping[Place, str]:
        """Without a leader epoch. A group that has members refuses it. Why it failed, of each, "" where it was done."""
        ...

    def share(self, group: str, commits: Sequence[GroupCommit]) -> Mapping[Place, str]:
        """As `commit`, for a share group."""
        ...


class Handed(NamedTuple):
    """One thing that was to be given. why: it failed"""

    kind: str
    what: str
    value: str
    state: State
    why: str = ""


# What is to be given


def acls_of(state: ClusterMetadata) -> list[Acl]:
    fields = (record.fields for record in state.others.get(ACL, {}).values())
    names = ("resourceType", "resourceName", "patternType", "principal", "host", "operation", "permissionType")
    return sorted({Acl(*(each[name] for name in names)) for each in fields})


def quotas_of(state: ClusterMetadata) -> dict[QuotaEntity, dict[str, float]]:
    found: dict[QuotaEntity, dict[str, float]] = {}
    for record in state.others.get(QUOTA, {}).values():
        entity = tuple(sorted((part["entityType"], part["entityName"]) for part in record.fields["entity"]))
        found.setdefault(entity, {})[record.fields["key"]] = record.fields["value"]
    return found


def settings_of(state: ClusterMetadata) -> dict[Resource, dict[str, str]]:
    """Of groups, client metrics and the default of all brokers; those of single brokers are about other machines."""
    return {
        (kind, name): dict(settings)
        for (kind, name), settings in state.configs.items()
        if settings and (kind != RESOURCE_BROKER or not name)
    }


def clamped_commits(plan: RecoveryPlan) -> list[GroupCommit]:
    """None beyond the recovered logs, where new records would be skipped, unless they were to be kept."""
    ends = {(topic.topic, each.partition): each.log_end for topic in plan.topics for each in topic.partitions}
    keeps, found = plan.request.options.keep_offsets, []
    for each in plan.running.commits if plan.running else ():
        end = ends.get((each.topic, each.partition))
        if end is not None:
            offset = each.offset if keeps else min(each.offset, end)
            found.append(replace(each, offset=offset))
    return found


# What of it is given


def acls_to_create(archived: Iterable[Acl], held: Collection[Acl]) -> list[Acl]:
    return [each for each in archived if each not in held]


def quotas_to_set(
    archived: Mapping[QuotaEntity, Mapping[str, float]], held: Mapping[QuotaEntity, Mapping[str, float]]
) -> dict[QuotaEntity, Mapping[str, float]]:
    """Of entities that have none."""
    return {entity: quotas for entity, quotas in archived.items() if not held.get(entity)}


def settings_to_set(archived: Mapping[str, str], held: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in archived.items() if name not in held}


def commits_to_make(commits: Iterable[GroupCommit], held: Mapping[CommittedPlace, int]) -> dict[str, list[GroupCommit]]:
    """By group, of partitions of which the group has committed nothing there."""
    found: dict[str, list[GroupCommit]] = {}
    for each in commits:
        if CommittedPlace(each.group, each.topic, each.partition) not in held:
            found.setdefault(each.group, []).append(each)
    return found


# Giving it


def hand_over(into: Path, cluster: StateAdmin, clock: Clock, *, checked: bool = True) -> list[Handed] | None:
    """Give the running cluster what the recovery in `into` has beside topics, once; None when it was given before. May be repeated.

    checked  committed offsets only of topics that are as they were recovered

    Raises NotFound when there is no recovery, UsageError when it is not finished, ForeignOwner when this is not its cluster,
    VerificationFailed when not one topic is as it was recovered, TransientError when a partition does not answer, and
    what `cluster` raises when it does not answer at all.
    """
    with locked_mark(into) as mark:
        if mark is None or mark.plan.running is None:
            raise NotFound(f"no recovery into a running cluster was started in {into}")
        if mark.handed_over_ms is not None:
            return None
        if mark.finished_ms is None:
            raise UsageError(f"the recovery in {into} is not finished: run `headwater recover apply` again")
        if (found := cluster.cluster_id()) != mark.plan.cluster_id:
            raise ForeignOwner(f"the brokers are of cluster {found}, what was recovered is for {mark.plan.cluster_id}")
        topics = {topic.topic for topic in mark.plan.topics}
        unlike = unlike_topics(mark.plan, topics, cluster, checked=checked, trimmed=True)
        if unlike.keys() == topics:
            raise VerificationFailed(
                f"not one topic is as it was recovered; nothing was given to the cluster: {next(iter(unlike.values()))}"
            )
        state = copied_state(mark.plan, into)
        handed = [*_acls(state, cluster), *_quotas(state, cluster), *_settings(state, cluster)] if state is not None else []
        handed += _commits(mark, cluster, unlike)
        if not any(each.state == "failed" for each in handed):
            write_mark(into, with_fields(mark, handed_over_ms=clock.now_ms()))
            milestones.reached("finish.handed_over")
        return handed


def _acls(state: ClusterMetadata, cluster: StateAdmin) -> Iterator[Handed]:
    archived = acls_of(state)
    if not archived:
        return
    try:
        held = cluster.acls()
        wanted = acls_to_create(archived, held)
        done = dict(zip(wanted, cluster.create_acls(wanted), strict=True)) if wanted else {}
        milestones.reached("finish.given")
    except TransientError:
        raise
    except HeadwaterError as error:  # no authorizer, or no right to ask it
        yield Handed("acl", count_text(len(archived), "ACL"), "", "failed", str(error))
        return
    for each in archived:
        yield _done("acl", acl_text(each), "", done.get(each))


def _quotas(state: ClusterMetadata, cluster: StateAdmin) -> Iterator[Handed]:
    archived = quotas_of(state)
    if not archived:
        return
    try:
        held = cluster.quotas()
        wanted = quotas_to_set(archived, held)
        done = dict(zip(wanted, cluster.set_quotas(list(wanted.items())), strict=True)) if wanted else {}
        milestones.reached("finish.given")
    except TransientError:
        raise
    except HeadwaterError as error:
        yield Handed("quota", f"quotas of {len(archived)} users and clients", "", "failed", str(error))
        return
    for entity, quotas in sorted(archived.items(), key=lambda each: entity_text(each[0])):
        for key, value in sorted(quotas.items()):
            stays = entity not in done and held[entity].get(key) != value
            yield _done("quota", f"{entity_text(entity)} {key}", f"{value:g}", done.get(entity), stays=stays)


def _settings(state: ClusterMetadata, cluster: StateAdmin) -> Iterator[Handed]:
    for resource, archived in sorted(settings_of(state).items()):
        what = resource_text(resource)
        try:
            held = cluster.dynamic_settings([resource]).get(resource, {})
            wanted = settings_to_set(archived, held)
            why = cluster.set_dynamic(resource, wanted) if wanted else ""
            milestones.reached("finish.given")
        except TransientError:
            raise
        except HeadwaterError as error:
            yield Handed("setting", f"{len(archived)} of {what}", "", "failed", str(error))
            continue
        for name in sorted(archived):
            stays = name not in wanted and held[name] != archived[name]
            yield _done("setting", f"{what} {name}", "", why if name in wanted else None, stays=stays)  # no value: it may be a secret


def _commits(mark: Mark, cluster: StateAdmin, unlike: Mapping[str, str]) -> Iterator[Handed]:
    commits = clamped_commits(mark.plan)
    mine = [each for each in commits if not each.shared]
    yield from _offsets("group offset", mine, unlike, cluster.committed, cluster.commit)
    shares = [each for each in commits if each.shared]
    try:
        yield from _offsets("share group offset", shares, unlike, cluster.shared, cluster.share)
    except TransientError:
        raise
    except HeadwaterError as error:  # brokers without share groups, or no right to ask for them
        yield Handed(
            "share group offset", f"offsets of {count_text(len({each.group for each in shares}), 'share group')}", "", "failed", str(error)
        )


def _offsets(
    kind: str,
    commits: Sequence[GroupCommit],
    unlike: Mapping[str, str],
    read: Callable[[Collection[str]], Mapping[CommittedPlace, int]],
    give: Callable[[str, Sequence[GroupCommit]], Mapping[Place, str]],
) -> Iterator[Handed]:
    wanted = [each for each in commits if each.topic not in unlike]
    for topic in sorted({each.topic for each in commits} & unlike.keys()):
        yield Handed(kind, f"all of {topic}", "", "failed", unlike[topic])
    if not wanted:
        return
    held = read({each.group for each in wanted})
    missing = commits_to_make(wanted, held)
    for each in wanted:
        place = CommittedPlace(each.group, each.topic, each.partition)
        if place in held:
            yield _done(kind, place_text(place), str(each.offset), None, stays=held[place] != each.offset)
    for group, mine in sorted(missing.items()):
        try:
            done = give(group, mine)
            milestones.reached("finish.given")
        except TransientError:
            raise
        except HeadwaterError as error:
            done = {(each.topic, each.partition): str(error) for each in mine}
        for each in mine:
            what = place_text(CommittedPlace(group, each.topic, each.partition))
            yield _done(kind, what, str(each.offset), done.get((each.topic, each.partition), "no answer"))


def _done(kind: str, what: str, value: str, why: str | None, *, stays: bool = False) -> Handed:
    """why: it failed, "" where it did not; None: it was not to be given"""
    if why is None:
        return Handed(kind, what, value, "stays" if stays else "there")
    return Handed(kind, what, value, "failed" if why else "given", why)


# For people


_TYPES = {2: "topic", 3: "group", 4: "cluster", 5: "transactional-id", 6: "delegation-token", 7: "user"}
_PERMISSIONS = {2: "deny", 3: "allow"}
_RESOURCES = {RESOURCE_BROKER: "broker", 16: "client metrics", 32: "group"}


def acl_text(acl: Acl) -> str:
    kind = _TYPES.get(acl.resource_type, str(acl.resource_type))
    prefixed = " (prefixed)" if acl.pattern_type == 4 else ""
    permission = _PERMISSIONS.get(acl.permission, str(acl.permission))
    return f"{acl.principal} from {acl.host}: {permission} operation {acl.operation} of {kind} {acl.resource_name}{prefixed}"


def entity_text(entity: QuotaEntity) -> str:
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity)


def resource_text(resource: Resource) -> str:
    return f"{_RESOURCES.get(resource[0], str(resource[0]))} {resource[1] or '(default)'}"


def place_text(place: CommittedPlace) -> str:
    return f"{place.group} of {place.topic}:{place.partition}"


def reassignment(plan: RecoveryPlan) -> dict[str, object] | None:
    """What kafka-reassign-partitions.sh takes, for as many replicas as the partitions had; None where that is one each, or not known."""
    grown = plan.running.grown if plan.running else {}
    partitions = [
        {"topic": topic, "partition": number, "replicas": list(replicas)}
        for topic, of_topic in sorted(grown.items())
        for number, replicas in enumerate(of_topic)
        if len(replicas) > 1
    ]
    return {"version": 1, "partitions": partitions} if partitions else None
