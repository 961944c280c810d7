"""The configuration of a running agent, which may be read again: what concerns archiving is taken up, the rest is for the next start."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from archival.config import ArchivalConfig
from headwater.config import Config, shown

_FIXED = ".layout"  # of everything and of a topic: archivers are made with it


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Which settings differ: those that were taken up now, and those that differ from what the agent was started with and stay so until
    it is started again."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


class LiveConfig:
    """Safe to use from many threads.

    started  what the agent was started with
    load     reads it again, from the same file and flags; None where nothing does
    """

    def __init__(self, started: Config, load: Callable[[], Config] | None = None) -> None:
        self._started, self._now, self._load = started, started, load or (lambda: started)
        self._reloading = threading.Lock()
        self.changed: Callable[[], object] = lambda: None  # called after settings have changed

    @property
    def now(self) -> Config:
        """As it is in effect."""
        return self._now

    def archival(self) -> ArchivalConfig:
        return self._now.archival

    def archival_for(self, topic: str) -> ArchivalConfig:
        return replace(self._now.archival_for(topic), layout=self._started.archival_for(topic).layout)

    def reload(self) -> Reloaded:
        """Read the configuration again. Raises UsageError for one that is not valid; then everything stays as it is."""
        with self._reloading:
            read = self._load()
            found = replace(self._now, archival=replace(read.archival, layout=self._started.archival.layout), topics=read.topics)
            changed = _different(_live(self._now), _live(found))
            fixed = _different(_fixed(self._started), _fixed(read))
            self._now = found
        if changed:
            self.changed()
        return Reloaded(changed, fixed)


def _live(config: Config) -> Mapping[str, str]:
    return {key: value for key, value, _ in shown(config) if _is_live(key)}


def _fixed(config: Config) -> Mapping[str, str]:
    return {key: value for key, value, _ in shown(config) if not _is_live(key)}


def _is_live(key: str) -> bool:
    """Under [archival], or of a topic and not about reading."""
    is_of_topic = key.startswith("topics.") and not key.endswith(".read_priority")
    return (key.startswith("archival.") or is_of_topic) and not key.endswith(_FIXED)


def _different(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)))
