"""All that is open while a process archives: lock, control node, bucket, archivers. For the agent and for one-shot passes."""

import shutil
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog

from archival.archive_pass import archive_all
from archival.cluster_archiver import ClusterArchiver, ClusterArchiverEquipment
from archival.config import ArchivalConfig
from archival.control_rebuild import rebuild_control_if_needed
from archival.fleet import ArchiverFleet, FleetEquipment, PartitionOutcome
from archival.known_pauses import KnownPauses
from archival.plan.policy import Policy
from archival.schedule.store_breaker import heard
from headwater.agent_api import AgentApi, NoAgent
from headwater.command_operation import begin_operation
from headwater.config import Config
from headwater.known_settings import KnownSettings
from headwater.live_config import LiveConfig
from headwater.options import parse_selection
from headwater.store_identity import Gate, check_belongs, read_identity, settle
from headwater.topic_downloads import TopicDownloads
from headwater.trigger_check import check_triggers, differ
from headwater.wiring import Bucket, check_conditional_writes, open_broker, open_bucket, open_log_dirs, requests_release, writer_id
from headwater_core.clock import SystemClock
from headwater_core.control.lock import DataDirLock
from headwater_core.control.supervisor import ControlSupervisor
from headwater_core.counts import count_text
from headwater_core.errors import (
    DataDirFull,
    DiskFull,
    HeadwaterError,
    Locked,
    NotFound,
    Partial,
    StoreGone,
    TransientError,
    Unauthorised,
    UsageError,
)
from headwater_core.objectstore.guard import GuardedStore
from headwater_core.partition import TopicPartition
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.threads import DaemonThreads
from manifests.known_document import KnownDocument
from manifests.repository import ManifestRepository

if TYPE_CHECKING:
    from headwater.broker.broker_client import BrokerClient

log = structlog.get_logger()

STORE_WAIT_S = 2.0  # when an agent starts; then it serves what is local
_CONTROL_WAIT_S = 2.0  # a single node needs a twentieth of it; nothing depends on it
_REBUILD_EVERY_S = 30.0
RUNS_MAX = 16  # small segments that one commit lists: most of what they cost by themselves is saved by then
_UNARCHIVED = "the cluster's metadata (users, ACLs, settings, topics) could not be archived"
REBUILD_STOP_S = 2.0  # what the agent's end waits for one that a silent store holds up
STREAMS_STOP_S = 10.0  # likewise, for the objects that are open
NAMED_MAX = 10  # of partitions in one event


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRequest:
    """One pass, as a one-shot command requests it.

    tail_older_than_s  also archive committed records of active segments that have waited this long; None: sealed segments only
    before             only segments whose offsets are all below this one; None: all
    """

    selection: str | None = None
    tail_older_than_s: float | None = None
    before: int | None = None

    def policy(self, settings: ArchivalConfig) -> Policy:
        tail_ms = None if self.tail_older_than_s is None else int(self.tail_older_than_s * 1000)
        return replace(Policy.of(settings, requested=True), tail_after_ms=tail_ms, end=self.before)

    def wants(self, place: TopicPartition) -> bool:
        if self.selection is None:
            return True
        topic, partition = parse_selection(self.selection)
        return place.topic == topic and partition in (None, place.partition)


@dataclass(frozen=True, slots=True)
class Session:
    """What is open while the lock is held.

    live       `config`, with what has been changed since
    bucket     for reading. Like the one for archiving, it works only with the store that the data directory belongs to
    fleet      None without log directories
    pauses     what is not to be archived for a while
    settings   what was set by command
    dirs       None as `fleet`
    cluster    archives the cluster's metadata; None as `fleet`, and where no broker is beside us
    downloads  the topics to be downloaded from the archive; None as `fleet`
    broker     the one beside us; None where none is named
    """

    config: Config
    live: LiveConfig
    bucket: Bucket
    control: ControlSupervisor
    fleet: ArchiverFleet | None
    pauses: KnownPauses
    settings: KnownSettings
    dirs: LogDirs | None
    cluster: ClusterArchiver | None = None
    downloads: TopicDownloads | None = None
    broker: "BrokerClient | None" = None

    @property
    def archivers(self) -> ArchiverFleet:
        """`fleet`. Raises UsageError without one."""
        if self.fleet is None:
            raise UsageError("this agent has no log directories")
        return self.fleet


