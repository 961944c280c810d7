"""What the archive has, as the proxy asks it: for topics as their brokers name them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from headwater.gateway.config import Earliest, GatewayConfig
from headwater.gateway.handlers import list_offsets, offset_for_leader_epoch
from headwater.gateway.handlers.fetch import Fetched, Fetcher
from headwater.gateway.lookups import Lookups
from headwater.gateway.messages import Fields
from headwater.gateway.proxy.address_walk import TopicKey
from headwater.gateway.topic_snapshot import LISTING_S, TopicSnapshots, TopicView
from headwater_core.clock import Clock
from headwater_core.errors import NotFound
from hydration.logs import Logs


@dataclass
class _Waiting:
    """Waits for a fetch until it has something, or its time is over. That its client has gone is seen after that."""

    is_gone: bool = False
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)

    def forget_request(self) -> None:
        pass

    async def wait(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.wakeup.wait()


class ArchiveSide:
    """For all connections."""

    def __init__(
        self,
        logs: Logs,
        config: GatewayConfig,
        executor: Executor,
        clock: Clock,
        earliest_for: Callable[[str], Earliest] | None = None,
    ) -> None:
        self._logs, self._executor = logs, executor
        self._earliest_for = earliest_for or (lambda topic: config.earliest)
        self._snapshots = TopicSnapshots(logs, executor, clock, config.metadata_ttl_s)
        self._fetcher = Fetcher(logs, self._snapshots, replace(config, hydration_wait_s=0.0))
        self._lookups = Lookups(logs, self._snapshots.advertised_epoch, executor)

    async def close(self) -> None:
        """What is still looked for is not waited for."""
        await self._snapshots.close()

    async def keep_listed(self) -> None:
        """Look for topics now and then, until it is cancelled."""
        while True:
            await self._snapshots.snapshot()
            await asyncio.sleep(LISTING_S)

    def may_hold(self, topic: TopicKey, partition: int) -> bool:
        """As last listed, which is seconds ago. True as well where nothing could be listed yet."""
        if (view := self._view(topic)) is None:
            return not self._snapshots.is_whole and self._snapshots.known(topic) is None
        return any(number == partition for number, _ in view.partitions)

    def name_of(self, topic: TopicKey) -> str | None:
        view = self._view(topic)
        return view.name if view is not None else None

    def id_of(self, topic: TopicKey) -> bytes | None:
        view = self._view(topic)
        return view.topic_id if view is not None else None

    def is_earliest(self, topic: str) -> bool:
        """Whether clients are told the archive's first offset."""
        return self.name_of(topic) is not None and self._earliest_for(topic) is Earliest.ARCHIVE

    @property
    def is_listed(self) -> bool:
        """A topic that is not known does not exist there."""
        return self._snapshots.is_whole

    async def range_of(self, topic: TopicKey, partition: int) -> tuple[int, int]:
        """Its first offset and the one behind its last, by a manifest that is read now. Raises HeadwaterError."""
        name = self.name_of(topic)
        if name is None:
            raise NotFound(f"a topic that is not archived: {topic!r}")

        def look() -> tuple[int, int]:
            manifest = self._logs.partition(name, partition).manifest
            if manifest is not None:
                manifest.load()
            if manifest is None or manifest.extent is None:
                raise NotFound(f"{name}:{partition} is not archived")
            return manifest.extent.start_offset, manifest.extent.next_offset

        return await asyncio.get_running_loop().run_in_executor(self._executor, look)

    async def list_offsets(self, body: Fields) -> Fields:
        """As list_offsets.respond."""
        return await list_offsets.respond(self._lookups, body)

    async def epoch_ends(self, body: Fields) -> Fields:
        """As offset_for_leader_epoch.respond."""
        return await offset_for_leader_epoch.respond(self._lookups, body)

    async def fetch(self, body: Fields, version: int) -> Fetched:
        """As Fetcher.fetch."""
        return await self._fetcher.fetch(body, version, _Waiting())

    def _view(self, topic: TopicKey) -> TopicView | None:
        """None as well for a topic whose readers are to have what the brokers have alone."""
        view = self._snapshots.known(topic)
        return view if view is not None and self._logs.priority_of(view.name).uses_archive else None
