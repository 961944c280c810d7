"""A bucket of several topics and their earlier incarnations, in every layout, with snapshots of the cluster, that can be damaged; what is
sound in it then, and what must be said of the rest. The ways of damage are in `damage_ways`."""

import io
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import NamedTuple

from archival.cluster_archiver import ClusterArchiver, ClusterArchiverEquipment
from archival.partition.run_names import names_for
from archival.partition.uploads import named_entry, with_offloaded
from headwater_core.clock import SystemClock
from headwater_core.errors import HeadwaterError
from headwater_core.layouts import NewRun, Offloader, open_layout
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.partition import PartitionId, parse_incarnation, topic_id_text
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER
from headwater_core.segments.metadata.record_schemas import ACL, QUOTA, SCRAM, TOKEN, KnownRecord, make_record
from headwater_core.segments.run_scan import scan_run
from manifests import keys
from manifests.document import seal
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.page import PageRef, page_key
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from recovery.recovery_plan import HeldSetting
from recovery.target_record import TargetRecord
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_batch
from tests.recovery.plans import CLUSTER
from tests.recovery.written_archive import Archive

Place = tuple[str, int]
"""A topic as a recovery is asked for it, NAME or, of an earlier incarnation, NAME@TOPIC_ID; and the partition."""

CHUNK_BYTES = 64  # so that a run is cut into several
HEAD_EPOCH = 4  # the leader epoch of every head; snapshots have later ones
HELD_MS = "5000"  # retention of topic-0, which a recovery of before has held back
RECORD = "cluster/recoveries/0123456789abcdef0123456789abcdef.json"
_TOKEN = {"owner": "o", "requester": "r", "renewers": (), "issueTimestamp": 5, "maxTimestamp": 5, "expirationTimestamp": 5}
LAYOUTS: dict[str, Offloader] = {
    "blocks": open_layout("blocks"),
    "streaming": open_layout("streaming"),
    "append": ChunksLayout(Variant.APPEND),
    "fixed": ChunksLayout(Variant.FIXED, CHUNK_BYTES, senders=1),
}


@dataclass(slots=True)
class Log:
    """One partition: its runs, the objects of each by its key, and each document of its head as it was at some time, with how many runs it
    lists."""

    identity: PartitionId
    runs: list[tuple[Entry, list[bytes]]] = field(default_factory=list)
    objects: dict[str, list[str]] = field(default_factory=dict)
    heads: list[tuple[bytes, int]] = field(default_factory=list)

    @property
    def head_key(self) -> str:
        return keys.head(self.identity)


@dataclass(slots=True)
class Incarnation:
    """One life of a name: its partitions, and each version of its manifest."""

    topic: str
    topic_id: str
    partitions: int
    manifests: list[bytes] = field(default_factory=list)


class ArchivedSnapshot(NamedTuple):
    raw: bytes
    state: ClusterMetadata


