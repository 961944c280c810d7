"""Which objects of a partition to examine, and what is wrong with its head. Pure: a head and a listing in, checks and findings out."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from headwater.pipeline.scrub.findings import Finding, Kind
from headwater_core.errors import CorruptData, HeadwaterError, UnsupportedFormat
from headwater_core.layouts import is_known, open_layout
from headwater_core.objectstore.store import ObjectInfo
from headwater_core.partition import PartitionId
from manifests import chunk_keys, keys
from manifests.entry import Entry, check_entry
from manifests.head import Head, check_head


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One data object with its index, and everything that a head says of them. Can be pickled.

    entries       at least one; all name the same bytes: after an unclean election one object may be listed in two parts
    listed_bytes, listed_index_bytes  lengths by the listing; None for an object that it does not show, or that the layout does not have
    """

    partition: PartitionId
    entries: tuple[Entry, ...]
    listed_bytes: int | None
    listed_index_bytes: int | None

    @property
    def entry(self) -> Entry:
        """The first one; key, lengths, digests and layout are equal in all."""
        return self.entries[0]

    @property
    def token(self) -> str:
        """Changes when the object or anything in its entries changes."""
        return token_of(*self.entries)

    @property
    def is_as_listed(self) -> bool:
        """Whether the listing has the lengths of the head: all that is known without a request."""
        index_bytes = self.entry.index_bytes if self.entry.index_key else None
        return (self.listed_bytes, self.listed_index_bytes) == (self.entry.size_bytes, index_bytes)


def token_of(*entries: Entry) -> str:
    """A short text for one object and all that its entries say of it."""
    text = repr(sorted(entries, key=lambda entry: (entry.base_offset, entry.live_bytes)))
    return f"{entries[0].uid}/{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def faults(head: Head, *, is_whole: bool = True) -> Iterator[Finding]:
    """What is wrong with a head by itself, each fault with its own kind; nothing for a valid one.

    An error of check_head is left out when a fault explains it.

    is_whole  False: some of its entries could not be read, so that what is missing shows nothing
    """
    is_explained = not is_whole
    for finding in (*_seams(head), *_bad_entries(head)):
        is_explained = is_explained or finding.kind is not Kind.EPOCHS
        if is_whole or finding.kind is not Kind.GAP:
            yield finding
    try:
        check_head(head)
    except UnsupportedFormat as error:
        yield _of(head, Kind.UNEXAMINED, str(error))
    except HeadwaterError as error:
        if not is_explained:
            yield _of(head, Kind.HEAD, str(error))


def _seams(head: Head) -> Iterator[Finding]:
    newest = -1
    for entry in head.entries:
        for epoch, first in entry.epochs:
            if epoch < newest:
                yield _of(head, Kind.EPOCHS, f"leader epoch {epoch} from offset {first} on follows {newest}")
            newest = epoch
    for before, after in pairwise(head.entries):
        if after.base_offset > before.next_offset:
            yield _of(head, Kind.GAP, f"nothing is listed from offset {before.next_offset} to {after.base_offset - 1}")
        elif after.base_offset < before.next_offset:
            last = min(before.last_offset, after.last_offset)
            yield _of(head, Kind.OVERLAP, f"offsets {after.base_offset} to {last} are listed twice, or out of order")
    if head.entries and head.last_offset > head.entries[-1].last_offset:
        first = head.entries[-1].next_offset
        yield _of(head, Kind.GAP, f"nothing is listed from offset {first} to {head.last_offset}, where the manifest ends")
    if head.entries and head.start_offset < head.entries[0].base_offset:
        last = head.entries[0].base_offset - 1
        yield _of(head, Kind.GAP, f"nothing is listed from offset {head.start_offset}, where the manifest starts, to {last}")


def _bad_entries(head: Head) -> Iterator[Finding]:
    for entry in (*head.entries, *head.superseded):
        try:
            check_entry(head.partition_id, entry)
        except HeadwaterError as error:
            yield _of(head, Kind.HEAD, str(error))


def _of(head: Head, kind: Kind, problem: str) -> Finding:
    return Finding(kind=kind, topic=head.topic, partition=head.partition, key=keys.head(head.partition_id), problem=problem)


