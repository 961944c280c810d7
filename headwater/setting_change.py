"""A change of what is set by command, as `headwater topics set` requests it, in the agent or without it."""

import fnmatch
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headwater.config import Config, commanded_text, own_key
from headwater.trigger_check import check_triggers
from headwater_core.clock import SystemClock
from headwater_core.errors import UsageError
from headwater_core.segments.log_dirs import LogDirs
from manifests.setting_list import SettingList, check_pattern

KEYS_MAX = 100


class SettingChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """
    topic   a topic's name, or a pattern such as team-a.*
    values  by key; null: it is not set by command any more
    by      who wants it
    """

    topic: str
    values: dict[str, str | None]
    by: str = ""

    def __post_init__(self) -> None:
        """Raises UsageError."""
        check_pattern(self.topic)
        if not 0 < len(self.values) <= KEYS_MAX:
            raise UsageError("at least one KEY=VALUE is needed")
        for key, value in self.values.items():
            if value is not None:
                commanded_text(key, value)

    def decide(self, before: SettingList) -> SettingList:
        return before.changed(self.topic, self.own_values(), now_ms=SystemClock().now_ms(), by=self.by)

    def own_values(self) -> dict[str, str | None]:
        """By our own names, whatever aliases they were given by."""
        return {own_key(key): value if value is None else commanded_text(key, value) for key, value in self.values.items()}

    def matches(self, topic: str) -> bool:
        return topic == self.topic or fnmatch.fnmatchcase(topic, self.topic)

    def check(self, before: SettingList, config: Config, dirs: LogDirs) -> None:
        """Raises UsageError where a trigger comes to be set that is too late for the broker's retention."""
        if any(value is not None for value in self.values.values()):
            check_triggers(config.with_commands(self.decide(before)), dirs, self.matches).raise_refused()


def change_rows(
    change: SettingChange, apply: Callable[[Callable[[SettingList], SettingList]], SettingList], *, dry_run: bool = False
) -> Iterator[dict[str, Any]]:
    """A row for each key, once `apply` has written what its argument has made of the list. Raises what that raises."""
    seen = SettingList()

    def decide(before: SettingList) -> SettingList:
        nonlocal seen
        seen = before
        return change.decide(before)

    after = apply(decide).values(change.topic)
    before = seen.values(change.topic)
    for key in change.own_values():
        value, was = after.get(key), before.get(key)
        yield {"topic": change.topic, "key": key, "value": value, "before": was, "changed": value != was, "dry_run": dry_run}


def parse_assignments(texts: tuple[str, ...]) -> dict[str, str | None]:
    """KEY=VALUE by key; `KEY=` removes. Raises UsageError."""
    values: dict[str, str | None] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{text[:80]!r}: KEY=VALUE expected; KEY= removes it")
        if key.strip() in values:
            raise UsageError(f"{key.strip()} is given twice")
        values[key.strip()] = value.strip() or None
    return values


def pulsar_pattern(text: str, parts: int) -> str:
    """The topic, or the pattern, that tenant/namespace[/topic] stands for: with dots. Raises UsageError.

    parts  how many names there must be: 3, or 2 for all topics of a namespace
    """
    names = text.removeprefix("persistent://").split("/")
    if len(names) != parts or not all(names) or set(text) & set("*?[]"):
        raise UsageError(f"{text[:80]!r} is not {'/'.join(('tenant', 'namespace', 'topic')[:parts])}")
    return check_pattern(".".join(names if parts == 3 else [*names, "*"]))
