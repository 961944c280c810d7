"""An archive of a transaction cluster, each log of which was archived at a moment of its own, and its recovery."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Literal

import recovery
from headwater_core.partition import PartitionId, topic_id_text
from headwater_core.segments import flexible
from headwater_core.segments.records import Record
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from recovery.coordinators import TRANSACTIONS
from recovery.recovery_plan import Mode, Options, Place, RecoveryPlan
from recovery.target import read_mark
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_batch
from tests.recovery.plans import CLUSTER
from tests.recovery.transaction_cluster import Appended, TransactionCluster
from tests.recovery.written_archive import Archive, text

HOUR_MS = 3_600_000
OUTAGES_MS = (HOUR_MS, 25 * HOUR_MS, 8 * 24 * HOUR_MS, 40 * 24 * HOUR_MS)
ORDERS = ("equal", "coordinators older", "data older", "random", "random")
FOREIGN_KEY, FOREIGN_VALUE = "foreign key", "foreign value"


class MomentArchive(Archive):
    """Topics of several partitions, each an Appended list for a run; a log without runs has no head."""

    def partitions(self, topic: str, logs: Sequence[Sequence[Sequence[Appended]]], epochs: Sequence[int]) -> list[list[Entry]]:
        repository = ManifestRepository(self.store)
        topic_id = self.ids[topic] = topic_id_text(bytes([len(self.ids) + 1]) * 16)  # as the cluster numbers them
        configs = {"cleanup.policy": "compact" if topic.startswith("__") else "delete"}
        manifest = TopicManifest(cluster_id=CLUSTER, topic=topic, topic_id=topic_id, partitions=len(logs), configs=configs)
        repository.ensure_topic(manifest)
        found = []
        for number, (runs, epoch) in enumerate(zip(logs, epochs, strict=True)):
            identity, entries = PartitionId(CLUSTER, topic_id, number, topic), list[Entry]()
            for run in runs:
                entries.append(self._entry(identity, [batch.raw for batch in run], entries))
            if entries:
                head = Head(
                    cluster_id=CLUSTER,
                    topic=topic,
                    topic_id=topic_id,
                    partition=number,
                    version=1,
                    commit_id="c",
                    fence=1,
                    writer="w",
                    leader_epoch=epoch,
                    start_offset=0,
                    last_offset=entries[-1].last_offset,
                    entries=EntryTree(entries),
                )
                repository.commit(None, head)
            found.append(entries)
        return found


class ArchivedMoment:
    """moments: up to which step each log is archived. lost: the runs whose objects are gone, by offsets, both inclusive"""

    def __init__(self, seed: int) -> None:
        self.seed, self._random = seed, Random(f"moment {seed}")
        random = self._random
        self.cluster = TransactionCluster(Random(f"cluster {seed}"))
        self.cluster.run(random.randrange(8, 90))
        self.order = random.choice(ORDERS)
        self.outage_ms = random.choice(OUTAGES_MS)
        self.foreign = random.choice((FOREIGN_KEY, FOREIGN_VALUE)) if random.random() < 0.08 else None
        self.moments = self._some_moments()
        self.logs = {place: log.until(self.moments[place]) for place, log in self.cluster.logs.items()}
        if self.foreign is not None:
            self._add_foreign()
        self.lost: dict[Place, list[tuple[int, int]]] = {}
        self.archive = MomentArchive()
        self._archive()
        self.options = self._some_options()
        self.clock = ManualClock(self.cluster.clock.now_ms() + self.outage_ms)

    def __str__(self) -> str:
        moments = ", ".join(f"{topic}:{number} {step}" for (topic, number), step in sorted(self.moments.items()))
        chosen = {name: getattr(self.options, name) for name in ("mode", "open_transactions", "to_offsets", "to_time_ms", "keep_bytes")}
        return (
            f"seed {self.seed}: {self.cluster.step} steps, {self.order}, outage {self.outage_ms // HOUR_MS} h, {chosen}\n"
            f"archived up to step: {moments}; lost {self.lost}; foreign {self.foreign}\n" + "\n".join(map(str, self.cluster.transactions))
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

    def _add_foreign(self) -> None:
        """A record that a later release wrote, in the archived log of a coordinator."""
        place = self._random.choice([place for place in self.logs if place[0] == TRANSACTIONS])
        batches = self.logs[place]
        at = batches[-1].next_offset if batches else 0
        epoch = batches[-1].leader_epoch if batches else 0
        key, value = flexible.i16(0) + text(self._random.choice(["id-0", "id-9"])), flexible.i16(9) + b"later"
        if self.foreign == FOREIGN_KEY:
            key = flexible.i16(7) + b"later"
        raw = a_batch(at, [Record(at, self.cluster.clock.now_ms(), key, value, ())], epoch=epoch)
        batches.append(Appended(self.moments[place], at, at + 1, epoch, raw))

    def _archive(self) -> None:
        random = self._random
        for topic, count in self.cluster.counts.items():
            runs = [self._cut_in_runs(self.logs[topic, number]) for number in range(count)]
            epochs = [self.cluster.logs[topic, number].epoch_at(self.moments[topic, number]) for number in range(count)]
            for number, entries in enumerate(self.archive.partitions(topic, runs, epochs)):
                if len(entries) > 1 and random.random() < 0.04:
                    entry = random.choice(entries)
                    self.archive.store.delete(entry.key)
                    self.archive.store.delete(entry.index_key)
                    self.lost.setdefault((topic, number), []).append((entry.base_offset, entry.last_offset))

    def _cut_in_runs(self, batches: Sequence[Appended]) -> list[Sequence[Appended]]:
        if not batches:
            return []
        at = sorted({0, *(self._random.randrange(len(batches)) for _ in range(self._random.randrange(4)))})
        return [batches[start:end] for start, end in zip(at, [*at[1:], len(batches)], strict=True)]

    def _some_options(self) -> Options:
        random = self._random
        mode: Mode = random.choice(("full", "full", "full", "partial", "instant"))
        if mode != "full":
            return Options(mode=mode, keep_bytes=random.randrange(1, 2000) if mode == "partial" else None)
        how: Literal["abort", "cut"] = random.choice(("abort", "abort", "cut"))
        ends = {}
        if random.random() < 0.15:
            topic, number = random.choice([place for place in self.cluster.data if self.logs[place]] or [("", 0)])
            ends = {f"{topic}:{number}": random.randrange(self.logs[topic, number][-1].next_offset + 1)} if topic else {}
        spread_ms = self.cluster.clock.now_ms() - ManualClock().now_ms()
        time_ms = ManualClock().now_ms() + random.randrange(1, spread_ms + 2) if not ends and random.random() < 0.1 else None
        return Options(open_transactions=how, to_offsets=ends, to_time_ms=time_ms)

    def recover(self, into: Path) -> RecoveryPlan:
        """Return the plan that was carried out in the end."""
        plan = recovery.plan(ManifestRepository(self.archive.store), None, self.options, clock=self.clock)
        self.clock.advance(self._random.choice((1000, HOUR_MS)))
        recovery.apply(plan, into, self.archive.store, clock=self.clock, recorded=False, skip_damaged=True)
        mark = read_mark(into)
        assert mark is not None
        return mark.plan
