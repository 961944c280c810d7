"""Rebuilds what the control log knew, from the bucket."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from archival.partition.announcer import advanced_of
from headwater_core.control.control_log import PUBLISH_TIMEOUT_S, ControlLog
from headwater_core.control.control_records import Advanced, Record
from headwater_core.control.node import ControlNode
from headwater_core.control.supervisor import ControlSupervisor
from headwater_core.errors import CorruptData, ForeignOwner, NotFound, TransientError, UnsupportedFormat
from manifests.repository import ManifestRepository

_BATCH = 500  # records per command: about 100 KB


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """How many partitions were announced, and why others were not: (partition or topic, reason)."""

    partitions: int
    unreadable: tuple[tuple[str, str], ...]


def rebuild_control(
    repository: ManifestRepository, control: ControlLog, *, timeout_s: float = PUBLISH_TIMEOUT_S, over: Callable[[], bool] = lambda: False
) -> Rebuilt:
    """Announce every head in the bucket. Repeatable: what the log knows in a newer version stays.

    A head that cannot be read is reported, and the others are announced; an unreachable bucket, and `over`, end it with TransientError.
    """
    announced = 0
    unreadable: list[tuple[str, str]] = []
    batch: list[Record] = []
    for record in _announcements(repository, unreadable):
        if over():
            raise TransientError("the rebuild of the control log was stopped; it starts again next time")
        batch.append(record)
        announced += 1
        if len(batch) == _BATCH:
            control.publish(*batch, timeout_s=timeout_s)
            batch.clear()
    if batch:
        control.publish(*batch, timeout_s=timeout_s)
    return Rebuilt(announced, tuple(unreadable))


def rebuild_control_if_needed(
    repository: ManifestRepository,
    node: ControlNode | ControlSupervisor,
    *,
    timeout_s: float = PUBLISH_TIMEOUT_S,
    over: Callable[[], bool] = lambda: False,
) -> Rebuilt | None:
    """As `rebuild_control`, when the node's files were missing or damaged; None when they were not."""
    if not node.needs_rebuild:
        return None
    rebuilt = rebuild_control(repository, node, timeout_s=timeout_s, over=over)
    node.rebuilt()
    return rebuilt


def _announcements(repository: ManifestRepository, unreadable: list[tuple[str, str]]) -> Iterator[Advanced]:
    for topic, topic_id in repository.incarnations():
        try:
            partitions = repository.partitions(topic, topic_id)
        except (CorruptData, ForeignOwner, UnsupportedFormat, NotFound) as error:
            unreadable.append((topic, str(error)))
            continue
        for partition in partitions:
            try:
                versioned = repository.load(partition)
            except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
                unreadable.append((str(partition), str(error)))
                continue
            if versioned:
                yield advanced_of(versioned.head)
