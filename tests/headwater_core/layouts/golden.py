"""Makes the objects of tests/fixtures/layouts (its README says what they are), and reads them as they lie there.

python -m tests.headwater_core.layouts.golden DIRECTORY    writes them there
"""

import io
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from headwater_core.layouts import NewRun, Offloaded, Offloader
from headwater_core.layouts.blocks import BlocksLayout
from headwater_core.layouts.chunks import SegmentPlace, Variant
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.chunks.consolidation import consolidate
from headwater_core.layouts.streaming import LedgerEntries, OfferResult, OffloadBudget, StreamingLayout, StreamingOffloader
from headwater_core.layouts.testing import EXTRA, PARTITION, a_run, scanned
from headwater_core.objectstore.store import ObjectForm, ObjectStore
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.run_scan import OpenTransaction
from tests.headwater_core.objectstore.memory import MemoryStore

GOLDEN = Path(__file__).parents[2] / "fixtures" / "layouts"
UID = UUID("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
QUEUE = "chunks/cluster-1/node.7/orders/3"
BASE = 5  # of the run
CHUNK_BYTES = 4096
SOFTWARE = "headwater-software"  # the version that wrote an object: it is no part of the format


class PlainStore(MemoryStore):
    """As a directory: what is said in user metadata may get lost."""

    keeps_metadata = False


@dataclass(frozen=True)
class Golden:
    """What one layout left: objects by key, their user metadata, and what the manifest's entry says."""

    objects: Mapping[str, bytes]
    metadata: Mapping[str, Mapping[str, str]]
    entry: Mapping[str, Any]

    def store(self) -> MemoryStore:
        store = MemoryStore()
        for key, content in self.objects.items():
            store.put(key, io.BytesIO(content), size_bytes=len(content), form=ObjectForm(metadata=self.metadata[key]))
        return store

    @property
    def stored_run(self) -> Any:
        return SimpleNamespace(**self.entry)


def _whole(layout: Offloader, key: str, index_key: str, run: bytes, store: MemoryStore) -> Golden:
    scan = scanned(run)
    new = NewRun(PARTITION, scan.base_offset, scan.last_offset, key, index_key, io.BytesIO(run), scan)
    return _left(store, layout.name, key, index_key, layout.offload(store, [new], EXTRA)[0])


def _left(store: ObjectStore, layout: str, key: str, index_key: str, done: Offloaded) -> Golden:
    found = [info.key for info in store.list("")]
    metadata = {each: dict(store.read_into(each, memoryview(bytearray(1)), start=0)) for each in found}
    said = {"layout": layout, "key": key, "index_key": index_key, **asdict(done)}
    return Golden({each: store.get(each)[0] for each in found}, metadata, said)


def _blocks(run: bytes) -> Golden:
    return _whole(BlocksLayout(3_000), "data/run.blocks", "", run, MemoryStore())


def _streaming(run: bytes) -> Golden:
    key = f"stream/0000000007/{UID}"
    return _whole(StreamingLayout(3_000), key, f"{key}-index", run, MemoryStore())


def _streamed(run: bytes) -> Golden:
    """By the surface of PIP-76: two ledgers, the first of which was closed, in a store that keeps no metadata."""
    store = PlainStore()
    offloader = StreamingOffloader(store, PARTITION, prefix="stream/0000000007/", fence=7, budget=OffloadBudget(1 << 20), part_bytes=3_000)
    handle = offloader.streaming_offload(
        UID, {"bucket": "b"}, base_offset=BASE, open_before=(OpenTransaction(6, 2),), assigned_ms=1_700_000_000_000, extra_metadata=EXTRA
    )
    found = [run[at : at + header.size_bytes] for at, header in headers(io.BytesIO(run), 0, len(run), where="run")]
    half = len(found) // 2
    for number, batch in enumerate(found):
        ledger, entry = (BASE, 2 + number) if number < half else (17, number - half)
        assert handle.offer(LedgerEntries(ledger, entry, batch)) is OfferResult.SUCCESS
        while handle.send_part():
            pass
    handle.seal_ledger(BASE, entries=2 + half, size_bytes=77_000, closed_ms=1_700_000_001_000)
    handle.close(offloaded_ms=1_700_000_002_000)
    key = f"stream/0000000007/{UID}"
    return _left(store, "streaming", key, f"{key}-index", handle.offloaded())


def _appended(run: bytes) -> Golden:
    key = SegmentPlace(QUEUE, "commitLog", BASE, Variant.APPEND).chunk_key(0)
    return _whole(ChunksLayout(), key, f"{key}.index", run, MemoryStore())


def _cut(run: bytes) -> Golden:
    return _whole_cut(run, MemoryStore())


def _whole_cut(run: bytes, store: MemoryStore) -> Golden:
    key = SegmentPlace(QUEUE, "commitLog", BASE, Variant.FIXED).chunk_key(0)
    return _whole(ChunksLayout(Variant.FIXED, CHUNK_BYTES), key, f"{key}.index", run, store)


def _consolidated(run: bytes) -> Golden:
    """Of the fixed variant; its chunks are gone, its index is the one of the run."""
    store, place = MemoryStore(), SegmentPlace(QUEUE, "commitLog", BASE, Variant.FIXED)
    before = _whole_cut(run, store)
    consolidate(store, place, len(run), {"headwater-partition": "orders:3"})
    for key in before.objects:
        if key != before.entry["index_key"]:
            store.delete(key)
    done = Offloaded(**{name: before.entry[name] for name in Offloaded.__slots__ if name != "context"}, context={"version": "1"})
    return _left(store, "chunks", place.segment_key, before.entry["index_key"], done)


SETS: Mapping[str, Callable[[bytes], Golden]] = {
    "blocks": _blocks,
    "streaming": _streaming,
    "streaming-ledgers": _streamed,
    "chunks-append": _appended,
    "chunks-fixed": _cut,
    "chunks-consolidated": _consolidated,
}


def source() -> bytes:
    return (GOLDEN / "run.bin").read_bytes()


def frozen(name: str) -> Golden:
    said = json.loads((GOLDEN / name / "said.json").read_text("utf-8"))
    objects = {key: (GOLDEN / name / file).read_bytes() for key, file in said["files"].items()}
    return Golden(objects, said["metadata"], said["entry"])


def _write(into: Path) -> None:
    run = a_run(6, value_bytes=1_800, base_offset=BASE)
    into.mkdir(parents=True, exist_ok=True)
    (into / "run.bin").write_bytes(run)
    for name, make in SETS.items():
        made, folder = make(run), into / name
        folder.mkdir(exist_ok=True)
        files = {key: f"{number}.bin" for number, key in enumerate(sorted(made.objects))}
        for key, file in files.items():
            (folder / file).write_bytes(made.objects[key])
        said = {"entry": dict(made.entry), "files": files, "metadata": made.metadata}
        (folder / "said.json").write_text(json.dumps(said, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