class DamagedBucket:
    """
    logs       as they were archived, by place
    lives      each incarnation, by how a recovery is asked for it
    currents   of each name, the versions of the document that says which incarnation it means
    lost       runs that are not sound any more, by key
    unlisted   of those, what is on a lost page and not named by itself
    harmed     runs of which an object was changed, by key: those that are not lost come back whole, or are named
    empty      places that come back empty
    listed     how many runs of a place are listed, where an older head was put back
    unreadable topics whose manifest is no manifest; they come back when their partitions are counted
    miscounted topics that have more partitions than their manifest says
    nameless   names of which nobody says any more which incarnation they mean
    copied     names of which an incarnation was copied under another id
    outdated   names that mean an earlier incarnation, as they once did
    doubtful   places of which less than what is sound may come back, or none: their manifest is hostile
    uncertain  of those, where a page is hostile: the runs on it, by key
    dubious    names of which that is so
    said       what the plan must say beside, each by any of several words
    cluster_said  the same of a plan that uses a snapshot of the cluster
    snapshots  those that may come back, by key: as they were archived, or as a list says that they were
    foreign    a listed one of another cluster
    is_list_older  the list is that of before the newest of them; is_list_lost: it is no list any more
    originals  what may be put back of topic-0's retention, "-1": nothing
    is_cluster_harmed  the whole cluster may not come back; is_cluster_hostile: and what does may be otherwise
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(f"damage {seed}")
        self.archive = Archive(MemoryStore(SystemClock()))
        self.store = self.archive.store
        self.repository = ManifestRepository(self.store)
        self.logs: dict[Place, Log] = {}
        self.lives: dict[str, Incarnation] = {}
        self.currents: dict[str, list[bytes]] = {}
        self.lost: set[str] = set()
        self.unlisted: set[str] = set()
        self.harmed: set[str] = set()
        self.empty: set[Place] = set()
        self.listed: dict[Place, int] = {}
        self.unreadable: set[str] = set()
        self.miscounted: set[str] = set()
        self.nameless: set[str] = set()
        self.outdated: set[str] = set()
        self.copied: set[str] = set()
        self.doubtful: set[Place] = set()
        self.uncertain: dict[Place, set[str]] = {}
        self.dubious: set[str] = set()
        self.said: list[tuple[str, ...]] = []
        self.cluster_said: list[tuple[str, ...]] = []
        self.snapshots: dict[str, ArchivedSnapshot] = {}
        self.foreign: ArchivedSnapshot | None = None
        self.is_list_older = self.is_list_lost = False
        self.originals: set[str | None] = {HELD_MS}
        self.is_cluster_harmed = self.is_cluster_hostile = False
        self.did: list[str] = []
        self._touched: set[str] = set()
        self.repository.ensure_owner(CLUSTER)
        for number in range(self.random.randint(2, 3)):
            self._make_topic(f"topic-{number}", number)
        self.lists: list[bytes] = []
        self._take_snapshots()
        self._record_recovery()

    # As it was

    def _make_topic(self, name: str, number: int) -> None:
        if self.random.random() < 0.4:
            topic_id = topic_id_text(bytes([100 + number]) * 16)
            self._write_topic(f"{name}@{topic_id}", topic_id)
        self._write_topic(name, topic_id_text(bytes([number + 1]) * 16))

    def _take_snapshots(self) -> None:
        """Of a cluster that has these topics, and users, ACLs and quotas; the first one of a time when all of it was otherwise."""
        newer = self.state(2)
        states = [replace(self.state(1), end_offset=newer.end_offset - 10), newer]
        equipment = ClusterArchiverEquipment(
            metadata=lambda: states[0],
            store=self.store,
            repository=self.repository,
            cluster_id=lambda: CLUSTER,
            writer="w",
            clock=SystemClock(),
            new_uid=lambda: f"{self.random.randrange(1 << 60):032x}",
        )
        while states:
            taken = ClusterArchiver(equipment).step(requested=True)
            assert taken is not None
            self.snapshots[taken.key] = ArchivedSnapshot(self.store.get(taken.key)[0], states.pop(0))
            self.lists.append(self.store.get(keys.CLUSTER_LIST)[0])

    def state(self, number: int) -> ClusterMetadata:
        """At snapshot `number`: no two have the same settings, levels, epochs, users, ACLs or quotas, so a mixture shows."""
        kitchen = _kitchen()
        topics = {
            name: TopicMetadata(
                name=name,
                topic_id=life.topic_id,
                partitions={
                    each: PartitionMetadata(leader=1, leader_epoch=HEAD_EPOCH + number, replicas=(1,), isr=(1,))
                    for each in range(life.partitions)
                },
                configs=_settings(name, f"{number}000"),
            )
            for name, life in self.names.items()
        }
        settings = {
            (RESOURCE_BROKER, ""): {"background.threads": f"1{number}"},
            (RESOURCE_BROKER, "1"): {"background.threads": f"2{number}"},
            (RESOURCE_BROKER, "2"): {"background.threads": f"3{number}"},
            (32, "cooks"): {"consumer.session.timeout.ms": f"4500{number}"},
        }
        return replace(
            kitchen,
            topics=topics,
            configs={**kitchen.configs, **settings},
            features={**kitchen.features, "metadata.version": 26 + number},
            next_producer_id=kitchen.next_producer_id + 1000 * number,
            others={
                **kitchen.others,
                **{kind: _without_one(kitchen.others[kind], number) for kind in (SCRAM, ACL, QUOTA)},
                TOKEN: {f"token-{number}": make_record(TOKEN, 0, {**_TOKEN, "tokenId": f"token-{number}"})},
            },
        )

    @property
    def names(self) -> dict[str, Incarnation]:
        return {label: life for label, life in self.lives.items() if label == life.topic}

    @property
    def earlier(self) -> list[str]:
        return sorted(self.lives.keys() - self.names.keys())

    def _record_recovery(self) -> None:
        """Somebody recovered the cluster before, and has not put back all that was held back."""
        life = self.lives["topic-0"]
        held = HeldSetting(topic=life.topic, topic_id=life.topic_id, name="retention.ms", value=HELD_MS, recovered="-1")
        record = TargetRecord(
            recovery_id=RECORD.rpartition("/")[2][:32],
            cluster_id=CLUSTER,
            node_id=1,
            host="h",
            directory="/d",
            directory_id=life.topic_id,
            started_ms=1,
            held=(held,),
        )
        self.store.create(RECORD, seal(record))

    def _write_topic(self, label: str, topic_id: str) -> None:
        topic = parse_incarnation(label)[0]
        count = self.random.randint(1, 3)
        life = self.lives[label] = Incarnation(topic, topic_id, count)
        versions = sorted({self.random.randint(1, count), count})
        for partitions in versions:
            configs = _settings(topic, str(partitions))
            manifest = TopicManifest(cluster_id=CLUSTER, topic=topic, topic_id=topic_id, partitions=partitions, configs=configs)
            self.repository.ensure_topic(manifest)
            life.manifests.append(self.store.get(keys.topic_manifest(topic, topic_id))[0])
        self.currents.setdefault(topic, []).append(self.store.get(keys.current(topic))[0])
        for partition in range(count):
            self.logs[label, partition] = self._write_log(manifest.partition_id(partition))

    def _write_log(self, identity: PartitionId) -> Log:
        log, held = Log(identity), None
        entries: list[Entry] = []
        for at in range(self.random.randint(1, 9)):
            base = entries[-1].next_offset if entries else 0
            batches = []
            for _ in range(self.random.randint(1, 3)):
                count = self.random.randint(1, 4)
                batches.append(a_batch(base, [self.random.randbytes(self.random.randint(1, 30)) for _ in range(count)]))
                base += count
            before_keys = {info.key for info in self.store.list("")}
            entry = self._offload(identity, batches, entries)
            log.objects[entry.key] = sorted({info.key for info in self.store.list("")} - before_keys)
            entries.append(entry)
            log.runs.append((entry, batches))
            before = held.head.entries if held else EntryTree()
            head = Head(
                cluster_id=identity.cluster_id,
                topic=identity.topic,
                topic_id=identity.topic_id,
                partition=identity.partition,
                version=at + 1,
                commit_id="c",
                fence=1,
                writer="w",
                leader_epoch=HEAD_EPOCH,
                start_offset=0,
                last_offset=entry.last_offset,
                entries=before.followed_by(entry),
            )
            held = self.repository.commit(held, head)
            log.heads.append((self.store.get(log.head_key)[0], len(entries)))
        return log

    def _offload(self, identity: PartitionId, batches: Sequence[bytes], entries: Sequence[Entry]) -> Entry:
        """In Kafka's own bytes, or in another layout."""
        made = self.random.randrange(1 << 32)
        kind = self.random.choice(["segment", "segment", "segment", *LAYOUTS])
        if kind == "segment":
            return self.archive._entry(identity, batches, entries, made=made)
        raw, offloader = b"".join(batches), LAYOUTS[kind]
        scan = scan_run(io.BytesIO(raw), start=0, end=len(raw), open_before=(), where="run")
        assert scan is not None
        bounds = scan.base_offset, scan.last_offset
        names = names_for(identity, offloader, f"{identity.topic_id}-1", lambda: f"{made:08x}{scan.base_offset:024x}")
        entry = named_entry(names.following(entries[-1] if entries else None, *bounds, len(raw), 1), *bounds, scan, 1, offloader.name)
        [done] = offloader.offload(self.store, [NewRun(identity, *bounds, entry.key, entry.index_key, io.BytesIO(raw), scan)], {})
        return with_offloaded(entry, done)

    # What is done to it

    def take(self, key: str) -> bytes | None:
        """The document or object, unless something was done to it, or it is gone."""
        if key in self._touched or not self.holds(key):
            return None
        self._touched.add(key)
        return self.store.get(key)[0]

    def holds(self, key: str) -> bool:
        return any(info.key == key for info in self.store.list(key))

    def is_touched(self, *names: str) -> bool:
        return bool(self._touched & {*names})

    def touch(self, *names: str) -> None:
        self._touched |= {*names}

    def put(self, key: str, raw: bytes | None) -> None:
        self.store.delete(key)
        if raw is not None:
            self.store.create(key, raw)

    def changed(self, raw: bytes) -> bytes | None:
        """Missing, truncated, longer, flipped, zeroed or empty."""
        at = self.random.randrange(len(raw))
        return self.random.choice(
            [
                None,
                raw[:at],
                raw + raw[at:],
                raw[:at] + bytes([raw[at] ^ 1 << self.random.randrange(8)]) + raw[at + 1 :],
                bytes(len(raw)),
                b"",
            ]
        )

    def place(self) -> Place:
        return self.random.choice(sorted(self.logs))

    def run(self) -> tuple[Place, Entry]:
        place = self.place()
        return place, self.random.choice(self.logs[place].runs)[0]

    def label(self) -> str:
        return self.random.choice(sorted(self.lives))

    def lose(self, entry: Entry) -> None:
        self.lost.add(entry.key)
        self.harmed.add(entry.key)

    def listed_on(self, place: Place, ref: PageRef) -> list[str]:
        return [entry.key for entry, _ in self.logs[place].runs if ref.base_offset <= entry.base_offset <= ref.last_offset]

    def lose_page(self, place: Place, ref: PageRef) -> None:
        listed = self.listed_on(place, ref)
        self.lost |= {*listed}
        self.unlisted |= {*listed[1:]}  # the page is named by where it begins

    def page(self) -> tuple[Place, PageRef, str] | None:
        """One that its head refers to, and its key."""
        place = self.place()
        log = self.logs[place]
        refs = [] if place in self.listed or log.head_key in self._touched else list(_refs(self.repository, log.identity))
        if not refs:
            return None
        ref = self.random.choice(refs)
        return place, ref, page_key(log.identity, ref)

    # What must come of it

    def runs(self, place: Place) -> list[tuple[Entry, list[bytes]]]:
        """Those that are listed and not lost."""
        if place in self.empty:
            return []
        runs = self.logs[place].runs[: self.listed.get(place, len(self.logs[place].runs))]
        return [(entry, batches) for entry, batches in runs if entry.key not in self.lost]

    def sound(self, place: Place, said: str = "") -> list[bytes]:
        """The batches that come back; of harmed runs those that `said` does not name."""
        where = where_of(place)
        return [
            batch
            for entry, batches in self.runs(place)
            if entry.key not in self.harmed or f"{where} offsets {entry.base_offset}-" not in said
            for batch in batches
        ]

    def certain(self, place: Place) -> list[bytes]:
        """What comes back whatever a hostile page does; nothing where the head is hostile."""
        runs = self.runs(place) if place in self.uncertain else []
        return [batch for entry, batches in runs if entry.key not in self.uncertain[place] | self.harmed for batch in batches]

    def places(self, label: str) -> list[Place]:
        return [(label, number) for number in range(self.lives[label].partitions)]

    def lives_of(self, name: str) -> list[str]:
        """Every incarnation of it."""
        return [label for label, life in self.lives.items() if life.topic == name]

    def comes_back_as(self, label: str, *, cluster: bool, counted: bool, by_id: bool = False) -> str | None:
        """Which incarnation a recovery that is asked for `label` brings back; None: none, and says so."""
        if label in self.names and not (cluster or by_id):
            if label in self.outdated:
                [label] = [each for each in self.earlier if self.lives[each].topic == label]
            elif label in self.nameless and (len(self.lives_of(label)) > 1 or label in self.copied):
                return None
        return None if label in self.unreadable and not (cluster or counted) else label

    def snapshot_key(self) -> str:
        """Of the snapshot that a plan uses when it can be made."""
        first, newest = sorted(self.snapshots)
        return first if self.is_list_older or (self.is_list_lost and not self.holds(newest)) else newest

    def snapshot(self) -> ArchivedSnapshot:
        """As it then comes back: a foreign one where nobody can tell that the archive was not taken over from that cluster."""
        if self.foreign is not None and self.is_touched(keys.OWNER):
            return self.foreign
        return self.snapshots[self.snapshot_key()]

    def cluster_must_be_said(self) -> Iterator[tuple[str, ...]]:
        """By a plan that uses a snapshot, each by any of several words. When the list is an older one and the newer snapshot is gone,
        nothing is left that says so."""
        yield from self.cluster_said
        newest = max(self.snapshots)
        if self.holds(newest) and self.is_list_older:
            yield ("not listed: ",)
        elif not self.is_list_older and not (self.holds(newest) and self.store.get(newest)[0] == self.snapshots[newest].raw):
            yield newest, keys.CLUSTER_LIST

    def is_damaged(self) -> bool:
        """Is anything of what is listed harmed, or not there? Not of what is doubtful, which may be harmless."""
        if self.empty or self.unreadable or self.nameless:
            return True
        logs = {place: log for place, log in self.logs.items() if place not in self.doubtful}
        return any(
            entry.key in self.harmed | self.lost
            for place, log in logs.items()
            for entry, _ in log.runs[: self.listed.get(place, len(log.runs))]
        )

    def everything(self, place: Place) -> list[bytes]:
        return [batch for _, batches in self.logs[place].runs for batch in batches]

    def must_be_said(self, label: str) -> Iterator[str]:
        """Of the partitions of what comes back, by the plan, or the recovery that it makes."""
        for place in self.places(label):
            log = self.logs[place]
            where, listed = where_of(place), self.listed.get(place, len(log.runs))
            if place in self.doubtful:
                continue
            if place in self.empty:
                yield f"{self.lives[label].topic}:"
                continue
            for entry, _ in log.runs[:listed]:
                if entry.key in self.lost - self.unlisted:
                    yield f"{where} offsets {entry.base_offset}-"
            if any(info.key == entry.key for entry, _ in log.runs[listed:] if _says_offsets(entry) for info in self.store.list(entry.key)):
                yield f"{where} ends at offset"


