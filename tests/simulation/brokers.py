"""Two brokers with one partition between them, as far as an agent beside them can see: real files, written by these rules alone.

A record is (offset, leader epoch): one leader per epoch. What a broker has lost from disk stays with it as a ghost, so that
checks know what an offset held.

A compacted topic's records have keys, and a value or none (a tombstone). Its cleaners work as Kafka's: in passes over all sealed
segments, a record goes when a later one of its key is in the pass, a tombstone only in a pass that begins after its delete
horizon. What a consumer of the whole log may see is `table_of` everything that was ever written and still counts.

Of transactions a broker knows what its own log has shown it since that began, and writes that beside its segments.
"""

import os
import shutil
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from headwater_core.clock import Clock
from headwater_core.epochs import EpochHistory
from headwater_core.partition import PartitionId, topic_id_text
from headwater_core.segments.batches import read_batch_header
from headwater_core.segments.checkpoints import RECOVERY_POINTS
from headwater_core.segments.local_log import Leadership
from headwater_core.segments.markers import ABORT, read_marker
from headwater_core.segments.metadata.cluster_metadata import Retention
from headwater_core.segments.producers import ProducerState
from headwater_core.segments.records import Record
from headwater_core.segments.transactions import OpenTransaction, Transactions
from tests.headwater_core.segments.broker_files import encode_snapshot, encode_txnindex
from tests.headwater_core.segments.builders import BASE_TIME, Producer, a_batch, a_marker

CLUSTER = "simulated-cluster"
TOPIC = "orders"
_CHECKSUM_AT = 17  # in a batch; what comes before, but for the length, only the order of batches can show
KEYS = tuple(f"key-{n}".encode() for n in range(8))


class Place(NamedTuple):
    """Of one record. An epoch has one leader, so it is this one or none."""

    offset: int
    epoch: int


class Row(NamedTuple):
    """One keyed record of a compacted topic. value None: a tombstone."""

    place: Place
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as some broker once held it. Compaction makes another version of it: same range and epoch, fewer records.

    rows        its keyed records; none in a topic that is not compacted
    horizon_ms  its tombstones may go from then on; None until a cleaner has visited them
    """

    base: int
    last: int
    epoch: int
    data: bytes
    rows: tuple[Row, ...] = ()
    horizon_ms: int | None = None


@dataclass(slots=True)
class Segment:
    base: int
    path: Path
    batches: list[Batch]


@dataclass(slots=True)
class Replica:
    """One broker's copy. `checkpoint` and `start_checkpoint` are its high watermark and log start on disk, `lead` the epoch in
    which it believes it leads.

    policy  everything before it was removed by the broker's own retention, not by us
    full    are all replicas in sync, as this broker last saw it while leading
    learned  up to where it has followed the cluster's metadata, while it believes to lead and does not
    cuts    how often the end of its log was cut off
    open_before   transactions that it knows to be open where its log begins; None when its log began there without a word of them
    side_files    what it keeps beside its segments
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
    cleaned_once: int = 0  # how far that was before a truncation took it back, of what that has left
    cleaning: "Cleaning | None" = None
    damaged: set[Path] = field(default_factory=set)
    was_damaged: bool = False
    learned: int = 0
    cuts: int = 0
    open_before: tuple[OpenTransaction, ...] | None = None
    side_files: dict[Path, bytes] = field(default_factory=dict)

    def batches(self) -> list[Batch]:
        """All on disk."""
        return [batch for segment in self.segments for batch in segment.batches]

    def epochs(self) -> EpochHistory:
        """As in the leader epoch checkpoint: cut at the log start."""
        below = [epoch for epoch, first in self.history if first <= self.start]
        above = [step for step in self.history if step[1] > self.start]
        return EpochHistory.of([*([(below[-1], self.start)] if below else []), *above])

    def epoch_at(self, offset: int) -> int | None:
        return next((epoch for epoch, first in reversed(self.history) if first <= offset), None)


@dataclass(slots=True)
class Cleaning:
    """A pass of the cleaner, in the middle of its renames.

    groups   segments that are to become one, those after the ones at hand
    newest   the last place of each key before `end`, where the pass ends
    """

    stage: int
    merged: Segment
    replaced: list[Segment]
    groups: list[list[Segment]]
    newest: dict[bytes, Place]
    end: int


