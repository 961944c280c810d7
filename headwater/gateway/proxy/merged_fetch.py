"""A Fetch of which the broker has a part and the archive another.

The broker decides: each partition goes to it first, with the client's own connection. Only what it says is out of range can be the
archive's, and only below its own start; that of a partition is known from the first such answer on. A partition whose records have still to
come from the bucket is answered without any, and keeps no other waiting.

`Fetches` decides what to request and how to answer; it does not touch a socket.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import structlog

from headwater.gateway.frames import MalformedRequest, read_header
from headwater.gateway.gateway_meter import GatewayMeter
from headwater.gateway.handlers.fetch import Fetched
from headwater.gateway.handlers.list_offsets import EARLIEST, LATEST
from headwater.gateway.messages import Fields, element_writer, read_request, request_schema, response_schema
from headwater.gateway.primitives import NO_TAGS, skip_tags
from headwater.gateway.protocol import Api, Code, code_for
from headwater.gateway.proxy.address_walk import TopicKey
from headwater.gateway.proxy.broker_requests import BrokerRequests, decoded
from headwater.gateway.proxy.fetch_walk import Inserted, Merge
from headwater.gateway.response import NO_RECORDS, Part, Records, Response
from headwater_core.errors import HeadwaterError, NotFound
from headwater_core.segments import flexible

SHARE_BYTES_MAX = 8 << 20  # of an archived partition, where others are fetched as well
BOUNDS_S = 1.0  # for so long a broker's start and end count
_BY_ID_FROM = 13
_SESSION_FROM, _REPLICA_UNTIL = 7, 14

PartitionKey = tuple[TopicKey, int]

log = structlog.get_logger()


class Archive(Protocol):
    """What the archive has, for the topics that the broker names."""

    def may_hold(self, topic: TopicKey, partition: int) -> bool: ...
    def name_of(self, topic: TopicKey) -> str | None: ...
    def id_of(self, topic: TopicKey) -> bytes | None: ...
    @property
    def is_listed(self) -> bool:
        """A topic that is not known does not exist there."""
        ...

    async def range_of(self, topic: TopicKey, partition: int) -> tuple[int, int]:
        """Its first offset and the one behind its last, by a manifest that is read now. Raises HeadwaterError."""
        ...

    async def fetch(self, body: Fields, version: int) -> Fetched:
        """As Fetcher.fetch."""
        ...


class BrokerBounds(NamedTuple):
    """Where a broker's log begins and ends."""

    start: int
    high_watermark: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """header: from the key on up to the body"""

    header: bytes
    version: int
    correlation_id: int
    fields: Mapping[str, Any]

    @classmethod
    def decoded(cls, frame: bytes) -> "FetchRequest":
        """Of a frame without its size. Raises MalformedRequest."""
        header = read_header(frame)
        fields = read_request(frame, header.body_position, Api.FETCH, header.api_version)
        is_flexible = request_schema(Api.FETCH, header.api_version).flexible
        return cls(frame[: header.body_position] + (NO_TAGS if is_flexible else b""), header.api_version, header.correlation_id, fields)

    @property
    def is_by_id(self) -> bool:
        return self.version >= _BY_ID_FROM

    @property
    def partitions(self) -> Iterable[tuple[PartitionKey, Fields]]:
        named_by = "topic_id" if self.is_by_id else "topic"
        return (((topic[named_by], fields["partition"]), fields) for topic in self.fields["topics"] for fields in topic["partitions"])

    def body(self, partitions: Iterable[tuple[PartitionKey, Fields]], **changes: object) -> dict[str, Any]:
        """Of a request for these alone, without a session."""
        named_by, topics = "topic_id" if self.is_by_id else "topic", dict[TopicKey, list[Fields]]()
        for (topic, _), fields in partitions:
            topics.setdefault(topic, []).append(fields)
        requested = [{named_by: topic, "partitions": fields} for topic, fields in topics.items()]
        return {**self.fields, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "topics": requested, **changes}

    def encoded(self, body: Fields) -> bytes:
        """The whole frame, with its size."""
        response = Response()
        response.buffer += self.header
        request_schema(Api.FETCH, self.version).write(response, body)
        return flexible.i32(len(response.buffer)) + bytes(response.buffer)


def decline_session(frame: bytearray, version: int) -> int:
    """Have a Fetch, whose frame has its size, ask for no session; return the id of the one that it was for, 0: none.

    With a session a client names no partition twice, and the broker none that has nothing new. Raises MalformedRequest.
    """
    if version < _SESSION_FROM:
        return 0
    at = 4 + read_header(bytes(frame[4:])).body_position
    if request_schema(Api.FETCH, version).flexible:
        at = skip_tags(bytes(frame), at)
    at += 13 + 4 * (version <= _REPLICA_UNTIL)  # replica, longest wait, fewest and most bytes, isolation
    if at + 8 > len(frame):
        raise MalformedRequest("a Fetch that ends before its session")
    session_id = int.from_bytes(frame[at : at + 4], "big", signed=True)
    frame[at : at + 8] = flexible.i32(0) + flexible.i32(-1)
    return session_id


