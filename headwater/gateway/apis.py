"""Which requests are answered, in which versions, and the error codes they are answered with. Numbers are Kafka's."""

from enum import IntEnum

from headwater_core.errors import CorruptData, NotFound, OffsetOutOfRange


class Api(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    API_VERSIONS = 18
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CLUSTER = 60
    CONSUMER_GROUP_HEARTBEAT = 68


# The lowest versions are those Kafka 4 itself still speaks. Produce is listed because librdkafka believes in record batches
# (format v2) only where both Produce v3 and Fetch v4 are; it is refused when called. So are the requests that a group begins
# with, of either protocol, and commits: where they are absent some clients wait forever, without an error.
VERSIONS: dict[Api, range] = {
    Api.PRODUCE: range(3, 14),
    Api.FETCH: range(4, 19),
    Api.LIST_OFFSETS: range(1, 12),
    Api.METADATA: range(14),
    Api.OFFSET_COMMIT: range(2, 11),
    Api.OFFSET_FETCH: range(1, 11),
    Api.FIND_COORDINATOR: range(7),
    Api.JOIN_GROUP: range(10),
    Api.API_VERSIONS: range(5),
    Api.OFFSET_FOR_LEADER_EPOCH: range(2, 5),
    Api.DESCRIBE_CLUSTER: range(3),
    Api.CONSUMER_GROUP_HEARTBEAT: range(2),
}


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
