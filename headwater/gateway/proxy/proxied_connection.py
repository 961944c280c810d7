"""One client's connection and the one to its broker: requests go there once, responses come back in their order.

A request and its response are opaque frames, but those that the proxy has to know: they are decoded as far as that takes. Nothing is ever
sent again: where the broker's connection ends, so does the client's, and the client decides.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from headwater.gateway.client_facts import HEAD_BYTES
from headwater.gateway.config import Gaps, GatewayConfig, UnknownApis
from headwater.gateway.connection import PeerGone
from headwater.gateway.frames import MalformedRequest, impossible_frame, read_header
from headwater.gateway.gateway_meter import OTHER_API, GatewayMeter, PassedApi
from headwater.gateway.messages import read_request
from headwater.gateway.open_connections import OpenConnection
from headwater.gateway.primitives import NO_TAGS, read_varint, skip_tags
from headwater.gateway.protocol import Api, Code
from headwater.gateway.proxy.address_walk import LENGTH_KEPT, AddressWalk, MalformedResponse, has_addresses
from headwater.gateway.proxy.archive_side import ArchiveSide
from headwater.gateway.proxy.broker_requests import BrokerRequests, decoded, encoded
from headwater.gateway.proxy.byte_stream import ByteStream
from headwater.gateway.proxy.endpoint_registry import EndpointRegistry
from headwater.gateway.proxy.fetch_walk import FetchWalk
from headwater.gateway.proxy.merged_fetch import Fetches, FetchPlan, answer_parts, decline_session
from headwater.gateway.proxy.merged_offsets import OffsetMerges
from headwater.gateway.proxy.offered_apis import OFFERED, is_flexible
from headwater.gateway.proxy.version_ranges import intersected, unsupported
from headwater.gateway.response import Part
from headwater_core.segments import flexible
from hydration.disk_threads import DiskThreads

READ_BYTES_MAX = 4 << 20  # a longer request for records or offsets is the broker's alone: tens of thousands of partitions
OWN_BYTES_MAX = 64 << 20  # of a response to a request of the proxy's own, which may hold one batch
VERSIONS_BYTES_MAX = 4 << 10  # of an ApiVersions request that is newer than the proxy: it names a client
FOLLOWING_MAX = 100  # answers to such requests after one that waits for the broker
SEND_S, SLOWEST_BYTES_PER_S = 30.0, 64 << 10  # what is the archive's must be taken by then, and as much later as it takes so slowly
ASK_S = 30.0  # for what the proxy itself requests of a broker
UNAUTHENTICATED_BYTES_MAX = 512 << 10  # of what a client sends before its broker knows it: Kafka's sasl.server.max.receive.size
AUTHENTICATE_S = 10.0  # for that
PART_S = 1.0  # for a client to close a connection that has ended
END_S = 10.0  # for a broker to close a connection that has ended
EDITED_BYTES_MAX = 1 << 20  # a longer response is not kept to be changed
IN_FLIGHT_MAX = 1000  # requests of one connection without a response: brokers answer one by one, clients have five
log = structlog.get_logger()

_OWN_CORRELATION_ID = -2
_OF_OFFSETS = frozenset((Api.LIST_OFFSETS, Api.OFFSET_FOR_LEADER_EPOCH))
_READ_FROM: Mapping[int, int] = {
    Api.FETCH: 4,
    Api.LIST_OFFSETS: 1,
    Api.OFFSET_FOR_LEADER_EPOCH: 2,
}  # older ones, which Kafka 4 has not, are the broker's alone
_HEAD_BYTES = 8  # frame size and correlation id
_VARINT_BYTES_MAX = 5
_REQUEST_HEAD_BYTES = 14  # frame size, key, version, correlation id, length of the client id


@dataclass(slots=True)
class InFlight:
    """A request without its response.

    is_token  it is one of SASL, without a header
    added_s   how long it has taken to pass
    own       gets the response's body, as it is to a request of the proxy's own
    plan      what becomes of a Fetch
    following  responses of our own that are to follow
    """

    api_key: int
    version: int
    correlation_id: int
    is_token: bool = False
    added_s: float = 0.0
    own: "asyncio.Future[bytes] | None" = None
    plan: FetchPlan | None = None
    following: list[bytes] = field(default_factory=list)


class ProxiedConnection:
    """
    opened   the client's, by whose address it is told where brokers are
    archive  None: everything is the broker's
    readers  for what has to be read from a disk before it is sent
    """

    def __init__(
        self,
        opened: OpenConnection,
        client: ByteStream,
        upstream: ByteStream,
        registry: EndpointRegistry,
        config: GatewayConfig,
        meter: GatewayMeter,
        *,
        archive: ArchiveSide | None,
        readers: DiskThreads,
    ) -> None:
        self._opened, self._host = opened, opened.client.getsockname()[0].removeprefix("::ffff:")
        self._client, self._upstream, self._registry, self._config = client, upstream, registry, config
        self._meter, self._now_s = meter, asyncio.get_running_loop().time
        self._passes_unknown = config.unknown_apis is UnknownApis.PASS
        broker = BrokerRequests(self._ask)
        self._fetches = Fetches(archive, broker, meter, skips_gaps=config.gaps is Gaps.SKIP) if archive is not None else None
        self._offsets = OffsetMerges(archive, broker) if archive is not None else None
        self._readers = readers
        self._client_id = flexible.i16(-1)
        self._in_flight: deque[InFlight] = deque()
        self._answered = asyncio.Event()
        self._is_of_cluster = False  # the broker has named it
        self._uses_sasl = self._is_stopping = False
        self._is_token_next = False  # SaslHandshake of version 0 is followed by tokens without a header

    async def run(self) -> None:
        """Until either side ends. Raises MalformedRequest, PeerGone, OSError, and UsageError for brokers that have no place here."""
        requests, responses = asyncio.ensure_future(self._pass_requests()), asyncio.ensure_future(self._pass_responses())
        self._opened.stop_receiving = partial(self._stop_receiving, requests)
        try:
            done, _ = await asyncio.wait((requests, responses), timeout=AUTHENTICATE_S, return_when=asyncio.FIRST_COMPLETED)
            if not done and not self._is_known:
                raise PeerGone(f"not authenticated within {AUTHENTICATE_S:g} s")
            await asyncio.wait((requests, responses), return_when=asyncio.FIRST_COMPLETED)
            if requests.done() and not requests.exception():
                await asyncio.wait((responses,), timeout=END_S)
            for task in (requests, responses):
                if task.done():
                    task.result()
        finally:
            for task in (requests, responses):
                task.cancel()
            self._client.close()
            self._upstream.close()
            await asyncio.gather(requests, responses, return_exceptions=True)
            for request in self._in_flight:
                if request.plan is not None:
                    request.plan.close()

    @property
    def _is_known(self) -> bool:
        """The broker answers this client, or all that it does not know."""
        return self._opened.is_authenticated or self._registry.is_open

    # Requests

    async def _pass_requests(self) -> None:
        """Until the client has sent its last one. The broker is told when it has answered them: it would drop what it has not."""
        try:
            while not self._opened.ends and (head := await self._client.begin(4)):
                self._opened.is_receiving, self._opened.idle_since_s = False, None
                await self._pass_next(_integer(head[:4]), self._now_s())
                self._opened.is_receiving = True
                self._note_idle()
        except MalformedRequest:
            await self._last_answered()
            raise
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            self._is_stopping = False
        await self._last_answered()
        if self._opened.ends:
            await self._part()
        await self._upstream.end()

    def _stop_receiving(self, requests: "asyncio.Task[None]") -> None:
        self._is_stopping = requests.cancel()

    async def _part(self) -> None:
        """Nothing more is answered. What the client has sent on is read, or the system would take the answers away that it has not read."""
        with suppress(TimeoutError, PeerGone, OSError):
            async with asyncio.timeout(PART_S):
                await self._client.end()
                while received := await self._client.begin(1):
                    self._client.take(len(received))

    async def _last_answered(self) -> None:
        """Or it takes too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_s):
                await self._all_answered()

    def _note_idle(self) -> None:
        if self._opened.is_receiving and not self._in_flight:
            self._opened.idle_since_s = self._now_s()

    async def _pass_next(self, size_bytes: int, began_s: float) -> None:
        if self._is_token_next:
            head = await self._client.need(4 + min(max(0, size_bytes), _REQUEST_HEAD_BYTES - 4))
            if not 0 <= size_bytes <= UNAUTHENTICATED_BYTES_MAX:
                raise MalformedRequest(f"a token of {size_bytes} bytes, limit {UNAUTHENTICATED_BYTES_MAX}")
            if not _is_request(head[4:], size_bytes):
                await self._pass_request(InFlight(Api.SASL_AUTHENTICATE, 0, -1, is_token=True), size_bytes)
                return
            self._is_token_next = False
        limit_bytes = self._config.upstream_request_bytes_max if self._is_known else UNAUTHENTICATED_BYTES_MAX
        if not _REQUEST_HEAD_BYTES - 4 <= size_bytes <= limit_bytes:
            raise impossible_frame(bytes((await self._client.need(4))[:4]), limit_bytes)
        head = await self._client.need(_REQUEST_HEAD_BYTES)
        api_key, version, correlation_id = (_integer(head[start:end]) for start, end in ((4, 6), (6, 8), (8, 12)))
        request = InFlight(api_key, version, correlation_id)
        if api_key == Api.API_VERSIONS and version > OFFERED[Api.API_VERSIONS].version_max:
            await self._refuse_version(request, size_bytes)
            return
        self._check_offered(request)
        if (facts := self._opened.facts).wants(api_key):
            facts.note(bytes((await self._client.need(4 + min(size_bytes, HEAD_BYTES)))[4 : 4 + min(size_bytes, HEAD_BYTES)]))
        passed = self._passing(api_key)
        passed.requests += 1
        passed.request_bytes += 4 + size_bytes
        is_read = version >= _READ_FROM.get(api_key, 0) and size_bytes <= READ_BYTES_MAX
        if self._fetches is not None and api_key == Api.FETCH and is_read:
            await self._pass_fetch(self._fetches, request, size_bytes)
        elif self._offsets is not None and api_key in _OF_OFFSETS and is_read:
            await self._pass_offsets(self._offsets, request, size_bytes)
        else:
            has_response = api_key != Api.PRODUCE or await self._acks(size_bytes, version) != 0
            await self._pass_request(request if has_response else None, size_bytes)
            request.added_s = self._now_s() - began_s

    async def _pass_request(self, request: InFlight | None, size_bytes: int) -> None:
        """None: there will be no response."""
        if request is not None:
            await self._has_room()
            self._in_flight.append(request)
        await self._client.pass_on(4 + size_bytes, self._upstream)

    async def _pass_fetch(self, fetches: Fetches, request: InFlight, size_bytes: int) -> None:
        frame = await self._client.read(4 + size_bytes)
        self._client_id = bytes(frame[12 : _REQUEST_HEAD_BYTES + max(0, _integer(frame[12:14]))])
        if decline_session(frame, request.version):
            plan = FetchPlan(answer=answer_parts(request.version, request.correlation_id, (), Code.FETCH_SESSION_ID_NOT_FOUND))
        else:
            plan = await fetches.plan(bytes(frame))
        if plan.answer is None:
            sent, plan.frame, request.plan = plan.frame, b"", plan
            await self._has_room()
            self._in_flight.append(request)
            await self._upstream.send(sent)
            return
        try:
            await self._all_answered()
            await self._send_parts(plan.answer)
        finally:
            plan.close()

    async def _pass_offsets(self, offsets: OffsetMerges, request: InFlight, size_bytes: int) -> None:
        """ListOffsets and OffsetForLeaderEpoch: the broker is asked by the proxy, and the client gets what both know."""
        frame = await self._client.read(4 + size_bytes)
        api_key, version, whole = request.api_key, request.version, bytes(frame[4:])
        header = read_header(whole)
        self._client_id = whole[8 : header.body_position]
        at = skip_tags(whole, header.body_position) if is_flexible(api_key, version) else header.body_position
        raw = await self._ask(api_key, version, whole[at:])
        body = None
        with suppress(MalformedRequest):  # or it has more partitions than the proxy takes apart: the broker's answer is all there is
            body = read_request(whole, header.body_position, api_key, version)
        if body is not None:
            merge = offsets.list_offsets if api_key == Api.LIST_OFFSETS else offsets.epoch_ends
            raw = encoded(api_key, version, await merge(body, decoded(api_key, version, raw)))
        await self._all_answered()
        await self._send(request, raw)

    async def _has_room(self) -> None:
        while len(self._in_flight) >= IN_FLIGHT_MAX:
            self._answered.clear()
            await self._answered.wait()

    async def _all_answered(self) -> None:
        while self._in_flight:
            self._answered.clear()
            await self._answered.wait()

    async def _ask(self, api_key: int, version: int, body: bytes) -> bytes:
        """Request of the broker, between the client's own requests."""
        header = flexible.i16(api_key) + flexible.i16(version) + flexible.i32(_OWN_CORRELATION_ID) + self._client_id
        frame = header + (NO_TAGS if is_flexible(api_key, version) else b"") + body
        own: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._in_flight.append(InFlight(api_key, version, _OWN_CORRELATION_ID, own=own))
        try:
            async with asyncio.timeout(ASK_S):
                await self._upstream.send(flexible.i32(len(frame)), frame)
                return await own
        except TimeoutError as error:
            raise PeerGone(f"a broker has not answered within {ASK_S:g} s") from error

    def _passing(self, api_key: int) -> PassedApi:
        return self._meter.passing(api_key if api_key in OFFERED else OTHER_API)

    def _check_offered(self, request: InFlight) -> None:
        offered = OFFERED.get(request.api_key)
        if offered is None and self._passes_unknown:
            return
        if offered is None or request.version > offered.version_max:
            self._meter.hidden += 1
            log.warning("hidden_request", peer=self._opened.facts.peer, api=f"{request.api_key} version {request.version}")
            raise MalformedRequest(f"api key {request.api_key} version {request.version} was not offered")

    async def _refuse_version(self, request: InFlight, size_bytes: int) -> None:
        """Answer a newer ApiVersions than there is."""
        if size_bytes > VERSIONS_BYTES_MAX or len(self._in_flight[-1].following if self._in_flight else ()) >= FOLLOWING_MAX:
            raise MalformedRequest(f"an ApiVersions request of {size_bytes} bytes, or too many")
        await self._client.read(4 + size_bytes)
        body = unsupported()
        frame = (4 + len(body)).to_bytes(4, "big") + request.correlation_id.to_bytes(4, "big", signed=True) + body
        if self._in_flight:
            self._in_flight[-1].following.append(frame)
        else:
            await self._client.send(frame)

    async def _acks(self, size_bytes: int, version: int) -> int:
        """Of a Produce request. Raises MalformedRequest."""
        for head_bytes in (1 << 10, self._client.room_bytes):
            head = (await self._client.need(min(4 + size_bytes, head_bytes)))[: 4 + size_bytes]
            if (acks := acks_of(bytes(head[:head_bytes]), version)) is not None:
                return acks
        raise MalformedRequest("a Produce request without acks")

    # Responses

    async def _pass_responses(self) -> None:
        while head := await self._upstream.begin(4):
            size_bytes = _integer(head[:4])
            if not self._in_flight:
                raise MalformedResponse("the broker answers what was not requested")
            request, began_s = self._in_flight[0], self._now_s()
            if request.is_token:
                await self._upstream.pass_on(4 + size_bytes, self._client)
            else:
                await self._pass_response(request, size_bytes)
            if request.own is None and not request.is_token:
                self._passing(request.api_key).response_bytes += 4 + size_bytes
                self._meter.added.add(request.added_s + self._now_s() - began_s)
            for frame in request.following:
                await self._client.send(frame)
            self._in_flight.popleft()
            if request.plan is not None:
                request.plan.close()
            self._answered.set()
            self._note_idle()

    async def _pass_response(self, request: InFlight, size_bytes: int) -> None:
        head = await self._upstream.need(_HEAD_BYTES)
        if not self._opened.is_authenticated:
            await self._note_authenticated(request, size_bytes)
            head = await self._upstream.need(_HEAD_BYTES)
        correlation_id = _integer(head[4:8])
        if size_bytes < 4 or correlation_id != request.correlation_id:
            raise MalformedResponse(f"a response to {correlation_id} in place of {request.correlation_id}")
        if request.own is not None:
            if size_bytes > OWN_BYTES_MAX:
                raise MalformedResponse(f"a response of {size_bytes} bytes to a request of the proxy's own")
            self._upstream.take(_HEAD_BYTES)
            request.own.set_result(bytes(await self._upstream.read(size_bytes - 4)))
        elif request.api_key == Api.API_VERSIONS:
            self._upstream.take(_HEAD_BYTES)
            body = await self._upstream.read(size_bytes - 4)
            await self._send(request, intersected(bytes(body), request.version, passes_unknown=self._passes_unknown))
        elif request.plan is not None or has_addresses(request.api_key, request.version):
            self._upstream.take(_HEAD_BYTES)
            has_merge = request.plan is not None and request.plan.merge is not None
            if has_merge or (request.api_key in LENGTH_KEPT and size_bytes > EDITED_BYTES_MAX):
                await self._hide_addresses(request, size_bytes - 4)
            else:
                await self._replace_addresses(request, size_bytes - 4)
        else:
            if request.api_key == Api.SASL_HANDSHAKE and request.version == 0:
                head = await self._upstream.need(min(4 + size_bytes, _HEAD_BYTES + 2))
                self._is_token_next = _integer(head[8:10]) == Code.NONE
            await self._upstream.pass_on(4 + size_bytes, self._client)

    async def _note_authenticated(self, request: InFlight, size_bytes: int) -> None:
        """Once the broker has answered what it answers only those whom it knows."""
        if request.api_key == Api.SASL_AUTHENTICATE:
            self._uses_sasl = True
            at = _HEAD_BYTES + is_flexible(Api.SASL_AUTHENTICATE, request.version)  # behind tagged fields, of which none is known
            head = await self._upstream.need(min(4 + size_bytes, at + 2))
            self._opened.is_authenticated = _integer(head[at : at + 2]) == Code.NONE
        elif request.api_key == Api.SASL_HANDSHAKE:
            self._uses_sasl = True
        elif request.api_key != Api.API_VERSIONS:
            self._opened.is_authenticated = True
            self._registry.is_open |= not self._uses_sasl

    async def _replace_addresses(self, request: InFlight, body_bytes: int) -> None:
        """A response is kept until nothing in it can be an address any more, and changed."""
        walk = self._walk(request, body_bytes)
        body = await self._upstream.read(min(body_bytes, EDITED_BYTES_MAX))
        walk.advance(memoryview(body))
        while not walk.is_done:
            if len(body) == body_bytes:
                raise MalformedResponse(f"a response to api {request.api_key} version {request.version} ends too early")
            body = body + await self._upstream.read(min(len(body), body_bytes - len(body)))  # a new one: the walk has a view of what was
            walk.advance(memoryview(body))
        self._learn(walk)
        parts = walk.edited(memoryview(body))
        await self._send(request, *parts, following_bytes=body_bytes - len(body))
        await self._upstream.pass_on(body_bytes - len(body), self._client)

    def _walk(self, request: InFlight, body_bytes: int, *, keeps_length: bool = False) -> AddressWalk:
        if request.plan is None or self._fetches is None:
            return AddressWalk(request.api_key, request.version, self._address_of, body_bytes, keeps_length=keeps_length)
        merge = request.plan.merge
        code_for = self._fetches.code_for
        return FetchWalk(request.version, self._address_of, body_bytes, code_for, keeps_length=keeps_length, merge=merge)

    async def _hide_addresses(self, request: InFlight, body_bytes: int) -> None:
        """What is too long to be kept passes, and addresses in it become unreadable. What is the archive's goes in between."""
        if request.plan is not None and request.plan.merge is not None and not await self._has_topics(request, body_bytes):
            request.plan.merge = None  # the broker throttles the client, or refuses the whole
        walk = self._walk(request, body_bytes, keeps_length=True)
        merge = request.plan.merge if request.plan is not None else None
        grown = merge.grown_bytes(is_flexible=is_flexible(request.api_key, request.version)) if merge is not None else 0
        head = _response_head(request, body_bytes + grown)  # goes with the first bytes: every send may wake the client
        kept_bytes = 0
        while not walk.is_done:
            if kept_bytes == body_bytes or kept_bytes == self._upstream.room_bytes:
                raise MalformedResponse(f"a response to api {request.api_key} version {request.version} is not what it should be")
            window = (await self._upstream.need(kept_bytes + 1))[:body_bytes]
            done = walk.advance(window)
            await self._client.send(head, window[:done])
            head = b""
            self._upstream.take(done)
            kept_bytes, body_bytes = len(window) - done, body_bytes - done
            if not walk.is_done and (opaque_bytes := walk.skip()):
                await self._upstream.pass_on(opaque_bytes, self._client)
                body_bytes -= opaque_bytes
            if isinstance(walk, FetchWalk) and walk.insertion is not None:
                insertion, walk.insertion = walk.insertion, None
                self._upstream.take(insertion.dropped_bytes)
                body_bytes -= insertion.dropped_bytes
                await self._send_parts(insertion.parts)
                kept_bytes = 0  # the rest of the window was not looked at
        await self._upstream.pass_on(body_bytes, self._client)

    async def _has_topics(self, request: InFlight, body_bytes: int) -> bool:
        """Whether a Fetch response has any, which its first bytes tell."""
        is_compact = is_flexible(Api.FETCH, request.version)
        at = (
            10 if request.version >= 7 else 4
        ) + is_compact  # behind throttle time, error and session; and tagged fields, of which none is known
        head = await self._upstream.need(min(body_bytes, at + 4))
        return bytes(head[at : at + 1]) > b"\1" if is_compact else _integer(head[at : at + 4]) > 0

    async def _send(self, request: InFlight, *parts: bytes | memoryview, following_bytes: int = 0) -> None:
        """following_bytes: of the response that follow"""
        await self._client.send(_response_head(request, sum(map(len, parts)) + following_bytes), *parts)

    async def _send_parts(self, parts: Sequence[Part]) -> None:
        size_bytes = sum(len(part) if isinstance(part, bytes) else part.length for part in parts)
        await self._client.send_parts(parts, self._readers, SEND_S + size_bytes / SLOWEST_BYTES_PER_S)

    def _learn(self, walk: AddressWalk) -> None:
        """Where brokers are, once it is known that they are of this cluster. Raises OtherCluster."""
        if walk.cluster_id:
            self._registry.check(walk.cluster_id)
            self._is_of_cluster = True
        for node in walk.nodes if self._is_of_cluster else ():
            self._registry.learn(*node)

    def _address_of(self, node_id: int, host: str, port: int) -> tuple[str, int]:
        return self._registry.ports.address_of(node_id, self._host)


