"""A bucket that a real archiver filled, to damage: the same content every time."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headwater.pipeline.runner import Threads
from headwater.pipeline.scrub.scrub_state import ScrubState
from headwater.pipeline.scrub.scrubber import Report, Scrubber, ScrubScope
from headwater_core.objectstore.store import ObjectStore
from manifests import keys
from manifests.entry import Entry
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic_survey import survey_topics
from tests.fixtures import unpack
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests import format_1
from tests.recovery.archived import archive

TOPICS = ("thermo-samples", "till.sales", "stock.levels", "compost", "orders.placed")
OLD_MS = 7 * 24 * 3600 * 1000


@dataclass(slots=True)
class Bucket:
    """Its store may be changed at will; the clock stands a week behind what was archived."""

    store: MemoryStore
    clock: ManualClock

    @property
    def heads(self) -> list[Head]:
        repository = ManifestRepository(self.store)
        found = []
        for topic in survey_topics(repository.store).manifests:
            for partition in repository.partitions(topic.topic, topic.topic_id):
                held = repository.load(partition)
                assert held
                found.append(held.head)
        return found

    def entries(self) -> list[tuple[Head, Entry]]:
        return [(head, entry) for head in self.heads for entry in head.entries if not entry.gap]

    def content(self, key: str) -> bytes:
        return self.store.get(key)[0]

    def put(self, key: str, content: bytes | None) -> None:
        """`content` instead of what is there; None: nothing. As old as everything else."""
        self.store.delete(key)
        if content is not None:
            now, self.clock.at_ms = self.clock.at_ms, self.clock.at_ms - OLD_MS
            self.store.create(key, content)
            self.clock.at_ms = now

    def rewrite(self, head: Head, change: Callable[[dict[str, Any]], None] | None = None, **fields: Any) -> None:
        """The head with other fields, valid or not, and the right digest. All that it lists is at hand: its pages go."""
        document = format_1.encode(msgspec.structs.replace(head, **fields))
        for info in [*self.store.list(keys.head(head.partition_id).removesuffix("manifest.json"))]:
            if keys.parse_page(info.key):
                self.store.delete(info.key)
        self.put(keys.head(head.partition_id), document)

    def write_to(self, directory: Path) -> None:
        """As a directory store would keep it"""
        for info in self.store.list(""):
            path = directory / info.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.content(info.key))

    def scrub(self, seen: ScrubState | None = None, **scope: Any) -> Report:
        return Scrubber(self.store, ScrubScope(**scope), self.clock, seen).run(Threads(self.store, 2))


def a_bucket() -> Bucket:
    bucket = Bucket(MemoryStore(clock := ManualClock()), clock)
    clock.at_ms -= OLD_MS
    for key, content in _contents().items():
        bucket.store.create(key, content)
    clock.at_ms += OLD_MS
    return bucket


@functools.cache
def _contents() -> dict[str, bytes]:
    store = MemoryStore()
    repository = archive(unpack("pantry"), store, TOPICS)
    repository.ensure_owner(survey_topics(repository.store).manifests[0].cluster_id)
    return {info.key: store.get(info.key)[0] for info in store.list("")}


class Crash(Exception):
    """The process ends here."""


class Crashing(Threads):
    """Ends the run after some tasks; those that are handed out are done, and nobody hears of it."""

    def __init__(self, store: ObjectStore, after: int) -> None:
        super().__init__(store, 2)
        self._after = after

    def each(self, work: Any, tasks: Any) -> Iterator[Any]:
        for number, result in enumerate(super().each(work, tasks)):
            if number == self._after:
                raise Crash
            yield result
