"""What goes into a broker's Fetch response, by kio's schemas, which know nothing of the walk."""

import random
from typing import Any

import pytest

from headwater.gateway.frames import MalformedRequest
from headwater.gateway.messages import element_writer, response_schema
from headwater.gateway.protocol import Api, Code
from headwater.gateway.proxy.fetch_walk import FetchWalk, Inserted, Merge
from headwater.gateway.response import Response
from tests.headwater.gateway.proxy.fake_broker import encoded
from tests.headwater.gateway.proxy.test_address_walk import ours

EVERY_VERSION = range(4, 19)
NAMES = ("bills", "menu", "orders")


def key_of(version: int, name: str) -> str | bytes:
    return name.encode().ljust(16, b"\0") if version >= 13 else name


def a_partition(random_: random.Random, number: int, code: int | None = None) -> dict[str, Any]:
    return {
        "partition_index": number,
        "error_code": random_.choice((0, 0, Code.OFFSET_OUT_OF_RANGE, Code.NOT_LEADER_OR_FOLLOWER)) if code is None else code,
        "high_watermark": random_.randrange(100),
        "last_stable_offset": random_.randrange(100),
        "log_start_offset": random_.randrange(100),
        "aborted_transactions": random_.choice(([], [{"producer_id": 7, "first_offset": 9}] * random_.randrange(1, 3))),
        "preferred_read_replica": -1,
        "records": random_.randbytes(random_.choice((0, 10, 3000))),
    }


def a_topic(version: int, name: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"topic_id" if version >= 13 else "topic": key_of(version, name), "partitions": partitions}


def a_response(version: int, topics: list[dict[str, Any]], *nodes: dict[str, Any]) -> bytes:
    return encoded(
        Api.FETCH, version, error_code=0, session_id=0, responses=topics, **({"node_endpoints": [*nodes]} if version >= 16 else {})
    )


def decoded(version: int, raw: bytes) -> Any:
    schema = response_schema(Api.FETCH, version)
    found, end = schema.read(raw, schema.header_version)
    assert end == len(raw)
    return found


def walked(walk: FetchWalk, raw: bytes, random_: random.Random) -> bytes:
    """As a connection does it, with bytes that arrive in pieces."""
    pending, sent, held = raw, b"", bytearray()
    while not walk.is_done:
        size = random_.choice((1, 7, 500))
        held, pending = held + pending[:size], pending[size:]
        while True:
            done = walk.advance(memoryview(held))
            sent, held = sent + held[:done], held[done:]
            if walk.insertion is None:
                break
            sent += b"".join(bytes(part) for part in walk.insertion.parts if isinstance(part, bytes))
            held = held[walk.insertion.dropped_bytes :]
            walk.insertion = None
        assert pending or walk.is_done
    return sent + held + pending


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_a_code_is_changed_where_it_stands(version: int) -> None:
    random_ = random.Random(version)
    for keeps_length in (True, False):
        topics = [a_topic(version, name, [a_partition(random_, number) for number in range(random_.randrange(1, 4))]) for name in NAMES]
        raw = bytearray(a_response(version, topics))
        seen: list[Any] = []

        def code_for(topic: str | bytes, partition: int, seen: list[Any] = seen) -> Code:
            seen.append((topic, partition))
            return Code.NONE if partition else Code.KAFKA_STORAGE_ERROR

        walk = FetchWalk(version, ours, len(raw), code_for, keeps_length=keeps_length)
        sent = walked(walk, bytes(raw), random_) if keeps_length else b""
        if not keeps_length:
            walk.advance(memoryview(raw))
            sent = b"".join(walk.edited(memoryview(raw)))
        key = "topic_id" if version >= 13 else "topic"
        for found, topic in zip(decoded(version, sent)["responses"], topics, strict=True):
            for one, other in zip(found["partitions"], topic["partitions"], strict=True):
                is_refused = other["error_code"] == Code.OFFSET_OUT_OF_RANGE
                assert is_refused is ((topic[key], other["partition_index"]) in seen)
                changed = code_for(topic[key], other["partition_index"], []) if is_refused else other["error_code"]
                assert one["error_code"] == changed
                assert one["records"] == other["records"]


def inserted(version: int, *names: str, elements: list[dict[str, Any]]) -> Inserted:
    out = Response()
    for element in elements:
        element_writer(Api.FETCH, version, *names)(out, element)
    return Inserted(len(elements), len(out.buffer), [bytes(out.buffer)])


@pytest.mark.parametrize("version", EVERY_VERSION)
@pytest.mark.parametrize("counts", [(1, 1), (2, 3), (126, 2), (127, 1), (3, 130)])
def test_topics_and_partitions_go_between_the_broker_s(version: int, counts: tuple[int, int]) -> None:
    """Around 127, where the length of a compact array takes another byte."""
    random_, (own, more) = random.Random(version), counts
    live = [a_partition(random_, number) for number in range(own)]
    cold = [a_partition(random_, 1000 + number, Code.NONE) for number in range(more)]
    alone = [a_topic(version, f"t{number}", [a_partition(random_, 0, Code.NONE)]) for number in range(more)]
    topics = [a_topic(version, "menu", live), a_topic(version, "orders", live), a_topic(version, "menu", live[:1])]
    raw = a_response(version, topics, {"node_id": 1, "host": "up", "port": 1, "rack": None})
    merge = Merge(
        inserted(version, "responses", elements=alone),
        {key_of(version, "menu"): inserted(version, "responses", "partitions", elements=cold)},
    )
    sent = walked(FetchWalk(version, ours, len(raw), lambda *_: Code.OFFSET_OUT_OF_RANGE, keeps_length=True, merge=merge), raw, random_)
    assert len(sent) == len(raw) + merge.grown_bytes(is_flexible=version >= 12)
    expected = decoded(version, a_response(version, [*alone, a_topic(version, "menu", [*cold, *live]), *topics[1:]]))
    found = decoded(version, sent)
    found.pop("node_endpoints", None)
    expected.pop("node_endpoints", None)
    assert found == expected


@pytest.mark.parametrize("version", [4, 12, 18])
def test_a_response_without_a_topic_that_was_requested_is_refused(version: int) -> None:
    """Its length has been told already."""
    raw = a_response(version, [a_topic(version, "menu", [a_partition(random.Random(version), 0)])])
    merge = Merge(Inserted(0, 0, []), {key_of(version, "orders"): Inserted(1, 1, [b"x"])})
    with pytest.raises(MalformedRequest):
        walked(FetchWalk(version, ours, len(raw), lambda *_: Code.NONE, keeps_length=True, merge=merge), raw, random.Random(version))
