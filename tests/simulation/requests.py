"""The broker beside a simulated agent, as far as it answers requests. Between two of them anything may happen, with one exception: a
deletion comes right after the question which topic the name means, since nothing closes that window (tests/model/README.md)."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from archival.broker.broker_view import CommittedEnd, Group, LeaderLog, PinnedBroker
from archival.partition.source import LocalLogs
from headwater_core.epochs import EpochHistory
from headwater_core.errors import SourceChanged, TransientError
from headwater_core.partition import TopicPartition
from headwater_core.segments.local_log import LocalLog
from tests.simulation.brokers import Replica
from tests.simulation.consumer_groups import LookUps

if TYPE_CHECKING:
    from tests.simulation.world import World

_SILENT = 0.02  # how likely a request is not answered
_LATE = 0.3  # how likely a broker's own copy of the metadata log lags


class AnsweringBroker:
    """archival.broker.broker_view.Broker."""

    def __init__(self, world: "World", beside: int, look_ups: LookUps) -> None:
        self._world, self._beside, self._look_ups = world, beside, look_ups
        look_ups.began_s = None

    def committed(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, CommittedEnd]:
        connection = SimulatedConnection(self._world, self._beside)
        replica = connection.asked("ListOffsets")
        if replica.lead is None:
            return {}
        leader_epoch, high_watermark = replica.lead, replica.hw
        connection.asked("Metadata")
        self._world.result.seen["the broker says what is committed"] += 1
        topic_id = self._world.brokers.partition.topic_id
        return {place: CommittedEnd(topic_id, leader_epoch, high_watermark) for place in places}

    def groups(self, known: Collection[str]) -> Sequence[Group]:
        return self._world.consumer_groups.list(known, self._look_ups, SimulatedConnection(self._world, self._beside).asked)

    @contextmanager
    def pinned(self) -> Iterator[PinnedBroker]:
        yield SimulatedConnection(self._world, self._beside)


class SimulatedConnection:
    """To the broker that an agent is beside, and no other one: whether it leads is for it to know."""

    def __init__(self, world: "World", beside: int) -> None:
        self._world, self._beside = world, beside
        self._starts = world.brokers.starts[beside]

    def asked(self, what: str) -> Replica:
        """A request arrives, later than it was sent. The connection ends with the broker's process."""
        world = self._world
        world.pause(f"request {what}")
        if world.brokers.starts[self._beside] != self._starts or (world.running and world.random.random() < _SILENT):
            raise TransientError(f"no answer to {what}")
        return world.brokers.replicas[self._beside]

    def leader_log(self, place: TopicPartition, leader_epoch: int, history: EpochHistory) -> LeaderLog:
        high_watermark = self._led(leader_epoch, "ListOffsets latest").hw
        log_start = self._led(leader_epoch, "ListOffsets earliest").start
        replica = self._led(leader_epoch, "OffsetForLeaderEpoch")
        ends = {start.epoch: _end_of(replica, start.epoch) for start in history.starts}
        self.asked("Metadata")
        return LeaderLog(self._world.brokers.partition.topic_id, log_start, high_watermark, ends)

    def topic_id(self, topic: str) -> str | None:
        self.asked("Metadata")
        return self._world.brokers.partition.topic_id

    def metadata_end(self) -> int:
        self.asked("DescribeQuorum")
        return self._world.brokers.changes

    def delete_records(self, place: TopicPartition, end: int) -> None:
        world = self._world
        replica = world.brokers.replicas[self._beside]
        if replica.lead is None or end > replica.hw:
            raise SourceChanged("not the leader, or out of range")
        if world.theme.groups:
            world.consumer_groups.check_deletion(end)
        world.note(world.brokers.delete_records(replica, end))
        world.result.seen["the broker deletes records on request"] += 1

    def routed(self) -> "SimulatedConnection":
        """What a client with a leader look-up would use: planted mistakes do."""
        return SimulatedConnection(self._world, self._world.brokers.leading)

    def _led(self, leader_epoch: int, what: str) -> Replica:
        replica = self.asked(what)
        if replica.lead != leader_epoch:
            raise SourceChanged(f"the broker leads in epoch {replica.lead}, not {leader_epoch}")
        return replica


def _end_of(replica: Replica, asked: int) -> tuple[int, int]:
    """The newest epoch up to `asked`, and where it ends."""
    history = [*replica.history, (1 << 31, replica.end)]
    found = [(epoch, end) for (epoch, _), (_, end) in pairwise(history) if epoch <= asked]
    return found[-1] if found else (-1, -1)


class LateMetadata:
    """Local logs whose metadata log is sometimes older than their other files."""

    def __init__(self, world: "World", logs: LocalLogs) -> None:
        self._world, self._logs = world, logs
        self._last: LocalLog | None = None
        self.is_held = False  # it is not read at all meanwhile

    def look(self, partition: TopicPartition) -> LocalLog:
        log, last = self._logs.look(partition), self._last
        is_older = last is not None and last.partition == log.partition and last.metadata_end != log.metadata_end
        if last is not None and is_older and (self.is_held or (self._world.running and self._world.random.random() < _LATE)):
            self._world.result.seen["a metadata log is behind"] += 1
            return replace(log, leadership=last.leadership, metadata_end=last.metadata_end)
        self._last = log
        return log
