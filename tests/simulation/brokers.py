"""Two brokers with one partition between them, as far as an agent beside them can tell: real files, written by nobody's rules but these.

A record is (offset, leader epoch): one leader per epoch. What a broker has lost from disk stays with it as a ghost, so that
checks can say what an offset held.
"""

import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from model.epochs import EpochHistory
from model.partition import PartitionId, topic_id_text
from segments.log import Leadership
from tests.segments.builders import Producer, a_batch, a_marker

CLUSTER = "simulated-cluster"
TOPIC = "orders"


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as some broker once held it. Compaction makes another version of it: same range and epoch, fewer records."""

    base: int
    last: int
    epoch: int
    data: bytes


@dataclass(slots=True)
class Segment:
    base: int
    path: Path
    batches: list[Batch]


@dataclass(slots=True)
class Replica:
    """One broker's copy. `checkpoint` and `start_checkpoint` are its high watermark and log start on disk, `lead` the epoch in
    which it believes it leads.

    policy  everything below was removed by the broker's own retention, not by us
    full    are all replicas in sync, as this broker last saw it while leading
    """

    node: int
    directory: Path
    segments: list[Segment] = field(default_factory=list)
    ghost: list[Batch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    hw: int = 0
    checkpoint: int = 0
    start_checkpoint: int = 0
    lead: int | None = None
    full: bool = False
    policy: int = 0
    history: list[tuple[int, int]] = field(default_factory=list)
    cleaned_to: int | None = None
    cleaning: "Cleaning | None" = None

    def batches(self) -> list[Batch]:
        """All on disk."""
        return [batch for segment in self.segments for batch in segment.batches]

    def epochs(self) -> EpochHistory:
        """As the leader epoch checkpoint says it: cut at the log start."""
        below = [epoch for epoch, first in self.history if first <= self.start]
        above = [step for step in self.history if step[1] > self.start]
        return EpochHistory.of([*([(below[-1], self.start)] if below else []), *above])

    def epoch_at(self, offset: int) -> int | None:
        return next((epoch for epoch, first in reversed(self.history) if first <= offset), None)


@dataclass(slots=True)
class Cleaning:
    """A compaction in the middle of its renames."""

    stage: int
    merged: Segment
    replaced: list[Segment]


class Brokers:
    """What the brokers do by themselves. Each action returns what it did, for the trace; None when it could not."""

    def __init__(self, root: Path, random: Random, *, compacted: bool) -> None:
        self.root, self.random, self.compacted = root, random, compacted
        self.incarnation = 0
        self.removed_to = 0  # no broker of this incarnation has removed anything at or above by itself
        self.known: dict[str, dict[tuple[int, int], set[bytes]]] = {}  # by topic id: versions of each (base, epoch)
        self.dropped: dict[str, set[tuple[int, int]]] = {}  # by topic id: batches some cleaner has removed
        self.lineage: dict[tuple[str, int], set[int]] = {}  # by topic id and epoch: in which epochs the log was written that led it
        self._ticks = 0
        self._opened: dict[int, int] = {}
        self._create()

    @property
    def partition(self) -> PartitionId:
        return PartitionId(CLUSTER, topic_id_text(self.incarnation.to_bytes(16, "big")), 0, TOPIC)

    @property
    def leader(self) -> Replica:
        return self.replicas[self.leading]

    @property
    def follower(self) -> Replica:
        return self.replicas[1 - self.leading]

    def leadership(self, replica: Replica) -> Leadership:
        other = 3 - replica.node
        in_sync = (1, 2) if replica.full or replica.lead is None else (replica.node,)
        return Leadership(
            leader=other if replica.lead is None else replica.node,
            leader_epoch=self.epoch if replica.lead is None else replica.lead,
            node=replica.node,
            replicas=(1, 2),
            in_sync=in_sync,
        )

    def _create(self) -> None:
        self.incarnation += 1
        self.known[self.partition.topic_id] = {}
        self.dropped[self.partition.topic_id] = set()
        self.epoch, self.leading, self.removed_to = 1, 0, 0
        self.replicas = []
        for node in (1, 2):
            directory = self.root / f"broker-{node}" / f"{TOPIC}-0"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            replica = Replica(node=node, directory=directory)
            replica.segments = [self._new_segment(replica, 0)]
            self.replicas.append(replica)
        self._lead()
        self.leader.full = True

    def _lead(self) -> None:
        """The current leader begins the current epoch, alone in the in-sync set."""
        leader = self.leader
        leader.lead, leader.full, leader.hw = self.epoch, False, leader.end
        leader.history.append((self.epoch, leader.end))
        written = {leader.epoch_at(offset) for offset in range(leader.end)} | {self.epoch}
        self.lineage[self.partition.topic_id, self.epoch] = {epoch for epoch in written if epoch is not None}
        self._opened = {}

    # What leaders and followers do

    def write(self) -> str | None:
        leader = self.leader
        base = leader.end
        batches = [self._batch(base)]
        for _ in range(self.random.randrange(3)):
            batches.append(self._batch(batches[-1].last + 1))
        if self.random.random() < 0.15:
            self.roll(leader)
        self._append(leader, batches)
        if not leader.full:
            leader.hw = leader.end
        self._keep_checkpoint(leader)
        return f"broker {leader.node} writes {base}..{leader.end - 1} in epoch {self.epoch}, hw {leader.hw}"

    def _batch(self, base: int) -> Batch:
        value = f"{self.partition.topic_id[:6]}/{self.epoch}/{base}"
        if not self.compacted and self.random.random() < 0.35:
            producer = self.random.randrange(2)
            if producer in self._opened and self.random.random() < 0.6:
                del self._opened[producer]
                data = a_marker(base, Producer(id=producer), aborts=self.random.random() < 0.5, epoch=self.epoch)
                return self._learn(Batch(base, base, self.epoch, data))
            self._opened[producer] = base
            data = a_batch(base, [value.encode()], epoch=self.epoch, producer=Producer(id=producer), transactional=True)
            return self._learn(Batch(base, base, self.epoch, data))
        count = self.random.randrange(1, 4)
        data = a_batch(base, [f"{value}+{n}".encode() for n in range(count)], epoch=self.epoch)
        return self._learn(Batch(base, base + count - 1, self.epoch, data))

    def _learn(self, batch: Batch) -> Batch:
        self.known[self.partition.topic_id].setdefault((batch.base, batch.epoch), set()).add(batch.data)
        return batch

    def roll(self, replica: Replica) -> str | None:
        if not replica.segments[-1].batches:
            return None
        replica.segments.append(self._new_segment(replica, replica.end))
        return f"broker {replica.node} rolls at {replica.end}"

    def follow(self) -> str | None:
        """The follower truncates to where the two logs part, fetches the rest, and is in sync again."""
        leader, follower = self.leader, self.follower
        common = _common(leader, follower)
        if (follower.lead, follower.end, common, leader.full, leader.hw, follower.start) == (
            None,
            leader.end,
            leader.end,
            True,
            leader.end,
            max(leader.start, follower.start),
        ):
            return None
        self.finish_cleaning(follower)
        truncated = common < follower.end
        self._truncate(follower, common)
        follower.lead, follower.full = None, False
        follower.history = list(leader.history)
        start = max(leader.start, min(follower.start, common))
        follower.policy = max(leader.policy, min(follower.policy, common))
        missing = [batch for batch in leader.batches() if batch.base >= common]
        if common < leader.start:  # nothing in common is left on the leader: begin anew where its log begins
            missing = [batch for batch in missing if batch.last >= leader.start]
            self._drop_all(follower, missing[0].base if missing else leader.end)
        for at, batch in enumerate(missing):
            if at and self.random.random() < 0.1:
                follower.end = batch.base
                self.roll(follower)
            self._append(follower, [batch])
        follower.end = leader.end
        self._move_start(follower, start)
        first = follower.segments[0].base
        follower.ghost = [batch for batch in [*leader.ghost, *leader.batches()] if batch.last < first]
        leader.hw = follower.hw = leader.end
        leader.full = True
        self._keep_checkpoint(leader)
        self._keep_checkpoint(follower)
        return f"broker {follower.node} {'truncates to ' + str(common) + ' and ' if truncated else ''}follows to {leader.end}"

    def fall_behind(self) -> str | None:
        leader = self.leader
        if not leader.full:
            return None
        leader.hw, leader.full = leader.end, False
        self._keep_checkpoint(leader)
        return f"broker {self.follower.node} drops out of the in-sync set"

    def elect(self, *, unclean: bool) -> str | None:
        """The follower takes over. The old leader notices only when it follows."""
        if unclean == self.leader.full:
            return None
        self.finish_cleaning(self.follower)
        self.epoch += 1
        self.leading = 1 - self.leading
        self._lead()
        return f"broker {self.leader.node} is elected{' UNCLEAN' if unclean else ''}, epoch {self.epoch} at {self.leader.end}"

    def replace_disk(self) -> str | None:
        """A broker comes back with an empty disk. When no other was in sync, it leads on from offset 0, in the next epoch."""
        replica = self.random.choice(self.replicas)
        if replica is self.leader and self.leader.full:
            return None  # the other one is elected first
        self.fall_behind()
        for path in replica.directory.iterdir():
            path.unlink()
        replica.segments, replica.ghost, replica.history, replica.cleaning = [self._new_segment(replica, 0)], [], [], None
        replica.start = replica.end = replica.hw = replica.checkpoint = replica.start_checkpoint = replica.policy = 0
        replica.lead = replica.cleaned_to = None
        if replica is self.leader:
            self.epoch += 1
            self._lead()
        return f"broker {replica.node} comes back with an EMPTY DISK{'' if replica.lead is None else f', leading epoch {self.epoch}'}"

    def write_checkpoint(self) -> str | None:
        for replica in self.replicas:
            replica.checkpoint, replica.start_checkpoint = replica.hw, replica.start
        return "high watermarks are checkpointed"

    def _keep_checkpoint(self, replica: Replica) -> None:
        if self.random.random() < 0.6:
            replica.checkpoint = replica.hw
        if self.random.random() < 0.3:
            replica.start_checkpoint = replica.start

    # Deletion by the brokers themselves

    def retain(self) -> str | None:
        """Retention drops the leader's oldest sealed segment, or DeleteRecords moves its log start into one."""
        leader = self.leader
        self.finish_cleaning(leader)
        if self.random.random() < 0.5:
            if len(leader.segments) < 2 or leader.segments[1].base > leader.hw:
                return None
            start = leader.segments[1].base
        else:
            if leader.start >= leader.hw:
                return None
            start = self.random.randrange(leader.start + 1, leader.hw + 1)
        start = max(start, leader.start)
        self._move_start(leader, start)
        self._keep_checkpoint(leader)
        leader.policy = max(leader.policy, start)
        self.removed_to = max(self.removed_to, start)
        return f"broker {leader.node} removes everything below {start}"

    def notice_release(self, replica: Replica) -> str | None:
        """Headwater has deleted files: the log starts later now."""
        replaced = replica.cleaning.replaced if replica.cleaning else ()
        gone = [segment for segment in replica.segments if segment not in replaced and not segment.path.exists()]
        if not gone:
            return None
        for segment in gone:
            replica.ghost += segment.batches
        replica.segments = [segment for segment in replica.segments if segment not in gone]
        if not replica.segments:  # it was sealed when its release was decided; a truncation has made it the last one since
            replica.segments = [self._new_segment(replica, replica.end)]
        replica.start = max(replica.start, replica.segments[0].base)
        return f"broker {replica.node} starts at {replica.start}: {len(gone)} segments were released"

    def _move_start(self, replica: Replica, start: int) -> None:
        replica.start = max(replica.start, start)
        while len(replica.segments) > 1 and replica.segments[1].base <= replica.start:
            segment = replica.segments.pop(0)
            replica.ghost += segment.batches
            segment.path.unlink()

    # Compaction

    def clean(self, replica: Replica) -> str | None:
        """One more step of a compaction: write, rename to .swap, remove the old, rename to .log."""
        if replica.cleaning is None:
            return self._begin_cleaning(replica)
        cleaning = replica.cleaning
        final = cleaning.merged.path
        match cleaning.stage:
            case 0:
                os.rename(_named(final, ".cleaned"), _named(final, ".swap"))
            case 1:
                for segment in reversed(cleaning.replaced):
                    segment.path.unlink(missing_ok=True)
            case _:
                os.rename(_named(final, ".swap"), final)
                at = replica.segments.index(cleaning.replaced[0])
                dropped = {(batch.base, batch.epoch) for segment in cleaning.replaced for batch in segment.batches}
                dropped -= {(batch.base, batch.epoch) for batch in cleaning.merged.batches}
                self.dropped[self.partition.topic_id] |= dropped
                replica.segments[at : at + len(cleaning.replaced)] = [cleaning.merged]
                replica.cleaned_to = max(replica.cleaned_to or 0, cleaning.merged.batches[-1].last + 1)
                replica.cleaning = None
                return f"broker {replica.node} has compacted from {cleaning.merged.base} on, dropping {sorted(dropped)}"
        cleaning.stage += 1
        return f"broker {replica.node} compacts on, stage {cleaning.stage}"

    def _begin_cleaning(self, replica: Replica) -> str | None:
        sealed = [segment for segment in replica.segments[:-1] if segment.batches and segment.batches[-1].last < replica.hw]
        if not sealed:
            return None
        first = self.random.randrange(len(sealed))
        chosen = sealed[first : first + self.random.randrange(1, 4)]
        kept = []
        for batch in (batch for segment in chosen for batch in segment.batches):
            fate = self.random.random()
            if fate < 0.5:
                kept.append(batch)
            elif fate < 0.75:
                smaller = a_batch(batch.base, [], epoch=batch.epoch, last_offset=batch.last, producer=Producer(id=7))
                kept.append(self._learn(replace(batch, data=smaller)))
        if not kept:
            kept = [chosen[-1].batches[-1]]
        merged = Segment(chosen[0].base, chosen[0].path, kept)
        self._fill(_named(merged.path, ".cleaned"), kept)
        replica.cleaning = Cleaning(0, merged, chosen)
        return f"broker {replica.node} compacts segments {[segment.base for segment in chosen]}"

    def finish_cleaning(self, replica: Replica) -> None:
        while replica.cleaning:
            self.clean(replica)

    # The topic

    def recreate(self) -> str | None:
        for replica in self.replicas:
            replica.cleaning = None
        self._create()
        return f"the topic is deleted and created again as {self.partition.topic_id}"

    # Files

    def _new_segment(self, replica: Replica, base: int) -> Segment:
        segment = Segment(base, replica.directory / f"{base:020}.log", [])
        self._fill(segment.path, [])
        return segment

    def _append(self, replica: Replica, batches: list[Batch]) -> None:
        segment = replica.segments[-1]
        with segment.path.open("ab") as file:
            file.write(b"".join(batch.data for batch in batches))
        segment.batches += batches
        replica.end = batches[-1].last + 1
        self._touch(segment.path)

    def _truncate(self, replica: Replica, offset: int) -> None:
        """Remove every batch that ends at or beyond `offset`."""
        while len(replica.segments) > 1 and replica.segments[-1].base >= offset:
            replica.segments.pop().path.unlink()
        segment = replica.segments[-1]
        if segment.base > offset:
            self._drop_all(replica, offset)
            segment = replica.segments[-1]
        kept = [batch for batch in segment.batches if batch.last < offset]
        if len(kept) < len(segment.batches):
            os.truncate(segment.path, sum(len(batch.data) for batch in kept))
            self._touch(segment.path)
            segment.batches = kept
        replica.end = min(replica.end, offset)
        replica.start, replica.hw = min(replica.start, offset), min(replica.hw, offset)

    def _drop_all(self, replica: Replica, base: int) -> None:
        for segment in replica.segments:
            segment.path.unlink()
        replica.segments = [self._new_segment(replica, base)]
        replica.end = base

    def _fill(self, path: Path, batches: list[Batch]) -> None:
        path.write_bytes(b"".join(batch.data for batch in batches))
        self._touch(path)

    def _touch(self, path: Path) -> None:
        """The file system's clock is too coarse to tell two changes apart, and no two runs alike; this one is neither."""
        self._ticks += 1
        os.utime(path, ns=(self._ticks * 10**6, self._ticks * 10**6))


def _named(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _common(leader: Replica, follower: Replica) -> int:
    """Where the two logs part: the first offset that they wrote in different epochs."""
    end = min(leader.end, follower.end)
    return next((offset for offset in range(end) if leader.epoch_at(offset) != follower.epoch_at(offset)), end)
