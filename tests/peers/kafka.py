"""A real Kafka broker and the Java client, for the peer tests: Maven fetches the jars once, javac compiles one class."""

import base64
import json
import secrets
import signal
import socket
import subprocess
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stub re-exports nothing

from tests.peers.cache import fetched

_HERE = Path(__file__).parent
_READY_S = 60
_TOOL_S = 120
_LOADING = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE)


@cache
def class_path() -> str:
    """Kafka's jars and the compiled Peer class. The first call fetches 55 MB; later ones look once."""

    def fetch(into: Path) -> None:
        command = ["mvn", "-B", "-q", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={into}"]
        subprocess.run(command, check=True, timeout=600)

    jars, source = fetched("jars-4.3.1", fetch), _HERE / "Peer.java"

    def compile_into(classes: Path) -> None:
        subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(classes), str(source)], check=True, timeout=_TOOL_S)

    classes = fetched(f"classes-{zlib.crc32(source.read_bytes()):08x}", compile_into)
    return f"{classes}:{jars}/*"


def java(main: str, *arguments: str) -> str:
    """What a short-lived Java program prints."""
    # -XX:TieredStopAtLevel=1 halves the start of programs that end soon.
    command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-cp", class_path(), main, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S)
    if done.returncode:
        raise AssertionError(f"{main} {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def console_consume(bootstrap: str, topic: str, *arguments: str) -> str:
    """All that kafka-console-consumer says, records included; it ends by itself when it fails."""
    tool = ["java", "-Xmx256m", "-cp", class_path(), "org.apache.kafka.tools.consumer.ConsoleConsumer"]
    command = [*tool, "--bootstrap-server", bootstrap, "--topic", topic, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_TOOL_S)
    return done.stdout.decode(errors="replace")


def _json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


class JavaRead:
    """What the Java consumer saw: records in the shape of the expected files, and (start, end) per (topic, partition).

    The end is the high watermark, or the last stable offset under read_committed.
    """

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.bounds = {(line["topic"], line["partition"]): (line["start"], line["end"]) for line in lines if "bounds" in line}
        records = [line for line in lines if "bounds" not in line]
        self.records = sorted(records, key=lambda line: (line["topic"], line["partition"], line["offset"]))


def java_consume(bootstrap: str, topics: Iterable[str], isolation: str) -> JavaRead:
    """Everything in `topics`, as the Java consumer with check.crcs reads it from the earliest offset to the end."""
    return JavaRead(_json_lines(java("Peer", "read", bootstrap, isolation, ",".join(topics))))


def java_seek(
    bootstrap: str, topic: str, partition: int, offset: int, count: int, isolation: str = "read_uncommitted"
) -> list[dict[str, Any]]:
    """The first `count` records at or past `offset`."""
    return _json_lines(java("Peer", "seek", bootstrap, isolation, topic, str(partition), str(offset), str(count)))


def java_offsets_for_times(bootstrap: str, topic: str, partition: int, timestamps: Iterable[int]) -> list[dict[str, Any]]:
    """Per timestamp: `asked`, and `offset` and `timestamp` of the first record at or past it (None when there is none)."""
    return _json_lines(java("Peer", "times", bootstrap, topic, str(partition), ",".join(map(str, timestamps))))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class KafkaBroker:
    """One combined KRaft node over `log_dir`. Retention, and compaction unless asked for, are off: what is there stays.

    with KafkaBroker(log_dir, work) as broker: starts it, formatting an empty directory; stops it at the end.
    """

    def __init__(self, log_dir: Path, work: Path, *, compaction: bool = True, properties: Mapping[str, object] | None = None) -> None:
        self.log_dir, self.work = log_dir, work
        self.port, self._controller_port = free_port(), free_port()
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

    def format(self) -> str:
        """Format the directory as a new cluster; return its id."""
        cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[:22].replace("-", "A")
        java("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._config))
        return cluster_id

    def start(self) -> None:
        """Start it and wait until it answers with its own address."""
        logging = _HERE / "log4j2.properties"
        command = ["java", "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={logging}", "-cp", class_path()]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen([*command, "kafka.Kafka", str(self._config)], stdout=output, stderr=subprocess.STDOUT)
        try:
            self._wait_ready()
        except BaseException:
            self.kill()
            raise

    def _wait_ready(self) -> None:
        assert self._process is not None
        waiting = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200})
        for _ in range(_READY_S):
            try:
                self._process.wait(0)
                raise AssertionError(f"the broker ended with {self._process.returncode}:\n{self.said()[-4000:]}")
            except subprocess.TimeoutExpired:
                pass
            try:
                topics = waiting.list_topics(timeout=1).topics.values()
            except Exception:  # not listening yet
                continue
            if all(p.leader >= 0 for topic in topics for p in topic.partitions.values()):
                return
        raise AssertionError(f"the broker is not ready after {_READY_S} s:\n{self.said()[-4000:]}")

    def said(self) -> str:
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
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create_topic(self, name: str, partitions: int = 1, **configs: str | float) -> None:
        """`configs` with _ for . as in internal_segment_bytes=4096 (segment.bytes itself may not be below 1 MiB)."""
        config = {key.replace("_", "."): str(value) for key, value in configs.items()}
        admin = self.admin  # held: its futures die with it
        for future in admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
            future.result(30)

    def topics(self) -> list[str]:
        return sorted(self.admin.list_topics(timeout=20).topics)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        admin = self.admin
        described = admin.describe_topics(TopicCollection(list(topics)))
        plain = {name: str(future.result(30).topic_id) for name, future in described.items()}
        return {name: text.replace("+", "-").replace("/", "_") for name, text in plain.items()}  # librdkafka's base64 is the other one

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed, by topic and partition; once its coordinator has loaded.

        A consumer asks: librdkafka 2.16's admin client ends the process when a coordinator is still loading.
        """
        topics = self.admin.list_topics(timeout=20).topics
        places = [TopicPartition(name, partition) for name, topic in topics.items() for partition in topic.partitions]
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            for _ in range(_READY_S):
                try:
                    found = consumer.committed(places, timeout=20)
                except KafkaException as error:
                    if error.args[0].code() not in _LOADING:
                        raise
                    consumer.poll(0.5)
                    continue
                return {(each.topic, each.partition): each.offset for each in found if each.offset >= 0}
        finally:
            consumer.close()
        raise AssertionError(f"the coordinator of {group} has not loaded")

    def producer(self, **settings: str | int) -> Producer:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        return Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, **config})


def _delivered(error: Any, message: Message) -> None:
    if error is not None:
        raise AssertionError(f"not delivered: {error}")


def produce(producer: Producer, topic: str, values: Sequence[bytes], *, partition: int = 0, keys: Sequence[bytes] | None = None) -> None:
    """One batch per value, each acknowledged before the next."""
    for at, value in enumerate(values):
        producer.produce(topic, value, keys[at] if keys else None, partition, on_delivery=_delivered)
        if producer.flush(30):
            raise AssertionError("not delivered within 30 s")


def produce_aborts_over_segments(broker: KafkaBroker, topic: str) -> None:
    """A log of many small segments in which transactions begin in one segment and abort, or commit, segments later.

    Three transactional producers interleave with a plain one: `long` aborts over at least three segments, its marker two
    segments or more behind the last of its data; `steady` commits over as many, `brief` aborts within one and then leaves
    nothing open.
    """
    broker.create_topic(topic, 1, internal_segment_bytes=4096)
    producers = {name: broker.producer(transactional_id=f"{topic}.{name}") for name in ("long", "steady", "brief")}
    for producer in producers.values():
        producer.init_transactions(30)
    plain = broker.producer()
    for round_ in range(2):
        producers["long"].begin_transaction()
        producers["steady"].begin_transaction()
        for step in range(6):
            for name in ("long", "steady"):
                produce(producers[name], topic, [f"{name}-{round_}-{step}-".encode() + bytes([65 + step]) * 600])
            produce(plain, topic, [f"plain-{round_}-{step}-".encode() + b"p" * 600])
            if step == 3:
                producers["brief"].begin_transaction()
                produce(producers["brief"], topic, [b"brief-" + bytes([48 + round_]) * 200] * 2)
                producers["brief"].abort_transaction(30)
        produce(plain, topic, [b"meanwhile-%d-" % round_ + b"m" * 1200] * 9)
        producers["long"].abort_transaction(30)
        produce(plain, topic, [b"between-%d-" % round_ + b"b" * 1200] * 2)
        producers["steady"].commit_transaction(30)
    produce(plain, topic, [b"last"])


def expect_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]], what: str) -> None:
    """Equal record by record, in every field; says where the first difference is."""
    for at, (one, other) in enumerate(zip(found, wanted, strict=False)):
        assert one == other, f"{what}: record {at} differs:\n  found  {json.dumps(one)[:600]}\n  wanted {json.dumps(other)[:600]}"
    assert len(found) == len(wanted), f"{what}: {len(found)} records found, {len(wanted)} wanted"
