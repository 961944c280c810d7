"""The state of the whole cluster as a part of a recovery: which snapshot, what of it comes back, and its copy in the target.

The plan names the snapshot and holds nothing of it that is secret; the copy beside the plan makes a recovery independent of what the
archive keeps of snapshots meanwhile.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from headwater_core.errors import NotFound, UsageError, VerificationFailed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER, ConfigRecord
from headwater_core.segments.metadata.record_schemas import ACL, QUOTA, SCRAM, TOKEN
from manifests.cluster_list import SNAPSHOT_BYTES_MAX, ListedSnapshot
from manifests.cluster_snapshot import load_snapshot, unpack_snapshot
from manifests.cluster_survey import survey_snapshots
from manifests.repository import ManifestRepository
from recovery.recovery_plan import ClusterPlan, RecoveryPlan
from recovery.snapshot_topics import with_epochs
from recovery.target_files import publish, read_if_there

_INJECTED = (QUOTA, ACL, SCRAM, TOKEN)


class SnapshotFound(NamedTuple):
    """cluster_id: None where the list was lost. note: of the list; """ ""

    listed: ListedSnapshot
    state: ClusterMetadata
    cluster_id: str | None
    note: str = ""


def find_snapshot(repository: ManifestRepository, which: str) -> SnapshotFound:
    """The snapshot that `which` names: `latest`, or a number. Raises UsageError, NotFound when there is none, and as load_snapshot."""
    if which != "latest" and not (which.isascii() and which.isdecimal() and len(which) <= 10):
        raise UsageError(f"{which[:40]!r} is no number of a snapshot, and not `latest`")
    listed, is_adopted, note = survey_snapshots(repository)
    found = listed.newest if which == "latest" else next((each for each in listed.snapshots if each.number == int(which)), None)
    if found is None:
        raise NotFound(f"there is no snapshot {which}, or not any more; `headwater cluster show --list` has them")
    return SnapshotFound(found, load_snapshot(repository.store, found), None if is_adopted else listed.cluster_id, note)


def with_cluster(plan: RecoveryPlan, found: SnapshotFound) -> RecoveryPlan:
    """`plan` with the cluster's state: what of it does not come back is left out or noted."""
    listed, state, cluster_id, note = found
    left_out, notes, problems = list(plan.left_out), list(plan.notes), list(plan.problems)
    if note:
        notes.append(note)
    if cluster_id not in (None, plan.source_cluster_id):
        problems.append(f"the snapshots are of cluster {cluster_id}, and the topics of {plan.source_cluster_id}")
    planned = {topic.topic for topic in plan.topics}
    left_out += [f"{name}: a topic of the cluster that the archive does not hold" for name in sorted(state.topics.keys() - planned)]
    topics = tuple(with_epochs(topic, state.topics.get(topic.topic)) for topic in plan.topics)
    if listed.has_secrets is None:
        notes.append("whether the snapshot was taken with users, tokens and passwords is not known, as it is not in a list")
    elif not listed.has_secrets:
        left_out.append("users, delegation tokens and passwords in settings: the snapshot was taken with cluster.secrets = false")
    if state.unread:
        left_out.append(f"{sum(state.unread.values())} records of kinds {sorted(state.unread)}, which this version does not know")
    others = sorted(name for kind, name in state.configs if kind == RESOURCE_BROKER and name not in ("", str(plan.node_id)))
    if others:
        notes.append(f"settings of brokers {', '.join(others)} are left out: the recovered cluster has broker {plan.node_id} alone")
    if state.others.get(TOKEN):
        notes.append("delegation tokens hold on brokers with the same delegation.token.secret.key alone")
    notes.append(f"snapshot {listed.number} of the cluster's metadata: metadata.version {state.features.get('metadata.version', 0)}")
    cluster = ClusterPlan(
        number=listed.number,
        key=listed.key,
        size_bytes=listed.size_bytes,
        digest=listed.digest,
        taken_ms=listed.taken_ms,
        features=dict(state.features),
        users=len(state.others.get(SCRAM, {})),
        acls=len(state.others.get(ACL, {})),
        quotas=len(state.others.get(QUOTA, {})),
        next_producer_id=state.next_producer_id,
    )
    return replace(plan, topics=topics, cluster=cluster, left_out=tuple(left_out), notes=tuple(notes), problems=tuple(problems))


def injected_records(state: ClusterMetadata, node_id: int) -> Iterator[bytes]:
    """What a broker gets beside topics: settings of brokers, groups and client metrics, quotas, ACLs, users, tokens."""
    for (kind, name), settings in sorted(state.configs.items()):
        if kind != RESOURCE_BROKER or name in ("", str(node_id)):
            for key, value in sorted(settings.items()):
                yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value).encode()
    for api_key in _INJECTED:
        yield from sorted(record.raw for record in state.others.get(api_key, {}).values() if record.is_understood)


def copy_name(cluster: ClusterPlan) -> str:
    """Of the copy in the target."""
    return f".headwater-recovery-cluster-{cluster.key.rpartition('-')[2]}"


def copy_snapshot(cluster: ClusterPlan, into: Path, store: ObjectStore) -> None:
    """The copy is in the target, whole. Raises NotFound, VerificationFailed, DiskFull, and what the store raises."""
    path = into / copy_name(cluster)
    held = read_if_there(path)
    if held is not None and _is_whole(cluster, held):
        return
    try:
        packed, _ = store.get(cluster.key, max_bytes=SNAPSHOT_BYTES_MAX)
    except NotFound as error:
        raise NotFound(f"{cluster.key} is not in the archive any more: plan the recovery again") from error
    if not _is_whole(cluster, packed):
        raise VerificationFailed(f"{cluster.key} is not what the plan names: {len(packed)} bytes, {digest_of(packed)}")
    publish(path, packed)


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
