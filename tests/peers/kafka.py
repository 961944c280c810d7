"""A real Kafka broker, for the peer tests."""

import base64
import contextlib
import itertools
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]  # its stub re-exports nothing

from tests.peers.cache import fetched
from tests.peers.java_client import KAFKA, java_client, kafka_jars

_HERE = Path(__file__).parent
_READY_S = 180  # three JVMs on two cores, beside what else is at work there
_LOADING = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE)
_PORTS, _WORKERS = range(2_000, 11_000), 4
_next_port = itertools.count(random.SystemRandom().randrange(len(_PORTS)))


def free_port() -> int:
    """A port where nothing listens now, and which is given once: whoever asked begins to listen seconds later.

    Below the system's ephemeral range and that of `tests.s3server`; each worker has its own part.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = _PORTS[worker % _WORKERS :: _WORKERS]
    while True:
        port = ports[next(_next_port) % len(ports)]
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


class KafkaBroker:
    """One combined KRaft node over `log_dir`. Retention, and compaction unless requested, are off: what is there stays.

    with KafkaBroker(log_dir, work) as broker: starts it, formatting an empty directory; stops it at the end.

    fast  it is to be fast for long, as the benchmarks want it, and not at once, as tests do
    ports  where it listens for clients and as a controller; None: wherever there is room
    jars   the class path of another release
    """

    def __init__(
        self,
        log_dir: Path,
        work: Path,
        *,
        compaction: bool = True,
        properties: Mapping[str, object] | None = None,
        fast: bool = False,
        ports: tuple[int, int] | None = None,
        jars: str = "",
    ) -> None:
        self.log_dir, self.work, self._jars = log_dir, work, jars
        self._compilers = () if fast else ("-XX:TieredStopAtLevel=1",)
        self.port, self._controller_port = ports or (free_port(), free_port())
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.output = work / "broker.out"
        self._process: subprocess.Popen[bytes] | None = None
        work.mkdir(parents=True, exist_ok=True)
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "log.dirs": log_dir,
            "log.retention.ms": -1,
            "log.retention.bytes": -1,
            "log.retention.check.interval.ms": 86_400_000,
            "log.initial.task.delay.ms": 2_000 if compaction else 86_400_000,
            "log.cleaner.enable": str(compaction).lower(),
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            "replica.high.watermark.checkpoint.interval.ms": 200,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            **(properties or {}),
        }
        self._config = work / "server.properties"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def __enter__(self) -> Self:
        if not (self.log_dir / "meta.properties").exists():
            self.format()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def format(self, cluster_id: str = "", *more: str) -> str:
        """Format the directory, as a new cluster unless it has an id; return that. `more`: arguments of kafka-storage."""
        cluster_id = cluster_id or base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[:22].replace("-", "A")
        java_client().request("storage", "format", "-t", cluster_id, "-c", str(self._config), *more)
        return cluster_id

    def start(self) -> None:
        """Start it and wait until it answers with its own address."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start it."""
        self._launch("-Xshare:auto" if self._jars else f"-XX:SharedArchiveFile={_class_data()}")

    def _launch(self, option: str) -> None:
        logging = _HERE / "log4j2.properties"
        options = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", *self._compilers, f"-Dlog4j2.configurationFile={logging}", option]
        command = ["java", *options, "-cp", self._jars or kafka_jars(), "kafka.Kafka", str(self._config)]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def wait_ready(self) -> None:
        """Wait until it answers, and each partition has a leader. Kills it when that takes too long."""
        try:
            self._wait_ready()
        except BaseException:
            self.kill()
            raise

    def _wait_ready(self) -> None:
        assert self._process is not None
        waiting = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200})
        until_s = time.monotonic() + _READY_S
        while time.monotonic() < until_s:
            try:
                self._process.wait(0.1)  # a broker that answers at once may have partitions that wait for others
                raise AssertionError(f"the broker ended with {self._process.returncode}:\n{self.log_text()[-4000:]}")
            except subprocess.TimeoutExpired:
                pass
            try:
                partitions = [
                    (TopicPartition(name, number), partition.leader)
                    for name, topic in waiting.list_topics(timeout=1).topics.items()
                    for number, partition in topic.partitions.items()
                ]
                if any(leader < 0 for _, leader in partitions):
                    continue
                latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
                # A broker is named as leader a moment before it leads.
                for offset in waiting.list_offsets({place: latest for place, _ in partitions}).values() if partitions else ():
                    offset.result(10)
            except Exception:  # not listening yet, or not leading
                continue
            return
        raise AssertionError(f"the broker is not ready after {_READY_S} s:\n{self.log_text()[-4000:]}")

    def log_text(self) -> str:
        return self.output.read_text(errors="replace")

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, by: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(by)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create_topic(self, name: str, partitions: int = 1, replicas: int | list[list[int]] = 1, **configs: str | float) -> None:
        """replicas  how many, or the brokers of each partition, the one that leads it first

        `configs` with _ for . as in internal_segment_bytes=4096 (segment.bytes itself may not be below 1 MiB).
        """
        config = {key.replace("_", "."): str(value) for key, value in configs.items()}
        placed = {"replication_factor": replicas} if isinstance(replicas, int) else {"replica_assignment": replicas}
        admin = self.admin  # held: its futures die with it
        for future in admin.create_topics([NewTopic(name, partitions, config=config, **placed)]).values():
            future.result(30)

    def delete_topic(self, name: str) -> None:
        admin = self.admin
        admin.delete_topics([name])[name].result(30)

    def topics(self) -> list[str]:
        return sorted(self.admin.list_topics(timeout=20).topics)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        admin = self.admin
        described = admin.describe_topics(TopicCollection(list(topics)))
        plain = {name: str(future.result(30).topic_id) for name, future in described.items()}
        return {name: text.replace("+", "-").replace("/", "_") for name, text in plain.items()}  # librdkafka's base64 is the other one

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed, by topic and partition; once its coordinator has loaded.

        By a consumer: librdkafka 2.16's admin client ends the process when a coordinator is still loading.
        """
        topics = self.admin.list_topics(timeout=20).topics
        places = [TopicPartition(name, partition) for name, topic in topics.items() for partition in topic.partitions]
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            found = _coordinated(lambda: consumer.committed(places, timeout=20))
            return {(each.topic, each.partition): each.offset for each in found if each.offset >= 0}
        finally:
            consumer.close()

    def producer(self, **settings: str | int) -> Producer:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        return Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, **config})


@cache
def _class_data() -> Path:
    """Kafka's classes as a broker's JVM has read them: another one starts with them in little more than half the time. Without the file, or
    with that of another Java, it starts as ever."""

    def dump(into: Path) -> None:
        into.mkdir()
        with TemporaryDirectory() as work:
            broker = KafkaBroker(Path(work) / "kafka", Path(work) / "broker")
            broker.format()
            broker._launch(f"-XX:ArchiveClassesAtExit={into / 'classes.jsa'}")
            broker.wait_ready()
            broker.stop()

    return fetched(f"broker-classes-{KAFKA}", dump) / "classes.jsa"


def _delivered(error: Any, message: Message) -> None:
    if error is not None:
        raise AssertionError(f"not delivered: {error}")


def produce(producer: Producer, topic: str, values: Sequence[bytes], *, partition: int = 0, keys: Sequence[bytes] | None = None) -> None:
    """One batch per value, each acknowledged before the next."""
    for at, value in enumerate(values):
        producer.produce(topic, value, keys[at] if keys else None, partition, on_delivery=_delivered)
        if producer.flush(120):
            raise AssertionError("not delivered within 120 s")


def commit(consumer: Consumer, topic: str, offsets: Mapping[int, int]) -> None:
    """The offsets of its group, by partition; once its coordinator has loaded."""
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    _coordinated(lambda: consumer.commit(offsets=places, asynchronous=False))


def _coordinated(request: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
    """What the coordinator answers once it has loaded. Librdkafka tries twice."""
    until_s = time.monotonic() + _READY_S
    while True:
        try:
            return request()
        except KafkaException as error:
            if error.args[0].code() not in _LOADING or time.monotonic() > until_s:
                raise
        time.sleep(0.2)


def expect_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]], what: str) -> None:
    """Equal record by record, in every field; the error has the first difference."""
    for at, (one, other) in enumerate(zip(found, wanted, strict=False)):
        assert one == other, f"{what}: record {at} differs:\n  found  {json.dumps(one)[:600]}\n  wanted {json.dumps(other)[:600]}"
    assert len(found) == len(wanted), f"{what}: {len(found)} records found, {len(wanted)} wanted"


def expect_compacted(found: list[dict[str, Any]], wanted: list[dict[str, Any]], what: str) -> None:
    """Of a compacted partition that was archived: every record, in every field, and the same newest value of each key. What the cleaner
    took from the log after it was archived may be there still."""
    superseded = {record["offset"] for record in found} - {record["offset"] for record in wanted}
    expect_same([record for record in found if record["offset"] not in superseded], wanted, what)
    assert _newest_values(found) == _newest_values(wanted), what


def _newest_values(records: list[dict[str, Any]]) -> dict[Any, Any]:
    """By key, without those that are deleted: a tombstone is a record until the cleaner takes it."""
    newest = {record["key"]: record["value"] for record in records}
    return {key: value for key, value in newest.items() if value is not None}
