"""A partition's whole life, entry by entry: what a commit costs, what a look-up costs, and what the catalogue takes at rest.

`python -m bench.manifests [--entries 1000000]`. Entries are as a busy topic's are: uids and digests at random, everything else rising.
Every commit is a real one over a store in memory that counts requests and bytes, so that nothing but the manifest is measured.
The peer is the head of format 1, which holds every entry: its bytes are those of a head with as many entries.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from headwater_core.epochs import EpochStart
from headwater_core.partition import PartitionId, topic_id_text
from manifests import keys
from manifests.entry import Entry
from manifests.head import Head
from manifests.index import ManifestIndex
from manifests.page import PageRef
from manifests.repository import ManifestRepository, Versioned
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore

AIMS = "aims: a commit <= 1.5x from the first row to the last, <= 3 GETs, a look-up < 10 us at the median, <= 110 bytes an entry"
PARTITION = PartitionId("AAAAAAAAAAAAAAAAAAAAAA", topic_id_text(bytes(range(16))), 3, "orders.placed")
WINDOW = 1_000  # commits over which a cost is averaged; fewer at the start
FORMAT_1_ENTRY_BYTES = 798  # 32 MiB held about 42,000 entries
LOOK_UPS = 20_000
AT_ONCE = 500  # entries a commit, on the way to where one a commit is measured


def entries(seed: int = 1) -> Iterator[Entry]:
    """Segments of a busy topic, one after the other, without end."""
    draw = random.Random(seed)
    base, now_ms, epoch = 0, 1_700_000_000_000, 5
    while True:
        records = draw.randrange(200_000, 260_000)
        first_ms, now_ms = now_ms, now_ms + draw.randrange(600_000, 900_000)
        epoch += draw.random() < 0.002
        uid = f"{draw.getrandbits(128):032x}"
        key = keys.data(PARTITION, base, base + records - 1, 1, uid)
        size_bytes = draw.randrange(1_000_000_000, 1_073_741_824)
        yield Entry(
            base_offset=base,
            last_offset=base + records - 1,
            epochs=(EpochStart(epoch, base),),
            first_timestamp_ms=first_ms,
            last_timestamp_ms=now_ms,
            records=records,
            uid=uid,
            fence=1,
            key=key,
            size_bytes=size_bytes,
            live_bytes=size_bytes,
            digest=f"crc64nvme:{draw.getrandbits(64):016x}",
            index_key=keys.index(key),
            index_bytes=draw.randrange(250_000, 270_000),
            index_digest=f"crc64nvme:{draw.getrandbits(64):016x}",
            max_producer_id=4_000,
        )
        base += records


def first_head() -> Head:
    return Head(
        cluster_id=PARTITION.cluster_id,
        topic=PARTITION.topic,
        topic_id=PARTITION.topic_id,
        partition=PARTITION.partition,
        version=1,
        commit_id="unset",
        fence=1,
        writer="node-1-0123456789abcdef",
        start_offset=0,
        last_offset=-1,
    )


class Life:
    """One partition that grows."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.store = MeteredStore(self.inner)
        self.repository = ManifestRepository(self.store)
        self.held: Versioned = self.repository.commit(None, first_head())
        self._entries = entries()
        self.count = 0

    def grow(self, count: int, at_once: int = 1) -> None:
        """By `count` entries, so many with each commit."""
        for _ in range(0, count, at_once):
            more, head = tuple(islice(self._entries, at_once)), self.held.head
            after = replace(head, entries=head.entries.followed_by(*more), last_offset=more[-1].last_offset)
            self.held = self.repository.commit(self.held, after)
            self.count += at_once

    def at_rest(self) -> int:
        """Bytes of what the newest head refers to."""
        refs = list(self.held.head.entries.references)
        size_bytes = 0
        while refs:
            ref = refs.pop()
            size_bytes += ref.size_bytes
            if ref.level:
                refs += [each for each in self.held.head.entries.pages.read(ref) if isinstance(each, PageRef)]
        return size_bytes + self.held.size_bytes


def measured(life: Life) -> tuple[float, float]:
    """Bytes written and CPU milliseconds of a commit, over a window that ends here: rewriting of pages is part of it."""
    window = min(WINDOW, max(life.count // 2, 50))
    written, cpu_s = life.store.bytes_written, process_time()
    life.grow(window)
    return (life.store.bytes_written - written) / window, (process_time() - cpu_s) / window * 1000


def reads_from_nothing(life: Life, offsets: list[int]) -> int:
    """The most requests that it takes to find an entry with nothing at hand."""
    most = 0
    for offset in offsets:
        store = MeteredStore(life.inner)
        held = ManifestRepository(store).load(PARTITION)
        assert held is not None
        assert held.head.entries.at(offset) is not None
        most = max(most, store.calls["get"])
    return most


def look_up_us(life: Life, directory: Path) -> tuple[float, float]:
    """Median and 99th percentile of a look-up in the index, in microseconds, once its pages are there."""
    draw = random.Random(7)
    end = life.held.head.next_offset
    near = [min(end // 2 + draw.randrange(end // 50 + 1), end - 1) for _ in range(LOOK_UPS)]
    took: list[float] = []
    with ManifestIndex(directory / "index") as index:
        index.replace(life.held.head)
        for offset in near:
            while isinstance(found := index.floor(PARTITION, offset), PageRef):
                index.add_page(found, life.held.head.entries.pages.read(found))
            began_s = perf_counter()
            index.floor(PARTITION, offset)
            took.append((perf_counter() - began_s) * 1e6)
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--entries", type=int, default=20_000, help="how long the life is; a million takes minutes")
    limit = parser.parse_args().entries
    life, first = Life(), None
    columns = ("entries", "head KB", "bytes/commit", "ms/commit", "GETs", "look-up us", "p99", "bytes/entry", "bytes", "time", "format 1")
    table = Table(*columns, title="one partition as it grows; bytes and time of a commit in proportion to the first row")
    for count in sorted({100, 1_000, 10_000, 100_000, 1_000_000, limit}):
        if count > limit:
            break
        life.grow(count - life.count, AT_ONCE if count > AT_ONCE else 1)
        written, cpu_ms = measured(life)
        first = first or (written, cpu_ms)
        end = life.held.head.next_offset
        gets = reads_from_nothing(life, [0, end // 3, end // 2, end - 1])
        with tempfile.TemporaryDirectory() as directory:
            median, p99 = look_up_us(life, Path(directory))
        at_rest = life.at_rest() / life.count
        table.add_row(
            f"{life.count:,}",
            f"{life.held.size_bytes / 1000:.1f}",
            f"{written:,.0f}",
            f"{cpu_ms:.2f}",
            f"{gets}",
            f"{median:.1f}",
            f"{p99:.1f}",
            f"{at_rest:.1f}",
            f"{written / first[0]:.2f}",
            f"{cpu_ms / first[1]:.2f}",
            f"{FORMAT_1_ENTRY_BYTES * life.count / written:,.0f}x",
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    print(AIMS)


if __name__ == "__main__":
    main()
