"""structlog, configured by the verbs that log. Importing this module is cheap; configuring is not."""

import contextlib
import sys
from typing import TextIO, cast


class _Stderr:
    """Whatever sys.stderr is when an event happens.

    An event that cannot be written, as on a full disk or into a pipe without a reader, is dropped and counted: it must not
    fail the code that reported it.
    """

    def __init__(self) -> None:
        self.dropped = 0

    def write(self, text: str) -> int:
        try:
            if self.dropped:
                sys.stderr.write(f'{{"event": "events_dropped", "level": "warning", "events": {self.dropped}}}\n')
                self.dropped = 0
            return sys.stderr.write(text)
        except (OSError, ValueError, AttributeError):
            self.dropped += 1
            return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()


def configure(*, quiet: bool) -> None:
    """Events to stderr: coloured on a terminal, JSON lines elsewhere. quiet: only warnings and worse, for one-shot verbs."""
    import logging

    import structlog

    terminal = sys.stderr is not None and sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING if quiet else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Stderr())),
        cache_logger_on_first_use=False,
    )