@dataclass(slots=True)
class FetchPlan:
    """What becomes of a Fetch: a request for the broker, or an answer.

    merge    what goes into the broker's response
    answer   in place of one; with neither this nor a request, `frame` goes to the broker as it is
    fetched  what is to be closed when the answer is sent
    """

    frame: bytes = b""
    merge: Merge | None = None
    answer: Sequence[Part] | None = None
    fetched: Fetched | None = None

    def close(self) -> None:
        if self.fetched is not None:
            self.fetched.close()


@dataclass(slots=True)
class _Cold:
    """A partition of which the broker's start was above what the client wanted. seen_s: when its bounds were"""

    bounds: BrokerBounds | None = None
    seen_s: float = 0.0


class Fetches:
    """The Fetches of one connection."""

    def __init__(self, archive: Archive, broker: BrokerRequests, meter: GatewayMeter, *, skips_gaps: bool = True) -> None:
        self._archive, self._broker, self._meter, self._skips_gaps = archive, broker, meter, skips_gaps
        self._cold: dict[PartitionKey, _Cold] = {}

    def code_for(self, topic: TopicKey, partition: int) -> Code:
        """What a client is told in place of OFFSET_OUT_OF_RANGE: nothing is here yet, where the archive may have it; it asks again."""
        if not self._archive.may_hold(topic, partition):
            return Code.OFFSET_OUT_OF_RANGE
        if (topic, partition) in self._cold:
            return Code.KAFKA_STORAGE_ERROR  # it has asked again, and the proxy could not take its request apart
        self._cold[topic, partition] = _Cold()
        return Code.NONE

    async def plan(self, frame: bytes) -> FetchPlan:
        """For a request's frame with its size. Raises MalformedRequest, and what asking the broker does."""
        if not self._cold:
            return FetchPlan(frame)
        try:
            request = FetchRequest.decoded(frame[4:])
        except MalformedRequest:  # or more partitions than the proxy takes apart: what becomes of it is the broker's decision
            return FetchPlan(frame)
        cold = {key: fields for key, fields in request.partitions if key in self._cold}
        if not cold:
            return FetchPlan(frame)
        live = {key: fields for key, fields in request.partitions if key not in cold}
        answers = await self._broker_answers(request, cold)
        if isinstance(answers, bytes):
            return FetchPlan(answer=_with_size(request.correlation_id, answers))
        out = {key: cold[key] for key, answer in answers.items() if answer["error_code"] == Code.OFFSET_OUT_OF_RANGE}
        for key in cold.keys() - out.keys():
            self._cold.pop(key, None)
        refused = await self._refused(out, is_by_id=request.is_by_id)
        await self._ask_bounds(out.keys() - refused.keys(), request.fields.get("isolation_level", 0))
        archived = {}
        for key, fields in out.items():
            code = refused[key] if key in refused else self._refusal(key, fields["fetch_offset"])
            if code is None:
                archived[key] = fields
            else:
                answers[key] = {**answers[key], "error_code": code}
        return await self._merged(request, live, answers, archived)

    async def _merged(
        self,
        request: FetchRequest,
        live: dict[PartitionKey, Fields],
        answers: dict[PartitionKey, Fields],
        archived: Mapping[PartitionKey, Fields],
    ) -> FetchPlan:
        others = len(live) + len(answers) - len(archived)
        max_bytes = request.fields["max_bytes"]
        share = min(SHARE_BYTES_MAX, max_bytes // (len(live) + len(answers))) if others else max_bytes
        wait = {} if not others else {"max_wait": 0, "min_bytes": 0}
        ours = ((key, {**fields, "current_leader_epoch": -1}) for key, fields in archived.items())
        body = request.body(ours, max_bytes=max(1, share * len(archived)) if others else max_bytes, **wait)
        fetched = await self._archive.fetch(body, request.version) if archived else Fetched({"responses": []})
        try:
            named_by, isolation = "topic_id" if request.is_by_id else "topic", request.fields.get("isolation_level", 0)
            for topic in fetched.fields["responses"]:
                for answer in topic["partitions"]:
                    key = topic[named_by], answer["partition_index"]
                    offset = archived[key]["fetch_offset"]
                    is_over = key not in fetched.waiting and await self._is_over(key, offset, answer, isolation)
                    if isinstance(is_over, Code):
                        answers[key] = _nothing(key, is_over)
                    elif is_over:
                        live[key] = {**archived[key], "fetch_offset": self._bounds(key).start, "last_fetched_epoch": -1}
                        answers.pop(key, None)
                    else:
                        answers[key] = self._answer(key, answer)
            return self._planned(request, live, answers, fetched, max_bytes - share * len(archived))
        except BaseException:
            fetched.close()
            raise

    def _planned(
        self,
        request: FetchRequest,
        live: Mapping[PartitionKey, Fields],
        answers: Mapping[PartitionKey, Fields],
        fetched: Fetched,
        live_bytes: int,
    ) -> FetchPlan:
        topics = dict[TopicKey, list[Fields]]()
        for (topic, _), answer in answers.items():
            topics.setdefault(topic, []).append(answer)
        self._count(answers.values())
        named_by, named = "topic_id" if request.is_by_id else "topic", {topic for topic, _ in live}
        alone = [{named_by: topic, "partitions": partitions} for topic, partitions in topics.items() if topic not in named]
        if not live:
            return FetchPlan(answer=answer_parts(request.version, request.correlation_id, alone), fetched=fetched)
        mixed = {topic: partitions for topic, partitions in topics.items() if topic in named}
        merge = Merge(
            _inserted(request.version, ("responses",), alone),
            {topic: _inserted(request.version, ("responses", "partitions"), partitions) for topic, partitions in mixed.items()},
        )
        has_some = any(answer["error_code"] or _records_bytes(answer) for answer in answers.values())
        wait = {"max_wait": 0, "min_bytes": 0} if has_some else {}
        body = request.body(live.items(), max_bytes=max(1, live_bytes), **wait)
        return FetchPlan(frame=request.encoded(body), merge=merge, fetched=fetched)

    def _count(self, answers: Iterable[Fields]) -> None:
        records_bytes = 0
        for answer in answers:
            records_bytes += _records_bytes(answer)
            if answer["error_code"] not in (Code.NONE, Code.OFFSET_OUT_OF_RANGE):
                self._meter.refusals[_name_of(answer["error_code"])] += 1
        self._meter.archived_fetches += records_bytes > 0
        self._meter.archived_bytes += records_bytes

    async def _broker_answers(self, request: FetchRequest, cold: Mapping[PartitionKey, Fields]) -> dict[PartitionKey, Fields] | bytes:
        """Whether it is right that the client has none of these. A batch at most is fetched where it has. The response itself, where the
        broker answers for none of them: it throttles the client, or refuses the whole."""
        wanted = ((key, {**fields, "partition_max_bytes": 1}) for key, fields in cold.items())
        frame = request.encoded(request.body(wanted, max_bytes=1, max_wait=0, min_bytes=0))
        raw = await self._broker.ask(Api.FETCH, request.version, frame[4 + len(request.header) :])
        found = decoded(Api.FETCH, request.version, raw)
        if not found["responses"]:
            return raw
        named_by = "topic_id" if request.is_by_id else "topic"
        answers = {(topic[named_by], answer["partition_index"]): answer for topic in found["responses"] for answer in topic["partitions"]}
        return {key: answers.get(key, _nothing(key, Code.KAFKA_STORAGE_ERROR)) for key in cold}

    async def _refused(self, keys: Iterable[PartitionKey], *, is_by_id: bool) -> dict[PartitionKey, Code]:
        """What is not the archive's, or not known to be. A name may be that of another topic by now; an id is not."""
        names = {} if is_by_id else dict.fromkeys(str(topic) for topic, _ in keys)
        ids = await self._broker.topic_ids(names) if names else {}
        refused = {}
        for key in keys:
            mine, theirs = self._archive.id_of(key[0]), key[0] if is_by_id else ids.get(str(key[0]))
            if mine is None:
                refused[key] = Code.OFFSET_OUT_OF_RANGE if self._archive.is_listed else Code.KAFKA_STORAGE_ERROR
            elif theirs is None:
                refused[key] = Code.KAFKA_STORAGE_ERROR
            elif theirs != mine:
                refused[key] = Code.OFFSET_OUT_OF_RANGE
        for key, code in refused.items():
            if code is Code.OFFSET_OUT_OF_RANGE:
                self._cold.pop(key)
        return refused

    async def _ask_bounds(self, keys: Iterable[PartitionKey], isolation: int) -> None:
        now_s = asyncio.get_running_loop().time()
        cold = {key: self._cold[key] for key in keys if key in self._cold}
        stale = [key for key, seen in cold.items() if now_s - seen.seen_s >= BOUNDS_S or seen.bounds is None]
        named = {key: name for key in stale if (name := self._archive.name_of(key[0])) is not None}
        if not named:
            return
        wanted = ((EARLIEST, 0), (LATEST, 0), *([(LATEST, 1)] if isolation else []))
        named_partitions = [(name, partition) for (_, partition), name in named.items()]
        found = [await self._broker.offsets(named_partitions, timestamp, level) for timestamp, level in wanted]
        for key, name in named.items():
            offsets = [of_kind.get((name, key[1])) for of_kind in found]
            known = [offset for offset in offsets if offset is not None]
            bounds = BrokerBounds(known[0], known[1], known[-1]) if len(known) == len(wanted) else None
            self._cold[key] = _Cold(bounds, now_s)

    def _refusal(self, key: PartitionKey, offset: int) -> Code | None:
        """The code for what is not the archive's to answer; None: it is."""
        bounds = self._cold[key].bounds
        if bounds is None:
            return Code.KAFKA_STORAGE_ERROR
        if offset < bounds.start:
            return None
        self._cold.pop(key)
        return Code.OFFSET_OUT_OF_RANGE if offset > bounds.high_watermark else Code.NONE  # it has come to be there meanwhile

    async def _is_over(self, key: PartitionKey, offset: int, answer: Fields, isolation: int) -> bool | Code:
        """Has the archive proven to have nothing at this offset or behind it, so that what follows begins at the broker's start?

        A manifest counts that was read after that start was seen: an older one may not list yet what the broker has deleted since. Not over
        is what stops at a transaction whose end is not archived yet. The code, where the archive cannot say, and for a gap before the
        broker's start where none is to be skipped.
        """
        is_empty = answer["error_code"] == Code.NONE and not _records_bytes(answer)
        is_stable = not isolation or answer["last_stable_offset"] >= answer["high_watermark"]
        if not (answer["error_code"] == Code.OFFSET_OUT_OF_RANGE or (is_empty and is_stable)):
            return False
        try:
            start, end = await self._archive.range_of(*key)
        except HeadwaterError as error:
            return False if isinstance(error, NotFound) else code_for(error)
        if offset < start or not (end <= offset or (is_empty and end <= answer["high_watermark"])):
            return False
        if end < self._bounds(key).start:
            if not self._skips_gaps:
                self._cold.pop(key)
                return Code.OFFSET_OUT_OF_RANGE
            self._note_gap(key, offset)
        return True

    def _note_gap(self, key: PartitionKey, offset: int) -> None:
        self._meter.gaps += 1
        where = f"{self._archive.name_of(key[0])}:{key[1]}"
        log.warning("gap_skipped", partition=where, offset=offset, next_offset=self._bounds(key).start)

    def _bounds(self, key: PartitionKey) -> BrokerBounds:
        bounds = self._cold[key].bounds
        assert bounds is not None
        return bounds

    def _answer(self, key: PartitionKey, answer: Fields) -> Fields:
        """The archive's, with the broker's watermarks."""
        bounds, code = self._bounds(key), answer["error_code"]
        if code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID):
            code = Code.OFFSET_OUT_OF_RANGE
        if code == Code.OFFSET_OUT_OF_RANGE:
            self._cold.pop(key)
        watermarks = {"high_watermark": bounds.high_watermark, "last_stable_offset": bounds.last_stable_offset}
        return {**answer, "error_code": code, **(watermarks if code == Code.NONE else {})}


