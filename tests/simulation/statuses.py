"""What a simulated agent says of itself: its status board and its metrics, compared with what is true.

They look on: no random draw, no pause and no fault of the world is theirs, so that a seed does the same with them and without. Their own
random source decides when they look, and whether the agent still holds its head then.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from archival.partition.tails import Tails
from archival.partition_status import KnownHead
from archival.plan.policy import Policy
from archival.watermark import WatermarkOrigin
from headwater.admin.health import Health
from headwater.admin.metrics import STATES, AgentCollector, MetricSources
from headwater.admin.operations import Operations, new_operation_id
from headwater.admin.status_board import BoardEntry, BoardSources, StatusBoard
from headwater.admin.status_page import StatusQuery, page_of
from headwater.gateway.gateway_meter import GatewayMeter
from headwater_core.control.state import PartitionState
from headwater_core.control.supervisor import ControlHealth
from headwater_core.errors import HeadwaterError
from headwater_core.objectstore.store_meter import StoreMeter
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.local_log import LocalLog
from hydration.archive.hydrator import Hydrator
from hydration.counters import ReadCounters
from manifests.head import Head
from manifests.repository import ManifestRepository
from tests.headwater_core.objectstore.faulty import NO_FAULTS
from tests.simulation.bucket import Violation
from tests.simulation.onlooker import Onlooker

if TYPE_CHECKING:
    from tests.simulation.agents import Agent
    from tests.simulation.world import World

_LOOKS = 0.1  # of the moments between two actions
_COUNTED_LOOKS = 10  # one in so many compares the counters, too: reading all of them takes longer than all else of a look
_COUNTER_SUFFIXES = ("_total", "_bucket", "_count", "_sum")


class AgentStatus:
    """Of one life of an agent. The agent says what it does: `stepped`, `failed`, `committed`."""

    def __init__(self, world: "World", agent: "Agent", meter: StoreMeter) -> None:
        self._world, self._agent = world, agent
        self._random = Random(f"status {world.result.seed} {agent.name}")
        self._logs = Onlooker(world, self._random).logs(agent.beside)
        self._tails, self._error = Tails(None, world.clock), dict[TopicPartition, HeadwaterError]()
        self._holds_heads, self._looks, self._counters = True, 0, dict[tuple[str, tuple[tuple[str, str], ...]], float]()
        self._bucket = ManifestRepository(world.inner)
        self.board = StatusBoard(
            BoardSources(
                look=self._look,
                read=lambda log, work: work(lambda: None),
                head=self._head,
                offsets=lambda partition: world.control.state().partition(partition),
                policy=self._policy,
                trouble=self._error.get,
                tail_age_ms=self._tails.age_since,
                recovered=lambda _: False,
                archived=self._archived,
            ),
            world.clock,
        )
        self._metrics = AgentCollector(
            MetricSources(
                version="1.2.3",
                health=Health(live={}, ready={}),
                store=meter,
                gateway=GatewayMeter(),
                hydrator=cast(
                    Hydrator,
                    SimpleNamespace(
                        counters=ReadCounters(), cache=SimpleNamespace(used_bytes=0, limit_bytes=0, evicted=0, bypassed=0), damaged=dict
                    ),
                ),
                control=lambda: ControlHealth("leader", 0.0, 0),
                operations=Operations(world.clock, new_operation_id).tally,
                board=self.board,
                failure=self._error.get,
            )
        )

    # What a look needs

    def _look(self, place: TopicPartition) -> tuple[LocalLog, WatermarkOrigin]:
        return self._logs.look(place), WatermarkOrigin.of_checkpoint(None, 0)

    def _head(self, partition: PartitionId) -> KnownHead | None:
        archiver = self._agent.archivers.get(partition)
        head = archiver.head if archiver is not None and self._holds_heads else None
        return KnownHead(head, 0.0) if head is not None else None

    def _policy(self, place: TopicPartition) -> Policy:
        policy = Policy(tail_after_ms=0, begin_anew_epoch=self._world.begin_anew_epoch)
        return self._agent.pauses.applied(place, policy) if self._agent.pauses.is_known else policy

    def _archived(self) -> dict[PartitionId, PartitionState | None]:
        return dict(self._world.control.state().partitions())

    # What the agent says

    def stepped(self, reason: str) -> None:
        place = self._world.brokers.partition.topic_partition
        self._error.pop(place, None)
        self.board.stepped(place, reason)

    def failed(self, error: Exception) -> None:
        place = self._world.brokers.partition.topic_partition
        self._error[place] = error if isinstance(error, HeadwaterError) else HeadwaterError(f"unexpected: {error}")
        self.board.stepped(place, "")

    def committed(self, head: Head | None) -> None:
        if head is not None:
            self.board.committed(head)

    # What must hold

    def after_action(self) -> None:
        """Now and then: what a fresh look says is true of the log, and no counter goes back."""
        if self._random.random() < _LOOKS:
            self._holds_heads = self._random.random() < 0.7
            self._check_log(self._fresh())
            self._holds_heads = True
            self._looks += 1
            if self._looks % _COUNTED_LOOKS == 1:
                self._check_counters()

    def rest(self) -> None:
        """The agent has archived all that there is."""
        with self._aside():
            self.board.round()  # it has heard of its last step
        for entry in self.board.entries():
            self._check_archive(entry)
        for self._holds_heads in (True, False):
            entry = self._fresh()
            self._check_log(entry)
            self._check_archive(entry)
        self._holds_heads = True
        self._check_elsewhere()
        self._check_counters()
        self._world.result.seen["a status at rest is compared"] += 1

    def overtaken(self) -> None:
        """The agent can do no more: a person has to see to it."""
        for self._holds_heads in (True, False):
            if (state := self._fresh().status.state) != "needs replacement":
                raise Violation(f"S1 {self._agent.name} needs a replacement, and says {state}")
        self._holds_heads = True

    def _fresh(self) -> BoardEntry:
        """After a look at all that may have changed."""
        place = self._world.brokers.partition.topic_partition
        self.board.retain([place])
        self.board.happened([place])
        with self._aside():
            self.board.round()
        if self.board.unseen:
            raise Violation(f"S2 {self._agent.name} leaves something that it has not looked at")
        [entry] = self.board.entries()
        if entry.status.state not in STATES:
            raise Violation(f"S2 {entry.status.state!r} is no state")
        return entry

    def _check_log(self, entry: BoardEntry) -> None:
        world, status = self._world, entry.status
        replica = world.brokers.replicas[self._agent.beside]
        if replica.damaged or replica.cleaning or entry.partition is None:
            return
        if entry.partition != world.brokers.partition or status.high_watermark != replica.checkpoint:
            raise Violation(f"S3 {entry.partition} is said to be committed to {status.high_watermark}, not {replica.checkpoint}")

        if status.lag_bytes is not None and status.local_start is not None:
            end = 0 if status.last_offset is None else status.last_offset + 1
            end = max(end, status.archive_start or 0, status.local_start)
            waiting = sum(len(batch.data) for batch in replica.batches() if batch.last >= end and batch.last < replica.checkpoint)
            if status.lag_bytes != waiting:
                raise Violation(f"S4 {self._agent.name} says {status.lag_bytes} bytes wait, and {waiting} do, from {end} on")
            if (status.lag_s is not None and status.lag_s < 0) or (not waiting and status.lag_s != 0):
                raise Violation(f"S4 {waiting} bytes have waited for {status.lag_s} s")

    def _check_archive(self, entry: BoardEntry) -> None:
        status, head = entry.status, self._world.checks.heads[self._world.brokers.partition]
        may_lack = any(each.displaced_by for each in head.entries)  # what it lacks may be gone, and then it says that
        if status.state != "archived" and not (may_lack and status.state == "needs replacement"):
            raise Violation(f"S5 {self._agent.name} at rest says {status.state}: {status.reason}")
        said = status.archive_start, status.last_offset, status.lag_bytes, status.lag_s
        true = head.start_offset, head.last_offset if head.last_offset >= 0 else None, 0, 0.0
        if said != true:
            raise Violation(f"S5 {self._agent.name} at rest says {said}, and it is {true}")
        if not entry.is_sized:
            raise Violation(f"S6 {self._agent.name} does not know how much it has archived")
        assert entry.partition is not None
        size = self.board._sizes.get(entry.partition)
        if size is not None and size.extent.version < head.version:
            return  # a merge that moved no offset: its sizes are read again within READ_AGAIN_S
        live = [each for each in head.entries if not each.gap]
        page = page_of([entry], StatusQuery(partitions=True), now_s=self._world.clock.monotonic_s(), at_ms=0)
        sums = page.whole.archived_bytes, page.whole.lag_bytes, page.whole.states, status.objects
        if sums != (sum(each.live_bytes for each in live), 0, {status.state: 1}, len(live)):
            raise Violation(f"S6 {self._agent.name} says {sums}, and has archived {len(live)} objects")

    def _check_elsewhere(self) -> None:
        """Earlier incarnations of the topic, which have no log any more."""
        read = self.board.unsized()
        for partition in read:
            held = self._bucket.load(partition)
            self.board.head_read(partition, held.head if held is not None else None, asked_s=self.board.clock.monotonic_s())
        self._fresh()
        found = {entry.partition: entry for entry in self.board.elsewhere() if entry.partition is not None}
        known = dict(self._world.control.state().partitions())
        for partition in known:
            if partition != self._world.brokers.partition and partition not in found:
                raise Violation(f"S7 {partition} is archived, and not said to be")
        for partition, entry in found.items():
            head, status = self._world.checks.heads[partition], entry.status
            said = status.state, status.archive_start, (status.last_offset if status.last_offset is not None else -1), status.archived_bytes
            size = self.board._sizes.get(partition)
            is_newest_size = size is None or not size.is_known or size.extent.version == head.version  # else read again within READ_AGAIN_S
            archived_bytes = head.entries.live_bytes if is_newest_size else status.archived_bytes
            is_newest = partition in read or known[partition].manifest_version == head.version  # else nobody has announced it
            if is_newest and said != ("archive-only", head.start_offset, head.last_offset, archived_bytes):
                raise Violation(f"S7 {self._agent.name} says {said} of {partition}, which ends at {head.last_offset}")
            self._world.result.seen["an archive without a log has a status"] += 1

    def _check_counters(self) -> None:
        """No counter goes back in the life of an agent."""
        for family in self._metrics.collect():
            for sample in family.samples:
                if not sample.name.endswith(_COUNTER_SUFFIXES):
                    continue
                key = sample.name, tuple(sorted(sample.labels.items()))
                if sample.value < self._counters.get(key, 0.0):
                    raise Violation(f"S8 {key} goes back from {self._counters[key]} to {sample.value}")
                self._counters[key] = sample.value

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What a look reads of pages in the bucket is no event of the world."""
        world, store = self._world, self._agent.store
        kept = world.random.getstate(), store.faults, world.trouble.likely
        store.faults, world.trouble.likely = NO_FAULTS, 0.0
        try:
            yield
        finally:
            store.faults, world.trouble.likely = kept[1:]
            world.random.setstate(kept[0])


class LoudLog:
    """What the board logs of itself is a defect."""

    def exception(self, event: str, **about: Any) -> None:
        raise Violation(f"S2 {event}: {about}")
