"""An operator restores older heads while an archiver commits and readers look: seed by seed, with pages, late reports and restarts.

After every look that nothing overtakes, a reader serves what the bucket's head lists, and nothing of a line that was lost.
"""

import random
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hydration.archive.manifest_view import EntryIndex, Extent, HeldEntries, ManifestView
from hydration.resumption import Resumable
from manifests.entry import Entry
from manifests.head import Head
from manifests.index import ManifestIndex
from manifests.repository import Versioned
from tests.headwater_core.manual_clock import ManualClock
from tests.manifests.builders import PARTITION, a_head, an_entry
from tests.manifests.trees import SMALL, Pages

SEEDS = range(60)
STEPS = 40
Plant = Callable[[pytest.MonkeyPatch], None]


class World:
    """One partition's head, who commits it, who restores it, and one reader with an index."""

    def __init__(self, seed: int, stack: ExitStack, index: Path | None) -> None:
        self._random, self._stack, self._path = random.Random(seed), stack, index
        self._pages, self._clock = Pages(SMALL), ManualClock()
        self.head = replace(a_head(version=1, commit_id="0" * 32), entries=self._pages.packed([]))
        self._former = [self.head]
        self._commits = 0
        self._reports: list[Head] = []  # of commits of the reader's own process that it has not heard of yet
        self._in_request: Callable[[], object] = lambda: None
        self._index: EntryIndex | None = None
        self._restart()

    def load(self, _: Any) -> Versioned:
        """What the store answers; something may happen between the answer and its arrival."""
        answer, self._in_request, happening = self.head, lambda: None, self._in_request
        happening()
        return Versioned(answer, "tag", 1)

    def step(self) -> None:
        chosen = self._random.choices([self._commit, self._restore, self._report, self._look, self._restart], [8, 2, 4, 4, 1])[0]
        chosen()

    def _commit(self) -> None:
        self._commits += 1
        base = self.head.next_offset
        entry = an_entry(base, base + self._random.randrange(1, 10), uid=f"{self._commits:032x}")  # another object each time
        self.head = replace(
            self.head,
            version=self.head.version + 1,
            commit_id=f"{self._commits:032x}",
            entries=self._pages.packed(self.head.entries.followed_by(entry)),
            last_offset=entry.last_offset,
        )
        self._former.append(self.head)
        self._reports.append(self.head)

    def _restore(self) -> None:
        self.head = self._random.choice(self._former[-8:])

    def _report(self) -> None:
        if self._reports:
            self._view.update(self._reports.pop(self._random.randrange(len(self._reports))))

    def _look(self) -> None:
        self._in_request = self._random.choice([self._commit, self._restore, self._report, lambda: None])
        self._view.load()

    def _restart(self) -> None:
        self._reports.clear()
        if self._path is not None:
            if isinstance(self._index, ManifestIndex):
                self._index.close()
            self._index = self._stack.enter_context(ManifestIndex(self._path, 16 << 20))
        self._view = ManifestView(PARTITION, self, self._index or HeldEntries(), self._clock, self._run)

    def _run(self, name: str, work: Callable[[], None]) -> "Future[None]":
        done: Future[None] = Future()
        work()
        done.set_result(None)
        return done

    def check(self) -> None:
        """A look that nothing overtakes, and reads at all offsets."""
        self._view.load()
        extent = self._view.extent
        assert extent is not None
        assert (extent.next_offset, extent.version) == (self.head.next_offset, self.head.version)
        for offset in range(0, self.head.next_offset + 12, 3):
            assert _result(self._view.entry_at(offset)) == self.head.entries.at(offset), offset


def _result(reading: Resumable[Entry | None]) -> Entry | None:
    """What it comes to; what it waits for is done at once."""
    try:
        while True:
            next(reading)
    except StopIteration as end:
        found: Entry | None = end.value
        return found


def run(seed: int, index: Path | None) -> None:
    with ExitStack() as stack:
        world = World(seed, stack, index)
        for _ in range(STEPS):
            world.step()
            if not seed % 2 or not _ % 7:
                world.check()
        world.check()


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_readers_follow_a_restored_head_and_what_is_committed_on_it(kind: str, tmp_path: Path) -> None:
    for seed in SEEDS if kind == "memory" else SEEDS[:20]:
        run(seed, tmp_path / str(seed) if kind == "lmdb" else None)


def higher_versions_only(patch: pytest.MonkeyPatch) -> None:
    """A head of a lower version is taken for an answer that a commit has overtaken."""
    real = ManifestView._take

    def take(self: ManifestView, head: Head | None, extent: Extent | None) -> None:
        if extent is None or self.extent is None or extent.version > self.extent.version:
            real(self, head, extent)

    patch.setattr(ManifestView, "_take", take)


def one_head_of_a_version(patch: pytest.MonkeyPatch) -> None:
    """Two commits of one version are taken for the same."""
    real = ManifestView._take

    def take(self: ManifestView, head: Head | None, extent: Extent | None) -> None:
        if extent is None or self.extent is None or extent.version != self.extent.version:
            real(self, head, extent)

    patch.setattr(ManifestView, "_take", take)


def index_knows_versions_alone(patch: pytest.MonkeyPatch) -> None:
    """What the index has of that version is left there."""
    real = ManifestIndex.replace
    patch.setattr(ManifestIndex, "replace", lambda self, head: self.version(PARTITION) != head.version and real(self, head))


def overtaken_answers_are_taken(patch: pytest.MonkeyPatch) -> None:
    """The reader keeps the pages of the head before with the extent of the next."""

    def take(self: ManifestView, head: Head | None, extent: Extent | None) -> None:
        if head is not None and extent is not None and (self.extent is None or extent.next_offset >= self.extent.next_offset):
            self._index.replace(head)
            self._pages = head.entries.pages
        self.extent, self._recent = extent, None

    patch.setattr(ManifestView, "_take", take)


@pytest.mark.parametrize("plant", [higher_versions_only, one_head_of_a_version, index_knows_versions_alone, overtaken_answers_are_taken])
def test_a_planted_mistake_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        try:
            run(seed, tmp_path / str(seed))
        except AssertionError:
            return
    pytest.fail("no seed catches it")