def acks_of(frame: bytes, version: int) -> int | None:
    """Of a Produce request, whose frame begins with its size and need not be whole; None: it ends before. Raises MalformedRequest.

    Source: Kafka 4.4, ProduceRequest.json and RequestHeader.json.
    """
    at = _REQUEST_HEAD_BYTES + max(0, _integer(frame[12:14]))
    if is_flexible(Api.PRODUCE, version):
        if at + 2 * _VARINT_BYTES_MAX > len(frame):
            return None
        at = skip_tags(frame, at)
        length, at = read_varint(frame, at)
        at += max(0, length - 1)
    elif version >= 3:
        at += 2 + max(0, _integer(frame[at : at + 2]))
    return None if at + 2 > len(frame) else _integer(frame[at : at + 2])


def _response_head(request: InFlight, body_bytes: int) -> bytes:
    return flexible.i32(4 + body_bytes) + flexible.i32(request.correlation_id)


def _integer(raw: bytes | bytearray | memoryview) -> int:
    return int.from_bytes(raw, "big", signed=True)


def _is_request(head: memoryview, size_bytes: int) -> bool:
    """Whether a frame begins with a request's header, and not with a token of SASL: those of PLAIN, SCRAM and GSSAPI never do."""
    if len(head) < _REQUEST_HEAD_BYTES - 4:
        return False
    offered, version, client_id_bytes = OFFERED.get(_integer(head[:2])), _integer(head[2:4]), _integer(head[8:10])
    return offered is not None and 0 <= version <= offered.version_max and -1 <= client_id_bytes <= size_bytes - 10
