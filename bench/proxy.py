"""Compare reading and writing through the proxy with the broker direct, and with HAProxy between, in one run.

    python -m bench.proxy [--mib 2048] [--rounds 5] [--only NAME,NAME] [--scratch DIR]

There are one broker of a real Kafka, one agent whose Kafka port is a proxy, and one HAProxy (Debian's package); a second agent and a second
port of HAProxy end TLS on both sides. In a round the ways take turns, and every number is the median of the rounds, with the least and the
most. CPU is that of the process between, user and system, by the bytes of records.

A consumer is a socket that fetches 1 MiB of one partition at a time, one request in flight as Kafka's clients have it, and receives what
comes into one buffer: about three times as fast as librdkafka, which takes longer for a gigabyte than a broker does and has a line of its
own. One that has the kernel drop the bytes shows the broker's own speed: no client is as fast. A producer sends ready requests, five in
flight and with acks=all: a batch of 1 MB as librdkafka's largest is, or of 16 KiB as Java's.

Fetches of 1,000 partitions are compared by the broker's CPU. They ask for a session, which the proxy declines: without one
every request names all partitions, and every response.
"""

import argparse
import os
import random
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from bench.clients import Discarder, Took, connect, discard, read_with_librdkafka, receive_exactly
from bench.logs import Shape, make_batch
from bench.run import Measured
from headwater.gateway.messages import request_schema
from headwater.gateway.protocol import Api
from headwater.gateway.response import Response
from headwater_core.segments import flexible
from headwater_core.segments.varint import encode_uvarint
from tests.headwater.gateway.certificate_files import an_authority, issued
from tests.peers.agent import Agent, Headwater
from tests.peers.kafka import KafkaBroker, free_port

VALUE_BYTES = 1000
JAVA_RECORDS, LIBRDKAFKA_RECORDS = 16, 980  # of a batch: 16 KiB, and just below 1 MB
LOG, SMALL, MANY, WRITTEN = "log", "small", "many", "written"  # topics
PARTITIONS = 1000  # of MANY
FETCHES = 300  # of all of them, by one way in a round
IN_FLIGHT = 5  # requests of a producer, as Kafka's max.in.flight.requests.per.connection
HEAD_BYTES = 64  # of a response that are looked at
TRIPS, TURNS = 100, 20  # round trips by one way before another has its turn, and such turns in a round
WRITTEN_BYTES = 512 << 20
FETCH_VERSION, PRODUCE_VERSION = 12, 9
DIRECT, HAPROXY, PROXY = "direct", "HAProxy", "proxy"
PARTS = ("trips", "read", "write", "tls", "partitions")
SPEED_AIM = "≥ 0.85x, ≤ 0.5 CPU s/GB"
_REQUEST_HEAD = struct.Struct(">hhihB")  # key, version, correlation id, no client id, no tags
_SESSION_AT = 4 + _REQUEST_HEAD.size + 17  # in a Fetch, behind its size: replica, longest wait, fewest and most bytes, isolation


class Way(NamedTuple):
    """A way to the broker.

    between  the process there; None: nothing is
    tls      of clients
    """

    name: str
    address: tuple[str, int]
    between: psutil.Process | None = None
    tls: ssl.SSLContext | None = None

    def cpu_s(self) -> float:
        return process_cpu_s(self.between) if self.between is not None else 0.0


class Batch(NamedTuple):
    """A batch of `records` records as a producer sends it, and a broker keeps it."""

    records: int
    raw: bytes


def process_cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def a_batch(records: int) -> Batch:
    shape = Shape(topic=LOG, partitions=1, batch_records=records, value_bytes=VALUE_BYTES, partition_bytes=0, segment_bytes=0)
    return Batch(records, make_batch(shape, random.Random(records)))


# -- clients --------------------------------------------------------------------------------------------------------


class Client:
    """One plain connection that sends ready frames."""

    def __init__(self, way: Way) -> None:
        self._socket = connect(way.address)

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> bytes:
        """Return the first bytes of a response, from its correlation id on."""
        size = int.from_bytes(receive_exactly(self._socket, 4), "big")
        head = receive_exactly(self._socket, min(size, HEAD_BYTES))
        discard(self._socket, size - len(head))
        return head

    def ask(self, frame: bytes) -> bytes:
        self.send(frame)
        return self.receive()

    def close(self) -> None:
        self._socket.close()


def request(api: Api, version: int, body: Mapping[str, Any]) -> bytes:
    response = Response()
    response.buffer += _REQUEST_HEAD.pack(api, version, 1, -1, 0)
    request_schema(api, version).write(response, body)
    return flexible.i32(len(response.buffer)) + bytes(response.buffer)


