"""Fetch (key 1), versions 4 to 18: slices of runs, now or as soon as there are any.

v5  log start offset
v7  sessions (KIP-227)
v9  current leader epoch (KIP-320)
v10 Zstandard (KIP-110)
v11 rack (KIP-392)
v12 flexible; last fetched epoch (KIP-595)
v13 topics by id (KIP-516)
v14 OFFSET_MOVED_TO_TIERED_STORAGE, for replicas (KIP-405)
v15 replica state (KIP-903)
v16 leaders' endpoints (KIP-951)
v17 directory ids (KIP-853)
v18 replicas' high watermarks (KIP-1166)

Not here: sessions, which are declined; preferred replicas; diverging epochs; what only replicas ask.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from headwater.gateway.config import GatewayConfig
from headwater.gateway.failures import report_failure
from headwater.gateway.messages import Fields
from headwater.gateway.patience import Patience, WantedOffset
from headwater.gateway.protocol import Code, check_leader_epoch, code_for, isolation_of, once_each
from headwater.gateway.response import NO_RECORDS, Records
from headwater.gateway.topic_snapshot import TopicSnapshots
from headwater_core.errors import TransientError
from hydration.logs import Logs
from hydration.partition_log import Bounds, Isolation, PartitionLog, Pending, ReadResult

VERSIONS = range(4, 19)
PER_TURN = 64  # partitions before other connections get the event loop


@dataclass(slots=True)
class _Wanted:
    """One partition of a request, and what has become of it: a result, a failure, or a read that is still in flight."""

    topic: str | bytes  # as it was requested: by name, or by id from version 13 on
    partition: int
    log: PartitionLog | None
    offset: int
    max_bytes: int
    code: Code = Code.NONE
    result: ReadResult | None = None
    bounds: Bounds | None = None
    pending: "Pending[ReadResult] | None" = None
    is_crowded_out: bool = False  # it has something, for which there is no room

    @property
    def size_bytes(self) -> int:
        return self.result.size_bytes if self.result is not None else 0


class Client(Protocol):
    """Who waits for a response. wakeup: ends a wait"""

    wakeup: asyncio.Event

    @property
    def is_gone(self) -> bool: ...
    def forget_request(self) -> None:
        """Its bytes are needed no more."""
        ...

    async def wait(self, timeout_s: float) -> None:
        """Until `wakeup` is set, `timeout_s` seconds at most."""
        ...


@dataclass(slots=True)
class Fetched:
    """A response and the files it needs until it is sent. The caller closes it.

    waiting  topic and partition of those that have no records because they are on their way, or for want of room
    """

    fields: Fields
    results: list[ReadResult] = field(default_factory=list)
    waiting: set[tuple[str | bytes, int]] = field(default_factory=set)

    def close(self) -> None:
        for result in self.results:
            result.close()
        self.results = []


class Fetcher:
    def __init__(self, logs: Logs, snapshots: TopicSnapshots, config: GatewayConfig) -> None:
        self._logs, self._snapshots, self._config = logs, snapshots, config
        self._patience = Patience(config.storage_wait_s)

    async def fetch(self, body: Fields, version: int, client: Client) -> Fetched:
        """Answer at once when `min_bytes` are there or something failed; else when they are, or after `max_wait`.

        A chunk that must come from the bucket is waited for `hydration_wait_s` where the client's own time is shorter. When it is still
        not there the response is empty, the download continues, and a retry finds it; after `storage_wait_s` of retries the response
        is an error. When a client closes its end the wait ends: its response is what there is, should it still read.
        """
        if body.get("session_id", 0) or body.get("session_epoch", -1) > 0:  # there are none here
            return Fetched({"error_code": Code.FETCH_SESSION_ID_NOT_FOUND, "session_id": 0, "responses": []})
        wanted = await self._wanted(body, version)
        isolation = isolation_of(body.get("isolation_level", 0))
        max_bytes = max(1, min(body["max_bytes"], self._config.response_bytes_max))
        min_bytes, max_wait_s = min(body["min_bytes"], max_bytes), max(0, body["max_wait"]) / 1000
        del body
        try:
            gathered_bytes = await self._read(wanted, isolation, max_bytes, 0)
            if not _is_enough(wanted, gathered_bytes, min_bytes):
                client.forget_request()
                await self._wait(wanted, isolation, max_bytes, gathered_bytes, min_bytes, max_wait_s, client)
            await self._end_waits(wanted, isolation)
            return await _fetched(wanted, isolation, version)
        except BaseException:
            for each in wanted:
                if each.result is not None:
                    each.result.close()
            raise
        finally:
            for each in wanted:
                if each.pending is not None:
                    _abandon(each.pending)

    async def _wanted(self, body: Fields, version: int) -> list[_Wanted]:
        by_id = version >= 13
        requested = once_each(body["topics"], "topic_id" if by_id else "topic", "partition")
        names = await self._snapshots.topic_names(requested.keys()) if by_id else {}
        wanted = []
        for topic, partitions in requested.items():
            name = names.get(topic) if by_id else topic
            for partition, fields in partitions.items():
                each = _Wanted(topic, partition, None, fields["fetch_offset"], fields["partition_max_bytes"])
                wanted.append(each)
                await _turn(len(wanted))
                if name is None:
                    each.code = Code.UNKNOWN_TOPIC_ID if self._snapshots.is_whole else Code.KAFKA_STORAGE_ERROR
                    continue
                advertised = self._snapshots.advertised_epoch(name, partition)
                each.code = check_leader_epoch(fields.get("current_leader_epoch", -1), advertised)
                try:
                    each.log = self._logs.partition(name, partition)
                except Exception as error:
                    report_failure("Fetch", f"{name}:{partition}", error)
                    each.code = code_for(error)
        return wanted

    async def _wait(
        self,
        wanted: list[_Wanted],
        isolation: Isolation,
        max_bytes: int,
        gathered_bytes: int,
        min_bytes: int,
        max_wait_s: float,
        client: Client,
    ) -> None:
        """Read again and again, until there is enough, the time is over or the client has left."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        wait_s = min(max_wait_s, self._config.fetch_wait_max_s)
        deadline_s = now_s + wait_s
        hydrated_s = now_s + max(wait_s, self._config.hydration_wait_s)
        while not _is_enough(wanted, gathered_bytes, min_bytes):
            pending = [each.pending.future for each in wanted if each.pending is not None]
            left_s = (deadline_s if gathered_bytes or not pending else hydrated_s) - loop.time()
            if left_s <= 0 or client.is_gone:
                return
            client.wakeup.clear()
            _wake_when_done(pending, client.wakeup)
            await client.wait(left_s if pending else min(left_s, self._config.poll_s))
            gathered_bytes = await self._read(wanted, isolation, max_bytes, gathered_bytes)

    async def _read(self, wanted: Iterable[_Wanted], isolation: Isolation, max_bytes: int, gathered_bytes: int) -> int:
        """One read of every partition that has nothing yet; how many bytes there are in all, with the `gathered_bytes` of before.

        The first partition with anything gives at least one batch, whatever its size; the others only what fits.
        """
        for at, each in enumerate(wanted):
            await _turn(at)
            if each.log is None or each.code is not Code.NONE or each.size_bytes:
                continue
            try:
                if gathered_bytes < max_bytes:
                    self._try_read(each, each.log, isolation, min(each.max_bytes, max_bytes - gathered_bytes))
                elif each.bounds is None:
                    each.bounds = each.log.known_bounds(isolation)
            except Exception as error:  # whatever it is, it concerns this partition alone
                report_failure("Fetch", str(each.log.partition), error)
                each.code = code_for(error)
                continue
            if each.result is None:
                continue
            size_bytes = each.result.size_bytes
            each.is_crowded_out = bool(gathered_bytes) and gathered_bytes + size_bytes > max_bytes
            if each.is_crowded_out:
                each.result.close()
            else:
                gathered_bytes += size_bytes
        return gathered_bytes

    async def _end_waits(self, wanted: Iterable[_Wanted], isolation: Isolation) -> None:
        """What is still in flight is answered without records, or, after too long, with an error."""
        if not self._patience.has_any and all(each.pending is None for each in wanted):
            return  # nothing is in flight, nor was it before: nearly always
        now_s = asyncio.get_running_loop().time()
        for at, each in enumerate(wanted):
            await _turn(at)
            if each.log is None or each.code is not Code.NONE:
                continue
            offset = WantedOffset(str(each.log.partition), each.offset)
            if each.pending is None:
                self._patience.got(offset)
            elif self._patience.is_over(offset, now_s):
                error = TransientError(f"offset {each.offset} is not there after {self._config.storage_wait_s:g} s")
                report_failure("Fetch", offset.partition, error)
                each.code = code_for(error)
            elif each.result is None and each.bounds is None:
                each.bounds = each.log.known_bounds(isolation)

    @staticmethod
    def _try_read(each: _Wanted, log: PartitionLog, isolation: Isolation, max_bytes: int) -> None:
        if each.pending is not None:
            if not each.pending.future.done():
                return
            pending, each.pending = each.pending, None
            _take_result(each, pending.future.result())
            return
        read = log.try_read(each.offset, max(1, max_bytes), isolation)
        if isinstance(read, Pending):
            each.pending = read
        else:
            _take_result(each, read)


