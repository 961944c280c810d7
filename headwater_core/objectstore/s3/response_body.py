"""The bytes of an answer on their way into a caller's buffers, without a copy and within a time."""

from collections.abc import Callable
from time import monotonic
from typing import Any

_TRICKLE_BYTES = 64 << 10  # requested at once where a read returns only when it has all


def fill(body: Any, buffer: memoryview, end_s: float, progressed: Callable[[], object]) -> bool:
    """Fill `buffer` from botocore's `body`; False when the answer ends before it is full.

    end_s       on the monotonic clock, when all of it must have come: a body that trickles would never meet a time-out of a read
    progressed  called while bytes move

    Raises TimeoutError at `end_s`, and what urllib3 raises.
    """
    source = _direct(body)
    while buffer:
        if monotonic() > end_s:
            raise TimeoutError("the answer came too slowly")
        count = body.readinto(buffer[:_TRICKLE_BYTES]) if source is None else _receive(source, buffer)
        if not count:
            return False
        progressed()
        buffer = buffer[count:]
    return True


def release(body: Any) -> None:
    """Give the connection back, which urllib3 does by itself only for what was read through it."""
    if _direct(body) is not None:
        body._raw_stream.release_conn()


def _direct(body: Any) -> Any:
    """The answer below urllib3, which would make new bytes and copy them; None where it has to unpack what comes."""
    answer = getattr(getattr(body, "_raw_stream", None), "_fp", None)
    return None if getattr(answer, "chunked", True) else answer


def _receive(answer: Any, buffer: memoryview) -> int:
    """What has come. HTTPResponse.readinto would return when all of it has, however slowly that is."""
    if answer.fp is None or answer.length is None:
        return int(answer.readinto(buffer))
    count = int(answer.fp.readinto1(buffer[: answer.length]))
    answer.length -= count
    if not count or not answer.length:
        answer._close_conn()
    return count
