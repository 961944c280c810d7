"""An agent that asks the broker beside it: what is committed is archived at once, and what is archived is deleted there."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]  # its stub re-exports nothing

from headwater.agent_api import AgentApi
from tests.peers.agent import Agent, Headwater
from tests.peers.java_client import java_client
from tests.peers.kafka import KafkaBroker, commit, free_port, produce

pytestmark = [pytest.mark.peer, pytest.mark.slow]

SELDOM = {"replica.high.watermark.checkpoint.interval.ms": 3_600_000}  # the checkpoint comes too late to help
RARELY = 'seal_timeout = "1h"\nrescan = "1h"'


def test_what_is_rolled_is_archived_by_the_word_of_the_broker(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker", properties=SELDOM) as broker:
        broker.create_topic("soup", 1, internal_segment_bytes=4096)
        headwater = Headwater(tmp_path / "headwater", broker.log_dir, log=f'bootstrap_servers = "{broker.bootstrap}"', archival=RARELY)
        directory = broker.log_dir / "soup-0"
        waits = []
        with Agent(headwater) as agent:
            agent.address()
            producer = broker.producer()
            time.sleep(1)
            for _ in range(6):
                before = len(list(directory.glob("*.log")))
                while len(list(directory.glob("*.log"))) == before:
                    produce(producer, "soup", [b"x" * 700])
                rolled_s = time.monotonic()
                end = max(int(path.stem) for path in directory.glob("*.log"))
                heads = headwater.bucket / "meta"
                while not any(f'"last_offset":{end - 1},' in path.read_text().replace(" ", "") for path in heads.rglob("manifest.json")):
                    assert time.monotonic() < rolled_s + 50, agent.log_text()[-3000:]
                    time.sleep(0.005)
                waits.append(time.monotonic() - rolled_s)
                while (shown := status(headwater, "soup:0"))["last_offset"] != end - 1:  # the bucket has it a moment before
                    assert time.monotonic() < rolled_s + 50, shown
                assert shown["high_watermark"] > shown["last_offset"]
                assert shown["high_watermark_source"] == "broker"
                time.sleep(0.3)
            agent.stop()
    print(f"from roll to manifest: {[round(each, 3) for each in waits]} s")


def release_of(broker: KafkaBroker, name: str, topic: str, *, archival: str = "", **more: str) -> Headwater:
    lines = "\n".join(f'{key} = "{value}"' for key, value in {"bootstrap_servers": broker.bootstrap, **more}.items())
    archival = f'seal_timeout = "1h"\nrescan = "1s"\nrelease = true\n{archival}'
    return Headwater(broker.work.parent / name, broker.log_dir, log=lines, archival=archival)


def log_start(broker: KafkaBroker, topic: str, partition: int = 0) -> int:
    place = TopicPartition(topic, partition)
    admin = broker.admin
    return int(admin.list_offsets({place: OffsetSpec.earliest()})[place].result(20).offset)  # type: ignore[no-untyped-call]


def eventually(what: str, done: Callable[[], bool], agent: Agent, *, patience_s: float = 60) -> None:
    """Patience is more than the 30 s between two rescans, which find what no file system event has told of. What is asked may fail at
    first: no broker leads for a moment, or the gateway has not seen the topic yet."""
    deadline, trouble = time.monotonic() + patience_s, ""
    while True:
        try:
            if done():
                return
        except (AssertionError, KafkaException, TimeoutError) as error:
            trouble = repr(error)
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}; {trouble}\n{agent.log_text()[-5000:]}"
        assert not agent.has_ended(), agent.log_text()[-5000:]
        time.sleep(0.1)


def values(address: str, topic: str, *, count: int, patience_s: float = 60) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False, "fetch.queue.backoff.ms": 5})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + patience_s
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            for message in consumer.consume(500, 1.0):
                assert message.error() is None, message.error()
                assert message.offset() == len(found)
                found.append(message.value() or b"")
        return found
    finally:
        consumer.close()


def released_end(headwater: Headwater, selection: str) -> int | None:
    end = status(headwater, selection)["released_end"]
    return int(end) if end is not None else None


def status(headwater: Headwater, selection: str) -> dict[str, Any]:
    topic, _, number = selection.partition(":")
    query: dict[str, str | int | float | bool] = {"topic": topic, "partition": number, "partitions": True, "wait_s": 5}
    (row,) = AgentApi(headwater.config.node.data_dir).get("/v1/status", query, timeout_s=30)["partitions"]
    assert isinstance(row, dict)
    return row


def base_of_the_newest(broker: KafkaBroker, topic: str) -> int:
    return max(int(path.stem) for path in (broker.log_dir / f"{topic}-0").glob("*.log"))


def test_what_is_archived_is_deleted_at_the_broker_and_read_all_the_same(tmp_path: Path) -> None:
    properties = {"log.retention.check.interval.ms": 500, "log.segment.delete.delay.ms": 100}
    wanted = [b"%04d-" % at + b"x" * 300 for at in range(120)]
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker", properties=properties) as broker:
        broker.create_topic("soup", 1, internal_segment_bytes=4096)
        broker.create_topic("table", 1, internal_segment_bytes=4096, cleanup_policy="compact")
        headwater = release_of(broker, "headwater", "soup", archival="release_past_groups = true")
        produce(broker.producer(), "soup", wanted[:40])
        produce(broker.producer(), "table", wanted[:20], keys=[b"%d" % at for at in range(20)])
        late = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "late"})
        commit(late, "soup", {0: 5})
        late.close()
        with Agent(headwater) as agent:

            def is_released(beyond: int, times: int) -> bool:
                """All but the newest segment, and the broker's answers have come: what is killed before that is released all the same."""
                is_there = log_start(broker, "soup") == base_of_the_newest(broker, "soup") > beyond
                return is_there and agent.log_text().count("segments_released") >= times

            eventually("the log start moves", lambda: is_released(0, 1), agent)
            eventually("status tells", lambda: released_end(headwater, "soup:0") == log_start(broker, "soup"), agent)
            assert re.search(r'"consumers_behind_release", "partition": "soup:0", "group": "late", "offset": 5\b', agent.log_text())
            broker.stop()  # and comes back, in another leader epoch
            broker.start()
            produce(broker.producer(), "soup", wanted[40:80])
            eventually("after a restart", lambda: is_released(40, 2), agent)
            broker.kill()
            broker.start()
            produce(broker.producer(), "soup", wanted[80:])
            eventually("after a crash", lambda: is_released(80, 3), agent)
            eventually("its files are gone", lambda: len(list((broker.log_dir / "soup-0").glob("*.log"))) == 1, agent)
            assert values(agent.address(), "soup", count=120) == wanted
            assert "cleanup.policy is compact alone" in status(headwater, "table:0")["release_reason"]
            assert log_start(broker, "table") == 0
            agent.stop()


