"""The bytes of an answer on their way to a caller, within a time: a body that trickles would never meet a time-out of a read."""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from botocore.exceptions import HTTPClientError
from urllib3.exceptions import HTTPError

SLOWEST_BYTES_PER_S = 256 << 10  # each such piece of an answer has a second more
_PIECE_BYTES = 64 << 10
_TRICKLE_BYTES = 64 << 10  # requested at once where a read returns only when it has all
_WORK_S = 600.0  # for a request that changes something: Amazon answers a completion at once, and sends blanks until it is done


class TimedSession:
    """botocore's HTTP session `inner`. What botocore parses is read here, within a time: `timeout_s` for answers to reads."""

    def __init__(self, inner: Any, timeout_s: float) -> None:
        self._inner, self._timeout_s = inner, timeout_s

    def send(self, request: Any) -> Any:
        """Raises TimeoutError, and what botocore's raises."""
        is_streamed, request.stream_output = request.stream_output, True
        answer = self._inner.send(request)
        if not is_streamed or answer.status_code >= 300:
            timeout_s = self._timeout_s if request.method in ("GET", "HEAD") else _WORK_S
            try:
                answer._content = b"".join(pieces(answer.raw, timeout_s))
            except HTTPError as error:
                raise HTTPClientError(error=error) from error  # for which botocore sends it again
            answer.raw.release_conn()
        return answer

    def close(self) -> None:
        self._inner.close()


def pieces(raw: Any, timeout_s: float) -> Iterator[bytes]:
    """What comes of urllib3's answer `raw`, until its end. Raises TimeoutError when that takes too long, and what urllib3 raises."""
    end_s = monotonic() + timeout_s
    while piece := raw.read1(_PIECE_BYTES):
        yield piece
        end_s += len(piece) / SLOWEST_BYTES_PER_S
        if monotonic() > end_s:
            raw.close()  # its connection is of no use any more
            raise TimeoutError("the answer came too slowly")


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
