"""Readers for measuring: one that only asks and discards, and librdkafka as an application would use it."""

import socket
import ssl
import struct
import time
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from headwater.gateway.messages import request_schema
from headwater.gateway.protocol import Api
from headwater.gateway.response import Response

FETCH_VERSION = 12
FETCH_BYTES = 1 << 20  # librdkafka's and Java's own default per partition
RECEIVE_BYTES = 1 << 20
LIST_RECORDS = 1000  # of one consume(); ten times as many touch fresh memory for each list, and the client is what is measured
_BUFFER = memoryview(bytearray(RECEIVE_BYTES))


@dataclass(frozen=True, slots=True)
class Took:
    size_bytes: int
    elapsed_s: float

    @property
    def mb_s(self) -> float:
        return self.size_bytes / self.elapsed_s / 1e6


class Discarder:
    """One connection, one request in flight. Knows that every batch of the topic has `batch_bytes` and `batch_records`."""

    def __init__(
        self,
        address: tuple[str, int],
        topic: str,
        batch_bytes: int,
        batch_records: int,
        partition: int = 0,
        tls: ssl.SSLContext | None = None,
        *,
        copies: bool = False,
    ) -> None:
        """copies: the bytes are received into memory"""
        self._flags = 0 if copies or tls is not None else socket.MSG_TRUNC
        self._socket = connect(address, tls)
        self._topic, self._partition, self._batch_bytes, self._batch_records = topic, partition, batch_bytes, batch_records

    def read(self, end: int, fetch_bytes: int = FETCH_BYTES) -> Took:
        """Everything from offset 0 up to `end`."""
        start_s = time.perf_counter()
        offset = total = 0
        while offset < end:
            batches = self.fetch(offset, fetch_bytes) // self._batch_bytes  # a broker may send part of one more
            total += batches * self._batch_bytes
            offset += batches * self._batch_records
        return Took(total, time.perf_counter() - start_s)

    def fetch(self, offset: int, fetch_bytes: int) -> int:
        """How many bytes of records came."""
        self._socket.sendall(self._request(offset, fetch_bytes))
        head = receive_exactly(self._socket, 4)
        (size,) = struct.unpack(">i", head)
        # All that stands before the records of the one partition fits here, and so does a whole empty answer.
        before = min(size, 256)
        facts = receive_exactly(self._socket, before)
        discard(self._socket, size - before, self._flags)
        return self._records_bytes(facts, size)

    def close(self) -> None:
        self._socket.close()

    def _records_bytes(self, head: bytes, size: int) -> int:
        """The answer's size less what is not records: read off an answer whose records are cut to what `head` has of them."""
        at = 4 + 1 + 4 + 2 + 4 + 1  # correlation id, tags, throttle, error, session, one topic
        at += 1 + len(self._topic) + 1 + 4  # its name, one partition, its number
        (error,) = struct.unpack_from(">h", head, at)
        if error:
            raise RuntimeError(f"fetch failed with error code {error}")
        at += 2 + 8 + 8 + 8  # high watermark, last stable offset, log start
        at += 1 + 4  # no aborted transactions, preferred replica
        length = shift = 0
        while True:
            length |= (head[at] & 0x7F) << shift
            shift += 7
            at += 1
            if head[at - 1] < 0x80:
                return max(0, length - 1)

    def _request(self, offset: int, fetch_bytes: int) -> bytes:
        answer = Response()
        answer.buffer += struct.pack(">hhihB", Api.FETCH, FETCH_VERSION, 1, -1, 0)
        partition = {"partition": self._partition, "fetch_offset": offset, "partition_max_bytes": fetch_bytes}
        facts = {
            "max_wait": 500,
            "min_bytes": 1,
            "max_bytes": 50 << 20,
            "topics": [{"topic": self._topic, "partitions": [partition]}],
            "forgotten_topics_data": [],
        }
        request_schema(Api.FETCH, FETCH_VERSION).write(answer, facts)
        return struct.pack(">i", len(answer.buffer)) + bytes(answer.buffer)


def read_bare(address: tuple[str, int], total_bytes: int) -> Took:
    """The same bytes from bench.bare, discarded in the same way."""
    with connect(address) as server:
        start_s = time.perf_counter()
        total = 0
        while total < total_bytes:
            server.send(b"x")
            size = int.from_bytes(receive_exactly(server, 4), "big")
            discard(server, size)
            total += size
        return Took(total, time.perf_counter() - start_s)


def connect(address: tuple[str, int], tls: ssl.SSLContext | None = None) -> socket.socket:
    plain = socket.create_connection(address)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(plain, server_hostname=address[0]) if tls is not None else plain


def receive_exactly(source: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        some = source.recv(size - len(got))
        if not some:
            raise ConnectionError("the server closed the connection")
        got += some
    return got


def discard(source: socket.socket, size: int, flags: int = socket.MSG_TRUNC) -> None:
    """In the kernel: no byte is copied to nobody, so that the server is what is measured. flags: 0 receives them, as TLS has to"""
    while size:
        got = source.recv_into(_BUFFER[: min(size, RECEIVE_BYTES)], 0, flags)
        if not got:
            raise ConnectionError("the server closed the connection")
        size -= got


def read_with_librdkafka(address: tuple[str, int], topic: str, end: int, record_bytes: float) -> Took:
    """As an application does: assign, consume in lists. `record_bytes` of log per record, since the client shows only payloads.

    fetch.queue.backoff.ms: with its default of a second the client sleeps whenever it was served fast enough to fill its queue.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": "{}:{}".format(*address),
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 2,
            "queued.min.messages": 1_000_000,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen, start_s = 0, 0.0
        while seen < end:
            messages = consumer.consume(min(LIST_RECORDS, end - seen), 10.0)
            if not messages:
                raise RuntimeError(f"nothing came for 10 s at {seen} of {end}")
            if not seen:  # connecting and the metadata are not what is measured
                start_s, first = time.perf_counter(), len(messages)
            for message in (messages[0], messages[-1]):
                if message.error():
                    raise RuntimeError(str(message.error()))
            seen += len(messages)
        if messages[-1].offset() != end - 1:
            raise RuntimeError(f"ended at offset {messages[-1].offset()} instead of {end - 1}")
        return Took(round((seen - first) * record_bytes), time.perf_counter() - start_s)
    finally:
        consumer.close()
