"""What is checked of the bucket, read directly (design §9)."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from archival.config import ArchivalConfig
from headwater_core.clock import Clock
from headwater_core.control.state import ControlState
from headwater_core.errors import CorruptData, HeadwaterError, NotFound
from headwater_core.layouts import open_layout
from headwater_core.objectstore.digest import Digest, value_of
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, NO_METADATA, ObjectInfo
from headwater_core.partition import PartitionId
from headwater_core.segments.batches import read_batch_header
from headwater_core.segments.markers import ABORT, read_marker
from headwater_core.segments.records import decode_batch
from headwater_core.segments.transactions import Transactions
from manifests import chunk_keys, keys
from manifests.archivedrun import ArchivedRun
from manifests.entry import Entry, EpochOffset
from manifests.entry_tree import EntryBag
from manifests.head import Head, check_head, decode_head
from manifests.page import Item, PageRef, page_key
from manifests.page_limits import PageLimits, Room
from manifests.page_store import PageStore, PartitionPages
from manifests.repository import ManifestRepository
from manifests.topic import decode_current
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.simulation.brokers import Batch, Brokers, Place, Replica, Row, table_of
from tests.simulation.segments import Segments
from tests.simulation.versions import Version


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One batch inside an object."""

    base: int
    last: int
    epoch: int
    data: bytes
    end: int


