"""Kafka's numbers for requests and errors, and what several requests have in common."""

from enum import IntEnum
from typing import Any

from headwater.gateway.messages import Fields
from headwater_core.errors import CorruptData, NotFound, OffsetOutOfRange
from hydration.answers import Isolation

_ISOLATIONS = {each.value: each for each in Isolation}


class Api(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    OFFSET_FOR_LEADER_EPOCH = 23
    SASL_AUTHENTICATE = 36
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    CONSUMER_GROUP_HEARTBEAT = 68
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79


class Code(IntEnum):
    """Source: Kafka protocol guide, "Error Codes"."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_TOPIC_ID = 100


def code_for(error: Exception) -> Code:
    """The error code that makes a client do the right thing by itself.

    OFFSET_OUT_OF_RANGE makes clients jump, so it is answered only when a manifest proves it. CORRUPT_MESSAGE reaches the
    application, which is right: waiting does not mend damage. Everything else is KAFKA_STORAGE_ERROR: Java, librdkafka
    and the Python clients take it as "look up the leader and retry", without losing their position. The other
    retriable codes do worse: UNKNOWN_SERVER_ERROR is fatal to some, LEADER_NOT_AVAILABLE is no answer to a Fetch.
    """
    if isinstance(error, OffsetOutOfRange):
        return Code.OFFSET_OUT_OF_RANGE
    if isinstance(error, NotFound):
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(error, CorruptData):
        return Code.CORRUPT_MESSAGE
    return Code.KAFKA_STORAGE_ERROR


def check_leader_epoch(claimed: int, advertised: int) -> Code:
    """A client that knows an older leader epoch than Metadata advertises must request Metadata again.

    Only what is advertised counts: librdkafka claims 0 when that was -1, and must not be sent to request what is not there.
    One that knows a newer epoch is served: a broker would refuse it until it has caught up itself, but an archive may never
    do so, and a fetch at a retained offset must end.
    """
    return Code.FENCED_LEADER_EPOCH if 0 <= claimed < advertised else Code.NONE


def isolation_of(level: int) -> Isolation:
    return _ISOLATIONS.get(level, Isolation.READ_UNCOMMITTED)


def once_each(topics: list[dict[str, Any]], name: str, partition: str) -> dict[Any, dict[int, Fields]]:
    """Return what is requested by topic and partition, in that order. A repeated one is answered once, so that a request costs
    no more than the partitions there are."""
    requested: dict[Any, dict[int, Fields]] = {}
    for topic in topics:
        of_topic = requested.setdefault(topic[name], {})
        for each in topic["partitions"]:
            of_topic[each[partition]] = each
    return requested
