"""The agent as a proxy before its broker, as its users have it: brokers lose what is old, clients do not notice."""

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType  # type: ignore[attr-defined]  # its stub re-exports nothing

from tests.headwater.gateway.certificate_files import an_authority, issued
from tests.peers.agent import OFTEN, Agent, Headwater
from tests.peers.guarded import acl, add_acls
from tests.peers.kafka import KafkaBroker, free_port, produce

pytestmark = pytest.mark.peer
TOPIC = "orders"
SMALL = {"internal_segment_bytes": 4096}


def consumer(address: str, group: str, **settings: str | int) -> Consumer:
    found = Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **settings}
    )
    found.subscribe([TOPIC])
    return found


def read(consumer: Consumer, count: int, patience_s: float = 60) -> list[tuple[int, int, bytes | None]]:
    """So many records, of which the last is committed."""
    found: list[tuple[int, int, bytes | None]] = []
    until_s = time.monotonic() + patience_s
    while len(found) < count:
        assert time.monotonic() < until_s, f"{len(found)} of {count} records"
        if (message := consumer.poll(1.0)) is None:
            continue
        assert message.error() is None, message.error()
        found.append((message.partition() or 0, message.offset() or 0, message.value()))
    consumer.commit(asynchronous=False)
    return found


def test_a_group_reads_from_the_bucket_to_the_live_end_and_over_a_restart_of_its_proxy(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "kafka", tmp_path / "broker")
    listen, port = free_port(), free_port()
    headwater = Headwater(
        tmp_path / "headwater",
        tmp_path / "kafka",
        archival=OFTEN,
        gateway=f'upstream = {json.dumps(broker.bootstrap)}\nupstream_port_map = "1:{port}"',
    )
    headwater.file.write_text(headwater.file.read_text().replace("127.0.0.1:0", f"127.0.0.1:{listen}"))
    address = f"127.0.0.1:{listen}"
    with broker:
        broker.create_topic(TOPIC, 1, **SMALL)
        producer = broker.producer()
        values = [b"%d-" % at + b"x" * 400 for at in range(100)]
        produce(producer, TOPIC, values)
        with Agent(headwater) as agent:
            assert agent.address() == address
            agent.caught_up({(TOPIC, 0): 100})
            admin = broker.admin  # held: its futures die with it
            deleted = admin.delete_records([TopicPartition(TOPIC, 0, 60)])
            assert next(iter(deleted.values())).result(30).low_watermark == 60
            with_group = consumer(address, "readers")
            assert read(with_group, 40) == [(0, at, values[at]) for at in range(40)]
            agent.stop()
        with Agent(headwater) as agent:
            agent.address()
            through_proxy = broker_of(address)
            more = [b"%d-more" % at for at in range(100, 110)]
            produce(through_proxy, TOPIC, more)
            wanted = [(0, at, value) for at, value in enumerate(values + more)]
            assert read(with_group, 70) == wanted[40:]
            with_group.close()
            assert read(consumer(address, "others"), 110) == wanted
            agent.stop()
    assert "Traceback" not in agent.log_text()


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def test_over_tls_a_user_reads_what_he_may_of_the_archive_too(tmp_path: Path) -> None:
    """The proxy has a certificate, its broker wants TLS and a password. Both are the authority's whom the clients trust."""
    authority = an_authority(tmp_path)
    mine = issued(tmp_path, authority)
    both = tmp_path / "both.pem"
    both.write_text(mine.key.read_text() + mine.certificate.read_text())
    secured, plain, controller, listen, port = (free_port() for _ in range(5))
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},OURS://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{controller}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OURS:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.ours.plain.sasl.jaas.config": f'{PLAIN} user_proxy="p" user_bob="b" user_eve="e";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": both,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    file = tmp_path / "client.properties"
    file.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={authority.certificate}\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} username="proxy" password="p";\n'
    )
    headwater = Headwater(
        tmp_path / "headwater",
        tmp_path / "kafka",
        archival=OFTEN,
        gateway=f'upstream = "127.0.0.1:{secured}"\nupstream_port_map = "1:{port}"\nupstream_properties = "{file}"\n'
        f'tls_certificate = "{mine.certificate}"\ntls_key = "{mine.key}"',
    )
    headwater.file.write_text(headwater.file.read_text().replace("127.0.0.1:0", f"127.0.0.1:{listen}"))
    broker = KafkaBroker(tmp_path / "kafka", tmp_path / "broker", properties=properties)
    broker.port, broker.bootstrap = plain, f"127.0.0.1:{plain}"

    def of(user: str) -> dict[str, str | int]:
        login: dict[str, str | int] = {"sasl.username": user, "sasl.password": user[0], "sasl.mechanism": "PLAIN"}
        return {**login, "security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.certificate)}

    with broker:
        broker.create_topic(TOPIC, 1, **SMALL)
        add_acls(
            broker.admin,
            [
                acl(ResourceType.TOPIC, TOPIC, "bob", AclOperation.READ, AclPermissionType.ALLOW),
                acl(ResourceType.TOPIC, TOPIC, "eve", AclOperation.DESCRIBE, AclPermissionType.ALLOW),
                acl(ResourceType.GROUP, "readers", "bob", AclOperation.READ, AclPermissionType.ALLOW),
                acl(ResourceType.GROUP, "readers", "eve", AclOperation.READ, AclPermissionType.ALLOW),
            ],
        )
        values = [b"%d-" % at + b"x" * 400 for at in range(100)]
        produce(broker.producer(), TOPIC, values)
        with Agent(headwater) as agent:
            agent.address()
            agent.caught_up({(TOPIC, 0): 100})
            admin = broker.admin  # held: its futures die with it
            next(iter(admin.delete_records([TopicPartition(TOPIC, 0, 60)]).values())).result(30)
            address = f"localhost:{listen}"
            assert read(consumer(address, "readers", **of("bob")), 100) == [(0, at, value) for at, value in enumerate(values)]
            denied = Consumer({"bootstrap.servers": address, "group.id": "readers", **of("eve")})
            denied.assign([TopicPartition(TOPIC, 0, 10)])
            assert first_error(denied) == KafkaError.TOPIC_AUTHORIZATION_FAILED
            agent.stop()
    assert "Traceback" not in agent.log_text()
    assert "broker_port_opened" in agent.log_text()


def first_error(consumer: Consumer) -> int:
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        message = consumer.poll(1.0)
        if message is not None:
            error = message.error()
            assert error is not None, message.value()
            return int(error.code())
    raise AssertionError("no answer")


def broker_of(address: str) -> Producer:
    return Producer({"bootstrap.servers": address, "enable.idempotence": True})
