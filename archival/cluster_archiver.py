"""Archives the cluster's metadata: a snapshot when something has changed, listed by compare-and-swap (docs/formats/cluster-snapshot.md).

Every agent of a cluster does so from the metadata log beside it. Whose log is newer decides, and who comes first: nobody has to be chosen.
"""

import io
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from archival.config import ClusterConfig
from headwater_core.clock import Clock
from headwater_core.errors import CorruptData, ForeignOwner, HeadwaterError, NotFound, TransientError, UnsupportedFormat
from headwater_core.milestones import reached
from headwater_core.objectstore.confirmed_put import put_confirmed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.record_schemas import SCHEMAS
from manifests import keys
from manifests.cluster_list import LEASE_MS, ClusterList, ListedSnapshot, is_newer, kept_snapshots
from manifests.cluster_snapshot import SnapshotContent, SnapshotFacts, content_of, open_snapshot, pack_snapshot
from manifests.cluster_survey import SnapshotObject, adopt, snapshot_objects
from manifests.repository import ManifestRepository

LOOK_S = 10.0  # between two looks at the metadata log
COLLECT_S = 3600.0  # between two looks for what is to be dropped and deleted
_REQUESTED_ATTEMPTS = 5  # of a snapshot that is requested, while other agents come first

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterArchiverEquipment:
    """What it works with.

    metadata  the newest state of the cluster; None where no metadata log is here
    settings  what the operator has set, as it is now
    """

    metadata: Callable[[], ClusterMetadata | None]
    store: ObjectStore
    repository: ManifestRepository
    cluster_id: Callable[[], str]
    writer: str
    clock: Clock
    new_uid: Callable[[], str]
    settings: Callable[[], ClusterConfig] = ClusterConfig


@dataclass(slots=True)
class SnapshotTally:
    """What this agent knows of snapshots.

    newest       the last one that it wrote or saw listed
    unarchived_s since when, on the monotonic clock, it has known of no moment at which all was archived; None: all was, at the last look
    failure      why the last attempt failed, and when, by the wall clock; "" after one that did not
    """

    taken: int = 0
    failed: int = 0
    newest: ListedSnapshot | None = None
    unarchived_s: float | None = None
    failure: str = ""
    failed_ms: int = 0


