"""One connection to the admin port: uvicorn's, with limits of time, and errors in our form.

uvicorn waits without end for the rest of a request, and for a client that takes its answer slowly.
"""

import asyncio
from collections.abc import Callable

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from headwater.admin.problem import MEDIA_TYPE, ProblemCode, problem_body
from headwater.admin.recent_answers import RecentAnswer, RecentAnswers

REQUEST_S = 10.0  # from its first byte, or the begin of the connection, to its last one
TAKING_S = 10.0  # a client that takes nothing of what is ready for it in that time is gone
IDLE_S = 75  # without a request; a scraper comes back each minute or sooner
HEAD_BYTES_MAX = 16 << 10  # of a request line and its headers


class AdminConnection(H11Protocol):
    """
    recent   what may be answered again without being parsed
    lost     called once, when the connection has ended
    hurries  must the client take what is ready for it within TAKING_S?
    """

    def __init__(
        self, config: uvicorn.Config, state: ServerState, recent: RecentAnswers, lost: Callable[[], object], *, hurries: bool
    ) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._hurries = hurries
        self._recent, self._lost = recent, lost
        self._arrival: asyncio.TimerHandle | None = None  # runs while a request is expected to arrive
        self._look: asyncio.TimerHandle | None = None  # the next one at what the client has not taken
        self._idle_since_s = 0.0
        self._left_bytes: int | None = None  # by it at the last look; None: there was nothing to take

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._idle_since_s = self.loop.time()
        self._arrival = self.loop.call_later(REQUEST_S, self._abort)
        if self._hurries:
            self._look = self.loop.call_later(TAKING_S, self._look_at_taking)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._arrival, self._look):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._lost()

    @property
    def idle_since_s(self) -> float | None:
        """Return since when it is idle, by the loop's clock; None while a request is being answered."""
        return self._idle_since_s if self.cycle is None or self.cycle.response_complete else None

    def on_response_complete(self) -> None:
        self._idle_since_s = self.loop.time()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        begins = self._awaits_request()
        answer = self._recent.find(data) if begins else None
        if answer is not None:
            self._answer_again(answer)
        else:
            self.app_state["whole_request"] = data if begins else None  # for the scope of the request that begins here
            super().data_received(data)
        if answer is not None or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            if self._arrival is not None:
                self._arrival.cancel()
                self._arrival = None
        elif self._arrival is None:
            self._arrival = self.loop.call_later(REQUEST_S, self._abort)

    def _awaits_request(self) -> bool:
        """Is what arrives now the begin of a request, and can it be answered at once?"""
        is_idle = self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE
        return is_idle and not self.conn.trailing_data[0] and not self.flow.write_paused

    def _answer_again(self, answer: RecentAnswer) -> None:
        self.transport.write(answer.head + answer.body)
        self.on_response_complete()

    def _look_at_taking(self) -> None:
        """A connection that is being closed stays open until the client has taken the last answer; and of one whose buffers are not full
        no event tells that nothing leaves them."""
        left = self.transport.get_write_buffer_size()
        is_awaited = left > 0 or self.transport.is_closing()
        if is_awaited and self._left_bytes is not None and left >= self._left_bytes:
            self._abort()
            return
        self._left_bytes = left if is_awaited else None
        self._look = self.loop.call_later(TAKING_S, self._look_at_taking)

    def send_400_response(self, msg: str) -> None:
        """What arrived is no HTTP, or its head is too long."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE) or (self.cycle is not None and not self.cycle.response_complete):
            self._abort()  # an earlier request is being answered
            return
        body = problem_body(ProblemCode.BAD_REQUEST, f"not a request of HTTP/1.1, or a head of more than {HEAD_BYTES_MAX} bytes")
        headers = [("content-type", MEDIA_TYPE), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers, reason="Bad Request"), h11.Data(body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def abort(self) -> None:
        self._abort()

    def _abort(self) -> None:
        self.transport.abort()
