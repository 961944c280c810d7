"""The API of a running agent, over its own socket and the admin port. Only the agent imports the libraries of an HTTP server."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from archival.plan.policy import Policy
from archival.schedule.scheduler import Scheduler
from headwater import __version__
from headwater.admin.archived_partitions import ArchivedPartitions
from headwater.admin.checks import Heartbeat, agent_health
from headwater.admin.fleet_watch import FleetWatch
from headwater.admin.head_reader import HeadReader
from headwater.admin.last_scrub import ScrubMemory
from headwater.admin.operations import Operations, new_operation_id
from headwater.admin.status_board import BoardSources, StatusBoard
from headwater.admin.verb_threads import VerbThreads
from headwater.admin.watermark_watch import WatermarkWatch
from headwater.agent_verbs import AgentVerbs
from headwater.drill_schedule import STOP_S as DRILL_STOP_S
from headwater.drill_schedule import DrillSchedule, open_schedule
from headwater.gateway.gateway_meter import GatewayMeter
from headwater.overrides import AgentSettings
from headwater.overview import damage_text, held_back
from headwater.session import Session
from headwater.wiring import load_head
from headwater_core.clock import SystemClock
from headwater_core.control.state import PartitionState
from headwater_core.errors import HeadwaterError
from headwater_core.objectstore.store_meter import StoreHealth
from headwater_core.partition import PartitionId, TopicPartition
from hydration.logs import Logs
from manifests.head import Head

if TYPE_CHECKING:
    from headwater.admin.status_page import ClusterFacts, Outage, PageFacts

STOP_S = 2.0  # for the board's thread, and those of scrubs and damage: a disk or a store may hang
LAST_SCRUB = "last_scrub.json"
OUTAGE_S = 5.0  # shorter ones are retries


@dataclass(slots=True)
class Vitals:
    """What the running agent shows of itself.

    listens    set while Kafka clients can connect
    board      None, as `work`, without log directories
    work       the fleet's, to be given to the scheduler
    scheduler  once it works
    scrubs    what they have found, also before the agent's start
    operations, verb_threads  what is done on request, and where
    """

    board: StatusBoard | None
    work: FleetWatch | None
    scrubs: ScrubMemory
    drills: DrillSchedule
    heartbeat: Heartbeat = field(default_factory=lambda: Heartbeat(SystemClock()))
    gateway: GatewayMeter = field(default_factory=GatewayMeter)
    listens: threading.Event = field(default_factory=threading.Event)
    scheduler: Scheduler | None = None
    operations: Operations = field(init=False)
    verb_threads: VerbThreads = field(init=False)

    def __post_init__(self) -> None:
        self.operations = Operations(SystemClock(), new_operation_id, self.scrubs.last, self.scrubs.keep)
        self.verb_threads = VerbThreads(self.operations)

    @classmethod
    def of(cls, session: Session, logs: Logs) -> "Vitals":
        fleet, clock, scrubs = session.fleet, SystemClock(), ScrubMemory(session.config.node.data_dir / LAST_SCRUB)
        drills = open_schedule(session.config, clock)
        if fleet is None:
            return cls(None, None, scrubs, drills)

        def policy(place: TopicPartition) -> Policy:
            settings = Policy.of(session.live.archival_for(place.topic))
            return session.pauses.applied(place, settings) if session.pauses.is_known else settings

        def offsets(partition: PartitionId) -> PartitionState | None:
            return session.control.state().partition(partition)

        archived = ArchivedPartitions(session.control.state, lambda: logs.archived)
        board = StatusBoard(BoardSources.of(fleet, offsets, policy, archived.now), clock)
        fleet.stepped = lambda done: board.stepped(done.place, done.reason)
        return cls(board, FleetWatch(fleet, session.config.log.dirs, board, clock), scrubs, drills)

    def reconsider(self) -> None:
        """What may be archived has changed."""
        if self.scheduler is not None:
            self.scheduler.reconsider()
        if self.board is not None:
            self.board.reconsider()

    def committed(self, head: Head) -> None:
        if self.board is not None:
            self.board.committed(head)


def page_facts(session: Session, logs: Logs, vitals: Vitals) -> "PageFacts":
    """What a page of the status rests on, beside the board."""
    from headwater.admin.status_page import PageFacts

    probe_in_s = vitals.scheduler.probe_in_s() if vitals.scheduler is not None else None
    try_ms = None if probe_in_s is None else SystemClock().now_ms() + round(probe_in_s * 1000)
    return PageFacts(
        has_log_directories=vitals.board is not None,
        listed=vitals.board is not None and vitals.board.is_listed,
        unseen=vitals.board.unseen if vitals.board is not None else 0,
        cached_bytes=logs.hydrator.cache.folder_bytes,
        store_try_ms=try_ms,
        held_back=held_back(try_ms) if try_ms is not None else "",
        store_failing_s=session.bucket.meter.health().failing_s,
        outages=outages(session.bucket.meter.health(), session.broker.outage() if session.broker is not None else None),
        disk_full_in_s=session.fleet.disk_full_in_s() if session.fleet is not None else None,
        collection_troubles=session.fleet.collection_troubles.copy() if session.fleet is not None else {},
        damage={folder: damage_text(keys) for folder, keys in logs.hydrator.damaged().items()},
        damaged_topics={topic: str(error) for topic, error in logs.lost.items()},
        last_drill=vitals.drills.last,
        cluster=_cluster_facts(session),
    )


def outages(store: StoreHealth, broker: tuple[float, str] | None) -> "list[Outage]":
    """Return what has not answered for OUTAGE_S. broker: for how many seconds it has not, and why"""
    from headwater.admin.status_page import Outage

    found = [("store", store.failing_s, store.reason), *((("broker", *broker),) if broker is not None else ())]
    now_ms = SystemClock().now_ms()
    return [
        Outage(what=what, since_ms=now_ms - round(failing_s * 1000), reason=reason)
        for what, failing_s, reason in found
        if failing_s >= OUTAGE_S
    ]


def _cluster_facts(session: Session) -> "ClusterFacts | None":
    if session.cluster is None or not session.config.cluster.snapshots:
        return None
    tally, lag_s = session.cluster.tally, session.cluster.lag_s()
    if tally.newest is None and not tally.failure:
        return None
    from headwater.admin.status_page import ClusterFacts

    return ClusterFacts(
        number=tally.newest.number if tally.newest is not None else None,
        taken_ms=tally.newest.taken_ms if tally.newest is not None else None,
        lag_s=round(lag_s, 3),
        failure=tally.failure,
        failed_ms=tally.failed_ms if tally.failure else None,
    )


@contextmanager
def open_admin_port(session: Session, logs: Logs, vitals: Vitals) -> Iterator[None]:
    """For the time of a block; over TCP unless that is switched off. What a command has written to the bucket because nothing listened yet
    is read after that. Raises UsageError when a configured address, token or certificate
    cannot be used. The default address, while another process has it, must not keep an agent from archiving: it is tried again.
    """
    config = session.config.admin
    from headwater.admin.admin_routes import admin_app
    from headwater.admin.admin_server import AdminServer
    from headwater.admin.metrics import Metrics, MetricSources
    from headwater.admin.operation_routes import OperationRoutes
    from headwater.admin.topic_page import TopicRules, TopicSources

    fleet, live, pauses = session.fleet, session.live, session.pauses
    topics = TopicSources(
        lambda topic: TopicRules.of(live.archival_for(topic), live.now.hydration_for(topic), live.now.gateway_for(topic)),
        lambda: pauses.now() if pauses.is_known else None,
    )

    def failure(place: TopicPartition) -> HeadwaterError | None:
        found = fleet.failures.get(place) if fleet is not None else None
        return found.error if found is not None else None

    health = agent_health(
        vitals.heartbeat,
        gateway_listens=vitals.listens.is_set,
        store=session.bucket.meter,
        fleet=vitals.work,
        rescan_s=lambda: session.live.archival().rescan_s,
        damaged=logs.hydrator.damaged,
        unreached=(lambda: vitals.gateway.upstream_failing) if session.config.gateway.upstream else None,
    )
    metrics = Metrics(
        MetricSources(
            version=__version__,
            health=health,
            store=session.bucket.meter,
            gateway=vitals.gateway,
            hydrator=logs.hydrator,
            control=session.control.health,
            operations=vitals.operations.tally,
            board=vitals.board,
            load=lambda: vitals.scheduler.load() if vitals.scheduler is not None else None,
            failure=failure,
            defects=lambda: fleet.unexpected if fleet is not None else 0,
            pool=fleet.pool if fleet is not None else None,
            partitions=config.partition_metrics,
            buffer=fleet.offload_buffer if fleet is not None else None,
            snapshots=lambda: session.cluster.tally if session.cluster is not None else None,
            snapshot_lag_s=lambda: session.cluster.lag_s() if session.cluster is not None else 0.0,
            drill=lambda: vitals.drills.last,
        ),
        SystemClock().monotonic_s,
    )
    verbs = AgentVerbs(session, lambda: vitals.scheduler, logs.hydrator.damaged)
    operations = OperationRoutes(vitals.operations, vitals.verb_threads, verbs.all())
    app = admin_app(
        health,
        metrics,
        vitals.board,
        operations,
        SystemClock(),
        __version__,
        partial(page_facts, session, logs, vitals),
        topics,
        verbs.offload() if fleet is not None else None,
        vitals.gateway.clients,
    )
    conflict = AgentSettings(lambda: live.now).conflict
    is_default = "admin.listen" not in session.config.origins
    server = AdminServer(config, app, session.config.node.data_dir, conflict, patient=is_default)
    damage = logs.hydrator.damage
    with (
        server,
        _running("last-scrub", vitals.scrubs.run, vitals.scrubs.wake),
        _running("damage", damage.run, damage.wake),
        _running("damage-rechecks", partial(damage.run_rechecks, logs.recheck_damage)),
        _drilled(vitals.drills),
        _kept(vitals.board, session),
    ):
        for shared in (session.pauses, session.settings):
            shared.expire()
        yield


@contextmanager
def _running(name: str, run: Callable[[threading.Event], object], wake: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Have `run` work in a thread for the time of the block. wake: ends what it waits for, where that is not its event"""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        wake()
        thread.join(STOP_S)


@contextmanager
def _drilled(drills: DrillSchedule) -> Iterator[None]:
    """By schedule, for the time of the block; a drill that runs at its end is interrupted."""
    stop = threading.Event()
    thread = threading.Thread(target=drills.run, args=(stop,), name="drills", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(STOP_S + DRILL_STOP_S)


@contextmanager
def _kept(board: StatusBoard | None, session: Session) -> Iterator[None]:
    """Up to date, for the time of the block. What a store or a broker holds up is not waited for at its end."""
    if board is None or session.fleet is None:
        yield
        return
    stop = threading.Event()
    heads = HeadReader(board, partial(load_head, session.bucket))
    broker = session.fleet.broker_logs
    works = [("status-heads", heads.run)]
    works += [("status-broker", WatermarkWatch(board, broker, SystemClock()).run)] if broker is not None else []
    thread = threading.Thread(target=board.run, args=(stop,), name="status-board", daemon=True)
    for each in (thread, *(threading.Thread(target=run, args=(stop,), name=name, daemon=True) for name, run in works)):
        each.start()
    try:
        yield
    finally:
        stop.set()
        board.wake()
        thread.join(STOP_S)
