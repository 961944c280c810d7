"""What a drill works with, and what it reads."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from headwater.drill.read_path import ReadPath
from headwater.drill.scratch import Scratch
from headwater_core.clock import Clock
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import TopicPartition
from recovery import RecoveryPlan


class LiveLogs(ReadPath, Protocol):
    """The live cluster, read and never written to."""

    @property
    def cluster_id(self) -> str: ...

    def ends(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """High watermarks of those that answer."""
        ...

    def partitions(self, topic: str) -> int:
        """How many a topic has that is there."""
        ...

    def first_timestamp_ms(self, place: TopicPartition, offset: int) -> int | None:
        """Of the record at `offset`, or the next one; None when there is none."""
        ...


OpenLive = Callable[[], AbstractContextManager[LiveLogs]]
OpenSpare = Callable[[Scratch, RecoveryPlan], AbstractContextManager[ReadPath]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillEquipment:
    """
    live    opens the live cluster; None: there is none to reach, for the reason `no_live`
    spare   starts a broker on what was restored; None: there is none to start, for the reason `no_spare`
    needs_live, needs_spare  it was requested: a drill that compares nothing by it is not complete
    version of the program
    """

    store: ObjectStore
    clock: Clock
    version: str
    live: OpenLive | None = None
    no_live: str = "no live cluster is configured"
    needs_live: bool = False
    spare: OpenSpare | None = None
    no_spare: str = "no Kafka is configured"
    needs_spare: bool = False
