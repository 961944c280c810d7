"""The topics that the gateway advertises: a snapshot of the logs, and its encodings kept until it changes."""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping
from concurrent.futures import Executor, wait
from dataclasses import dataclass, field, replace

import structlog

from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError, TransientError
from headwater_core.partition import topic_id_bytes
from hydration.logs import Logs
from hydration.partition_log import Pending

ENCODINGS_MAX = 256  # clients request few different sets of topics; the oldest encoding makes room
ENCODINGS_BYTES_MAX = 32 << 20  # of all of them together; one that is larger alone is made again each time
LISTING_S = 5.0  # a new topic is seen after that; directories and bucket are not listed more often
WAIT_S = 2.0  # for a new look, before the last one is served again
EARLY_S = 0.5  # for the first listing, before what is known of it is served
FIRST_WAIT_S = 10.0  # for the first topics, before a request for all of them fails

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TopicView:
    """
    partitions  (number, leader epoch), the epoch -1 where it is not known
    encodings   its part of Metadata, by version: filled by who encodes it
    """

    name: str
    topic_id: bytes
    partitions: tuple[tuple[int, int], ...]
    encodings: dict[int, bytes] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_internal(self) -> bool:
        return self.name in ("__consumer_offsets", "__transaction_state")


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """`is_whole`: a topic that is not in it did not exist. Else it may be where nothing could be listed yet."""

    cluster_id: str
    topics: dict[str, TopicView]
    is_whole: bool = True


