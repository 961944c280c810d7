"""ApiVersions, Metadata, DescribeCluster: who is here and what can be asked."""

from typing import Any

from gateway.apis import VERSIONS, Api, Code
from gateway.catalogue import Catalogue, Snapshot, TopicView
from gateway.frames import RequestHeader
from gateway.messages import Facts, response_schema
from gateway.slices import Answer

Address = tuple[str, int]

_NOT_ASKED = -(2**31)  # "authorized operations": the client did not ask, or we do not say


def api_versions(error: Code = Code.NONE) -> Facts:
    return {
        "error_code": error,
        "api_keys": [{"api_key": api, "min_version": each.start, "max_version": each.stop - 1} for api, each in VERSIONS.items()],
    }


async def metadata(catalogue: Catalogue, header: RequestHeader, body: Facts, node_id: int, address: Address) -> bytes:
    """The encoded body. Encoding is what costs (milliseconds per thousand partitions), so answers are kept by what was asked."""
    snapshot = await catalogue.snapshot()
    version = header.api_version
    wanted = _wanted(body["topics"], version)
    key = (Api.METADATA, version, node_id, address, wanted)

    def write(answer: Answer) -> None:
        response_schema(Api.METADATA, version).write(answer, _metadata(snapshot, wanted, node_id, address))

    return catalogue.encoded(key, write)


def describe_cluster(snapshot: Snapshot, node_id: int, address: Address) -> Facts:
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "cluster_id": snapshot.cluster_id,
        "controller_id": node_id,
        "brokers": [{"broker_id": node_id, "host": address[0], "port": address[1], "is_fenced": False}],
    }


_Wanted = tuple[tuple[bytes | None, str | None], ...] | None  # (topic id, name) as asked for; None for every topic


def _wanted(topics: list[dict[str, Any]] | None, version: int) -> _Wanted:
    """A repeated topic is answered once, so that a small request cannot ask for a huge answer."""
    if topics is None or (version == 0 and not topics):
        return None
    asked = ((topic.get("topic_id"), topic["name"]) for topic in topics)
    return tuple(dict.fromkeys((None if not topic_id or not any(topic_id) else topic_id, name) for topic_id, name in asked))


def _metadata(snapshot: Snapshot, wanted: _Wanted, node_id: int, address: Address) -> Facts:
    if wanted is None:
        topics = [_topic(topic, node_id) for topic in snapshot.topics.values()]
    else:
        by_id = {topic.topic_id: topic for topic in snapshot.topics.values()}
        topics = [
            _known(by_id.get(topic_id) if topic_id is not None else snapshot.topics.get(name or ""), topic_id, name, node_id)
            for topic_id, name in wanted
        ]
    return {
        "brokers": [{"node_id": node_id, "host": address[0], "port": address[1], "rack": None}],
        "cluster_id": snapshot.cluster_id,
        "controller_id": node_id,
        "topics": topics,
        "cluster_authorized_operations": _NOT_ASKED,
        "error_code": Code.NONE,
    }


def _known(topic: TopicView | None, topic_id: bytes | None, name: str | None, node_id: int) -> Facts:
    if topic is not None:
        return _topic(topic, node_id)
    code = Code.UNKNOWN_TOPIC_OR_PARTITION if topic_id is None else Code.UNKNOWN_TOPIC_ID
    return {"error_code": code, "name": name, "topic_id": topic_id, "is_internal": False, "partitions": []}


def _topic(topic: TopicView, node_id: int) -> Facts:
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
        "topic_authorized_operations": _NOT_ASKED,
    }