class WatchedStore(MemoryStore):
    """Remembers every head that was written, since several may be between two looks."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.heads: list[tuple[str, bytes]] = []
        self.deleted: dict[str, tuple[bytes, ObjectInfo]] = {}  # since the last look
        self.deleted_metadata: dict[str, Mapping[str, str]] = {}
        self.names: dict[str, list[str]] = {}  # by topic: the incarnations that its name has meant, in order

    def _keep(self, key: str, content: bytes) -> str:
        if key.endswith("/manifest.json"):
            self.heads.append((key.split("/")[2], bytes(content)))
        if topic := keys.parse_current(key):
            meant = self.names.setdefault(topic, [])
            meant.append(decode_current(content, topic).topic_id)
        return super()._keep(key, content)

    def delete(self, key: str) -> None:
        with suppress(NotFound):
            self.deleted[key] = super().get(key)[0], super().stat(key)
            self.deleted_metadata[key] = self._metadata.get(key, NO_METADATA)
        super().delete(key)

    def passed_s(self) -> float:
        return self._clock.monotonic_s()


class JustNow(WatchedStore):
    """What was in a store since the last look: several heads may have been written since, and what the first of them lists deleted."""

    def __init__(self, store: WatchedStore) -> None:
        self._store = store

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        return (found[0], found[1].tag) if (found := self._store.deleted.get(key)) else self._store.get(key)

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        piece = self.get(key)[0][start : start + len(buffer)]
        buffer[:] = piece
        return self._store.deleted_metadata.get(key) or self._store._metadata.get(key, NO_METADATA)

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        for buffer in buffers:
            self.read_into(key, buffer, start=start)
            start += len(buffer)
            yield

    def stat(self, key: str) -> ObjectInfo:
        return found[1] if (found := self._store.deleted.get(key)) else self._store.stat(key)


class Checks:
    """Looks at the inner store after every action; remembers the newest head of each incarnation."""

    def __init__(
        self, store: "WatchedStore", brokers: Brokers, limits: PageLimits, retention: ArchivalConfig, *, keeps_tables: bool = False
    ) -> None:
        """
        keeps_tables  only an unclean election changes what a reader of the archive alone ends with, up to where that ended
        """
        self._keeps_tables = keeps_tables
        self._store, self._brokers, self._retention = store, brokers, retention
        self._left_s: dict[str, float] = {}  # by key: when a head first did not list any more what the one before did
        self._superseded_s: dict[tuple[int, int], float] = {}  # by base and epoch: since when it has been listed as superseded
        self._trimmed: dict[PartitionId, set[tuple[int, int]]] = {}  # (base, epoch) of what the archive's own retention has let go
        self._parsed: dict[str, list[Stored]] = {}
        self._committed: dict[str, set[tuple[int, int]]] = {}  # by topic id: (base, epoch) that some high watermark has covered
        self.heads: dict[PartitionId, Head] = {}
        self.consents: dict[str, int] = {}  # by topic id: a log that begins in this epoch may supersede what it shares nothing with
        self.beside: dict[str, int] = {}  # by writer: which replica it archives
        self.limits = limits
        self.deepest = 0  # how many levels of pages a head has had
        self.carried_over = False  # has there been a head of format 1 before one of format 2?
        self.segments = Segments(store)
        self._just_now = JustNow(store)
        self._pages = PageStore(self._just_now, lambda: "", lambda partition, ref: True)
        self._known_pages: dict[PartitionId, set[str]] = {}
        self._forgotten: dict[tuple[str, EpochOffset | None], set[Place]] = {}  # by uid: what the log that it was read from had lost

    def head(self, partition: PartitionId) -> Head | None:
        return self.heads.get(partition)

    def after_action(self) -> None:
        """Everything that must hold between two actions."""
        partition = self._brokers.partition
        committed = self._committed.setdefault(partition.topic_id, set())
        for replica in self._brokers.replicas:
            for batch in replica.batches():
                if batch.last >= replica.hw:
                    break
                committed.add((batch.base, batch.epoch))
        written, self._store.heads = self._store.heads, []
        for topic_id, raw in written:
            self._look(PartitionId(partition.cluster_id, topic_id, 0, partition.topic), raw)
        for topic_id in {topic_id for topic_id, _ in written}:
            head = self.heads[PartitionId(partition.cluster_id, topic_id, 0, partition.topic)]
            if wrong := self.segments.look(partition.topic_partition, head):
                raise Violation(f"I2 {wrong}")
        self._collected()
        self._released(partition)

    def _look(self, partition: PartitionId, raw: bytes) -> None:
        try:
            head = decode_head(raw, partition, PartitionPages(self._pages, partition))
            entries = (*head.entries, *head.superseded)
        except HeadwaterError as error:
            raise Violation(f"I4 the head is no valid one, or a page of it: {error}") from error
        before = self.heads.get(partition)
        self.heads[partition] = head
        self._paged(partition, head)
        self._succession(before, head)
        self._pending(head)
        for entry in entries:
            self._listed(partition, entry)
        if not self._brokers.compacted:
            for entry in head.entries:
                self._complete(entry)
        places = [(entry.uid, entry.base_offset) for entry in entries if not entry.gap]
        if len(set(places)) < len(places):
            raise Violation(f"I4 an entry is listed twice: {sorted(places)}")
        epochs = [epoch for entry in head.entries for epoch, _ in entry.epochs]
        if epochs != sorted(epochs):
            raise Violation(f"I6 epochs of live entries go back: {epochs}")
        live = {(batch.base, batch.epoch) for entry in head.entries for batch in self.stored(entry)}
        if above := sorted(live - self._committed[partition.topic_id]):
            raise Violation(f"I1 batches are live that no high watermark has covered: {above}")
        if partition == self._brokers.partition:
            self._read_from(head)
        self._left(before, head)
        if before:
            self._trim(before, head)
            self._superseded(before, head)
            if self._keeps_tables and not self._brokers.was_unclean and not before.entries.gaps:
                self._kept_table(before, head)
        if before and partition == self._brokers.partition:
            self._published(before, head)

    def _paged(self, partition: PartitionId, head: Head) -> None:
        """I2, I8: a commit adds pages of its own fence only, each under a name of its own; what the head itself holds stays small."""
        room = self.limits
        lists: list[tuple[Sequence[Item], Room]] = [
            (head.entries.newest, room.entries),
            (head.entries.references, room.references),
            (head.superseded.newest, room.superseded),
            (head.superseded.references, room.superseded_references),
        ]
        if head.format[0] > 1 and not all(limit.holds(listed) for listed, limit in lists):
            raise Violation(f"I4 the head holds {[len(listed) for listed, _ in lists]} entries and references")
        known = self._known_pages.setdefault(partition, set())
        now = {page_key(partition, ref): ref for bag in (head.entries, head.superseded) for ref in references_below(bag)}
        if foreign := [key for key, ref in now.items() if key not in known and ref.fence != head.fence]:
            raise Violation(f"I8 a commit under fence {head.fence} adds pages of another one: {foreign}")
        known.update(now)
        self.deepest = max([self.deepest, *(ref.level + 1 for ref in now.values())])

    def _read_from(self, head: Head) -> None:
        replica = self._brokers.replicas[self.beside[head.writer]]
        for entry in head.entries:
            by = entry.displaced_by
            if by and (entry.uid, by) not in self._forgotten and replica.epoch_at(by.offset) == by.leader_epoch:
                self._forgotten[entry.uid, by] = self._brokers.forgotten(replica, entry.base_offset, entry.last_offset, by.offset)

    def _succession(self, before: Head | None, head: Head) -> None:
        if head.version != (before.version if before else 0) + 1:
            raise Violation(f"I7 manifest versions are no chain: {before.version if before else 0} then {head.version}")
        if before is None:
            return
        if head.fence < before.fence or (head.fence == before.fence and head.writer != before.writer):
            raise Violation(f"I8 {head.writer} with fence {head.fence} follows {before.writer} with {before.fence}")
        if head.format < before.format:
            raise Violation(f"I8 {head.writer} writes format {head.format} over {before.format}, and what it does not know is lost")
        self.carried_over |= head.format[0] > before.format[0]
        if head.leader_epoch < before.leader_epoch:
            raise Violation(f"I6 lineage knowledge went back: epoch {head.leader_epoch} after {before.leader_epoch}")
        listed = {entry.uid for entry in (*before.entries, *before.superseded)}
        pending = {each.uid for each in before.pending if each.is_assigned}
        for entry in head.entries:
            if entry.gap or entry.uid in listed or entry.uid in pending or _segment(entry) in pending:
                continue
            if entry.fence != head.fence:
                raise Violation("I8 a commit adds an object of another fence")
            if entry.layout == "streaming":
                raise Violation(f"I8 a commit adds {entry.uid}, which was not pending")

    def _pending(self, head: Head) -> None:
        """I2: what is pending is listed nowhere, and begins where the live entries end: one at a time."""
        assigned = [each for each in head.pending if each.is_assigned]
        listed = {entry.uid for entry in (*head.entries, *head.superseded)}
        if len(assigned) > 1 or any(each.uid in listed or each.base_offset != head.next_offset for each in assigned):
            raise Violation(f"I2 pending {head.pending} in a head that ends at {head.last_offset}")

    def _superseded(self, before: Head, head: Head) -> None:
        """I24: what is live is superseded for a log that was once one with it, or because an operator consented."""
        had, has = ({(batch.base, batch.epoch) for entry in each.entries for batch in self.stored(entry)} for each in (before, head))
        written = self._brokers.lineage.get((head.topic_id, head.leader_epoch), set())
        consented = bool(written) and min(written) <= self.consents.get(head.topic_id, -1)
        lost = had - has - self.trimmed(head.partition_id)
        if lost and written.isdisjoint(epoch for _, epoch in had) and not consented:
            raise Violation(f"I24 a log of epochs {sorted(written)} supersedes an archive that it shares nothing with: {sorted(had - has)}")

    def trimmed(self, partition: PartitionId) -> set[tuple[int, int]]:
        return self._trimmed.setdefault(partition, set())

    def _collected(self) -> None:
        """I3, I20: what is deleted is not listed, and has not been for the reader lease."""
        deleted, self._store.deleted = self._store.deleted, {}
        if not deleted:
            return
        listed = {key for head in self.heads.values() for key in self._keys(head)}
        for key in deleted:
            if key in listed:
                raise Violation(f"I3 {key} was deleted, and is listed")
            age_s = round(self._store.passed_s() - self._left_s.get(key, float("-inf")), 6)  # of sums that are not exact
            if age_s < self._retention.reader_lease_s:
                raise Violation(f"I3 {key} was deleted {age_s} s after a head listed it")

    def _keys(self, head: Head) -> set[str]:
        found = {key for entry in (*head.entries, *head.superseded) for key in (*objects_of(entry), entry.index_key) if key}
        return found | {page_key(head.partition_id, ref) for bag in (head.entries, head.superseded) for ref in references_below(bag)}

    def _left(self, before: Head | None, head: Head) -> None:
        """I8: what is superseded stays listed for as long as is set, or counts again."""
        now_s, superseded, live = self._store.passed_s(), self._batches(head.superseded), self._batches(head.entries)
        if before:
            for key in self._keys(before) - self._keys(head):
                self._left_s[key] = now_s
            for name in self._batches(before.superseded) - superseded - live:
                if (age_s := now_s - self._superseded_s[name]) < self._retention.superseded_retention_s:
                    raise Violation(f"I8 what was superseded {age_s} s ago is not listed any more: {name}")
        self._superseded_s = {name: self._superseded_s.get(name, now_s) for name in superseded}

    def _batches(self, entries: EntryBag) -> set[tuple[int, int]]:
        return {(batch.base, batch.epoch) for entry in entries for batch in self.stored(entry)}

    def _trim(self, before: Head, head: Head) -> None:
        """I14: the start moves up for what leaves there, the oldest first, and the newest run stays."""
        if head.start_offset <= before.start_offset:
            return
        newest = next((entry for entry in reversed(before.entries) if not entry.gap), None)
        if newest is not None and newest.uid not in {entry.uid for entry in head.entries}:
            raise Violation(f"I14 the newest run of the archive, from {newest.base_offset} on, was trimmed")
        for entry in before.entries:
            self.trimmed(head.partition_id).update(
                (batch.base, batch.epoch) for batch in self.stored(entry) if batch.last < head.start_offset
            )

    def _listed(self, partition: PartitionId, entry: Entry) -> None:
        """I2, I5, I19: the object is there, whole, and holds what a broker of this incarnation wrote."""
        if entry.gap:
            return
        try:
            objects = [(self._just_now.stat(key), size_bytes) for key, size_bytes in open_layout(entry.layout).data_objects(entry)]
            index = self._just_now.stat(entry.index_place)
        except NotFound as error:
            raise Violation(f"I2 the head names {error}, which is not there") from None
        as_listed = (entry.index_bytes, entry.index_digest) if entry.index_key else (entry.size_bytes, entry.digest)
        digest = Digest()
        for data, _ in objects:
            assert data.digest is not None
            digest.append(value_of(data.digest), data.size_bytes)
        is_whole = digest.text() == entry.digest and all(data.size_bytes == size_bytes for data, size_bytes in objects)
        if not is_whole or (index.size_bytes, index.digest) != as_listed:
            raise Violation(f"I2 {entry.key} is not as the head has it")
        known = self._brokers.known[partition.topic_id]
        for batch in self.stored(entry):
            if not entry.base_offset <= batch.base <= batch.last <= entry.last_offset:
                raise Violation(f"I4 {entry.base_offset}..{entry.last_offset} holds the batch {batch.base}..{batch.last}")
            if batch.data not in known.get((batch.base, batch.epoch), ()):
                raise Violation(
                    f"I5 the batch at {batch.base} in epoch {batch.epoch} of {partition.topic_id} was never written as it is archived"
                )

    def _complete(self, entry: Entry) -> None:
        """I4: what is missing from a log without compaction is a gap, and no part of an entry."""
        expected = entry.base_offset
        for batch in self.stored(entry):
            if batch.base != expected:
                raise Violation(f"I4 {entry.base_offset}..{entry.last_offset} lacks what comes before {batch.base}")
            expected = batch.last + 1
        if not entry.gap and expected != entry.next_offset:
            raise Violation(f"I4 {entry.base_offset}..{entry.last_offset} holds nothing from {expected} on")

    def stored(self, entry: Entry) -> list[Stored]:
        """The batches that an entry, live or superseded, stands for."""
        if entry.gap:
            return []
        if entry.key not in self._parsed:
            try:
                raw = ArchivedRun(self._just_now, entry).read(entry.run_bytes)
            except CorruptData as error:
                raise Violation(f"I2 {entry.base_offset}..{entry.last_offset} is not what it is listed as: {error}") from error
            found, position = [], 0
            while position < len(raw):
                header = read_batch_header(raw, position)
                end = position + header.size_bytes
                found.append(Stored(header.base_offset, header.last_offset, header.leader_epoch, raw[position:end], end))
                position = end
            self._parsed[entry.key] = found
        return [batch for batch in self._parsed[entry.key] if entry.base_offset <= batch.base and batch.end <= entry.live_bytes]

    def _published(self, before: Head, head: Head) -> None:
        """What was live, and is what the leader's log holds before its high watermark, stays listed (I8)."""
        leader = self._brokers.leader
        had = {(batch.base, batch.epoch) for entry in before.entries for batch in self.stored(entry)}
        has = {(batch.base, batch.epoch) for entry in (*head.entries, *head.superseded) for batch in self.stored(entry)}
        lost = had - has - self.trimmed(head.partition_id)
        gone = sorted((base, epoch) for base, epoch in lost if base < leader.hw and leader.epoch_at(base) == epoch)
        if gone:
            raise Violation(f"I8 published batches left the head: {gone}")

    def _released(self, partition: PartitionId) -> None:
        """I1: what was released from the leader is served by the archive, not merely listed."""
        leader, head = self._brokers.leader, self.heads.get(partition)
        released = [batch for batch in leader.ghost if batch.last >= leader.policy]
        if not released:
            return
        live = {(batch.base, batch.epoch) for entry in head.entries for batch in self.stored(entry)} if head else set()
        for batch in released:
            if (batch.base, batch.epoch) not in live | self.trimmed(partition) and not self._compaction_took(batch):
                raise Violation(f"I1 offsets {batch.base}..{batch.last} (epoch {batch.epoch}) were released and are not served")

    def _compaction_took(self, batch: Batch) -> bool:
        """Is there nothing in it that a cleaner has not dropped, on one broker or the other?"""
        return self._brokers.compacted and all(self._brokers.may_be_gone(row) for row in batch.rows)

    # At rest

    def stopped(self) -> None:
        """The leader's archiver refuses to go on without consent: it has reason to."""
        leader, head = self._brokers.leader, self.heads[self._brokers.partition]
        archived = {batch.epoch for entry in head.entries for batch in self.stored(entry)}
        if both := archived & {batch.epoch for batch in leader.batches() if batch.last >= leader.start}:
            raise Violation(f"I15 an archiver stops for want of anything in common, and there is: epochs {sorted(both)}")

    def overtaken(self) -> None:
        """The leader's archiver refuses to go on with a compacted topic: its cleaner has been where the archive is not."""
        leader, head = self._brokers.leader, self.heads[self._brokers.partition]
        lacking = [each for each in head.entries if each.displaced_by and leader.epoch_at(each.displaced_by[1]) != each.displaced_by[0]]
        cleaned_to = max(leader.cleaned_to or 0, leader.cleaned_once)
        if cleaned_to <= min([head.next_offset, *(each.base_offset for each in lacking)]):
            raise Violation(f"I15 an archiver stops for compaction before {cleaned_to}, and has archived to {head.last_offset}")
        if max(leader.start, leader.segments[0].base) <= head.start_offset and leader.cleaned_to == cleaned_to:
            raise Violation(f"I15 an archiver stops that could replace all that is archived from {head.start_offset} on")

    def outdated(self, version: Version, *, unchanged: bool) -> None:
        """The leader's archiver, an agent of `version`, says that it has to be upgraded: it has reason to, and has left all as it was."""
        head = self.heads[self._brokers.partition]
        if head.format <= version.value or not unchanged:
            raise Violation(
                f"I15 an agent that writes {version.value} wants an upgrade for {head.format}{'' if unchanged else ', and writes'}"
            )

    def at_rest(self) -> None:
        """The leader's archiver has come to rest: what is served is what the log has, and all of it (I5, I15)."""
        leader, partition = self._brokers.leader, self._brokers.partition
        head = self.heads.get(partition)
        if head is None:
            raise Violation("I15 no head was ever made")
        check_head(head)
        live = {batch.base: (entry, batch) for entry in head.entries for batch in self.stored(entry)}
        for batch in [*leader.ghost, *leader.batches()]:
            if batch.last >= leader.hw or batch.base < leader.policy or self._compaction_took(batch):
                continue
            if batch.last < head.start_offset:
                if batch.last >= self._brokers.removed_to and (batch.base, batch.epoch) not in self.trimmed(partition):
                    raise Violation(f"I14 the archive starts at {head.start_offset}, the log keeps {batch.base}..{batch.last}")
                continue
            found = live.get(batch.base)
            if found is None:
                state = "in a gap" if (entry := head.entries.at(batch.base)) and entry.gap else "not archived"
                raise Violation(f"I15 the batch at {batch.base} (epoch {batch.epoch}) is {state}")
            if found[1].epoch != batch.epoch or found[1].last != batch.last:
                raise Violation(f"I5 offset {batch.base} would be served as epoch {found[1].epoch}, the log has {batch.epoch}")
        for base, (_, stored) in live.items():
            if base < leader.end and base >= leader.start and leader.epoch_at(base) != stored.epoch:
                raise Violation(f"I6 offset {base} is served as epoch {stored.epoch}, the history has {leader.epoch_at(base)}")
        if not self.trimmed(partition):  # what was open when the trimmed part ended is not known here any more
            self._transactions(head)
        if self._brokers.compacted:
            self._table(head)
        self._topic(partition)

    def _table(self, head: Head) -> None:
        """I5 for compacted topics: a consumer of archive and log has in the end, of each key, the last record there ever was.

        A cleaner that dropped it for a later one, which an unclean election then took, excuses only what the leader's log lacks too, and
        what was lost already to the log that it was archived from; and a run that the log does not hold all of any more.
        """
        brokers, leader = self._brokers, self._brokers.leader
        archived = self._archived_rows(head)
        local = [row for batch in leader.batches() if batch.last < leader.hw for row in batch.rows]
        seen = table_of([*archived, *(row for row in local if row.place.offset > head.last_offset)])
        start = max(leader.start, leader.segments[0].base)
        for key, row in table_of(brokers.committed_rows()).items():
            offset, found = row.place.offset, seen.get(key)
            entry = head.entries.at(offset)
            if found == row or offset < max(head.start_offset, leader.policy) or (entry and entry.gap):
                continue
            if brokers.may_be_gone(row):
                forgotten = brokers.forgotten(leader, offset, offset, leader.end)
                if entry:
                    forgotten = self._forgotten.get((entry.uid, entry.displaced_by), set())
                if table_of(local).get(key) == found or (entry and head.start_offset < start and entry.epochs[0][1] < start):
                    continue
                if row.place in forgotten or (row.value is None and (found is None or found.value is None)):
                    continue
                if row.value is not None and row not in local:
                    continue
            raise Violation(f"I5 a reader ends with {found} for {key!r}, and the last that was written is {row}")

    def _kept_table(self, before: Head, head: Head) -> None:
        """I5: of each key the archive alone has the same as before, or something newer."""
        was, now = (table_of(row for row in self._archived_rows(each) if row.place.offset >= head.start_offset) for each in (before, head))
        for key in sorted(was.keys() | now.keys()):
            old, new = was.get(key), now.get(key)
            if new is not None and (new == old or new.place.offset > before.last_offset):
                continue
            if (old is None or old.value is None) and (new is None or new.value is None):
                continue
            raise Violation(f"I5 a reader of the archive alone ends with {new} for {key!r}, and did with {old}")

    def _archived_rows(self, head: Head) -> list[Row]:
        return [row for entry in head.entries for batch in self.stored(entry) for row in _rows(batch)]

    def _topic(self, partition: PartitionId) -> None:
        """The bucket has what the topic is, and that its name means this incarnation (I19)."""
        manifests = ManifestRepository(self._store)
        manifest, current = manifests.load_topic(partition.topic, partition.topic_id), manifests.current(partition.topic)
        if manifest is None or (manifest.partitions, manifest.configs) != (1, self._brokers.configs):
            raise Violation(f"I19 the topic manifest of {partition.topic_id} is {manifest}")
        meant = self._store.names.get(partition.topic, [])
        if current is None or partition.topic_id not in meant or meant.count(current.topic_id) > 1:
            raise Violation(f"I19 the name has meant {meant}, the broker's log is {partition.topic_id}")

    def control(self, state: ControlState) -> None:
        """What the control log reports of the partition is what its head has (I7)."""
        head, known = self.heads[self._brokers.partition], state.partition(self._brokers.partition)
        announced = known and (known.manifest_version, known.fence, known.owner, known.start_offset, known.last_offset)
        if announced != (head.version, head.fence, head.writer, head.start_offset, head.last_offset):
            raise Violation(f"I7 the control log has {known}, the head is version {head.version} of {head.writer}")

    def _transactions(self, head: Head) -> None:
        """What entries record of transactions is what a reader of all of them would find."""
        transactions = Transactions()
        for entry in head.entries:
            if entry.gap:
                transactions = Transactions()
                continue
            transactions.aborted.clear()
            for batch in self.stored(entry):
                header = read_batch_header(batch.data)
                if header.is_control:
                    transactions.marker(header.producer_id, header.base_offset, aborts=_aborts(batch.data))
                elif header.is_transactional:
                    transactions.data(header.producer_id, header.base_offset)
            listed: tuple[Any, ...] = entry.open_from, entry.aborted
            if listed != (transactions.open_from, len(transactions.aborted)):
                found = transactions.open_from, len(transactions.aborted)
                raise Violation(f"I10 the entry at {entry.base_offset} records {listed} of its transactions, its batches {found}")


def references_below(bag: EntryBag) -> Iterator[PageRef]:
    for ref in bag.references:
        yield ref
        yield from references_below(EntryBag(bag.pages.read(ref), bag.pages))


def _rows(batch: Stored) -> list[Row]:
    return [Row(Place(each.offset, batch.epoch), each.key or b"", each.value) for each in decode_batch(batch.data)]


def _aborts(data: bytes) -> bool:
    return read_marker(memoryview(data), where="simulated").type == ABORT


def rest_of(replica: Replica) -> str:
    return f"[{replica.start}..{replica.end}) hw {replica.hw} on disk from {replica.segments[0].base}"


def _segment(entry: Entry) -> str:
    """What a list of what is pending calls the segment of a chunk; "" for what is none."""
    name = chunk_keys.parse(entry.key)
    return "" if name is None else chunk_keys.segment_uid(name.place)


def objects_of(entry: Entry) -> list[str]:
    """The keys of what holds its run; none for a gap."""
    return [] if entry.gap else [key for key, _ in open_layout(entry.layout).data_objects(entry)]
