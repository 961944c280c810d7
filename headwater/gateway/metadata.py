"""ApiVersions, Metadata, DescribeCluster: which broker, which topics, which requests."""

from collections.abc import Iterable
from typing import Any

from headwater.gateway.apis import VERSIONS, Api, Code
from headwater.gateway.frames import MalformedRequest, RequestHeader
from headwater.gateway.messages import Fields, response_schema
from headwater.gateway.response import Response
from headwater.gateway.topic_snapshot import TopicSnapshot, TopicSnapshots, TopicView

Address = tuple[str, int]

NAMES_MAX = 10_000  # topics one request may name; no reader names so many
KEPT_NAMES_MAX = 100  # a response to more is encoded again each time

_UNKNOWN_OPERATIONS = -(2**31)  # "authorized operations": not requested, or not known


def api_versions(error: Code = Code.NONE) -> Fields:
    return {
        "error_code": error,
        "api_keys": [{"api_key": api, "min_version": each.start, "max_version": each.stop - 1} for api, each in VERSIONS.items()],
    }


async def metadata_body(snapshots: TopicSnapshots, header: RequestHeader, body: Fields, node_id: int, address: Address) -> bytes:
    """The encoded body. Encoding is what costs (milliseconds per thousand partitions), so responses are kept by the topics in them.

    Only known topics make a key, or clients would fill the memory with names they invent.

    Raises TransientError when every topic is requested and none is known yet.
    """
    version = header.api_version
    wanted = _wanted(body["topics"], version)
    snapshot = await (snapshots.topics() if wanted is None else snapshots.snapshot())
    found = None if wanted is None else _found(snapshot, wanted)

    def write(response: Response) -> None:
        response_schema(Api.METADATA, version).write(response, _metadata(snapshot, wanted, found, node_id, address))

    if found is not None and (len(found) > KEPT_NAMES_MAX or None in found):
        response = Response()
        write(response)
        return bytes(response.buffer)
    names = None if found is None else tuple(topic.name for topic in found if topic is not None)
    return snapshots.encoded((Api.METADATA, version, node_id, address, names), write)


def describe_cluster(snapshot: TopicSnapshot, node_id: int, address: Address) -> Fields:
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "cluster_id": snapshot.cluster_id,
        "controller_id": node_id,
        "brokers": [{"broker_id": node_id, "host": address[0], "port": address[1], "is_fenced": False}],
    }


_TopicRef = tuple[bytes | None, str | None]  # topic id, name
_Wanted = tuple[_TopicRef, ...] | None  # None for every topic


def _wanted(topics: list[dict[str, Any]] | None, version: int) -> _Wanted:
    """A repeated topic is answered once, so that a small request has no huge response. Raises MalformedRequest."""
    if topics is None or (version == 0 and not topics):
        return None
    if len(topics) > NAMES_MAX:
        raise MalformedRequest(f"metadata of {len(topics)} topics, limit {NAMES_MAX}")
    requested = ((topic.get("topic_id"), topic["name"]) for topic in topics)
    return tuple(dict.fromkeys((None if not topic_id or not any(topic_id) else topic_id, name) for topic_id, name in requested))


def _found(snapshot: TopicSnapshot, wanted: Iterable[_TopicRef]) -> list[TopicView | None]:
    by_id = {topic.topic_id: topic for topic in snapshot.topics.values()}
    return [by_id.get(topic_id) if topic_id is not None else snapshot.topics.get(name or "") for topic_id, name in wanted]


def _metadata(snapshot: TopicSnapshot, wanted: _Wanted, found: list[TopicView | None] | None, node_id: int, address: Address) -> Fields:
    if wanted is None or found is None:
        topics = [_topic(topic, node_id) for topic in snapshot.topics.values()]
    else:
        topics = [
            _known(topic, topic_id, name, node_id, is_whole=snapshot.is_whole)
            for topic, (topic_id, name) in zip(found, wanted, strict=True)
        ]
    return {
        "brokers": [{"node_id": node_id, "host": address[0], "port": address[1], "rack": None}],
        "cluster_id": snapshot.cluster_id,
        "controller_id": node_id,
        "topics": topics,
        "cluster_authorized_operations": _UNKNOWN_OPERATIONS,
        "error_code": Code.NONE,
    }


def _known(topic: TopicView | None, topic_id: bytes | None, name: str | None, node_id: int, *, is_whole: bool) -> Fields:
    if topic is not None:
        return _topic(topic, node_id)
    code = Code.UNKNOWN_TOPIC_OR_PARTITION if topic_id is None else Code.UNKNOWN_TOPIC_ID
    if not is_whole:
        code = Code.LEADER_NOT_AVAILABLE  # every client retries
    return {"error_code": code, "name": name, "topic_id": topic_id, "is_internal": False, "partitions": []}


def _topic(topic: TopicView, node_id: int) -> Fields:
    return {
        "error_code": Code.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [
            {
                "error_code": Code.NONE,
                "partition_index": partition,
                "leader_id": node_id,
                "leader_epoch": leader_epoch,
                "replica_nodes": [node_id],
                "isr_nodes": [node_id],
                "offline_replicas": [],
            }
            for partition, leader_epoch in topic.partitions
        ],
        "topic_authorized_operations": _UNKNOWN_OPERATIONS,
    }
