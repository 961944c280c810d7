"""A recovery from beginning to end: begun once, resumed after any interruption, reported."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from headwater_core import milestones
from headwater_core.clock import Clock, SystemClock
from headwater_core.control.control_log import ControlLog
from headwater_core.control.control_records import Record, RecoveryFinished, RecoveryStarted
from headwater_core.counts import count_text
from headwater_core.errors import TransientError, UsageError, VerificationFailed
from headwater_core.files import disk_errors
from headwater_core.objectstore.store import ObjectStore
from manifests.repository import ManifestRepository
from recovery.cluster_state import fetch_snapshot, write_copy
from recovery.completion import check_contents, is_finished
from recovery.identity import new_kafka_id
from recovery.layout import identity_files
from recovery.placement import Placement, Progress, damage_text
from recovery.planner import without
from recovery.recovery_plan import RecoveryPlan, Request, check_plan
from recovery.report import RecoveryReport, report_of
from recovery.revision import changes_since, settled
from recovery.target import Mark, check_same, check_unused, locked, read_mark, write_mark
from recovery.target_record import record_target, record_verified

MILESTONES = (
    "recover.locked",
    "recover.recorded",
    "recover.marked",
    "recover.directories",
    "recover.fetched",
    "recover.placed",
    "recover.indexed",
    "recover.segments",
    "recover.partitions",
    "recover.checkpoints",
    "recover.bootstrap",
    "recover.verified",
    "recover.claimed",
    "recover.identity",
    "recover.finished",
)
"""The milestones of a recovery, in order; one into a running cluster has "recover.created" before it is recorded."""

CreateTopics = Callable[[RecoveryPlan], RecoveryPlan]
"""Creates the topics of a plan in the running cluster, and returns the plan with their ids."""

WORKERS = 4  # downloads at a time; each holds runs.PIECE_BYTES

_log = structlog.get_logger()


def begun_plan(into: Path, request: Request) -> RecoveryPlan | None:
    """The plan of the recovery that was begun in `into` by this `request`, when no other plan is the same by now: the archive may be the
    recovered cluster's, and its topics in the running cluster. None: there is none."""
    mark = read_mark(into) if request.options.take_over or request.options.running else None
    return mark.plan if mark is not None and mark.plan.request == request else None


def apply(
    plan: RecoveryPlan,
    into: Path,
    store: ObjectStore,
    *,
    clock: Clock | None = None,
    control: ControlLog | None = None,
    progress: Progress | None = None,
    workers: int = WORKERS,
    skip_damaged: bool = False,
    recorded: bool = True,
    unchanged: bool = False,
    create: CreateTopics | None = None,
    moved: bool = False,
    host: str | None = None,
    new_id: Callable[[], str] = new_kafka_id,
) -> RecoveryReport:
    """Make `into` a log directory with everything in `plan`, on which a broker can be started.

    May be repeated after any interruption: what is in place is verified and kept, and the plan that was begun there is
    the one that is finished, but for partitions of which the archive has replaced something that is missing since: those are planned
    again as they are now. A finished directory is not touched again.

    skip_damaged  what is missing or damaged in the bucket is left out, and the plan in the directory says so from then on
    recorded      the bucket says that this plan is applied here, and to no other directory
    unchanged     begin only while the archive is as it was planned from, go on only with that very plan, and call a directory finished only
                  when every byte in it is as it was left, until a broker starts there
    create        of a recovery into a running cluster: creates its topics there
    moved         what was begun here was begun elsewhere, and is moved, or copied: it is continued here, and nowhere else from then on
    host          the name of this machine; None: as it calls itself
    new_id        makes up the id of the directory, once; whatever continues there has the same one

    Raises UsageError when the plan has problems, was applied elsewhere, or the directory holds something; ForeignOwner when
    it holds another recovery; DiskFull and TransientError when the same call may succeed later; VerificationFailed when
    objects are not what the archive says, all of which it names, or the directory is not, in the end, what was planned.
    """
    clock, host = clock or SystemClock(), host or socket.gethostname()
    with locked(into):
        milestones.reached("recover.locked")
        mark = read_mark(into)
        resumed = mark is not None
        if mark is None:
            more = {"skip_damaged": skip_damaged, "recorded": recorded, "unchanged": unchanged}
            mark = _begin(plan, into, store, clock, control, create, host, new_id, **more)
        check_same(into, mark, plan, exact=unchanged)
        milestones.reached("recover.marked")
        again = is_finished(into, mark)
        if unchanged or not again:
            check_contents(into, mark, finished=again)
        if not again and recorded and resumed:
            moved_as, was = new_id() if moved else None, mark.directory_id
            record = record_target(store, mark.plan, into, was, host=host, started_ms=mark.started_ms, moved_as=moved_as)
            mark = _renamed(into, mark, record.directory_id)
        recovery_id = mark.plan.recovery_id
        _announce(control, RecoveryStarted(recovery_id=recovery_id, at_ms=mark.started_ms, summary=_summary(mark.plan, into)))
        if not again:
            _log.info("recovery_started", recovery_id=recovery_id, into=str(into), size_bytes=mark.plan.size_bytes, resumed=resumed)
            claim = _claim(mark, into, store, clock, host) if recorded else lambda: None
            mark = Placement(mark, into, store, progress or (lambda size_bytes: None), workers).run(skip_damaged=skip_damaged, claim=claim)
        if mark.finished_ms is None:
            mark = write_mark(into, replace(mark, finished_ms=clock.now_ms()))
            milestones.reached("recover.finished")
            _log.info("recovery_finished", recovery_id=recovery_id, into=str(into), records=mark.plan.records)
        _announce(control, RecoveryFinished(recovery_id=recovery_id, at_ms=mark.finished_ms or 0, outcome=f"finished in {into}"[:1000]))
        return report_of(into, mark, resumed=resumed and not again, again=again)


