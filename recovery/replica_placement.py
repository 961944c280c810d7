"""Which of several target brokers get a partition's replicas, and which of them its records. Pure.

The first replica leads and has the records; the others copy from it (docs/formats/kafka-recovery.md, *Several brokers*).
"""

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headwater_core.counts import count_text
from headwater_core.errors import UsageError
from recovery.plan_notes import notes_of
from recovery.recovery_plan import PartitionPlan, Place, RecoveryPlan, TargetBroker, TopicPlan

_VOTERS = 3  # a majority of them is enough, and one may be away


class Need(NamedTuple):
    """Of one partition."""

    size_bytes: int
    replicas: int


def brokers_from(text: str, source: str) -> tuple[TargetBroker, ...]:
    """A file of brokers: TOML, a table [[broker]] with `id`, and `directory` and `rack` where they are wanted. Raises UsageError."""
    try:
        tables = tomllib.loads(text).get("broker", [])
        found = tuple(_broker(table) for table in tables)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, TypeError, AttributeError, KeyError, ValueError) as error:
        raise UsageError(f"{source}: {str(error)[:200]}; a table [[broker]] with id, directory and rack for each is expected") from error
    if not found:
        raise UsageError(f"{source} names no [[broker]]")
    return found


def _broker(table: Mapping[str, object]) -> TargetBroker:
    if unknown := sorted(table.keys() - {"id", "directory", "rack"}):
        raise ValueError(f"{unknown[0][:40]!r} is not known")
    values = {"directory": f"node-{table['id']}"} | {name: value for name, value in table.items() if name != "id"}
    return msgspec.convert({"node_id": table["id"]} | values, TargetBroker)


def numbered_brokers(count: int, first: int) -> tuple[TargetBroker, ...]:
    return tuple(TargetBroker(node_id=node, directory=f"node-{node}") for node in range(first, first + count))


def voters(brokers: Sequence[TargetBroker]) -> Sequence[TargetBroker]:
    """Those that should be controllers as well."""
    return brokers[:_VOTERS]


def place_replicas(needs: Mapping[Place, Need], brokers: Sequence[TargetBroker]) -> dict[Place, tuple[TargetBroker, ...]]:
    """The brokers of each partition, its leader first; fewer than it needs where there are fewer.

    A topic's leaders are spread over all brokers, then bytes are; a partition's replicas are in as many racks as there are. The largest
    partitions choose first. The same needs give the same places.
    """
    leads, holds = Counter[tuple[str, int]](), Counter[tuple[str, int]]()  # partitions of a topic on a node
    led_bytes, held_bytes, led, held = Counter[int](), Counter[int](), Counter[int](), Counter[int]()
    found: dict[Place, tuple[TargetBroker, ...]] = {}

    def cost_of_leader(place: Place, broker: TargetBroker) -> tuple[int, ...]:
        node = broker.node_id
        return leads[place[0], node], led_bytes[node], led[node], node

    def cost_of_replica(place: Place, broker: TargetBroker, racks: Counter[str | None]) -> tuple[int, ...]:
        node = broker.node_id
        return racks[broker.rack] if broker.rack is not None else 0, holds[place[0], node], held_bytes[node], held[node], node

    for place, (size_bytes, replicas) in sorted(needs.items(), key=lambda each: (-each[1].size_bytes, each[0])):
        leader = min(brokers, key=lambda broker: cost_of_leader(place, broker))
        leads[place[0], leader.node_id] += 1
        led_bytes[leader.node_id] += size_bytes
        led[leader.node_id] += 1
        chosen, racks = [leader], Counter([leader.rack])
        while len(chosen) < min(replicas, len(brokers)):
            left = [broker for broker in brokers if broker not in chosen]
            chosen.append(min(left, key=lambda broker: cost_of_replica(place, broker, racks)))
            racks[chosen[-1].rack] += 1
        for broker in chosen:
            holds[place[0], broker.node_id] += 1
            held_bytes[broker.node_id] += size_bytes
            held[broker.node_id] += 1
        found[place] = tuple(chosen)
    return found


def with_replicas(plan: RecoveryPlan, archived: Mapping[Place, int]) -> RecoveryPlan:
    """`plan` with its partitions on the requested brokers; as it is where none were requested.

    archived  how many replicas each partition had in the cluster that was lost; one that is not there gets as many as its topic's others
    """
    brokers = plan.request.options.brokers
    if not brokers:
        return plan
    needs = {(topic.topic, each.partition): Need(each.size_bytes, _wanted(topic, each, archived)) for topic, each in _partitions(plan)}
    places = place_replicas(needs, brokers)

    def placed(topic: TopicPlan, partition: PartitionPlan) -> PartitionPlan:
        chosen = places[topic.topic, partition.partition]
        return replace(partition, replicas=tuple(each.node_id for each in chosen), directory=chosen[0].directory)

    topics = tuple(replace(topic, partitions=tuple(placed(topic, each) for each in topic.partitions)) for topic in plan.topics)
    outdated = {note for topic in plan.topics for note in notes_of(topic)}
    notes = [note for note in plan.notes if note not in outdated]
    if lowered := sum(need.replicas > len(brokers) for need in needs.values()):
        notes.append(f"{count_text(lowered, 'partition')} had more replicas than there are brokers: recovered with {len(brokers)}")
    if any(need.replicas > 1 for need in needs.values()) and len(brokers) > 1:
        notes.append(
            "the records of a partition lie with its first replica alone, and the others copy them once the brokers run: until then there "
            "is one copy, and acks=all waits where min.insync.replicas asks for more"
        )
    return replace(plan, topics=topics, brokers=brokers, notes=(*notes, *(note for topic in topics for note in notes_of(topic))))


def _partitions(plan: RecoveryPlan) -> Iterator[tuple[TopicPlan, PartitionPlan]]:
    for topic in plan.topics:
        for partition in topic.partitions:
            yield topic, partition


def _wanted(topic: TopicPlan, partition: PartitionPlan, archived: Mapping[Place, int]) -> int:
    of_topic = [archived.get((topic.topic, each.partition), 1) for each in topic.partitions]
    return archived.get((topic.topic, partition.partition)) or max(of_topic)
