"""What chunks cost against the native layout: writing the runs of one queue, or of many, and reading them cold.

`python -m bench.chunks [--mib 256] [--queues 1 1000] [--rounds 3] [--pool-mib 64] [--s3] [--scratch DIR]`. The same bytes go to each
queue: step after step a run of each, which is what an archiver uploads, without its manifests; of several queues four at a time, as an
agent does with `uploads_in_flight`. With one queue a step is 16 MiB, with more a quarter of what a queue gets in all. In "append" a queue
is one segment, of a chunk for each step; in "fixed" each step is a segment. "pool" is streaming offload into chunks: what the steps bring
gathers, and a queue's buffer is sent when it has 8 MiB, or when all together fill the pool. Each measurement is a process of its own, so
that its memory is its own: the peak is that of all it does, Python and the store's client included, and the highest of all rounds. Reading
is 4 MiB at a time, each batch's checksum verified, as hydration does. "joined" says that a segment's chunks have become one object before
they are read, and what that cost; a segment of one chunk is one object already. Requests are HTTP requests on S3, each attempt of them; on
a directory they are calls of the store, and those that S3 would get for an object that is made of others. Contenders take turns; the best
round of each counts, and "CPU" is the process' own, which a busy machine changes least. In the end it says whether the aims are reached.
"""

import argparse
import io
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.layouts import PARTITION, a_segment, read
from bench.servers import running_server
from headwater_core.layouts import NewRun, Offloaded, Offloader
from headwater_core.layouts.chunks import CHUNK_BYTES, SegmentPlace, Variant, consolidate, delete_chunks
from headwater_core.layouts.chunks.chunk_handle import COMMIT_BYTES, ChunkHandle, CommittedRun
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.chunks.flush_plan import FlushLimits
from headwater_core.layouts.chunks.upload_pool import UploadPool
from headwater_core.layouts.segment import SegmentLayout
from headwater_core.layouts.streaming.offload_buffer import FileExtent, LedgerEntries, OfferResult, OffloadBudget
from headwater_core.objectstore.confirmed_put import put_all_confirmed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.object_range import plan_copy
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import PLAIN, NewObject, ObjectForm, ObjectRange, ObjectStore, Pace, at_once
from headwater_core.segments.run_scan import RunScan, scan_run
from headwater_core.segments.runindex import encode_index
from tests.headwater_core.objectstore.meter import MeteredStore

MIB = 1 << 20
STEP_BYTES = 16 * MIB
STEPS = 4  # of each queue, where there are many
IN_FLIGHT = 4  # queues that are written at a time: an agent's uploads_in_flight
READ_AIM, PEAK_AIM_BYTES = 0.8, 256 * MIB  # of native's speed once chunks have become one object; of all that a process takes
_BUDGET_BYTES = 16 * MIB  # of what stands for bytes in the log until they are sent
_COPY_BYTES = 5 * MIB, 128 * MIB, 10_000  # S3's: least and largest part that is copied, and how many there are
_READ_BYTES = 1 * MIB  # of one request for what is too small to be copied


class Job(NamedTuple):
    """What one process measures. step_bytes: the end of each step in the file at `path`."""

    contender: str
    stem: str
    queues: int
    path: str
    ends: list[int]
    pool_bytes: int


class Cost(NamedTuple):
    """Seconds, elapsed and of our CPU, requests, and the most memory. A least one counts, of several rounds."""

    write_s: float
    write_cpu_s: float
    puts: int
    join_s: float
    join_cpu_s: float
    join_requests: int
    read_s: float
    read_cpu_s: float
    gets: int
    peak_bytes: int


class Contender(NamedTuple):
    """make: a new one remembers nothing. variant: of its keys; None for the native layout's. is_pooled: the steps of a queue gather, as
    streaming offload lets them, and it is one segment."""

    make: Callable[[], Offloader]
    variant: Variant | None
    is_joined: bool = False
    is_pooled: bool = False


CONTENDERS = {
    "native": Contender(SegmentLayout, None),
    "append": Contender(ChunksLayout, Variant.APPEND),
    "append, joined": Contender(ChunksLayout, Variant.APPEND, is_joined=True),
    "append, pool": Contender(ChunksLayout, Variant.APPEND, is_pooled=True),
    "append, pool, joined": Contender(ChunksLayout, Variant.APPEND, is_joined=True, is_pooled=True),
    "fixed": Contender(lambda: ChunksLayout(Variant.FIXED), Variant.FIXED),
    "fixed, joined": Contender(lambda: ChunksLayout(Variant.FIXED), Variant.FIXED, is_joined=True),
    "fixed, pool": Contender(lambda: ChunksLayout(Variant.FIXED), Variant.FIXED, is_pooled=True),
    "fixed, pool, joined": Contender(lambda: ChunksLayout(Variant.FIXED), Variant.FIXED, is_joined=True, is_pooled=True),
}