class TopicSnapshots:
    """Topics as of at most `ttl_s` ago, looked at off the event loop, one look at a time.

    When bucket or disk do not answer, the last look is served: no client waits longer than WAIT_S for a new one. While nothing was
    listed, a snapshot is not whole.
    """

    def __init__(self, logs: Logs, executor: Executor, clock: Clock, ttl_s: float) -> None:
        self._logs, self._executor, self._clock, self._ttl_s = logs, executor, clock, ttl_s
        self._snapshot = TopicSnapshot("", {}, is_whole=False)
        self._names: dict[bytes, str] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._looked_s: float | None = None
        self._listed_s: float | None = None
        self._began_s = 0.0  # the look that is in flight
        self._looking: asyncio.Task[None] | None = None
        self._encodings: OrderedDict[object, bytes] = OrderedDict()
        self._encodings_bytes = 0

    async def snapshot(self) -> TopicSnapshot:
        """As of at most `ttl_s` seconds ago, or the last one when a new look takes longer than WAIT_S. Raises nothing."""
        if self._looking is None and self._is_older(self._looked_s, self._ttl_s):
            self._looking = asyncio.create_task(self._look())
            self._began_s = self._clock.monotonic_s()
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=max(0.0, WAIT_S - (self._clock.monotonic_s() - self._began_s)))
        return self._snapshot

    async def topics(self) -> TopicSnapshot:
        """For a request of all topics. Raises TransientError when nothing is known yet: that is not the same as none."""
        deadline_s = self._clock.monotonic_s() + FIRST_WAIT_S
        snapshot = await self.snapshot()
        while not snapshot.is_whole and not snapshot.topics:
            if self._looking is None or self._clock.monotonic_s() >= deadline_s:
                raise TransientError("which topics there are is not known yet")
            await asyncio.wait([self._looking], timeout=max(0.0, deadline_s - self._clock.monotonic_s()))
            snapshot = self._snapshot
        return snapshot

    @property
    def is_whole(self) -> bool:
        return self._snapshot.is_whole

    def known(self, topic: str | bytes) -> TopicView | None:
        """The topic of this name or id, as of the last look."""
        name = self._names.get(topic) if isinstance(topic, bytes) else topic
        return self._snapshot.topics.get(name) if name is not None else None

    def advertised_epoch(self, topic: str, partition: int) -> int:
        """The leader epoch in Metadata, -1 where it has none. Safe to call from any thread."""
        return self._epochs.get((topic, partition), -1)

    async def topic_names(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]:
        """The names of those topics, and maybe of others; however many are unknown, one new look is waited for."""
        if any(each not in self._names for each in topic_ids):
            await self.snapshot()
        return self._names

    async def close(self) -> None:
        """Wait for the end of a look in flight."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    def kept(self, key: object) -> bytes | None:
        """Return what keep() got for `key`, if nothing has changed since."""
        if key not in self._encodings:
            return None
        self._encodings.move_to_end(key)
        return self._encodings[key]

    def keep(self, key: object, snapshot: TopicSnapshot, encoded: bytes) -> None:
        """Keep what was encoded from `snapshot`, unless there is a newer one. Keys are kept, too: let them be small."""
        if snapshot is not self._snapshot or len(encoded) > ENCODINGS_BYTES_MAX:
            return
        self._encodings_bytes += len(encoded) - len(self._encodings.pop(key, b""))
        self._encodings[key] = encoded
        while len(self._encodings) > ENCODINGS_MAX or self._encodings_bytes > ENCODINGS_BYTES_MAX:
            self._encodings_bytes -= len(self._encodings.popitem(last=False)[1])

    def _is_older(self, at_s: float | None, age_s: float) -> bool:
        return at_s is None or self._clock.monotonic_s() - at_s >= age_s

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._is_older(self._listed_s, max(LISTING_S, self._ttl_s)):
                try:
                    listing = loop.run_in_executor(self._executor, self._logs.refresh)
                    if not (await asyncio.wait([listing], timeout=EARLY_S))[0] and not self._snapshot.is_whole:
                        self._take_over(await loop.run_in_executor(self._executor, self._take))  # what is known by then
                    await listing
                except HeadwaterError as error:
                    log.warning("catalogue_refresh_failed", reason=str(error))
                self._listed_s = self._clock.monotonic_s()
            self._take_over(await loop.run_in_executor(self._executor, self._take))
            self._looked_s = self._clock.monotonic_s()
        except Exception:
            log.exception("catalogue_look_failed")
        finally:
            self._looking = None

    def _take_over(self, snapshot: TopicSnapshot) -> None:
        if snapshot != self._snapshot:
            known = self._snapshot.topics
            topics = {name: known[name] if known.get(name) == topic else topic for name, topic in snapshot.topics.items()}
            self._snapshot = snapshot = replace(snapshot, topics=topics)  # what has not changed keeps its encodings
            self._names = {topic.topic_id: name for name, topic in snapshot.topics.items()}
            self._epochs = {(name, at): epoch for name, topic in snapshot.topics.items() for at, epoch in topic.partitions}
            self._encodings.clear()
            self._encodings_bytes = 0

    def _take(self) -> TopicSnapshot:
        is_whole = self._logs.unlisted is None  # before the topics are taken
        epochs = {(name, at): self._try_epoch(name, at) for name, topic in sorted(self._logs.topics().items()) for at in topic.partitions}
        wait([epoch.future for epoch in epochs.values() if isinstance(epoch, Pending)], timeout=WAIT_S)
        return TopicSnapshot(
            self._logs.cluster_id,
            {
                name: TopicView(
                    name,
                    topic_id_bytes(topic.topic_id),
                    tuple((at, self._leader_epoch(name, at, epochs.get((name, at)))) for at in topic.partitions),
                )
                for name, topic in sorted(self._logs.topics().items())
            },
            is_whole,
        )

    def _try_epoch(self, topic: str, partition: int) -> int | Pending[int] | None:
        try:
            return self._logs.try_leader_epoch(topic, partition)
        except Exception:  # one partition's failure hides no other; its readers meet it
            return None

    def _leader_epoch(self, topic: str, partition: int, epoch: int | Pending[int] | None) -> int:
        """The former one while nothing newer is known: an epoch that comes and goes would confuse clients."""
        if isinstance(epoch, Pending):
            try:
                epoch = None if epoch.future.cancel() else epoch.future.result(timeout=0)
            except Exception:
                epoch = None
        return self.advertised_epoch(topic, partition) if epoch is None else epoch
