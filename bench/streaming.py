"""What streaming offload costs and gains: `python -m bench.streaming [--seconds 900] [--low 10] [--high 1000] [--partitions 1000]`.

For each way of working, at a low and at a high rate of records a second, into one partition of a directory that is written as a broker
would: how old a record is when it can be read from the archive (median and 99th percentile; it can be read when its object is closed and
committed), requests to the store per hour and per GB, and objects per day. Per-segment archiving with a seal timeout stands beside it.
Time is a manual clock's, so that five minutes take as long as their work; what the store and the broker's answer take comes on top of it.
Without `log.bootstrap_servers` what is committed is the checkpoint's word, up to 5 s later: `--checkpoint-s 5` shows that.
At the end: memory of the streams of many partitions that have each taken something and sent nothing.
"""

import argparse
import resource
import tempfile
from pathlib import Path
from typing import NamedTuple

import structlog
from rich.console import Console
from rich.table import Table

from archival.partition.archiver import PartitionArchiver
from archival.plan.policy import Policy, StreamLimits
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.partition import PartitionId, topic_id_text
from tests.archival.builders import Agent, Directory
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import a_segment

VALUE_BYTES = 1000
ROLL_BYTES = 64 << 20


class Way(NamedTuple):
    """A way of working. look_s: how often the agent looks."""

    name: str
    policy: Policy
    look_s: float


class Cost(NamedTuple):
    """Ages in seconds; rates as their names say."""

    age_s: float
    age_99_s: float
    requests_per_hour: float
    requests_per_gb: float
    objects_per_day: float


def streaming(age_s: float) -> Way:
    return Way(f"streaming {age_s:g} s", Policy(stream=StreamLimits(1 << 30, round(age_s * 1000))), min(max(age_s / 10, 0.5), 10))


WAYS = (
    streaming(5),
    streaming(30),
    streaming(300),
    Way("seal timeout 5 s", Policy(tail_after_ms=5_000), 1),
    Way("seal timeout 30 s", Policy(tail_after_ms=30_000), 5),
    Way("seal timeout 300 s", Policy(tail_after_ms=300_000), 30),
)


def measure(way: Way, rate: int, seconds: int, checkpoint_s: float, scratch: Path) -> Cost:
    directory = Directory(scratch / "log")
    (scratch / "archive").mkdir()
    store = MeteredStore(DirectoryStore(scratch / "archive"))
    agent = Agent(directory.root, store=store, owned=False)
    started_ms, base, offset, size_bytes = agent.clock.now_ms(), 0, 0, 0
    written: list[tuple[int, float]] = []  # (next offset, when)
    ages: list[float] = []
    looked_s = checkpointed_s = 0.0
    directory.segment(0)
    directory.high_watermark(0)
    listed = 0
    step_s = min(1.0, way.look_s)
    while (now_s := (agent.clock.now_ms() - started_ms) / 1000) < seconds:
        count = max(1, round(rate * step_s))
        batch = a_segment(offset, 1, records=count, value_bytes=VALUE_BYTES)
        if size_bytes + len(batch) > ROLL_BYTES:
            base, size_bytes = offset, 0
            directory.segment(base)
        directory.append(base, batch)
        offset, size_bytes = offset + count, size_bytes + len(batch)
        written.append((offset, now_s))
        if now_s - checkpointed_s >= checkpoint_s:
            directory.high_watermark(offset)
            checkpointed_s = now_s
        if now_s - looked_s >= way.look_s:
            looked_s = now_s
            agent.run(way.policy)
            end = agent.archiver.head.next_offset if agent.archiver.head else 0
            while listed < len(written) and written[listed][0] <= end:
                ages.append(now_s - written[listed][1])
                listed += 1
        agent.clock.advance(round(step_s * 1000))
    ages.sort()
    requests = sum(store.calls.values())
    objects = len(list(store.list("")))
    bytes_written = offset * VALUE_BYTES
    return Cost(_at(ages, 0.5), _at(ages, 0.99), requests * 3600 / seconds, requests * 1e9 / bytes_written, objects * 86400 / seconds)


def _at(ages: list[float], share: float) -> float:
    return ages[min(len(ages) - 1, int(len(ages) * share))] if ages else float("nan")


def memory(partitions: int, scratch: Path) -> float:
    """Bytes of memory for each partition whose stream is open and has sent nothing."""
    archivers: list[PartitionArchiver] = []
    agent: Agent | None = None
    way = streaming(300)
    for number in range(partitions):
        partition = PartitionId("bench", topic_id_text(bytes([1] * 14) + number.to_bytes(2, "big")), number, "many")
        directory = Directory(scratch / "many", partition) if number == 0 else another(scratch / "many", partition)
        directory.segment(0, a_segment(0, 20, value_bytes=VALUE_BYTES))
        directory.high_watermark(20)
        if agent is None:
            agent = Agent(directory.root, partition=partition, owned=False)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        archiver = agent.archiver_of(partition)
        while archiver.step(way.policy).progressed:
            pass
        archivers.append(archiver)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / partitions


def another(root: Path, partition: PartitionId) -> Directory:
    """One more partition in the same log directory."""
    directory = Directory.__new__(Directory)
    directory.root, directory.partition, directory._epochs = root, partition, ()
    directory.path = root / f"{partition.topic}-{partition.partition}"
    directory.path.mkdir()
    directory.incarnate(partition)
    directory.epochs((0, 0))
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--low", type=int, default=10, help="records of 1 kB a second")
    parser.add_argument("--high", type=int, default=1000)
    parser.add_argument("--checkpoint-s", type=float, default=0.0, help="how often the checkpoint is written; 0: the broker is asked")
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--scratch", type=Path)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        each = memory(arguments.partitions, Path(scratch))  # first: what else was measured would count as its peak
    table = Table("way", "rate", "age", "99 %", "requests/h", "requests/GB", "objects/day")
    for rate in (arguments.low, arguments.high):
        for way in WAYS:
            with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
                found = measure(way, rate, arguments.seconds, arguments.checkpoint_s, Path(scratch))
            table.add_row(
                way.name,
                f"{rate}/s",
                f"{found.age_s:.1f} s",
                f"{found.age_99_s:.1f} s",
                f"{found.requests_per_hour:.0f}",
                f"{found.requests_per_gb:.0f}",
                f"{found.objects_per_day:.0f}",
            )
    Console().print(table)
    Console().print(f"{arguments.partitions} open streams: {each / 1024:.0f} KiB of memory each, the archiver's own included")


if __name__ == "__main__":
    main()
