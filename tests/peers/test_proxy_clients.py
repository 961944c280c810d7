"""Client libraries of several languages through the proxy, from the beginning of the archive on to the end of the broker's log."""

import subprocess
import time
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from tests.fixtures import Isolation
from tests.headwater.gateway.readers import Rows, in_order, read_with_kafka_python
from tests.headwater.gateway.test_clients import ISOLATIONS, plain_places
from tests.peers.connect import connecting, file_sink, file_source
from tests.peers.counter import counting, counts, wait_for_total
from tests.peers.java_client import java_coordinated, wait_for_markers
from tests.peers.kafka import KafkaBroker, expect_same, produce
from tests.peers.proxied import bounds_of, middles, places_of, proxied_pantry, records_of
from tests.peers.reader_programs import PROGRAMS, Program, Running, in_fields, join, read, wait_for

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("proxy clients")]  # which share a broker

TOPIC = "orders.placed"  # with transactions, some of them aborted
PARTITIONS = [0, 1, 2]
TIMED = "cookbook.1990"  # its times do not rise
LAST = b"last"  # key and value of the record at the end of each partition
READERS = [pytest.param(program, id=name) for name, program in PROGRAMS.items()]
ISOLATED = [pytest.param(program, each, id=f"{name}, {each}") for name, program in PROGRAMS.items() for each in program.isolations]
MEMBERS = [
    pytest.param(program, protocol, id=f"{name}, {protocol}") for name, program in PROGRAMS.items() for protocol in program.protocols
]
STATIC = [pytest.param(program, protocol, id=f"{name}, {protocol}") for name, program in PROGRAMS.items() for protocol in program.static]


