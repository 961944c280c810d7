"""Metadata (key 3), versions 0 to 13: topics and their partitions, all of them led by this endpoint.

v1  an empty list names no topic, null all; controller id
v2  cluster id
v4  whether topics may be created
v7  leader epochs (KIP-320)
v8  authorised operations (KIP-430)
v9  flexible
v10 topic ids in the answer (KIP-516)
v12 topics by id
v13 an error of the whole answer (KIP-1102)

Not here: creation, racks, and authorised operations, which are not known.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

from headwater.gateway.frames import MalformedRequest, RequestHeader
from headwater.gateway.messages import Fields, element_writer, response_schema
from headwater.gateway.primitives import Writer
from headwater.gateway.protocol import Api, Code
from headwater.gateway.response import Response
from headwater.gateway.topic_snapshot import TopicSnapshot, TopicSnapshots, TopicView

VERSIONS = range(14)

Address = tuple[str, int]

NAMES_MAX = 10_000  # topics one request may name; no reader names so many
KEPT_NAMES_MAX = 100  # a response to more is made again each time, of its topics' encodings
KEPT_VERSIONS_MAX = 3  # of the encodings of one topic: clients of one cluster speak few
AT_ONCE = 500  # topics and partitions encoded in the event loop: less than a millisecond

_UNKNOWN_OPERATIONS = -(2**31)  # "authorized operations": not requested, or not known


async def metadata_body(
    snapshots: TopicSnapshots, encoder: Executor, header: RequestHeader, body: Fields, node_id: int, address: Address
) -> bytes:
    """Return the encoded body. Encoding is what costs (milliseconds per thousand partitions): each topic keeps its own, and responses are
    kept by the topics in them. What is much and not kept yet is encoded in `encoder`, which keeps no other client waiting.

    Only known topics make a key, or clients would fill the memory with names they invent.

    Raises TransientError when every topic is requested and none is known yet.
    """
    version, topics = header.api_version, body["topics"]
    is_all = topics is None or (version == 0 and not topics)
    names = None if is_all else topics
    snapshot = await (snapshots.topics() if is_all else snapshots.snapshot())
    encode = partial(_encode, snapshot, names, version, node_id, address)
    if names is not None and len(names) > KEPT_NAMES_MAX:
        return await asyncio.get_running_loop().run_in_executor(encoder, encode)
    found = None if names is None else _found(snapshot, _wanted(names))
    if found is not None and None in found:
        key = None
    else:
        key = Api.METADATA, version, node_id, address, None if found is None else tuple(topic.name for topic in found if topic is not None)
        if (kept := snapshots.kept(key)) is not None:
            return kept
    views = snapshot.topics.values() if found is None else found
    new = sum(1 + len(topic.partitions) for topic in views if topic is not None and version not in topic.encodings)
    encoded = encode() if new <= AT_ONCE else await asyncio.get_running_loop().run_in_executor(encoder, encode)
    if key is not None:
        snapshots.keep(key, snapshot, encoded)
    return encoded


_TopicRef = tuple[bytes | None, str | None]  # topic id, name


def _wanted(topics: Sequence[Mapping[str, Any]]) -> tuple[_TopicRef, ...]:
    """A repeated topic is answered once, so that a small request has no huge response. Raises MalformedRequest."""
    if len(topics) > NAMES_MAX:
        raise MalformedRequest(f"metadata of {len(topics)} topics, limit {NAMES_MAX}")
    requested = ((topic.get("topic_id"), topic["name"]) for topic in topics)
    return tuple(dict.fromkeys((None if not topic_id or not any(topic_id) else topic_id, name) for topic_id, name in requested))


def _found(snapshot: TopicSnapshot, wanted: Iterable[_TopicRef]) -> list[TopicView | None]:
    by_id = {topic.topic_id: topic for topic in snapshot.topics.values()}
    return [by_id.get(topic_id) if topic_id is not None else snapshot.topics.get(name or "") for topic_id, name in wanted]


def _encode(snapshot: TopicSnapshot, names: Sequence[Mapping[str, Any]] | None, version: int, node_id: int, address: Address) -> bytes:
    """Encode the body for these topics, or for all. Safe in any thread. Raises MalformedRequest."""
    write_topic = element_writer(Api.METADATA, version, "topics")
    topics: list[Fields | bytes]
    if names is None:
        topics = [_encoded_topic(topic, version, node_id, write_topic) for topic in snapshot.topics.values()]
    else:
        wanted = _wanted(names)
        topics = [
            _unknown(topic_id, name, is_whole=snapshot.is_whole) if topic is None else _encoded_topic(topic, version, node_id, write_topic)
            for topic, (topic_id, name) in zip(_found(snapshot, wanted), wanted, strict=True)
        ]
    response = Response()
    response_schema(Api.METADATA, version).write(
        response,
        {
            "brokers": [{"node_id": node_id, "host": address[0], "port": address[1], "rack": None}],
            "cluster_id": snapshot.cluster_id,
            "controller_id": node_id,
            "topics": topics,
            "cluster_authorized_operations": _UNKNOWN_OPERATIONS,
            "error_code": Code.NONE,
        },
    )
    return bytes(response.buffer)


def _encoded_topic(topic: TopicView, version: int, node_id: int, write: Writer) -> bytes:
    encoded = topic.encodings.get(version)
    if encoded is None:
        response = Response()
        write(response, _topic(topic, node_id))
        encoded = topic.encodings[version] = bytes(response.buffer)
        for version_before in list(topic.encodings)[:-KEPT_VERSIONS_MAX]:
            topic.encodings.pop(version_before, None)
    return encoded


def _unknown(topic_id: bytes | None, name: str | None, *, is_whole: bool) -> Fields:
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
