"""What a recovery of very many runs holds in memory, step by step, each in a process of its own.

    python -m bench.plans [--runs 1000000] [--partitions 100] [--apply 20000] [--scratch DIR]

The heads and pages are real ones, in a directory. The runs are made when they are read, ten records each, so that a million of them take
no disk. What is measured is the recovery, beside a process that has only imported it, and beside one that has as many entries as values. A
plan is made of all runs and written, read back, put into a target's mark and read from there; `--apply` of them are recovered, three files
each.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from time import perf_counter

import structlog
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

import recovery
from headwater_core.epochs import EpochStart
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.directory.directory_store import DirectoryStore
from headwater_core.objectstore.store import ObjectInfo
from headwater_core.partition import PartitionId, topic_id_text
from headwater_core.segments.encoder import encode_batch
from manifests import keys
from manifests.entry import Entry
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from recovery.target import Mark, read_mark, write_mark

AIM_MIB = 300
CLUSTER, TOPIC, TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA", "orders.placed", topic_id_text(bytes(range(16)))
RECORDS = 10  # of a run
AT_ONCE = 500  # entries a commit
NOW_MS = 1_700_000_000_000


@lru_cache(maxsize=4)
def batch() -> bytes:
    return encode_batch(0, [(b"key", b"value")] * RECORDS, leader_epoch=0, timestamp_ms=NOW_MS)


def run_at(base_offset: int) -> bytes:
    """A batch's CRC does not cover its base offset."""
    return base_offset.to_bytes(8, "big") + batch()[8:]


def entries(partition: PartitionId) -> Iterator[Entry]:
    number = 0
    while True:
        base = number * RECORDS
        content, uid = run_at(base), f"{(number << 64) | partition.partition:032x}"
        key = keys.data(partition, base, base + RECORDS - 1, 1, uid)
        yield Entry(
            base_offset=base,
            last_offset=base + RECORDS - 1,
            epochs=(EpochStart(0, base),),
            first_timestamp_ms=NOW_MS,
            last_timestamp_ms=NOW_MS,
            records=RECORDS,
            uid=uid,
            fence=1,
            key=key,
            size_bytes=len(content),
            live_bytes=len(content),
            digest=digest_of(content),
            index_key=keys.index(key),
            index_bytes=100,
            index_digest=digest_of(uid.encode()),
            max_producer_id=-1,
        )
        number += 1


class MadeRuns(DirectoryStore):
    """Documents as they lie in a directory, and runs that are made when they are read. runs: of each partition"""

    def __init__(self, root: Path, runs: Mapping[PartitionId, int]) -> None:
        super().__init__(root)
        self._runs = {keys.data_prefix(partition): (partition, count) for partition, count in runs.items()}

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        if prefix not in self._runs:
            yield from super().list(prefix, start_after=start_after)
            return
        partition, count = self._runs[prefix]
        for entry in islice(entries(partition), count):
            yield ObjectInfo(entry.index_key, entry.index_bytes, "")
            yield ObjectInfo(entry.key, entry.size_bytes, "")

    def stat(self, key: str) -> ObjectInfo:
        name = keys.parse_data(key)
        return super().stat(key) if name is None else ObjectInfo(key, len(batch()), "")

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        name = keys.parse_data(key)
        if name is None:
            return super().read_into(key, buffer, start=start)
        buffer[:] = run_at(name.base_offset)[start : start + len(buffer)]
        return {}

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        for buffer in buffers:
            self.read_into(key, buffer, start=start)
            start += len(buffer)
            yield


