"""What a layout costs against the native one: archiving a segment, reading it cold from front to back, and at an offset.

`python -m bench.layouts [--mib 256] [--rounds 5] [--s3] [--scratch DIR]`. The layouts take turns, so that a machine that slows down slows
all of them; the best round of each counts. Writing is the scan and the offload, from a segment's file; reading is a process' first
read, 4 MiB at a time, each batch's checksum verified, as hydration does. "CPU" is our process' own, which a busy machine changes least.
With --s3 the store is an S3 server on this machine (bench.servers), else a directory.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

from rich.console import Console
from rich.table import Table

from bench.servers import running_server
from headwater_core.layouts import NewRun, Offloaded, Offloader, open_layout
from headwater_core.layouts.blocks import BlocksLayout
from headwater_core.layouts.segment import SegmentLayout
from headwater_core.layouts.streaming import StreamingLayout
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.batch_walk import check_batches
from headwater_core.segments.run_scan import scan_run
from hydration.archive.chunks import plan_chunks
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import a_batch

MIB = 1 << 20
CHUNK_BYTES = 4 * MIB
PARTITION = PartitionId("bench", "8oKxBSxSTqiNSI4eyBDMxw", 0, "bench")
LAYOUTS: dict[str, Callable[[], Offloader]] = {  # a new one remembers nothing
    "segment": SegmentLayout,
    "blocks": BlocksLayout,
    "streaming": StreamingLayout,
}


class Cost(NamedTuple):
    """Seconds, elapsed and of our CPU, and requests of a cold read at an offset."""

    write_s: float
    read_s: float
    write_cpu_s: float
    read_cpu_s: float
    gets: int


def a_segment(path: Path, mib: int, batch_bytes: int) -> int:
    """Batches of about `batch_bytes` each, of bytes that do not compress; the file's length."""
    batch = a_batch(0, [Random(1).randbytes(max(batch_bytes - 80, 1))])
    with path.open("wb") as file:
        for offset in range(mib * MIB // len(batch)):
            file.write(offset.to_bytes(8, "big") + batch[8:])
    return path.stat().st_size


def write(layout: Offloader, store: ObjectStore, path: Path, key: str) -> tuple[Any, Offloaded]:
    """What a manifest entry would say of it."""
    with path.open("rb", buffering=0) as file:
        scan = scan_run(file, start=0, end=path.stat().st_size, where=str(path))
        assert scan is not None
        index_key = f"{key}.index" if layout.name == "segment" else ""
        run = NewRun(PARTITION, scan.base_offset, scan.last_offset, key, index_key, file, scan)
        (done,) = layout.offload(store, [run], {})
    fields = {name: getattr(done, name) for name in Offloaded.__slots__}
    return SimpleNamespace(layout=layout.name, key=key, index_key=index_key, **fields), done


def read(layout: Offloader, store: ObjectStore, entry: Any) -> None:
    reader = layout.read_offloaded(store, entry)
    buffer = memoryview(bytearray(2 * CHUNK_BYTES))
    for chunk in plan_chunks(reader.read_index(), entry.run_bytes, CHUNK_BYTES).chunks:
        reader.read_into(buffer[: chunk.size_bytes], chunk.position)
        check_batches(buffer[: chunk.size_bytes], where="bench")


def measure(store: ObjectStore, path: Path, name: str, key: str, forget: Callable[[], None]) -> Cost:
    began_s, cpu_s = perf_counter(), process_time()
    entry, _ = write(LAYOUTS[name](), store, path, key)
    write_s, write_cpu_s = perf_counter() - began_s, process_time() - cpu_s
    forget()
    began_s, cpu_s = perf_counter(), process_time()
    read(LAYOUTS[name](), store, entry)
    read_s, read_cpu_s = perf_counter() - began_s, process_time() - cpu_s
    metered = MeteredStore(store)
    reader = LAYOUTS[name]().read_offloaded(metered, entry)
    at = reader.read_index().points.positions[-2]
    reader.read_into(memoryview(bytearray(1000)), at)
    layout = open_layout(name)
    layout.delete_offloaded(store, entry)
    return Cost(write_s, read_s, write_cpu_s, read_cpu_s, metered.calls["read_into"])


@contextmanager
def a_store(scratch: Path, *, s3: bool) -> Iterator[tuple[ObjectStore, Callable[[], None]]]:
    """A store, and what makes the operating system forget what it has of it."""
    if s3:
        with running_server(scratch) as (name, server):
            Console().print(f"on {name}")
            os.environ.update(server.environ())
            with closing(S3Store(server.bucket(), endpoint_url=server.endpoint_url)) as store:
                yield store, lambda: None
        return
    root = scratch / "bucket"
    root.mkdir()

    def forget() -> None:
        for path in root.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    yield DirectoryStore(root), forget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--scratch", type=Path)
    arguments = parser.parse_args()
    table = Table(
        "KiB", "layout", "write MB/s", "of native", "CPU s/GB", "of native", "read MB/s", "of native", "CPU s/GB", "of native", "GETs"
    )
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch, a_store(Path(scratch), s3=arguments.s3) as (store, forget):
        for batch_bytes in (1 << 10, 16 << 10, 256 << 10):
            path = Path(scratch) / "segment.log"
            size_bytes = a_segment(path, arguments.mib, batch_bytes)
            costs: dict[str, list[Cost]] = {name: [] for name in LAYOUTS}
            for number in range(arguments.rounds):
                for name in LAYOUTS:
                    costs[name].append(measure(store, path, name, f"data/{name}/{UUID(int=batch_bytes << 8 | number)}", forget))
            best = {name: [min(column) for column in zip(*found, strict=True)] for name, found in costs.items()}
            for name, (write_s, read_s, write_cpu_s, read_cpu_s, gets) in best.items():
                native = best["segment"]
                table.add_row(
                    str(batch_bytes >> 10),
                    name,
                    f"{size_bytes / write_s / 1e6:.0f}",
                    f"{native[0] / write_s:.2f}",
                    f"{write_cpu_s / size_bytes * 1e9:.2f}",
                    f"{native[2] / write_cpu_s:.2f}",
                    f"{size_bytes / read_s / 1e6:.0f}",
                    f"{native[1] / read_s:.2f}",
                    f"{read_cpu_s / size_bytes * 1e9:.2f}",
                    f"{native[3] / read_cpu_s:.2f}",
                    str(gets),
                )
    Console().print(table)


if __name__ == "__main__":
    main()
