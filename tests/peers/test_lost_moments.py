"""A cluster of three brokers is lost while transactional producers, a Kafka Streams application, groups and a share group are at work.
Its logs were archived at random moments, in random order. What is recovered from the bucket alone has I29, and all of them go on.

LOSSES sets how many are lost; the number of one is its seed.
"""

import os
import subprocess
import sys
import time
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # its stub re-exports nothing

from headwater import cli
from headwater_core.segments.records import decode_batch
from recovery.coordinators import OFFSETS, TRANSACTIONS
from recovery.share_groups import SHARE_GROUPS
from recovery.target import read_mark
from tests.peers.agent import ROOT
from tests.peers.cluster import NODES, PATIENT, Cluster, wait_in_sync
from tests.peers.java_client import java_client, java_consume, java_coordinated, kafka_jars, wait_for_markers, with_compiled
from tests.peers.kafka import KafkaBroker
from tests.peers.load import GROUPS, PARTITIONS
from tests.peers.lost_cluster import LostCluster, end_of
from tests.peers.test_lost_cluster import until
from tests.recovery.coordinator_model import Place
from tests.recovery.written_archive import batches_in

pytestmark = [pytest.mark.peer, pytest.mark.slow]

LOSSES = int(os.environ.get("LOSSES", "2"))
ISOLATIONS = ("read_uncommitted", "read_committed")
CHANGELOG = "counter-counts-changelog"
DATA = {**PARTITIONS, "out": 2, CHANGELOG: 2}
COORDINATORS = (TRANSACTIONS, OFFSETS, SHARE_GROUPS)
SHARING = "sharers"
IDS = [f"{client}-{number}" for client in ("java", "rdkafka") for number in range(PARTITIONS["orders"])]
SETTINGS = {
    **PATIENT,
    "log.cleaner.enable": "false",  # each record is compared
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": NODES,
    "share.coordinator.state.topic.min.isr": 2,
    "group.share.delivery.count.limit": 10,
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.consumer.session.timeout.ms": 6_000,
}
QUIET = "all when nothing is written any more"
ORDERS = (QUIET, "coordinators older", "data older", "random", "random")


class WorkedCluster(Cluster):
    starts_agents = False

    def __init__(self, root: Path, bucket: Path, version: int, log_dirs: Sequence[Path] = ()) -> None:
        def broker(log_dir: Path, work: Path, properties: Mapping[str, object], **settings: Any) -> KafkaBroker:
            return KafkaBroker(log_dir, work, properties={**properties, **SETTINGS}, **settings)

        feature = ("--feature", f"transaction.version={version}")
        super().__init__(root, "", "", log_dirs=log_dirs, bucket=bucket, broker=broker, format_options=feature)

    def furnish(self) -> None:
        for topic, count in DATA.items():
            self.brokers[0].create_topic(topic, count, NODES, cleanup_policy="compact" if topic == CHANGELOG else "delete")
        java_client().request("group", self.bootstrap, SHARING, "share.auto.offset.reset", "earliest")

    def end(self, *topics: str) -> int:
        """The number of records in these topics, markers included."""
        return sum(end for (topic, _), (_, end) in self.bounds().items() if topic in topics)

    def flush(self, at: int, *topics: str) -> None:
        """What the broker leads of these topics, or of all, and the cluster's metadata then."""
        for topic in topics or [""]:
            command = ["flush", *filter(None, [topic]), "--config", str(self.headwaters[at].file), "--set", "control.peers="]
            assert cli.run(command) == 0, (at, topic)


