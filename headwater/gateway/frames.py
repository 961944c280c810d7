"""Frames and request headers: what every Kafka request has before its kind matters. Pure; no sockets here."""

import struct
from typing import NamedTuple

from headwater_core.errors import HeadwaterError

_SIZE_BYTES = 4
_HEADER = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id
_HTTP = frozenset((b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ", b"HTTP"))


class MalformedRequest(HeadwaterError):
    """The peer does not speak the protocol, or not the one offered. Its connection cannot be trusted any further: close it."""


class RequestHeader(NamedTuple):
    """`body_position` is where the header's own tagged fields begin in a flexible version, else the body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body_position: int


def take_frame(pending: bytearray, frame_bytes_max: int) -> bytes | None:
    """Cut one whole frame (a 4-byte size, then that many bytes) off `pending`; None while it is incomplete.

    Raises MalformedRequest as soon as the size is impossible, before anything is allocated for it. A TLS hello or an
    HTTP request is recognised so: read as sizes, their first bytes are hundreds of MB.
    """
    if len(pending) < _SIZE_BYTES:
        return None
    size = int.from_bytes(pending[:_SIZE_BYTES], "big", signed=True)
    if not _HEADER.size <= size <= frame_bytes_max:
        raise impossible_frame(bytes(pending[:_SIZE_BYTES]), frame_bytes_max)
    if len(pending) < _SIZE_BYTES + size:
        return None
    frame = bytes(memoryview(pending)[_SIZE_BYTES : _SIZE_BYTES + size])
    del pending[: _SIZE_BYTES + size]
    return frame


def announced_size(pending: bytearray) -> int:
    """How long the frame will be that `pending` begins with; 0 while that is not known."""
    return int.from_bytes(pending[:_SIZE_BYTES], "big", signed=True) if len(pending) >= _SIZE_BYTES else 0


def read_header(frame: bytes) -> RequestHeader:
    """The request header at the start of `frame`, versions 1 and 2 up to the tagged fields.

    The client id keeps the old string form in every version. Raises MalformedRequest. Source: Kafka's RequestHeader.json.
    """
    if len(frame) < _HEADER.size:
        raise MalformedRequest(f"request of {len(frame)} bytes, a header takes {_HEADER.size}")
    api_key, api_version, correlation_id, length = _HEADER.unpack_from(frame)
    end = _HEADER.size + max(length, 0)
    if length < -1 or end > len(frame):
        raise MalformedRequest(f"client id of {length} bytes in a request of {len(frame)}")
    client_id = frame[_HEADER.size : end].decode("utf-8", "replace")
    return RequestHeader(api_key, api_version, correlation_id, client_id, end)


def foreign_protocol(first: bytes) -> str | None:
    """Name the protocol whose first four bytes these are, where it is another one that peers speak by mistake."""
    if first[:2] == b"\x16\x03":
        return "TLS"
    return "HTTP" if first[:4] in _HTTP else None


def impossible_frame(first: bytes, frame_bytes_max: int) -> MalformedRequest:
    """The error for a frame whose size, its first four bytes, cannot be. It names what the client speaks instead, where that is known."""
    if (protocol := foreign_protocol(first)) is not None:
        return MalformedRequest(f"the client speaks {protocol}, which this port does not")
    return MalformedRequest(f"frame of {int.from_bytes(first, 'big', signed=True)} bytes, limit {frame_bytes_max}")
