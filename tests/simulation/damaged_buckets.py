"""Copies of a simulated bucket, damaged at random and recovered: the damage is named, no wrong record is restored, all that is sound comes
back.

The bucket itself is only read, and the copies have a random source of their own: with or without them a seed does the same. In it is what
agents have left there: merged and cut runs, dead branches, gaps, pages, objects that nobody lists.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import recovery
from headwater_core.errors import CorruptData, HeadwaterError
from headwater_core.layouts import open_layout
from headwater_core.partition import PartitionId
from manifests import chunk_keys, keys
from manifests.entry import Entry
from manifests.head import Head
from manifests.page import page_key
from manifests.repository import ManifestRepository
from manifests.topic import decode_current
from recovery.recovery_plan import Options
from recovery.runs import segment_name
from recovery.target import read_mark
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.hostile_documents import broken
from tests.recovery.written_archive import batches_in
from tests.simulation.brokers import TOPIC
from tests.simulation.bucket import Violation, references_below
from tests.simulation.readers import header_of
from tests.simulation.recoveries import Listed

if TYPE_CHECKING:
    from tests.simulation.world import World

_OFTEN = 0.05  # of all actions
_DAMAGES_MAX = 4
_HOLE = re.compile(rf"{re.escape(TOPIC)}:0 offsets (\d+)-(\d+)")


class DamagedCopy(MemoryStore):
    """touched: the keys of which something else is there than was, or nothing"""

    def __init__(self, of: MemoryStore, random: Random) -> None:
        super().__init__(of._clock)
        self._objects, self._metadata = dict(of._objects), dict(of._metadata)
        self._random = random
        self.touched: dict[str, str] = {}  # how, by key

    def damage(self, versions: Mapping[str, list[bytes]]) -> None:
        """One object that nothing was done to yet. versions: what documents were before, by key"""
        names = sorted(self._objects.keys() - self.touched.keys())
        if not names:
            return
        documents = [key for key in names if key.startswith(keys.META)]
        key = self._random.choice(documents if documents and self._random.random() < 0.5 else names)
        how = self._random.choice(("missing", "truncated", "flipped", "longer", "zeroed", "empty", "swapped", "older", "extra", "broken"))
        raw = self.get(key)[0]
        at = self._random.randrange(len(raw)) if raw else 0
        if how == "missing" or not raw:
            self.delete(key)
        elif how == "swapped":
            other = self._random.choice([each for each in names if each.rpartition(".")[2] == key.rpartition(".")[2]])
            self._keep(key, self.get(other)[0])
            self._keep(other, raw)
            self.touched[other] = how
        elif how == "extra":
            self._keep(extra := re.sub(r"[0-9a-f]{32}|[0-9]{20}", lambda found: found[0][:-3] + "9f9"[: len(found[0])], key), raw)
            self.touched[extra] = how
            return
        else:
            older = versions.get(key, [])[:-1]
            changed = {
                "truncated": raw[:at],
                "flipped": raw[:at] + bytes([raw[at] ^ 1 << self._random.randrange(8)]) + raw[at + 1 :],
                "longer": raw + raw[at:],
                "zeroed": bytes(len(raw)),
                "older": self._random.choice(older) if older else b"{}",
                "broken": broken(raw, self._random) if key.endswith(".json") else b"\xff" * len(raw),
            }
            self._keep(key, changed.get(how, b""))
        self.touched[key] = how


class Damager:
    """Makes copies now and then, and one at rest."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.random = Random(f"damaged bucket {world.result.seed}")
        self._versions: dict[str, list[bytes]] = {}
        self._heads: dict[bytes, tuple[Head, Listed]] = {}  # by their bytes
        self._number = 0

    def after_action(self) -> None:
        self._note()
        if self.random.random() < _OFTEN:
            self._check_copy()

    def rest(self) -> None:
        self._note()
        for _ in range(2):
            self._check_copy()

    def _note(self) -> None:
        store = self._world.inner
        for key, (raw, _) in list(store._objects.items()):
            if key.endswith(".json") and self._versions.get(key, [b""])[-1] != raw:
                self._versions.setdefault(key, []).append(raw)
        for partition, head in self._world.checks.heads.items():
            raw = self._versions[keys.head(partition)][-1]
            if raw not in self._heads:
                self._heads[raw] = head, Listed(head.start_offset, head.next_offset, tuple(head.entries))

    def _check_copy(self) -> None:
        heads = self._world.checks.heads
        if not heads:
            return
        copy = DamagedCopy(self._world.inner, self.random)
        for _ in range(self.random.randrange(_DAMAGES_MAX + 1)):
            copy.damage(self._versions)
        for partition in sorted(heads):
            self._recover(copy, partition, f"{TOPIC}@{partition.topic_id}")
        self._recover(copy, None, TOPIC)

    def _recover(self, copy: DamagedCopy, partition: PartitionId | None, asked: str) -> None:
        """partition: of the incarnation that is asked for; None: of the one that the name means"""
        self._number += 1
        into = self._world.root / "damaged" / str(self._number)
        done = f"of {dict(copy.touched)}"
        before = dict(copy._objects)
        options = Options(partitions=1, drop_partitions=True, open_transactions=self.random.choice(("abort", "keep")))
        try:
            plan = recovery.plan(ManifestRepository(copy), [asked], options, clock=self._world.clock)
            said = "\n".join((*plan.left_out, *map(str, plan.holes), *plan.notes, *plan.problems))
            report = recovery.apply(plan, into, copy, clock=self._world.clock, workers=1, recorded=False, skip_damaged=True)
        except HeadwaterError as error:
            self._check_refusal(copy, partition, str(error), done)
            return
        except Exception as error:
            raise Violation(f"I17 a recovery {done} fails: {type(error).__name__}: {error}") from error
        finally:
            if copy._objects != before:
                raise Violation(f"I17 a recovery {done} writes to the bucket")
        said += "\n".join((*report.left_out, *report.notes))
        mark = read_mark(into)
        assert mark
        [topic] = mark.plan.topics
        if partition is None:
            self._check_name(copy, topic.topic_id, said, done)
            partition = next((each for each in self._world.checks.heads if each.topic_id == topic.topic_id), None)
        own = {segment_name(each.base_offset) for each in topic.partitions[0].written}
        try:
            found = [raw for name, raw in _batches(into / f"{TOPIC}-0") if name not in own]
        except CorruptData as error:
            raise Violation(f"I17 what comes back {done} is no log: {error}") from error
        if partition is None:
            if found:
                raise Violation(f"I17 records of a topic that was never archived come back {done}")
        else:
            self._compare(copy, partition, found, said, done)
        shutil.rmtree(into)

    def _check_refusal(self, copy: DamagedCopy, partition: PartitionId | None, text: str, done: str) -> None:
        """It is about a document without which nothing of this topic is known, and names it."""
        documents = [keys.current(TOPIC)] if partition is None else []
        heads = self._world.checks.heads if partition is None else [partition]
        documents += [name for each in heads for name in (keys.head(each), keys.topic_manifest(TOPIC, each.topic_id))]
        if partition is None and (meant := self._versions.get(keys.current(TOPIC))):
            documents.append(keys.topic_manifest(TOPIC, decode_current(meant[-1], TOPIC).topic_id))
        is_made = partition is None or any(info.key == keys.head(partition) for info in copy.list(""))
        if not copy.touched.keys() & {*documents} and is_made and self._is_named(copy):
            raise Violation(f"I17 a recovery {done} is refused: {text}")
        if TOPIC not in text:
            raise Violation(f"I17 a recovery {done} does not say what is damaged: {text}")
        self._saw("a recovery of a damaged bucket is refused")

    def _is_named(self, copy: DamagedCopy) -> bool:
        """Else an incarnation is being made, and is none yet."""
        return any(info.key == keys.current(TOPIC) for info in copy.list(keys.META))

    def _check_name(self, copy: DamagedCopy, topic_id: str, said: str, done: str) -> None:
        """It is the incarnation that the name meant before, or the other one is named."""
        meant = decode_current(self._versions[keys.current(TOPIC)][-1], TOPIC).topic_id
        if topic_id == meant:
            return
        if keys.current(TOPIC) not in copy.touched:
            raise Violation(f"I19 {TOPIC} means {meant}, and {topic_id} comes back {done}")
        if any(name.topic_id == meant and name.partition == 0 for info in copy.list(keys.META) if (name := keys.parse_manifest(info.key))):
            if meant not in said:
                raise Violation(f"I19 {topic_id} comes back for {meant} {done}, and nobody says so: {said}")
            self._saw("a name means what it once meant")

    def _compare(self, copy: DamagedCopy, partition: PartitionId, found: list[bytes], said: str, done: str) -> None:
        key = keys.head(partition)
        held = copy._objects.get(key, (b"", None))[0]
        is_known = held in self._heads and self._heads[held][0].partition_id == partition
        head, listed = self._heads[held if is_known else self._versions[key][-1]]
        wanted = {batch.base: batch.data for entry in listed.kept for batch in self._world.checks.stored(entry)}
        bases = [header_of(raw).base_offset for raw in found]
        if bases != sorted(set(bases)):
            raise Violation(f"I17 what comes back {done} is out of order: {bases}")
        if wrong := [base for base, raw in zip(bases, found, strict=True) if wanted.get(base) != raw]:
            raise Violation(f"I17 what comes back {done} was never archived, from {wrong} on")
        holes = [range(int(first), int(last) + 1) for first, last in _HOLE.findall(said)]
        is_empty = f"{TOPIC}:0 comes back empty" in said or f"{TOPIC}: of partitions 0 there is no manifest" in said
        lost_pages = self._lost_pages(copy, head)
        for entry in listed.kept:
            missing = [batch.base for batch in self._world.checks.stored(entry) if batch.base not in bases]
            if not missing:
                continue
            if is_known and not _is_touched(copy, entry) and not any(entry.base_offset in page for page in lost_pages):
                raise Violation(f"I17 what is sound from {entry.base_offset} on does not come back {done}: {said}")
            if not is_empty and not all(any(base in hole for hole in holes) for base in missing):
                raise Violation(f"I17 offsets from {missing[0]} on do not come back {done}, and nobody says so: {said}")
            self._saw("a hole of a damaged bucket is named")
        if copy.touched and len(bases) == len(wanted):
            self._saw("a damaged bucket comes back whole")
        if is_known and held != self._versions[key][-1]:
            self._check_older(copy, partition, listed, said, done)

    def _check_older(self, copy: DamagedCopy, partition: PartitionId, listed: Listed, said: str, done: str) -> None:
        """What has been archived since is there, and the listing of its names shows that the head knows nothing of it."""
        newer = self._heads[self._versions[keys.head(partition)][-1]][1]
        beyond = [entry for entry in newer.entries if entry.layout in ("segment", "blocks") and entry.base_offset >= listed.next_offset]
        if any(not entry.gap and entry.key in copy._objects for entry in beyond):
            if "ends at offset" not in said:
                raise Violation(f"I17 an older head comes back {done}, and nobody says so: {said}")
            self._saw("an older head comes back, and that is said")

    def _lost_pages(self, copy: DamagedCopy, head: Head) -> list[range]:
        """What pages list that were touched, or are gone since an older head listed them."""
        there = {info.key for info in copy.list(keys.META)}
        names = {page_key(head.partition_id, ref): ref for ref in references_below(head.entries)}
        return [range(ref.base_offset, ref.next_offset) for key, ref in names.items() if key in copy.touched or key not in there]

    def _saw(self, what: str) -> None:
        self._world.result.seen[what] += 1


def _is_touched(copy: DamagedCopy, entry: Entry) -> bool:
    """Is an object of it, or what its layout has beside it, not as it was, or gone?"""
    if entry.gap:
        return False
    data = [key for key, _ in open_layout(entry.layout).data_objects(entry)]
    if copy.touched.keys() & {*data} or any(key not in copy._objects for key in data):
        return True
    chunk = chunk_keys.parse(entry.key)
    if chunk is not None:
        return any(key.startswith(f"{chunk.place.queue}/") for key in copy.touched) or entry.index_key not in copy._objects
    return entry.layout != "segment" and any(key.startswith(entry.key) for key in copy.touched)


def _batches(directory: Path) -> list[tuple[str, bytes]]:
    """With the names of their segments."""
    names = sorted(path.name for path in directory.glob("*.log"))
    return [(max(name for name in names if name <= segment_name(header.base_offset)), raw) for header, raw in batches_in(directory)]
