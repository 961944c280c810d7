"""The metadata that a broker would begin with, compared with what is archived of it: decoded from the restored file, record by record."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from headwater.drill.drill_tally import DrillTally
from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata, TopicMetadata
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER, RESOURCE_TOPIC, decode_metadata_record
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot
from headwater_core.segments.metadata.record_schemas import (
    ACL,
    QUOTA,
    REGISTER_BROKER,
    REGISTER_CONTROLLER,
    SCHEMAS,
    SCRAM,
    TOKEN,
    ZK_MIGRATION,
)
from manifests.cluster_list import SNAPSHOT_BYTES_MAX
from manifests.cluster_snapshot import unpack_snapshot
from recovery import RecoveryPlan
from recovery.target_files import read_if_there

FILE = "bootstrap.checkpoint"
EXPIRY = ("offsets.retention.minutes", "transactional.id.expiration.ms", "producer.id.expiration.ms")
"""Settings of brokers by which what coordinators and leaders know is forgotten."""
NAMES = {SCRAM: "users", ACL: "ACLs", QUOTA: "quotas", TOKEN: "tokens"}
_RESOURCES = {RESOURCE_BROKER: "broker", 16: "client metrics", 32: "group"}
_OF_NODES = (REGISTER_BROKER, REGISTER_CONTROLLER, ZK_MIGRATION)  # of the lost machines: the recovered cluster registers its own


class CheckedMetadata(NamedTuple):
    """counts: how many of what were compared; unchecked: what the archive holds, or may hold, and nothing was compared with, in words"""

    counts: Mapping[str, int]
    unchecked: tuple[str, ...] = ()


def check_metadata(store: ObjectStore, plan: RecoveryPlan, log_dir: Path, tally: DrillTally) -> CheckedMetadata:
    """Compare all that a snapshot holds. Differences become findings; never what is secret in them. Raises what store and disk raise.

    tally  with the producer ids of the restored logs, where these were read before
    """
    archived = _archived(store, plan)
    try:
        restored = read_snapshot(read_if_there(log_dir / FILE) or b"", FILE)
    except (CorruptData, UnsupportedFormat) as error:
        tally.find("differs", "", None, None, f"{FILE} cannot be read: {error}", "metadata")
        return CheckedMetadata({})
    for topic, text in _topic_differences(plan, restored):
        tally.find("differs", topic, None, None, text, "metadata")
    if restored.next_producer_id <= tally.producer_id_max:
        text = f"{FILE} hands out producer ids from {restored.next_producer_id} on, and restored logs have {tally.producer_id_max}"
        tally.find("differs", "", None, None, text, "metadata")
    counts = {"topics": len(plan.topics)}
    if archived is None:
        what = "users, ACLs, quotas, tokens, feature levels and settings of brokers, groups and client metrics"
        return CheckedMetadata(counts, (f"{what}: only topics were selected, not the cluster",))
    for topic, text in _snapshot_topic_differences(plan, archived, restored):
        tally.find("differs", topic, None, None, text, "metadata")
    for text in _cluster_differences(plan, archived, restored):
        tally.find("differs", "", None, None, text, "metadata")
    counts |= {name: len(restored.others.get(kind, {})) for kind, name in NAMES.items()}
    counts |= {"settings": sum(map(len, restored.configs.values())), "feature levels": len(restored.features)}
    return CheckedMetadata(counts, tuple(_unchecked(plan, archived)))


def expiry_settings(log_dir: Path, node_id: int) -> dict[str, str]:
    """Return those of EXPIRY that the restored metadata has for the broker or for all brokers. A value that is no number, or metadata that
    cannot be read, is left to check_metadata and to the broker."""
    try:
        restored = read_snapshot(read_if_there(log_dir / FILE) or b"", FILE)
    except (CorruptData, UnsupportedFormat):
        return {}
    found = {**restored.configs.get((RESOURCE_BROKER, ""), {}), **restored.configs.get((RESOURCE_BROKER, str(node_id)), {})}
    return {name: found[name] for name in EXPIRY if found.get(name, "").isdecimal() and found[name].isascii()}


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
            yield name, f"{FILE} has topic id {found.topic_id} and {count_text(len(found.partitions), 'partition')}"
        elif names := _unequal(found.configs, topic.configs):
            yield name, f"{FILE} has other settings: {', '.join(names)}"


def _snapshot_topic_differences(plan: RecoveryPlan, archived: ClusterMetadata, restored: ClusterMetadata) -> Iterator[tuple[str, str]]:
    """Compare topics that are the snapshot's incarnations: the plan may be wrong, too. A setting that is held back has the snapshot's
    value in the plan, to be put back; or is what an earlier recovery held back already."""
    originals = {(setting.topic, setting.name): (setting.value, setting.recovered) for setting in plan.held}
    for name, found in restored.topics.items():
        wanted = archived.topics.get(name)
        if wanted is None or wanted.topic_id != found.topic_id:
            continue  # the plan says that it is of the archive alone, or of another incarnation
        names = [key for key in _unequal(found.configs, wanted.configs) if wanted.configs.get(key) not in originals.get((name, key), ())]
        if names:
            yield name, f"{FILE} has other settings than the snapshot: {', '.join(names)}"
        if lacking := sorted(wanted.partitions.keys() - found.partitions.keys()):
            yield name, f"{FILE} lacks partitions {lacking} of the snapshot"
        if older := _older_epochs(found, wanted):
            yield name, f"{FILE} has leader epochs below the snapshot's in partitions {older}: clients that know those would wait for good"
        same = [key for key, value in found.configs.items() if wanted.configs.get(key) == value]
        if found.tags != wanted.tags or _tags_of(restored, name, same) != _tags_of(archived, name, same):
            yield name, f"{FILE} has other fields of a kind that this version does not know"


def _older_epochs(found: TopicMetadata, wanted: TopicMetadata) -> list[int]:
    known = wanted.partitions
    return sorted(at for at, partition in found.partitions.items() if at in known and partition.leader_epoch < known[at].leader_epoch)


def _tags_of(state: ClusterMetadata, topic: str, names: list[str]) -> list[object]:
    return [state.config_tags.get((RESOURCE_TOPIC, topic, name), ()) for name in names]


def _cluster_differences(plan: RecoveryPlan, archived: ClusterMetadata, restored: ClusterMetadata) -> Iterator[str]:
    for kind in sorted({*restored.others, *NAMES}):
        wanted = {record.raw for record in archived.others.get(kind, {}).values()} if kind in NAMES else set()
        found = {record.raw for record in restored.others.get(kind, {}).values()}
        name = NAMES.get(kind, f"records of kind {kind}")
        if lacking := len(wanted - found):
            yield f"{FILE} lacks {lacking} of the snapshot's {len(wanted)} {name}"
        if more := len(found - wanted):
            yield f"{FILE} has {more} {name} that the snapshot does not have"
    nodes = {"", *(str(target.node_id) for target in plan.targets)}
    for resource in sorted(archived.configs.keys() | restored.configs.keys()):
        of, name = resource
        expected = archived.configs.get(resource, {}) if of != RESOURCE_BROKER or name in nodes else {}
        if names := _unequal(restored.configs.get(resource, {}), expected):
            yield f"{FILE} has other settings than the snapshot for {_RESOURCES.get(of, f'resource {of}')} {name!r}: {', '.join(names)}"
    tagged = {
        key: tags
        for key, tags in archived.config_tags.items()
        if key[0] != RESOURCE_TOPIC and (key[0] != RESOURCE_BROKER or key[1] in nodes)
    }
    if {key: tags for key, tags in restored.config_tags.items() if key[0] != RESOURCE_TOPIC} != tagged:
        yield f"{FILE} has settings with other fields of a kind that this version does not know"
    if dict(restored.features) != dict(archived.features):
        yield f"{FILE} has feature levels {dict(restored.features)}, the snapshot {dict(archived.features)}"
    if restored.next_producer_id < archived.next_producer_id:
        yield f"{FILE} hands out producer ids from {restored.next_producer_id} on, the snapshot from {archived.next_producer_id}"
    unknown = _of_no_node(archived.unknown) if plan.cluster is not None and plan.cluster.unknown else []
    if list(restored.unknown) != unknown:
        yield (
            f"{FILE} has {count_text(len(restored.unknown), 'record')} that this version does not know, planned: {len(unknown)}, in "
            "their order"
        )


def _unequal(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def _of_no_node(raws: tuple[bytes, ...]) -> list[bytes]:
    return [raw for raw in raws if decode_metadata_record(raw).api_key not in _OF_NODES]


def _unchecked(plan: RecoveryPlan, archived: ClusterMetadata) -> Iterator[str]:
    """Yield what the snapshot holds and the recovered cluster does not get, or not as it was."""
    yield "replicas of partitions and who leads them: the recovered cluster places its own"
    for kind in _OF_NODES:
        if records := archived.others.get(kind):
            yield f"{count_text(len(records), 'record')} {SCHEMAS[kind].name}: the recovered cluster registers its own nodes"
    nodes = {str(target.node_id) for target in plan.targets}
    if others := sorted(name for of, name in archived.configs if of == RESOURCE_BROKER and name not in ("", *nodes)):
        yield f"settings of brokers {', '.join(others)}: the recovered cluster does not have them"
    if beyond := sum(archived.unread.values()) - len(archived.unknown):
        yield f"{count_text(beyond, 'record')}, or fields of some, that this version does not know"
    elif archived.unknown and not (plan.cluster and plan.cluster.unknown):
        yield f"{count_text(len(archived.unknown), 'record')} that this version does not know: left out by the plan"
    if absent := sorted(archived.topics.keys() - {topic.topic for topic in plan.topics}):
        yield f"not recovered of the snapshot: {count_text(len(absent), 'topic')}: {', '.join(absent[:20])}"
