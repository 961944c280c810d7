"""The metadata that a broker would begin with, compared with what is archived of it: decoded from the restored file, record by record."""

from collections.abc import Iterator
from pathlib import Path

from headwater.drill.drill_tally import DrillTally
from headwater_core.errors import HeadwaterError
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot
from headwater_core.segments.metadata.record_schemas import ACL, QUOTA, SCRAM, TOKEN
from manifests.cluster_list import SNAPSHOT_BYTES_MAX
from manifests.cluster_snapshot import unpack_snapshot
from recovery import RecoveryPlan

FILE = "bootstrap.checkpoint"
NAMES = {SCRAM: "users", ACL: "ACLs", QUOTA: "quotas", TOKEN: "tokens"}


def check_metadata(store: ObjectStore, plan: RecoveryPlan, log_dir: Path, tally: DrillTally) -> dict[str, int]:
    """How many of what were compared. Differences become findings; never what is secret in them. Raises what the store raises."""
    archived = _archived(store, plan)
    try:
        restored = read_snapshot((log_dir / FILE).read_bytes(), FILE)
    except (OSError, HeadwaterError) as error:
        tally.find("differs", "", None, None, f"{FILE} cannot be read: {error}", "metadata")
        return {}
    for topic, text in _topic_differences(plan, restored):
        tally.find("differs", topic, None, None, text, "metadata")
    if archived is None:
        return {"topics": len(plan.topics)}
    for text in _cluster_differences(archived, restored):
        tally.find("differs", "", None, None, text, "metadata")
    return {"topics": len(plan.topics)} | {name: len(restored.others.get(kind, {})) for kind, name in NAMES.items()}


def _archived(store: ObjectStore, plan: RecoveryPlan) -> ClusterMetadata | None:
    if plan.cluster is None:
        return None
    packed, _ = store.get(plan.cluster.key, max_bytes=SNAPSHOT_BYTES_MAX)
    return unpack_snapshot(packed, plan.cluster.key)


def _topic_differences(plan: RecoveryPlan, restored: ClusterMetadata) -> Iterator[tuple[str, str]]:
    planned = {topic.topic: topic for topic in plan.topics}
    for name in sorted(restored.topics.keys() - planned.keys()):
        yield name, f"{FILE} has a topic that was not restored"
    for name, topic in planned.items():
        found = restored.topics.get(name)
        if found is None:
            yield name, f"{FILE} lacks it"
        elif found.topic_id != topic.topic_id or sorted(found.partitions) != list(range(len(topic.partitions))):
            yield name, f"{FILE} has topic id {found.topic_id} and {len(found.partitions)} partitions"
        elif dict(found.configs) != topic.configs:
            names = sorted(key for key in {*found.configs, *topic.configs} if found.configs.get(key) != topic.configs.get(key))
            yield name, f"{FILE} has other settings: {', '.join(names)}"


def _cluster_differences(archived: ClusterMetadata, restored: ClusterMetadata) -> Iterator[str]:
    for kind in sorted({*restored.others, *NAMES}):
        wanted = {record.raw for record in archived.others.get(kind, {}).values() if record.is_understood}
        found = {record.raw for record in restored.others.get(kind, {}).values()}
        name = NAMES.get(kind, f"records of kind {kind}")
        if kind in NAMES and (lacking := len(wanted - found)):
            yield f"{FILE} lacks {lacking} of the snapshot's {len(wanted)} {name}"
        if more := len(found - wanted):
            yield f"{FILE} has {more} {name} that the snapshot does not have"
    if dict(restored.features) != dict(archived.features):
        yield f"{FILE} has feature levels {dict(restored.features)}, the snapshot {dict(archived.features)}"
