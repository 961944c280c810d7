"""The configuration of a running agent, which may be read again: what concerns archiving and the read priority is taken up, the rest is
for the next start. What is set by command comes to it from the bucket."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from archival.config import ArchivalConfig
from headwater.config import Config, shown
from headwater.gateway.config import Earliest
from hydration.config import ReadPriority
from manifests.setting_list import SettingList

_FIXED = ("layout", "chunk_variant", "chunk_bytes", "chunks_in_flight")  # of everything and of a topic: archivers are made with them


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
        self._started, self._load = started, load or (lambda: started)
        self._now, self._priorities, self._earliest = started, dict[str, ReadPriority](), dict[str, Earliest]()
        self._changing = threading.Lock()
        self.is_asked = False  # has anybody wanted a read priority since this was last set to False?
        self.changed: Callable[[], object] = lambda: None  # called after settings have changed
        self.check: Callable[[Config, Config], object] = lambda before, after: None  # raises UsageError for what must not be taken up

    @property
    def now(self) -> Config:
        """As it is in effect."""
        return self._now

    def archival(self) -> ArchivalConfig:
        return self._now.archival

    def archival_for(self, topic: str) -> ArchivalConfig:
        return _with_fixed(self._now.archival_for(topic), self._started.archival_for(topic))

    def read_priority_for(self, topic: str) -> ReadPriority:
        """Asked for before each read, so it is remembered, until settings change."""
        self.is_asked = True
        known = self._priorities  # before the settings: they are replaced after it
        found = known.get(topic)
        if found is None:
            found = known[topic] = self._now.hydration_for(topic).read_priority
        return found

    def earliest_for(self, topic: str) -> Earliest:
        """Likewise. topic: one that there is"""
        known = self._earliest
        found = known.get(topic)
        if found is None:
            found = known[topic] = self._now.gateway_for(topic).earliest
        return found

    def take_commands(self, settings: SettingList) -> bool:
        """From now on these hold, and no others that were set by command. Do any settings differ?"""
        with self._changing:
            found = self._now.with_commands(settings)
            if found.commanded == self._now.commanded:
                return False
            self._replace(found)
        self.changed()
        return True

    def _replace(self, found: Config) -> None:
        self._now = found
        self._priorities, self._earliest = {}, {}

    def reload(self) -> Reloaded:
        """Read the configuration again. Raises UsageError for one that is not valid; then everything stays as it is."""
        with self._changing:
            read = self._load()
            found = replace(
                self._now,
                archival=_with_fixed(read.archival, self._started.archival),
                hydration=replace(self._started.hydration, read_priority=read.hydration.read_priority),
                topics=read.topics,
            )
            changed = _different(_live(self._now), _live(found))
            self.check(self._now, found)
            fixed = _different(_fixed(self._started), _fixed(read))
            self._replace(found)
        if changed:
            self.changed()
        return Reloaded(changed, fixed)


def _with_fixed(read: ArchivalConfig, started: ArchivalConfig) -> ArchivalConfig:
    return replace(read, **{name: getattr(started, name) for name in _FIXED})


def _live(config: Config) -> Mapping[str, str]:
    return {key: value for key, value, _ in shown(config) if _is_live(key)}


def _fixed(config: Config) -> Mapping[str, str]:
    return {key: value for key, value, _ in shown(config) if not _is_live(key)}


def _is_live(key: str) -> bool:
    """Of a topic, under [archival], or the read priority."""
    return (key.startswith(("archival.", "topics.")) or key == "hydration.read_priority") and key.rpartition(".")[2] not in _FIXED


def _different(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)))