class Requests(MeteredStore):
    """Counts requests: those of HTTP where the store makes them, else its calls, with what S3 would need to make an object of others."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._sent, self._planned = itertools.count(), 0
        self._counted_to = 0
        self._is_http = isinstance(inner, S3Store)
        if isinstance(inner, S3Store):
            inner._bucket.client.meta.events.register("before-send", self._count)

    def _count(self, **_: object) -> None:
        next(self._sent)

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        least, most, count = _COPY_BYTES
        plan = plan_copy(ranges, part_bytes_min=least, part_bytes_max=most, parts_max=count)
        reads = sum(-(-each.size_bytes // _READ_BYTES) for part in plan if part.is_sent for each in part.ranges)
        is_put = len(plan) == 1 and plan[0].is_sent
        self._planned += reads + (0 if is_put else len(plan) + 1)  # `join` itself is counted: it puts, or completes
        super().join(key, ranges, digest=digest, form=form, pace=pace)

    def lap(self) -> int:
        """How many since the last time."""
        if self._is_http:
            now = next(self._sent)
            found, self._counted_to = now - self._counted_to, now + 1
            return found
        found = sum(self.calls.values()) + self._planned
        self.reset()
        self._planned = 0
        return found


def write(contender: Contender, store: ObjectStore, job: Job, scans: list[RunScan]) -> list[Any]:
    """A run of each queue and step; what a manifest's entries would say."""

    def run_of(queue: int, scan: RunScan) -> Any:
        if contender.variant is None:
            key, index_key = (f"data/{job.stem}/{queue}-{scan.base_offset}.{end}" for end in ("log", "index"))
        else:
            is_one = contender.variant is Variant.APPEND
            place = _place(job, queue, 0 if is_one else scan.base_offset, contender.variant)
            key = place.chunk_key(scan.start_position if is_one else 0)
            index_key = f"{key}.index"
        with open(job.path, "rb", buffering=0) as file:
            run = NewRun(PARTITION, scan.base_offset, scan.last_offset, key, index_key, file, scan)
            [done] = contender.make().offload(store, [run], {})
        return _entry(key, index_key, done)

    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        return [entry for scan in scans for entry in threads.map(run_of, range(job.queues), itertools.repeat(scan))]


