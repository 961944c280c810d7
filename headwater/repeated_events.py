"""Which log events are news. Repeated trouble is written once, then counted, with a summary each minute."""

import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headwater_core.clock import Clock

Fields = Mapping[str, Any]

WINDOW_S = 60.0
LINES_MAX = 20  # of one event in WINDOW_S; the rest is counted: when a store fails, all partitions do
FORGOTTEN_S = 600.0  # trouble that was absent for this long is news again; the longest pause between two retries is a minute
SUBJECTS_MAX = 10_000  # with more, the trouble that was seen longest ago may be written again early
REASONS_MAX = 16  # of one subject, likewise: some texts come from clients
REASON_CHARS_MAX = 500
SUBJECTS = ("partition", "topic", "key", "path", "directory", "name", "peer", "library")  # fields that say what an event is about
_ANY = ("*",) * len(SUBJECTS)  # whatever it is
OPPOSITES = (
    ("archive_stopped", "archive_resumed"),
    ("store_unavailable", "store_available"),
    ("store_silent", "store_answered"),
    ("archiving_suspended", "archiving_resumed"),
    ("leadership_unknown", "leadership_known"),
    ("control_log_unavailable", "control_log_available"),
    ("announcements_postponed", "announcements_resumed"),
    ("broker_unavailable", "broker_answered"),
    ("object_damaged", "object_damage_cleared"),
)  # each ends the other: the next one is news
COUNTED_ELSEWHERE = "events_dropped"
_OPPOSITE = dict(OPPOSITES) | {end: beginning for beginning, end in OPPOSITES}
_ENDS = frozenset(end for _, end in OPPOSITES)
_VARYING = re.compile(r"\b[0-9a-f-]{16,}\b|\d+", re.ASCII)  # ids, ports and offsets differ in each retry, the reason does not
_PLACE = re.compile(
    r"\b\w+://\S+|(?<![\w.=-])[\w.=-]*+(?:/[\w.=-]++){2,}"
)  # a URL, a path or a key: what the store raises names the object
_TROUBLE = ("warning", "error", "critical")

_Subject = tuple[str, ...]


class Summary(NamedTuple):
    """`fields` are those of the last event, with `repeats`, the number of events, and `subjects`, the number of different subjects."""

    level: str
    event: str
    fields: dict[str, Any]


@dataclass(slots=True)
class _Window:
    """One event's last WINDOW_S."""

    began_s: float
    lines: int = 0
    repeats: int = 0
    subjects: set[_Subject] = field(default_factory=set)
    level: str = ""
    last: dict[str, Any] = field(default_factory=dict)


class RepeatedEvents:
    """Decides whether to write an event. Safe to use from many threads. The caller writes, and calls `summaries` from time to time.

    Two events are the same trouble when their name, level and subject (partition, key, peer, ...) are equal and their other texts
    differ in numbers and places only. A warning that another subject had within WINDOW_S is of the same kind, and counted as well: a
    store that fails does so for all partitions. Information is always news, except the end of a trouble, which many partitions may
    reach at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._seen_s: OrderedDict[_Subject, OrderedDict[str, float]] = OrderedDict()  # by event and subject: the last time of each reason
        self._windows: dict[str, _Window] = {}

    def is_news(self, level: str, event: Fields) -> bool:
        """Whether to write `event`; otherwise it is counted."""
        name = str(event["event"])
        if "repeats" in event or name == COUNTED_ELSEWHERE or not (level in _TROUBLE or name in _ENDS):
            return True
        now_s = self._clock.monotonic_s()
        subject = tuple(_subject(field, event) for field in SUBJECTS)
        reason = f"{level} {_reason(event, subject)}"
        with self._lock:
            is_known = self._note((name, *subject), reason, now_s, FORGOTTEN_S)
            if level == "warning" and any(subject):
                is_known = self._note((name, *_ANY), reason, now_s, WINDOW_S) or is_known
            window = self._windows.get(name)
            if window is None or (now_s >= window.began_s + WINDOW_S and not window.repeats):
                window = self._windows[name] = _Window(now_s)
            if not is_known and name in _OPPOSITE:
                self._seen_s.pop((_OPPOSITE[name], *subject), None)
            if not is_known and window.lines < LINES_MAX:
                window.lines += 1
                return True
            window.repeats += 1
            if len(window.subjects) < SUBJECTS_MAX:
                window.subjects.add(subject)
            window.level = level
            window.last = {key: value for key, value in event.items() if key not in ("event", "exc_info")}
            return False

    def summaries(self, *, all_of_them: bool = False) -> list[Summary]:
        """The counts of windows that are over (`all_of_them`: of the others too). Each count is returned once."""
        now_s = self._clock.monotonic_s()
        found = []
        with self._lock:
            for name, window in list(self._windows.items()):
                if all_of_them or now_s >= window.began_s + WINDOW_S:
                    del self._windows[name]
                    if window.repeats:
                        counts = {"repeats": window.repeats, "subjects": len(window.subjects)}
                        found.append(Summary(window.level, name, window.last | counts))
        return found

    def _note(self, subject: _Subject, reason: str, now_s: float, within_s: float) -> bool:
        """Remember that `subject` has this trouble. Whether it had the same trouble less than `within_s` ago."""
        reasons = self._seen_s.setdefault(subject, OrderedDict())
        self._seen_s.move_to_end(subject)
        before_s = reasons.get(reason)
        reasons[reason] = now_s
        reasons.move_to_end(reason)
        if len(reasons) > REASONS_MAX:
            reasons.popitem(last=False)
        if len(self._seen_s) > SUBJECTS_MAX:
            self._seen_s.popitem(last=False)
        return before_s is not None and now_s < before_s + within_s


def _subject(name: str, event: Fields) -> str:
    value = event.get(name)
    text = "" if value is None else str(value)
    return text.rpartition(":")[0] if name == "peer" else text  # its port changes with each connection


def _reason(event: Fields, subject: _Subject) -> str:
    """The texts of `event` apart from its subject, without what varies."""
    words = [value for name, value in event.items() if name not in SUBJECTS and name != "event" and isinstance(value, str)]
    error = event.get("exc_info")
    if error is not None:
        words.append(repr(sys.exc_info()[1] if error is True else error))
    text = _PLACE.sub("#", "\n".join(words)[: 4 * REASON_CHARS_MAX])
    for each in filter(None, subject):
        text = text.replace(each, "#")
    return _VARYING.sub("#", text)[:REASON_CHARS_MAX]
