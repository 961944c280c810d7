"""The operations that may be requested of a running agent: the verbs of its API, and the arguments of each."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import msgspec
import structlog

from archival.explanation import Turn
from archival.schedule.scheduler import Scheduler
from headwater.admin.offload_routes import ARCHIVE, OFFLOAD, OffloadArguments
from headwater.admin.operations import RunningOperation
from headwater.admin.verb import Rows, Verb
from headwater.collection import FACTS, OFFSET_MAX, CollectionRequest, collection_rows
from headwater.inquiry import offset_rows, range_rows
from headwater.live_config import LiveConfig, Reloaded
from headwater.offload import offload_rows
from headwater.options import parse_selection
from headwater.pause_change import PauseChange, pause_rows
from headwater.session import PassRequest, Session, session_rows
from headwater.setting_change import SettingChange, change_rows
from headwater.survey import Knowledge
from headwater_core.control.control_records import PausesChanged, SettingsChanged
from headwater_core.errors import HeadwaterError, UsageError
from headwater_core.partition import TopicPartition

_PASS_SUMS = ("objects", "archived_bytes", "released_bytes")
Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]

log = structlog.get_logger()


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of a request: what is not known, or of another type, is refused."""


class SelectedArguments(Arguments, frozen=True):
    """selection: a topic, or TOPIC:PARTITION; null: all"""

    selection: str | None = None

    def __post_init__(self) -> None:
        if self.selection is not None:
            parse_selection(self.selection)


class ArchiveArguments(SelectedArguments, frozen=True):
    """before: only segments whose offsets are all smaller"""

    before: Offset | None = None


class FlushArguments(SelectedArguments, frozen=True):
    """older_than_s: of active segments only what has waited this long, seconds"""

    older_than_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0


class ExplainArguments(Arguments, frozen=True):
    """selection: TOPIC:PARTITION; offset: where this one is read; null: why local bytes are not archived"""

    selection: str
    offset: Offset | None = None

    def __post_init__(self) -> None:
        if parse_selection(self.selection)[1] is None:
            raise UsageError("explain needs TOPIC:P")


class NoArguments(Arguments, frozen=True):
    """There are none."""


