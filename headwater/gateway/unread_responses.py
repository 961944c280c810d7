"""Responses that clients do not take, bounded over all connections together."""

import socket
from collections import Counter
from dataclasses import dataclass

import structlog

from headwater.gateway.gateway_meter import GatewayMeter
from headwater.gateway.open_connections import shut_down
from headwater.gateway.response import Frame

log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class UnreadResponse:
    """`frame` waits until `client` has taken it."""

    client: socket.socket
    ip: str
    frame: Frame


class UnreadResponses:
    """Holds the responses that wait in memory for their clients: at most `limit_bytes`, or one response. Ranges of files take none.

    Beyond that the address that has the most waiting loses its connection with the oldest of them. Bytes that several responses share,
    as those of the same topics do, count once.
    """

    def __init__(self, limit_bytes: int, meter: GatewayMeter) -> None:
        self._limit_bytes, self._meter = limit_bytes, meter
        self._unread: dict[UnreadResponse, None] = {}  # the oldest first
        self._uses: Counter[int] = Counter()  # by the identity of a part, which its frames keep alive

    def add(self, response: UnreadResponse) -> None:
        """It is about to be sent."""
        self._unread[response] = None
        for part in response.frame.parts:
            if isinstance(part, bytes):
                self._uses[id(part)] += 1
                if self._uses[id(part)] == 1:
                    self._meter.unread_bytes += len(part)
        while self._meter.unread_bytes > self._limit_bytes and len(self._unread) > 1:
            self._drop()

    def remove(self, response: UnreadResponse) -> None:
        """It is sent, or its connection has ended. May be called again."""
        if response not in self._unread:
            return
        del self._unread[response]
        for part in response.frame.parts:
            if isinstance(part, bytes):
                self._uses[id(part)] -= 1
                if not self._uses[id(part)]:
                    del self._uses[id(part)]
                    self._meter.unread_bytes -= len(part)

    def _drop(self) -> None:
        by_ip: Counter[str] = Counter()
        for response in self._unread:
            by_ip[response.ip] += sum(len(part) for part in response.frame.parts if isinstance(part, bytes))
        [(ip, unread_bytes)] = by_ip.most_common(1)
        oldest = next(response for response in self._unread if response.ip == ip)
        log.warning("unread_response_dropped", ip=ip, unread_bytes=unread_bytes, unread_bytes_max=self._limit_bytes)
        self.remove(oldest)
        self._meter.unread_dropped += 1
        shut_down(oldest.client)
