"""How large the objects of a partition are by the store, asked for mostly in order of their keys.

Neither the keys nor the listing are held: the keys of a partition's runs are in order of their offsets, so both are read side by side. Keys
that say no offsets are held.
"""

from collections.abc import Iterator, Mapping

from headwater_core.errors import NotFound
from headwater_core.objectstore.store import ObjectInfo, ObjectStore
from headwater_core.partition import PartitionId
from manifests import chunk_keys, keys


class ObjectSizes:
    """An absence is the store's own word: a listing is a hint."""

    def __init__(self, store: ObjectStore, partition: PartitionId) -> None:
        self._store, self._prefix = store, keys.data_prefix(partition)
        self._listed: Iterator[ObjectInfo] = iter(())
        self._next: ObjectInfo | None = None
        self._is_begun = False
        self._streams = keys.stream_prefix(partition)
        self._others: dict[str, tuple[str, Mapping[str, int]]] = {}  # by kind: the newest prefix, and what lies below it

    def of(self, key: str) -> int | None:
        """None: it is not there. Raises what the store raises otherwise."""
        found = self._in_order(key) if key.startswith(self._prefix) else self._held(key).get(key)
        if found is not None:
            return found
        try:
            return self._store.stat(key).size_bytes
        except NotFound:
            return None

    def _in_order(self, key: str) -> int | None:
        if not self._is_begun:
            self._is_begun, self._listed = True, iter(self._store.list(self._prefix))
            self._next = next(self._listed, None)
        while self._next is not None and self._next.key < key:
            self._next = next(self._listed, None)
        return self._next.size_bytes if self._next is not None and self._next.key == key else None

    def _held(self, key: str) -> Mapping[str, int]:
        """Of the objects beside `key`: those of streaming offload lie in a folder for each fence, chunks in one for each queue."""
        chunk = chunk_keys.parse(key)
        if chunk is not None:
            kind, prefix = chunk_keys.LAYOUT, f"{chunk.place.queue}/"
        elif key.startswith(self._streams):
            kind, prefix = "streaming", self._streams
        else:
            kind, prefix = "other", key[: key.rindex("/") + 1]
        held, sizes = self._others.get(kind, ("", {}))
        if held != prefix:
            sizes = {info.key: info.size_bytes for info in self._store.list(prefix)}
            self._others[kind] = prefix, sizes
        return sizes
