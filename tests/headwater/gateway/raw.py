"""A Kafka client of a few lines: sends what a test gives it, hostile or not, and shows what came back."""

import socket
import struct
from types import TracebackType
from typing import Any

from headwater.gateway.messages import request_schema, response_schema
from headwater.gateway.response import Response


def a_request(api: int, version: int, facts: dict[str, Any], correlation_id: int = 1, client_id: str = "raw") -> bytes:
    """A whole frame."""
    schema = request_schema(api, version)
    answer = Response()
    answer.buffer += struct.pack(">hhih", api, version, correlation_id, len(client_id)) + client_id.encode()
    if schema.flexible:
        answer.buffer.append(0)
    schema.write(answer, facts)
    return struct.pack(">i", len(answer.buffer)) + bytes(answer.buffer)


def a_fetch(*wanted: tuple[str, int, int], version: int = 12, max_wait: int = 0, min_bytes: int = 1, **more: Any) -> dict[str, Any]:
    """Facts of a Fetch of (topic, partition, offset)s; `partition_max_bytes` goes to each, the rest to the request."""
    partition_max_bytes = more.pop("partition_max_bytes", 1 << 20)
    topics = [
        {
            "topic": topic,
            "partitions": [
                {
                    "partition": partition,
                    "fetch_offset": offset,
                    "partition_max_bytes": partition_max_bytes,
                    "current_leader_epoch": more.get("current_leader_epoch", -1),
                }
            ],
        }
        for topic, partition, offset in wanted
    ]
    return {
        "replica_id": -1,
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": 50 << 20,
        "isolation_level": 0,
        "topics": topics,
        "forgotten_topics_data": [],
        **more,
    }


class RawClient:
    def __init__(self, address: tuple[str, int], timeout_s: float = 10.0, *, source: str = "", receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(timeout_s)
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.bind((source, 0))
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, api: int, version: int, **facts: Any) -> dict[str, Any]:
        self.socket.sendall(a_request(api, version, facts))
        return self.answer(api, version)

    def fetch(self, facts: dict[str, Any], version: int = 12) -> dict[str, Any]:
        """The one partition's part of the answer."""
        topics = self.ask(1, version, **facts)["responses"]
        ((partition,),) = (topic["partitions"] for topic in topics)
        return dict(partition)

    def answer(self, api: int, version: int, correlation_id: int = 1) -> dict[str, Any]:
        frame = self.frame()
        schema = response_schema(api, version)
        assert struct.unpack(">i", frame[:4]) == (correlation_id,)
        facts, end = schema.read(frame, 5 if schema.header_version else 4)
        assert end == len(frame)
        return dict(facts)

    def frame(self) -> bytes:
        (size,) = struct.unpack(">i", self.exactly(4))
        return self.exactly(size)

    def exactly(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            some = self.socket.recv(size - len(got))
            if not some:
                raise ConnectionError(f"closed after {len(got)} of {size} bytes")
            got += some
        return bytes(got)

    def is_closed_by_peer(self) -> bool:
        """Waits until it is (the socket's time-out says no)."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