@contextmanager
def open_session(config: Config, *, patient: bool = False, reload: Callable[[], Config] | None = None) -> Iterator[Session]:
    """Lock the data directory and open everything that an archiver needs.

    reload   see LiveConfig
    patient  continue if the store cannot be reached soon: nothing is archived or released before it answers and has been checked

    Raises Locked when another process has the data directory, WrongStore and StoreGone for another store than it belongs to, and,
    unless `patient`, what the store raises.
    """
    with ExitStack() as stack:
        live = LiveConfig(config, reload)
        stack.enter_context(DataDirLock(config.node.data_dir))
        _check_private(config.node.data_dir)
        dirs = open_log_dirs(config) if config.log.dirs else None
        if dirs is not None:
            listing = dirs.listing()  # raises errors of the directories as a whole
            if not listing.unread and dirs.metadata() is None and not config.log.owned:
                log.warning(
                    "leadership_unknown",
                    reason="no log directory holds the broker's metadata log: the agents of all its replicas archive each partition in "
                    "turn, and neither the topics' settings nor their partition counts are recorded, which a recovery then asks for. Set "
                    "log.metadata_dir to the broker's metadata.log.dir",
                )
        broker = open_broker(config, dirs) if dirs is not None else None
        if dirs is not None and broker is None and not config.log.owned and requests_release(config):
            log.warning("release_not_possible", reason="release = true needs log.bootstrap_servers: a broker deletes its records itself")
        if broker is not None:
            stack.callback(broker.close)
        bucket = open_bucket(config)
        control = ControlSupervisor(config.node.data_dir, config.control, clock=SystemClock())
        stack.callback(control.close)
        control.ready(_CONTROL_WAIT_S)
        control.start()
        check = partial(_check_store, config, bucket, control, dirs, patient=patient)
        again = partial(check_belongs, bucket.manifests, url=bucket.store.url, data_dir=config.node.data_dir)
        gate = Gate(check, SystemClock(), again=again, opened=partial(log.info, "store_available", url=bucket.store.url))
        if patient:
            _open_patiently(gate)
        else:
            gate.open()
        readable = GuardedStore(bucket.store, Gate(partial(_check_to_read, config, bucket), SystemClock(), again=again).passing)
        guarded = GuardedStore(GuardedStore(bucket.store, gate.passing), heard)
        writable = Bucket(guarded, ManifestRepository(guarded))
        stack.enter_context(_rebuilding(writable.manifests, control, again=patient))
        pauses = KnownPauses(writable.manifests, SystemClock())
        settings = KnownSettings(writable.manifests, SystemClock(), live, config.node.data_dir)
        if patient:
            stack.enter_context(_following(pauses, lambda: control.state().pauses_version, partial(log.exception, "pauses_not_followed")))
            _look_patiently(settings)
            stack.enter_context(
                _following(settings, lambda: control.state().settings_version, partial(log.exception, "settings_not_followed"))
            )
        else:
            settings.look(0)
        fleet = (
            ArchiverFleet(
                FleetEquipment(
                    dirs=dirs,
                    store=writable.store,
                    repository=writable.manifests,
                    control=control,
                    settings_for=live.archival_for,
                    settings=live.archival,
                    data_dir=config.node.data_dir,
                    owned=config.log.owned,
                    writer=writer_id(config),
                    clock=SystemClock(),
                    owner=again,
                    runs_max=RUNS_MAX,
                    broker=broker,
                    pauses=pauses,
                    look_at_settings=settings.look_before_work,
                    free_bytes=lambda: [shutil.disk_usage(each).free for each in config.log.dirs],
                )
            )
            if dirs is not None
            else None
        )
        if fleet is not None:
            fleet.announcer.start()
            stack.callback(fleet.announcer.close)
            stack.callback(_end_streams, fleet)
        if dirs is not None:
            live.check = partial(_check_triggers, dirs)
        cluster = _cluster_archiver(config, dirs, writable) if dirs is not None and not config.log.owned else None
        downloads = TopicDownloads(live, dirs, writable, control, SystemClock()) if dirs is not None else None
        readers = Bucket(readable, ManifestRepository(readable), bucket.meter)
        yield Session(config, live, readers, control, fleet, pauses, settings, dirs, cluster, downloads, broker)


def _check_private(data_dir: Path) -> None:
    """Warn of a directory that existed before with rights for others: what the agent makes itself is its user's alone."""
    if others := data_dir.stat().st_mode & 0o077:
        log.warning(
            "data_directory_shared",
            path=str(data_dir),
            reason=f"other users have rights in it (mode bits {others:03o}): they can read what is archived, or replace the agent's state; "
            f"chmod 700 {data_dir}",
        )


