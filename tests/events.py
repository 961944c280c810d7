"""The events that the program would write: those that are news, and the summaries of the others."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

from headwater.repeated_events import RepeatedEvents
from headwater_core.clock import Clock


class WrittenEvents(list[dict[str, Any]]):
    """Like structlog's capture_logs: each has `event` and `log_level` beside its fields."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.repeated = RepeatedEvents(clock)

    def take(self, _: object, level: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        if self.repeated.is_news(level, event):
            self.append({**event, "log_level": level})
        raise structlog.DropEvent

    def summarise(self) -> None:
        self.extend({**each.fields, "event": each.event, "log_level": each.level} for each in self.repeated.summaries())


@contextmanager
def written_events(clock: Clock) -> Iterator[WrittenEvents]:
    written, before = WrittenEvents(clock), structlog.get_config()["processors"]
    structlog.configure(processors=[written.take])
    try:
        yield written
    finally:
        structlog.configure(processors=before)