class Brokers:
    """What the brokers do by themselves. Each action returns what it did, for the trace; None when it could not."""

    def __init__(
        self,
        root: Path,
        random: Random,
        clock: Clock,
        *,
        compacted: bool = False,
        named: bool = True,
        alone: bool = False,
        delete_retention_ms: int = 86_400_000,
        side_files: bool = False,
        dated: bool = False,
    ) -> None:
        """
        named  False: no metadata log shows who leads
        alone  there is no follower
        side_files  they keep snapshots of producers and lists of aborted transactions, as Kafka does, and there is a recovery point
        dated  and for sealed segments when the newest record was written, which a copy keeps: its file is newer
        """
        self.root, self.random, self.clock, self.compacted, self.named, self.alone = root, random, clock, compacted, named, alone
        self.delete_retention_ms, self._keeps_side_files, self._dated = delete_retention_ms, side_files, dated
        self._written_ms: dict[tuple[str, int, int], int] = {}  # by topic id, base and epoch
        self.incarnation = 0
        self.eligible = False  # while there is no leader: were the in-sync replicas made eligible leader replicas?
        self.removed_to = 0  # no broker of this incarnation has removed anything at or above by itself
        self.known: dict[str, dict[tuple[int, int], set[bytes]]] = {}  # by topic id: versions of each (base, epoch)
        self.rows: dict[str, dict[tuple[int, int], tuple[Row, ...]]] = {}  # by topic id and (base, epoch): as they were written
        self.cleaned: dict[str, dict[Place, set[Place | None]]] = {}  # by topic id: what cleaners dropped, for what; None: its horizon
        self.lineage: dict[tuple[str, int], set[int]] = {}  # by topic id and epoch: in which epochs the log was written that led it
        self.was_unclean = False  # has a broker led that lacked something committed?
        self.changes = 0  # of who leads and who is in sync: where the cluster's metadata log ends
        self.starts = [0, 0]  # of each broker's process
        self.retention: Retention | None = None  # as the metadata log has it, where anything depends on that
        self._ticks = 0
        self._opened: dict[int, int] = {}
        self._create()

    @property
    def configs(self) -> dict[str, str]:
        return {"cleanup.policy": "compact", "delete.retention.ms": str(self.delete_retention_ms)} if self.compacted else {}

    @property
    def leader(self) -> Replica:
        return self.replicas[self.leading]

    @property
    def follower(self) -> Replica:
        return self.replicas[1 - self.leading]

    def leadership(self, replica: Replica) -> Leadership | None:
        if not self.named:
            return None
        other = 3 - replica.node
        if self.vacant and replica.lead is None:
            last = (1, 2) if self.leader.full else (self.leader.node,)
            return Leadership(leader=-1, leader_epoch=self.epoch, node=replica.node, replicas=(1, 2), in_sync=() if self.eligible else last)
        in_sync = (1, 2) if replica.full or replica.lead is None else (replica.node,)
        return Leadership(
            leader=other if replica.lead is None else replica.node,
            leader_epoch=self.epoch if replica.lead is None else replica.lead,
            node=replica.node,
            replicas=(1, 2),
            in_sync=in_sync,
        )

    def metadata_end(self, replica: Replica) -> int:
        """How far a broker's own copy of the metadata log goes: one that does not know that another leads was cut off."""
        return replica.learned if replica.lead is not None and replica is not self.leader else self.changes

    def _changed(self) -> None:
        self.changes += 1
        self.leader.learned = self.changes

    def _create(self) -> None:
        self.incarnation += 1
        self.partition = PartitionId(CLUSTER, topic_id_text(self.incarnation.to_bytes(16, "big")), 0, TOPIC)
        self.known[self.partition.topic_id] = {}
        self.rows[self.partition.topic_id] = {}
        self.cleaned[self.partition.topic_id] = {}
        self.epoch, self.leading, self.removed_to, self.vacant = 1, 0, 0, False
        self.replicas = []
        for node in (1, 2):
            directory = self.root / f"broker-{node}" / f"{TOPIC}-0"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            replica = Replica(node=node, directory=directory)
            replica.segments = [self._new_segment(replica, 0)]
            self.replicas.append(replica)
        self._lead()
        self.leader.full = not self.alone

    def _lead(self) -> None:
        """The current leader is to begin the current epoch, alone in the in-sync set; its log shows that when it has begun."""
        leader, self.vacant = self.leader, False
        self._changed()
        leader.lead, leader.full, leader.hw = self.epoch, False, leader.end
        # After a truncation the checkpoint is ahead of the log until the broker writes it again, every five seconds. A broker that
        # leads and is written to within those is more than can be seen from beside it; here it has written its checkpoint by then.
        leader.checkpoint = min(leader.checkpoint, leader.hw)
        self.begun = False
        written = {leader.epoch_at(offset) for offset in range(leader.end)} | {self.epoch}
        self.lineage[self.partition.topic_id, self.epoch] = {epoch for epoch in written if epoch is not None}
        self._opened = {}

    def begin(self) -> str | None:
        """The leader writes its epoch into its history."""
        if self.begun or self.vacant:
            return None
        self.begun = True
        self.leader.history.append((self.epoch, self.leader.end))
        return f"broker {self.leader.node} begins epoch {self.epoch}"

    # What leaders and followers do

    def write(self) -> str | None:
        leader = self.leader
        if self.vacant:
            return None
        self.begin()
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
        if self.compacted:
            return self._keyed(base, value)
        if self.random.random() < 0.35:
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

    def _keyed(self, base: int, value: str) -> Batch:
        rows = tuple(
            Row(Place(offset, self.epoch), self.random.choice(KEYS), None if self.random.random() < 0.25 else f"{value}+{offset}".encode())
            for offset in range(base, base + self.random.randrange(1, 4))
        )
        self.rows[self.partition.topic_id][base, self.epoch] = rows
        return self._learn(_batch_of(base, rows[-1].place.offset, self.epoch, rows, None))

    def _learn(self, batch: Batch) -> Batch:
        self.known[self.partition.topic_id].setdefault((batch.base, batch.epoch), set()).add(batch.data)
        self._written_ms.setdefault((self.partition.topic_id, batch.base, batch.epoch), self.clock.now_ms())
        return batch

    def roll(self, replica: Replica) -> str | None:
        if not replica.segments[-1].batches:
            return None
        replica.segments.append(self._new_segment(replica, replica.end))
        return f"broker {replica.node} rolls at {replica.end}"

    def follow(self) -> str | None:
        """The follower truncates to where the two logs part, fetches the rest, and is in sync again."""
        leader, follower = self.leader, self.follower
        if self.vacant:
            return None
        self.begin()
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
        if common < leader.start:  # nothing in common is left on the leader: begin again where its log begins
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
        self._changed()
        self._keep_checkpoint(leader)
        self._keep_checkpoint(follower)
        return f"broker {follower.node} {'truncates to ' + str(common) + ' and ' if truncated else ''}follows to {leader.end}"

    def fall_behind(self) -> str | None:
        leader = self.leader
        if self.vacant or not leader.full:
            return None
        leader.hw, leader.full = leader.end, False
        self._changed()
        self._keep_checkpoint(leader)
        return f"broker {self.follower.node} drops out of the in-sync set"

    def elect(self, *, unclean: bool) -> str | None:
        """The follower takes over. The old leader notices only when it follows."""
        if unclean == self.leader.full:
            return None
        self.begin()
        self.was_unclean |= unclean
        self.finish_cleaning(self.follower)
        self.epoch += 1
        self.leading = 1 - self.leading
        self._lead()
        return f"broker {self.leader.node} is elected{' UNCLEAN' if unclean else ''}, epoch {self.epoch} at {self.leader.end}"

    def resign(self) -> str | None:
        """There is no leader for now. Whoever was in sync last may be elected, and knows it, or is an eligible leader replica."""
        leader = self.leader
        if self.vacant:
            return None
        self.begin()
        self.vacant, self.eligible = True, self.random.random() < 0.5
        self.epoch += 1  # Kafka counts that change too
        self.changes += 1
        if self.random.random() < 0.7:
            leader.lead = None
        return f"broker {leader.node} resigns, no broker leads{', eligible leader replicas' if self.eligible else ''}"

    def restart(self) -> str | None:
        """The last leader leads again, in the next epoch."""
        self.begin()
        self.epoch += 1
        full = self.leader.full
        self._lead()
        return (
            f"broker {self.leader.node} leads again, epoch {self.epoch} at {self.leader.end}{', the other one was in sync' if full else ''}"
        )

    def replace_disk(self, replica: Replica) -> str | None:
        """A broker comes back with an empty disk. When no other was in sync, it leads on from offset 0, in the next epoch."""
        if self.vacant:
            return None
        if replica is self.leader and self.leader.full:
            return None  # the other one is elected first
        self.begin()
        self.fall_behind()
        self.heal(replica)
        self.starts[replica.node - 1] += 1
        for path in replica.directory.iterdir():
            path.unlink()
        replica.segments, replica.ghost, replica.history, replica.cleaning = [self._new_segment(replica, 0)], [], [], None
        replica.open_before, replica.side_files = None, {}
        replica.start = replica.end = replica.hw = replica.checkpoint = replica.start_checkpoint = replica.policy = 0
        replica.lead = replica.cleaned_to = None
        if replica is self.leader:
            self.epoch += 1
            self._lead()
        return f"broker {replica.node} comes back with an EMPTY DISK{'' if replica.lead is None else f', leading epoch {self.epoch}'}"

    def move(self, replica: Replica) -> str | None:
        """A replica is copied to another disk: its records are as old as they were, and its files are new."""
        if replica.cleaning is not None:
            return None
        for segment in replica.segments:
            if segment.path.exists() and segment.path not in replica.damaged:
                self._touch(segment.path)
        return f"broker {replica.node} has its log on another disk"

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
        if self.vacant:
            return None
        self.begin()
        self.heal(leader)
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
        return f"broker {leader.node} removes everything before {start}"

    def delete_records(self, replica: Replica, end: int) -> str:
        """Headwater has asked for it."""
        self.finish_cleaning(replica)
        self._move_start(replica, end)
        self._keep_checkpoint(replica)
        return f"broker {replica.node} deletes records before {end}"

    def notice_release(self, replica: Replica) -> str | None:
        """Headwater has deleted files: the log starts later now.

        No cleaner is at work then: Kafka keeps deletion and compaction of a log apart, and where we delete there is no broker.
        So a pass that has changed nothing yet was never begun.
        """
        cleaning = replica.cleaning
        if cleaning and cleaning.stage == 0 and not all(segment.path.exists() for segment in cleaning.replaced):
            _named(cleaning.merged.path, ".cleaned").unlink()
            replica.cleaning = cleaning = None
        replaced = cleaning.replaced if cleaning else ()
        gone = [segment for segment in replica.segments if segment not in replaced and not segment.path.exists()]
        first = next((segment.base for segment in replica.segments if segment.path.exists()), None)
        if first is not None:  # what damage has taken behind that may come back
            gone = [segment for segment in gone if segment.base < first or segment.path not in replica.damaged]
        if not gone:
            return None
        for segment in gone:
            self._pass(replica, segment)
            for suffix in (".snapshot", ".txnindex"):
                replica.side_files.pop(segment.path.with_suffix(suffix), None)
        replica.segments = [segment for segment in replica.segments if segment not in gone]
        if not replica.segments:  # it was sealed when its release was decided; a truncation has made it the last one since
            replica.segments = [self._new_segment(replica, replica.end)]
        replica.start = max(replica.start, replica.segments[0].base)
        return f"broker {replica.node} starts at {replica.start}: {len(gone)} segments were released"

    @staticmethod
    def _pass(replica: Replica, segment: Segment) -> None:
        """The log begins after the segment now."""
        replica.ghost += segment.batches
        replica.open_before = _shown(segment, replica.open_before or ()).open

    def keep_side_files(self, replica: Replica) -> None:
        """Beside each segment: which transactions were open at its base, unless the log began there, and which were aborted in it. A
        broker writes them when it rolls, and takes them away with a segment that it removes."""
        if not self._keeps_side_files or self.compacted:
            return
        kept, still = dict[Path, bytes](), replica.open_before
        for segment in replica.segments:
            if still is not None:
                states = [ProducerState(each.producer_id, 0, 0, 0, 0, 0, 0, each.first_offset) for each in still]
                kept[segment.path.with_suffix(".snapshot")] = encode_snapshot(states)
            shown = _shown(segment, still or ())
            if shown.aborted:
                kept[segment.path.with_suffix(".txnindex")] = encode_txnindex(tuple(shown.aborted))
            still = shown.open
        for path in replica.side_files.keys() - kept.keys():
            path.unlink(missing_ok=True)
        for path, content in kept.items():
            if replica.side_files.get(path) != content:
                path.write_bytes(content)
        replica.side_files = kept
        flushed = f"0\n1\n{TOPIC} 0 {replica.segments[-1].base}\n"
        (replica.directory.parent / RECOVERY_POINTS).write_text(flushed)

    def keep_time_indexes(self, replica: Replica) -> None:
        """The last entry of each is all that there is: the newest time of the segment, and its last offset."""
        if not self._dated:
            return
        kept = dict[Path, bytes]()
        for segment in replica.segments[:-1]:
            if segment.batches:
                newest_ms = max(self._written_ms[self.partition.topic_id, batch.base, batch.epoch] for batch in segment.batches)
                content = struct.pack(">qi", newest_ms, segment.batches[-1].last - segment.base)
                kept[segment.path.with_suffix(".timeindex")] = content
        for path in set(replica.directory.glob("*.timeindex")) - kept.keys():
            path.unlink()
        for path, content in kept.items():
            path.write_bytes(content)

    def _move_start(self, replica: Replica, start: int) -> None:
        replica.start = max(replica.start, start)
        while len(replica.segments) > 1 and replica.segments[1].base <= replica.start:
            segment = replica.segments.pop(0)
            self._pass(replica, segment)
            segment.path.unlink()

    # Damage

    def damage(self, replica: Replica) -> str | None:
        """A disk is damaged, or a person does damage: flipped bits, an empty or a shorter file, a batch or a whole file gone.

        Only what can be noticed: in a compacted topic a gap looks like compaction, and a checksum covers what follows it.
        """
        sealed = [segment for segment in replica.segments[:-1] if segment.batches and segment.path not in replica.damaged]
        sealed = [segment for segment in sealed if segment.path.exists()]  # released since
        if not sealed or replica.cleaning:
            return None
        segment = self.random.choice(sealed)
        content = segment.path.read_bytes()
        kind = "flips" if self.compacted else self.random.choice(("flips", "flips", "is empty", "is cut", "lacks a batch", "is lost"))
        status = segment.path.stat()
        match kind:
            case "flips":
                batch = self.random.choice(segment.batches)
                at = sum(len(each.data) for each in segment.batches if each.base < batch.base)
                at += self.random.randrange(_CHECKSUM_AT, len(batch.data))
                damaged = bytearray(content)
                damaged[at] ^= 1 << self.random.randrange(8)
                segment.path.write_bytes(damaged)
                os.utime(segment.path, ns=(status.st_atime_ns, status.st_mtime_ns))
            case "is lost":
                if segment is replica.segments[0]:
                    return None  # that is what retention does
                segment.path.unlink()
            case _:
                if len(segment.batches) < 2:
                    return None
                gap = self.random.randrange(1, len(segment.batches))
                holed = b"".join(batch.data for at, batch in enumerate(segment.batches) if at != gap)
                cut = content[: self.random.randrange(1, len(content))]
                segment.path.write_bytes({"is empty": b"", "is cut": cut}.get(kind, holed))
                self._touch(segment.path)
        replica.damaged.add(segment.path)
        replica.was_damaged = True
        return f"DAMAGE on broker {replica.node}: segment {segment.base} {kind}"

    def heal(self, replica: Replica) -> str | None:
        """A person brings back what the files held."""
        if not replica.damaged:
            return None
        for segment in replica.segments:
            if segment.path in replica.damaged:
                self._fill(segment.path, segment.batches)
        replica.damaged.clear()
        return f"the files of broker {replica.node} are brought back"

    # Compaction

    def clean(self, replica: Replica) -> str | None:
        """One more step of a pass. For each group: write, rename to .swap, remove the old ones, the last one first, rename to .log."""
        if replica.damaged:
            return None
        if replica.cleaning is None:
            return self._begin_cleaning(replica)
        cleaning = replica.cleaning
        final = cleaning.merged.path
        match cleaning.stage:
            case 0:
                os.rename(_named(final, ".cleaned"), _named(final, ".swap"))
            case 1:
                left = [segment for segment in cleaning.replaced if segment.path.exists()]
                if left:
                    left[-1].path.unlink()
                if len(left) > 1:
                    return f"broker {replica.node} compacts on, {len(left) - 1} old segments are left"
            case _:
                os.rename(_named(final, ".swap"), final)
                at = replica.segments.index(cleaning.replaced[0])
                replica.segments[at : at + len(cleaning.replaced)] = [cleaning.merged]
                here = [[segment for segment in group if segment in replica.segments] for group in cleaning.groups]  # not released since
                if groups := [group for group in here if group]:
                    replica.cleaning = self._clean_group(replica, groups, cleaning.newest, cleaning.end)
                    return f"broker {replica.node} has compacted from {cleaning.merged.base} on"
                replica.cleaned_to = max(replica.cleaned_to or 0, cleaning.end)
                replica.cleaning = None
                return f"broker {replica.node} has compacted all before {cleaning.end}"
        cleaning.stage += 1
        return f"broker {replica.node} compacts on, stage {cleaning.stage}"

    def _begin_cleaning(self, replica: Replica) -> str | None:
        sealed = [segment for segment in replica.segments[:-1] if segment.batches and segment.batches[-1].last < replica.hw]
        if not sealed or replica.segments[: len(sealed)] != sealed:
            return None
        sealed = sealed[: self.random.randrange(1, len(sealed) + 1)]
        newest = {row.key: row.place for segment in sealed for batch in segment.batches for row in batch.rows}
        groups, rest = [], sealed
        while rest:
            size = self.random.randrange(1, 4)
            groups.append(rest[:size])
            rest = rest[size:]
        replica.cleaning = self._clean_group(replica, groups, newest, sealed[-1].batches[-1].last + 1)
        return f"broker {replica.node} compacts segments {[segment.base for segment in sealed]}"

    def _clean_group(self, replica: Replica, groups: list[list[Segment]], newest: dict[bytes, Place], end: int) -> Cleaning:
        chosen, *rest = groups
        kept = [smaller for segment in chosen for batch in segment.batches if (smaller := self._clean_batch(batch, newest))]
        if not kept:  # only so that a segment is never empty here
            last = chosen[-1].batches[-1]
            kept = [self._learn(_batch_of(last.base, last.last, last.epoch, (), None))]
        merged = Segment(chosen[0].base, chosen[0].path, kept)
        self._fill(_named(merged.path, ".cleaned"), kept)
        return Cleaning(0, merged, chosen, rest, newest, end)

    def _clean_batch(self, batch: Batch, newest: dict[bytes, Place]) -> Batch | None:
        """What a pass leaves of a batch: perhaps nothing, or an empty one that holds its producer's last sequence number."""
        now, cleaned = self.clock.now_ms(), self.cleaned[self.partition.topic_id]
        kept = []
        for row in batch.rows:
            if newest[row.key] != row.place:
                cleaned.setdefault(row.place, set()).add(newest[row.key])
            elif row.value is None and batch.horizon_ms is not None and batch.horizon_ms <= now:
                cleaned.setdefault(row.place, set()).add(None)
            else:
                kept.append(row)
        horizon_ms = batch.horizon_ms
        if horizon_ms is None and any(row.value is None for row in kept):
            horizon_ms = now + self.delete_retention_ms
        if len(kept) == len(batch.rows) and horizon_ms == batch.horizon_ms:
            return batch
        if not kept and self.random.random() < 0.7:
            return None
        return self._learn(_batch_of(batch.base, batch.last, batch.epoch, tuple(kept), horizon_ms if kept else None))

    def committed_rows(self) -> list[Row]:
        """Every keyed record that was ever written to the leader's log and is before its high watermark, cleaned away or not."""
        leader = self.leader
        written = self.rows[self.partition.topic_id]
        batches = [rows for (base, epoch), rows in sorted(written.items()) if leader.epoch_at(base) == epoch]
        return [row for rows in batches for row in rows if rows[-1].place.offset < leader.hw]

    def may_be_gone(self, row: Row) -> bool:
        """Did some cleaner drop it, for a later record of its key or past its horizon? What it was dropped for may be of a branch
        that died since: then Kafka has lost it as well, wherever that cleaner was."""
        return row.place in self.cleaned[self.partition.topic_id]

    def forgotten(self, replica: Replica, first: int, last: int, horizon: int) -> set[Place]:
        """What the log of `replica` lacks in [first, last] though nothing in it, to `horizon` inclusive, has replaced it.

        Its cleaner dropped it for a record that the broker has cut off since. Nothing beside it shows that.
        """
        written, cleaned = self.rows[self.partition.topic_id], self.cleaned[self.partition.topic_id]
        rows = [row for (base, epoch), each in sorted(written.items()) if replica.epoch_at(base) == epoch for row in each]
        newest = table_of(row for row in rows if row.place.offset <= horizon)
        held = {row.place for batch in [*replica.ghost, *replica.batches()] for row in batch.rows}
        lacking = {row.place for row in newest.values() if first <= row.place.offset <= last and row.place not in held}
        return {place for place in lacking if None not in cleaned.get(place, ())}  # not past its horizon

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
        """Remove every batch that ends at or beyond `offset`. Where there is none, no file is touched."""
        self.heal(replica)
        if offset >= replica.end:
            return
        replica.cuts += offset <= max(replica.end - 1, replica.segments[-1].base)
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
        if replica.cleaned_to is not None:
            replica.cleaned_once = min(max(replica.cleaned_once, replica.cleaned_to), offset)
            replica.cleaned_to = min(replica.cleaned_to, replica.segments[-1].base, offset)
        replica.end = min(replica.end, offset)
        replica.start, replica.hw = min(replica.start, offset), min(replica.hw, offset)

    def _drop_all(self, replica: Replica, base: int) -> None:
        for segment in replica.segments:
            segment.path.unlink()
        replica.segments, replica.open_before = [self._new_segment(replica, base)], None
        replica.end = base

    def _fill(self, path: Path, batches: list[Batch]) -> None:
        path.write_bytes(b"".join(batch.data for batch in batches))
        self._touch(path)

    def _touch(self, path: Path) -> None:
        """The file system's clock is too coarse to distinguish two changes, and no two runs alike; this one is neither."""
        self._ticks += 1
        stamp_ns = self.clock.now_ms() * 10**6 + self._ticks
        os.utime(path, ns=(stamp_ns, stamp_ns))


