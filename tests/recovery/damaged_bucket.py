"""A bucket of several topics, in every layout and with a snapshot of the cluster, damaged by a seed in several ways at once; what of it is
sound, and what must be said of the rest."""

import io
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any

from archival.cluster_archiver import ClusterArchiver, ClusterArchiverEquipment
from archival.partition.run_names import names_for
from archival.partition.uploads import named_entry, with_offloaded
from headwater_core.clock import SystemClock
from headwater_core.layouts import NewRun, Offloader, open_layout
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.partition import PartitionId, topic_id_text
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from headwater_core.segments.run_scan import scan_run
from manifests import document, keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_batch
from tests.recovery.plans import CLUSTER
from tests.recovery.written_archive import Archive

Place = tuple[str, int]
OTHER_TOPIC = topic_id_text(b"\xfe" * 16)
CHUNK_BYTES = 64  # so that a run is cut into several
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


class DamagedBucket:
    """
    logs       as they were archived, by place
    lost       runs that are not sound any more, by key
    unlisted   of those, what is on a lost page and not named by itself
    harmed     runs of which an object was changed, by key: those that are not lost come back whole, or are named
    empty      places that come back empty
    gone       topics that do not come back at all
    listed     how many runs of a place are listed, where an older head was put back
    doubtful   places of which less than what is sound may come back, or none: their manifest is hostile
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(f"damage {seed}")
        self.archive = Archive(MemoryStore(SystemClock()))
        self.store = self.archive.store
        self.repository = ManifestRepository(self.store)
        self.logs: dict[Place, Log] = {}
        self.lost: set[str] = set()
        self.unlisted: set[str] = set()
        self.harmed: set[str] = set()
        self.empty: set[Place] = set()
        self.gone: set[str] = set()
        self.listed: dict[Place, int] = {}
        self.doubtful: set[Place] = set()
        self.did: list[str] = []
        self._touched: set[str] = set()
        for number in range(self.random.randint(2, 3)):
            self._make_topic(f"topic-{number}", number)
        self.is_cluster_harmed = False
        self._take_snapshot()

    # As it was

    def _make_topic(self, name: str, number: int) -> None:
        if self.random.random() < 0.3:
            self._write_topic(name, topic_id_text(bytes([100 + number]) * 16), kept=False)  # its earlier incarnation
        self._write_topic(name, topic_id_text(bytes([number + 1]) * 16), kept=True)

    def _take_snapshot(self) -> None:
        """Of a cluster that has these topics, and users, ACLs and quotas."""
        logs = [log.identity for log in self.logs.values()]
        topics = {
            name: TopicMetadata(
                name=name,
                topic_id=topic_id,
                partitions={
                    each.partition: PartitionMetadata(leader=1, leader_epoch=4, replicas=(1,), isr=(1,))
                    for each in logs
                    if each.topic == name
                },
                configs={"cleanup.policy": "delete"},
            )
            for name, topic_id in sorted({(each.topic, each.topic_id) for each in logs})
        }
        state = replace(_kitchen(), topics=topics)
        equipment = ClusterArchiverEquipment(
            metadata=lambda: state,
            store=self.store,
            repository=self.repository,
            cluster_id=lambda: CLUSTER,
            writer="w",
            clock=SystemClock(),
            new_uid=lambda: f"{self.random.randrange(1 << 60):032x}",
        )
        ClusterArchiver(equipment).step()

    def _write_topic(self, name: str, topic_id: str, *, kept: bool) -> None:
        count = self.random.randint(1, 3)
        manifest = TopicManifest(cluster_id=CLUSTER, topic=name, topic_id=topic_id, partitions=count, configs={"cleanup.policy": "delete"})
        self.repository.ensure_topic(manifest)
        for partition in range(count):
            log = self._write_log(manifest.partition_id(partition))
            if kept:
                self.logs[name, partition] = log

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
                leader_epoch=4,
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

    def damage(self) -> None:
        """One thing, to something that nothing was done to yet."""
        ways: list[Callable[[], bool]] = [
            self._object,
            self._object,
            self._swap,
            self._index,
            self._beside,
            self._extra,
            self._page,
            self._head,
            self._older_head,
            self._hostile_head,
            self._topic,
            self._owner,
            self._cluster,
        ]
        way = self.random.choice(ways)
        if way():
            self.did.append(way.__name__)

    def _take(self, key: str) -> bytes | None:
        """The document or object, unless something was done to it, or it is gone."""
        if key in self._touched or not any(info.key == key for info in self.store.list(key)):
            return None
        self._touched.add(key)
        return self.store.get(key)[0]

    def _put(self, key: str, raw: bytes | None) -> None:
        self.store.delete(key)
        if raw is not None:
            self.store.create(key, raw)

    def _changed(self, raw: bytes) -> bytes | None:
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

    def _run(self) -> tuple[Place, Entry]:
        place = self.random.choice(sorted(self.logs))
        return place, self.random.choice(self.logs[place].runs)[0]

    def _object(self) -> bool:
        """One that holds the run's own bytes, or a part of them."""
        place, entry = self._run()
        key, _ = self.random.choice(open_layout(entry.layout).data_objects(entry))
        raw = self._take(key)
        if raw is None:
            return False
        changed = self._changed(raw)
        self._put(key, changed)
        self.harmed.add(entry.key)
        is_wrapped = entry.layout in ("blocks", "streaming")  # not every byte of it is of the run
        if not is_wrapped or changed is None or len(changed) < len(raw) or not any(changed):
            self._lose(place, entry)
        return True

    def _beside(self) -> bool:
        """What a layout has beside them: an index, or what says where the run lies."""
        place, entry = self._run()
        data = {key for key, _ in open_layout(entry.layout).data_objects(entry)}
        others = [key for key in self.logs[place].objects[entry.key] if key not in data]
        if not others:
            return False
        key = self.random.choice(others)
        raw = self._take(key)
        if raw is None:
            return False
        self._put(key, self._changed(raw))
        self.harmed.add(entry.key)
        return True

    def _swap(self) -> bool:
        """Two objects, each in the other's place."""
        (one_place, one), (other_place, other) = self._run(), self._run()
        if one.key == other.key or {one.key, other.key} & self._touched:
            return False
        mine, theirs = self._take(one.key), self._take(other.key)
        if mine is None or theirs is None:
            return False
        self._put(one.key, theirs)
        self._put(other.key, mine)
        self._lose(one_place, one)
        self._lose(other_place, other)
        return True

    def _lose(self, place: Place, entry: Entry) -> None:
        self.lost.add(entry.key)
        self.harmed.add(entry.key)

    def _index(self) -> bool:
        """Nothing that is recovered rests on it: these runs have no transactions."""
        _, entry = self._run()
        raw = self._take(entry.index_key) if entry.index_key and entry.layout == "segment" else None
        if raw is not None:
            self._put(entry.index_key, self._changed(raw))
            self.harmed.add(entry.key)
        return raw is not None

    def _extra(self) -> bool:
        """What no head lists: an upload that was not finished, or a copy by another hand."""
        place, entry = self._run()
        identity = self.logs[place].identity
        base = self.random.choice((entry.base_offset, entry.next_offset + 1000))
        key = keys.data(identity, base, base + 5, self.random.randint(1, 9), f"{self.random.randrange(1 << 60):032x}")
        self._put(key, self.random.choice((b"", b"rubbish", self.random.randbytes(200))))
        return True

    def _page(self) -> bool:
        place = self.random.choice(sorted(self.logs))
        log = self.logs[place]
        refers = {ref.uid for ref in _refs(self.repository, log.identity)}
        prefix = keys.manifest_prefix(log.identity)
        pages = [info.key for info in self.store.list(prefix) if info.key != log.head_key and any(uid in info.key for uid in refers)]
        if not pages or place in self.listed or log.head_key in self._touched:
            return False
        key = self.random.choice(sorted(pages))
        [ref] = [each for each in _refs(self.repository, log.identity) if each.uid in key]
        raw = self._take(key)
        if raw is None:
            return False
        self._touched.add(log.head_key)
        self._put(key, self._changed(raw))
        listed = [entry.key for entry, _ in log.runs if ref.base_offset <= entry.base_offset <= ref.last_offset]
        self.lost |= {*listed}
        self.unlisted |= {*listed[1:]}  # the page is named by where it begins
        return True

    def _head(self) -> bool:
        place = self.random.choice(sorted(self.logs))
        log = self.logs[place]
        raw = self._take(log.head_key)
        if raw is None:
            return False
        changed = self._changed(raw)
        if self.random.random() < 0.3:
            other = self.logs[self.random.choice(sorted(self.logs))]
            changed = other.heads[-1][0]
            if other is log:
                return True
        if changed is not None and _says(changed) == _says(raw):
            return True
        self._put(log.head_key, changed)
        self._empty(place)
        return True

    def _older_head(self) -> bool:
        place = self.random.choice(sorted(self.logs))
        log = self.logs[place]
        if len(log.heads) < 2 or self._take(log.head_key) is None:
            return False
        raw, listed = self.random.choice(log.heads[:-1])
        self._put(log.head_key, raw)
        self.listed[place] = listed
        return True

    def _empty(self, place: Place) -> None:
        self.empty.add(place)

    def _hostile_head(self) -> bool:
        """Sealed as every document is, with what no agent writes."""
        place = self.random.choice(sorted(self.logs))
        log = self.logs[place]
        raw = self._take(log.head_key)
        if raw is None:
            return False
        body = json.loads(raw)
        body.pop("digest")
        self._poison(body)
        body["digest"] = document._digest(body)
        self._put(log.head_key, json.dumps(body).encode())
        self.doubtful.add(place)
        return True

    def _poison(self, body: dict[str, Any]) -> None:
        random = self.random
        huge = random.choice((-1, 2**31, 2**62, 2**63 - 1, 2**63, 2**70))
        name = random.choice(("../../../evil", "/evil", "", ".", "a\0b", "x" * 300, "data/../../evil"))
        entries = [each for each in body["entries"] if "key" in each or "uid" in each]
        targets: list[tuple[dict[str, Any], str, Any]] = [
            (body, "topic", name),
            (body, "topic_id", random.choice((name, OTHER_TOPIC))),
            (body, "cluster_id", random.choice((name, "another"))),
            (body, "partition", huge),
            (body, "last_offset", huge),
            (body, "start_offset", huge),
            (body, "version", huge),
            (body, "fence", huge),
            (body, "leader_epoch", huge),
            (body, "format", [9, 0]),
            (body, "entries", "none"),
        ]
        if entries:
            entry = random.choice(entries)
            targets += [
                (entry, "key", random.choice((name, "data/ab/evil"))),
                (entry, "uid", name),
                (entry, "base_offset", huge),
                (entry, "last_offset", huge),
                (entry, "size_bytes", huge),
                (entry, "live_bytes", huge),
                (entry, "records", huge),
                (entry, "layout", random.choice((name, "blocks"))),
                (entry, "index_key", name),
                (entry, "epochs", [[huge, 0]]),
            ]
        where, what, value = random.choice(targets)
        where[what] = value

    def _topic(self) -> bool:
        topic = self.random.choice(sorted({name for name, _ in self.logs}))
        [topic_id] = {log.identity.topic_id for (name, _), log in self.logs.items() if name == topic}
        key = self.random.choice((keys.current(topic), keys.topic_manifest(topic, topic_id)))
        if topic in self.gone:
            return False
        raw = self._take(key)
        if raw is None:
            return False
        changed = self._changed(raw)
        if self.random.random() < 0.3:
            others = sorted(info.key for info in self.store.list("meta/") if info.key.rpartition("/")[2] == key.rpartition("/")[2])
            other = self.random.choice(others)
            if other == key:
                return True
            changed = self.store.get(other)[0]
        if changed is not None and _says(changed) == _says(raw):
            return True
        self._put(key, changed)
        self.gone.add(topic)
        return True

    def _cluster(self) -> bool:
        """The snapshot, or the list of snapshots."""
        raw = self._take(key := self.random.choice(sorted(info.key for info in self.store.list(keys.CLUSTER))))
        if raw is not None:
            self._put(key, self._changed(raw))
            self.is_cluster_harmed = True
        return raw is not None

    def _owner(self) -> bool:
        raw = self._take(keys.OWNER)
        if raw is not None:
            self._put(keys.OWNER, self._changed(raw))
        return raw is not None

    # What must come of it

    def runs(self, place: Place) -> list[tuple[Entry, list[bytes]]]:
        """Those that are listed and not lost."""
        if place in self.empty or place[0] in self.gone:
            return []
        runs = self.logs[place].runs[: self.listed.get(place, len(self.logs[place].runs))]
        return [(entry, batches) for entry, batches in runs if entry.key not in self.lost]

    def sound(self, place: Place, said: str = "") -> list[bytes]:
        """The batches that come back; of harmed runs those that `said` does not name."""
        where = "{}:{}".format(*place)
        return [
            batch
            for entry, batches in self.runs(place)
            if entry.key not in self.harmed or f"{where} offsets {entry.base_offset}-" not in said
            for batch in batches
        ]

    def is_damaged(self) -> bool:
        """Is anything of what is listed harmed, or not there? Not of what is doubtful, which may be harmless."""
        if self.gone or self.empty:
            return True
        logs = {place: log for place, log in self.logs.items() if place not in self.doubtful}
        return any(
            entry.key in self.harmed | self.lost
            for place, log in logs.items()
            for entry, _ in log.runs[: self.listed.get(place, len(log.runs))]
        )

    def everything(self, place: Place) -> list[bytes]:
        return [batch for _, batches in self.logs[place].runs for batch in batches]

    def must_be_said(self, came_back: Collection[str] = ()) -> Iterator[str]:
        """By the plan, or the recovery that it makes. came_back: topics that a snapshot of the cluster has helped to find"""
        yield from self.gone.difference(came_back)
        for place, log in self.logs.items():
            where, listed = "{}:{}".format(*place), self.listed.get(place, len(log.runs))
            if place[0] in self.gone or place in self.doubtful:
                continue
            if place in self.empty:
                yield f"{place[0]}:"
                continue
            for entry, _ in log.runs[:listed]:
                if entry.key in self.lost - self.unlisted:
                    yield f"{where} offsets {entry.base_offset}-"
            if any(info.key == entry.key for entry, _ in log.runs[listed:] if _says_offsets(entry) for info in self.store.list(entry.key)):
                yield f"{where} ends at offset"


@cache
def _kitchen() -> ClusterMetadata:
    return MetadataLog(unpack("kitchen") / DIRECTORY).read()


def _says_offsets(entry: Entry) -> bool:
    """Else nobody sees in a listing what it is that no head lists."""
    return entry.layout in ("segment", "blocks")


def _refs(repository: ManifestRepository, identity: PartitionId) -> Iterator[Any]:
    """The pages right below the head as it is; none where it cannot be read."""
    try:
        held = repository.load(identity)
    except Exception:
        return
    if held is not None:
        yield from (item for item in held.head.entries.items if not isinstance(item, Entry))


def _says(raw: bytes) -> object:
    try:
        return json.loads(raw)
    except ValueError:
        return raw
