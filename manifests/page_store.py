"""The pages of a bucket: read and verified, written once. Keeps some of them, packed as they are: pages never change."""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from headwater_core.errors import CorruptData, ManifestChanged, NotFound
from headwater_core.objectstore.confirmed_put import put_confirmed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from manifests.page import Item, PageRef, decode_page, encode_page, line_of, page_key, reference

KEPT_BYTES = 16 << 20

StillRefers = Callable[[PartitionId, PageRef], bool]
"""Does the partition's head, read again, refer to that page still? Raises what the store does."""


class PageStore:
    """Safe to use from many threads."""

    def __init__(self, store: ObjectStore, new_id: Callable[[], str], still_refers: StillRefers, kept_bytes: int = KEPT_BYTES) -> None:
        self._store, self._new_id, self._still_refers, self._kept_bytes = store, new_id, still_refers, kept_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()  # by uid, least recently used first
        self._size_bytes = 0
        self._unlisted: OrderedDict[tuple[PartitionId, int, int, str], PageRef] = OrderedDict()  # confirmed, for a commit still to come

    def read(self, partition: PartitionId, ref: PageRef) -> tuple[Item, ...]:
        """What the page lists. Raises as PageReader.read says."""
        with self._lock:
            raw = self._kept.get(ref.uid)
            if raw is not None:
                self._kept.move_to_end(ref.uid)
        if raw is None:
            key = page_key(partition, ref)
            try:
                raw, _ = self._store.get(key)
            except NotFound as error:
                if self._still_refers(partition, ref):
                    raise CorruptData(key, 0, f"the manifest refers to it, the store does not have it ({error})") from error
                raise ManifestChanged(f"{key} was replaced while it was read; ask again") from error
            items = decode_page(raw, partition, ref)
            self._keep(ref, raw)
            return items
        return decode_page(raw, partition, ref)

    def write(self, partition: PartitionId, fence: int, level: int, items: Sequence[Item]) -> PageRef:
        """Store a page of `items` that the commit under `fence` is to refer to; the reference, once the store has confirmed it.

        A page that was confirmed for a commit that did not come about is the one of the next try, if that wants the same: a bucket
        that refuses heads must not fill with copies. A write whose outcome stays unknown takes a new name next time.
        """
        raw = encode_page(partition, level, map(line_of, items))
        wanted = (partition, fence, level, digest_of(raw))
        with self._lock:
            confirmed = self._unlisted.get(wanted)
        if confirmed is not None:
            return confirmed
        ref = reference(items, uid=self._new_id(), level=level, fence=fence, size_bytes=len(raw), digest=wanted[3])
        put_confirmed(self._store, page_key(partition, ref), io.BytesIO(raw), len(raw), ref.digest)
        self._keep(ref, raw)
        with self._lock:
            self._unlisted[wanted] = ref
            while len(self._unlisted) > _UNLISTED_MAX:
                self._unlisted.popitem(last=False)
        return ref

    def _keep(self, ref: PageRef, raw: bytes) -> None:
        with self._lock:
            if ref.uid in self._kept or len(raw) > self._kept_bytes:
                return
            self._kept[ref.uid] = raw
            self._size_bytes += len(raw)
            while self._size_bytes > self._kept_bytes:
                self._size_bytes -= len(self._kept.popitem(last=False)[1])


_UNLISTED_MAX = 1_000  # pages; each is a few hundred bytes here


class PartitionPages:
    """The pages of one partition: a PageReader. Can be pickled when its store can."""

    __slots__ = ("_pages", "_partition")

    def __init__(self, pages: PageStore, partition: PartitionId) -> None:
        self._pages, self._partition = pages, partition

    def read(self, ref: PageRef) -> tuple[Item, ...]:
        return self._pages.read(self._partition, ref)
