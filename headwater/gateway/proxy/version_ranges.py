"""What brokers offer in an ApiVersions response, without what the proxy does not offer.

The broker's lowest versions stay, and so do features and whatever else follows. A client that requests a newer ApiVersions is answered
here: nobody knows what a response to it looks like.

Source: Kafka 4.4, ApiVersionsResponse.json; KIP-511.
"""

from headwater.gateway.protocol import Api, Code
from headwater.gateway.proxy.address_walk import MalformedResponse
from headwater.gateway.proxy.offered_apis import HIDDEN, OFFERED
from headwater_core.errors import CorruptData
from headwater_core.segments import flexible
from headwater_core.segments.varint import encode_uvarint

Range = tuple[int, int]


def intersected(body: bytes, version: int, *, passes_unknown: bool = False) -> bytes:
    """`body` of a response, from behind its correlation id on, with the ranges that clients may use.

    passes_unknown  what is not in the table is offered as the broker has it

    Raises MalformedResponse.
    """
    reader = flexible.Reader(body, "ApiVersions")
    try:
        error = reader.i16()
        is_flexible = version >= 3 and error != Code.UNSUPPORTED_VERSION  # that is of version 0, whatever was requested
        count = reader.uvarint() - 1 if is_flexible else reader.i32()
        ranges = []
        for _ in range(count):
            api_key, lowest, highest = reader.i16(), reader.i16(), reader.i16()
            if is_flexible:
                reader.tags()
            if (offered := offered_range(api_key, (lowest, highest), passes_unknown=passes_unknown)) is not None:
                ranges.append(b"".join(map(flexible.i16, (api_key, *offered))) + (b"\0" if is_flexible else b""))
    except CorruptData as broken:
        raise MalformedResponse(str(broken)) from broken
    length = encode_uvarint(len(ranges) + 1) if is_flexible else flexible.i32(len(ranges))
    return b"".join((flexible.i16(error), length, *ranges, body[reader.position :]))


def offered_range(api_key: int, brokers: Range, *, passes_unknown: bool = False) -> Range | None:
    """The lowest and highest version that clients may use of a request that brokers answer in versions `brokers`; None: none."""
    if api_key in HIDDEN:
        return None
    ours = OFFERED.get(api_key)
    if passes_unknown and ours is None:
        return brokers
    if ours is None or ours.version_max < brokers[0]:
        return None
    return brokers[0], min(brokers[1], ours.version_max)


def unsupported() -> bytes:
    """The body for a client that requests a newer ApiVersions than there is here: it asks again in one of these."""
    ours = b"".join(map(flexible.i16, (Api.API_VERSIONS, 0, OFFERED[Api.API_VERSIONS].version_max)))
    return flexible.i16(Code.UNSUPPORTED_VERSION) + flexible.i32(1) + ours
