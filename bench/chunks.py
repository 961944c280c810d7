"""What chunks cost against the native layout: writing the runs of one queue, or of many, and reading them cold.

`python -m bench.chunks [--mib 256] [--queues 1 1000] [--rounds 3] [--s3] [--scratch DIR]`. The same bytes go to all queues
together, as one run of each queue and step: what an archiver uploads, without its manifests. A run is 16 MiB, or less where queues
are many. Reading is 4 MiB at a time, each batch's checksum verified, as hydration does. "consolidated" is the fixed variant after its
chunks have become one object. Contenders take turns; the best round of each counts.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.layouts import PARTITION, a_segment, a_store, read
from headwater_core.layouts import NewRun, Offloaded, Offloader
from headwater_core.layouts.chunks import SegmentPlace, Variant, consolidate
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.segment import SegmentLayout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.run_scan import RunScan, scan_run
from tests.headwater_core.objectstore.meter import MeteredStore

MIB = 1 << 20
RUN_BYTES = 16 * MIB


class Contender(NamedTuple):
    """variant: of its keys; None for the native layout's."""

    make: Callable[[], Offloader]
    variant: Variant | None
    is_consolidated: bool = False


CONTENDERS = {
    "native": Contender(SegmentLayout, None),
    "append": Contender(ChunksLayout, Variant.APPEND),
    "fixed": Contender(lambda: ChunksLayout(Variant.FIXED), Variant.FIXED),
    "consolidated": Contender(lambda: ChunksLayout(Variant.FIXED), Variant.FIXED, is_consolidated=True),
}


class Cost(NamedTuple):
    """Seconds of writing, of consolidating and of reading; requests of each."""

    write_s: float
    join_s: float
    read_s: float
    puts: int
    gets: int


def measure(store: ObjectStore, path: Path, scan: RunScan, contender: Contender, stem: str, runs: int, forget: Callable[[], None]) -> Cost:
    """`runs` of the same bytes, each in a queue or at a base of its own."""
    metered = MeteredStore(store)
    entries: list[Any] = []
    places = [SegmentPlace(f"chunks/bench/{stem}/{number}", "commitLog", 0, contender.variant or Variant.APPEND) for number in range(runs)]
    began_s = perf_counter()
    with path.open("rb", buffering=0) as file:
        for number, place in enumerate(places):
            key = place.chunk_key(0) if contender.variant else f"data/{stem}/{number}.log"
            index_key = f"{key}.index" if contender.variant else f"data/{stem}/{number}.index"
            run = NewRun(PARTITION, scan.base_offset, scan.last_offset, key, index_key, file, scan)
            [done] = contender.make().offload(metered, [run], {})
            fields = {name: getattr(done, name) for name in Offloaded.__slots__}
            entries.append(SimpleNamespace(layout="bench", key=key, index_key=index_key, **fields))
    write_s, puts = perf_counter() - began_s, metered.calls["put"]
    began_s = perf_counter()
    if contender.is_consolidated:
        for place, entry in zip(places, entries, strict=True):
            consolidate(metered, place, scan.size_bytes)
            entry.key, entry.context = place.segment_key, {"version": "1"}
    join_s = perf_counter() - began_s
    forget()
    metered.reset()
    began_s = perf_counter()
    for entry in entries:
        read(contender.make(), metered, entry)
    read_s = perf_counter() - began_s
    for prefix in (f"chunks/bench/{stem}/", f"data/{stem}/"):
        for info in list(store.list(prefix)):
            store.delete(info.key)
    return Cost(write_s, join_s, read_s, puts, metered.calls["read_into"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--queues", type=int, nargs="*", default=[1, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--scratch", type=Path)
    arguments = parser.parse_args()
    table = Table("queues", "KiB a run", "", "write MB/s", "of native", "PUTs/GB", "joined MB/s", "read MB/s", "of native", "GETs/GB")
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch, a_store(Path(scratch), s3=arguments.s3) as (store, forget):
        path = Path(scratch) / "segment.log"
        for queues in arguments.queues:
            run_bytes = min(RUN_BYTES, arguments.mib * MIB // queues)
            runs = max(queues, arguments.mib * MIB // run_bytes)
            a_segment(path, -(-run_bytes // MIB), 16 << 10)
            with path.open("rb") as file:
                scan = scan_run(file, start=0, end=_whole_batches(path, run_bytes), where=str(path))
            assert scan is not None
            total = runs * scan.size_bytes
            costs: dict[str, list[Cost]] = {name: [] for name in CONTENDERS}
            for number in range(arguments.rounds):
                for name, contender in CONTENDERS.items():
                    costs[name].append(measure(store, path, scan, contender, f"{queues}-{number}-{name}", runs, forget))
            best = {name: Cost(*(min(column) for column in zip(*found, strict=True))) for name, found in costs.items()}
            native = best["native"]
            for name, cost in best.items():
                table.add_row(
                    str(queues),
                    str(scan.size_bytes >> 10),
                    name,
                    f"{total / cost.write_s / 1e6:.0f}",
                    f"{native.write_s / cost.write_s:.2f}",
                    f"{cost.puts / total * 1e9:.0f}",
                    f"{total / cost.join_s / 1e6:.0f}" if CONTENDERS[name].is_consolidated else "",
                    f"{total / cost.read_s / 1e6:.0f}",
                    f"{native.read_s / cost.read_s:.2f}",
                    f"{cost.gets / total * 1e9:.0f}",
                )
    Console(width=120).print(table)


def _whole_batches(path: Path, run_bytes: int) -> int:
    """The length of as many of the file's batches, all of one size, as `run_bytes` have room for."""
    with path.open("rb") as file:
        file.seek(8)
        batch_bytes = 12 + int.from_bytes(file.read(4), "big")
    return min(path.stat().st_size, run_bytes // batch_bytes * batch_bytes)


if __name__ == "__main__":
    main()
