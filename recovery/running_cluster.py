"""A running cluster into which topics come back: which brokers get them, and what forbids it. Pure, but for the Protocol.

A topic gets one replica: others of a running cluster would count as in sync while they are empty, and could lead. They are grown once the
records are in place (docs/formats/kafka-recovery.md, *Into a running cluster*).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from headwater_core.counts import count_text
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER
from headwater_core.segments.metadata.record_schemas import SCRAM, TOKEN
from manifests.cluster_list import ListedSnapshot
from recovery.cluster_state import SnapshotFound, given_by, not_held, report_secrets
from recovery.discovery import Found
from recovery.held_settings import ClusterAdmin, LogBounds
from recovery.plan_notes import notes_of
from recovery.recovery_plan import (
    GroupCommit,
    PartitionPlan,
    Place,
    RecoveryPlan,
    RunningPlan,
    SourceTopic,
    TargetBroker,
    TopicPlan,
)
from recovery.replica_placement import Need, place_replicas
from recovery.requested_topics import is_pattern
from recovery.topic_roles import is_brokers_own

_SHOWN = 20


class RunningTopic(NamedTuple):
    """replicas: of each partition, by its number"""

    topic_id: str
    replicas: Mapping[int, tuple[int, ...]]


class RunningView(NamedTuple):
    """racks: of its brokers, by their ids"""

    cluster_id: str
    racks: Mapping[int, str | None]
    topics: Mapping[str, RunningTopic]


class NewTopic(NamedTuple):
    """replicas: the one broker of each partition"""

    topic: str
    replicas: Sequence[int]
    configs: Mapping[str, str]


class RunningAdmin(ClusterAdmin, Protocol):
    """The running cluster, as its brokers answer. Raises as ClusterAdmin."""

    def view(self) -> RunningView: ...

    def create_topics(self, topics: Sequence[NewTopic]) -> Mapping[str, str]:
        """The ids of those that were created; one that is not there was there before, or its creation was not answered in time. Raises
        UsageError for one that the cluster refuses."""
        ...

    def pass_producer_ids(self, newest: int, most: int) -> bool:
        """Let every broker give ids above `newest` from now on, by taking those below; False, at once, where that would be more than
        `most`."""
        ...


def without_brokers_own(found: Found) -> Found:
    """`found`, without topics that a running cluster has for itself: its groups, its transactions."""
    own = sorted(each.manifest.topic for each in found.topics if is_brokers_own(each.manifest.topic))
    notes = [f"{', '.join(own)}: these topics are the running cluster's own and do not come back as files"] if own else []
    return Found(
        topics=[each for each in found.topics if each.manifest.topic not in own],
        lost=found.lost,
        notes=[*found.notes, *notes],
        owner=found.owner,
        owner_damage=found.owner_damage,
    )


def onto_running(
    plan: RecoveryPlan,
    view: RunningView,
    bounds: Mapping[Place, LogBounds],
    *,
    commits: Sequence[GroupCommit] = (),
    archived: Mapping[Place, int] | None = None,
) -> RecoveryPlan:
    """`plan` for the brokers of the running cluster.

    bounds    of the planned topics' partitions that it has already
    commits   what groups had committed; those of topics that do not come back under their own name are left out
    archived  how many replicas each partition had, where that is known
    """
    chosen, problems = _brokers(plan, view)
    notes = list(plan.notes)
    if plan.request.options.mode != "full" and view.cluster_id == plan.source_cluster_id:
        problems.append(
            f"mode {plan.request.options.mode} leaves records to a gateway, and in the running cluster's own archive a topic's name means "
            "its new incarnation alone: recover in full, or through a cluster of another id"
        )
    topics, present, left = [], [], []
    for topic in plan.topics:
        held = view.topics.get(topic.topic)
        if held is not None and topic.source is None and held.topic_id == topic.topic_id and not _is_chosen(plan, topic.topic):
            notes.append(f"{topic.topic} is in the running cluster, with the id that the archive has: it is not lost, and is left as it is")
            left.append(topic.topic)
            continue
        source = topic.source or SourceTopic(topic=topic.topic, topic_id=topic.topic_id)
        topics.append(replace(topic, source=source, topic_id="" if held is None else held.topic_id))
        if held is not None:
            found = list(_unusable(topics[-1], held, bounds, {each.node_id for each in chosen}))
            problems += found
            present += [topic.topic] if not found else []
    if not topics:
        problems.append("nothing is left to recover: the running cluster has every topic")
    topics, grown = _placed(topics, chosen, view, archived or {})
    names = {topic.topic for topic in topics if topic.archived_name.topic == topic.topic}
    kept = tuple(each for each in commits if each.topic in names)
    outdated = {note for topic in plan.topics for note in notes_of(topic)}
    notes = [note for note in notes if note not in outdated]
    return replace(
        plan,
        cluster_id=view.cluster_id,
        node_id=chosen[0].node_id if chosen else plan.node_id,
        topics=tuple(topics),
        brokers=tuple(chosen),
        problems=(*plan.problems, *problems),
        notes=(*notes, *(note for topic in topics for note in notes_of(topic)), *_notes(plan, present, kept)),
        running=RunningPlan(present=tuple(present), kept=tuple(left), commits=kept, grown=grown),
    )


def _is_chosen(plan: RecoveryPlan, topic: str) -> bool:
    """The user named this very topic."""
    names = plan.request.topics or ()
    return any(not is_pattern(each) and each.partition("@")[0] == topic for each in names)


def _brokers(plan: RecoveryPlan, view: RunningView) -> tuple[list[TargetBroker], list[str]]:
    """Those that were requested, else all; each with the rack that it has."""
    requested = plan.request.options.brokers
    named = requested or [TargetBroker(node_id=node, directory=f"node-{node}") for node in sorted(view.racks)]
    missing = [str(each.node_id) for each in named if each.node_id not in view.racks]
    problems = []
    if missing:
        known = ", ".join(map(str, sorted(view.racks))) or "none"
        problems.append(f"the running cluster {view.cluster_id} has no broker {', '.join(missing)} at present: it has {known}")
    chosen = [replace(each, rack=view.racks[each.node_id]) for each in named if each.node_id in view.racks]
    if not chosen and not problems:
        problems.append(f"the running cluster {view.cluster_id} has no brokers at present")
    return chosen, problems


def _unusable(topic: TopicPlan, held: RunningTopic, bounds: Mapping[Place, LogBounds], nodes: Collection[int]) -> Iterator[str]:
    """Why a topic that is there cannot get the records."""
    name = topic.topic
    advice = f"recover it by another name (--as {topic.archived_name.topic}=NAME), or delete it there first"
    if held.replicas.keys() != set(range(len(topic.partitions))):
        yield (
            f"{name} is in the running cluster with {count_text(len(held.replicas), 'partition')}, planned: "
            f"{len(topic.partitions)}; {advice}"
        )
        return
    if silent := [number for number in held.replicas if (name, number) not in bounds]:
        yield f"{name}:{silent[0]} is in the running cluster, and no leader says whether it is empty: plan again when it has one"
        return
    if used := [number for number in sorted(held.replicas) if bounds[name, number] != LogBounds(0, 0)]:
        start, end = bounds[name, used[0]]
        yield f"{name}:{used[0]} is in the running cluster and holds or held records (offsets {start} to {end - 1}): {advice}"
        return
    if several := [number for number, replicas in sorted(held.replicas.items()) if len(replicas) != 1]:
        yield (
            f"{name}:{several[0]} is in the running cluster with {count_text(len(held.replicas[several[0]]), 'replica')}: empty ones "
            "would count as in "
            "sync, and could lead. Delete it there; apply creates it with one"
        )
    elif away := [number for number, replicas in sorted(held.replicas.items()) if replicas[0] not in nodes]:
        yield f"{name}:{away[0]} is in the running cluster on broker {held.replicas[away[0]][0]}, which is none of the plan's brokers"


def _placed(
    topics: Sequence[TopicPlan], brokers: Sequence[TargetBroker], view: RunningView, archived: Mapping[Place, int]
) -> tuple[list[TopicPlan], dict[str, tuple[tuple[int, ...], ...]]]:
    """With the one broker of each partition: where it is already, or where it is to be. And all brokers that it is to have in the end."""
    if not brokers:
        return list(topics), {}
    wanted = {}
    for topic in topics:
        known = [archived.get((topic.archived_name.topic, each.partition), 0) for each in topic.partitions]
        for each, count in zip(topic.partitions, known, strict=True):
            wanted[topic.topic, each.partition] = Need(each.size_bytes, max(1, count or max(known)))
    places = place_replicas(wanted, brokers)
    directories = {each.node_id: each.directory for each in brokers}
    placed, grown = [], {}
    for topic in topics:
        held = view.topics.get(topic.topic)
        partitions: list[PartitionPlan] = []
        for each in topic.partitions:
            there = held.replicas.get(each.partition, ()) if held is not None else ()
            node = there[0] if there and there[0] in directories else places[topic.topic, each.partition][0].node_id
            partitions.append(replace(each, replicas=(node,), directory=directories[node]))
        placed.append(replace(topic, partitions=tuple(partitions)))
        if any((topic.archived_name.topic, each.partition) in archived for each in topic.partitions):
            grown[topic.topic] = tuple(
                _grown(each.replicas[0], [one.node_id for one in places[topic.topic, each.partition]]) for each in partitions
            )
    return placed, grown


def _grown(leader: int, nodes: Sequence[int]) -> tuple[int, ...]:
    return (leader, *[node for node in nodes if node != leader][: len(nodes) - 1])


def _notes(plan: RecoveryPlan, present: Sequence[str], commits: Sequence[GroupCommit]) -> Iterator[str]:
    if present:
        yield f"{', '.join(present[:_SHOWN])}: in the running cluster already, and empty: used as they are, with the archived settings"
    yield (
        "into a running cluster: topics get new ids and one replica; each broker that gets records has to be stopped once, while "
        "`headwater recover place` works in its log directories; nobody may write to these topics until then"
    )
    yield "leader epochs are set to 0 in every batch, as new topics begin there; offsets, times, keys, values and headers stay"
    for what, of, mine in (("committed offset", "group", False), ("start offset", "share group", True)):
        if count := sum(each.shared == mine for each in commits):
            groups = {each.group for each in commits if each.shared == mine}
            yield f"`headwater recover finish` gives {count_text(count, what)} of {count_text(len(groups), of)} to the running cluster"
    if any(each.shared for each in commits):
        yield "what a share group is done with above its start offset is delivered to it again: no request gives more than that offset"
    newest = max((each.max_producer_id for topic in plan.topics for each in topic.partitions), default=-1)
    if newest >= 0:
        yield (
            f"the logs hold producer ids up to {newest}, and the running cluster may give the same ones to new producers: where one wrote "
            "within producer.id.expiration.ms (a day), a new one is refused (OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH), or its "
            "first records are taken for repeated ones. `apply` lets the cluster pass these ids, where they are few enough"
        )


def with_running_state(plan: RecoveryPlan, found: SnapshotFound, former: Collection[str] = ()) -> RecoveryPlan:
    """`plan` with what `finish` gives to the running cluster of a snapshot, and what of it cannot be given."""
    listed, state, cluster_id, note = found
    left_out, notes, problems = list(plan.left_out), list(plan.notes), list(plan.problems)
    notes += [note] if note else []
    if cluster_id not in (None, plan.source_cluster_id, *former):
        problems.append(f"the snapshots are of cluster {cluster_id}, and the topics of {plan.source_cluster_id}")
    planned = {topic.archived_name.topic for topic in plan.topics}
    held = {name for name, topic in state.topics.items() if is_brokers_own(name) or _is_noted(plan, name)}
    left_out += [f"{name}: a topic of the cluster that the archive does not hold" for name in sorted(state.topics.keys() - planned - held)]
    left_out += _ungivable(listed, state)
    report_secrets(listed, left_out, notes)
    cluster = given_by(found, ())
    given = [count_text(cluster.acls, "ACL"), count_text(cluster.quotas, "quota")]
    given += [f"settings of {what} ({count})" for what, count in cluster.settings.items()]
    notes.append(
        f"snapshot {listed.number} of the cluster's metadata: `headwater recover finish` gives {', '.join(given)} to the running cluster, "
        "where it has nothing of the kind. ACLs hold for all that their patterns cover, the running cluster's own topics too"
    )
    return replace(plan, cluster=cluster, left_out=tuple(left_out), notes=tuple(notes), problems=tuple(problems))


def _is_noted(plan: RecoveryPlan, topic: str) -> bool:
    """It is left as it is in the running cluster, or its loss is in the plan by its name."""
    return any(text.startswith((f"{topic} ", f"{topic}:")) for text in (*plan.notes, *plan.left_out))


def _ungivable(listed: ListedSnapshot, state: ClusterMetadata) -> Iterator[str]:
    """What no request can bring to a running cluster."""
    if users := sorted({fields.fields["name"] for fields in state.others.get(SCRAM, {}).values()}):
        shown = ", ".join(users[:_SHOWN]) + (f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else "")
        yield (
            f"SCRAM users {shown}: the archive has their stored keys, and a running cluster takes passwords alone: create them with "
            "kafka-configs.sh"
        )
    if tokens := len(state.others.get(TOKEN, {})):
        yield f"{count_text(tokens, 'delegation token')}: a running cluster makes its own"
    own = sorted(name for (kind, name), settings in state.configs.items() if kind == RESOURCE_BROKER and name and settings)
    if own:
        yield f"settings of brokers {', '.join(own)}: the running cluster's brokers are others"
    if unknown := len(state.unknown) + len(state.kept) + not_held(listed, state):
        yield f"{count_text(unknown, 'record')} of the cluster's metadata that this version does not know"


def replicas_of(state: ClusterMetadata) -> dict[Place, int]:
    """How many each partition had."""
    return {(name, number): len(each.replicas) for name, topic in state.topics.items() for number, each in topic.partitions.items()}