class Cluster(NamedTuple):
    """
    address  of the proxy
    ends     offsets after the last record of each partition
    """

    broker: KafkaBroker
    address: str
    ends: Mapping[tuple[str, int], int]

    def wanted(self, program: Program, topic: str = TOPIC) -> Rows:
        return [each for each in records_of(program.isolation) if each["topic"] == topic]

    def count_after(self, program: Program, rows: Rows, partitions: Sequence[int] = PARTITIONS) -> int:
        """How many records, with the last ones, follow on `rows` in some partitions of TOPIC."""
        return (
            sum(each["partition"] in partitions for each in self.wanted(program))
            + len(partitions)
            - sum(each["partition"] in partitions for each in rows)
        )

    def committed(self, group: str) -> dict[int, int]:
        """By partition, where anything was read: a library may commit the beginning as well."""
        return {partition: offset for (_, partition), offset in self.broker.committed(group).items() if offset}

    def protocol(self, group: str) -> str:
        """That its members use."""
        admin = self.broker.admin
        return str(admin.describe_consumer_groups([group])[group].result(30).type.name).lower()

    def expect(self, rows: Rows, wanted: Rows) -> None:
        """`wanted`, and the record at the end of each partition that is in `rows`."""
        last = [each for each in rows if each["offset"] + 1 == self.ends[each["topic"], each["partition"]]]
        expect_same(in_order(each for each in rows if each not in last), in_fields(in_order(wanted), rows), "through the proxy")
        assert len(last) == len({(each["topic"], each["partition"]) for each in rows})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A record at the end of each partition, written through the proxy, tells readers that nothing follows: an aborted transaction may be
    before it."""
    with proxied_pantry(tmp_path_factory.mktemp("proxy")) as served:
        producer = Producer({"bootstrap.servers": served.address, "linger.ms": 0})
        for topic, partition in places_of("read_uncommitted"):
            produce(producer, topic, [LAST], partition=partition, keys=[LAST])
        ends = {(each["topic"], each["partition"]): each["high_watermark"] + 1 for each in bounds_of("read_uncommitted")}
        yield Cluster(served.broker, served.address, ends)


@pytest.mark.parametrize(("program", "isolation"), ISOLATED)
def test_every_record_is_read_as_it_was_written(cluster: Cluster, program: Program, isolation: Isolation) -> None:
    cluster.expect(read(program, cluster.address, isolation, cluster.ends), records_of(isolation))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_kafka_python_reads_what_it_has_codecs_for(cluster: Cluster, isolation: Isolation) -> None:
    places = [place for place in places_of(isolation) if place in plain_places("pantry")]
    wanted = [each for each in records_of(isolation) if (each["topic"], each["partition"]) in places]
    cluster.expect(read_with_kafka_python(cluster.address, places, isolation), wanted)


@pytest.mark.parametrize("half", ["archived", "the broker's"])
@pytest.mark.parametrize("program", READERS)
def test_reading_begins_at_a_time(cluster: Cluster, program: Program, half: str) -> None:
    records, middle = cluster.wanted(program, TIMED), middles()[TIMED, 0]
    archived = [each["timestamp"] for each in records if each["offset"] < middle]
    start = archived[len(archived) // 2] if half == "archived" else max(archived) + 1
    first = next(each["offset"] for each in records if each["timestamp"] >= start)
    assert (first < middle) is (half == "archived")
    rows = read(program, cluster.address, program.isolation, {(TIMED, 0): cluster.ends[TIMED, 0]}, str(start))
    cluster.expect(rows, [each for each in records if each["offset"] >= first])


@pytest.mark.parametrize(("program", "protocol"), MEMBERS)
def test_a_group_goes_on_where_it_has_committed(cluster: Cluster, program: Program, protocol: str, request: pytest.FixtureRequest) -> None:
    group = request.node.name
    with join(program, cluster.address, group, TOPIC, protocol) as first:
        first.take(50)
        first.end()
    assert cluster.committed(group) == _next_offsets(first.records)
    with join(program, cluster.address, group, TOPIC, protocol) as second:
        second.take(cluster.count_after(program, first.records))
        second.end()
    cluster.expect(first.records + second.records, cluster.wanted(program))
    assert cluster.committed(group) == _next_offsets(first.records + second.records)


@pytest.mark.parametrize(("program", "protocol"), MEMBERS)
def test_a_second_member_goes_on_with_its_partitions(
    cluster: Cluster, program: Program, protocol: str, request: pytest.FixtureRequest
) -> None:
    group = request.node.name
    with join(program, cluster.address, group, TOPIC, protocol) as first:
        first.take(50)
        with join(program, cluster.address, group, TOPIC, protocol) as second:
            wait_for(lambda: _is_shared(first, second), first, second)
            assert cluster.protocol(group) == protocol
            so_far = first.records.copy()
            for member in (first, second):
                member.take(cluster.count_after(program, so_far, member.partitions))
            second.end()
            wait_for(lambda: first.partitions == PARTITIONS, first)
        first.end()
    cluster.expect(first.records + second.records, cluster.wanted(program))


@pytest.mark.parametrize(("program", "protocol"), STATIC)
def test_a_static_member_comes_back_and_no_other_notices(
    cluster: Cluster, program: Program, protocol: str, request: pytest.FixtureRequest
) -> None:
    """By the classic protocol it may be killed: a member of the same name takes its place at once."""
    group = request.node.name
    with (
        join(program, cluster.address, group, TOPIC, protocol, "one") as one,
        join(program, cluster.address, group, TOPIC, protocol, "two") as two,
    ):
        wait_for(lambda: _is_shared(one, two), one, two)
        partitions, seen = one.partitions, len(two.assignments)
        one.take(20)
        if protocol == "classic":
            one.kill()
        else:
            one.end()
        with join(program, cluster.address, group, TOPIC, protocol, "one") as again:
            wait_for(lambda: again.partitions == partitions, again)
            again.take(cluster.count_after(program, one.records, partitions))
            two.take(cluster.count_after(program, [], two.partitions))
            assert all(each == two.partitions for each in two.assignments[seen:])
            cluster.expect(one.records + again.records + two.records, cluster.wanted(program))


def test_a_streams_application_counts_exactly_once_through_a_kill(cluster: Cluster, tmp_path: Path) -> None:
    """The first one has counted all within a transaction, which nobody else may see. Each partition is counted by itself; no
    record without a key or a value is."""
    rows = [each for each in records_of("read_committed") if each["topic"] == TOPIC and None not in (each["key"], each["value"])]
    records = Counter([(b64decode(each["key"]), each["partition"]) for each in rows] + [(LAST, partition) for partition in PARTITIONS])
    wanted: dict[bytes, list[int]] = defaultdict(list)
    for (key, _), count in records.items():
        wanted[key] += range(1, count + 1)
    cluster.broker.create_topic("counts", 2)
    with counting(cluster.address, tmp_path / "one", 300_000, TOPIC, "counts"):
        wait_for_total(cluster.address, records.total(), "read_uncommitted", "counts")
    for transaction in java_coordinated(cluster.address).transactions:
        if transaction["state"] == "Ongoing":  # with a directory of its own on disk the next one would do this
            Producer({"bootstrap.servers": cluster.address, "transactional.id": transaction["transactional_id"]}).init_transactions(60)
    wait_for_markers(cluster.address)
    assert not counts(cluster.address, "read_committed", "counts")
    with counting(cluster.address, tmp_path / "two", 200, TOPIC, "counts"):
        wait_for_total(cluster.address, records.total(), "read_committed", "counts")
    found = counts(cluster.address, "read_committed", "counts")
    assert {key: sorted(values) for key, values in found.items()} == {key: sorted(values) for key, values in wanted.items()}


def test_connectors_copy_from_the_archive_to_a_file_and_from_a_file_to_the_broker(cluster: Cluster, tmp_path: Path) -> None:
    """After a restart they go on where they were."""
    values = [each["value"] for each in records_of("read_uncommitted") if each["topic"] == TIMED]
    wanted = b"".join(_line(b"null" if value is None else b64decode(value)) for value in values) + _line(LAST)
    archived, lines, copied = tmp_path / "archived", tmp_path / "lines", tmp_path / "copied"
    connectors = {"archive": file_sink(TIMED, archived), "lines": file_source(lines, "lines"), "copies": file_sink("lines", copied)}
    cluster.broker.create_topic("lines")
    for end in (50, 90):
        lines.write_text("".join(f"line {number}\n" for number in range(end)))
        with connecting(cluster.address, tmp_path / "worker", connectors):
            _wait_for_file(copied, lines.read_bytes())
            _wait_for_file(archived, wanted)
        assert cluster.broker.committed("connect-archive") == {(TIMED, 0): cluster.ends[TIMED, 0]}
        assert cluster.broker.committed("connect-copies") == {("lines", 0): end}
    assert (archived.read_bytes(), copied.read_bytes()) == (wanted, lines.read_bytes())


def _line(value: bytes) -> bytes:
    """As a sink writes it: in UTF-8."""
    return value.decode("iso-8859-1").encode() + b"\n"


def _wait_for_file(file: Path, content: bytes) -> None:
    until_s = time.monotonic() + 60
    while not file.exists() or file.read_bytes() != content:
        assert time.monotonic() < until_s, f"{file}: {file.exists() and file.read_bytes()[-500:]!r}"
        time.sleep(0.1)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_kcat_prints_every_record(cluster: Cluster, isolation: Isolation) -> None:
    for partition in PARTITIONS:
        rows = [each for each in records_of(isolation) if (each["topic"], each["partition"]) == (TOPIC, partition)]
        printed = kcat(cluster.address, isolation, "-C", "-t", TOPIC, "-p", str(partition), "-o", "beginning", "-e")
        _expect_lines(printed, rows, f"{partition} {cluster.ends[TOPIC, partition] - 1} ")


def test_kcat_begins_at_a_time(cluster: Cluster) -> None:
    rows = [each for each in records_of("read_committed") if each["topic"] == TIMED]
    first = next(at for at, each in enumerate(rows) if each["timestamp"] >= rows[50]["timestamp"])
    printed = kcat(cluster.address, "read_committed", "-C", "-t", TIMED, "-p", "0", "-o", f"s@{rows[50]['timestamp']}", "-e")
    _expect_lines(printed, rows[first:], f"0 {cluster.ends[TIMED, 0] - 1} ")


def test_kcat_goes_on_in_its_group(cluster: Cluster) -> None:
    rows = [each for each in records_of("read_committed") if each["topic"] == TIMED]
    options = ("-G", "kcat", "-X", "auto.offset.reset=earliest")
    first = kcat(cluster.address, "read_committed", *options, "-c", "60", TIMED)
    assert cluster.committed("kcat") == {0: 60}
    _expect_lines(first + kcat(cluster.address, "read_committed", *options, "-e", TIMED), rows, f"0 {cluster.ends[TIMED, 0] - 1} ")


def kcat(address: str, isolation: Isolation, *arguments: str) -> bytes:
    """What it prints of records, in the form of `_printed`."""
    command = ["kcat", "-q", "-b", address, "-X", f"isolation.level={isolation}", "-f", "%p %o %T %K %S %k%s%h\n", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout


def _printed(row: dict[str, Any]) -> bytes:
    """A record as kcat prints it: partition, offset, time, the lengths of key and value (-1: none), these, and the headers, whose values
    end for it at a zero byte."""
    key, value = (None if row[field] is None else b64decode(row[field]) for field in ("key", "value"))
    lengths = [-1 if each is None else len(each) for each in (key, value)]
    headers = [name.encode() + b"=" + (b"NULL" if each is None else b64decode(each).partition(b"\0")[0]) for name, each in row["headers"]]
    numbers = " ".join(map(str, (row["partition"], row["offset"], row["timestamp"], *lengths)))
    return numbers.encode() + b" " + (key or b"") + (value or b"") + b",".join(headers) + b"\n"


def _expect_lines(printed: bytes, rows: Rows, last: str) -> None:
    """`last`: how the line of the record at the end begins."""
    wanted = b"".join(map(_printed, rows))
    assert printed[: len(wanted)] == wanted
    [line] = printed[len(wanted) :].splitlines()
    assert line.startswith(last.encode())


def _next_offsets(rows: Rows) -> dict[int, int]:
    return {each["partition"]: each["offset"] + 1 for each in in_order(rows)}


def _is_shared(one: Running, other: Running) -> bool:
    """All partitions are assigned, and both have some."""
    return bool(one.partitions and other.partitions) and sorted(one.partitions + other.partitions) == PARTITIONS