def _end_streams(fleet: ArchiverFleet) -> None:
    """What is open is no use to another process: without this it would stay in the store, unfinished, until it is collected."""
    if left := fleet.end_streams(STREAMS_STOP_S):
        log.warning(
            "uploads_left_unfinished",
            partitions=[str(each) for each in left[:NAMED_MAX]],
            reason=f"the store did not drop within {STREAMS_STOP_S:g} s what was sent of the open objects of {len(left)} partitions",
        )


def _check_triggers(dirs: LogDirs, before: Config, after: Config) -> None:
    """Raises UsageError for a trigger that is new and too late."""
    check_triggers(after, dirs, differ(before, after)).raise_refused()


def _cluster_archiver(config: Config, dirs: LogDirs, bucket: Bucket) -> ClusterArchiver:
    return ClusterArchiver(
        ClusterArchiverEquipment(
            metadata=dirs.metadata,
            store=bucket.store,
            repository=bucket.manifests,
            cluster_id=lambda: dirs.cluster_id,
            writer=writer_id(config),
            clock=SystemClock(),
            new_uid=lambda: uuid4().hex,
            settings=lambda: config.cluster,
        )
    )


def _open_patiently(gate: Gate) -> None:
    """Wait a moment for the check of the store, which continues by itself: a store may be silent for minutes before a request fails."""
    threads = DaemonThreads(1, "first-check")
    checking = threads.submit(_open_or_report, gate)
    threads.shutdown(wait=False)
    if wait((checking,), STORE_WAIT_S).done:
        checking.result()


def _open_or_report(gate: Gate) -> None:
    try:
        gate.open()
    except DataDirFull as error:
        log.error("data_directory_full", reason=str(error), consequence="nothing is archived or released until there is room")
    except (TransientError, Unauthorised, StoreGone, DiskFull) as error:
        (log.warning if isinstance(error, TransientError) else log.error)(
            "store_unavailable", reason=str(error), consequence="nothing is archived or released until it answers"
        )


def _check_store(config: Config, bucket: Bucket, control: ControlSupervisor, dirs: LogDirs | None, *, patient: bool) -> None:
    """Raises why this store must not be archived to, or what the store raises; then nothing has been written."""
    if dirs is None:
        check_belongs(bucket.manifests, url=bucket.store.url, data_dir=config.node.data_dir)
        return
    settle(
        bucket.manifests,
        url=bucket.store.url,
        data_dir=config.node.data_dir,
        cluster_id=dirs.cluster_id,
        fresh_id=uuid4().hex,
        remembered=bool(control.state().clusters.get(dirs.cluster_id)),
        before_writing=partial(_check_conditions, config, bucket, patient=patient),
    )


def _check_conditions(config: Config, bucket: Bucket, *, patient: bool) -> None:
    """Raises UsageError for a store without conditional writes.

    patient  TransientError where this data directory has archived before: the agent does not end, and serves what is local
    """
    try:
        check_conditional_writes(config, bucket)
    except UsageError as error:
        if not patient or read_identity(config.node.data_dir) is None:
            raise
        raise TransientError(f"{error}. This is tried again") from error


def _check_to_read(config: Config, bucket: Bucket) -> None:
    """Raises TransientError for an archive that is not mounted: readers must not take it for an empty one."""
    try:
        check_belongs(bucket.manifests, url=bucket.store.url, data_dir=config.node.data_dir)
    except StoreGone as error:
        raise TransientError(str(error)) from error


@contextmanager
def _rebuilding(manifests: ManifestRepository, control: ControlSupervisor, *, again: bool) -> Iterator[None]:
    """In a thread, fill a control log whose files were missing or damaged from the bucket.

    again  repeat until the block ends, which waits a moment for the last one; else one attempt, for whose end the block's end waits
    """
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                rebuild_control_if_needed(manifests, control, over=stop.is_set)
            except Exception as error:  # of any kind: nothing depends on the control log
                log.warning("rebuild_postponed", reason=str(error) or repr(error))
            if not again:
                return
            stop.wait(_REBUILD_EVERY_S)

    thread = threading.Thread(target=work, name="control-rebuild", daemon=True)
    thread.start()
    try:
        yield
        if again:
            stop.set()
    except BaseException:
        stop.set()
        raise
    finally:
        thread.join(REBUILD_STOP_S if again else None)