def write_pooled(variant: Variant, store: ObjectStore, job: Job, pool_bytes: int) -> list[Any]:
    """As `write`: a segment of each queue, whose objects follow from the pool."""
    pool, budget = UploadPool(pool_bytes), OffloadBudget(_BUDGET_BYTES)
    limits = FlushLimits(COMMIT_BYTES, 1 << 62)  # no queue waits too long here
    shares = [pool.share(limits, lambda: 0) for _ in range(job.queues)]
    handles = [ChunkHandle(store, _place(job, queue, 0, variant), budget, share) for queue, share in enumerate(shares)]

    def send(handle: ChunkHandle) -> None:
        while handle.send_part():
            pass

    def finish(handle: ChunkHandle) -> list[CommittedRun]:
        handle.close()
        return handle.finish()

    with open(job.path, "rb", buffering=0) as file, ThreadPoolExecutor(IN_FLIGHT) as threads:
        batch_bytes = _batch_bytes(Path(job.path))
        for start, end in zip([0, *job.ends], job.ends, strict=False):
            step = LedgerEntries(0, start // batch_bytes, FileExtent(file.fileno(), start, end - start), (end - start) // batch_bytes)
            for handle, share in zip(handles, shares, strict=True):
                assert handle.offer(step) is OfferResult.SUCCESS
                if share.is_due or pool.size_bytes >= pool_bytes:
                    due = [each for each, its in zip(handles, shares, strict=True) if its.is_due]
                    list(threads.map(send, due))
        runs = list(threads.map(finish, handles))
    return [_entry(run.key, f"{run.key}.index", run.offloaded) for each in runs for run in each]


def join_segments(store: ObjectStore, job: Job, variant: Variant, scan: RunScan) -> list[Any]:
    """Each queue's segment becomes one object, which is one run."""
    entries: list[Any] = []
    index = encode_index(scan.index)
    for queue in range(job.queues):
        place = _place(job, queue, 0, variant)
        consolidate(store, place, scan.size_bytes)
        delete_chunks(store, place, scan.size_bytes)
        index_key = f"{place.segment_key}.index"
        put_all_confirmed(store, [NewObject(index_key, io.BytesIO(index), len(index))], [digest_of(index)])
        done = Offloaded(
            size_bytes=scan.size_bytes,
            digest=scan.digest,
            run_bytes=scan.size_bytes,
            run_digest=scan.digest,
            index_bytes=len(index),
            index_digest=digest_of(index),
            context={"version": "1"},
        )
        entries.append(_entry(place.segment_key, index_key, done))
    return entries


def join_runs(contender: Contender, store: ObjectStore, job: Job, scans: list[RunScan], entries: list[Any]) -> None:
    """Each run's chunks become one object."""
    assert contender.variant is not None
    for number, entry in enumerate(entries):
        scan = scans[number // job.queues]
        if scan.size_bytes <= CHUNK_BYTES:
            continue
        place = _place(job, number % job.queues, scan.base_offset, contender.variant)
        consolidate(store, place, scan.size_bytes)
        delete_chunks(store, place, scan.size_bytes)
        entry.key, entry.context = place.segment_key, {"version": "1"}


def _place(job: Job, queue: int, base: int, variant: Variant) -> SegmentPlace:
    return SegmentPlace(f"chunks/{job.stem}/{queue}", "commitLog", base, variant)


def _entry(key: str, index_key: str, done: Offloaded) -> Any:
    fields = {name: getattr(done, name) for name in Offloaded.__slots__}
    return SimpleNamespace(layout="bench", key=key, index_key=index_key, **fields)


def measure(store: ObjectStore, job: Job, forget: Callable[[], None]) -> Cost:
    requests, contender = Requests(store), CONTENDERS[job.contender]
    scans = _scans(job, job.ends)
    [whole] = _scans(job, job.ends[-1:])
    requests.lap()
    clock = _Clock()
    if contender.is_pooled and contender.variant is not None:
        entries = write_pooled(contender.variant, requests, job, job.pool_bytes)
    else:
        entries = write(contender, requests, job, scans)
    write_s, write_cpu_s = clock.lap()
    puts = requests.lap()
    if contender.is_joined and contender.variant is not None:
        if contender.is_pooled or contender.variant is Variant.APPEND:
            entries = join_segments(requests, job, contender.variant, whole)
        else:
            join_runs(contender, requests, job, scans, entries)
    join_s, join_cpu_s = clock.lap()
    joins = requests.lap()
    forget()
    clock.lap()
    for entry in entries:
        read(contender.make(), requests, entry)
    read_s, read_cpu_s = clock.lap()
    gets = requests.lap()
    for prefix in (f"chunks/{job.stem}/", f"data/{job.stem}/"):
        for info in list(store.list(prefix)):
            store.delete(info.key)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Cost(write_s, write_cpu_s, puts, join_s, join_cpu_s, joins, read_s, read_cpu_s, gets, peak_bytes)


class _Clock:
    def __init__(self) -> None:
        self._at = perf_counter(), process_time()

    def lap(self) -> tuple[float, float]:
        """Seconds since the last one, elapsed and of our CPU."""
        now, before = (perf_counter(), process_time()), self._at
        self._at = now
        return now[0] - before[0], now[1] - before[1]


def _scans(job: Job, ends: list[int]) -> list[RunScan]:
    found: list[RunScan] = []
    with open(job.path, "rb") as file:
        for start, end in zip([0, *ends], ends, strict=False):
            scan = scan_run(file, start=start, end=end, where=job.path)
            assert scan is not None
            found.append(scan)
    return found


def _forget(root: Path) -> None:
    """The operating system's memory of a directory."""
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_one(place: list[str], job: Job) -> None:
    """In a process of its own. place: a directory, or a bucket and its endpoint."""
    if len(place) == 1:
        root = Path(place[0])
        cost = measure(DirectoryStore(root), job, lambda: _forget(root))
    else:
        with closing(S3Store(place[0], endpoint_url=place[1])) as store:
            cost = measure(store, job, lambda: None)
    print(json.dumps(cost))


@contextmanager
def a_place(scratch: Path, *, s3: bool) -> Iterator[list[str]]:
    """Where a process finds the store; its credentials are in the environment."""
    if s3:
        with running_server(scratch) as (name, server):
            Console().print(f"on {name}")
            os.environ.update(server.environ())
            yield [server.bucket(), server.endpoint_url]
        return
    root = scratch / "bucket"
    root.mkdir()
    yield [str(root)]


def in_a_process(place: list[str], job: Job) -> Cost:
    command = [sys.executable, "-m", "bench.chunks", "--one", json.dumps([place, job])]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return Cost(*json.loads(done.stdout))


def plan(path: Path, mib: int, queues: int) -> list[int]:
    """Where each step ends in the file that is written for it."""
    step_bytes = min(STEP_BYTES, mib * MIB // queues // (1 if queues == 1 else STEPS))
    a_segment(path, -(-mib // queues), 16 << 10)
    batch_bytes = _batch_bytes(path)
    end, step = mib * MIB // queues // batch_bytes * batch_bytes, max(step_bytes // batch_bytes, 1) * batch_bytes
    return [min(at + step, end) for at in range(0, end, step)]


def _batch_bytes(path: Path) -> int:
    """Of each batch: all are of one size."""
    with path.open("rb") as file:
        file.seek(8)
        return 12 + int.from_bytes(file.read(4), "big")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--queues", type=int, nargs="*", default=[1, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pool-mib", type=int, default=64)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        place, job = json.loads(arguments.one)
        run_one(place, Job(*job))
        return
    written = Table(
        "queues", "", "write MB/s", "of native", "CPU s/GB", "requests/GB", "joined MB/s", "CPU s/GB", "requests/GB", "peak MiB"
    )
    was_read = Table("queues", "", "read MB/s", "of native", "CPU s/GB", "of native", "GETs/GB")
    aims: list[str] = []
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch, a_place(Path(scratch), s3=arguments.s3) as place:
        for queues in arguments.queues:
            path = Path(scratch) / "segment.log"
            ends = plan(path, arguments.mib, queues)
            costs: dict[str, list[Cost]] = {name: [] for name in CONTENDERS}
            for number in range(arguments.rounds):
                for at, name in enumerate(CONTENDERS):
                    costs[name].append(
                        in_a_process(place, Job(name, f"{queues}-{number}-{at}", queues, str(path), ends, arguments.pool_mib * MIB))
                    )
            best = {name: _best(rounds) for name, rounds in costs.items()}
            _add_rows(written, was_read, queues, ends[-1], best)
            aims += _reached(queues, best)
    for table in (written, was_read):
        Console(width=130).print(table)
    for line in aims:
        Console(width=130).print(line)


def _best(rounds: list[Cost]) -> Cost:
    """The least of each; the most memory."""
    return Cost(*(min(column) for column in zip(*rounds, strict=True)))._replace(peak_bytes=max(each.peak_bytes for each in rounds))


def _reached(queues: int, best: dict[str, Cost]) -> Iterator[str]:
    """What was aimed at, and what came of it."""
    native = best["native"]
    for name, cost in best.items():
        if CONTENDERS[name].is_joined and cost.join_requests:
            ratio = native.read_s / cost.read_s
            yield f"{queues} queues, {name}: read at {ratio:.2f} of native, aim {READ_AIM:.2f}: {_said(ratio >= READ_AIM)}"
    for name, cost in best.items():
        peak, aim = cost.peak_bytes, PEAK_AIM_BYTES
        yield f"{queues} queues, {name}: peak {peak / MIB:.0f} MiB, aim {aim // MIB} MiB: {_said(peak <= aim)}"


def _said(is_reached: bool) -> str:
    return "reached" if is_reached else "NOT REACHED"


def _add_rows(written: Table, was_read: Table, queues: int, size_bytes: int, best: dict[str, Cost]) -> None:
    gb, native = queues * size_bytes / 1e9, best["native"]
    for name, cost in best.items():
        joined = (f"{gb * 1e3 / cost.join_s:.0f}", f"{cost.join_cpu_s / gb:.1f}", f"{cost.join_requests / gb:.0f}")
        written.add_row(
            str(queues),
            name,
            f"{gb * 1e3 / cost.write_s:.0f}",
            f"{native.write_s / cost.write_s:.2f}",
            f"{cost.write_cpu_s / gb:.1f}",
            f"{cost.puts / gb:.0f}",
            *(joined if CONTENDERS[name].is_joined and cost.join_requests else ("", "", "")),
            f"{cost.peak_bytes / MIB:.0f}",
        )
        was_read.add_row(
            str(queues),
            name,
            f"{gb * 1e3 / cost.read_s:.0f}",
            f"{native.read_s / cost.read_s:.2f}",
            f"{cost.read_cpu_s / gb:.2f}",
            f"{native.read_cpu_s / cost.read_cpu_s:.2f}",
            f"{cost.gets / gb:.0f}",
        )


if __name__ == "__main__":
    main()
