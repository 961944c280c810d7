"""The bucket's documents, advanced by compare-and-swap only. All writers agree here (design §4.5).

Every refusal and every time-out of a write is read back: a retried request may have refused its own success, and one
without an answer may have happened. So a commit ends in one of three ways: it is there, another one is, or that stays unknown.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from headwater_core.errors import (
    AlreadyExists,
    Conflict,
    Fenced,
    ForeignOwner,
    NotFound,
    TransientError,
    UnknownOutcome,
)
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from manifests import keys, page_limits
from manifests.cluster_list import ClusterList, decode_cluster_list, encode_cluster_list
from manifests.document import check_ours
from manifests.entry_tree import SupersededEntries, refers_to
from manifests.head import Head, check_head, check_writable, decode_head, encode_head, format_after, parse_head
from manifests.page import Item, PageRef
from manifests.page_limits import PageLimits, pack, pack_superseded
from manifests.page_store import PageStore, PartitionPages
from manifests.pause_list import PauseList, decode_pauses, encode_pauses
from manifests.setting_list import SettingList, decode_settings, encode_settings
from manifests.topic import (
    NO_METADATA,
    PREVIOUS_MAX,
    Current,
    Owner,
    Sight,
    TopicManifest,
    choose,
    decode_current,
    decode_owner,
    decode_topic,
    encode_current,
    encode_owner,
    encode_topic,
    merge,
    turn_to,
)
from manifests.topic_survey import survey_topics

Shared = TypeVar("Shared", PauseList, SettingList)  # a document that all agents share

_ATTEMPTS = 4  # of one write whose fate stays open; each is followed by reading back


@dataclass(frozen=True, slots=True)
class Versioned:
    """A head as the bucket holds it, in so many bytes; `tag` is what the next compare-and-swap expects. digest: of those bytes; "" for what
    was written and not read: it is the same one."""

    head: Head
    tag: str
    size_bytes: int
    digest: str = field(default="", compare=False)


class Ensured(NamedTuple):
    """A topic as the bucket has it now, and whether its name means this incarnation."""

    manifest: TopicManifest
    is_current: bool


class Incarnation(NamedTuple):
    """One life of a topic's name: a topic that is deleted and created again is another one."""

    topic: str
    topic_id: str


class CommitLost(Conflict):
    """Another commit took the place. Plan again from `current`; None when the head is gone."""

    def __init__(self, partition: PartitionId, current: Versioned | None) -> None:
        found = f"version {current.head.version} by {current.head.writer}" if current else "no manifest"
        super().__init__(f"{partition}: another commit came first, found {found}")
        self.current = current


def foreign_bucket(url: str, owner: Owner, cluster_id: str) -> ForeignOwner:
    """The error of an agent of cluster `cluster_id` at a bucket that is another cluster's."""
    return ForeignOwner(
        f"{url} is the archive of cluster {owner.cluster_id}, and this log is cluster {cluster_id}'s: give it a bucket or a prefix of its "
        "own. If it was recovered from this archive and should continue it, recover it with `headwater recover apply cluster … "
        f"--take-over`, which gives it the archive and keeps the old cluster out, or with `--cluster-id {owner.cluster_id}`; then the old "
        "cluster must never start again, or two would write one history. If this is the old cluster, a recovered one has the archive now"
    )


def _encoded(before: Current | None, after: Current | None) -> bytes | None:
    if after is None:
        return None
    if before:
        check_ours(before.format, f"current incarnation of {after.topic}")
    return encode_current(after)


def _is_to_give(held: TopicManifest | Current, cluster_id: str, former: Collection[str]) -> bool:
    """Raises ForeignOwner."""
    if held.cluster_id not in (cluster_id, *former):
        raise ForeignOwner(f"{held.topic} {held.topic_id} belongs to cluster {held.cluster_id}, which has taken the archive over")
    return held.cluster_id != cluster_id


def new_unique_id() -> str:
    return uuid4().hex


def _is_fenced(mine: Head, theirs: Head) -> bool:
    """Has a claim come first that ends mine: a higher fence, or my own number in another's hands?"""
    return theirs.fence > mine.fence or (theirs.fence == mine.fence and theirs.writer != mine.writer)


