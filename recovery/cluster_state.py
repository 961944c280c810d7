"""The state of the whole cluster as a part of a recovery: which snapshot, what of it comes back, and its copy in the target.

The plan names the snapshot and holds nothing of it that is secret; the copy beside the plan makes a recovery independent of what the
archive keeps of snapshots meanwhile.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from headwater_core.clock import time_text
from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, NotFound, UnsupportedFormat, UsageError, VerificationFailed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER, ConfigRecord, decode_metadata_record
from headwater_core.segments.metadata.record_schemas import (
    ACL,
    BROKER_CHANGE,
    CLEAR_ELR,
    FENCE_BROKER,
    NO_OP,
    QUOTA,
    REGISTER_BROKER,
    REGISTER_CONTROLLER,
    SCRAM,
    TOKEN,
    UNFENCE_BROKER,
    UNREGISTER_BROKER,
    UNREGISTER_CONTROLLER,
    ZK_MIGRATION,
)
from manifests import keys
from manifests.cluster_list import SNAPSHOT_BYTES_MAX, ListedSnapshot
from manifests.cluster_snapshot import open_snapshot, unpack_snapshot
from manifests.cluster_survey import survey_snapshots
from manifests.entry import EPOCH_MAX
from manifests.repository import ManifestRepository
from recovery.kafka_releases import METADATA_VERSION, NEWEST, raised, reads_unknown, starting_releases
from recovery.recovery_plan import ClusterPlan, RecoveryPlan
from recovery.replica_placement import with_replicas
from recovery.snapshot_topics import with_epochs
from recovery.target import copy_name
from recovery.target_files import SECRET_MODE, publish, read_if_there
from recovery.topic_roles import topics_by_role

_INJECTED = (QUOTA, ACL, SCRAM, TOKEN)
_SINCE = {SCRAM: (11, "SCRAM credentials"), TOKEN: (14, "delegation tokens")}  # 3.5-IV2, 3.6-IV2: below, a controller cannot write them
_SHOWN = 10
_LEADER_EPOCHS = range(-1, EPOCH_MAX - 2)  # that a recovered partition can begin above
_OF_NODES = frozenset(
    (
        REGISTER_BROKER,
        UNREGISTER_BROKER,
        FENCE_BROKER,
        UNFENCE_BROKER,
        BROKER_CHANGE,
        REGISTER_CONTROLLER,
        UNREGISTER_CONTROLLER,
        ZK_MIGRATION,
        NO_OP,
        CLEAR_ELR,
    )
)
_RESOURCES = {RESOURCE_BROKER: "brokers", 16: "client metrics", 32: "groups"}


class SnapshotFound(NamedTuple):
    """cluster_id: None where neither the list nor the object says it. note: of the list; "" where all is well"""

    listed: ListedSnapshot
    state: ClusterMetadata
    cluster_id: str | None
    note: str = ""


def find_snapshot(repository: ManifestRepository, which: str) -> SnapshotFound:
    """The snapshot that `which` names: `latest`, or a number. Raises UsageError, NotFound when there is none, VerificationFailed when it is
    listed and is missing or damaged, or another one stands in its place, UnsupportedFormat, and what the store raises."""
    if which != "latest" and not (which.isascii() and which.isdecimal() and len(which) <= 10):
        raise UsageError(f"{which[:40]!r} is no number of a snapshot, and not `latest`")
    listed, is_adopted, note = survey_snapshots(repository)
    found = listed.newest if which == "latest" else next((each for each in listed.snapshots if each.number == int(which)), None)
    if found is None:
        raise NotFound(f"there is no snapshot {which}, or not any more; `headwater cluster show --list` has them")
    try:
        opened = open_snapshot(repository.store, found)
        _check_epochs(found, opened.state)
        if not is_adopted and opened.cluster_id not in (None, listed.cluster_id):
            note = "; ".join(filter(None, (note, _former_note(repository, found, opened.cluster_id or "", listed.cluster_id))))
    except (CorruptData, NotFound) as error:
        older = [str(each.number) for each in listed.snapshots if each.number != found.number]
        others = f"; `--at {older[-1]}` takes another one, of those that are listed: {', '.join(older[-_SHOWN:])}" if older else ""
        raise VerificationFailed(f"{error}{others}") from error
    return SnapshotFound(opened.listed, opened.state, opened.cluster_id if is_adopted else listed.cluster_id, note)


def _check_epochs(listed: ListedSnapshot, state: ClusterMetadata) -> None:
    """Raises CorruptData for leader epochs that no partition can begin above."""
    for topic in state.topics.values():
        for number, partition in topic.partitions.items():
            if partition.leader_epoch not in _LEADER_EPOCHS:
                raise CorruptData(listed.key, 0, f"leader epoch {partition.leader_epoch} of {topic.name[:100]}:{number}")


def _former_note(repository: ManifestRepository, listed: ListedSnapshot, cluster_id: str, lister: str) -> str:
    """What to note of a snapshot of another cluster than the list's; "" where the archive was taken over from that one. Raises CorruptData
    where it was not; where the bucket does not say from which ones it was, the list is believed."""
    wrong = f"it is a snapshot of cluster {cluster_id[:100]}, and the list is cluster {lister}'s"
    try:
        owner = repository.owner()
    except (CorruptData, UnsupportedFormat):
        owner = None
    if owner is None or owner.cluster_id != lister:
        return f"{listed.key}: {wrong}; {keys.OWNER} does not say whether the archive was taken over from that one"
    if cluster_id not in owner.former:
        raise CorruptData(listed.key, 0, wrong)
    return ""


def with_cluster(plan: RecoveryPlan, found: SnapshotFound, former: Collection[str] = ()) -> RecoveryPlan:
    """`plan` with the cluster's state: what of it does not come back is left out or noted. former: clusters that the archive was taken over
    from, whose snapshots are its past."""
    listed, state, cluster_id, note = found
    left_out, notes, problems = list(plan.left_out), list(plan.notes), list(plan.problems)
    if note:
        notes.append(note)
    if cluster_id not in (None, plan.source_cluster_id, *former):
        problems.append(
            f"the snapshots are of cluster {cluster_id}, and the topics of {plan.source_cluster_id}: {keys.CLUSTER_LIST} or {listed.key} "
            "is another archive's; put back the right one, or recover the topics alone with `recover apply topic --all`"
        )
    planned = {topic.topic for topic in plan.topics}
    left_out += [f"{name}: a topic of the cluster that the archive does not hold" for name in sorted(state.topics.keys() - planned)]
    topics = tuple(with_epochs(topic, state.topics.get(topic.topic)) for topic in plan.topics)
    report_secrets(listed, left_out, notes)
    release = plan.request.options.kafka_release
    unknown = _unknown_records(found, release, left_out, notes)
    nodes = [each.node_id for each in plan.request.options.brokers] or [plan.node_id]
    others = sorted(name for kind, name in state.configs if kind == RESOURCE_BROKER and name not in ("", *map(str, nodes)))
    if others:
        has = f"broker {nodes[0]} alone" if len(nodes) == 1 else f"brokers {', '.join(map(str, nodes))}"
        left_out.append(f"settings of brokers {', '.join(others)}: the recovered cluster has {has}")
    for api_key, (level, what) in _SINCE.items():
        if (records := state.others.get(api_key)) and api_key not in _kinds_at_level(state):
            had = state.features.get(METADATA_VERSION, 0)
            left_out.append(f"{len(records)} {what}: Kafka keeps none below {METADATA_VERSION} {level}, the snapshot has {had}")
    if (tokens := state.others.get(TOKEN)) and TOKEN in _kinds_at_level(state):
        ends = sorted(record.fields["expirationTimestamp"] for record in tokens.values())
        notes.append(
            "delegation tokens hold on brokers with the same delegation.token.secret.key alone, and expire when they would have without "
            f"the outage: the first at {time_text(ends[0])}, the last at {time_text(ends[-1])}"
        )
    levels = raised(state.features, plan.request.options.metadata_version)
    if levels.problem:
        problems.append(levels.problem)
    starts = starting_releases(levels.features, release)
    if unknown and not starts.problem:
        starts = starts._replace(releases=(), from_=release or "")
    if starts.problem:
        problems.append(starts.problem)
    else:
        notes.append(f"snapshot {listed.number} of the cluster's metadata: {_levels(levels.features)}; Kafka {starts} starts on it")
    until_ms = plan.request.options.to_time_ms
    if until_ms is not None and listed.taken_ms > until_ms and plan.request.options.cluster == "latest":
        notes.append(
            f"users, ACLs, quotas and settings are those of {time_text(listed.taken_ms)}, the newest, and logs end at "
            f"{time_text(until_ms)}: `--at {time_text(until_ms)}` takes the snapshot of then"
        )
    used_by = topics_by_role(planned)
    for role, topics_of_role in used_by.items():
        notes.append(f"the state of {role} comes back with {', '.join(topics_of_role)}")
    if settings := counted_settings(state, nodes):
        notes.append(f"settings come back of {', '.join(f'{what} ({count})' for what, count in settings.items())}")
    cluster = replace(
        given_by(found, nodes),
        features=dict(levels.features),
        users=len(state.others.get(SCRAM, {})) if SCRAM in _kinds_at_level(state) else 0,
        unknown=unknown,
        starts_on=starts.releases,
        used_by=used_by,
    )
    plan = replace(plan, topics=topics, cluster=cluster, left_out=tuple(left_out), notes=tuple(notes), problems=tuple(problems))
    archived = {(name, number): len(each.replicas) for name, topic in state.topics.items() for number, each in topic.partitions.items()}
    return with_replicas(plan, archived)


def given_by(found: SnapshotFound, nodes: Collection[int]) -> ClusterPlan:
    """The snapshot in a plan, with what of it any cluster can be given: a running one has its own levels, and takes no users.

    nodes: brokers whose own settings come back
    """
    listed, state = found.listed, found.state
    return ClusterPlan(
        number=listed.number,
        key=listed.key,
        size_bytes=listed.size_bytes,
        digest=listed.digest,
        taken_ms=listed.taken_ms,
        features={},
        users=0,
        acls=len(state.others.get(ACL, {})),
        quotas=len(state.others.get(QUOTA, {})),
        next_producer_id=state.next_producer_id,
        settings=counted_settings(state, nodes),
    )


def report_secrets(listed: ListedSnapshot, left_out: list[str], notes: list[str]) -> None:
    """What was not archived because it is secret is added."""
    if listed.has_secrets is None:
        notes.append("whether the snapshot was taken with users, tokens and passwords is not known: neither a list nor the object says it")
    elif not listed.has_secrets:
        left_out.append("users, delegation tokens and passwords in settings: the snapshot was taken with cluster.secrets = false")


def not_held(listed: ListedSnapshot, state: ClusterMetadata) -> int:
    """How many records that its writer did not know are not in the snapshot: it had no room for them, or they may be secret."""
    return max(0, listed.unknown - sum(state.unread.values()))


def _unknown_records(found: SnapshotFound, release: str | None, left_out: list[str], notes: list[str]) -> int:
    """How many of them the new cluster begins with; what is left out is added. They are for a release that can have written them alone: any
    other one stops at a record that it does not know."""
    listed, state = found.listed, found.state
    injected, aside = list(_injectable(state.unknown)), list(_injectable(state.kept))
    if partitions := sum(bool(each.tags) for topic in state.topics.values() for each in topic.partitions.values()):
        left_out.append(f"what {count_text(partitions, 'partition')} had that this version does not know: the replicas are others")
    missing = not_held(listed, state)
    if missing and listed.has_secrets is not False:
        aside, injected = [*injected, *aside], []
        left_out.append(f"{count_text(missing, 'record')} that its writer did not know, and had no room for")
    elif missing:
        left_out.append(f"{count_text(missing, 'record')} that its writer did not know, as nobody can tell what is secret there")
    if aside:
        left_out.append(
            f"{count_text(len(aside), 'record')} of kinds {_kinds(aside)}, which this version does not know: later ones may have "
            "undone a part"
        )
    if injected and not reads_unknown(state.features, release):
        left_out.append(
            f"{count_text(len(injected), 'record')} of kinds {_kinds(injected)}, which this version does not know: no Kafka up to "
            f"{NEWEST} writes "
            "such kinds, and none would start on them; --kafka-release X.Y, the newer release that did, or a later one, brings them back"
        )
        injected = []
    if injected:
        notes.append(
            f"{count_text(len(injected), 'record')} of kinds {_kinds(injected)}, which this version does not know: back byte for byte "
            "and in order"
        )
    return len(injected)


def _injectable(raws: Iterable[bytes]) -> Iterator[bytes]:
    """Those that are not about brokers and controllers of the lost cluster."""
    yield from (raw for raw in raws if decode_metadata_record(raw).api_key not in _OF_NODES)


def _kinds(raws: Iterable[bytes]) -> list[int]:
    return sorted({decode_metadata_record(raw).api_key for raw in raws})


def _levels(features: Mapping[str, int]) -> str:
    ordered = sorted(features.items(), key=lambda each: (each[0] != METADATA_VERSION, each[0]))
    return ", ".join(f"{name} {level}" for name, level in ordered)


def counted_settings(state: ClusterMetadata, nodes: Collection[int]) -> dict[str, int]:
    """Of all but topics, by what they are of."""
    counts = Counter[str]()
    for (kind, name), settings in state.configs.items():
        if settings and (kind != RESOURCE_BROKER or name in ("", *map(str, nodes))):
            counts[_RESOURCES.get(kind, str(kind))] += len(settings)
    return dict(sorted(counts.items()))


def _kinds_at_level(state: ClusterMetadata) -> Sequence[int]:
    """Of what is injected, the kinds that metadata at these levels can have."""
    level = state.features.get(METADATA_VERSION, 0)
    return [api_key for api_key in _INJECTED if api_key not in _SINCE or level >= _SINCE[api_key][0]]


def injected_records(state: ClusterMetadata, cluster: ClusterPlan | None, nodes: Collection[int]) -> Iterator[bytes]:
    """What a broker gets beside topics: settings of brokers, groups and client metrics, quotas, ACLs, users, tokens, and last what this
    version does not know."""
    for (kind, name), settings in sorted(state.configs.items()):
        if kind != RESOURCE_BROKER or name in ("", *map(str, nodes)):
            for key, value in sorted(settings.items()):
                tags = state.config_tags.get((kind, name, key), ())
                yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value, tags=tags).encode()
    for api_key in _kinds_at_level(state):
        yield from sorted(record.raw for record in state.others.get(api_key, {}).values())
    if cluster is not None and cluster.unknown:
        yield from _injectable(state.unknown)


def copy_snapshot(cluster: ClusterPlan, into: Path, store: ObjectStore) -> None:
    """The copy is in the target, whole. Raises NotFound, VerificationFailed, DiskFull, and what the store raises."""
    path = into / copy_name(cluster)
    held = read_if_there(path)
    if held is None or not _is_whole(cluster, held):
        write_copy(cluster, into, fetch_snapshot(cluster, store))


def fetch_snapshot(cluster: ClusterPlan, store: ObjectStore) -> bytes:
    """The object. Raises NotFound, VerificationFailed, and what the store raises."""
    try:
        packed, _ = store.get(cluster.key, max_bytes=SNAPSHOT_BYTES_MAX)
    except NotFound as error:
        raise NotFound(f"{cluster.key} is not in the archive any more: plan the recovery again") from error
    if not _is_whole(cluster, packed):
        raise VerificationFailed(f"{cluster.key} is not what the plan names: {len(packed)} bytes, {digest_of(packed)}")
    return packed


def write_copy(cluster: ClusterPlan, into: Path, packed: bytes) -> None:
    """Raises DiskFull."""
    publish(into / copy_name(cluster), packed, mode=SECRET_MODE)


def _is_whole(cluster: ClusterPlan, packed: bytes) -> bool:
    return len(packed) == cluster.size_bytes and cluster.digest in (None, digest_of(packed))


def copied_state(plan: RecoveryPlan, into: Path) -> ClusterMetadata | None:
    """The state in the copy; None for a recovery of topics alone. Raises VerificationFailed when the copy is gone, and for damage as
    load_snapshot."""
    if plan.cluster is None:
        return None
    path = into / copy_name(plan.cluster)
    packed = read_if_there(path)
    if packed is None or not _is_whole(plan.cluster, packed):
        raise VerificationFailed(f"{path} is gone or damaged: it is the state of the cluster that is recovered")
    return unpack_snapshot(packed, str(path))
