"""The metadata records with which a freshly formatted broker begins (docs/formats/kafka-recovery.md, procedure A).

bootstrap.checkpoint is read once, when the controller finds its metadata log empty.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

from headwater_core.segments.metadata.bootstrap_checkpoint import write_checkpoint
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_records import (
    NO_LEADER,
    RESOURCE_TOPIC,
    UNASSIGNED,
    ConfigRecord,
    FeatureLevel,
    MetadataRecord,
    Partition,
    ProducerIds,
    Tags,
    Topic,
)
from recovery.cluster_state import injected_records
from recovery.kafka_releases import StartingReleases, partition_version, starting_releases
from recovery.recovery_plan import PartitionPlan, RecoveryPlan, TopicPlan

FEATURES = {  # as kafka-storage of Kafka 4.3 formats a new cluster
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
_PRODUCER_IDS_SPARED = 1_000_000  # brokers take them in blocks of 1,000; those handed out but never written are in no log


def bootstrap_checkpoint(plan: RecoveryPlan, state: ClusterMetadata | None = None, *, timestamp_ms: int) -> bytes:
    """The whole file for `plan`, the same for every broker. state: of the whole cluster; None: topics alone"""
    nodes = [each.node_id for each in plan.targets]
    beside = injected_records(state, plan.cluster, nodes) if state is not None else ()
    version = partition_version(features_of(plan))
    records = (each.encode(version) if isinstance(each, Partition) else each.encode() for each in bootstrap_records(plan, state))
    return write_checkpoint(chain(records, beside), timestamp_ms=timestamp_ms)


def features_of(plan: RecoveryPlan) -> Mapping[str, int]:
    """The levels that the recovered cluster begins with."""
    return plan.cluster.features if plan.cluster else plan.features or FEATURES


def starting_on(plan: RecoveryPlan) -> StartingReleases:
    """Which Kafka starts on what `plan` writes."""
    wanted = plan.request.options.kafka_release
    found = starting_releases(features_of(plan), wanted)
    return found._replace(releases=(), from_=wanted or "") if plan.cluster is not None and plan.cluster.unknown else found


def bootstrap_records(plan: RecoveryPlan, state: ClusterMetadata | None = None) -> Iterator[MetadataRecord]:
    """Those of features, topics and producer ids, in order."""
    features = features_of(plan)
    ordered = sorted(features.items(), key=lambda each: each[0] != "metadata.version")  # without it a controller takes none
    yield from (FeatureLevel(name=name, level=level) for name, level in ordered)
    for topic in plan.topics:
        yield Topic(name=topic.topic, topic_id=topic.topic_id, tags=_topic_tags(topic, state))
        yield from (_partition(topic, partition, plan.node_id) for partition in topic.partitions)
    for topic in plan.topics:
        for name, value in sorted(topic.configs.items()):
            yield ConfigRecord(resource_name=topic.topic, name=name, value=value, tags=_setting_tags(topic, name, value, state))
    yield ProducerIds(broker=plan.node_id, broker_epoch=-1, next_producer_id=first_producer_id(plan))


def first_producer_id(plan: RecoveryPlan) -> int:
    """New producers get ids from there on."""
    return plan.next_producer_id // 1000 * 1000 + _PRODUCER_IDS_SPARED


def _topic_tags(topic: TopicPlan, state: ClusterMetadata | None) -> Tags:
    """Fields that this version does not know, of the same incarnation."""
    found = state.topics.get(topic.topic) if state is not None else None
    return found.tags if found is not None and found.topic_id == topic.topic_id else ()


def _setting_tags(topic: TopicPlan, name: str, value: str, state: ClusterMetadata | None) -> Tags:
    """The same of a setting that comes back as it was."""
    found = state.topics.get(topic.topic) if state is not None else None
    if state is None or found is None or found.configs.get(name) != value:
        return ()
    return state.config_tags.get((RESOURCE_TOPIC, topic.topic, name), ())


def _partition(topic: TopicPlan, partition: PartitionPlan, node_id: int) -> Partition:
    """Without a leader, and the node with the records known as the last one eligible: the only form in which the controller elects it.
    The other replicas are out of sync until they have copied everything.

    It counts the first registration as an unclean shutdown and empties the set of replicas in sync. The epoch it then
    begins is one above this one: a consumer that has seen an epoch waits without end for a broker below it.
    """
    replicas = partition.replicas or (node_id,)
    return Partition(
        partition=partition.partition,
        topic_id=topic.topic_id,
        replicas=replicas,
        in_sync=replicas[:1],
        leader=NO_LEADER,
        leader_epoch=partition.first_epoch,
        directories=(UNASSIGNED,) * len(replicas),
        last_known_elr=replicas[:1],
    )
