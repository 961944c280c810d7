"""How long a gateway request that needs nothing waits while the same agent archives a backlog.

    python -m bench.latency [--mib 1024] [--partitions 1000] [--limit-s 60] [--scratch DIR]

One client on one connection sends ApiVersions, a few milliseconds after each answer: beside an agent that has nothing to do, beside one
with segments of 200-byte batches to archive, and beside one with very many segments of 1 KiB. The archive is a directory. Client, agent
and disk share the machine, so compare with the first line.
"""

import argparse
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.clients import receive_exactly
from bench.logs import Shape, make_log
from bench.many import Agent, running
from bench.partitions import Partitions
from headwater.gateway.protocol import Api

PAUSE_S = 0.005  # between an answer and the next request
QUIET_S = 10.0
SEGMENT_BYTES = 16 << 20
SEGMENTS = 5  # of each of many partitions
BEGUN_S = 120.0  # within that the agent listens, and archives
_REQUEST = struct.pack(">ihhih", 10, Api.API_VERSIONS, 0, 1, -1)


class Waits(NamedTuple):
    """For answers, in seconds, and how long all of it took."""

    each_s: list[float]
    took_s: float

    def __str__(self) -> str:
        p50_s, p99_s = (quantiles(self.each_s, n=100)[at] for at in (49, 98))
        return f"p50 {p50_s * 1e3:.1f}, p99 {p99_s * 1e3:.1f}, most {max(self.each_s) * 1e3:.1f} ms of {len(self.each_s):,}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024, help="of 200-byte batches")
    parser.add_argument("--partitions", type=int, default=1000, help=f"of {SEGMENTS} segments of 1 KiB each")
    parser.add_argument("--limit-s", type=float, default=60.0, help="of each measurement")
    parser.add_argument("--scratch", type=Path, default=None)
    given = parser.parse_args()
    table = Table("beside", "an answer takes", "aim", "archived meanwhile")
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=given.scratch) as scratch:
        for row in rows(Path(scratch), given.mib, given.partitions, given.limit_s):
            table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def rows(root: Path, mib: int, partitions: int, limit_s: float) -> Iterator[tuple[str, str, str, str]]:
    Partitions(root / "quiet" / "log", 1, 1).make()
    waits, _ = beside(root / "quiet", 2, QUIET_S, until_done=False)
    yield "nothing to archive", str(waits), "", ""
    shape = Shape(
        topic="small", partitions=4, batch_records=1, value_bytes=130, partition_bytes=(mib << 20) // 4, segment_bytes=SEGMENT_BYTES
    )
    log = make_log(root / "batches" / "log", shape)
    waits, puts = beside(root / "batches", 2 * len(log.files), limit_s)
    yield "200-byte batches", str(waits), "p99 20 ms", f"{puts * SEGMENT_BYTES / 2 / waits.took_s / 1e6:.0f} MB/s"
    many = Partitions(root / "segments" / "log", partitions, SEGMENTS)
    many.make()
    waits, puts = beside(root / "segments", 2 * SEGMENTS * partitions, limit_s)
    yield "segments of 1 KiB", str(waits), "p99 20 ms", f"{puts / 2 / waits.took_s:.0f} segments/s"


def beside(root: Path, puts: int, limit_s: float, *, until_done: bool = True) -> tuple[Waits, int]:
    """The waits at an agent over root/log from its first puts on, until it has made `puts` of them or `limit_s` is over; and how many it
    has made in that time."""

    def made() -> int:
        return agent.sample().calls.get("put", 0)

    with running(root, root / "log", owned=False) as agent:
        agent.wait_until(lambda now: now.calls.get("put", 0) > 0, BEGUN_S)
        began, until_s = made(), time.monotonic() + limit_s
        waits = ask(agent, lambda: time.monotonic() > until_s or (until_done and made() >= puts))
        return waits, made() - began


def ask(agent: Agent, is_over: Callable[[], bool]) -> Waits:
    each_s: list[float] = []
    with socket.create_connection(("127.0.0.1", agent.port), BEGUN_S) as gateway:
        gateway.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _ask_once(gateway)  # the agent may still be about to start
        began_s = time.monotonic()
        while not is_over() or len(each_s) < 2:
            each_s.append(_ask_once(gateway))
            time.sleep(PAUSE_S)
    return Waits(each_s, time.monotonic() - began_s)


def _ask_once(gateway: socket.socket) -> float:
    sent_s = time.monotonic()
    gateway.sendall(_REQUEST)
    (size,) = struct.unpack(">i", receive_exactly(gateway, 4))
    receive_exactly(gateway, size)
    return time.monotonic() - sent_s


if __name__ == "__main__":
    main()
