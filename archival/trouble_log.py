"""What the agent logs of its partitions' troubles: news at once, repetitions now and then, never a line per partition and try."""

import logging
import re
import threading
from collections.abc import Container
from dataclasses import dataclass, field

import structlog

from archival.fleet import LOG_DIRS, PartitionOutcome
from headwater_core.clock import Clock
from headwater_core.errors import TransientError
from headwater_core.partition import TopicPartition

log = structlog.get_logger()

REPEAT_S = 300.0  # a postponement whose reason stays the same is repeated this often
LINES_MAX = 20  # of one kind of event in WINDOW_S; the rest is counted: when a store fails, all partitions do
WINDOW_S = 60.0
_CHANCE = re.compile(r"\b[0-9a-f-]{16,}\b|\d+", re.ASCII)  # ids, ports and offsets differ from try to try, the reason does not


@dataclass(slots=True)
class _Logged:
    event: str
    words: str
    at_s: float


@dataclass(slots=True)
class _Window:
    began_s: float
    lines: int = 0
    others: set[TopicPartition] = field(default_factory=set)
    reason: str = ""


class TroubleLog:
    """Safe to use from many threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._logged: dict[TopicPartition, _Logged] = {}
        self._windows: dict[str, _Window] = {}

    def note(self, outcome: PartitionOutcome) -> None:
        """What keeps a partition from being archived, when that is news. What was archived the archiver itself has logged."""
        now_s, place = self._clock.monotonic_s(), outcome.place
        with self._lock:
            before = self._logged.get(place)
            if outcome.error is None:
                if before and before.event == "archive_stopped":
                    del self._logged[place]
                    if not outcome.gone:
                        self._write("archive_resumed", place, outcome.reason, now_s)
                return
            event = "archive_postponed" if isinstance(outcome.error, TransientError) else "archive_stopped"
            words = _CHANCE.sub("#", str(outcome.error))
            if before and (before.event, before.words) == (event, words) and (event == "archive_stopped" or now_s < before.at_s + REPEAT_S):
                return
            self._logged[place] = _Logged(event, words, now_s)
            self._write(event, place, str(outcome.error), now_s)

    def tick(self) -> None:
        """Log the counts that are due."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            for event, window in list(self._windows.items()):
                if now_s >= window.began_s + WINDOW_S:
                    self._close(event, window)

    def retain(self, places: Container[TopicPartition]) -> None:
        """Forget all other partitions."""
        with self._lock:
            for each in [each for each in self._logged if each not in places and each != LOG_DIRS]:
                del self._logged[each]

    def _write(self, event: str, place: TopicPartition, reason: str, now_s: float) -> None:
        window = self._windows.get(event)
        if window and now_s >= window.began_s + WINDOW_S:
            self._close(event, window)
            window = None
        if window is None:
            window = self._windows[event] = _Window(now_s)
        if window.lines < LINES_MAX:
            window.lines += 1
            log.log(_LEVELS[event], event, partition=str(place), reason=reason)
        else:
            window.others.add(place)
            window.reason = reason

    def _close(self, event: str, window: _Window) -> None:
        del self._windows[event]
        if window.others:
            log.log(_LEVELS[event], event, partitions=len(window.others), reason=window.reason)


_LEVELS = {"archive_postponed": logging.WARNING, "archive_stopped": logging.ERROR, "archive_resumed": logging.INFO}