def _begin(
    plan: RecoveryPlan,
    into: Path,
    store: ObjectStore,
    clock: Clock,
    control: ControlLog | None,
    create: CreateTopics | None,
    host: str,
    new_id: Callable[[], str],
    *,
    skip_damaged: bool,
    recorded: bool,
    unchanged: bool,
) -> Mark:
    check_unused(into)
    check_plan(plan)
    if plan.problems:
        raise UsageError("the plan cannot be applied: " + "; ".join(plan.problems))
    if unchanged and (changed := changes_since(plan, ManifestRepository(store))):
        raise UsageError(f"the archive has changed since the plan was made, nothing was fetched; make a new one: {'; '.join(changed)}")
    if plan.holes and not skip_damaged:
        raise VerificationFailed(damage_text(plan.holes, "nothing was fetched"))
    known = control.state().recoveries.get(plan.recovery_id) if control else None
    if known is not None and known.finished_ms is not None:
        raise UsageError(f"this plan has been applied ({known.outcome}); make a new one to recover again")
    if plan.holes:
        plan = settled(without(plan, plan.holes), ManifestRepository(store), lambda _: (), clock.now_ms())
    snapshot = None if plan.cluster is None else fetch_snapshot(plan.cluster, store)  # before anything is begun: it may have expired
    if plan.running is not None:
        if create is None:
            raise UsageError("a recovery into a running cluster needs its brokers: --bootstrap-servers, or log.bootstrap_servers")
        plan = check_plan(create(plan))
        milestones.reached("recover.created")
    directory_id, started_ms = new_id(), clock.now_ms()
    if recorded:
        record = record_target(store, plan, into, directory_id, host=host, started_ms=started_ms)
        directory_id, started_ms = record.directory_id, record.started_ms
    milestones.reached("recover.recorded")
    if plan.cluster is not None and snapshot is not None:
        write_copy(plan.cluster, into, snapshot)
    return write_mark(into, Mark(plan, "", directory_id, started_ms))


def _renamed(into: Path, mark: Mark, directory_id: str) -> Mark:
    """The mark of what has another directory id from now on. What says the former one goes first."""
    if directory_id == mark.directory_id:
        return mark
    for name in identity_files(mark.plan, mark.directory_id):
        with disk_errors(into / name):
            (into / name).unlink(missing_ok=True)
    return write_mark(into, replace(mark, directory_id=directory_id))


def _claim(mark: Mark, into: Path, store: ObjectStore, clock: Clock, host: str) -> Callable[[], None]:
    """Says in the bucket that the directory becomes a broker's, before it does: a copy that was moved meanwhile has it instead."""

    def claim() -> None:
        record_verified(store, mark.plan, into, mark.directory_id, host=host, now_ms=clock.now_ms())

    return claim


def _announce(control: ControlLog | None, record: Record) -> None:
    """The control log informs other agents; a recovery from nothing but the bucket does not wait for it."""
    if control is None:
        return
    try:
        control.publish(record)
    except TransientError as error:
        _log.warning("recovery_not_announced", reason=str(error))


def _summary(plan: RecoveryPlan, into: Path) -> str:
    return f"{count_text(len(plan.topics), 'topic')} of cluster {plan.source_cluster_id} into {into}"[:1000]
