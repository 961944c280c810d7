"""How runs are cut into chunks: plans in memory, made from indexes that are in the cache or come from the store."""

import io
import threading
from collections import OrderedDict
from typing import BinaryIO

from headwater_core.errors import CorruptData
from headwater_core.layouts import open_layout
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectStore
from headwater_core.page_cache import write_all
from headwater_core.partition import PartitionId
from headwater_core.segments.runindex import RunIndex, decode_index, encode_index
from hydration.archive.chunks import ChunkPlan, plan_chunks
from hydration.archive.damage import KnownDamage, damage_of
from hydration.cache.cache_directory import index_name
from hydration.cache.chunk_cache import ChunkCache
from manifests.entry import Entry

PLANS_BYTES_MAX = 64 << 20  # decoded indexes kept in memory


class Plans:
    """The most recently used plans, bounded by the bytes of their indexes. For many threads."""

    def __init__(self, store: ObjectStore, cache: ChunkCache, chunk_bytes: int, damage: KnownDamage) -> None:
        self._store, self._cache, self._chunk_bytes, self._damage = store, cache, chunk_bytes, damage
        self._lock = threading.Lock()
        self._plans: OrderedDict[tuple[str, int], tuple[ChunkPlan, int]] = OrderedDict()
        self._bytes = 0

    def get(self, entry: Entry) -> ChunkPlan | None:
        """The plan when it is in memory."""
        with self._lock:
            kept = self._plans.get((entry.uid, entry.live_bytes))
            if kept is None:
                return None
            self._plans.move_to_end((entry.uid, entry.live_bytes))
            return kept[0]

    def load(self, partition: PartitionId, entry: Entry) -> ChunkPlan:
        """The plan by the run's index, from the cache or the store; blocks. Raises CorruptData for an index that is damaged, and what
        the store and the cache raise."""
        name = index_name(partition, entry.uid)
        found: list[RunIndex] = []

        def check(file: BinaryIO) -> None:
            raw = file.read(DOCUMENT_BYTES_MAX)
            if digest_of(raw) != entry.index_digest:
                raise CorruptData(name, 0, "not the index that the manifest names")
            found.append(decode_index(raw, where=name))

        kept = self._cache.adopt(name, entry.index_bytes, check)
        if kept is None:
            try:
                index = open_layout(entry.layout).read_offloaded(self._store, entry).read_index()
            except CorruptData as error:
                self._damage.note(damage_of(partition, entry, error, offset=entry.base_offset))
                raise
            found.append(index)
            raw = encode_index(index)
            kept = self._cache.put(name, len(raw), lambda file: write_all(file, memoryview(raw)))
        elif not found:
            check(io.BytesIO(kept.read(0, entry.index_bytes)))  # its descriptor's position may be another's
        kept.release()
        plan = plan_chunks(found[0], entry.live_bytes, self._chunk_bytes)
        self._keep((entry.uid, entry.live_bytes), plan, entry.index_bytes)
        return plan

    def _keep(self, key: tuple[str, int], plan: ChunkPlan, size_bytes: int) -> None:
        with self._lock:
            self._bytes -= self._plans.pop(key, (None, 0))[1]
            self._plans[key] = (plan, size_bytes)
            self._bytes += size_bytes
            while self._bytes > PLANS_BYTES_MAX and len(self._plans) > 1:
                self._bytes -= self._plans.popitem(last=False)[1][1]
