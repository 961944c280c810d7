"""Trims the archive of a partition, and deletes what nothing refers to any more (design §4, Replace and collect).

What may be deleted must never be listed again. A commit adds only objects of its own fence, and none comes after one of a higher fence. So
what a head does not list, and carries a lower fence than that head, is an orphan for good: a paused uploader cannot publish it. Where
there is something of the head's own fence, the fence is raised first, by a commit of the partition's archiver, and that head is read.
An orphan is deleted when it has been seen as one for the reader lease, which begins after the commit that let it go.

Whatever is not known for sure keeps everything of the partition: a page that is missing or damaged, a head of a newer version, a listing
that failed, a head that another agent holds. Below chunks/ only what no incarnation of the topic's name lists, or may list yet, is an
orphan; where the head of another one cannot be read, that is what lies under a fence which was taken since.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import structlog
from msgspec.structs import replace as with_fields

from archival.collection.orphans import StoredObject, stored_objects
from archival.collection.sightings import Seen, Sightings
from archival.config import ArchivalConfig
from archival.partition.archiver import PartitionArchiver
from archival.plan.trim import expired_to, next_expiry_ms, trimmed
from headwater_core import milestones
from headwater_core.clock import Clock, time_text
from headwater_core.errors import Fenced, HeadwaterError, NotFound
from headwater_core.objectstore.store import ObjectStore, UnfinishedUpload
from headwater_core.partition import PartitionId
from manifests import chunk_keys, keys
from manifests.entry import FENCE_MAX, Entry
from manifests.head import Head, check_writable
from manifests.namesakes import Namesakes, listed_uids, next_fence, packed
from manifests.page import is_ahead
from manifests.repository import ManifestRepository

MILESTONES = ("collect.listed", "collect.committed", "collect.remembered", "collect.deleted")
"""The points that a collection passes, in order; the last one after each deletion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was done for one partition, or would be.

    start_offset    of the archive afterwards; None when there is no manifest
    trimmed_entries, trimmed_bytes   what retention, or a person, has let go
    forgotten_entries  of dead branches, which were listed for long enough
    orphans, orphan_bytes   objects that nothing refers to, those included that are deleted
    deleted, deleted_bytes  of them
    aborted         unfinished uploads
    again_ms        when the next of it may leave, though nobody commits anything; None: never
    version, commit_id   of the manifest that was looked at: what a later one has let go was not
    committed       has it been advanced?
    kept            what may be another incarnation's and why that is not known, for people; "" where nothing is
    """

    partition: PartitionId
    start_offset: int | None = None
    trimmed_entries: int = 0
    trimmed_bytes: int = 0
    forgotten_entries: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    aborted: int = 0
    again_ms: int | None = None
    version: int = 0
    commit_id: str = ""
    committed: bool = False
    kept: str = ""
    error: HeadwaterError | None = None


Border = Callable[[Head], int]
"""The archive's start that a head is to have."""


