import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway.frames import MalformedRequest, RequestHeader, read_header, take_frame

LIMIT = 1 << 20


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@given(st.lists(st.binary(min_size=10, max_size=200), max_size=5), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_however_the_bytes_arrive(bodies: list[bytes], piece_bytes: int) -> None:
    stream = b"".join(framed(body) for body in bodies)
    pending, taken = bytearray(), []
    for at in range(0, len(stream), piece_bytes):
        pending += stream[at : at + piece_bytes]
        while (frame := take_frame(pending, LIMIT)) is not None:
            taken.append(frame)
    assert taken == bodies
    assert not pending


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 9, LIMIT + 1, 2**31 - 1])
def test_an_impossible_size_is_refused_before_the_frame_is_there(size: int) -> None:
    with pytest.raises(MalformedRequest, match=str(size)):
        take_frame(bytearray(struct.pack(">i", size)), LIMIT)


@pytest.mark.parametrize(
    ("hello", "named"), [(b"\x16\x03\x01\x02\x00\x01", "TLS"), (b"GET / HTTP/1.1\r\n", "HTTP"), (b"PRI * HTTP/2.0\r\n", "HTTP")]
)
def test_a_client_of_another_protocol_is_named(hello: bytes, named: str) -> None:
    with pytest.raises(MalformedRequest, match=f"the client speaks {named}, which this port does not"):
        take_frame(bytearray(hello), LIMIT)


def test_a_header_says_who_asks_what() -> None:
    frame = struct.pack(">hhih", 1, 12, 7, 4) + b"kcat" + b"\x00rest"
    assert read_header(frame) == RequestHeader(1, 12, 7, "kcat", 14)
    assert read_header(struct.pack(">hhih", 18, 0, 8, -1)).client_id == ""


@pytest.mark.parametrize("length", [-2, 5, 32767])
def test_a_client_id_does_not_reach_beyond_its_frame(length: int) -> None:
    with pytest.raises(MalformedRequest):
        read_header(struct.pack(">hhih", 1, 12, 7, length) + b"kcat")
