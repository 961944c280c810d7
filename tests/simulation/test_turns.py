"""Several partitions under the real scheduler, turn by turn: fair whatever goes wrong with some of them (I26), and nothing is kept of
those that are gone."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, BinaryIO
from unittest.mock import patch

import pytest

from archival.fleet import ArchiverFleet, PartitionOutcome
from archival.members import Members
from archival.schedule.due_queue import PAUSE_MAX_S, DueQueue
from archival.schedule.store_breaker import PROBE_MAX_S
from headwater_core.errors import CorruptData, DiskFull, Unauthorised, UnknownOutcome
from headwater_core.objectstore.store import PLAIN, ObjectForm
from headwater_core.partition import TopicPartition
from tests.headwater.broker import Bench, Broker
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.simulation.bucket import Violation
from tests.simulation.world import quiet

SEEDS = 15
_ACTIONS = 25
_ILLS: tuple[Callable[[str], Exception], ...] = (
    Unauthorised,
    DiskFull,
    UnknownOutcome,
    ZeroDivisionError,  # of a class that no code knows
    OSError,
    lambda text: CorruptData("somewhere", 0, text),
)
WITNESSES = (
    "damaged",
    "gone",
    "created again",
    "ill",
    *(f"ill: {name}" for name in ("Unauthorised", "DiskFull", "HeadwaterError", "CorruptData")),
)


class IllStore(MemoryStore):
    """Everything that concerns some partitions fails."""

    def __init__(self) -> None:
        super().__init__()
        self.ills: dict[str, Callable[[str], Exception]] = {}  # by a part of the key

    def _strike(self, key: str) -> None:
        for part, ill in self.ills.items():
            if part in key:
                raise ill(f"of {key}")

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        self._strike(key)
        return super().put(key, data, size_bytes=size_bytes, form=form)

    def create(self, key: str, document: bytes) -> str:
        self._strike(key)
        return super().create(key, document)

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        self._strike(key)
        return super().replace(key, document, expected_tag=expected_tag)


class Town:
    """A broker's partitions, what is wrong with which, and an agent that takes turns."""

    def __init__(self, seed: int, root: Path, seen: Counter[str]) -> None:
        self.random, self.store, self.seen = Random(seed), IllStore(), seen
        self.bench = Bench(root, self.store)
        self.broker: Broker = self.bench.broker
        self.here = [TopicPartition(f"topic-{name}", 0) for name in range(self.random.randrange(3, 7))]
        self.damaged: dict[TopicPartition, tuple[Path, bytes]] = {}
        self.incarnations: Counter[TopicPartition] = Counter()
        self.stepped: list[TopicPartition] = []
        for place in self.here:
            self.broker.partition(place.topic, 0, segments=self.random.randrange(2, 5))
        real = self.bench.fleet.step

        def step(place: TopicPartition, *args: Any, **how: Any) -> PartitionOutcome:
            self.stepped.append(place)
            outcome = real(place, *args, **how)
            if outcome.error:
                seen[f"ill: {type(outcome.error).__name__}"] += 1
            return outcome

        self.bench.fleet.step = step  # type: ignore[method-assign]

    def live(self) -> None:
        for _ in range(_ACTIONS):
            self.random.choices(
                (self._roll, self._fall_ill, self._recover, self._damage, self._delete, self._wait), (6, 1, 1, 0.5, 0.5, 1)
            )[0]()
            self._take_turns()
        self._rest()

    def _healthy(self) -> list[TopicPartition]:
        return [place for place in self.here if f"/{place.topic}/" not in self.store.ills and place not in self.damaged]

    def _roll(self) -> None:
        """Several at once, one of them again and again while it is archived."""
        for place in self.random.sample(self.here, self.random.randrange(1, len(self.here) + 1)):
            self.broker.roll(place.topic, 0, self.random.randrange(1, 4))
            self.bench.scheduler.add([place])

    def _fall_ill(self) -> None:
        self.store.ills[f"/{self.random.choice(self.here).topic}/"] = self.random.choice(_ILLS)
        self.seen["ill"] += 1

    def _recover(self) -> None:
        self.store.ills.clear()
        for path, content in self.damaged.values():
            path.write_bytes(content)
        self.damaged.clear()

    def _damage(self) -> None:
        place = self.random.choice(self.here)
        if place not in self.damaged:
            path = self.broker.segments(place.topic, 0)[-2]
            content = path.read_bytes()
            self.damaged[place] = path, content
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            self.seen["damaged"] += 1

    def _delete(self) -> None:
        """A topic goes, and sometimes comes again as another one."""
        place = self.random.choice(self.here)
        shutil.rmtree(self.broker.directory(place.topic, 0))
        self.damaged.pop(place, None)
        if self.random.random() < 0.5 or len(self.here) == 1:
            self.incarnations[place] += 1
            self.broker.partition(place.topic, 0, segments=2, incarnation=self.incarnations[place])
            self.seen["created again"] += 1
        else:
            self.here.remove(place)
            self.seen["gone"] += 1

    def _wait(self) -> None:
        self.bench.clock.advance(self.random.choice((1_000, 30_000)))
        self.bench.scheduler.rescan()

    def _take_turns(self) -> None:
        """A healthy partition that was just added has a step within as many turns as there are partitions in the queue."""
        due = self.random.sample(self._healthy(), min(len(self._healthy()), 2))
        queued = len(self.bench.scheduler)
        was_ill = {place for place in due if place in self.bench.fleet.troubles or self._is_postponed(place)}
        self.bench.scheduler.add(due)
        self.stepped.clear()
        for _ in range(queued + len(due)):
            if not self.bench.scheduler.turn():
                self.bench.clock.advance(int(PROBE_MAX_S * 1000))  # when so many are ill that the store seems to be
        if starved := set(due) - set(self.stepped) - was_ill:
            raise Violation(f"I26 {starved} had no step in {len(self.stepped)} turns: {Counter(self.stepped)}")

    def _is_postponed(self, place: TopicPartition) -> bool:
        return place in self.bench.scheduler._queue._postponed

    def _rest(self) -> None:
        self._recover()
        for _ in range(3):
            self.bench.clock.advance(int(PAUSE_MAX_S * 1000) + 600_000)
            self.bench.scheduler.rescan()
            self.bench.turns()
        for place in self.here:
            head = self.bench.head(place.topic, 0, self.incarnations[place])
            committed = 10 * (len(self.broker.segments(place.topic, 0)) - 1)
            if head is None or head.next_offset < committed:
                raise Violation(f"I26 {place} is archived up to {head and head.last_offset} of {committed}")
        archiving = self.bench.fleet
        kept = {partition.topic_partition for partition in archiving._members.known()} | set(archiving.troubles)
        if kept != set(self.here):
            raise Violation(f"I15 the agent knows of {sorted(map(str, kept))}, there are {sorted(map(str, self.here))}")


