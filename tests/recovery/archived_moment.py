"""An archive of a transaction cluster, each log of which was archived at a moment of its own, and its recovery."""

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import recovery
from headwater_core.partition import PartitionId
from headwater_core.segments import flexible
from headwater_core.segments.records import Record, decode_batch
from manifests import keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from recovery.coordinators import OFFSETS, TRANSACTIONS
from recovery.open_transactions import DAMAGE, RunIndexes
from recovery.recovery_plan import Mode, Options, Place, RecoveryPlan
from recovery.target import read_mark
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_batch
from tests.recovery.log_cleaner import cleaned, uncleanable_from
from tests.recovery.plans import CLUSTER
from tests.recovery.transaction_cluster import Appended, TransactionCluster
from tests.recovery.written_archive import Archive, text

HOUR_MS = 3_600_000
OUTAGES_MS = (HOUR_MS, 25 * HOUR_MS, 8 * 24 * HOUR_MS, 40 * 24 * HOUR_MS)
ORDERS = ("equal", "coordinators older", "data older", "random", "random")
FOREIGN_KEY, FOREIGN_VALUE = "foreign key", "foreign value"


class MomentArchive(Archive):
    """Topics of several partitions, each an Appended list for a run; a log without runs has no head."""

    cluster_id = CLUSTER

    def ends(self) -> dict[Place, int]:
        """Return the end of each log that has a head."""
        repository, found = ManifestRepository(self.store), dict[Place, int]()
        for info in self.store.list(keys.META):
            if info.key.endswith("/manifest.json"):
                head = repository.load_unchecked(info.key)
                found[head.topic, head.partition] = head.next_offset
        return found

    def tells_what_is_open(self) -> bool:
        """Whether an agent can go on: it has to know which transactions are open where each log ends."""
        for info in self.store.list(keys.META):
            if info.key.endswith("/manifest.json"):
                entries = [*ManifestRepository(self.store).load_unchecked(info.key).entries]
                try:
                    RunIndexes(self.store, entries).open_before(len(entries))
                except DAMAGE:
                    return False
        return True

    def partitions(
        self, topic: str, topic_id: str, logs: Sequence[Sequence[Sequence[Appended]]], starts: Sequence[int], epochs: Sequence[int]
    ) -> list[list[Entry]]:
        """Return the new entries. starts: of logs without a head; others go on."""
        repository, is_compacted = ManifestRepository(self.store), topic.startswith("__")
        self.ids[topic] = topic_id
        configs = {"cleanup.policy": "compact" if is_compacted else "delete"}
        manifest = TopicManifest(cluster_id=self.cluster_id, topic=topic, topic_id=topic_id, partitions=len(logs), configs=configs)
        repository.ensure_topic(manifest)
        found = []
        for number, (runs, start, epoch) in enumerate(zip(logs, starts, epochs, strict=True)):
            identity = PartitionId(self.cluster_id, topic_id, number, topic)
            before = repository.load(identity)
            entries = [*before.head.entries] if before is not None else []
            new = len(entries)
            for run in runs:
                end, base = entries[-1].next_offset if entries else start, run[0].base_offset
                if end < base and not is_compacted:
                    entries.append(Entry(base_offset=end, last_offset=base - 1, gap=True))
                    end = base
                made = before.head.version if before is not None else 0
                entries.append(self._entry(identity, [batch.raw for batch in run], entries, made, end))
            if runs:
                head = Head(
                    cluster_id=self.cluster_id,
                    topic=topic,
                    topic_id=topic_id,
                    partition=number,
                    version=1,
                    commit_id="c",
                    fence=before.head.fence if before is not None else 1,
                    writer=before.head.writer if before is not None else "w",
                    leader_epoch=epoch,
                    start_offset=before.head.start_offset if before is not None else start,
                    last_offset=entries[-1].last_offset,
                    entries=EntryTree(entries),
                )
                repository.commit(before, head)
            found.append(entries[new:])
        return found


class Former(NamedTuple):
    """A recovered cluster that has gone on. archive: that it archives to; None: an empty one. lost: what the archive has lost already"""

    cluster: TransactionCluster
    cluster_id: str
    archive: MomentArchive | None
    lost: dict[Place, list[tuple[int, int]]]


DAMAGED = float(
    os.environ.get("MOMENT_DAMAGE", "0.1")
)  # the share of moments of which many objects are lost, runs and indexes by themselves