class ClusterArchiver:
    """Safe to use from many threads."""

    def __init__(self, equipment: ClusterArchiverEquipment) -> None:
        self._equipment, self._clock = equipment, equipment.clock
        self.tally = SnapshotTally()
        self._lock = threading.Lock()
        self._state: ClusterMetadata | None = None  # the last one looked at, and what is in it
        self._content = SnapshotContent("", "")
        self._settled = False  # is that archived, or older than what is?
        self._known_unknown: tuple[tuple[int, int], ...] = ()
        self._collect_s = self._clock.monotonic_s()
        self._first_seen = (0, 0.0)  # the newest snapshot's number, and since when it has been known here
        self._unlisted_s: dict[keys.SnapshotName, float] = {}  # since when an object is known here that no list has
        self._ahead_ms = self._clock.now_ms() - int(self._clock.monotonic_s() * 1000)  # the wall clock's, of the monotonic one
        self._is_withheld = False  # has a snapshot without secrets been the newest since this began?

    def lag_s(self) -> float:
        """For how long the newest state has not been archived, as far as is known; 0 when it is."""
        since_s = self.tally.unarchived_s
        return 0.0 if since_s is None else max(0.0, self._clock.monotonic_s() - since_s)

    def run(self, stop: threading.Event) -> None:
        """Look every LOOK_S, until `stop` is set."""
        while not stop.is_set():
            self.attempt()
            stop.wait(LOOK_S)

    def attempt(self, *, requested: bool = False) -> HeadwaterError | None:
        """`step` and, now and then, `collect`. Raises nothing: the log says what went wrong, and the next attempt tries again.

        Returns why the state is not archived, or not all of it; None when nothing is wrong.
        """
        failure = self._attempt(requested)
        tally = self.tally
        tally.failure = str(failure) if failure is not None else ""
        if failure is not None:
            tally.failed_ms = self._clock.now_ms()
            if tally.unarchived_s is None:
                tally.unarchived_s = self._clock.monotonic_s()
        return failure

    def _attempt(self, requested: bool) -> HeadwaterError | None:
        try:
            if self._equipment.settings().snapshots and self._clock.monotonic_s() >= self._collect_s:
                self._collect_s = self._clock.monotonic_s() + COLLECT_S
                self.collect()
            self.step(requested=requested)
        except TransientError as error:
            log.warning("cluster_snapshot_postponed", reason=str(error))
            return error
        except HeadwaterError as error:
            self.tally.failed += 1
            log.error("cluster_snapshot_failed", reason=str(error))
            return error
        except Exception as error:  # a mistake of ours, which must not end all attempts
            self.tally.failed += 1
            reason = f"unexpected {type(error).__name__}"  # its words may hold what is secret
            log.error("cluster_snapshot_failed", reason=reason)
            return HeadwaterError(reason)
        return None

    def step(self, *, requested: bool = False) -> ListedSnapshot | None:
        """Archive the state, unless it is archived; the snapshot, or None.

        requested  even if the last snapshot is younger than the interval, and though other agents come first: then it is tried again

        Raises what reading the metadata log and the store raise, ForeignOwner, CorruptData for a damaged list, and TransientError when
        other agents come first again and again.
        """
        if not self._equipment.settings().snapshots:
            return None
        with self._lock:
            for _ in range(_REQUESTED_ATTEMPTS):
                taken = self._step(requested)
                if taken is not None or self._settled or not requested or self._state is None:
                    return taken
            raise TransientError("other agents have archived the cluster's metadata meanwhile, again and again")

    def _step(self, requested: bool) -> ListedSnapshot | None:
        state = self._equipment.metadata()
        if state is None:
            self._state = None
            return None
        if not requested and self.tally.newest is not None and self._wait_s(self.tally.newest) > 0:
            return None  # not even looked at: in a large cluster something changes all the time
        self._look_at(state)
        if self._settled:
            self.tally.unarchived_s = None
            return None
        if self.tally.unarchived_s is None:
            self.tally.unarchived_s = self._clock.monotonic_s()
        return self._archive(state, requested)

    def _look_at(self, state: ClusterMetadata) -> None:
        before, self._state = self._state, state
        if before is not None and (before.topics is state.topics and before.others is state.others):
            return  # the log has grown, by records that say nothing
        content = content_of(state)
        if content != self._content:
            self._content, self._settled = content, False
        self._report_unknown(state)

    def _report_unknown(self, state: ClusterMetadata) -> None:
        unknown = tuple(sorted(state.unread.items()))
        if unknown and unknown != self._known_unknown:
            log.warning("cluster_records_unknown", records=sum(count for _, count in unknown), kinds=[_kind(key) for key, _ in unknown])
        self._known_unknown = unknown

    def _archive(self, state: ClusterMetadata, requested: bool) -> ListedSnapshot | None:
        settings, repository = self._equipment.settings(), self._equipment.repository
        listed = repository.load_snapshots()
        objects = snapshot_objects(self._equipment.store)
        base = listed or self._adopt(objects)
        if base is not None and self._is_settled(base, state):
            self._settle(base.newest)
            if listed is None:
                repository.change_snapshots(lambda seen, found=base: seen or found)  # type: ignore[misc]
            return None
        if base is not None and not requested and self._wait_s(base.newest) > 0:
            return None
        entry, packed = self._draft(base, max((each.name.number for each in objects), default=0), state, settings)
        put_confirmed(self._equipment.store, entry.key, io.BytesIO(packed), len(packed), entry.digest or "")
        reached("cluster_snapshot_uploaded")
        now_ms = self._clock.now_ms()

        def decide(seen: ClusterList | None) -> ClusterList | None:
            if seen is not None and seen.newest.uid == entry.uid:
                return None  # it is there: only the answer was lost
            found = seen or base
            if (found and found.newest.name) != (base and base.newest.name) or (seen is not None and self._is_settled(seen, state)):
                return None  # another one came first: what was uploaded is never listed
            if found is None:
                return ClusterList(cluster_id=self._equipment.cluster_id(), snapshots=(entry,))
            return replace(found, cluster_id=self._equipment.cluster_id()).followed_by(entry, now_ms=now_ms)

        settled = repository.change_snapshots(decide)
        if settled is None or settled.newest.uid != entry.uid:
            return None  # the next step looks at what is there now
        reached("cluster_snapshot_listed")
        self.tally.taken += 1
        self._settle(entry)
        log.info("cluster_snapshot_taken", number=entry.number, offset=entry.end_offset, size_bytes=entry.size_bytes)
        return entry

    def _draft(
        self, base: ClusterList | None, highest: int, state: ClusterMetadata, settings: ClusterConfig
    ) -> tuple[ListedSnapshot, bytes]:
        """The next snapshot and its object. highest: number of any object that is there, as the list may be an older one, put back"""
        newest = base.newest if base else None
        facts = SnapshotFacts(
            cluster_id=self._equipment.cluster_id(),
            number=max(newest.number if newest else 0, highest) + 1,
            end_offset=state.end_offset,
            end_epoch=state.end_epoch,
            uid=self._equipment.new_uid(),
            has_secrets=settings.secrets,
            unknown=sum(state.unread.values()),
        )
        packed = pack_snapshot(state, facts)
        entry = ListedSnapshot(
            number=facts.number,
            end_offset=facts.end_offset,
            end_epoch=facts.end_epoch,
            uid=facts.uid,
            taken_ms=max(self._clock.now_ms(), newest.taken_ms if newest else 0),
            writer=self._equipment.writer[:200],
            size_bytes=len(packed),
            appended_ms=state.appended_ms,
            digest=digest_of(packed),
            content=self._content.content if settings.secrets else self._content.open_content,
            open_content=self._content.open_content,
            has_secrets=facts.has_secrets,
            unknown=facts.unknown,
        )
        return entry, packed

    def _is_settled(self, listed: ClusterList, state: ClusterMetadata) -> bool:
        """Is what is listed the same, or newer?"""
        if not self._is_ours(listed.cluster_id):
            raise ForeignOwner(
                f"{keys.CLUSTER_LIST} lists snapshots of cluster {listed.cluster_id}, and this is {self._equipment.cluster_id()}"
            )
        newest, wants = listed.newest, self._equipment.settings().secrets
        has_all = newest.has_secrets or not wants
        if newest.has_secrets is False:
            self._is_withheld = True
        is_to_withhold = not wants and not self._is_withheld  # once: another agent may be set to archive secrets, and archive them again
        if newest.has_secrets and wants:
            same = newest.content == self._content.content
        else:
            same = newest.open_content == self._content.open_content
        if same and has_all and not is_to_withhold:
            return True
        position = state.end_epoch, state.end_offset
        is_again = position == newest.position and (not has_all or is_to_withhold)
        return not (is_newer(position, state.appended_ms, newest) or is_again)

    def _is_ours(self, cluster_id: str) -> bool:
        """So are snapshots of a cluster that the archive was taken over from: they are this one's past."""
        if cluster_id == self._equipment.cluster_id():
            return True
        owner = self._equipment.repository.owner()
        return owner is not None and owner.cluster_id == self._equipment.cluster_id() and cluster_id in owner.former

    def _settle(self, newest: ListedSnapshot) -> None:
        self._settled, self.tally.newest, self.tally.unarchived_s = True, newest, None
        if newest.has_secrets is False:
            self._is_withheld = True

    def _wait_s(self, newest: ListedSnapshot) -> float:
        """Until the next one may be taken: so long after the last one, by clocks that need not agree."""
        interval_s, now_s = self._equipment.settings().interval_s, self._clock.monotonic_s()
        if self._first_seen[0] != newest.number:
            self._first_seen = (newest.number, now_s)
        by_clock = interval_s - (self._clock.now_ms() - newest.taken_ms) / 1000
        return min(by_clock, interval_s - (now_s - self._first_seen[1]))

    def _adopt(self, objects: list[SnapshotObject]) -> ClusterList | None:
        """The list was lost, or never was: from the objects' names, and what the newest says of itself."""
        cluster_id = self._equipment.cluster_id()
        found = adopt(cluster_id, objects)
        if found is None:
            return None
        try:
            opened = open_snapshot(self._equipment.store, found.newest)
        except (CorruptData, NotFound, UnsupportedFormat):
            return found
        if opened.cluster_id is not None and not self._is_ours(opened.cluster_id):
            raise ForeignOwner(f"{found.newest.key} is a snapshot of cluster {opened.cluster_id}, and this is {cluster_id}")
        return replace(found, snapshots=(*found.snapshots[:-1], replace(opened.listed, appended_ms=opened.state.appended_ms)))

    def collect(self) -> int:
        """Drop snapshots whose time is over, and delete those that are not listed any more, or never were; how many. One with a greater
        number than the newest may be about to be listed. All others stay for a lease after this agent first saw that no list has them:
        readers may have begun, and the list may be an older one, put back.
        Raises what the store raises, and CorruptData for a damaged list."""
        self._settled = False  # the list may have been lost meanwhile
        listed = self._pruned()
        if listed is None:
            return 0
        now_s, gone = self._clock.monotonic_s(), 0
        dropped = {(each.number, each.uid) for each in listed.dropped}
        unlisted: dict[keys.SnapshotName, float] = {}
        for name, info in snapshot_objects(self._equipment.store):
            if name.number > listed.newest.number or listed.refers_to(name):
                continue
            since_s = self._unlisted_s.get(name, now_s)
            if now_s - since_s >= LEASE_MS / 1000:
                self._equipment.store.delete(info.key)
                gone += 1
            else:
                unlisted[name] = since_s
        lost = [name for name in unlisted.keys() - self._unlisted_s.keys() if (name.number, name.uid) not in dropped]
        if lost:
            log.warning("cluster_snapshots_unlisted", objects=len(lost), number=max(name.number for name in lost))
        self._unlisted_s = unlisted
        if gone:
            log.info("cluster_snapshots_deleted", objects=gone)
        return gone

    def _pruned(self) -> ClusterList | None:
        """The list, without what its time is over. A clock that is ahead drops nothing: an age is believed when the clocks of the agent, of
        the store and of the controller agree that it is so high."""
        repository, settings = self._equipment.repository, self._equipment.settings()
        retention_ms = None if settings.retention_s is None else settings.retention_s * 1000
        listed = repository.load_snapshots()
        if listed is None or listed.cluster_id != self._equipment.cluster_id():
            return listed
        now_ms = self._now_ms()
        ages_ms = {each.name: now_ms - each.taken_ms for each in listed.snapshots}
        if len(kept_snapshots(listed.snapshots, ages_ms, retention_ms=retention_ms)) == len(listed.snapshots):
            return listed
        repository.change_snapshots(lambda seen: seen and replace(seen))  # written again: its time is what the store's clock says now
        seen_ms = self._ages_by_others(listed)
        ages_ms = {name: min(age_ms, seen_ms.get(name, 0)) for name, age_ms in ages_ms.items()}
        kept = {each.name for each in kept_snapshots(listed.snapshots, ages_ms, retention_ms=retention_ms)}
        known = {each.name for each in listed.snapshots}

        def decide(seen: ClusterList | None) -> ClusterList | None:
            if seen is None:
                return None
            after = seen.only({each.name for each in seen.snapshots if each.name in kept or each.name not in known}, now_ms=now_ms)
            return after if len(after.snapshots) < len(seen.snapshots) else None

        return repository.change_snapshots(decide)

    def _now_ms(self) -> int:
        """By the wall clock, without what it was put ahead since this agent began."""
        return min(self._clock.now_ms(), int(self._clock.monotonic_s() * 1000) + self._ahead_ms)

    def _ages_by_others(self, listed: ClusterList) -> Mapping[keys.SnapshotName, int]:
        """How old snapshots are by the store's clock and, where its log says so, the controller's. Objects that are gone are not known."""
        store = self._equipment.store
        written = {info.key: info.modified_ms for info in store.list(keys.CLUSTER)}
        state = self._equipment.metadata()
        ages_ms: dict[keys.SnapshotName, int] = {}
        for each in listed.snapshots:
            if each.key in written and keys.CLUSTER_LIST in written:
                ages_ms[each.name] = written[keys.CLUSTER_LIST] - written[each.key]
                if state is not None and state.appended_ms and each.appended_ms:
                    ages_ms[each.name] = min(ages_ms[each.name], max(0, state.appended_ms - each.appended_ms))
        return ages_ms


def _kind(api_key: int) -> str:
    return f"{SCHEMAS[api_key].name} of a later version" if api_key in SCHEMAS else f"api key {api_key}"