def _violation(seed: int, root: Path, seen: Counter[str]) -> str:
    with quiet():
        town = Town(seed, root, seen)
        try:
            town.live()
        except Exception as violation:  # an exception that leaves the loop would have stopped all of them
            return f"seed {seed}: {violation!r}"
    return ""


def test_no_partition_waits_for_another_ones_trouble(tmp_path: Path) -> None:
    seen = Counter[str]()
    for seed in range(SEEDS):
        (tmp_path / str(seed)).mkdir()
        assert not _violation(seed, tmp_path / str(seed), seen)
    assert all(seen[witness] for witness in WITNESSES), seen


@contextmanager
def _starving() -> Iterator[None]:
    """A partition that has had a step is the next again."""

    def again(self: DueQueue, place: TopicPartition, *had: Any) -> None:
        real(self, place, *had)
        self._in_turn.push(-1, self._due[place], place)

    real = DueQueue.again
    with patch.object(DueQueue, "again", again):
        yield


@contextmanager
def _escaping() -> Iterator[None]:
    """An exception of an unknown class ends the loop."""

    def trouble(self: ArchiverFleet, place: TopicPartition, error: Exception) -> Any:
        if isinstance(error, ZeroDivisionError):
            raise error
        return real(self, place, error)

    real = ArchiverFleet.trouble
    with patch.object(ArchiverFleet, "trouble", trouble):
        yield


@contextmanager
def _forgetful_of_nothing() -> Iterator[None]:
    """What is gone is kept."""
    with patch.object(ArchiverFleet, "retain", lambda *_: None), patch.object(Members, "forget", lambda *_: None):
        yield


@pytest.mark.parametrize("mistake", [_starving, _escaping, _forgetful_of_nothing])
def test_a_planted_mistake_of_the_loop_is_caught(mistake: Callable[[], Any], tmp_path: Path) -> None:
    def caught(seed: int) -> bool:
        (tmp_path / str(seed)).mkdir()
        return bool(_violation(seed, tmp_path / str(seed), Counter()))

    with mistake():
        assert any(caught(seed) for seed in range(SEEDS))
