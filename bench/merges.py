"""What merging costs per GB, and what a topic with a short seal timeout leaves in the bucket, with and without it.

`python -m bench.merges [--mib 256] [--hours 48] [--scratch DIR]`. The first table merges tails of 64 KiB and of 1 MiB, whose bytes are
local still, or in the store only; the store is a directory. The second one runs an agent's real archivers, merges and collection on
a clock that is moved by hand: in every minute of those hours a topic gets some records, and its tail is archived. `--hours 720` is a month.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any, NamedTuple

import structlog
from rich.console import Console
from rich.table import Table

from archival.config import ArchivalConfig
from archival.plan.policy import Policy
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import TopicPartition
from headwater_core.segments.batches import read_batch_header
from tests.archival.builders import Agent, Directory
from tests.headwater.broker import Bench
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import a_batch

MIB = 1 << 20
RECORDS = 20
COLLECT_HOURS = 6
MINUTE_MS = 60_000


class Cost(NamedTuple):
    """Of merging all there is."""

    cpu_s: float
    elapsed_s: float
    requests: int
    read_bytes: int
    written_bytes: int


def a_tail(first: int, size_bytes: int, batch: bytes, records: int) -> tuple[bytes, int]:
    """As many batches as make `size_bytes`, and the offset after them."""
    run = bytearray()
    while len(run) < size_bytes:
        run += first.to_bytes(8, "big") + batch[8:]
        first += records
    return bytes(run), first


def measure(root: Path, mib: int, tail_bytes: int, *, local: bool) -> Cost:
    root.mkdir(parents=True)
    directory = Directory(root / "logs")
    (root / "bucket").mkdir()
    store = MeteredStore(DirectoryStore(root / "bucket"))
    agent = Agent(directory.root, store)
    batch = a_batch(0, [Random(1).randbytes(16 << 10)])
    records = read_batch_header(batch).last_offset + 1
    directory.segment(0)
    end = 0
    for _ in range(mib * MIB // tail_bytes):
        tail, end = a_tail(end, tail_bytes, batch, records)
        directory.append(0, tail)
        directory.high_watermark(end)
        agent.run()
    if not local:
        (directory.path / f"{0:020}.log").unlink()
        directory.segment(end)
        directory.log_start(end)
    before = sum(store.calls.values()), store.bytes_read, store.bytes_written
    policy = Policy(merge_bytes=64 * MIB, merge_span_ms=1 << 50, tail_after_ms=0)
    passed: int | None = 0
    cpu_s, began_s = process_time(), perf_counter()
    while (done := agent.archiver.merge(policy, passed=passed)).more:
        passed = done.passed
    return Cost(
        process_time() - cpu_s,
        perf_counter() - began_s,
        sum(store.calls.values()) - before[0],
        store.bytes_read - before[1],
        store.bytes_written - before[2],
    )


def costs(console: Console, root: Path, mib: int) -> None:
    columns = ("tails", "bytes are", "CPU s/GB", "s/GB", "requests/GB", "read, bytes/byte", "written")
    table = Table(*columns, title=f"merging {mib} MiB into objects of 64 MiB")
    for tail_bytes in (64 << 10, MIB):
        for local in (True, False):
            cost = measure(root / f"{tail_bytes}-{local}", mib, tail_bytes, local=local)
            size_bytes = mib * MIB
            per_gb = 1e9 / size_bytes
            table.add_row(
                f"{tail_bytes >> 10} KiB",
                "local" if local else "in the store",
                f"{cost.cpu_s * per_gb:.2f}",
                f"{cost.elapsed_s * per_gb:.2f}",
                f"{cost.requests * per_gb:.0f}",
                f"{cost.read_bytes / size_bytes:.2f}",
                f"{cost.written_bytes / size_bytes:.2f}",
            )
    console.print(table)


def objects(store: ObjectStore) -> tuple[int, int]:
    """How many data objects there are, indexes not counted, and their bytes."""
    held = [info for info in store.list("data/") if info.key.endswith(".log")]
    return len(held), sum(info.size_bytes for info in held)


def live(root: Path, hours: int, settings: ArchivalConfig) -> list[str]:
    """One topic's life, a minute at a time; what is left, as a row of the table."""
    root.mkdir()
    inner = MemoryStore()
    store: Any = MeteredStore(inner)
    bench = Bench(root, store)
    bench.settings = settings
    bench.broker.partition("soup", 0)
    place, end = TopicPartition("soup", 0), 10
    (active,) = bench.broker.directory("soup", 0).glob("*10.log")
    batch = a_batch(0, [Random(2).randbytes(500) for _ in range(RECORDS)])
    active.write_bytes(b"")
    bench.scheduler.rescan()
    bench.turns()
    began_s = process_time()
    for minute in range(hours * 60):
        with active.open("ab") as file:
            file.write(end.to_bytes(8, "big") + batch[8:])
        end += RECORDS
        bench.broker.commit("soup", 0, end)
        for _ in range(2):  # the tail is seen; when it has waited, it is archived
            bench.clock.advance(MINUTE_MS // 2)
            bench.scheduler.add([place])
            bench.turns()
        if minute % (60 * COLLECT_HOURS) == 0:
            for partition in list(bench.fleet.heads()):
                bench.fleet.collect(partition)
    head = bench.head("soup", 0)
    assert head is not None
    count, held_bytes = objects(inner)
    writes = store.calls["put"] + store.calls["create"] + store.calls["replace"]
    reads = sum(store.calls.values()) - writes - store.calls["delete"]
    return [
        "none" if not settings.merge_bytes else f"{settings.merge_bytes >> 20} MiB",
        f"{len(head.entries):,}",
        f"{count:,}",
        f"{writes:,}",
        f"{reads:,}",
        f"{held_bytes / head.entries.live_bytes:.2f}",
        f"{store.bytes_written / head.entries.live_bytes:.2f}",
        f"{process_time() - began_s:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.merges")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--hours", type=int, default=48)
    parser.add_argument("--scratch", type=Path, default=None)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # an event for each run
    console = Console(width=150, file=sys.stderr if not sys.stdout.isatty() else sys.stdout)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=given.scratch) as scratch:
        costs(console, Path(scratch), given.mib)
        columns = ("merged to", "entries", "objects", "writes", "reads", "stored/live bytes", "written/live bytes", "CPU s")
        table = Table(*columns, title=f"{given.hours} hours of 10 KB a minute")
        for merge_bytes in (0, 64 * MIB):
            settings = ArchivalConfig(seal_timeout_s=30, merge_bytes=merge_bytes)
            table.add_row(*live(Path(scratch) / f"life-{merge_bytes}", given.hours, settings))
        console.print(table)


if __name__ == "__main__":
    main()
