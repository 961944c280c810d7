"""Who a partition is. Names come from directories, buckets and peers, so they are checked where they enter."""

import base64
import binascii
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Self

from headwater_core.errors import UsageError

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")  # the length is Kafka's own limit
_CLUSTER_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_PARTITION_MAX = 2**31 - 1


def check_topic_name(name: str) -> str:
    """`name`, when Kafka would accept it as a topic; UsageError otherwise. A checked name is a safe path component."""
    if not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise UsageError(f"not a topic name: {name[:260]!r} (1 to 249 of A-Z a-z 0-9 . _ -)")
    return name


@lru_cache(4096)  # every look at a partition checks it again
def check_topic_id(topic_id: str) -> str:
    """`topic_id`, when it is Kafka's text form of a UUID (22 characters base64url, no padding); else UsageError."""
    if _TOPIC_ID.fullmatch(topic_id):
        try:
            if base64.urlsafe_b64encode(base64.urlsafe_b64decode(topic_id + "==")).decode()[:22] == topic_id:
                return topic_id
        except binascii.Error:
            pass
    raise UsageError(f"not a topic id: {topic_id[:40]!r} (22 characters base64url)")


def parse_incarnation(text: str) -> tuple[str, str | None]:
    """A topic, and its id where an incarnation is meant that the name may no longer mean: NAME, or NAME@TOPIC_ID. Neither part holds
    an @. Raises UsageError."""
    topic, at, topic_id = text.partition("@")
    return check_topic_name(topic), check_topic_id(topic_id) if at else None


def check_cluster_id(cluster_id: str) -> str:
    """`cluster_id`, when it is safe in a message and as a key of ours; UsageError otherwise."""
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise UsageError(f"not a cluster id: {cluster_id[:80]!r}")
    return cluster_id


def topic_id_bytes(topic_id: str) -> bytes:
    """The 16 bytes of a checked topic id."""
    return base64.urlsafe_b64decode(topic_id + "==")


def topic_id_text(raw: bytes) -> str:
    """Kafka's text form of 16 bytes."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class _NameAndNumber(NamedTuple):
    topic: str
    partition: int


class TopicPartition(_NameAndNumber):
    """A partition as people name it: bare, without saying which incarnation. A tuple: large tables of them are quick."""

    __slots__ = ()

    def __new__(cls, topic: str, partition: int) -> Self:
        check_topic_name(topic)
        if not 0 <= partition <= _PARTITION_MAX:
            raise UsageError(f"not a partition number: {partition}")
        return super().__new__(cls, topic, partition)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """A partition's identity: a topic re-created under its name, or a revived cluster's, is another one.

    The topic's name rides along for keys and messages; it takes no part in comparison.
    """

    cluster_id: str
    topic_id: str
    partition: int
    topic: str = field(compare=False)

    def __post_init__(self) -> None:
        TopicPartition(self.topic, self.partition)
        check_topic_id(self.topic_id)
        check_cluster_id(self.cluster_id)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"
