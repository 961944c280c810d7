"""What a drill works with, and what it reads."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headwater.drill.read_path import ReadPath
from headwater.drill.scratch import Scratch
from headwater_core.clock import Clock
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import TopicPartition
from recovery import RecoveryPlan
from recovery.recovered_groups import GroupAdmin


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


class StablePath(ReadPath, Protocol):
    def stable_end(self, partition: TopicPartition, first: int) -> int:
        """Read committed data from `first` on; return the last stable offset, at which it ends."""
        ...


class Coordinators(GroupAdmin, Protocol):
    """Coordinators of a broker, as they answer. Everything raises TransientError, Unauthorised, UsageError and UnsupportedFormat."""

    def pass_expiry_check(self, groups: Collection[str], topic: str) -> None:
        """Commit an offset of `topic` as each of these groups, which have none, that expires at once; return when all are removed. So each
        of their coordinators has checked all its groups. Raises TransientError where that takes too long."""
        ...

    def initialize(self, transactional_ids: Collection[str]) -> Mapping[str, str]:
        """Begin a new producer of each; return why that failed, "" where it did not. Raises TransientError where a coordinator is away."""
        ...


class SpareBroker(NamedTuple):
    """A broker that was started on what was restored, and is of the drill alone: it may be written to."""

    path: StablePath
    coordinators: Coordinators


OpenLive = Callable[[], AbstractContextManager[LiveLogs]]
OpenSpare = Callable[[Scratch, RecoveryPlan], AbstractContextManager[SpareBroker]]


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
