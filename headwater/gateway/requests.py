"""From a frame to a response: which kind of request it is, and which module answers it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from headwater.gateway.config import GatewayConfig
from headwater.gateway.connection import Connection
from headwater.gateway.frames import MalformedRequest, RequestHeader, read_header
from headwater.gateway.handlers import (
    VERSIONS,
    api_versions,
    consumer_group_heartbeat,
    describe_cluster,
    find_coordinator,
    join_group,
    list_offsets,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
)
from headwater.gateway.handlers.fetch import Fetched, Fetcher
from headwater.gateway.handlers.metadata import Address, metadata_body
from headwater.gateway.lookups import Lookups
from headwater.gateway.messages import Fields, load_schemas, read_request, write_header, write_response
from headwater.gateway.protocol import Api, Code
from headwater.gateway.response import Frame, Response
from headwater.gateway.topic_snapshot import TopicSnapshots
from headwater_core.clock import Clock
from hydration.logs import Logs

NAME_CHARS_MAX = 200  # of a group's name in an event
LONG_BYTES = 16 << 10  # a longer request is decoded beside the event loop, and its response encoded there: that may take 0.1 s

T = TypeVar("T")
log = structlog.get_logger()


@dataclass(slots=True)
class Reply:
    """A frame to send, and the files it is sent from: close it afterwards."""

    frame: Frame
    fetched: Fetched | None = None

    def close(self) -> None:
        if self.fetched is not None:
            self.fetched.close()


class Requests:
    """Answers requests over `logs`. What may block runs in `executor`."""

    def __init__(self, logs: Logs, config: GatewayConfig, executor: Executor, clock: Clock) -> None:
        self._config, self._executor = config, executor
        self.snapshots = TopicSnapshots(logs, executor, clock, config.metadata_ttl_s)
        self._fetcher = Fetcher(logs, self.snapshots, config)
        self._lookups = Lookups(logs, self.snapshots.advertised_epoch, executor)
        self._encoder = ThreadPoolExecutor(1, "gateway-encoder")  # nothing in it waits for a store
        self._loaded: set[tuple[int, int]] = set()

    async def load_schemas(self) -> None:
        """Of the newest versions, which most clients speak. The others are loaded when a client first does: all of them take most
        of a second of computing, which would delay other readers."""
        for api_key, versions in VERSIONS.items():
            await self._load(api_key, versions[-1])

    async def close(self) -> None:
        await self.snapshots.close()
        self._encoder.shutdown(wait=False, cancel_futures=True)

    async def answer(self, frame: bytes, address: Address, connection: Connection) -> Reply | None:
        """The reply to one request; None for the kind that expects none.

        address     the address to advertise to this client
        connection  watched while the answer waits for data

        Raises MalformedRequest when the frame is no request, or not of an API and version that ApiVersions offers.
        """
        header = read_header(frame)
        versions = VERSIONS.get(header.api_key)  # type: ignore[call-overload]  # any int may be requested
        if versions is None:
            raise MalformedRequest(f"api key {header.api_key} was not offered")
        if header.api_version not in versions:
            if header.api_key == Api.API_VERSIONS:  # a newer client: it reads this and retries
                await self._load(Api.API_VERSIONS, 0)
                return _reply(header, api_versions.respond(VERSIONS, Code.UNSUPPORTED_VERSION), version=0)
            raise MalformedRequest(f"api key {header.api_key} version {header.api_version} was not offered")
        await self._load(header.api_key, header.api_version)
        beside = self._executor if len(frame) > LONG_BYTES else None
        body = await _run(beside, read_request, frame, header.body_position, header.api_key, header.api_version)
        del frame
        match header.api_key:
            case Api.FETCH:
                fetch = self._fetcher.fetch(body, header.api_version, connection)
                del body  # a fetch that waits keeps only the partitions that exist
                fetched = await fetch
                try:
                    return await _run(beside, _reply, header, fetched.fields, fetched)
                except BaseException:
                    fetched.close()
                    raise
            case Api.METADATA:
                encoding = metadata_body(self.snapshots, self._encoder, header, body, self._config.node_id, address)
                return _encoded(header, await encoding)
            case Api.LIST_OFFSETS:
                return await _run(beside, _reply, header, await list_offsets.respond(self._lookups, body))
            case Api.OFFSET_FOR_LEADER_EPOCH:
                return await _run(beside, _reply, header, await offset_for_leader_epoch.respond(self._lookups, body))
            case Api.DESCRIBE_CLUSTER:
                return _reply(header, describe_cluster.respond(await self.snapshots.snapshot(), self._config.node_id, address))
            case _:
                return await _run(beside, self._at_once, header, body, address, connection.peer)

    async def _load(self, api_key: int, version: int) -> None:
        if (api_key, version) not in self._loaded:
            await _run(self._encoder, load_schemas, api_key, version)
            self._loaded.add((api_key, version))

    def _at_once(self, header: RequestHeader, body: Fields, address: Address, peer: str) -> Reply | None:
        """The response to what needs no log."""
        match header.api_key:
            case Api.FIND_COORDINATOR:
                return _reply(header, find_coordinator.respond(body, self._config.node_id, address))
            case Api.OFFSET_FETCH:
                return _reply(header, offset_fetch.respond(body))
            case Api.OFFSET_COMMIT:
                return _reply(header, offset_commit.respond(body))
            case Api.JOIN_GROUP | Api.CONSUMER_GROUP_HEARTBEAT:
                log.warning("group_refused", group=body["group_id"][:NAME_CHARS_MAX], peer=peer, client_id=header.client_id)
                answering = join_group if header.api_key == Api.JOIN_GROUP else consumer_group_heartbeat
                return _reply(header, answering.respond())
            case Api.PRODUCE:
                log.warning("produce_refused", peer=peer, client_id=header.client_id)
                refusal = produce.respond(body)
                return None if refusal is None else _reply(header, refusal)
            case _:
                return _reply(header, api_versions.respond(VERSIONS))


async def _run(executor: Executor | None, work: Callable[..., T], *arguments: Any) -> T:
    """`work` done, in `executor` if there is one."""
    if executor is None:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)


def _reply(header: RequestHeader, fields: Fields, fetched: Fetched | None = None, *, version: int | None = None) -> Reply:
    response = Response()
    write_response(response, fields, header.api_key, header.api_version if version is None else version, header.correlation_id)
    return Reply(response.frame(), fetched)


def _encoded(header: RequestHeader, body: bytes) -> Reply:
    response = Response()
    write_header(response, header.api_key, header.api_version, header.correlation_id)
    return Reply(response.frame(body))
