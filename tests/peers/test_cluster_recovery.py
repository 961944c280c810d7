"""A cluster with users, ACLs, quotas and settings is lost, and a real broker starts on what recovery made of its archive."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub re-exports nothing
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headwater import cli
from tests.peers.java_client import class_path
from tests.peers.kafka import KafkaBroker, free_port, produce

pytestmark = pytest.mark.peer

PASSWORD, MECHANISM = "correct horse battery staple", "SCRAM-SHA-512"
CHEF = ("--entity-type", "users", "--entity-name", "chef")
BROKER = ("--entity-type", "brokers", "--entity-name", "1")
ANY: Any = None
ANY_ACL = AclBindingFilter(ResourceType.ANY, ANY, ResourcePatternType.ANY, ANY, ANY, AclOperation.ANY, AclPermissionType.ANY)


class GuardedBroker(KafkaBroker):
    """Who comes in by the second listener logs in, and may do what ACLs allow."""

    def __init__(self, log_dir: Path, work: Path) -> None:
        ports = free_port(), free_port()
        self.sasl = f"127.0.0.1:{free_port()}"
        super().__init__(
            log_dir,
            work,
            ports=ports,
            properties={
                "listeners": f"PLAINTEXT://127.0.0.1:{ports[0]},SASL_PLAINTEXT://{self.sasl},CONTROLLER://127.0.0.1:{ports[1]}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "sasl.enabled.mechanisms": MECHANISM,
                "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
                "required;",
            },
        )

    def login(self, user: str, password: str = PASSWORD) -> dict[str, str]:
        return {
            "bootstrap.servers": self.sasl,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password,
        }

    def configs(self, *arguments: str) -> str:
        """What kafka-configs.sh prints."""
        tool = ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path(), "kafka.admin.ConfigCommand"]
        command = [*tool, "--bootstrap-server", self.bootstrap, *arguments]
        return subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout


def acl(kind: ResourceType, name: str, user: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, permission)


def furnish(broker: GuardedBroker) -> None:
    """Users, ACLs, a quota, settings, records, and a group that has read some."""
    broker.create_topic("soup", 2, retention_ms=86_400_000)
    broker.create_topic("secret", 1, cleanup_policy="compact")
    produce(broker.producer(), "soup", [b"%d" % number for number in range(20)])
    produce(broker.producer(), "secret", [b"recipe"], keys=[b"key"])
    admin = broker.admin
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    users: Any = [UserScramCredentialUpsertion(name, info, PASSWORD.encode()) for name in ("chef", "waiter")]
    for done in admin.alter_user_scram_credentials(users).values():
        done.result(30)
    allow, deny = AclPermissionType.ALLOW, AclPermissionType.DENY
    rules = [
        acl(ResourceType.TOPIC, "soup", "chef", AclOperation.ALL, allow),
        acl(ResourceType.TOPIC, "*", "waiter", AclOperation.READ, allow),
        acl(ResourceType.TOPIC, "secret", "waiter", AclOperation.READ, deny),
        acl(ResourceType.GROUP, "table-5", "waiter", AclOperation.READ, allow),
    ]
    for done in admin.create_acls(rules).values():
        done.result(30)
    broker.configs(*CHEF, "--alter", "--add-config", "producer_byte_rate=2048000,consumer_byte_rate=1024000")
    broker.configs(*BROKER, "--alter", "--add-config", "log.cleaner.threads=2")
    waiter = Consumer({**broker.login("waiter"), "group.id": "table-5", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    waiter.commit(offsets=[TopicPartition("soup", 0, 7)], asynchronous=False)
    waiter.close()


def described(broker: GuardedBroker) -> dict[str, object]:
    """What the admin client says of the cluster."""
    admin = broker.admin
    users: Any = admin.describe_user_scram_credentials()
    return {
        "topics": broker.topic_ids(["soup", "secret"]),
        "users": {
            name: [(str(info.mechanism), info.iterations) for info in each.scram_credential_infos]
            for name, each in users.result(30).items()
        },
        "acls": sorted(str(each) for each in admin.describe_acls(ANY_ACL).result(30)),
        "quotas": broker.configs(*CHEF, "--describe"),
        "settings": broker.configs(*BROKER, "--describe"),
    }


def refused(broker: GuardedBroker, user: str, topic: str) -> KafkaError | None:
    """Why `user` may not write to `topic`; None where it may."""
    errors: list[KafkaError | None] = []
    producer = Producer({**broker.login(user), "message.timeout.ms": 20_000})
    producer.produce(topic, b"more", partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    [error] = errors
    return error


def test_old_passwords_log_in_denied_stays_denied_and_a_group_resumes(tmp_path: Path) -> None:
    options = ["--store", f"file://{tmp_path}/bucket", "--data-dir", str(tmp_path / "state")]
    with GuardedBroker(tmp_path / "kafka", tmp_path / "one") as broker:
        furnish(broker)
        before = described(broker)
    assert cli.run(["flush", "--log-dir", str(tmp_path / "kafka"), *options]) == 0
    assert cli.run(["recover", "apply", "cluster", "--into", str(tmp_path / "recovered"), *options]) == 0
    with GuardedBroker(tmp_path / "recovered", tmp_path / "two") as broker:
        assert described(broker) == before
        waiter = Consumer({**broker.login("waiter"), "group.id": "table-5", "auto.offset.reset": "error"})
        waiter.assign([TopicPartition("soup", 0)])
        first = waiter.poll(30)
        assert first is not None
        assert (first.error(), first.offset()) == (None, 7)
        waiter.close()
        assert refused(broker, "chef", "soup") is None
        denied = refused(broker, "waiter", "soup")
        assert denied is not None
        assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        reader = Consumer({**broker.login("waiter"), "group.id": "table-5"})
        reader.assign([TopicPartition("secret", 0, 0)])
        message = reader.poll(30)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        reader.close()
        stranger = AdminClient({**broker.login("chef", "another password"), "log_level": 0})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=5)
