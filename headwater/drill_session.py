"""A drill as a command or the agent's schedule does it: opened by the configuration, carried out, and reported whatever comes of it."""

import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import structlog
from msgspec.structs import replace

from headwater import __version__
from headwater.config import Config
from headwater.drill.config import DrillConfig, parse_share
from headwater.drill.drill_report import DrillOutcome, DrillReport, DrillRequest
from headwater.drill.drill_run import Prepared, carry_out, prepare
from headwater.drill.equipment import DrillEquipment, LiveLogs, OpenSpare
from headwater.drill.report_store import ReportStore
from headwater.drill.scratch import Scratch, open_scratch
from headwater.drill_text import store_report
from headwater.wiring import open_bucket
from headwater_core import milestones
from headwater_core.clock import SystemClock
from headwater_core.counts import count_text
from headwater_core.errors import (
    CorruptData,
    HeadwaterError,
    Locked,
    NothingExamined,
    Partial,
    StoreGone,
    TransientError,
    UsageError,
    VerificationFailed,
)
from headwater_core.objectstore.store import ObjectStore
from headwater_core.redaction import redact

log = structlog.get_logger()


class Shown(Protocol):
    """Where progress goes."""

    def __call__(self, prepared: Prepared) -> AbstractContextManager[Callable[[int], object]]: ...


@dataclass(frozen=True, slots=True)
class DrillDone:
    """The report, where its JSON lies, and its text, which lies beside it with .txt for .json."""

    report: DrillReport
    path: Path
    text: str

    def verdict(self) -> HeadwaterError | None:
        """What a command ends with."""
        report, where = self.report, f"the report is {self.path}"
        if report.outcome is DrillOutcome.FAILED:
            named = "".join(f"\n  {each}" for each in report.findings[:20])
            more = f"\n  and {report.finding_count - 20} more" if report.finding_count > 20 else ""
            return VerificationFailed(f"the drill failed with {count_text(report.finding_count, 'finding')}; {where}:{named}{more}")
        if report.outcome is DrillOutcome.UNFINISHED:
            return TransientError(f"the drill could not be carried out: {report.error}; {where}")
        if report.outcome is DrillOutcome.NOTHING:
            return NothingExamined(f"the drill compared nothing, which proves nothing; {where}")
        if report.outcome is DrillOutcome.INCOMPLETE:
            whys = [f"a recovery leaves out: {'; '.join(report.left_out[:5])}"] if report.left_out else []
            whys += [f"a transaction comes back in part: {'; '.join(report.torn[:5])}"] if report.torn else []
            return Partial(f"what was drawn and compared came back, and {'; '.join([*whys, *report.unmet[:5]])}; {where}")
        return None


def configured_request(drill: DrillConfig, *, by: str) -> DrillRequest:
    """What the configuration says. Another seed each time."""
    return DrillRequest(
        topics=drill.topics or None,
        cluster=drill.cluster,
        share=parse_share(drill.sample),
        seed=secrets.randbits(32),
        scratch_bytes=drill.scratch_bytes,
        by=by,
    )


def do_drill(
    config: Config,
    request: DrillRequest,
    drill_id: str,
    *,
    keep: bool = False,
    shown: Shown = lambda _: nullcontext(lambda _: None),
) -> DrillDone:
    """Carry out one drill and keep its report.

    keep  the scratch directory stays, until somebody deletes it

    Raises UsageError and Locked when there was nothing to report; what has kept it from being carried out otherwise, which the report in
    the data directory says, too: TransientError where that was this machine, or a store that is gone.
    """
    reports, clock = ReportStore(config.node.data_dir, config.drill.kept_reports), SystemClock()
    started_ms = clock.now_ms()
    try:
        equipment = _equipment(config, open_bucket(config).store, live=request.live)
        with open_scratch(config.drill.directory or reports.directory, drill_id, list(_foreign(config))) as scratch:
            prepared = prepare(equipment, request, drill_id)
            with shown(prepared) as progressed:
                report = carry_out(equipment, prepared, scratch, progressed)
            if keep or report.outcome is DrillOutcome.FAILED:
                report = _kept(report, scratch, "request" if keep else "failure")
    except Exception as error:  # of any kind: a drill that was begun leaves a report
        if isinstance(error, UsageError | Locked) and not isinstance(error, StoreGone):
            raise
        store_report(reports, _unfinished(redact(config.store.url), request, drill_id, started_ms, clock.now_ms(), error))
        if isinstance(error, MemoryError | OSError | StoreGone):
            raise TransientError(f"the drill could not be carried out: {error or 'no memory is left'}") from error
        raise
    path, text = store_report(reports, report)
    milestones.reached("drill.reported")
    return DrillDone(report, path, text)


