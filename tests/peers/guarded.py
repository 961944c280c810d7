"""A broker with users who log in, and what they may do there."""

import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

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

from tests.peers.java_client import class_path
from tests.peers.kafka import KafkaBroker, free_port

PASSWORD, MECHANISM = "correct horse battery staple", "SCRAM-SHA-512"
ANY: Any = None
ANY_ACL = AclBindingFilter(ResourceType.ANY, ANY, ResourcePatternType.ANY, ANY, ANY, AclOperation.ANY, AclPermissionType.ANY)


class GuardedBroker(KafkaBroker):
    """Who comes in by the second listener logs in, and may do what ACLs allow."""

    def __init__(
        self,
        log_dir: Path,
        work: Path,
        *,
        properties: Mapping[str, object] | None = None,
        ports: tuple[int, int] | None = None,
        jars: str = "",
    ) -> None:
        ports = ports or (free_port(), free_port())
        self.sasl = f"127.0.0.1:{free_port()}"
        super().__init__(
            log_dir,
            work,
            ports=ports,
            jars=jars,
            properties={
                "listeners": f"PLAINTEXT://127.0.0.1:{ports[0]},SASL_PLAINTEXT://{self.sasl},CONTROLLER://127.0.0.1:{ports[1]}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "sasl.enabled.mechanisms": MECHANISM,
                "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
                "required;",
                **(properties or {}),
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
        tool = ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path(), "org.apache.kafka.tools.ConfigCommand"]
        command = [*tool, "--bootstrap-server", self.bootstrap, *arguments]
        return subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout


def acl(kind: ResourceType, name: str, user: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, permission)


def add_users(admin: AdminClient, *names: str) -> None:
    """With the one password."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    wanted: Any = [UserScramCredentialUpsertion(name, info, PASSWORD.encode()) for name in names]
    for done in admin.alter_user_scram_credentials(wanted).values():
        done.result(30)


def users(admin: AdminClient) -> dict[str, list[tuple[str, int]]]:
    """Mechanism and iterations of each credential, by user."""
    found: Any = admin.describe_user_scram_credentials()
    return {
        name: sorted((str(info.mechanism), info.iterations) for info in each.scram_credential_infos)
        for name, each in found.result(30).items()
    }


def add_acls(admin: AdminClient, rules: Iterable[AclBinding]) -> None:
    for done in admin.create_acls(list(rules)).values():
        done.result(30)


def acls(admin: AdminClient) -> list[str]:
    return sorted(str(each) for each in admin.describe_acls(ANY_ACL).result(30))


def refused(broker: GuardedBroker, user: str, topic: str) -> KafkaError | None:
    """Why `user` may not write to `topic`; None where it may."""
    errors: list[KafkaError | None] = []
    producer = Producer({**broker.login(user), "message.timeout.ms": 60_000})
    producer.produce(topic, b"more", partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(90)
    [error] = errors
    return error


def read_error(broker: GuardedBroker, user: str, group: str, topic: str) -> KafkaError | None:
    """Why `user`, who may read as `group`, may not read `topic`; None where that is allowed too."""
    reader = Consumer({**broker.login(user), "group.id": group})
    reader.assign([TopicPartition(topic, 0, 0)])
    message = reader.poll(60)
    reader.close()
    assert message is not None
    return message.error()


def login_error(broker: GuardedBroker, user: str, password: str) -> KafkaError:
    """Why `user` may not log in with `password`. Raises AssertionError when nothing is said against it."""
    errors: list[KafkaError] = []
    settings: Any = {**broker.login(user, password), "log_level": 0, "error_cb": errors.append}
    client = AdminClient(settings)
    with suppress(KafkaException):
        client.list_topics(timeout=1)  # it connects for a request
    client.poll(30)
    assert errors, f"{user} logs in"
    return errors[0]
