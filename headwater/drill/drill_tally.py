"""What a drill knows so far, and the parts of a plan by their places."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from headwater.drill.drill_report import Amount, ComparedWindow, DrillFinding, PathSum
from headwater_core.errors import CorruptData
from headwater_core.partition import TopicPartition
from manifests.entry import Entry
from recovery import PartitionPlan, RecoveryPlan, TopicPlan

REPLACED = "the archive has replaced what was restored meanwhile"


@dataclass(slots=True)
class DrillTally:
    """What is known so far.

    unmet    what was to be compared and was not, in words
    blocked  what this machine, or a store or broker that did not answer, kept from being compared, in words
    unchecked  what was not checked, though it was restored, in words
    answers  how many answers of a broker that was started were checked, by what they are about
    producer_id_max  the greatest producer id in the archived batches that were read
    """

    findings: list[DrillFinding]
    unmet: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    windows: list[ComparedWindow] = field(default_factory=list)
    paths: dict[str, PathSum] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    producer_id_max: int = -1

    def add(self, name: str, amount: Amount, elapsed_s: float = 0.0, why: str = "") -> None:
        held = self.paths.get(name, PathSum(name=name))
        self.paths[name] = replace(held, amount=held.amount + amount, elapsed_s=held.elapsed_s + elapsed_s, why=held.why or why)

    def find(self, kind: str, topic: str, partition: int | None, offset: int | None, text: str, where: str = "archive") -> None:
        self.findings.append(DrillFinding(kind=kind, topic=topic, partition=partition, offset=offset, where=where, text=text))

    def find_damage(self, place: TopicPartition, entry: Entry, error: CorruptData) -> None:
        """Of one run in the bucket; once, however many read paths come upon it."""
        known = {(each.topic, each.partition, each.offset) for each in self.findings if each.kind in ("damaged", "missing")}
        if (place.topic, place.partition, entry.base_offset) not in known:
            self.find("damaged", place.topic, place.partition, entry.base_offset, str(error))


def amount_of(partition: PartitionPlan) -> Amount:
    """That can be recovered of it."""
    return Amount(runs=len(partition.files), records=partition.records, size_bytes=partition.size_bytes)


def places_of(plan: RecoveryPlan) -> Iterator[tuple[TopicPlan, PartitionPlan]]:
    for topic in plan.topics:
        for partition in topic.partitions:
            yield topic, partition


def place_of(plan: RecoveryPlan, window: ComparedWindow) -> tuple[TopicPlan, PartitionPlan]:
    return next(
        (topic, partition)
        for topic in plan.topics
        if topic.topic == window.topic
        for partition in topic.partitions[window.partition : window.partition + 1]
    )