def produce_request(topic: str, batch: Batch, partitions: Sequence[int] = (0,)) -> bytes:
    data = [{"index": partition, "records": batch.raw} for partition in partitions]
    body = {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": [{"name": topic, "partition_data": data}]}
    return request(Api.PRODUCE, PRODUCE_VERSION, body)


def check_produced(head: bytes, topic: str, partitions: int = 1) -> None:
    """Raise RuntimeError where the first partition was not written."""
    at = 4 + 1 + 1 + 1 + len(topic)  # correlation id, tags, one topic, its name
    at += len(encode_uvarint(partitions + 1)) + 4  # partitions, the first one's number
    error = int.from_bytes(head[at : at + 2], "big", signed=True)
    if error:
        raise RuntimeError(f"produce failed with error code {error}")


def write(way: Way, topic: str, batch: Batch, size_bytes: int) -> Took:
    client, frame, count = Client(way), produce_request(topic, batch), -(-size_bytes // len(batch.raw))
    start_s = time.perf_counter()
    for number in range(count + IN_FLIGHT):
        if number >= IN_FLIGHT:
            check_produced(client.receive(), topic)
        if number < count:
            client.send(frame)
    took = Took(count * len(batch.raw), time.perf_counter() - start_s)
    client.close()
    return took


def fetch_request(topic: str, partitions: Sequence[int], offset: int) -> bytes:
    """Of one batch of one record of each, at once."""
    batch_bytes = len(a_batch(1).raw)
    body = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "topics": [
            {
                "topic": topic,
                "partitions": [{"partition": at, "fetch_offset": offset, "partition_max_bytes": batch_bytes} for at in partitions],
            }
        ],
        "forgotten_topics_data": [],
    }
    return request(Api.FETCH, FETCH_VERSION, body if partitions else {**body, "topics": []})


def fetch_in_session(way: Way, whole: Sequence[bytes], changed: Sequence[bytes], count: int) -> None:
    """Fetch `count` times, in a session where there is one.

    whole    requests for all partitions, that take turns
    changed  those in a session: for the partitions whose offset is another one than before
    """
    client, session_id, epoch = Client(way), 0, 0
    for at in range(count):
        frame = (changed if session_id else whole)[at % len(whole)]
        head = client.ask(frame[:_SESSION_AT] + struct.pack(">ii", session_id, epoch) + frame[_SESSION_AT + 8 :])
        error, session_id = struct.unpack_from(">hi", head, 9)  # behind the correlation id, tags, the throttle time
        if error:
            raise RuntimeError(f"fetch failed with error code {error}")
        epoch = epoch + 1 if session_id else 0
    client.close()


# -- the broker, and what stands before it --------------------------------------------------------------------------


class Ways(NamedTuple):
    """All ways to one broker: direct, by HAProxy, by the proxy; plain ones, and those with TLS from end to end."""

    broker: KafkaBroker
    plain: tuple[Way, Way, Way]
    tls: tuple[Way, Way, Way]


@contextmanager
def running_ways(work: Path) -> Iterator[Ways]:
    authority = an_authority(work)
    issued_files = issued(work, authority)
    both = work / "both.pem"
    both.write_text(issued_files.key.read_text() + issued_files.certificate.read_text())
    context = ssl.create_default_context(cafile=str(authority.certificate))
    client_properties = work / "client.properties"
    client_properties.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={authority.certificate}\n")
    plain, secured, controller, haproxy_plain, haproxy_secured = (free_port() for _ in range(5))
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": both,
    }
    config = f"""
defaults
  mode tcp
  timeout connect 10s
  timeout client 600s
  timeout server 600s
listen plain
  bind 127.0.0.1:{haproxy_plain}
  server broker 127.0.0.1:{plain}
listen secured
  bind 127.0.0.1:{haproxy_secured} ssl crt {both}
  server broker 127.0.0.1:{secured} ssl verify required ca-file {authority.certificate}
"""
    tls = f'upstream_properties = "{client_properties}"\ntls_certificate = "{issued_files.certificate}"\ntls_key = "{issued_files.key}"\n'
    broker = KafkaBroker(work / "kafka", work / "broker", compaction=False, properties=properties, fast=True, ports=(plain, controller))
    with (
        broker,
        running_haproxy(work / "haproxy.cfg", config) as haproxy,
        running_agent(work / "plain", plain) as (proxy, address),
        running_agent(work / "tls", secured, tls) as (tls_proxy, tls_address),
    ):
        yield Ways(
            broker,
            (Way(DIRECT, ("127.0.0.1", plain)), Way(HAPROXY, ("127.0.0.1", haproxy_plain), haproxy), Way(PROXY, address, proxy)),
            (
                Way(DIRECT, ("127.0.0.1", secured), tls=context),
                Way(HAPROXY, ("127.0.0.1", haproxy_secured), haproxy, context),
                Way(PROXY, tls_address, tls_proxy, context),
            ),
        )


