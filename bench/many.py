"""What very many partitions cost one agent: a first archive, a start, and doing nothing.

    python -m bench.many [--partitions 500] [--idle-s 30] [--scratch DIR] [--only first,start,idle,streams] [--owned]

`streams` is what the memory of an agent is when each partition streams, beside one that archives each segment.
The aims are for 10,000 partitions of 50 segments, which takes some minutes and 3 GB below --scratch: --partitions 10000 --idle-s 600. The
default is a twentieth of that, so that it runs in two minutes; what grows with the partitions is compared with a twentieth of its aim.
Everything is on one machine, the archive being a directory.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from archival.collection.handover import CollectionLook, Handover, settings_digest
from archival.config import ArchivalConfig
from bench.partitions import BATCH_RECORDS, WRITER, Partitions, a_batch
from headwater_core.files import sync_path
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.partition import PartitionId

AIMED_FOR = 10_000  # partitions
SEGMENTS = 50
FIRST_SEGMENTS = 5
CHECKPOINT_S = 5.0
WORKERS = 4  # as the agent has
SETTLED_S = 5.0  # without a store call
SETTLED_CPU = 0.1  # of a core


class Sample(NamedTuple):
    """What an agent has used since it began. cpu_s: of all its threads"""

    at_s: float
    cpu_s: float
    calls: dict[str, int]


class Agent:
    """A running one."""

    def __init__(self, process: subprocess.Popen[bytes], counts: Path, port: int) -> None:
        self._popen, self._process, self._counts, self.port = process, psutil.Process(process.pid), counts, port
        self.rss_max = 0

    def sample(self) -> Sample:
        used, memory = self._process.cpu_times(), self._process.memory_info()
        self.rss_max = max(self.rss_max, memory.rss)
        try:
            calls = json.loads(self._counts.read_text())
        except FileNotFoundError:
            calls = {}
        return Sample(time.monotonic(), used.user + used.system, calls)

    @property
    def rss_mib(self) -> float:
        return float(self._process.memory_info().rss) / 2**20

    @property
    def open_segments(self) -> int:
        """Each stream holds those open of which it has not sent all."""
        return sum(each.path.endswith(".log") for each in self._process.open_files())

    def wait_until(self, what: Callable[[Sample], bool], limit_s: float) -> Sample:
        until_s = time.monotonic() + limit_s
        while not what(sample := self.sample()):
            if time.monotonic() > until_s or self._popen.poll() is not None:
                raise TimeoutError(f"not after {limit_s} s, or the agent has ended: {sample}")
            time.sleep(0.1)
        return sample

    def settle(self, limit_s: float) -> Sample:
        """Wait until it has made no store call and hardly computed for a while; the sample is of when that began."""
        last = self.sample()

        def is_quiet(now: Sample) -> bool:
            nonlocal last
            if now.calls != last.calls or not now.calls or now.cpu_s - last.cpu_s > SETTLED_CPU * SETTLED_S:
                last = now
            return now.at_s - last.at_s >= SETTLED_S

        self.wait_until(is_quiet, limit_s)
        return last

    def topics(self) -> int:
        """How many the gateway has, as a client sees it."""
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 0})
        return len(client.list_topics(timeout=120).topics)


class Spent(NamedTuple):
    """What an agent has used between two samples."""

    took_s: float
    cpu_s: float
    calls: dict[str, int]


class Row(NamedTuple):
    """One thing that was measured; the last two are text because aims differ in kind."""

    what: str
    measured: str
    aim: str


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=AIMED_FOR // 20)
    parser.add_argument(
        "--idle-s", type=float, default=30.0, help="without an event, and as long again with a roll a second; whole rescans"
    )
    parser.add_argument("--scratch", type=Path, default=None)
    parser.add_argument("--only", default="first,start,idle,streams")
    parser.add_argument("--owned", action="store_true")
    given = parser.parse_args()
    table = Table("what", "measured", "aim", title=f"{given.partitions:,} partitions{', owned' if given.owned else ''}")
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=given.scratch) as scratch:
        root = Path(scratch)
        if "first" in given.only:
            for row in first_archive(root / "first", given.partitions, owned=given.owned):
                table.add_row(*row)
        if "start" in given.only or "idle" in given.only:
            idle_s = given.idle_s if "idle" in given.only else 0.0
            for row in known(root / "known", given.partitions, idle_s, owned=given.owned):
                table.add_row(*row)
        if "streams" in given.only:
            for row in streams(root / "streams", given.partitions):
                table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def first_archive(root: Path, count: int, *, owned: bool) -> Iterator[Row]:
    partitions = Partitions(root / "log", count, FIRST_SEGMENTS)
    partitions.make()
    segments = count * FIRST_SEGMENTS
    with running(root, partitions.directory, owned=owned) as agent:
        began = agent.sample()
        done = agent.wait_until(lambda now: now.calls.get("put", 0) >= 2 * segments, 3600.0)
        ended = agent.settle(600.0) if owned else done
    took_s = ended.at_s - began.at_s
    yield Row(f"first archive of {segments:,} segments", f"{took_s:.1f} s", f"{60 * count / AIMED_FOR:.1f} s")
    yield Row("  CPU per segment", f"{(ended.cpu_s - began.cpu_s) / segments * 1e3:.2f} ms", "")
    yield Row("  store calls", _calls(ended.calls), "")
    yield Row("  memory", f"{agent.rss_max / 2**20:.0f} MiB", "")
    plain_s = plain_copies(root / "plain", 2 * segments)
    yield Row(f"  {2 * segments:,} files of as many bytes, each synced, and its name", f"{plain_s:.1f} s", "")
    shutil.rmtree(root)


def plain_copies(directory: Path, count: int) -> float:
    """Seconds for that many small files in as few directories: what a disk takes for what is durable one by one, by any writer."""
    content = a_batch()

    def write(folder: int) -> None:
        path = directory / str(folder)
        path.mkdir(parents=True)
        for number in range(2 * FIRST_SEGMENTS):
            with (path / str(number)).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            sync_path(path)

    began_s = time.monotonic()
    with ThreadPoolExecutor(WORKERS) as workers:
        list(workers.map(write, range(count // (2 * FIRST_SEGMENTS))))
    return time.monotonic() - began_s


def known(root: Path, count: int, idle_s: float, *, owned: bool) -> Iterator[Row]:
    partitions = Partitions(root / "log", count, SEGMENTS)
    partitions.make(linked=not owned)
    (root / "archive").mkdir()
    with quick_syncs():
        partitions.archive(DirectoryStore(root / "archive"))
    with running(root, partitions.directory, owned=owned) as agent:
        began = agent.sample()
        ended = agent.settle(1800.0)
    yield Row("start without a control log, until all is known", f"{ended.at_s - began.at_s:.1f} s", "")
    place, ends = next(iter(partitions)), {}
    partitions.roll(place, partitions.end)
    ends[place] = partitions.end + 10
    partitions.checkpoint(ends)
    settings = settings_digest(ArchivalConfig(release=owned))  # as `running` has them
    looked_at = {each: CollectionLook(version=1, settings=settings, again_ms=None) for each in partitions}
    Handover(root / "data" / "collected.json").leave(looked_at)  # by an agent that has been there for hours, and was stopped
    with running(root, partitions.directory, owned=owned) as agent:
        began = agent.sample()
        topics = agent.topics()
        served_s = agent.sample().at_s - began.at_s
        archived = agent.wait_until(lambda now: now.calls.get("put", 0) >= 2, 600.0)
        yield Row(f"start until {topics} topics are served", f"{served_s:.1f} s", "30 s")
        yield Row("  until a segment is archived", f"{archived.at_s - began.at_s:.1f} s, {_calls(archived.calls)}", "30 s, not each head")
        ended = agent.settle(1800.0)
        yield Row("  until all is looked at", f"{ended.at_s - began.at_s:.1f} s, {ended.cpu_s:.1f} s CPU, {_calls(ended.calls)}", "")
        if idle_s:
            yield from idle(agent, partitions, ends, idle_s)
    shutil.rmtree(root)


def streams(root: Path, count: int) -> Iterator[Row]:
    """Each partition has one sealed segment, and a batch in the active one, which a stream holds and per-segment archiving leaves."""
    for offload in ("per-segment", "streaming"):
        partitions = Partitions(root / offload / "log", count, 1)
        partitions.make()
        ends = dict.fromkeys(partitions, partitions.end + BATCH_RECORDS)
        for each in partitions:
            partitions.append(each, partitions.end)
        partitions.checkpoint(ends)
        with running(
            root / offload, partitions.directory, owned=False, archival=f'offload = "{offload}"\nmax_segment_age = "1d"\n'
        ) as agent:
            agent.settle(1800.0)
            measured = f"{agent.rss_mib:.1f} MiB, at most {agent.rss_max / 2**20:.1f}; {agent.open_segments:,} segments held open"
            yield Row(f"memory, offload = {offload}", measured, "")
        shutil.rmtree(root / offload)


def idle(agent: Agent, partitions: Partitions, ends: dict[PartitionId, int], idle_s: float) -> Iterator[Row]:
    """First nothing happens but the broker's checkpoints; then a segment is rolled each second."""
    random_, places, rolled = random.Random(1), list(partitions), 0
    quiet = _spend(agent, partitions, ends, idle_s, lambda: None)

    def roll() -> None:
        nonlocal rolled
        place = random_.choice(places)
        end = ends.get(place, partitions.end)
        partitions.roll(place, end)
        ends[place] = end + 10
        rolled += 1

    rolls = _spend(agent, partitions, ends, idle_s, roll)
    share = quiet.cpu_s / quiet.took_s
    archived = rolls.calls.get("put", 0) / 2
    yield Row(f"idle for {idle_s:.0f} s: of a core", f"{share:.2%}", "2 %")
    yield Row(
        f"  with a roll a second, {rolled} rolls", f"{rolls.cpu_s / rolls.took_s:.2%}, {archived:.0f} archived", "all but the last 5 s'"
    )
    yield Row("  CPU per roll", f"{(rolls.cpu_s - share * rolls.took_s) / rolled * 1e3:.1f} ms", "5 ms")
    yield Row("  store calls while idle", _calls(quiet.calls) or "none", "none")
    per_roll = ", ".join(f"{count / max(1.0, archived):.2f} {name}" for name, count in sorted(rolls.calls.items()))
    yield Row("  store calls per roll that was archived", per_roll, "3, and a head that is not held")
    yield Row("  memory now, and at most", f"{agent.rss_mib:.0f} MiB, {agent.rss_max / 2**20:.0f} MiB", "256 MiB")


