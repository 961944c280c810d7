"""Addresses of brokers in a response: replaced while its bytes arrive, or hidden where they stand.

Source: Kafka 4.4, clients/src/main/resources/common/message/*Response.json; KIP-482 (tagged fields), KIP-951 (endpoints of new leaders).
"""

from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple

from headwater.gateway.frames import MalformedRequest
from headwater.gateway.protocol import Api
from headwater.gateway.proxy.offered_apis import OFFERED, is_flexible
from headwater_core.segments import flexible
from headwater_core.segments.varint import encode_uvarint

AddressOf = Callable[[int, str, int], tuple[str, int]]
Steps = Generator[None, None, None]
Value = Generator[None, None, int]
TopicKey = str | bytes  # by name, or by id from version 13 of Fetch on

LENGTH_KEPT = frozenset((Api.PRODUCE, Api.FETCH, Api.SHARE_FETCH, Api.SHARE_ACKNOWLEDGE))  # their addresses are at the end, and only help
NO_NODE = -1  # has no address
_ENDPOINTS_FROM = 16  # the version of Fetch
_CONTROLLERS = 2  # the endpoint type of those, of which none has a port here
_NODE_ENDPOINTS, _UNKNOWN_TAG = 0, 0x7F
_VARINT_BYTES_MAX = 5
_TEXT_BYTES_MAX = 1 << 20
_HIDDEN_HEAD_BYTES = 8  # an empty array, and a tagged field whose length takes as many bytes as it may


def padded_uvarint(value: int, size_bytes: int) -> bytes:
    """An unsigned varint of so many bytes, which may be more than it takes: readers do not mind."""
    return bytes((value >> 7 * at & 0x7F) | (0x80 if at < size_bytes - 1 else 0) for at in range(size_bytes))


class MalformedResponse(MalformedRequest):
    """A broker's response is not what its version has: the connection cannot be trusted any further."""


class Edit(NamedTuple):
    """Bytes `start` to `end` of a response, and what takes their place."""

    start: int
    end: int
    content: bytes