@contextmanager
def running_haproxy(path: Path, config: str) -> Iterator[psutil.Process]:
    path.write_text(config)
    process = subprocess.Popen(["haproxy", "-db", "-f", str(path)])
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def running_agent(work: Path, broker_port: int, settings: str = "") -> Iterator[tuple[psutil.Process, tuple[str, int]]]:
    """One that reads nothing but an empty archive, with a proxy. Its process, and where that listens."""
    gateway = f'upstream = "127.0.0.1:{broker_port}"\nupstream_port_map = "1:{free_port()}"\n{settings}'
    with Agent(Headwater(work, None, gateway=gateway)) as agent:
        host, _, port = agent.address().rpartition(":")
        yield psutil.Process(agent.pid), (host, int(port))
        agent.stop()


# -- what is measured -----------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A line of the table. ratio: of the proxy to its peer"""

    what: str
    by_way: Mapping[str, str]
    ratio: str
    aim: str
    cpu: str = ""


class Log(NamedTuple):
    """What is in the topic to be read."""

    batch: Batch
    end: int

    @property
    def record_bytes(self) -> float:
        return len(self.batch.raw) / self.batch.records

    def read(self, way: Way, *, copies: bool = True) -> Took:
        reader = Discarder(way.address, LOG, len(self.batch.raw), self.batch.records, tls=way.tls, copies=copies)
        took = reader.read(self.end)
        reader.close()
        return took


def in_turn(ways: Sequence[Way], count: int) -> Iterator[tuple[bool, Way]]:
    """All ways, `count` times, the other way round each time; before that once to warm up: False."""
    for at in range(-1, count):
        for way in ways if at % 2 else ways[::-1]:
            yield at >= 0, way


def at_speed(what: str, ways: Sequence[Way], rounds: int, measure: Callable[[Way], Took], peer: str, aim: str) -> Row:
    found = {way.name: Measured() for way in ways}
    for counts, way in in_turn(ways, rounds):
        cpu_s = way.cpu_s()
        took = measure(way)
        if counts:
            found[way.name].add(took, way.cpu_s() - cpu_s)
    cpu = ", ".join(f"{name} {measured.cpu_s_gb:.2f}" for name, measured in found.items() if name != DIRECT)
    return Row(what, {name: str(measured) for name, measured in found.items()}, f"{found[PROXY].mb_s / found[peer].mb_s:.2f}x", aim, cpu)


def create_topic(ways: Ways, name: str, partitions: int = 1) -> None:
    """Return once the broker leads all of it. One that is deleted takes no room a moment later."""
    ways.broker.create_topic(name, partitions, file_delete_delay_ms=0)
    while name not in ways.broker.topics():
        time.sleep(0.05)
    ways.broker.wait_ready()


def _spread(values: Sequence[float], unit: float, digits: int = 0) -> str:
    return f"{median(values) / unit:,.{digits}f} ({min(values) / unit:,.{digits}f}-{max(values) / unit:,.{digits}f})"


def trips(ways: Ways, rounds: int) -> Iterator[Row]:
    batch = a_batch(1)
    produce = produce_request(SMALL, batch)
    create_topic(ways, SMALL)
    write(ways.plain[0], SMALL, batch, len(batch.raw))
    for what, frame in (("fetch of 1 KB, µs", fetch_request(SMALL, [0], 0)), ("produce of 1 KB, µs", produce)):
        clients = {way.name: Client(way) for way in ways.plain}
        found: dict[str, list[float]] = {way.name: [] for way in ways.plain}
        cpu_s = {way.name: way.cpu_s() for way in ways.plain}
        for at in range(-1, rounds):
            trips_s: dict[str, list[float]] = {way.name: [] for way in ways.plain}
            for _, way in in_turn(ways.plain, TURNS):
                trips_s[way.name] += [trip_s(clients[way.name], frame) for _ in range(TRIPS)]
            for name, values in trips_s.items() if at >= 0 else ():
                found[name].append(median(values))
        for client in clients.values():
            client.close()
        count = (1 + rounds) * (1 + TURNS) * TRIPS
        cpu = ", ".join(f"{way.name} {(way.cpu_s() - cpu_s[way.name]) / count * 1e6:.0f} µs" for way in ways.plain if way.between)
        ratio = median(found[PROXY]) / median(found[DIRECT])
        yield Row(what, {name: _spread(values, 1e-6) for name, values in found.items()}, f"{ratio:.2f}x", "≤ 1.5x", cpu)


def trip_s(client: Client, frame: bytes) -> float:
    start_s = time.perf_counter()
    client.ask(frame)
    return time.perf_counter() - start_s