def _look_patiently(settings: KnownSettings) -> None:
    """Before anything is read by them. A silent store is waited for a moment: what was known before holds until it answers."""
    threads = DaemonThreads(1, "first-settings")
    looking = threads.submit(settings.look, 0)
    threads.shutdown(wait=False)
    wait((looking,), STORE_WAIT_S)


@contextmanager
def _following(document: KnownDocument[Any], announced_version: Callable[[], int], failed: Callable[[], object]) -> Iterator[None]:
    """In a thread, keep up with what others pause or set. A silent store may hold it up, and must not hold up the end of the block."""
    stop = threading.Event()

    def work() -> None:
        try:
            document.follow(stop, announced_version)
        except Exception:
            failed()

    threading.Thread(target=work, name="following", daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def run_pass(config: Config, request: PassRequest, on_row: Callable[[dict[str, Any]], None]) -> None:
    """One pass in this process, or by the agent that holds the data directory.

    on_row  called with each partition that is done

    Raises Partial when some partitions could not be archived, and their error when none could.
    """
    path, body = "/v1/archive", dict[str, Any](selection=request.selection, before=request.before)
    if request.tail_older_than_s is not None:
        path, body = "/v1/flush", dict[str, Any](selection=request.selection, older_than_s=request.tail_older_than_s)
    for each in rows_of_the_holder(config, path, body, lambda session: session_rows(session, request)):
        on_row(each)


def rows_of_the_holder(
    config: Config, path: str, body: Mapping[str, Any], rows: Callable[[Session], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """`rows` of a session of this process; where a running agent holds the data directory, those of its API at `path`.

    Raises Locked when something else holds it.
    """
    operation_id = begin_operation()
    open_log_dirs(config)
    try:
        with open_session(config) as session:
            yield from rows(session)
    except Locked:
        try:
            yield from AgentApi.of(config).rows(path, body, operation_id=operation_id)
        except NoAgent:
            pass
        else:
            return
        raise


def session_rows(
    session: Session, request: PassRequest, stop: threading.Event | None = None, planned: Callable[[int], object] = lambda _: None
) -> Generator[dict[str, Any]]:
    """`pass_rows`, after a snapshot of the cluster's metadata where all is to be archived. Raises Partial, too, when that failed."""
    fleet = session.archivers
    failure = None
    if request.selection is None and session.cluster is not None:
        failure = session.cluster.attempt(requested=True)
    try:
        yield from pass_rows(fleet, request, stop, planned)
    except Partial as error:
        raise error if failure is None else Partial(f"{error}; {_UNARCHIVED}: {failure}") from error
    if failure is not None:
        raise Partial(f"{_UNARCHIVED}: {failure}") from failure


def pass_rows(
    fleet: ArchiverFleet, request: PassRequest, stop: threading.Event | None = None, planned: Callable[[int], object] = lambda _: None
) -> Generator[dict[str, Any]]:
    """Rows of one pass; `planned` is called with their number. At the end raises the error of the pass as a whole, if there is one.
    `stop` ends it early: TransientError."""
    failed: list[PartitionOutcome] = []
    count = 0
    for outcome in archive_all(fleet, request.policy, wanted=request.wants, stop=stop, planned=planned):
        count += 1
        if outcome.error:
            failed.append(outcome)
        yield row(outcome)
    if stop is not None and stop.is_set():
        raise TransientError("the pass was stopped before its end; the next one continues")
    if request.selection and not count:
        raise NotFound(f"{request.selection} is not in the log directories")
    if failed:
        raise _summary(failed, count)


def row(outcome: PartitionOutcome) -> dict[str, Any]:
    return {
        "topic": outcome.place.topic,
        "partition": outcome.place.partition,
        "objects": outcome.objects,
        "archived_bytes": outcome.archived_bytes,
        "released_bytes": outcome.released_bytes,
        "last_offset": outcome.last_offset,
        "elapsed_s": outcome.elapsed_s,
        "reason": outcome.reason,
        "error": str(outcome.error) if outcome.error else None,
    }


def _summary(failed: list[PartitionOutcome], count: int) -> HeadwaterError:
    first = failed[0]
    assert first.error is not None
    if len(failed) == count and len({type(each.error) for each in failed}) == 1:
        return first.error
    return Partial(f"{len(failed)} of {count_text(count, 'partition')} could not be archived; {first.place}: {first.error}")