class Collector:
    """One caller at a time for each partition.

    writer  whose partitions these are; those of others are theirs
    """

    def __init__(self, *, store: ObjectStore, sightings: Sightings, clock: Clock, writer: str) -> None:
        self._store, self._sightings, self._clock, self._writer = store, sightings, clock, writer

    def collect(
        self,
        archiver: PartitionArchiver,
        settings: ArchivalConfig,
        *,
        border: Border | None = None,
        kept_from: int | None = None,
        uploads: Sequence[UnfinishedUpload] = (),
        dry_run: bool = False,
        discards: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> Collected:
        """Trim, look for orphans, and delete those that have been some for the reader lease.

        border     where the archive is to begin; None: where retention wants it
        kept_from  offsets from here on are not trimmed, whatever `border` says
        uploads    what the store has of unfinished uploads below the partition's prefix
        discards   do not wait for what waits for its commit: see PartitionArchiver.amend
        stop       is asked between two deletions

        Raises Fenced when another agent holds the partition, TransientError when it may be done later, CorruptData, NeedsUpgrade, and what
        the store raises; nothing was deleted then that would not be deleted otherwise.
        """
        partition = archiver.partition
        head = archiver.load()
        if head is None:
            return Collected(partition=partition)
        check_writable(head)
        if head.writer != self._writer:
            raise Fenced(f"{partition}: {head.writer} holds the partition")
        outlived, leader_epoch = self._outlived(head, settings, remember=not dry_run), head.leader_epoch

        def successor(held: Head) -> Head:
            start = expired_to(held, settings, self._clock.now_ms(), self._modified_ms) if border is None else border(held)
            kept = trimmed(held, start if kept_from is None else min(start, kept_from))
            return _without(kept, outlived) if held.leader_epoch == leader_epoch else kept

        if settings.retention_s is not None and not dry_run:
            _report_ahead(head, self._clock.now_ms())
        after = successor(head)
        abandoned = archiver.abandoned(head)
        listed = listed_uids(after)
        if abandoned is not None:
            listed.discard(packed(abandoned))
        begun = [each for each in uploads if each.begun_ms <= self._clock.now_ms() - settings.reader_lease_s * 1000]
        pending = {each.uid for each in after.pending if each.is_assigned and each.uid != abandoned}
        begun = [each for each in begun if _uid(each) not in pending]  # it may go on for longer than that
        wanted, finished = {each.key for each in begun}, set[str]()
        unlisted: list[StoredObject] = []  # all that is kept of a listing, which may be of millions
        for each in stored_objects(self._store, head):
            if each.key in wanted:
                finished.add(each.key)
            if not _is_listed(each, listed):
                unlisted.append(each)
        clear_from = self._clear_from(partition)
        namesakes = Namesakes(ManifestRepository(self._store), partition, clear_from)
        unclear = sum(each.is_shared and namesakes.is_unclear(each.fence) for each in unlisted)
        unlisted = [each for each in unlisted if not (each.is_shared and any(namesakes.may_have(name, each.fence) for name in each.names))]
        begun = [
            each for each in begun if not (each.key.startswith(chunk_keys.CHUNKS) and namesakes.may_have(_uid(each), _fence(each, ())))
        ]
        is_to_be_cleared = unclear > 0 and not namesakes.lost <= clear_from.keys()
        milestones.reached("collect.listed")
        fences = {*(each.fence for each in unlisted), *(_fence(each, finished) for each in begun)}
        is_left = abandoned is not None and abandoned in {
            *(name for each in unlisted for name in each.names),
            *(_uid(each) for each in begun),
        }
        done = Collected(
            partition=partition,
            start_offset=after.start_offset,
            trimmed_entries=len(head.entries) - len(after.entries),
            trimmed_bytes=head.entries.live_bytes - after.entries.live_bytes,
            forgotten_entries=len(head.superseded) - len(after.superseded),
            version=head.version,
            commit_id=head.commit_id,
            kept=f"{unclear} objects below chunks/ may be listed where that cannot be read, and stay: {namesakes.trouble}"
            if unclear
            else "",
        )
        if dry_run:
            return _counted(done, unlisted)
        removed: list[StoredObject] = []
        if after is not head or head.fence in fences or is_left or is_to_be_cleared:
            listed = listed_uids(head)  # as long as it is not committed that what was abandoned has failed, it is listed
            removed += self._delete(partition, _orphans(unlisted, listed, head), settings, stop)  # a full disk has no room for a commit
            before, head = (
                head,
                archiver.amend(lambda held: with_fields(successor(held), fence=next_fence(held, namesakes)), discards=discards),
            )
            milestones.reached("collect.committed")
            if unclear:
                clear_from |= dict.fromkeys(namesakes.lost - clear_from.keys(), head.fence)
            done = replace(done, start_offset=head.start_offset, version=before.version + 1, commit_id=head.commit_id, committed=True)
            if done.trimmed_entries or done.forgotten_entries or head.start_offset != before.start_offset:
                _report_trim(done)
            listed = listed_uids(head)
            gone = {each.key for each in removed}
            unlisted = [each for each in unlisted if each.key not in gone]
        if clear_from:
            lost = {f"{topic_id} {fence}" for topic_id, fence in clear_from.items() if topic_id in namesakes.lost}
            self._sightings.see(partition, Seen.LOST, lost)
        orphans = _orphans(unlisted, listed, head)
        done = _counted(done, [*removed, *orphans])
        removed += self._delete(partition, orphans, settings, stop)
        over = [each for each in begun if _fence(each, finished) < head.fence]
        for upload in over:
            self._store.abort(upload)
        done = replace(done, deleted=len(removed), deleted_bytes=sum(each.size_bytes for each in removed), aborted=len(over))
        if removed or over:
            _report_deleted(done)
        return replace(done, again_ms=self._clock.now_ms() if done.kept else self._again_ms(head, settings))

    def _delete(
        self, partition: PartitionId, orphans: Sequence[StoredObject], settings: ArchivalConfig, stop: Callable[[], bool]
    ) -> Sequence[StoredObject]:
        """Remember all of them, and delete those that have been orphans for the reader lease."""
        until_ms = self._until_ms(settings.reader_lease_s)
        since = self._sightings.see(partition, Seen.ORPHAN, {each.uid for each in orphans})
        milestones.reached("collect.remembered")
        removed, left = list[StoredObject](), set[str]()
        for orphan in orphans:
            if since[orphan.uid] <= until_ms and not stop():
                self._store.delete(orphan.key)
                milestones.reached("collect.deleted")
                removed.append(orphan)
            else:
                left.add(orphan.uid)
        if removed:
            self._sightings.see(partition, Seen.ORPHAN, left)
        return removed

    def _outlived(self, head: Head, settings: ArchivalConfig, *, remember: bool) -> Collection[str]:
        """The superseded entries that have been listed for long enough, by name.

        An entry that was revived and is superseded again looks as it did before, and its time must begin again: that branch may win again.
        Another agent may have done it, or we between two looks. One leader has one history, so between its two deaths the head has come
        to follow a later leader epoch; a sighting holds for the epoch in which it was made. That begins the time again after a harmless
        election, too, and then the entry stays for longer.
        """
        names = {_name(each): f"{_name(each)}-{head.leader_epoch}" for each in head.superseded}
        look = self._sightings.see if remember else lambda partition, seen, _: self._sightings.of(partition, seen)
        until_ms = self._until_ms(settings.superseded_retention_s)
        since = look(head.partition_id, Seen.SUPERSEDED, names.values())
        return {name for name, sighting in names.items() if sighting in since and since[sighting] <= until_ms}

    def _clear_from(self, partition: PartitionId) -> dict[str, int]:
        """See Namesakes: what was remembered of incarnations without a head."""
        found = (name.split(" ") for name in self._sightings.of(partition, Seen.LOST))
        return {topic_id: int(fence) for topic_id, fence in found}

    def _until_ms(self, period_s: float) -> float:
        """What was first seen by then, in ms, has been so for `period_s`. Ask before the look, which notices a clock put ahead."""
        return self._clock.now_ms() - period_s * 1000 if period_s else math.inf

    def _modified_ms(self, entry: Entry) -> int:
        """The age of an object that is gone is not known: its entry stays, for a person to see, and the rest is collected."""
        try:
            return self._store.stat(entry.key).modified_ms
        except NotFound:
            return self._clock.now_ms()

    def _again_ms(self, head: Head, settings: ArchivalConfig) -> int | None:
        lease_ms, kept_ms = settings.reader_lease_s * 1000, settings.superseded_retention_s * 1000
        orphans, superseded = (self._sightings.of(head.partition_id, seen) for seen in (Seen.ORPHAN, Seen.SUPERSEDED))
        times = [since_ms + lease_ms for since_ms in set(orphans.values())]
        times += [since_ms + kept_ms for since_ms in set(superseded.values())]
        times += [] if (expiry_ms := next_expiry_ms(head, settings, self._clock.now_ms())) is None else [expiry_ms]
        return min(times, default=None)


def _counted(done: Collected, orphans: Sequence[StoredObject]) -> Collected:
    return replace(done, orphans=len(orphans), orphan_bytes=sum(each.size_bytes for each in orphans))


def _without(head: Head, outlived: Collection[str]) -> Head:
    """`head` without those superseded entries; the very same when there are none."""
    if not outlived:
        return head
    return with_fields(head, superseded=head.superseded.filtered(lambda entry: _name(entry) not in outlived))


def _name(superseded: Entry) -> str:
    """One object may have several dead parts."""
    return f"{superseded.uid}-{superseded.base_offset}"


def _orphans(stored: Sequence[StoredObject], listed: Collection[bytes], head: Head) -> list[StoredObject]:
    """What `head`, which lists `listed`, does not list, and no head after it will."""
    return [each for each in stored if each.fence < head.fence and not _is_listed(each, listed)]


def _is_listed(stored: StoredObject, listed: Collection[bytes]) -> bool:
    return any(packed(name) in listed for name in stored.names)


def _fence(upload: UnfinishedUpload, finished: Collection[str]) -> int:
    """The fence under which it could still be committed; -1 when its object is there already, more than heads have for a foreign name."""
    if upload.key in finished:
        return -1
    name = keys.parse_object(upload.key)
    return FENCE_MAX + 1 if name is None else name.fence


def _uid(upload: UnfinishedUpload) -> str:
    name = keys.parse_object(upload.key)
    return "" if name is None else name.uid


def _report_ahead(head: Head, now_ms: int) -> None:
    """Log the first run that retention keeps for no other reason than what a record of it says."""
    item = next((item for item in head.entries.items if is_ahead(item, now_ms)), None)
    if item is not None and item.last_timestamp_ms is not None:
        structlog.get_logger().warning(
            "run_kept_by_time",
            partition=str(head.partition_id),
            topic_id=head.topic_id,
            base_offset=item.base_offset,
            dated=time_text(item.last_timestamp_ms),
        )


def _report_trim(done: Collected) -> None:
    structlog.get_logger().info(
        "archive_trimmed",
        partition=str(done.partition),
        topic_id=done.partition.topic_id,
        start_offset=done.start_offset,
        entries=done.trimmed_entries,
        size_bytes=done.trimmed_bytes,
        superseded=done.forgotten_entries,
    )


def _report_deleted(done: Collected) -> None:
    structlog.get_logger().info(
        "orphans_deleted",
        partition=str(done.partition),
        topic_id=done.partition.topic_id,
        objects=done.deleted,
        size_bytes=done.deleted_bytes,
        uploads=done.aborted,
    )
