"""What clients of the admin port cost Kafka clients of the same agent: 200 scrapes a second and 50 slow clients.

    python -m bench.scrapes [--partitions 1000] [--rounds 8] [--round-s 5] [--scratch DIR]

One client on one connection fetches 64 KiB again and again, a millisecond after each answer. Three kinds of rounds take turns: without any
load; with the load on a server that is no part of the agent; with the load on the agent's admin port. The agent has one processor, all else
has another; load and server have what the measuring client leaves of that one (SCHED_IDLE). Even so they slow the client, which the second
kind shows. The first line is without slow clients. Run it on an otherwise idle machine: the ratios of single rounds to those without load,
which are printed too, say how idle it was.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.clients import Discarder
from bench.logs import BenchLog, Shape, make_log
from bench.many import Agent, running
from bench.partitions import Partitions

SCRAPES_PER_S = 200
SCRAPERS = 20  # connections that they come on
SLOW = 50  # half of them send slowly, the others take their answer slowly
SLOW_S = 0.1  # between two bytes that are sent, or two reads
SLOW_TAKES_BYTES = 4096
FETCH_BYTES = 64 << 10
PAUSE_S = 0.001  # between an answer and the next fetch
SETTLE_S = 1.0  # between two rounds
STARTED_S = 120.0
RATE_MIN = 0.95  # of the scrapes that are due: with fewer, the load is not the one that is measured
METRICS, STATUS = "/metrics", "/v1/status?partitions=true"
_SHAPE = Shape(topic="read", partitions=1, batch_records=16, value_bytes=1000, partition_bytes=64 << 20, segment_bytes=16 << 20)
_START = get_context("spawn")


class Round(NamedTuple):
    """each_s: of answers to fetches. cpu_s: of the agent. scrapes: that were answered, by whichever server"""

    each_s: list[float]
    took_s: float
    cpu_s: float
    scrapes: int


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=1000, help="that the agent has, beside the one that is read")
    parser.add_argument("--rounds", type=int, default=8, help="of each kind")
    parser.add_argument("--round-s", type=float, default=5.0)
    parser.add_argument("--scratch", type=Path, default=None)
    given = parser.parse_args()
    table = Table(
        "load",
        "a fetch takes, without it",
        "with it elsewhere",
        "on the admin port",
        "p99, ratio",
        "aim",
        "of single rounds",
        "the agent's CPU",
    )
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=given.scratch) as scratch:
        for row in rows(Path(scratch), given.partitions, given.rounds, given.round_s):
            table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 170).print(table)


def rows(root: Path, partitions: int, rounds: int, round_s: float) -> Iterator[tuple[str, ...]]:
    cores = sorted(os.sched_getaffinity(0))
    many = Partitions(root / "many", partitions, 1)
    many.make()
    log = make_log(root / "read", _SHAPE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)  # what else this machine does is felt less
    os.sched_setaffinity(0, cores[:1])  # the agent takes that over, and the priority
    with running(root, many.directory, log.directory, owned=False, admin=f"127.0.0.1:{port}") as agent:
        os.sched_setaffinity(0, cores[1:] or cores)  # for this process and those that it starts from now on
        agent.wait_until(lambda now: now.calls.get("put", 0) > 2 * partitions, STARTED_S)
        agent.settle(STARTED_S)
        sizes = {path: len(_get(port, path)) for path in (METRICS, STATUS)}
        for slow in (0, SLOW):
            with away(sizes) as elsewhere:
                yield _row(slow, *measure(agent, log, port, elsewhere, slow, rounds, round_s))


def _row(slow: int, without: list[Round], elsewhere: list[Round], with_: list[Round]) -> tuple[str, ...]:
    ratio = _p99(with_) / _p99(without)
    pairs = sorted(_p99([one]) / _p99([other]) for one, other in zip(with_, without, strict=True))
    per_fetch_s = sum(each.cpu_s for each in without) / sum(len(each.each_s) for each in without)
    rest_s = sum(each.cpu_s - len(each.each_s) * per_fetch_s for each in with_) / sum(each.scrapes for each in with_)
    return (
        f"{SCRAPES_PER_S} scrapes/s" + (f", {slow} slow clients" if slow else ""),
        _times(without),
        _times(elsewhere),
        _times(with_),
        f"{ratio:.3f}",
        "1.1",
        f"{pairs[0]:.2f} to {pairs[-1]:.2f}",
        f"{per_fetch_s * 1e6:.0f} µs per fetch, {rest_s * 1e6:.0f} per scrape",
    )


def _times(rounds: list[Round]) -> str:
    each_s = [value for each in rounds for value in each.each_s]
    return f"p50 {quantiles(each_s, n=2)[0] * 1e3:.2f}, p99 {_p99(rounds) * 1e3:.2f} ms of {len(each_s):,}"


def _p99(rounds: list[Round]) -> float:
    return quantiles([value for each in rounds for value in each.each_s], n=100)[98]


def measure(
    agent: Agent, log: BenchLog, port: int, elsewhere: int, slow: int, rounds: int, round_s: float
) -> tuple[list[Round], list[Round], list[Round]]:
    """Rounds without load, with it on the port `elsewhere`, and on the admin port."""
    found: dict[int | None, list[Round]] = {None: [], elsewhere: [], port: []}
    for at in range(rounds):
        for target in (None, elsewhere, port) if at % 2 else (port, elsewhere, None):
            with nullcontext() if target is None else load(target, slow) as scraped:
                time.sleep(SETTLE_S)
                found[target].append(fetch(agent, log, scraped, round_s))
            time.sleep(SETTLE_S)
    return found[None], found[elsewhere], found[port]


def fetch(agent: Agent, log: BenchLog, scraped: Connection | None, for_s: float) -> Round:
    each_s: list[float] = []
    reader = Discarder(("127.0.0.1", agent.port), log.topic, log.batch_bytes, log.batch_records)
    step = FETCH_BYTES // log.batch_bytes * log.batch_records
    offset, began, scrapes = 0, agent.sample(), _count(scraped)
    while (sent_s := time.monotonic()) < began.at_s + for_s:
        reader.fetch(offset, FETCH_BYTES)
        each_s.append(time.monotonic() - sent_s)
        offset = (offset + step) % (log.end - step)
        offset -= offset % log.batch_records
        time.sleep(PAUSE_S)
    ended, scrapes = agent.sample(), _count(scraped) - scrapes
    reader.close()
    took_s = ended.at_s - began.at_s
    if scraped is not None and scrapes < RATE_MIN * SCRAPES_PER_S * took_s:
        raise RuntimeError(f"{scrapes} scrapes in {took_s:.1f} s: this machine has no time for the load")
    return Round(each_s, took_s, ended.cpu_s - began.cpu_s, scrapes)


def _count(scraped: Connection | None) -> int:
    if scraped is None:
        return 0
    scraped.send(None)
    return int(scraped.recv())


# -- the load, and the server that has it between times; both in processes of their own -----------------------------


@contextmanager
def load(port: int, slow: int) -> Iterator[Connection]:
    """Until the block ends. The connection answers anything with how many scrapes have been answered."""
    with _process(_load, port, slow) as counts:
        yield counts


@contextmanager
def away(sizes: dict[str, int]) -> Iterator[int]:
    """A server that answers each path with as many bytes: its port."""
    with _process(_serve, sizes) as ports:
        yield ports.recv()


@contextmanager
def _process(target: object, *arguments: object) -> Iterator[Connection]:
    ours, theirs = _START.Pipe()
    process = _START.Process(target=_run_idly, args=(target, theirs, *arguments), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def _run_idly(target, ours: Connection, *arguments: object) -> None:  # type: ignore[no-untyped-def]
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    asyncio.run(target(ours, *arguments))


async def _load(ours: Connection, port: int, slow: int) -> None:
    answered = 0

    def count() -> None:
        ours.recv()
        ours.send(answered)

    async def scrape(first_s: float) -> None:
        nonlocal answered
        loop, every_s = asyncio.get_running_loop(), SCRAPERS / SCRAPES_PER_S
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        due_s = loop.time() + first_s
        while True:
            await asyncio.sleep(due_s - loop.time())
            writer.write(_request(METRICS))
            await _take(reader)
            answered, due_s = answered + 1, due_s + every_s

    asyncio.get_running_loop().add_reader(ours.fileno(), count)
    async with asyncio.TaskGroup() as tasks:
        for at in range(SCRAPERS):
            tasks.create_task(scrape(at / SCRAPES_PER_S))
        for at in range(slow):
            tasks.create_task((_send_slowly if at % 2 else _take_slowly)(port))


async def _send_slowly(port: int) -> None:
    while True:
        with contextlib.suppress(ConnectionError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            for byte in _request(METRICS):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(SLOW_S)
            writer.close()


async def _take_slowly(port: int) -> None:
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(ConnectionError), socket.socket() as client:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_TAKES_BYTES)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, _request(STATUS, "Connection: close\r\n"))
            while await loop.sock_recv(client, SLOW_TAKES_BYTES):
                await asyncio.sleep(SLOW_S)


async def _serve(ours: Connection, sizes: dict[str, int]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while request := (await reader.readuntil(b"\r\n\r\n")).split():
                size = sizes[request[1].decode()]
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode() + bytes(size))
                await writer.drain()
                if b"close" in request:
                    writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    ours.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _request(path: str, headers: str = "") -> bytes:
    """As Prometheus sends it."""
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Prometheus/2.53.3\r\n"
        "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.3\r\n"
        f"Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n{headers}\r\n"
    ).encode()


async def _take(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200 "), head
    return await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))


def _get(port: int, path: str) -> bytes:
    async def get() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_request(path))
        try:
            return await _take(reader)
        finally:
            writer.close()

    return asyncio.run(get())


if __name__ == "__main__":
    main()