class ArchivedMoment:
    """moments: up to which step each log is archived. lost: the runs whose objects are gone, by offsets, both inclusive

    former  the cluster is lost for the second time
    """

    def __init__(self, seed: int, former: Former | None = None) -> None:
        life = "" if former is None else "second "
        self.seed, self._random = seed, Random(f"{life}moment {seed}")
        random = self._random
        self._damaging = Random(f"{life}damage {seed}")
        self._is_heavily_damaged = self._damaging.random() < DAMAGED
        self.cluster = TransactionCluster(Random(f"cluster {seed}")) if former is None else former.cluster
        self.cluster.run(random.randrange(8, 90))
        self.order = random.choice(ORDERS)
        self.outage_ms = random.choice(OUTAGES_MS)
        self.foreign = random.choice((FOREIGN_KEY, FOREIGN_VALUE)) if random.random() < 0.08 else None
        self.archive = MomentArchive() if former is None or former.archive is None else former.archive
        self.lost = {place: [*lost] for place, lost in former.lost.items()} if former is not None else {}
        if former is not None:
            self.archive.cluster_id = former.cluster_id
        self._ends = self.archive.ends()
        self.moments = self._some_moments()
        self.logs = {place: log.until(self.moments[place]) for place, log in self.cluster.logs.items()}
        self.cleaned: dict[Place, str] = {}
        for place in self.logs:
            if place[0] in (TRANSACTIONS, OFFSETS):
                self._clean(place)
        if self.foreign is not None:
            self._add_foreign()
        self._archive()
        self.options = self._some_options()
        self.clock = ManualClock(self.cluster.clock.now_ms() + self.outage_ms)

    def __str__(self) -> str:
        moments = ", ".join(f"{topic}:{number} {step}" for (topic, number), step in sorted(self.moments.items()))
        chosen = {name: getattr(self.options, name) for name in ("mode", "open_transactions", "to_offsets", "to_time_ms", "keep_bytes")}
        return (
            f"seed {self.seed}: {self.cluster.step} steps, {self.order}, outage {self.outage_ms // HOUR_MS} h, {chosen}\n"
            f"archived up to step: {moments}; lost {self.lost}; foreign {self.foreign}; cleaned {self.cleaned}\n"
            + "\n".join(map(str, self.cluster.transactions))
        )

    def _some_moments(self) -> dict[Place, int]:
        random, last = self._random, self.cluster.step
        early = random.randrange(last + 1)
        late = last if random.random() < 0.5 else random.randrange(early, last + 1)

        def moment(place: Place) -> int:
            if self.order == "equal":
                return last
            if self.order == "random":
                return random.randrange(last + 1)
            return early if (place in self.cluster.data) == (self.order == "data older") else late

        return {place: moment(place) for place in self.cluster.logs}

    def _clean(self, place: Place) -> None:
        """As the cleaner leaves the log; runs that were archived before it came stay as they were."""
        random, batches = self._random, self.logs[place]
        if random.random() < 0.5 or len(batches) < 2:
            return
        limit = uncleanable_from(batches)
        until = [batch.base_offset for batch in batches if batch.base_offset <= limit]
        is_late = place not in self._ends and random.random() < 0.4  # with a tombstone, what it deletes must be gone everywhere
        end, since = random.choice(until[1:] or [0]), 0 if is_late else max(self._ends.get(place, 0), random.choice([0, *until]))
        kept = [batch for batch in cleaned(batches, end, is_late=is_late) if batch.base_offset >= since]
        self.logs[place] = [batch for batch in batches if batch.base_offset < since] + kept
        self.cleaned[place] = f"{since} to {end}{', late' if is_late else ''}"
        there = {record.offset for batch in self.logs[place] for record in decode_batch(batch.raw)}
        removed = {offset for batch in batches for offset in range(batch.base_offset, batch.next_offset)} - there
        for transaction in self.cluster.transactions:
            if place in transaction.parts:
                transaction.parts[place] = [offset for offset in transaction.parts[place] if offset not in removed]
                if not transaction.parts[place]:
                    del transaction.parts[place]

    def _add_foreign(self) -> None:
        """A record that a later release wrote, in the archived log of a coordinator."""
        place = self._random.choice([place for place in self.logs if place[0] == TRANSACTIONS])
        name = self._random.choice(["id-0", "id-9"])
        key, value = flexible.i16(0) + text(name), flexible.i16(9) + b"later"
        if self.foreign == FOREIGN_KEY:
            key = flexible.i16(7) + b"later"
        else:
            place = self.cluster.home_of(TRANSACTIONS, name)
        batches = self.logs[place]
        at = batches[-1].next_offset if batches else 0
        epoch = batches[-1].leader_epoch if batches else 0
        raw = a_batch(at, [Record(at, self.cluster.clock.now_ms(), key, value, ())], epoch=epoch)
        batches.append(Appended(self.moments[place], at, at + 1, epoch, raw))

    def _archive(self) -> None:
        random = self._random
        for topic, count in self.cluster.counts.items():
            places = [(topic, number) for number in range(count)]
            new = [[batch for batch in self.logs[place] if batch.base_offset >= self._ends.get(place, 0)] for place in places]
            runs = [self._cut_in_runs(batches) for batches in new]
            starts = [self.cluster.logs[place].start for place in places]
            epochs = [self.cluster.logs[place].epoch_at(self.moments[place]) for place in places]
            for number, made in enumerate(self.archive.partitions(topic, self.cluster.topic_ids[topic], runs, starts, epochs)):
                entries = [entry for entry in made if not entry.gap]
                if self._is_heavily_damaged:
                    self._damage((topic, number), entries if len(entries) > 1 else ())
                elif len(entries) > 1 and random.random() < 0.04:
                    entry = random.choice(entries)
                    self.archive.store.delete(entry.key)
                    self.archive.store.delete(entry.index_key)
                    self.lost.setdefault((topic, number), []).append((entry.base_offset, entry.last_offset))

    def _damage(self, place: Place, entries: Sequence[Entry]) -> None:
        """Runs and indexes by themselves, gone or flipped."""
        random, store = self._damaging, self.archive.store
        for entry in entries:
            how = random.random()
            if how < 0.2:
                raw = bytearray(store.get(entry.key)[0])
                raw[-1] ^= 255
                store.delete(entry.key)
                if how < 0.1:
                    store.create(entry.key, bytes(raw))
                self.lost.setdefault(place, []).append((entry.base_offset, entry.last_offset))
            if random.random() < 0.3:
                store.delete(entry.index_key)
                if random.random() < 0.3:
                    store.create(entry.index_key, b"x" * 100)

    def _cut_in_runs(self, batches: Sequence[Appended]) -> list[Sequence[Appended]]:
        if not batches:
            return []
        at = sorted({0, *(self._random.randrange(len(batches)) for _ in range(self._random.randrange(4)))})
        return [batches[start:end] for start, end in zip(at, [*at[1:], len(batches)], strict=True)]

    def _some_options(self) -> Options:
        random = self._random
        mode: Mode = random.choice(("full", "full", "full", "partial", "instant"))
        how: Literal["abort", "cut", "keep"] = random.choice(("abort", "abort", "abort", "cut", "cut", "keep"))
        if mode != "full":
            how = "abort" if how == "cut" else how
            return Options(
                mode=mode,
                keep_bytes=random.randrange(1, 2000) if mode == "partial" else None,
                open_transactions=how,
                **self._some_archive(),
            )
        ends = {}
        if random.random() < 0.15:
            topic, number = random.choice([place for place in self.cluster.data if self.logs[place]] or [("", 0)])
            ends = {f"{topic}:{number}": random.randrange(self.logs[topic, number][-1].next_offset + 1)} if topic else {}
        spread_ms = self.cluster.clock.now_ms() - self.cluster.began_ms
        time_ms = self.cluster.began_ms + random.randrange(1, spread_ms + 2) if not ends and random.random() < 0.1 else None
        is_whole = how != "cut" and not ends and time_ms is None
        return Options(open_transactions=how, to_offsets=ends, to_time_ms=time_ms, **(self._some_archive() if is_whole else {}))

    def _some_archive(self) -> dict[str, Any]:
        """Return the options by which the recovered cluster archives on to where it came from, in some cases."""
        return self._random.choice(({}, {"cluster_id": self.archive.cluster_id}, {"take_over": True}))

    def recover(self, into: Path) -> RecoveryPlan:
        """Return the plan that was carried out in the end."""
        plan = recovery.plan(ManifestRepository(self.archive.store), None, self.options, clock=self.clock)
        self.clock.advance(self._random.choice((1000, HOUR_MS)))
        recovery.apply(plan, into, self.archive.store, clock=self.clock, recorded=False, skip_damaged=True)
        mark = read_mark(into)
        assert mark is not None
        return mark.plan
