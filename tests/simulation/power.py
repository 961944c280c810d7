"""One seed: an agent archives and releases an owned log to a directory whose disk fails to sync now and then, and loses power.

The log lies on another disk, on which a deletion is final at once: the worst place for what was released too early. The agent dies
with the power at any named step and any sync, and starts again with nothing but its name and what is on disk. It is killed alone
only above a journal: what it named then and had no time to sync, the sync at its next start makes last (objectstore.directory).
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from unittest.mock import patch

from headwater_core import milestones
from headwater_core.errors import HeadwaterError, NotFound, TransientError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.probe import probe_store
from manifests import keys
from manifests.head import Head, check_head, decode_head
from tests.archival.builders import PARTITION, Agent, Directory, batches_of
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.objectstore.volatile_disk import VolatileDisk
from tests.headwater_core.segments.builders import a_batch
from tests.simulation.actors import Crash
from tests.simulation.bucket import Violation
from tests.simulation.world import SimulationResult, in_memory, quiet

_ACTIONS = 30
_STEPS_TO_REST = 60
_FUSE_MAX = 40  # steps and syncs from the beginning of an action to its end
_BATCHES_OF_A_SEGMENT = 4


def run_seed(seed: int) -> SimulationResult:
    """Run one seed to its end, or to the first violation."""
    result = SimulationResult(seed)
    with quiet(), tempfile.TemporaryDirectory(prefix="headwater-", dir=in_memory()) as root:
        try:
            Machine(result, Path(root)).run()
        except Violation as violation:
            result.violation = str(violation)
    return result


class Machine:
    """Its log, its archive's disk, and the agent in between."""

    def __init__(self, result: SimulationResult, root: Path) -> None:
        self.result, self.root = result, root
        self.random = random = Random(result.seed)
        self.log = Directory(root / "logs")
        self.written: list[bytes] = []  # batches of one record, by offset
        self.bases: list[int] = []  # of the segments that were ever begun
        self.starts = self.losses = 0
        self.control = LocalControl()
        self.confirmed: Head | None = None  # the newest head that the agent counts on
        self.journaled = random.random() < 0.5
        self.fuse, self.power_fails, self.dark = 0, False, False
        self.sync_fails = random.choice((0.0, 0.05, 0.3))
        self.failing = False
        (root / "disk-0").mkdir()
        self.disk = self._insert(root / "disk-0")

    def _insert(self, path: Path) -> VolatileDisk:
        disk = VolatileDisk(path, journaled=self.journaled)
        disk.fails = self._sync_fails
        return disk

    # What happens

    def run(self) -> None:
        with patch.object(milestones, "reached", self._burn):
            self.grow()
            while len(self.result.trace) < _ACTIONS:
                self._live_until_the_end()
            self._come_to_rest()

    def _live_until_the_end(self) -> None:
        """One life of the agent."""
        try:
            with self.disk.watching():
                agent = self._start()
                while len(self.result.trace) < _ACTIONS:
                    self._act(agent)
        except Crash:
            self.dark = False
            self.note("the power fails" if self.power_fails else "the agent is killed")
            if self.power_fails:
                self.lose_power()

    def _act(self, agent: Agent) -> None:
        random = self.random
        if random.random() < 0.1:
            self.failing = not self.failing
        if random.random() < 0.2:
            self.fuse, self.power_fails = random.randrange(1, _FUSE_MAX), not self.journaled or random.random() < 0.6
        choices: list[tuple[int, Callable[[], str]]] = [(2, self.grow), (3, lambda: self.archive(agent)), (1, lambda: self.release(agent))]
        action = random.choices([action for _, action in choices], [weight for weight, _ in choices])[0]
        try:
            self.note(action())
        except TransientError as error:
            self.result.seen[f"error {type(error).__name__}"] += 1
            self.note(f"{type(error).__name__}: {error}")
        except HeadwaterError as error:
            raise Violation(f"I15 the agent stops: {type(error).__name__}: {error}") from error

    def _start(self) -> Agent:
        """As an agent starts: it tries what the store refuses before it writes anything."""
        self.starts += 1
        store = DirectoryStore(self.disk.root / "mnt" / "bucket")
        while True:
            try:
                probe_store(store)
                break
            except TransientError as error:
                self.result.seen["the agent cannot start"] += 1
                self.note(f"the agent cannot start: {error}")
                self.failing = self.random.random() < 0.5
        agent = Agent(self.log.root, store=store, control=self.control, runs_max=3 if self.result.seed % 2 else 1)
        agent.uids = self.starts << 32
        return agent

    def grow(self) -> str:
        """The broker writes, and begins a segment now and then."""
        for _ in range(self.random.randrange(1, 2 * _BATCHES_OF_A_SEGMENT)):
            offset = len(self.written)
            if not self.bases or self.random.random() < 1 / _BATCHES_OF_A_SEGMENT:
                self.bases.append(offset)
                self.log.segment(offset)
            self.written.append(a_batch(offset))
            self.log.append(self.bases[-1], self.written[-1])
        self.log.high_watermark(len(self.written))
        return f"written up to {len(self.written)}"

    def archive(self, agent: Agent) -> str:
        outcome = agent.step()
        self.confirmed = agent.archiver.head
        self.result.seen[f"outcome {outcome.action}"] += 1
        return f"{outcome.action} {outcome.reason}"

    def release(self, agent: Agent) -> str:
        released = agent.releaser.release(agent.archiver)
        self.result.seen["segments released"] += bool(released.segments)
        return f"released {len(released.segments)} segments, local start {released.local_start} ({released.reason})"

    def note(self, line: str) -> None:
        self.result.trace.append(line.replace(str(self.root), ""))

    # What goes wrong

    def _burn(self, at: str) -> None:
        """One more step of the agent, or one more sync: perhaps the last."""
        if self.dark:
            raise Crash
        if self.fuse:
            self.fuse -= 1
            if not self.fuse:
                self.result.seen[f"{'power fails' if self.power_fails else 'killed'} at {at}"] += 1
                self.dark = True
                raise Crash

    def _sync_fails(self, path: Path) -> bool:
        kind = "directory" if path.is_dir() else "file"
        self._burn(f"the sync of a {kind}")
        fails = self.failing and self.random.random() < self.sync_fails
        self.result.seen[f"the sync of a {kind} fails"] += fails
        return fails

    def lose_power(self) -> None:
        likely = self.random.choice((0.0, 0.0, 0.5, 1.0))
        self.losses += 1
        self.disk = self._insert(self.disk.after_power_loss(self.root / f"disk-{self.losses}", lambda: self.random.random() < likely))
        self.check()

    # What is checked of the disk after a power loss

    def check(self) -> None:
        bucket = self.disk.root / "mnt" / "bucket"
        try:
            head = decode_head((bucket / keys.head(PARTITION)).read_bytes(), PARTITION)
        except FileNotFoundError:
            head = None
        if known := self.confirmed:
            if head is None or head.version < known.version:
                raise Violation(f"I7 version {known.version} was committed, the disk has {head.version if head else 'none'}")
            if head.version == known.version and head.commit_id != known.commit_id:
                raise Violation(f"I7 version {known.version} is another commit than the one that was confirmed")
            if head.version > known.version:
                self.result.seen["a commit that was never confirmed is on disk"] += 1
        archived = self._archived(head, DirectoryStore(bucket)) if head else {}
        for offset in range(self.local_start):
            if offset not in archived:
                raise Violation(f"I1 offset {offset} was released and is not on disk")
        if self.local_start:
            self.result.seen["power fails after a release"] += 1

    def _archived(self, head: Head, store: DirectoryStore) -> dict[int, bytes]:
        """The live batches by offset: of what a head names all is there, whole, and as it was written."""
        check_head(head)
        found: dict[int, bytes] = {}
        for entry in head.entries:
            try:
                data, index = store.stat(entry.key), store.stat(entry.index_key)
            except NotFound as error:
                raise Violation(f"I2 the head on disk names {error}, which is not") from None
            if (data.digest, index.digest) != (entry.digest, entry.index_digest):
                raise Violation(f"I2 {entry.key} on disk is not as the head has it")
            found |= dict(enumerate(batches_of(store, entry), entry.base_offset))
        if wrong := [offset for offset, batch in found.items() if batch != self.written[offset]]:
            raise Violation(f"I5 offsets {wrong} are not archived as they were written")
        return found

    @property
    def local_start(self) -> int:
        return min(int(path.stem) for path in self.log.path.glob("*.log"))

    def _come_to_rest(self) -> None:
        """No more faults: the agent finishes its work, and it lasts."""
        self.failing, self.fuse, self.dark = False, 0, False
        if not self.journaled:
            self.lose_power()
        with self.disk.watching():
            agent = self._start()
            for _ in range(_STEPS_TO_REST):
                self.note(outcome := self.archive(agent))
                if outcome.startswith("idle"):
                    break
            self.note(self.release(agent))
        if agent.head.next_offset != len(self.written):
            raise Violation(f"I15 the agent comes to rest at {agent.head.next_offset}, the log ends at {len(self.written)}")
        if self.local_start != self.bases[-1]:
            raise Violation(f"I15 the log still begins at {self.local_start}, its active segment at {self.bases[-1]}")
        self.lose_power()
