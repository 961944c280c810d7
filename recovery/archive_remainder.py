"""What stays in the archive for a gateway, looked at: a listing says of every object whether it is there, and how long."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, ForeignOwner, UnsupportedFormat
from headwater_core.layouts import is_known, open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.threads import ContextThreads
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.repository import ManifestRepository
from recovery.discovery import INDEXES_SHOWN, ArchivedTopic, index_note, load_head, wrong_length
from recovery.local_part import ReadablePages
from recovery.object_sizes import ObjectSizes
from recovery.recovery_plan import LeftInArchive, RecoveryPlan

_READERS = 16
_SHOWN = 100  # of all partitions


class Remainder(NamedTuple):
    """What was found of one partition.

    objects   that were looked at
    missing   runs that cannot be read any more, for people; the first ones
    runs      how many
    indexes   index objects that are not as they were written; the first ones
    lacking   how many
    """

    objects: int = 0
    missing: tuple[str, ...] = ()
    runs: int = 0
    indexes: tuple[str, ...] = ()
    lacking: int = 0


def with_remainder(
    plan: RecoveryPlan, repository: ManifestRepository, topics: Sequence[ArchivedTopic], others: Collection[str]
) -> RecoveryPlan:
    """`plan`, with what is missing of what it leaves in the archive. One listing per partition, and all its pages. Raises what the store
    raises.

    others  clusters that heads may be of, beside their topics' own
    """
    heads = {(topic.manifest.topic, number): head for topic in topics for number, head in topic.heads.items()}
    places = [
        (topic.archived_id(plan.source_cluster_id, partition.partition), partition.left, head)
        for topic in plan.topics
        for partition in topic.partitions
        if partition.left is not None and (head := heads.get((topic.archived_name.topic, partition.partition))) is not None
    ]
    if not places:
        return plan
    with ContextThreads(_READERS, "recover-remainder") as pool:
        found = list(pool.map(lambda place: _look_at_newest(repository, others, *place), places))
    missing = [text for each in found for text in each.missing][:_SHOWN]
    if more := sum(each.runs for each in found) - len(missing):
        missing.append(f"{count_text(more, 'more run')} in what stays in the archive")
    notes = [f"looked at by listing: {count_text(sum(each.objects for each in found), 'object')} in what stays in the archive"]
    if lacking := sum(each.lacking for each in found):
        notes.append(index_note([key for each in found for key in each.indexes], lacking))
    return replace(plan, left_out=(*plan.left_out, *missing), notes=(*plan.notes, *notes))


def not_looked_at(plan: RecoveryPlan) -> RecoveryPlan:
    """`plan`, with how much of the archive nobody has looked at."""
    runs = sum(partition.left.runs for topic in plan.topics for partition in topic.partitions if partition.left is not None)
    if not runs:
        return plan
    note = (
        f"not looked at: {count_text(runs, 'run')} in what stays in the archive; `headwater recover plan` lists all, `headwater "
        "verify` reads all"
    )
    return replace(plan, notes=(*plan.notes, note))


def _look_at_newest(
    repository: ManifestRepository, others: Collection[str], partition: PartitionId, left: LeftInArchive, head: Head
) -> Remainder:
    """An archive that is written to lets objects go that a head of before lists."""
    found = look(repository.store, partition, head, left)
    if not found.runs:
        return found
    try:
        held = load_head(repository, partition, others)
    except (CorruptData, ForeignOwner, UnsupportedFormat):
        return found
    if held is None or held.head.commit_id == head.commit_id:
        return found
    return look(repository.store, partition, held.head, left)


def look(store: ObjectStore, partition: PartitionId, head: Head, left: LeftInArchive) -> Remainder:
    """At each object of what is `left` of that partition. Raises what the store raises."""
    pages, sizes = ReadablePages(head.entries.pages), ObjectSizes(store, partition)
    first, end = max(left.base_offset, head.start_offset), left.last_offset + 1
    objects = count = lacking = 0
    missing: list[str] = []
    indexes: list[str] = []
    for entry in EntryTree(head.entries.items, pages).within(first, end):
        wrong = pages.lost[entry.base_offset].reason if entry.gap and entry.base_offset in pages.lost else ""
        if not entry.gap and not is_known(entry.layout):  # nobody has checked its keys
            wrong = f"layout {entry.layout[:40]!r} is not known to this version"
        elif not entry.gap:
            if entry.index_key and sizes.of(entry.index_key) != entry.index_bytes:
                lacking += 1
                indexes += [entry.index_key] * (len(indexes) < INDEXES_SHOWN)
            wrong = wrong_length(entry, sizes)
            with suppress(CorruptData, UnsupportedFormat):  # which is what is wrong
                objects += len(open_layout(entry.layout).data_objects(entry))
        if wrong:
            count += 1
            if len(missing) < _SHOWN:
                missing.append(f"{partition} offsets {entry.base_offset}-{entry.last_offset}, which stay in the archive: {wrong}")
    return Remainder(objects, tuple(missing), count, tuple(indexes), lacking)