def reads(ways: Ways, rounds: int, log: Log) -> Iterator[Row]:
    yield at_speed("one consumer, MB/s", ways.plain, rounds, log.read, DIRECT, SPEED_AIM)
    yield at_speed("one consumer that drops, MB/s", ways.plain, rounds, lambda way: log.read(way, copies=False), DIRECT, "")
    apart = [way for way in ways.plain if way.name != HAPROXY]  # whose clients the broker would have come to itself
    yield at_speed(
        "one consumer, librdkafka, MB/s",
        apart,
        rounds,
        lambda way: read_with_librdkafka(way.address, LOG, log.end, log.record_bytes),
        DIRECT,
        "",
    )


def writes(ways: Ways, rounds: int, records: int) -> Row:
    """Into a topic of its own each time, which is deleted before its bytes come to the disk."""
    batch = a_batch(records)

    def measure(way: Way) -> Took:
        topic = f"{WRITTEN}-{uuid.uuid4().hex}"
        create_topic(ways, topic)
        try:
            return write(way, topic, batch, WRITTEN_BYTES)
        finally:
            ways.broker.delete_topic(topic)

    return at_speed(f"one producer, batches of {len(batch.raw) / 1e3:.0f} kB, MB/s", ways.plain, rounds, measure, DIRECT, SPEED_AIM)


def fetches(ways: Ways, rounds: int) -> Iterator[Row]:
    numbers, broker = range(PARTITIONS), psutil.Process(ways.broker.pid)
    create_topic(ways, MANY, PARTITIONS)
    client = Client(ways.plain[0])
    for _ in range(2):
        check_produced(client.ask(produce_request(MANY, a_batch(1), numbers)), MANY, PARTITIONS)
    client.close()
    news = [fetch_request(MANY, numbers, offset) for offset in (0, 1)]
    nothing = [fetch_request(MANY, numbers, 2)]
    for what, whole, changed in (("nothing new", nothing, [fetch_request(MANY, [], 2)]), ("1 KB of all", news, news)):
        found: dict[str, list[float]] = {DIRECT: [], PROXY: []}
        for counts, way in in_turn([way for way in ways.plain if way.name in found], rounds):
            cpu_s = process_cpu_s(broker)
            fetch_in_session(way, whole, changed, FETCHES)
            if counts:
                found[way.name].append((process_cpu_s(broker) - cpu_s) / FETCHES)
        ratio = median(found[PROXY]) / median(found[DIRECT])
        by_way = {name: _spread(values, 1e-3, 2) for name, values in found.items()}
        yield Row(f"{PARTITIONS:,} partitions, {what}, broker's CPU ms", by_way, f"{ratio:.2f}x", "≤ 1.3x")


def rows(ways: Ways, parts: Sequence[str], mib: int, rounds: int) -> Iterator[Row]:
    if "trips" in parts:
        yield from trips(ways, rounds)
    if "read" in parts or "tls" in parts:
        batch = a_batch(JAVA_RECORDS)
        create_topic(ways, LOG)
        size_bytes = write(ways.plain[0], LOG, batch, mib << 20).size_bytes
        os.sync()  # write-back of what was just made must not run into what is measured
        log = Log(batch, size_bytes // len(batch.raw) * batch.records)
        if "read" in parts:
            yield from reads(ways, rounds, log)
        if "tls" in parts:
            yield at_speed("one consumer, TLS on both sides, MB/s", ways.tls, rounds, log.read, HAPROXY, "≥ 0.7x")
    if "write" in parts:
        for records in (LIBRDKAFKA_RECORDS, JAVA_RECORDS):
            yield writes(ways, rounds, records)
    if "partitions" in parts:
        yield from fetches(ways, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=2048, help="of the log that is read (default 2048)")
    parser.add_argument("--rounds", type=int, default=5, help="by each way (default 5)")
    parser.add_argument("--only", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--scratch", type=Path, help="where files go")
    arguments = parser.parse_args()
    if shutil.which("haproxy") is None:
        parser.error("haproxy is not installed (Debian: apt-get install haproxy)")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=arguments.scratch) as scratch, running_ways(Path(scratch)) as ways:
        found = list(rows(ways, arguments.only.split(","), arguments.mib, arguments.rounds))
        table = Table(title=f"{os.cpu_count()} cores, load {load:.1f} before, median of {arguments.rounds} rounds (least-most)")
        table.add_column("what")
        for column in (DIRECT, HAPROXY, PROXY, "ratio", "aim", "CPU s/GB"):
            table.add_column(column, justify="right")
        for row in found:
            table.add_row(row.what, *(row.by_way.get(name, "") for name in (DIRECT, HAPROXY, PROXY)), row.ratio, row.aim, row.cpu)
        Console(width=None if sys.stdout.isatty() else 170).print(table)


if __name__ == "__main__":
    main()