def _is_enough(wanted: list[_Wanted], gathered_bytes: int, min_bytes: int) -> bool:
    """Whether to respond now: with `min_bytes`, or because something failed."""
    return gathered_bytes >= min_bytes or any(each.code is not Code.NONE for each in wanted)


def _take_result(each: _Wanted, result: ReadResult) -> None:
    if each.result is not None:
        each.result.close()
    each.result = result


def _abandon(pending: Pending[ReadResult]) -> None:
    """The wait for this read has ended. Its download is shared and continues; what it opens is closed."""

    def close(done: Future[ReadResult]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().close()

    if not pending.future.cancel():
        pending.future.add_done_callback(close)


def _wake_when_done(futures: Iterable[Future[ReadResult]], wakeup: asyncio.Event) -> None:
    """Set `wakeup` when a worker thread has completed one of them. The waiter looks at the outcome."""
    loop = asyncio.get_running_loop()

    def wake(_: Future[ReadResult]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it the wait
            loop.call_soon_threadsafe(wakeup.set)

    for future in futures:
        future.add_done_callback(wake)


async def _turn(at: int) -> None:
    """Let others have their turn, after PER_TURN of as many partitions as a client may name."""
    if at % PER_TURN == PER_TURN - 1:
        await asyncio.sleep(0)


async def _fetched(wanted: list[_Wanted], isolation: Isolation, version: int) -> Fetched:
    topics: dict[str | bytes, list[Fields]] = {}
    results, waiting = [], set()
    for at, each in enumerate(wanted):
        await _turn(at)
        topics.setdefault(each.topic, []).append(_partition(each, isolation))
        if each.result is not None:
            results.append(each.result)
        if (each.result is None or each.is_crowded_out) and each.code is Code.NONE:
            waiting.add((each.topic, each.partition))
    key = "topic_id" if version >= 13 else "topic"
    return Fetched(
        {
            "error_code": Code.NONE,
            "session_id": 0,
            "responses": [{key: topic, "partitions": partitions} for topic, partitions in topics.items()],
        },
        results,
        waiting,
    )


def _partition(each: _Wanted, isolation: Isolation) -> Fields:
    result, bounds = each.result, each.bounds
    fields: dict[str, Any] = {
        "partition_index": each.partition,
        "error_code": each.code,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "records": NO_RECORDS,
    }
    if bounds is not None:
        fields["high_watermark"], fields["log_start_offset"] = bounds.high_watermark, bounds.log_start
        if bounds.last_stable_offset is not None:
            fields["last_stable_offset"] = bounds.last_stable_offset
    if result is not None and each.code is Code.NONE:
        fields["high_watermark"] = result.high_watermark
        fields["log_start_offset"] = result.log_start
        fields["records"] = Records(result.slices, result.size_bytes)
        if isolation is Isolation.READ_COMMITTED:
            fields["last_stable_offset"] = result.high_watermark if result.last_stable_offset is None else result.last_stable_offset
            fields["aborted_transactions"] = [
                {"producer_id": each.producer_id, "first_offset": each.first_offset} for each in result.aborted
            ]
    return fields