def prepare_only(config: Config, request: DrillRequest, drill_id: str) -> Prepared:
    """What it would do. Nothing is written. Raises as recovery.plan."""
    return prepare(_equipment(config, open_bucket(config).store, live=False), request, drill_id)


def _kept(report: DrillReport, scratch: Scratch, why: str) -> DrillReport:
    """What was found is worth more than where: a full disk costs the directory, not the report."""
    try:
        scratch.keep(why)
    except HeadwaterError as error:
        log.warning("drill_scratch_not_kept", path=str(scratch.directory), reason=str(error))
        return report
    return replace(report, scratch=str(scratch.directory))


def _unfinished(store: str, request: DrillRequest, drill_id: str, started_ms: int, ended_ms: int, error: Exception) -> DrillReport:
    outcome = DrillOutcome.UNFINISHED
    if isinstance(error, VerificationFailed | CorruptData):
        outcome = DrillOutcome.FAILED
    elif isinstance(error, NothingExamined):
        outcome = DrillOutcome.NOTHING
    return DrillReport(
        id=drill_id,
        outcome=outcome,
        headwater=__version__,
        host=socket.gethostname(),
        store=store,
        started_ms=started_ms,
        ended_ms=ended_ms,
        request=request,
        error=(str(error) if isinstance(error, HeadwaterError) else repr(error))[:2000],
    )


def _foreign(config: Config) -> Iterator[Path]:
    """Where nothing of a drill may be."""
    yield from config.log.dirs
    if config.log.metadata_dir is not None:
        yield config.log.metadata_dir
    url = urlsplit(config.store.url)
    if url.scheme == "file":
        yield Path(unquote(url.path))


def _equipment(config: Config, store: ObjectStore, *, live: bool | None) -> DrillEquipment:
    open_live, no_live = (None, "it was not requested (--no-live)") if live is False else _live(config)
    spare, no_spare = _spare(config.drill)
    return DrillEquipment(
        store=store,
        clock=SystemClock(),
        version=__version__,
        live=open_live,
        no_live=no_live,
        needs_live=live is True,
        spare=spare,
        no_spare=no_spare,
        needs_spare=config.drill.kafka_home is not None,
    )


def _live(config: Config) -> tuple[Callable[[], AbstractContextManager[LiveLogs]] | None, str]:
    if not config.log.bootstrap_servers:
        return None, "log.bootstrap_servers is not set"
    from headwater.broker.broker_connection import BrokerAddress
    from headwater.broker.client_properties import load_client_properties
    from headwater.broker.log_reader import open_log_reader

    addresses = [BrokerAddress.parse(each) for each in config.log.bootstrap_servers]
    return partial(open_log_reader, "live cluster", addresses, load_client_properties(config.log.client_properties)), ""


def _spare(drill: DrillConfig) -> tuple[OpenSpare | None, str]:
    """Raises UsageError where a Kafka is named that is none."""
    if drill.kafka_home is None:
        return None, "drill.kafka_home is not set"
    from headwater.spare_broker import check_kafka_home, find_java, running_broker

    home, java = check_kafka_home(drill.kafka_home), find_java()
    if java is None:
        return None, "there is no Java"
    return lambda scratch, plan: running_broker(java, home, scratch.log_dir, scratch.work_dir, plan), ""