def _name_of(code: int) -> str:
    return Code(code).name if code in Code.__members__.values() else str(code)


def _with_size(correlation_id: int, body: bytes) -> Sequence[Part]:
    return [flexible.i32(4 + len(body)) + flexible.i32(correlation_id) + body]


def _records_bytes(answer: Fields) -> int:
    records = answer["records"]
    return records.size_bytes if isinstance(records, Records) else len(records or b"")


def _nothing(key: PartitionKey, code: Code) -> Fields:
    return {
        "partition_index": key[1],
        "error_code": code,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "records": NO_RECORDS,
    }


def answer_parts(version: int, correlation_id: int, topics: Sequence[Fields], code: Code = Code.NONE) -> Sequence[Part]:
    """A whole Fetch response, with its size."""
    response, schema = Response(), response_schema(Api.FETCH, version)
    response.buffer += flexible.i32(correlation_id) + (NO_TAGS if schema.header_version else b"")
    schema.write(response, {"error_code": code, "session_id": 0, "responses": topics})
    return response.frame().parts


def _inserted(version: int, names: tuple[str, ...], elements: Sequence[Fields]) -> Inserted:
    response, write = Response(), element_writer(Api.FETCH, version, *names)
    for element in elements:
        write(response, element)
    frame = response.frame()
    return Inserted(len(elements), frame.size_bytes - 4, frame.parts[1:])