def _shown(segment: Segment, open_before: Iterable[OpenTransaction]) -> Transactions:
    """What a segment says of transactions to the broker that holds it."""
    found = Transactions(open_before)
    for batch in segment.batches:
        header = read_batch_header(batch.data)
        if header.is_control:
            aborts = read_marker(memoryview(batch.data), where="simulated").type == ABORT
            found.marker(header.producer_id, header.base_offset, aborts=aborts)
        elif header.is_transactional:
            found.data(header.producer_id, header.base_offset)
    return found


def table_of(rows: Iterable[Row]) -> dict[bytes, Row]:
    """What is left of `rows`, in offset order, for a consumer that reads all of them."""
    return {row.key: row for row in rows}


def _batch_of(base: int, last: int, epoch: int, rows: tuple[Row, ...], horizon_ms: int | None) -> Batch:
    records = [Record(row.place.offset, BASE_TIME + row.place.offset, row.key, row.value, ()) for row in rows]
    data = a_batch(base, records, epoch=epoch, last_offset=last, delete_horizon=horizon_ms, producer=None if rows else Producer(id=7))
    return Batch(base, last, epoch, data, rows, horizon_ms)


def _named(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _common(leader: Replica, follower: Replica) -> int:
    """Where the two logs part: the first offset that they wrote in different epochs."""
    end = min(leader.end, follower.end)
    return next((offset for offset in range(end) if leader.epoch_at(offset) != follower.epoch_at(offset)), end)
