"""Creates the topics of a recovery in the running cluster, so that the plan has their ids."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from headwater_core.counts import count_text
from headwater_core.errors import ForeignOwner, TransientError, UsageError
from recovery.held_settings import LogBounds
from recovery.recovery_plan import Place, RecoveryPlan, TopicPlan
from recovery.running_cluster import NewTopic, RunningAdmin, RunningTopic

PRODUCER_IDS_MAX = 100_000  # that a cluster is let pass: a request each, a minute or two


def with_created_topics(plan: RecoveryPlan, cluster: RunningAdmin) -> RecoveryPlan:
    """`plan` with the ids that its topics have in the running cluster, each there, empty, with the planned brokers and settings.

    May be repeated: what an earlier run created is recognised. Raises ForeignOwner when this is another cluster, UsageError when a topic is
    not as planned or is refused, TransientError when it is not known yet whether it was created, and what `cluster` raises.
    """
    view = cluster.view()
    if view.cluster_id != plan.cluster_id:
        raise ForeignOwner(f"the brokers are of cluster {view.cluster_id}, the plan is for {plan.cluster_id}: plan again")
    missing = [topic for topic in plan.topics if topic.topic not in view.topics]
    present = [topic for topic in plan.topics if topic.topic in view.topics]
    _check(present, view.topics, cluster)
    created = cluster.create_topics([_new_topic(topic) for topic in missing]) if missing else {}
    if unanswered := [topic for topic in missing if topic.topic not in created]:
        view = cluster.view()
        if lacking := [topic.topic for topic in unanswered if topic.topic not in view.topics]:
            raise TransientError(
                f"not known yet whether it was created: {count_text(len(lacking), 'topic')}, {lacking[0]} among them; run the same "
                "command again"
            )
        _check(unanswered, view.topics, cluster)
        present += unanswered
    if settings := {topic.topic: dict(topic.configs) for topic in present if topic.configs}:
        cluster.change(settings)
    ids = {topic.topic: view.topics[topic.topic].topic_id for topic in present} | dict(created)
    passed = _pass_producer_ids(plan, cluster)
    return replace(
        plan,
        topics=tuple(replace(topic, topic_id=ids[topic.topic]) for topic in plan.topics),
        notes=(*plan.notes, *([passed] if passed else [])),
    )


def _new_topic(topic: TopicPlan) -> NewTopic:
    return NewTopic(topic.topic, [each.replicas[0] for each in topic.partitions], topic.configs)


def _check(topics: Sequence[TopicPlan], found: Mapping[str, RunningTopic], cluster: RunningAdmin) -> None:
    """Each is as it was planned, and empty."""
    places: list[Place] = [(topic.topic, each.partition) for topic in topics for each in topic.partitions]
    bounds = cluster.log_bounds(places)
    for topic in topics:
        held = found[topic.topic]
        if topic.topic_id not in ("", held.topic_id) or held.replicas != {each.partition: each.replicas for each in topic.partitions}:
            raise UsageError(f"{topic.topic} is in the running cluster, and not as it was planned: plan again")
        for each in topic.partitions:
            if (place := (topic.topic, each.partition)) not in bounds:
                raise TransientError(f"{topic.topic}:{each.partition} has no leader that answers: run the same command again")
            if bounds[place] != LogBounds(0, 0):
                raise UsageError(f"{topic.topic}:{each.partition} holds or held records since it was planned: plan again")


def _pass_producer_ids(plan: RecoveryPlan, cluster: RunningAdmin) -> str:
    """New producers get none of the ids that the logs hold. A note; "" where there is nothing to say."""
    newest = max((each.max_producer_id for topic in plan.topics for each in topic.partitions), default=-1)
    if newest < 0 or cluster.pass_producer_ids(newest, PRODUCER_IDS_MAX):
        return ""
    return (
        f"the running cluster's producer ids lie more than {PRODUCER_IDS_MAX} below those in the logs, up to {newest}: what the plan says "
        "of them holds once it comes there"
    )