def checks_of(head: Head, listed: Mapping[str, ObjectInfo]) -> list[Check]:
    """One check for each object that `head` lists, superseded ones too; without gaps, and without invalid entries."""
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in (*head.entries, *head.superseded):
        if entry.gap or not _is_valid(head.partition_id, entry):
            continue
        same = (entry.key, entry.size_bytes, entry.digest, entry.index_bytes, entry.index_digest, entry.layout)
        groups.setdefault(same, []).append(entry)
    sizes = {key: info.size_bytes for key, info in listed.items()}
    return [
        Check(
            partition=head.partition_id,
            entries=tuple(entries),
            listed_bytes=_listed_bytes(entries[0], sizes),
            listed_index_bytes=sizes.get(entries[0].index_key),
        )
        for entries in groups.values()
    ]


def _listed_bytes(entry: Entry, sizes: Mapping[str, int]) -> int | None:
    """Of all objects that hold its run; None where the listing does not show each of them."""
    found = [sizes.get(key) for key in _object_keys(entry)]
    return None if None in found else sum(each or 0 for each in found)


def _object_keys(entry: Entry) -> list[str]:
    """Of the data objects that hold its run. Of one that this version does not read, the key that the entry names."""
    try:
        return [key for key, _ in open_layout(entry.layout).data_objects(entry)]
    except (CorruptData, UnsupportedFormat):
        return [entry.key]


def _is_valid(partition: PartitionId, entry: Entry) -> bool:
    try:
        check_entry(partition, entry)
    except HeadwaterError:
        return False
    return True


def extras(
    head: Head, listed: Mapping[str, ObjectInfo], *, before_ms: int, may_be_theirs: Callable[[str, int], bool] = lambda uid, fence: False
) -> Iterator[Finding]:
    """Orphans: objects that `head` does not list and that are older than `before_ms`. Younger ones may be uploads in flight.

    listed  the listing from before the head was read: what was committed in between is in the head
    may_be_theirs  of a chunk, whose key names no incarnation: see Namesakes.may_have
    """
    if any(not is_known(entry.layout) for entry in (*head.entries, *head.superseded)):
        return  # a newer version's layout may keep objects that only it can name
    advice = _UNUSED if next(faults(head), None) is None else "keep it: the manifest itself is damaged"
    entries = [entry for entry in (*head.entries, *head.superseded) if not entry.gap]
    named = {key for entry in entries for key in (*_object_keys(entry), entry.index_key)}
    pending = {each.uid for each in head.pending if each.is_assigned}
    for key, info in listed.items():
        if keys.beside(key) in named or info.modified_ms >= before_ms:
            continue
        chunk, name = chunk_keys.parse(key), keys.parse_object(key)
        if chunk is not None:  # while its segment is open, what is pending names that
            uids = (chunk.uid, chunk_keys.segment_uid(chunk.place))
            is_wanted = any(uid in pending or may_be_theirs(uid, chunk.fence) for uid in uids)
        else:
            is_wanted = name is not None and name.uid in pending
        if not is_wanted:
            yield extra(info, advice, topic=head.topic, partition=head.partition)


_UNUSED = "it is not used"


def extra(info: ObjectInfo, advice: str = _UNUSED, *, topic: str = "", partition: int | None = None) -> Finding:
    return Finding(
        kind=Kind.EXTRA,
        topic=topic,
        partition=partition,
        key=info.key,
        problem=f"an orphan of {info.size_bytes} bytes, of an interrupted upload or another program; {advice}",
    )


def swaps(findings: list[Finding], digests: Mapping[str, str]) -> list[Finding]:
    """The findings; where an object has the content of another, the other's key is named.

    digests  digest to key, of all objects that heads list
    """
    return [
        _swapped(each, digests[each.found_digest]) if digests.get(each.found_digest, each.key) != each.key else each for each in findings
    ]


def _swapped(finding: Finding, other: str) -> Finding:
    return Finding(
        kind=Kind.SWAPPED,
        topic=finding.topic,
        partition=finding.partition,
        key=finding.key,
        problem=f"holds the content of {other}: {finding.problem}",
        found_digest=finding.found_digest,
    )