@contextmanager
def at_work(cluster: Cluster, work: Path, life: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Everybody who uses it; killed at the end. What groups read is in `work`: see acquired."""
    work.mkdir()
    path = with_compiled("Load", with_compiled("Counter", kafka_jars()))
    java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m", "-cp", path, "Load"]
    commands = {
        "java": [*java, cluster.bootstrap, str(work / "state"), str(life), str(PARTITIONS["orders"])],
        "rdkafka": [sys.executable, "-m", "tests.peers.load", cluster.bootstrap, str(life)],
    }
    clients = []
    try:
        for name, command in commands.items():
            with (work / name).open("wb") as output, (work / f"{name}.errors").open("wb") as errors:
                clients.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=output, stderr=errors))
        yield clients
    finally:
        for client in clients:
            client.kill()
            client.communicate()


def are_well(clients: Sequence[subprocess.Popen[bytes]], work: Path) -> None:
    for client, name in zip(clients, ("java", "rdkafka"), strict=True):
        assert client.poll() is None, (work / f"{name}.errors").read_text()[-4000:]


def acquired(work: Path) -> dict[str, dict[int, list[int]]]:
    """By group and partition, the offsets that its member was given."""
    found: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for name in ("java", "rdkafka"):
        for line in (work / name).read_text().rpartition("\n")[0].splitlines():  # the last one may be written now
            group, partition, offset = line.split()
            found[group][int(partition)].append(int(offset))
    return found


def moments(random: Random, order: str) -> Iterator[list[tuple[int, str]]]:
    """What is archived at each, by which broker's agent."""
    count = random.randint(2, 4)
    early = random.randrange(1, count)
    for number in range(count):
        topics = [*DATA, *COORDINATORS]
        if number >= early and order == "coordinators older":
            topics = [*DATA]
        if number >= early and order == "data older":
            topics = [*COORDINATORS]
        chosen = random.sample(topics, random.randint(1, min(4, len(topics))))
        yield [(random.randrange(NODES), topic) for topic in chosen]


def lose(cluster: WorkedCluster, root: Path, random: Random, order: str) -> None:
    """Archive at random moments, counted in records, and end everything by SIGKILL."""

    def go_on() -> None:
        are_well(clients, root / "first")
        time.sleep(0.3)

    def work_on() -> None:
        end = cluster.end("orders", "out") + random.randint(10, 60)
        until(lambda: cluster.end("orders", "out") >= end, "nobody writes", go_on)

    def flush_all() -> None:
        for at in random.sample(range(NODES), NODES):
            cluster.flush(at)

    with at_work(cluster, root / "first", 1) as clients:
        until(lambda: all_are_there(cluster), "somebody does not begin", go_on)
        work_on()
        flush_all()
        for flushes in moments(random, order):
            work_on()
            for at, topic in flushes:
                cluster.flush(at, topic)
        if random.random() < 0.7:
            work_on()
        if order != QUIET:
            cluster.kill()
    if order == QUIET:
        wait_for_markers(cluster.bootstrap)
        until(lambda: is_archived(cluster), "something is not archived", flush_all)
        cluster.kill()


def is_archived(cluster: WorkedCluster) -> bool:
    heads = cluster.headwaters[0].heads()
    ends = ends_of(cluster, IsolationLevel.READ_UNCOMMITTED).items()
    return not [place for place, end in ends if end and (place not in heads or heads[place].next_offset < end)]


def all_are_there(cluster: WorkedCluster) -> bool:
    """Each group has committed, and each transactional id has begun."""
    if not {*COORDINATORS} <= {*cluster.brokers[0].topics()}:
        return False
    coordinated = java_coordinated(cluster.bootstrap)
    begun = {each["transactional_id"] for each in coordinated.transactions}
    committed = {each["group"] for each in coordinated.groups if each["offsets"]}
    return {*IDS} <= begun and {*GROUPS, "counter"} <= committed and cluster.end(SHARE_GROUPS) > 4


def committed_by(coordinated: Any) -> dict[tuple[str, str, int], tuple[int, str]]:
    return {
        (group["group"], each["topic"], each["partition"]): (each["offset"], each["metadata"])
        for group in coordinated.groups
        for each in group["offsets"]
    }


def share_starts(cluster: Cluster) -> dict[int, int | None]:
    lines = java_client().request("shared", cluster.bootstrap, SHARING)
    return {line["partition"]: line["start"] for line in lines if line["topic"] == "soup"}


def shown(cluster: Cluster) -> dict[str, dict[Place, dict[int, bytes]]]:
    """By isolation, every record of data topics; readers of committed data come to the end of every log."""
    until(partial(are_stable, cluster), "a last stable offset does not reach its log's end", lambda: time.sleep(0.2))
    found: dict[str, dict[Place, dict[int, bytes]]] = {}
    for isolation in ISOLATIONS:
        found[isolation] = {(topic, number): {} for topic, count in DATA.items() for number in range(count)}
        for record in java_consume(cluster.bootstrap, DATA, isolation).records:
            found[isolation][record["topic"], record["partition"]][record["offset"]] = b64decode(record["value"])
    return found


def are_stable(cluster: Cluster) -> bool:
    """The last stable offset of every log is its end. Coordinators may write while this looks."""
    return ends_of(cluster, IsolationLevel.READ_COMMITTED) == ends_of(cluster, IsolationLevel.READ_UNCOMMITTED)


def ends_of(cluster: Cluster, level: IsolationLevel) -> dict[Place, int]:
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    admin = cluster.admin  # held: its futures die with it
    found = admin.list_offsets({TopicPartition(*place): latest for place in cluster.bounds()}, isolation_level=level)
    return {(place.topic, place.partition): offset.result(30).offset for place, offset in found.items()}


class Counted:
    """What the Streams application has to count, given what it finds: its counts, and what it has not read of its input."""

    def __init__(self, cluster: Cluster) -> None:
        committed = committed_by(java_coordinated(cluster.bootstrap))
        self.starts = {number: committed.get(("counter", "in", number), (0, ""))[0] for number in range(PARTITIONS["in"])}
        self.ends = {number: cluster.bounds()["out", number][1] for number in range(DATA["out"])}
        self.before: dict[bytes, int] = {}
        for record in java_consume(cluster.bootstrap, [CHANGELOG], "read_committed").records:
            self.before[b64decode(record["key"])] = int.from_bytes(b64decode(record["value"]), "big")

    def expect(self, cluster: Cluster, *, once: bool) -> None:
        """once: it lost nothing of what it had done"""
        inputs = java_consume(cluster.bootstrap, ["in"], "read_committed").records
        new = Counter(b64decode(each["key"]) for each in inputs if each["offset"] >= self.starts[each["partition"]])
        found = defaultdict(list)
        for record in java_consume(cluster.bootstrap, ["out"], "read_committed").records:
            if record["offset"] >= self.ends[record["partition"]]:
                found[b64decode(record["key"])].append(int.from_bytes(b64decode(record["value"]), "big"))
        wanted = {key: list(range(self.before.get(key, 0) + 1, self.before.get(key, 0) + count + 1)) for key, count in new.items()}
        assert found == wanted
        if once:
            assert {key: values[-1] for key, values in found.items()} == Counter(b64decode(each["key"]) for each in inputs)


def expect_recovered(cluster: WorkedCluster, lost: LostCluster, torn: Sequence[Any]) -> None:
    """I29 of a cluster that nobody has used yet."""
    coordinated = java_coordinated(cluster.bootstrap)
    assert not coordinated.transactions
    records = shown(cluster)
    for place in records["read_uncommitted"]:
        archived = {
            record.offset: record.value or b""
            for header, raw in lost.archived(place)
            if not header.is_control
            for record in decode_batch(raw)
        }
        assert records["read_uncommitted"][place] == archived, place
        assert records["read_committed"][place] == {
            offset: archived[offset] for offset in sorted(lost.visible(place)) if offset in archived
        }, place
    assert [*lost.in_part(torn)] == []
    ends = {place: end for place, (_, end) in cluster.bounds().items()}
    commits = lost.commits().items()
    wanted = {(key.group, key.topic, key.partition): (min(each.offset, ends[key[1:]]), each.metadata) for key, each in commits}
    found = committed_by(coordinated)
    assert found == wanted
    for group in sorted({group for group, *_ in wanted}):
        stable = cluster.brokers[0].committed(group)  # this waits for commits that are pending
        assert stable == {(topic, number): offset for (name, topic, number), (offset, _) in wanted.items() if name == group}
    assert {*GROUPS, SHARING, "counter"} <= {each["group"] for each in coordinated.groups}
    starts = {key.partition: min(state.start_offset, ends["soup", key.partition]) for key, state in lost.share_states().items()}
    assert share_starts(cluster) == starts


def remaining(lost: LostCluster, partition: int, end: int) -> set[int]:
    """Of the records that are archived, those that the share group is not done with."""
    (state,) = (state for key, state in lost.share_states().items() if key.partition == partition)
    done = {offset for each in state.batches if each.is_done for offset in range(each.first_offset, each.last_offset + 1)}
    return {*range(max(0, min(state.start_offset, end)), end)} - done


def transactions_in(values: Iterable[bytes]) -> Counter[tuple[str, str, str, str, str]]:
    """How many of these records each transaction has, by what they say of it: id, life, number, size and end."""
    parts = (value.decode().split("/") for value in values)
    return Counter((name, life, number, size, end) for name, life, number, size, _, end in parts)


def committed_orders(cluster: Cluster) -> Counter[tuple[str, str, str, str, str]]:
    return transactions_in(b64decode(record["value"]) for record in java_consume(cluster.bootstrap, ["orders"], "read_committed").records)


def go_on(cluster: WorkedCluster, work: Path, lost: LostCluster, *, once: bool) -> None:
    """All of them in a second life, which ends well."""
    ends = {number: cluster.bounds()["soup", number][1] for number in range(PARTITIONS["soup"])}
    starts = {group: {number: cluster.brokers[0].committed(group).get(("soup", number), 0) for number in ends} for group in GROUPS}
    counted = Counted(cluster)

    def between() -> None:
        are_well(clients, work)
        time.sleep(0.2)

    with at_work(cluster, work, 2) as clients:

        def each_has_committed() -> bool:
            return {name for name, life, *_ in committed_orders(cluster) if life == "2"} == {*IDS}

        until(each_has_committed, "a transactional id does not go on", between)
        until(lambda: {"sharers", *GROUPS} <= acquired(work).keys(), "a group does not go on", between)
        java, rdkafka = clients
        rdkafka.communicate(timeout=120)
        assert rdkafka.returncode == 0, (work / "rdkafka.errors").read_text()[-4000:]
        bounds = cluster.bounds()

        def are_done() -> bool:
            read = cluster.brokers[0].committed("counter")
            shared = {line["lag"] for line in java_client().request("shared", cluster.bootstrap, SHARING) if line["topic"] == "soup"}
            return shared == {0} and all(read.get(("in", number)) == bounds["in", number][1] for number in range(PARTITIONS["in"]))

        until(are_done, "the Streams application or the share group does not come to the end", lambda: time.sleep(0.2))
        java.communicate(timeout=120)
        assert java.returncode == 0, (work / "java.errors").read_text()[-4000:]
    counted.expect(cluster, once=once)
    found = acquired(work)
    for number, (_, end) in ((number, bounds["soup", number]) for number in ends):
        assert {*found[SHARING][number]} == remaining(lost, number, ends[number]) | {*range(ends[number], end)}
        for group in GROUPS:
            assert {*found[group][number]} == {*range(starts[group][number], end)}, group


@pytest.mark.xdist_group("lost")
@pytest.mark.parametrize("seed", range(LOSSES))
def test_whenever_a_cluster_is_lost_everybody_goes_on(seed: int, tmp_path: Path) -> None:
    random = Random(f"loss {seed}")
    order, version = random.choice(ORDERS), random.choice((1, 2))
    print(f"\nloss {seed}: {order}, transactions of version {version}")
    bucket = tmp_path / "bucket"
    with WorkedCluster(tmp_path / "one", bucket, version) as cluster:
        cluster.furnish()
        lose(cluster, tmp_path, random, order)
        ends = {place: head.next_offset for place, head in cluster.headwaters[0].heads().items()}
        lost = LostCluster([each.log_dir for each in cluster.brokers], ends)
    into, store = tmp_path / "recovered", ["--store", f"file://{bucket}", "--data-dir", str(tmp_path / "operator")]
    code = cli.run(["recover", "apply", "cluster", "--brokers", str(NODES), "--take-over", "--into", str(into), *store])
    mark = read_mark(into)
    assert mark is not None
    torn = mark.plan.cut.torn if mark.plan.cut is not None else ()
    assert code == (3 if torn else 0)
    assert [*lost.wrongly_named(torn)] == []
    assert not (torn and order == QUIET)
    log_dirs = [into / f"node-{node}" for node in range(1, NODES + 1)]
    for place in ends:
        (placed,) = (found for each in log_dirs if (found := each / f"{place[0]}-{place[1]}").exists() and end_of(batches_in(found)))
        archived = lost.archived(place)
        assert batches_in(placed)[: len(archived)] == archived, place
    with WorkedCluster(tmp_path / "two", bucket, version, log_dirs) as cluster:
        wait_in_sync(cluster.bootstrap, NODES)
        expect_recovered(cluster, lost, torn)
        go_on(cluster, tmp_path / "second", lost, once=order == QUIET)
        before = shown(cluster)
        whole = committed_orders(cluster)
        assert {each[-1] for each in whole} == {"commit"}
        assert not [each for each, count in whole.items() if each[1] == "2" and count != int(each[3])]
        coordinated = java_coordinated(cluster.bootstrap)
        assert {each["state"] for each in coordinated.transactions} <= {"CompleteCommit", "CompleteAbort", "Empty"}
        if not seed % 2:
            return  # of two losses one is started once more
        for broker in cluster.brokers:
            broker.kill()
        for broker in cluster.brokers:
            broker.launch()
        for broker in cluster.brokers:
            broker.wait_ready()
        wait_in_sync(cluster.bootstrap, NODES)
        assert shown(cluster) == before
        assert committed_by(java_coordinated(cluster.bootstrap)) == committed_by(coordinated)