class AgentVerbs:
    """Define the verbs that a running agent carries out.

    scheduler  None before it works, and where there are no log directories
    damaged    the keys of objects that are known to be damaged, by partition
    """

    def __init__(
        self,
        session: Session,
        scheduler: Callable[[], Scheduler | None],
        damaged: Callable[[], Mapping[str, Collection[str]]] = dict,
    ) -> None:
        self._session, self._scheduler, self._damaged = session, scheduler, damaged

    def all(self) -> tuple[Verb, ...]:
        return (
            Verb(
                name=ARCHIVE,
                summary="Archive sealed segments, as headwater archive does",
                arguments=ArchiveArguments,
                rows=lambda arguments, running: self._pass(PassRequest(selection=arguments.selection, before=arguments.before), running),
                sums=_PASS_SUMS,
            ),
            Verb(
                name="flush",
                summary="Archive sealed segments and the committed part of active ones, as headwater flush does",
                arguments=FlushArguments,
                rows=lambda arguments, running: self._pass(
                    PassRequest(selection=arguments.selection, tail_older_than_s=arguments.older_than_s), running
                ),
                sums=_PASS_SUMS,
            ),
            Verb(
                name="gc",
                summary="Apply retention and delete what nothing refers to, as headwater gc and delete-before do. Nobody is asked "
                "to confirm it",
                arguments=CollectionRequest,
                rows=self._collect,
                is_local=True,
                sums=tuple(name for name in FACTS if name not in ("start_offset", "again_ms")),
            ),
            Verb(
                name="pause",
                summary="Stop archiving what is selected, for all agents of the archive. A row for each pause in force afterwards",
                arguments=PauseChange,
                rows=partial(self._change_pauses, resume=False),
                unit="pauses",
                is_short=True,
            ),
            Verb(
                name="resume",
                summary="Archive again what was paused. A row for each pause still in force",
                arguments=PauseChange,
                rows=partial(self._change_pauses, resume=True),
                unit="pauses",
                is_short=True,
            ),
            Verb(
                name="settings",
                summary="Set, or remove, settings of a topic or a pattern for all agents of the archive, as headwater topics set does. "
                "A row for each key",
                arguments=SettingChange,
                rows=self._change_settings,
                unit="settings",
                is_short=True,
            ),
            Verb(
                name="reload",
                summary="Read the configuration again: one row, with what has changed and what needs a restart",
                arguments=NoArguments,
                rows=lambda _, __: (asdict(each) for each in (reload_config(self._session.live),)),
                unit="files",
                is_short=True,
            ),
            Verb(
                name="explain",
                summary="Why local bytes are not archived, or where an offset is read, as headwater explain says it",
                arguments=ExplainArguments,
                rows=self._explain,
                unit="ranges",
                is_look=True,
                is_short=True,
            ),
        )

    def offload(self) -> Verb:
        """Requested by the path of a partition (headwater.admin.offload_routes)."""
        return Verb(
            name=OFFLOAD,
            summary="Archive what lies before an offset of one partition",
            arguments=OffloadArguments,
            rows=lambda arguments, running: offload_rows(
                self._session.archivers, TopicPartition(arguments.topic, arguments.partition), arguments.before, running.cancelled
            ),
            sums=_PASS_SUMS,
        )

    def _pass(self, request: PassRequest, running: RunningOperation) -> Rows:
        return session_rows(self._session, request, running.cancelled, planned=lambda total: running.advance(0, total))

    def _collect(self, request: CollectionRequest, running: RunningOperation) -> Rows:
        return collection_rows(self._session, request, running.cancelled, planned=lambda total: running.advance(0, total))

    def _change_pauses(self, change: PauseChange, _: RunningOperation, *, resume: bool) -> Rows:
        change = msgspec.structs.replace(change, by=change.by or self._session.config.node.id)
        after = self._session.pauses.change(change.resume if resume else change.pause)
        try:
            self._session.control.publish(PausesChanged(version=after.version))
        except HeadwaterError as error:
            log.info("pauses_not_announced", reason=str(error), consequence="other agents read it from the bucket within a minute")
        yield from pause_rows(after)

    def _change_settings(self, change: SettingChange, _: RunningOperation) -> Rows:
        change = msgspec.structs.replace(change, by=change.by or self._session.config.node.id)
        if self._session.dirs is not None:
            change.check(self._session.settings.now(), self._session.live.now, self._session.dirs)
        rows = list(change_rows(change, self._session.settings.change))
        try:
            self._session.control.publish(SettingsChanged(version=self._session.settings.now().version))
        except HeadwaterError as error:
            log.info("settings_not_announced", reason=str(error), consequence="other agents read them from the bucket within a minute")
        yield from rows

    def _explain(self, arguments: ExplainArguments, _: RunningOperation) -> Rows:
        topic, number = parse_selection(arguments.selection)
        assert number is not None
        place, now, bucket = TopicPartition(topic, number), self._session.live.now, self._session.bucket
        rows: Iterator[dict[str, Any]]
        if arguments.offset is not None:
            damaged = [key for keys in self._damaged().values() for key in keys]
            rows = offset_rows(now, place, arguments.offset, bucket=bucket, known=self._knowledge(), damaged=damaged)
        else:
            rows = range_rows(now, place, bucket=bucket, known=self._knowledge(), turn_of=self._turn_of)
        yield from rows

    def _knowledge(self) -> Knowledge:
        session, fleet = self._session, self._session.fleet
        offsets = {partition: (state.start_offset, state.last_offset) for partition, state in session.control.state().partitions()}
        if fleet is None:
            return Knowledge(offsets=offsets)
        return Knowledge(
            heads=fleet.heads(),
            offsets=offsets,
            troubles=fleet.troubles,
            stream=fleet.open_stream,
            tails=fleet.tails,
            broker=fleet.broker_logs,
            pauses=session.pauses,
            release_reason=lambda partition: record.reason if (record := fleet.released(partition)) is not None else "",
        )

    def _turn_of(self, place: TopicPartition) -> Turn:
        fleet, scheduler = self._session.fleet, self._scheduler()
        failure = fleet.failures.get(place) if fleet else None
        return scheduler.turn_of(place, failure) if scheduler is not None else Turn()


def reload_config(live: LiveConfig) -> Reloaded:
    """Take up what has changed. Raises UsageError, and then everything stays as it was. Either is logged."""
    try:
        done = live.reload()
    except UsageError as error:
        log.error("config_refused", reason=str(error), consequence="the settings stay as they were")
        raise
    log.info("config_reloaded", changed=done.changed, needs_restart=done.needs_restart)
    return done
