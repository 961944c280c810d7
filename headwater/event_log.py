"""structlog, configured by the commands. Importing this module is cheap; configuring is not.

Every event is written to stderr: as text on a terminal, as one JSON object per line elsewhere, unless a setting says otherwise.
Repeated trouble is counted (headwater/repeated_events.py). What libraries log at warning and above becomes an event too, so that each
line can be parsed.
"""

import atexit
import contextlib
import logging
import os
import select
import sys
import threading
from collections.abc import Mapping, MutableMapping
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO, cast

from headwater_core.redaction import redact

if TYPE_CHECKING:
    from headwater.repeated_events import RepeatedEvents

_SUMMARY_CHECK_S = 5.0  # between two checks for summaries that are due
_WAIT_MS = 100  # for a pipe that is full while its reader reads
_PIECE_CHARS = 1024  # at most 4 KiB: a pipe that takes anything takes so many bytes at once


class LogLevel(Enum):
    """AUTO is the command's default: info for the agent, warning for commands that end by themselves and print their result."""

    AUTO = "auto"
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"{value!r} is not one of {', '.join(each.value for each in cls)}")


class LogFormat(Enum):
    """AUTO is CONSOLE on a terminal and JSON elsewhere."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"{value!r} is not one of {', '.join(each.value for each in cls)}")


class _Stderr:
    """Writes to sys.stderr as it is when an event happens.

    An event that cannot be written, because of a full disk, a pipe without a reader or one whose reader has stopped, is dropped and
    counted: it must neither raise in the code that logs it nor keep it waiting.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._wait_ms = _WAIT_MS
        self._is_cut = False  # was the last line dropped in its middle?

    def write(self, text: str) -> int:
        text = f"\n{text}" if self._is_cut else text
        for start in range(0, len(text), _PIECE_CHARS):
            try:
                self._wait()
                sys.stderr.write(text[start : start + _PIECE_CHARS])
                sys.stderr.flush()
            except (OSError, ValueError, AttributeError):
                self.dropped += 1
                self._is_cut = self._is_cut or start > 0
                return 0
        self._is_cut = False
        return len(text)

    def _wait(self) -> None:
        """Wait for a moment until stderr takes a piece, and for none once it has not. Raises TimeoutError, an OSError."""
        try:
            number = sys.stderr.fileno()
        except OSError:
            return  # no file, as in a test
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        if not poll.poll(self._wait_ms):
            self._wait_ms = 0
            raise TimeoutError("nobody reads stderr")
        self._wait_ms = _WAIT_MS

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()


_NO_NEWS = "socket.send() raised exception."  # asyncio's, of a peer that has left while it was being answered


class _Libraries(logging.Handler):
    """Handles what libraries log. Without a handler, Python would print their text between our lines."""

    def emit(self, record: logging.LogRecord) -> None:
        import structlog

        if record.msg == _NO_NEWS:
            return
        log = structlog.get_logger()
        try:
            (log.error if record.levelno >= logging.CRITICAL else log.warning)(  # where a person must act, there is also an event of ours
                "library_reported", library=record.name, reason=record.getMessage(), exc_info=record.exc_info
            )
        except Exception:
            self.handleError(record)


_LIBRARIES = _Libraries(logging.WARNING)


class _Limit:
    """The processor that drops repeated events. A thread, started by the first event that is counted, writes the counts."""

    def __init__(self, repeated: "RepeatedEvents", stderr: _Stderr) -> None:
        self._repeated, self._stderr = repeated, stderr
        self._stop, self._starting = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def __call__(self, _: object, level: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        from structlog import DropEvent

        self._report_dropped()
        if self._repeated.is_news(level, event):
            return event
        with self._starting:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="event-counts", daemon=True)
                self._thread.start()
        raise DropEvent

    def close(self) -> None:
        """Write the counts. May be called twice."""
        self._stop.set()
        if self._thread:
            self._thread.join()
        self._write_counts(all_of_them=True)

    def _run(self) -> None:
        while not self._stop.wait(_SUMMARY_CHECK_S):
            self._write_counts()

    def _write_counts(self, *, all_of_them: bool = False) -> None:
        import structlog

        for level, event, fields in self._repeated.summaries(all_of_them=all_of_them):
            getattr(structlog.get_logger(), level)(event, **fields)

    def _report_dropped(self) -> None:
        import structlog

        if count := self._stderr.dropped:
            self._stderr.dropped = 0
            structlog.get_logger().warning("events_dropped", events=count)
            if self._stderr.dropped:  # that one, too
                self._stderr.dropped = count


def configure(level: LogLevel = LogLevel.AUTO, form: LogFormat = LogFormat.AUTO, *, default: LogLevel = LogLevel.WARNING) -> None:
    """Write events to stderr. The counts are written when the command ends, else, as in a worker of it, when the process does.

    default   what AUTO means for this command
    """
    import click
    import structlog

    from headwater.repeated_events import RepeatedEvents
    from headwater_core.clock import SystemClock

    terminal = sys.stderr is not None and sys.stderr.isatty()
    console = terminal if form is LogFormat.AUTO else form is LogFormat.CONSOLE
    stderr = _Stderr()
    limit = _Limit(RepeatedEvents(SystemClock()), stderr)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            limit,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redacted,
            _facts_first,
            _for_people(colours=terminal and not os.environ.get("NO_COLOR")) if console else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[(default if level is LogLevel.AUTO else level).name]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, stderr)),
        cache_logger_on_first_use=False,
    )
    logging.getLogger().addHandler(_LIBRARIES)
    if verb := click.get_current_context(silent=True):
        verb.call_on_close(limit.close)
    else:
        atexit.register(limit.close)


def _redacted(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """No field shows the credentials of a URL."""
    return {name: redact(value) if isinstance(value, str) else value for name, value in event.items()}


def _facts_first(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """The fields that every event has come first in its JSON object, for people who read it."""
    return {**{name: event.pop(name) for name in ("timestamp", "level", "event") if name in event}, **event}


def _for_people(*, colours: bool) -> Any:
    import structlog

    return structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback)
