"""What of a partition is to be examined, and what its head says that cannot be. Pure: a head and a listing in, checks and findings out."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from headwater.pipeline.scrub.findings import Finding, Kind
from headwater_core.errors import HeadwaterError, UnsupportedFormat
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectInfo
from headwater_core.partition import PartitionId
from manifests import keys
from manifests.head import Entry, Head, check_entry, check_head


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One data object with its index, and everything that a head says of them. Crosses processes.

    entries       never empty; they name the same bytes: after an unclean election one object may be listed in two parts
    listed_bytes, listed_index_bytes  lengths as the listing has them; None for what it does not show
    """

    partition: PartitionId
    entries: tuple[Entry, ...]
    listed_bytes: int | None
    listed_index_bytes: int | None

    @property
    def entry(self) -> Entry:
        """Any of them, for what they all say: key, lengths, digests, layout."""
        return self.entries[0]

    @property
    def token(self) -> str:
        """Changes when the object or anything that is said of it does."""
        return token_of(*self.entries)

    @property
    def is_as_listed(self) -> bool:
        """All that can be told without a request."""
        return (self.listed_bytes, self.listed_index_bytes) == (self.entry.size_bytes, self.entry.index_bytes)


def token_of(*entries: Entry) -> str:
    """Stands for one object and all that its entries say of it."""
    said = repr(sorted(entries, key=lambda entry: (entry.base_offset, entry.live_bytes)))
    return f"{entries[0].uid}/{hashlib.blake2b(said.encode(), digest_size=8).hexdigest()}"


def faults(head: Head) -> Iterator[Finding]:
    """What is wrong with a head by itself, each thing by its own name; nothing for a valid one.

    Leaves aside what check_head knows no name for, unless it is all there is to tell.
    """
    told = False
    for finding in (*_seams(head), *_bad_entries(head)):
        told = told or finding.kind is not Kind.EPOCHS
        yield finding
    try:
        check_head(head)
    except UnsupportedFormat as error:
        yield _of(head, Kind.UNEXAMINED, str(error))
    except HeadwaterError as error:
        if not told:
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
    """One check for each object that `head` lists, superseded ones too; gaps hold nothing, and keys that are not ours are not followed."""
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
            listed_bytes=sizes.get(entries[0].key),
            listed_index_bytes=sizes.get(entries[0].index_key),
        )
        for entries in groups.values()
    ]


def _is_valid(partition: PartitionId, entry: Entry) -> bool:
    try:
        check_entry(partition, entry)
    except HeadwaterError:
        return False
    return True


def extras(head: Head, listed: Mapping[str, ObjectInfo], *, before_ms: int) -> Iterator[Finding]:
    """Objects that `head` does not list and that are older than `before_ms`; younger ones may be an upload under way.

    listed  as it was before the head was read: what has become listed since is in the head
    """
    if any(not _is_known(entry.layout) for entry in (*head.entries, *head.superseded)):
        return  # a newer version's layout may keep objects that only it can name
    told = "nothing reads them" if next(faults(head), None) is None else "keep them, for the manifest itself is damaged"
    named = {key for entry in (*head.entries, *head.superseded) for key in (entry.key, entry.index_key)}
    for key, info in listed.items():
        if key not in named and info.modified_ms < before_ms:
            yield extra(info, told, topic=head.topic, partition=head.partition)


def _is_known(layout: str) -> bool:
    try:
        open_layout(layout)
    except UnsupportedFormat:
        return False
    return True


def extra(info: ObjectInfo, told: str = "nothing reads them", *, topic: str = "", partition: int | None = None) -> Finding:
    return Finding(
        kind=Kind.EXTRA,
        topic=topic,
        partition=partition,
        key=info.key,
        problem=f"{info.size_bytes} bytes that no manifest lists: an interrupted upload left them, or somebody else; {told}",
    )


def swaps(findings: list[Finding], digests: Mapping[str, str]) -> list[Finding]:
    """The findings, with the name of the object whose content lies under the wrong key.

    digests  of whole objects, as heads list them, to their keys
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