class AddressWalk:
    """Walks over one response, from behind its correlation id on.

    body_bytes   of the response, from behind its correlation id on
    address_of   the address of ours for a broker's id, host and port
    keeps_length  the length must stay as it is: the endpoints of new leaders are made unreadable, and clients request Metadata
    edits        what is to be replaced otherwise
    nodes        brokers by id, host and port, as the response names them
    cluster_id   as the response names it; None: it does not

    Walks are generators, which ask for more bytes by `yield`.
    """

    def __init__(self, api_key: int, version: int, address_of: AddressOf, body_bytes: int, *, keeps_length: bool = False) -> None:
        self.edits: list[Edit] = []
        self.nodes: list[tuple[int, str, int]] = []
        self.cluster_id: str | None = None
        self.is_done = False
        self._version, self._address_of, self._keeps_length = version, address_of, keeps_length
        self._is_flexible = is_flexible(api_key, version)
        self._window, self._at, self._unread_bytes = memoryview(b""), 0, body_bytes
        self._steps = self._walk(api_key)

    def advance(self, window: memoryview) -> int:
        """Look at what is new in `window`; return how many of its bytes are done with: the others are to come again, before what follows.

        Where edits are collected it is none of them, and a window begins where the response does. Raises MalformedResponse.
        """
        self._window = window
        try:
            next(self._steps)
        except StopIteration:
            self.is_done = True
            return len(window) if self._keeps_length else 0
        if not self._keeps_length:
            return 0
        done = min(self._at, len(window))
        self._at -= done
        return done

    def skip(self) -> int:
        """Return how many bytes behind the last window are nothing to look at: they do not come in the next one."""
        skipped, self._at = self._at, 0
        return skipped

    def edited(self, response: memoryview) -> list[bytes | memoryview]:
        """Return `response` in parts, with what is replaced."""
        parts: list[bytes | memoryview] = []
        at = 0
        for edit in self.edits:
            parts += [response[at : edit.start], edit.content]
            at = edit.end
        return [*parts, response[at:]]

    def _walk(self, api_key: int) -> Steps:
        yield from self._skip_tags()  # of the response header
        yield from _WALKS[api_key](self)

    # Primitives

    def _take(self, size_bytes: int) -> Generator[None, None, memoryview]:
        self._spend(size_bytes)
        while len(self._window) - self._at < size_bytes:
            yield
        self._at += size_bytes
        return self._window[self._at - size_bytes : self._at]

    def _skip(self, size_bytes: int) -> None:
        self._spend(size_bytes)
        self._at += size_bytes  # may be beyond what has arrived

    def _spend(self, size_bytes: int) -> None:
        """No length is believed beyond the response's own: a loop over items ends there."""
        self._unread_bytes -= size_bytes
        if self._unread_bytes < 0:
            raise MalformedResponse("a response that ends too early")

    def _integer(self, size_bytes: int) -> Value:
        return int.from_bytes((yield from self._take(size_bytes)), "big", signed=True)

    def _uvarint(self) -> Value:
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            [byte] = yield from self._take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedResponse("a varint of more than five bytes")

    def _length(self, legacy_bytes: int) -> Value:
        """Read the length of a string or an array; -1: null."""
        length = (yield from self._uvarint()) - 1 if self._is_flexible else (yield from self._integer(legacy_bytes))
        if length < -1:
            raise MalformedResponse(f"a length of {length}")
        return length

    def _skip_string(self) -> Steps:
        self._skip(max(0, (yield from self._length(2))))

    def _string(self) -> Generator[None, None, str | None]:
        size_bytes = yield from self._length(2)
        if size_bytes > _TEXT_BYTES_MAX:
            raise MalformedResponse(f"a string of {size_bytes} bytes")
        return None if size_bytes < 0 else str((yield from self._take(size_bytes)), "utf-8", "replace")

    def _items(self) -> Generator[None, None, range]:
        return range((yield from self._length(4)))

    def _skip_tags(self) -> Steps:
        if self._is_flexible:
            for _ in range((yield from self._uvarint())):
                yield from self._uvarint()
                self._skip((yield from self._uvarint()))

    # Addresses

    def _node(self) -> Steps:
        """A broker's id, host and port, one after the other."""
        node_id = yield from self._integer(4)
        start = self._at
        host = yield from self._string()
        port = yield from self._integer(4)
        if node_id == NO_NODE or not host:
            return
        self.nodes.append((node_id, host, port))
        ours, our_port = self._address_of(node_id, host, port)
        raw = ours.encode()
        length = encode_uvarint(len(raw) + 1) if self._is_flexible else flexible.i16(len(raw))
        self.edits.append(Edit(start, self._at, length + raw + flexible.i32(our_port)))

    def _endpoints(self) -> Steps:
        """KIP-951's: a node, and its rack, each."""
        for _ in (yield from self._items()):
            yield from self._node()
            yield from self._skip_string()
            yield from self._skip_tags()

    def _last_endpoints(self) -> Steps:
        """Such endpoints where only tagged fields follow, and no tagged field has them: clients would believe unreadable ones."""
        if not self._keeps_length:
            yield from self._endpoints()
            return
        tail = yield from self._take(self._unread_bytes)
        if bytes(tail[:1]) > b"\1":
            size_bytes = len(tail) - _HIDDEN_HEAD_BYTES
            tail[:] = b"\1\1" + bytes([_UNKNOWN_TAG]) + padded_uvarint(size_bytes, _VARINT_BYTES_MAX) + bytes(size_bytes)

    def _endpoint_tags(self) -> Steps:
        """The tagged fields of a response, where such endpoints may be."""
        for _ in range((yield from self._uvarint())):
            tag = yield from self._take(1)
            is_endpoints = tag[0] == _NODE_ENDPOINTS
            if is_endpoints and self._keeps_length:
                tag[0] = _UNKNOWN_TAG  # as long as the right one; clients pass over tags that they do not know
            while tag[0] >= 0x80:
                tag = yield from self._take(1)
            size_at = self._at
            size_bytes = yield from self._uvarint()
            if not is_endpoints or self._keeps_length:
                self._skip(size_bytes)
                continue
            content = self._at
            outer, self.edits = self.edits, []
            yield from self._endpoints()
            if self._at != content + size_bytes:
                raise MalformedResponse("endpoints are not as long as they say")
            grown = size_bytes + sum(len(edit.content) - (edit.end - edit.start) for edit in self.edits)
            self.edits = [*outer, Edit(size_at, content, encode_uvarint(grown)), *self.edits]

    def _no_items(self, start: int) -> None:
        """Replace an array, from `start` to here, by one of nothing."""
        self.edits.append(Edit(start, self._at, encode_uvarint(1)))

    # Responses

    def _metadata(self) -> Steps:
        """Up to the cluster's id; the topics that follow have no address."""
        if self._version >= 3:
            self._skip(4)
        for _ in (yield from self._items()):
            yield from self._node()
            if self._version >= 1:
                yield from self._skip_string()
            yield from self._skip_tags()
        if self._version >= 2:
            self.cluster_id = yield from self._string()

    def _find_coordinator(self) -> Steps:
        if self._version >= 1:
            self._skip(4)
        if self._version <= 3:
            self._skip(2)
            if self._version >= 1:
                yield from self._skip_string()
            yield from self._node()
            return
        for _ in (yield from self._items()):
            yield from self._skip_string()
            yield from self._node()
            self._skip(2)
            yield from self._skip_string()
            yield from self._skip_tags()

    def _describe_cluster(self) -> Steps:
        self._skip(6)
        yield from self._skip_string()
        endpoint_type = (yield from self._integer(1)) if self._version >= 1 else 0
        self.cluster_id = yield from self._string()
        self._skip(4)
        start = self._at
        for _ in (yield from self._items()):
            yield from self._node()
            yield from self._skip_string()
            if self._version >= 2:
                self._skip(1)
            yield from self._skip_tags()
        if endpoint_type == _CONTROLLERS:
            self.edits = []
            self._no_items(start)

    def _describe_quorum(self) -> Steps:
        self._skip(2)
        yield from self._skip_string()
        for _ in (yield from self._items()):
            yield from self._skip_string()
            for _ in (yield from self._items()):
                self._skip(6)
                yield from self._skip_string()
                self._skip(16)
                for _ in range(2):
                    for _ in (yield from self._items()):
                        self._skip(44)  # id, directory, end offset, two times
                        yield from self._skip_tags()
                yield from self._skip_tags()
            yield from self._skip_tags()
        for _ in (yield from self._items()):
            self._skip(4)
            start = self._at
            for _ in (yield from self._items()):
                yield from self._skip_string()
                yield from self._skip_string()
                self._skip(2)
                yield from self._skip_tags()
            self._no_items(start)
            yield from self._skip_tags()

    def _produce(self) -> Steps:
        for _ in (yield from self._items()):
            if self._version >= 13:
                self._skip(16)
            else:
                yield from self._skip_string()
            for _ in (yield from self._items()):
                self._skip(30)  # number, error, base offset, append time, log start
                for _ in (yield from self._items()):
                    self._skip(4)
                    yield from self._skip_string()
                    yield from self._skip_tags()
                yield from self._skip_string()
                yield from self._skip_tags()
            yield from self._skip_tags()
        self._skip(4)
        yield from self._endpoint_tags()

    def _fetch(self) -> Steps:
        self._skip(10 if self._version >= 7 else 4)
        for _ in (yield from self._items()):
            topic = yield from self._topic()
            for _ in (yield from self._items()):
                yield from self._partition(topic)
            yield from self._skip_tags()
        if self._version >= _ENDPOINTS_FROM:
            yield from self._endpoint_tags()

    def _topic(self) -> Generator[None, None, TopicKey]:
        if self._version >= 13:
            return bytes((yield from self._take(16)))
        return (yield from self._string()) or ""

    def _partition(self, topic: TopicKey) -> Steps:
        """Walk over a partition of a Fetch response."""
        head = yield from self._take(6)
        self._code_of(topic, int.from_bytes(head[:4], "big", signed=True), head[4:])
        self._skip(24 if self._version >= 5 else 16)  # high watermark, last stable offset, log start
        for _ in (yield from self._items()):  # aborted transactions
            self._skip(16)
            yield from self._skip_tags()
        if self._version >= 11:
            self._skip(4)
        self._skip(max(0, (yield from self._length(4))))
        yield from self._skip_tags()

    def _code_of(self, topic: TopicKey, partition: int, code: memoryview) -> None:
        """The error code of a partition, which may be written to."""

    def _share_fetch(self) -> Steps:
        self._skip(6)
        yield from self._skip_string()
        if self._version >= 1:
            self._skip(4)
        for _ in (yield from self._items()):
            self._skip(16)
            for _ in (yield from self._items()):
                yield from self._share_partition()
                self._skip(max(0, (yield from self._length(4))))
                for _ in (yield from self._items()):
                    self._skip(18)
                    yield from self._skip_tags()
                yield from self._skip_tags()
            yield from self._skip_tags()
        yield from self._last_endpoints()

    def _share_acknowledge(self) -> Steps:
        self._skip(6)
        yield from self._skip_string()
        if self._version >= 2:
            self._skip(4)
        for _ in (yield from self._items()):
            self._skip(16)
            for _ in (yield from self._items()):
                self._skip(6)
                yield from self._skip_string()
                self._skip(8)
                yield from self._skip_tags()
                yield from self._skip_tags()
            yield from self._skip_tags()
        yield from self._last_endpoints()

    def _share_partition(self) -> Steps:
        """Number, two errors with their texts, leader."""
        self._skip(6)
        yield from self._skip_string()
        self._skip(2)
        yield from self._skip_string()
        self._skip(8)
        yield from self._skip_tags()


_WALKS: Mapping[int, Callable[[AddressWalk], Steps]] = {
    Api.PRODUCE: AddressWalk._produce,
    Api.FETCH: AddressWalk._fetch,
    Api.METADATA: AddressWalk._metadata,
    Api.FIND_COORDINATOR: AddressWalk._find_coordinator,
    Api.DESCRIBE_QUORUM: AddressWalk._describe_quorum,
    Api.DESCRIBE_CLUSTER: AddressWalk._describe_cluster,
    Api.SHARE_FETCH: AddressWalk._share_fetch,
    Api.SHARE_ACKNOWLEDGE: AddressWalk._share_acknowledge,
}


def has_addresses(api_key: int, version: int) -> bool:
    """Return whether a response of this version may have some."""
    offered = OFFERED.get(api_key)
    return offered is not None and offered.addresses_from is not None and version >= offered.addresses_from