def where_of(place: Place) -> str:
    """As people read it."""
    return f"{parse_incarnation(place[0])[0]}:{place[1]}"


def says(raw: bytes) -> object:
    """What a document says, as plain values; the bytes where it says nothing."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw


def _settings(topic: str, segment_ms: str) -> dict[str, str]:
    """A recovery of before has held back the retention of topic-0, and nobody has put it back."""
    held = {"retention.ms": "-1"} if topic == "topic-0" else {"retention.ms": "7000"}
    return {"cleanup.policy": "delete", "segment.ms": segment_ms, **held}


def _without_one(records: Mapping[Hashable, KnownRecord], number: int) -> Mapping[Hashable, KnownRecord]:
    return {about: record for at, (about, record) in enumerate(records.items(), 1) if at != number}


@cache
def _kitchen() -> ClusterMetadata:
    return MetadataLog(unpack("kitchen") / DIRECTORY).read()


def _says_offsets(entry: Entry) -> bool:
    """Else nobody sees in a listing what it is that no head lists."""
    return entry.layout in ("segment", "blocks")


def _refs(repository: ManifestRepository, identity: PartitionId) -> Iterator[PageRef]:
    """The pages right below the head as it is; none where it cannot be read."""
    try:
        held = repository.load(identity)
    except HeadwaterError:
        return
    if held is not None:
        yield from (item for item in held.head.entries.items if not isinstance(item, Entry))