def test_a_topic_that_is_created_again_keeps_its_records(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker") as broker:
        headwater = release_of(broker, "headwater", "soup")
        with Agent(headwater) as agent:
            for round_ in range(4):
                broker.create_topic("soup", 1, internal_segment_bytes=4096)
                wanted = [b"%d-%04d-" % (round_, at) + b"x" * 300 for at in range(40 + 10 * round_)]
                produce(broker.producer(), "soup", wanted)
                if round_ % 2 == 0:  # else it is deleted in the middle of all that
                    eventually("released", lambda: log_start(broker, "soup") == base_of_the_newest(broker, "soup") > 0, agent)
                    eventually("served", lambda: values(agent.address(), "soup", count=len(wanted), patience_s=15) == wanted, agent)  # noqa: B023
                admin = broker.admin
                for future in admin.delete_topics(["soup"]).values():
                    future.result(30)
                while "soup" in broker.topics():
                    time.sleep(0.1)
                time.sleep(1)  # a release may be on its way, and meet what is created next
            agent.stop()
            assert "release_met_another_topic" not in agent.log_text()


def certificates(work: Path) -> tuple[Path, Path]:
    """A certificate of our own for 127.0.0.1: with its key, and alone."""
    key, certificate, both = work / "key.pem", work / "certificate.pem", work / "both.pem"
    asked = f"req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2 -subj /CN=localhost"
    subprocess.run(["openssl", *asked.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    return both, certificate


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.mark.parametrize(
    ("security", "mechanism", "login"),
    [("SASL_PLAINTEXT", "SCRAM-SHA-512", SCRAM), ("SSL", "PLAIN", PLAIN), ("SASL_SSL", "PLAIN", PLAIN)],
    ids=["SCRAM", "TLS", "PLAIN over TLS"],
)
def test_a_secured_broker_is_asked_and_deletes(tmp_path: Path, security: str, mechanism: str, login: str) -> None:
    """The plain listener stays for producers."""
    both, certificate = certificates(tmp_path)
    port, plain, controller = free_port(), free_port(), free_port()
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},OURS://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OURS:{security}",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.ours.plain.sasl.jaas.config": f'{PLAIN} user_ada="open sesame";',
        "listener.name.ours.scram-sha-512.sasl.jaas.config": f"{SCRAM};",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": both,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificate,
        **SELDOM,
    }
    client = tmp_path / "client.properties"
    client.write_text(
        f"security.protocol={security}\nssl.truststore.type=PEM\nssl.truststore.location={certificate}\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={login} \\\n  username="ada" password="open sesame";\n'
    )
    broker = KafkaBroker(tmp_path / "kafka", tmp_path / "broker", properties=properties)
    broker.port, broker.bootstrap = plain, f"127.0.0.1:{plain}"
    broker.format("", "--add-scram", 'SCRAM-SHA-512=[name="ada",password="open sesame"]')
    with broker:
        broker.create_topic("soup", 1, internal_segment_bytes=4096)
        headwater = release_of(broker, "headwater", "soup", bootstrap_servers=f"127.0.0.1:{port}", client_properties=str(client))
        produce(broker.producer(), "soup", [b"x" * 300] * 40)
        with Agent(headwater) as agent:
            eventually("the log start moves", lambda: log_start(broker, "soup") == base_of_the_newest(broker, "soup") > 0, agent)
            agent.stop()
            assert "sesame" not in agent.log_text()


class Node(KafkaBroker):
    """One of two brokers, or their controller, which is no broker."""

    def __init__(self, root: Path, node: int, controller: int) -> None:
        port = free_port()
        is_controller = node == CONTROLLER
        listener = f"CONTROLLER://127.0.0.1:{controller}" if is_controller else f"PLAINTEXT://127.0.0.1:{port}"
        properties = {
            "process.roles": "controller" if is_controller else "broker",
            "node.id": node,
            "listeners": listener,
            "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{controller}",
            "broker.session.timeout.ms": 3_000,
            "broker.heartbeat.interval.ms": 500,
            "replica.lag.time.max.ms": 3_000,
            "log.retention.check.interval.ms": 500,
        }
        super().__init__(root / f"kafka-{node}", root / f"broker-{node}", properties=properties)
        self.port, self.bootstrap, self._is_controller = port, f"127.0.0.1:{port}", is_controller

    def _wait_ready(self) -> None:
        if not self._is_controller:
            super()._wait_ready()


CONTROLLER = 3


@contextmanager
def two_brokers(root: Path) -> Iterator[tuple[KafkaBroker, KafkaBroker]]:
    port = free_port()
    nodes = [Node(root, node, port) for node in (CONTROLLER, 1, 2)]
    cluster_id = nodes[0].format()
    for each in nodes[1:]:
        java_client().request("storage", "format", "-t", cluster_id, "-c", str(each.work / "server.properties"))
    try:
        for each in nodes:
            each.start()
        yield nodes[1], nodes[2]
    finally:
        for each in reversed(nodes):
            each.kill()


def test_another_leader_goes_on_and_what_an_unclean_one_cuts_was_not_released(tmp_path: Path) -> None:
    def records(name: str, count: int) -> list[bytes]:
        return [b"%s-%04d-" % (name.encode(), at) + b"x" * 300 for at in range(count)]

    with two_brokers(tmp_path) as (first, second):
        both = f"{first.bootstrap},{second.bootstrap}"

        def start_of_log() -> int:
            place = TopicPartition("soup", 0)
            admin = AdminClient({"bootstrap.servers": both, "log_level": 0})
            return int(admin.list_offsets({place: OffsetSpec.earliest()})[place].result(20).offset)  # type: ignore[no-untyped-call]

        def write(broker: KafkaBroker, written: list[bytes], acks: str = "all") -> None:
            produce(broker.producer(acks=acks, message_timeout_ms=60_000), "soup", written)

        admin = first.admin
        config = {"internal.segment.bytes": "4096", "unclean.leader.election.enable": "true"}
        topic = NewTopic("soup", 1, replica_assignment=[[1, 2]], config=config)
        for future in admin.create_topics([topic]).values():
            future.result(30)
        agents = []
        for broker, name in ((first, "one"), (second, "two")):
            made = Headwater(
                tmp_path / name,
                broker.log_dir,
                store=f'url = "file://{tmp_path / "bucket"}"',
                log=f'bootstrap_servers = "{broker.bootstrap}"',
                archival='seal_timeout = "1h"\nrescan = "1s"\nrelease = true',
            )
            agents.append(Agent(made))
        one, two = agents
        with one, two:
            begun, led_by_second, lost, rewritten = (
                records("begun", 40),
                records("second", 40),
                records("lost", 30),
                records("rewritten", 45),
            )
            write(first, begun)
            eventually("the first one releases", lambda: start_of_log() == base_of_the_newest(first, "soup") > 0, one, patience_s=60)

            first.stop()
            released = start_of_log()
            write(second, led_by_second)
            two.caught_up({("soup", 0): base_of_the_newest(second, "soup")})
            time.sleep(2)
            assert start_of_log() == released  # not every replica is in sync
            first.start()
            eventually("the second one releases", lambda: start_of_log() == base_of_the_newest(second, "soup"), two, patience_s=60)
            eventually("its follower has heard of it", lambda: len(list((first.log_dir / "soup-0").glob("*.log"))) <= 2, two)

            replicated = len(begun) + len(led_by_second)
            first.kill()  # it counts as in sync for a moment more
            write(second, lost, acks="1")
            two.caught_up({("soup", 0): base_of_the_newest(second, "soup")})
            assert start_of_log() <= replicated
            second.kill()
            first.start()  # it lacks those, and leads
            write(first, rewritten)
            one.caught_up({("soup", 0): base_of_the_newest(first, "soup")})
            time.sleep(2)
            assert start_of_log() <= replicated
            second.start()
            eventually(
                "all are in sync again", lambda: start_of_log() == base_of_the_newest(first, "soup") > replicated, one, patience_s=60
            )
            wanted = [*begun, *led_by_second, *rewritten]
            assert values(one.address(), "soup", count=len(wanted)) == wanted
            for each in agents:
                assert "gap_recorded" not in each.log_text(), each.log_text()[-5000:]
            assert "branch_superseded" in one.log_text()
