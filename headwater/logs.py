"""structlog, configured by the verbs that log. Importing this module is cheap; configuring is not."""

import sys
from typing import TextIO, cast


class _Stderr:
    """Whatever sys.stderr is when an event happens."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure(*, quiet: bool) -> None:
    """Events to stderr: coloured on a terminal, JSON lines elsewhere. quiet: only warnings and worse, for one-shot verbs."""
    import logging

    import structlog

    terminal = sys.stderr.isatty()
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