class ManifestRepository:
    """Loads and commits the documents of one bucket. Holds nothing but pages, which never change; safe to use from many threads.

    new_id  32 hex digits that were never given before
    """

    def __init__(self, store: ObjectStore, *, new_id: Callable[[], str] = new_unique_id, limits: PageLimits | None = None) -> None:
        self._store = store
        self._new_id, self._limits = new_id, limits or page_limits.LIMITS
        self._pages = PageStore(store, new_id, self._still_refers)

    @property
    def store(self) -> ObjectStore:
        return self._store

    # Heads

    def load(self, partition: PartitionId) -> Versioned | None:
        """The head; None only when the store definitely says that there is none. The pages that it refers to are read when they are
        wanted.

        Raises CorruptData, UnsupportedFormat and ForeignOwner for what is there and is no head of `partition`, and what the store raises.
        """
        try:
            raw, tag = self._store.get(keys.head(partition))
        except NotFound:
            return None
        return Versioned(decode_head(raw, partition, PartitionPages(self._pages, partition)), tag, len(raw), digest_of(raw))

    def load_of_any_owner(self, partition: PartitionId) -> Versioned | None:
        """As `load`, whichever cluster the partition is of."""
        try:
            raw, tag = self._store.get(keys.head(partition))
        except NotFound:
            return None
        where = f"manifest of {partition}"
        head = check_head(parse_head(raw, where, partial(PartitionPages, self._pages)))
        if (head.topic, head.topic_id, head.partition) != (partition.topic, partition.topic_id, partition.partition):
            raise ForeignOwner(f"{where} belongs to {head.topic} {head.topic_id}:{head.partition}")
        return Versioned(head, tag, len(raw), digest_of(raw))

    def load_unchecked(self, key: str) -> Head:
        """The head at `key`, whosesoever it is and whatever it lists. Raises NotFound, CorruptData for what is no head at all,
        UnsupportedFormat, and what the store raises."""
        return parse_head(self._store.get(key)[0], key, partial(PartitionPages, self._pages))

    def commit(self, before: Versioned | None, after: Head) -> Versioned:
        """Publish `after` as the successor of `before`, None to create. Version and commit id are set here, and what does not fit into
        the head goes to pages first, each confirmed before the head names it.

        Raises Fenced when a newer claim is there, CommitLost when another commit is, and UnknownOutcome when it stays
        open whether this one is or will be: then load and plan again; should it arrive late, it finds its place taken
        or is the place that the next commit loses to.

        Raises NeedsUpgrade when `before` was written by a newer version; then nothing was sent. What a failed commit leaves are pages
        that nothing refers to: garbage collection's.
        """
        self._check_succession(before, after)
        version = before.head.version + 1 if before else 1
        head = msgspec.structs.replace(self._packed(after), version=version, commit_id=self._new_id())
        head = msgspec.structs.replace(head, format=format_after(before.head if before else None, head))
        key, document = keys.head(head.partition_id), encode_head(head)
        expected = before.tag if before else None
        cause: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                return Versioned(head, self._write(key, document, expected), len(document))
            except (AlreadyExists, Conflict, UnknownOutcome) as error:
                cause = error
            except TransientError as error:
                if cause is None:
                    raise  # a definite no, and no earlier attempt is in flight
                raise UnknownOutcome(f"{head.partition_id}: commit {head.commit_id}: {error}") from error
            current = self._read_back(head, cause)
            if current and current.head.commit_id == head.commit_id:
                return current
            if (current.tag if current else None) == expected:
                continue  # no other commit came first: the very same document again, so that a late twin does no harm
            if current and _is_fenced(head, current.head):
                raise Fenced(
                    f"{head.partition_id} is claimed by another agent ({current.head.writer}, fence {current.head.fence})"
                ) from cause
            raise CommitLost(head.partition_id, current) from cause
        raise UnknownOutcome(f"{head.partition_id}: commit {head.commit_id} is neither there nor refused") from cause

    def _packed(self, head: Head) -> Head:
        """`head` with pages of its own fence for what does not fit."""
        partition = head.partition_id
        reader = PartitionPages(self._pages, partition)

        def write(level: int, items: Sequence[Item]) -> PageRef:
            check_head(head)  # what no reader would take gets no page either
            return self._pages.write(partition, head.fence, level, items)

        return msgspec.structs.replace(
            head,
            entries=pack(head.entries.in_items(head.entries.items, reader), self._limits, write),
            superseded=pack_superseded(SupersededEntries(head.superseded.items, reader), self._limits, write),
        )

    def _still_refers(self, partition: PartitionId, ref: PageRef) -> bool:
        """Is the page listed by the head as it is now? A page that is not there proves no damage: it may have been replaced."""
        held = self.load(partition)
        return held is not None and (refers_to(held.head.entries, ref) or refers_to(held.head.superseded, ref))

    @staticmethod
    def _check_succession(before: Versioned | None, after: Head) -> None:
        """Our own mistakes, caught before they reach the bucket: the fence is a claim's alone, and so is the owner; the rest of an
        identity never changes."""
        if before is None:
            return
        held = before.head
        check_writable(held)
        if msgspec.structs.replace(after, cluster_id=held.cluster_id).partition_id != held.partition_id or after.fence < held.fence:
            raise ValueError(f"not a successor: {held.partition_id} fence {held.fence}, {after.partition_id} fence {after.fence}")
        if after.cluster_id != held.cluster_id and after.fence == held.fence:
            raise ValueError(f"{after.cluster_id} takes {held.partition_id} from {held.cluster_id} under its fence {held.fence}")
        if after.fence == held.fence and after.writer != held.writer:
            raise ValueError(f"{after.writer} commits under the fence {held.fence} of {held.writer}")

    def _write(self, key: str, document: bytes, expected_tag: str | None) -> str:
        if expected_tag is None:
            return self._store.create(key, document)
        return self._store.replace(key, document, expected_tag=expected_tag)

    def _read_back(self, head: Head, cause: Exception) -> Versioned | None:
        try:
            return self.load(head.partition_id)
        except TransientError as error:
            raise UnknownOutcome(f"{head.partition_id}: commit {head.commit_id}: {cause}; reading back: {error}") from error

    # The bucket and its topics

    def owner(self) -> Owner | None:
        """Whose archive this is; None when no cluster has taken it yet. Raises CorruptData and UnsupportedFormat."""
        try:
            return decode_owner(self._store.get(keys.OWNER)[0])
        except NotFound:
            return None

    def settle_owner(self, decide: Callable[[Owner | None], Owner | None]) -> Owner:
        """Bring headwater.json to where `decide` wants it; None from it: what it saw stays. Returns what is there then."""
        settled: Owner | None = None

        def decide_raw(raw: bytes | None) -> bytes | None:
            nonlocal settled
            seen = None if raw is None else decode_owner(raw)
            after = decide(seen)
            settled = after or seen
            return None if after is None else encode_owner(after)

        self._advance(keys.OWNER, decide_raw)
        assert settled is not None, "a decision leaves no bucket without an owner"
        return settled

    def load_pauses(self) -> PauseList:
        """What is paused; nothing where nobody has ever paused anything. Raises CorruptData and UnsupportedFormat."""
        try:
            return decode_pauses(self._store.get(keys.PAUSES)[0], keys.PAUSES)
        except NotFound:
            return PauseList()

    def change_pauses(self, decide: Callable[[PauseList], PauseList]) -> PauseList:
        """As `_change_shared`, with paused.json."""
        return self._change_shared(keys.PAUSES, PauseList(), decode_pauses, encode_pauses, decide)

    def load_settings(self) -> SettingList:
        """What was set by command; nothing where nobody has ever set anything. Raises CorruptData and UnsupportedFormat."""
        try:
            return decode_settings(self._store.get(keys.SETTINGS)[0], keys.SETTINGS)
        except NotFound:
            return SettingList()

    def change_settings(self, decide: Callable[[SettingList], SettingList]) -> SettingList:
        """As `_change_shared`, with meta/settings.json."""
        return self._change_shared(keys.SETTINGS, SettingList(), decode_settings, encode_settings, decide)

    def _change_shared(
        self,
        key: str,
        empty: Shared,
        decode: Callable[[bytes, str], Shared],
        encode: Callable[[Shared], bytes],
        decide: Callable[[Shared], Shared],
    ) -> Shared:
        """Bring a document that all agents share to where `decide` wants it; what it saw, from it: that stays. Returns what is there then.

        empty  what there is where nobody has ever changed anything

        Raises NeedsUpgrade for a document that a newer version wrote, and what `decode` and `decide` raise.
        """
        settled = empty

        def decide_raw(raw: bytes | None) -> bytes | None:
            nonlocal settled
            seen = empty if raw is None else decode(raw, key)
            settled = decide(seen)
            if settled is seen:
                return None
            check_ours(seen.format, key)
            return encode(settled)

        self._advance(key, decide_raw)
        return settled

    def load_snapshots(self) -> ClusterList | None:
        """Which snapshots there are of the cluster's metadata; None when the list is not there. Raises CorruptData and
        UnsupportedFormat."""
        try:
            return decode_cluster_list(self._store.get(keys.CLUSTER_LIST)[0])
        except NotFound:
            return None

    def change_snapshots(self, decide: Callable[[ClusterList | None], ClusterList | None]) -> ClusterList | None:
        """As `change_pauses`, with cluster/latest.json; None from `decide`: it stays as it is, or absent."""
        settled: ClusterList | None = None

        def decide_raw(raw: bytes | None) -> bytes | None:
            nonlocal settled
            seen = None if raw is None else decode_cluster_list(raw)
            after = decide(seen)
            settled = after or seen
            if after is None or after is seen:
                return None
            if seen is not None:
                check_ours(seen.format, keys.CLUSTER_LIST)
            return encode_cluster_list(after)

        self._advance(keys.CLUSTER_LIST, decide_raw)
        return settled

    def ensure_owner(self, cluster_id: str) -> None:
        """Take an empty bucket for `cluster_id`. Raises ForeignOwner when it is another cluster's."""

        def decide(raw: bytes | None) -> bytes | None:
            if raw is None:
                return encode_owner(Owner(cluster_id=cluster_id))
            owner = decode_owner(raw)
            if owner.cluster_id != cluster_id:
                raise foreign_bucket(self._store.url, owner, cluster_id)
            return None

        self._advance(keys.OWNER, decide)

    def ensure_topic(self, seen: TopicManifest, sight: Sight = NO_METADATA, *, moved_since_ms: int | None = None) -> Ensured:
        """Record what was seen of a topic: its manifest first, then which incarnation its name means (see `turn_to`).

        moved_since_ms  the name stays with an incarnation whose heads changed since then, in the store's time, where nothing else
                        shows which one is later; None: it goes to the newcomer

        Returns the manifest as the bucket has it now. Raises ForeignOwner when this incarnation is another cluster's, and
        NeedsUpgrade for a change of what a newer version wrote.
        """
        manifest, is_current = seen, True

        def decide_manifest(raw: bytes | None) -> bytes | None:
            nonlocal manifest
            before = None if raw is None else decode_topic(raw, seen.topic, seen.topic_id)
            if before and before.cluster_id != seen.cluster_id:
                raise ForeignOwner(f"topic {seen.topic} {seen.topic_id} belongs to cluster {before.cluster_id}")
            after = merge(before, seen)
            manifest = after or before or seen
            if before and after:
                check_ours(before.format, f"topic manifest of {seen.topic}")
            return None if after is None else encode_topic(after)

        def decide_current(raw: bytes | None) -> bytes | None:
            nonlocal is_current
            before = None if raw is None else decode_current(raw, seen.topic)
            after = turn_to(before, seen, sight, lambda: before is not None and self._moved(before, moved_since_ms))
            is_current = (after or before or seen).topic_id == seen.topic_id
            return _encoded(before, after)

        self._advance(keys.topic_manifest(seen.topic, seen.topic_id), decide_manifest)
        self._advance(keys.current(seen.topic), decide_current)
        return Ensured(manifest, is_current)

    def give_topic(self, incarnation: Incarnation, cluster_id: str, former: Collection[str]) -> None:
        """Its manifest, where there is one, is of `cluster_id` from now on, and was of one of the `former`. Raises ForeignOwner when it is
        another one's, and what decoding it does."""
        topic, topic_id = incarnation

        def decide(raw: bytes | None) -> bytes | None:
            held = None if raw is None else decode_topic(raw, topic, topic_id)
            if held is None or not _is_to_give(held, cluster_id, former):
                return None
            check_ours(held.format, f"topic manifest of {topic}")
            return encode_topic(msgspec.structs.replace(held, cluster_id=cluster_id, version=held.version + 1))

        self._advance(keys.topic_manifest(topic, topic_id), decide)

    def give_current(self, topic: str, cluster_id: str, former: Collection[str]) -> None:
        """As `give_topic`, with what says which incarnation the name means."""

        def decide(raw: bytes | None) -> bytes | None:
            held = None if raw is None else decode_current(raw, topic)
            if held is None or not _is_to_give(held, cluster_id, former):
                return None
            # offsets of another metadata log say nothing there
            return _encoded(held, msgspec.structs.replace(held, cluster_id=cluster_id, version=held.version + 1, as_of=None))

        self._advance(keys.current(topic), decide)

    def choose_incarnation(self, topic: str, topic_id: str, *, dry_run: bool = False) -> None:
        """From now on `topic` means this incarnation. Raises NotFound, which names the others, when the archive does not hold it."""
        ids = [each for name, each in self.incarnations(topic) if name == topic]
        chosen = self.load_topic(topic, topic_id)
        if chosen is None:
            raise NotFound(f"topic {topic} {topic_id} is not in {self._store.url}; incarnations there: {', '.join(ids) or 'none'}")

        def decide(raw: bytes | None) -> bytes | None:
            before = None if raw is None else decode_current(raw, topic)
            after = _encoded(before, choose(before, chosen, ids))
            return None if dry_run else after

        self._advance(keys.current(topic), decide)

    def _moved(self, current: Current, since_ms: int | None) -> bool:
        if since_ms is None:
            return False
        heads = self._store.list(keys.topic_prefix(current.topic, current.topic_id))
        return any(info.modified_ms >= since_ms for info in heads if (name := keys.parse_manifest(info.key)) and name.partition is not None)

    def load_topic(self, topic: str, topic_id: str) -> TopicManifest | None:
        """One incarnation's manifest; None when there is none. Raises CorruptData, UnsupportedFormat and ForeignOwner."""
        try:
            return decode_topic(self._store.get(keys.topic_manifest(topic, topic_id))[0], topic, topic_id)
        except NotFound:
            return None

    def current(self, topic: str) -> Current | None:
        """Which incarnation the bare name means; None when the archive does not know the name. Raises as `load_topic`."""
        try:
            return decode_current(self._store.get(keys.current(topic))[0], topic)
        except NotFound:
            return None

    def resolve(self, topic: str) -> TopicManifest:
        """The manifest of the incarnation that the bare name means.

        Raises NotFound, which says when the topic is lost rather than unknown, and what is wrong with a damaged document.
        """
        return self.resolve_name(topic)[0]

    def resolve_name(self, topic: str) -> tuple[TopicManifest, Current]:
        """The same, and what says so."""
        current = self.current(topic)
        manifest = self.load_topic(topic, current.topic_id) if current else None
        if manifest is None:
            for unreadable in survey_topics(self._store, topic).unreadable:
                raise unreadable.error
            raise NotFound(f"topic {topic} is not in {self._store.url}")
        assert current is not None
        return manifest, current

    def undecided(self, current: Current) -> list[str]:
        """The archived incarnations that the name has never meant, where neither the cluster nor a person has decided which it means.

        A topic that is created again where no metadata log is archived stays one until the former incarnation has stood still for a day.
        """
        if current.as_of is not None or current.chosen or len(current.previous) == PREVIOUS_MAX:
            return []
        known = {current.topic_id, *current.previous}
        found = self._manifests(keys.name_prefix(current.topic))
        return sorted({name.topic_id for name in found if name.topic == current.topic and name.partition is not None} - known)

    def incarnation(self, topic: str, topic_id: str) -> TopicManifest:
        """The manifest of that incarnation, whatever the bare name means now. Raises NotFound."""
        manifest = self.load_topic(topic, topic_id)
        if manifest is None:
            raise NotFound(f"{topic}@{topic_id} is not in {self._store.url}; `headwater topics list --all` has every incarnation")
        return manifest

    def incarnations(self, topic: str | None = None) -> list[Incarnation]:
        """Every incarnation in the bucket, in key order. A listing is a hint.

        topic  look for those of this name alone
        """
        prefix = keys.META if topic is None else keys.name_prefix(topic)
        return sorted({Incarnation(each.topic, each.topic_id) for each in self._manifests(prefix)})

    def partitions(self, topic: str, topic_id: str) -> list[PartitionId]:
        """The partitions of one incarnation that have a head, in order. Raises NotFound for an unknown incarnation."""
        manifest = self.load_topic(topic, topic_id)
        if manifest is None:
            raise NotFound(f"topic {topic} {topic_id} is not in {self._store.url}")
        found = {each.partition for each in self._manifests(keys.topic_prefix(topic, topic_id)) if each.partition is not None}
        return [manifest.partition_id(partition) for partition in sorted(found)]

    def _manifests(self, prefix: str) -> Iterator[keys.ManifestName]:
        return filter(None, (keys.parse_manifest(info.key) for info in self._store.list(prefix)))

    def _advance(self, key: str, decide: Callable[[bytes | None], bytes | None]) -> None:
        """Bring one small document to where `decide` wants it; None from it means it is there.

        `decide` sees every state again, so losing a race and a lost reply need no case of their own.
        """
        cause: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                raw, tag = self._store.get(key)
            except NotFound:
                raw, tag = None, None
            document = decide(raw)
            if document is None:
                return
            try:
                self._write(key, document, tag)
                return
            except (AlreadyExists, Conflict, UnknownOutcome) as error:
                cause = error
        raise TransientError(f"{key}: could not be written in {_ATTEMPTS} attempts: {cause}") from cause
