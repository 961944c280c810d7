"""The offload of one partition on request, over HTTP, as PIP-17 has it: begun with a position, and asked how it stands."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.admin.operation_routes import OperationRoutes, accepted
from headwater.admin.operations import Operation, OperationState
from headwater.admin.parameters import known
from headwater.admin.problem import ProblemCode, ProblemError
from headwater.admin.status_board import BoardEntry, StatusBoard
from headwater.admin.topic_routes import partition_of, topic_of
from headwater.admin.verb import Verb
from headwater_core.errors import UsageError
from headwater_core.partition import TopicPartition

OFFLOAD = "offload"
ARCHIVE = "archive"
_OFFSET_MAX = 2**63 - 1

Offset = Annotated[int, msgspec.Meta(ge=0, le=_OFFSET_MAX)]


class OffloadRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """before: archive all segments whose offsets are all smaller; position: the same, by the proposal's name. One of both is given"""

    before: Offset | None = None
    position: Offset | None = None

    def __post_init__(self) -> None:
        if (self.before is None) == (self.position is None):
            raise UsageError("an offset is needed, as before or as position")

    @property
    def end(self) -> int:
        """Whichever was given."""
        return next(each for each in (self.before, self.position) if each is not None)


class OffloadArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Of the operation that an offload is."""

    topic: str
    partition: int
    before: int


class OffloadStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the last offload of a partition that was requested stands, as long as the agent remembers its operation.

    before   the offset that it was requested with; null: none was
    error    why it has failed; null: it has not
    next_offset  the first one that is not archived, as the agent last saw it; null: that is not known
    """

    topic: str
    partition: int
    state: Literal["not_run", "running", "success", "error"]
    before: int | None
    error: str | None
    next_offset: int | None
    operation: Operation | None


class OffloadRoutes:
    """verb: does it, with OffloadArguments; board: None where there are no log directories, and then nothing is offloaded"""

    def __init__(self, operations: OperationRoutes, verb: Verb | None, board: StatusBoard | None) -> None:
        self._operations, self._verb, self._board = operations, verb, board

    def all(self) -> list[Route]:
        path = "/v1/topics/{topic}/partitions/{partition}/offload"
        return [Route(path, self._show), Route(path, self._begin, methods=["POST"])]

    async def _show(self, request: Request) -> Response:
        known(request)
        entry = self._entry(request)
        place, last = TopicPartition(*entry.place), self._last(TopicPartition(*entry.place))
        status = OffloadStatus(
            topic=place.topic,
            partition=place.partition,
            state="not_run" if last is None else _state(last.state),
            before=None if last is None else last.arguments["before"],
            error=None if last is None or _state(last.state) != "error" else last.error or last.state.value,
            next_offset=entry.status.archive_start if entry.status.last_offset is None else entry.status.last_offset + 1,
            operation=last,
        )
        return Response(msgspec.json.encode(status), media_type="application/json")

    async def _begin(self, request: Request) -> Response:
        known(request)
        wanted = _decoded(await request.body())
        place = TopicPartition(*self._entry(request).place)
        assert self._verb is not None  # where there are partitions it can be done
        arguments = OffloadArguments(topic=place.topic, partition=place.partition, before=wanted.end)
        if (before := self._operations.begun_before(self._verb, arguments, request)) is not None:
            return accepted(before)
        running = self._running(place)  # nothing is awaited from here on, so no other request comes in between
        if running is not None:
            raise ProblemError(
                ProblemCode.OFFLOAD_RUNNING, f"{place} is being offloaded before {running.arguments['before']}: {running.id}"
            )
        return accepted(self._operations.begin(self._verb, arguments, request).facts)

    def _entry(self, request: Request) -> BoardEntry:
        """Of the partition that the path names. Raises ProblemError where it has no log here: only from that it is offloaded."""
        try:
            place = TopicPartition(topic_of(request), partition_of(request))
        except UsageError as error:
            raise ProblemError(ProblemCode.BAD_REQUEST, str(error)) from error
        entry = self._board.entry(place) if self._board is not None else None
        if entry is None:
            listed = self._board is None or self._board.is_listed
            words = "" if listed else "; the log directories have not been listed yet"
            raise ProblemError(ProblemCode.UNKNOWN_TOPIC, f"there is no log of that partition in the log directories{words}")
        return entry

    def _last(self, place: TopicPartition) -> Operation | None:
        return self._operations.last(OFFLOAD, lambda arguments: (arguments["topic"], arguments["partition"]) == place)

    def _running(self, place: TopicPartition) -> Operation | None:
        """An offload that has not ended, whether the endpoint has begun it or `headwater archive TOPIC:P --before` did."""

        def is_offload(arguments: Mapping[str, Any]) -> bool:
            topic, colon, number = (arguments.get("selection") or "").partition(":")
            return arguments.get("before") is not None and bool(colon) and (topic, int(number)) == place

        last = self._last(place)
        begun_here = last if last is not None and last.state is OperationState.RUNNING else None
        return begun_here or self._operations.running(ARCHIVE, is_offload)


def _state(state: OperationState) -> Literal["running", "success", "error"]:
    return "running" if state is OperationState.RUNNING else "success" if state is OperationState.DONE else "error"


def _decoded(body: bytes) -> OffloadRequest:
    try:
        return msgspec.json.decode(body or b"{}", type=OffloadRequest)
    except (UsageError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProblemError(ProblemCode.BAD_REQUEST, f"not the arguments of offload: {error}"[:500]) from error