def partitions(runs: int, count: int) -> dict[PartitionId, int]:
    return {PartitionId(CLUSTER, TOPIC_ID, number, TOPIC): runs // count for number in range(count)}


def archive(root: Path, runs: Mapping[PartitionId, int]) -> None:
    store = DirectoryStore(root)
    repository = ManifestRepository(store)
    repository.ensure_topic(TopicManifest(cluster_id=CLUSTER, topic=TOPIC, topic_id=TOPIC_ID, partitions=len(runs), configs={}))
    for partition, count in runs.items():
        head = Head(
            cluster_id=CLUSTER,
            topic=TOPIC,
            topic_id=TOPIC_ID,
            partition=partition.partition,
            version=1,
            commit_id="unset",
            fence=1,
            writer="node-1-0123456789abcdef",
            start_offset=0,
            last_offset=-1,
        )
        held, rest = repository.commit(None, head), islice(entries(partition), count)
        while more := tuple(islice(rest, AT_ONCE)):
            head = replace(held.head, entries=held.head.entries.followed_by(*more), last_offset=more[-1].last_offset)
            held = repository.commit(held, head)


# Steps, each in a process of its own


def plan(root: Path, runs: Mapping[PartitionId, int]) -> None:
    made = recovery.plan(ManifestRepository(MadeRuns(root / "bucket", runs)), [TOPIC])
    assert made.records == RECORDS * sum(runs.values())
    with (root / "plan.json").open("wb") as file:
        recovery.write_plan(made, file)


def read(root: Path, runs: Mapping[PartitionId, int]) -> None:
    with (root / "plan.json").open("rb") as file:
        assert recovery.read_plan(file, "plan.json").plan.records == RECORDS * sum(runs.values())


def resume(root: Path, runs: Mapping[PartitionId, int]) -> None:
    """Two plans at once: that of the target's mark, and one that was made again."""
    with (root / "plan.json").open("rb") as file:
        made = recovery.read_plan(file, "plan.json").plan
    (root / "target").mkdir(exist_ok=True)
    write_mark(root / "target", Mark(made, "", "A" * 22, 1))
    mark = read_mark(root / "target")
    assert mark is not None
    assert mark.plan == made


def apply(root: Path, runs: Mapping[PartitionId, int]) -> None:
    store = MadeRuns(root / "bucket", runs)
    made = recovery.plan(ManifestRepository(store), [TOPIC])
    report = recovery.apply(made, root / "applied", store, recorded=False)
    assert report.records == RECORDS * sum(runs.values())


def values(root: Path, runs: Mapping[PartitionId, int]) -> None:
    """The peer: a tuple of entries for each partition."""
    held = [tuple(islice(entries(partition), count)) for partition, count in runs.items()]
    assert sum(map(len, held)) == sum(runs.values())


def nothing(root: Path, runs: Mapping[PartitionId, int]) -> None:
    pass


STEPS: dict[str, Callable[[Path, Mapping[PartitionId, int]], None]] = {
    each.__name__: each for each in (nothing, values, plan, read, resume, apply)
}


def measured(step: str, root: Path, runs: int, count: int) -> tuple[float, float]:
    """Seconds and peak RSS in MiB."""
    command = [sys.executable, "-m", "bench.plans", "--step", step, "--runs", str(runs), "--partitions", str(count), "--scratch", str(root)]
    elapsed_s, rss_kib = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return elapsed_s, rss_kib / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000, help="that are planned (default 1,000,000)")
    parser.add_argument("--partitions", type=int, default=100, help="that they are in (default 100)")
    parser.add_argument("--apply", type=int, default=20_000, help="runs that are recovered (default 20,000)")
    parser.add_argument("--scratch", type=Path, help="where files go")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
        begun_s = perf_counter()
        STEPS[arguments.step](arguments.scratch, partitions(arguments.runs, arguments.partitions))
        print(json.dumps([perf_counter() - begun_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
        return
    table = Table("step", "runs", "s", "peak RSS, MiB", title=f"a recovery in {arguments.partitions} partitions, aim {AIM_MIB} MiB")
    most = 0.0
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=arguments.scratch) as scratch:
        for runs, steps in ((arguments.runs, ("nothing", "values", "plan", "read", "resume")), (arguments.apply, ("apply",))):
            root = Path(scratch) / steps[0]
            root.mkdir()
            (root / "bucket").mkdir()
            archive(root / "bucket", partitions(runs, arguments.partitions))
            for step in steps:
                elapsed_s, rss_mib = measured(step, root, runs, arguments.partitions)
                table.add_row(step, f"{runs:,}", f"{elapsed_s:,.1f}", f"{rss_mib:,.0f}")
                most = max(most, 0 if step == "values" else rss_mib)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if most > AIM_MIB:
        sys.exit(f"not reached: {most:,.0f} MiB")


if __name__ == "__main__":
    main()