def _spend(agent: Agent, partitions: Partitions, ends: dict[PartitionId, int], for_s: float, each_second: Callable[[], None]) -> Spent:
    before, last_s = agent.sample(), time.monotonic()
    while (now_s := time.monotonic()) < before.at_s + for_s:
        each_second()
        if now_s - last_s >= CHECKPOINT_S:
            last_s = now_s
            partitions.checkpoint(ends)
        agent.sample()
        time.sleep(max(0.0, 1.0 - (time.monotonic() - now_s)))
    after = agent.sample()
    calls = {name: count - before.calls.get(name, 0) for name, count in after.calls.items() if count > before.calls.get(name, 0)}
    return Spent(after.at_s - before.at_s, after.cpu_s - before.cpu_s, calls)


def _calls(calls: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(calls.items()))


@contextmanager
def quick_syncs() -> Iterator[None]:
    """What is only the ground for a measurement need not survive a power loss."""
    real = os.fsync
    vars(os)["fsync"] = lambda _: None
    try:
        yield
    finally:
        vars(os)["fsync"] = real


@contextmanager
def running(root: Path, *logs: Path, owned: bool, admin: str = "", archival: str = "") -> Iterator[Agent]:
    """An agent over these log directories, which archives into root/archive and keeps its state in root/data. admin: where it listens;
    archival: more lines of that section."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data, config, counts = root / "data", root / "headwater.toml", root / "counts.json"
    data.mkdir(exist_ok=True, parents=True)
    (data / "writer").write_text(WRITER + "\n")
    counts.unlink(missing_ok=True)
    config.write_text(
        f'[node]\nid = "bench"\ndata_dir = "{data}"\nlog_level = "warning"\n'
        f"[log]\ndirs = {[str(log) for log in logs]}\nowned = {str(owned).lower()}\n"
        f'[store]\nurl = "file://{root}/archive"\n'
        f"[archival]\nrelease = {str(owned).lower()}\n{archival}"
        f'[gateway]\nlisten = "127.0.0.1:{port}"\n[admin]\nlisten = "{admin}"\n'
    )
    with (root / "agent.log").open("ab") as output:
        process = subprocess.Popen([sys.executable, "-m", "bench.metered_agent", str(counts), str(config)], stderr=output, stdout=output)
        try:
            yield Agent(process, counts, port)
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(120)
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
