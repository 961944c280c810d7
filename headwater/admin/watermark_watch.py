"""The high watermarks that the broker beside the agent says, asked for in the background: for a status; no step waits for it."""

import threading
from collections import deque

import structlog

from archival.broker.broker_logs import PLACES_MAX, BrokerLogs
from headwater.admin.status_board import StatusBoard
from headwater_core.clock import Clock
from headwater_core.partition import TopicPartition

ROUND_S = 5.0  # between two beginnings to ask about all partitions; as often as the broker writes its checkpoint
WORK_SHARE = 0.05  # of the time, at most

log = structlog.get_logger()


class WatermarkWatch:
    """Asks about what the broker leads, many partitions with one request. A broker that is silent is left alone by its client."""

    def __init__(self, board: StatusBoard, broker: BrokerLogs, clock: Clock) -> None:
        self._board, self._broker, self._clock = board, broker, clock
        self._queue: deque[TopicPartition] = deque()
        self._round_s = float("-inf")

    def turn(self) -> float:
        """One request, if one is due; how many seconds to wait before the next turn."""
        began_s = self._clock.monotonic_s()
        if not self._queue:
            if began_s < self._round_s + ROUND_S:
                return self._round_s + ROUND_S - began_s
            self._queue.extend(self._board.led())
            self._round_s = began_s
        places = [self._queue.popleft() for _ in range(min(PLACES_MAX, len(self._queue)))]
        if places and (said := self._broker.learn(places)):
            self._board.said({place: mark.offset for place, mark in said.items()}, began_s)
        return (self._clock.monotonic_s() - began_s) * (1 / WORK_SHARE - 1) if self._queue else ROUND_S

    def run(self, stop: threading.Event) -> None:
        """Turns, until `stop` is set."""
        pause_s = 0.0
        while not stop.wait(pause_s):
            try:
                pause_s = self.turn()
            except Exception:
                log.exception("status_not_updated", partition="all")
                pause_s = ROUND_S
