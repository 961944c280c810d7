"""Mistakes about collection, the archive's retention, and pauses."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace as dataclass_replace
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

import archival.collection.collector
import archival.partition.archiver
import archival.partition.branches
import archival.partition.looks
import archival.partition.merger
import archival.partition.release
import archival.partition.source
import archival.partition.tails
import archival.plan.lineage
import archival.plan.merge_plan
import archival.plan.replacement
import archival.plan.role
import archival.plan.step_plan
import archival.plan.trim
import manifests.namesakes
from archival.collection.collector import Collector
from archival.collection.orphans import stored_objects
from archival.collection.sightings import Seen, Sightings
from archival.known_pauses import KnownPauses
from archival.partition.archiver import PartitionArchiver
from headwater_core.errors import CorruptData, TransientError
from headwater_core.partition import PartitionId
from manifests.entry import Entry
from manifests.entry_tree import EntryBag
from manifests.head import Head
from manifests.namesakes import listed_uids, packed
from manifests.pause_list import PauseList
from tests.simulation.mutants.mutant import mutant, patch_in

# Collection and retention


@mutant("gc deletes what carries the current fence, or a later one, too", theme="trims")
def gc_any_fence(stack: ExitStack) -> None:
    def of_no_fence(*of: Any) -> Any:
        return [dataclass_replace(each, fence=-1) for each in stored_objects(*of)]

    patch_in(stack, archival.collection.collector, "stored_objects", of_no_fence)


@mutant("gc deletes what it finds unreferenced for the first time", theme="trims", noted=4)
def no_lease(stack: ExitStack) -> None:
    real = Sightings.see

    def see(sightings: Sightings, partition: PartitionId, seen: Seen, names: Any) -> Any:
        return dict.fromkeys(real(sightings, partition, seen, names), 0) if seen is Seen.ORPHAN else real(sightings, partition, seen, names)

    patch_in(stack, Sightings, "see", see)


@mutant("gc spares what the head lists itself", theme="pages", noted=32)
def gc_reads_head_only(stack: ExitStack) -> None:
    def listed(head: Head) -> set[bytes]:
        return {packed(item.uid) for bag in (head.entries, head.superseded) for item in bag.items}

    patch_in(stack, archival.collection.collector, "listed_uids", listed)


@mutant("gc takes a chunk that its head does not list for its own, whatever another incarnation lists", theme="layouts again", noted=3)
def gc_of_the_name(stack: ExitStack) -> None:
    patch_in(stack, manifests.namesakes.Namesakes, "may_have", lambda *_: False)


@mutant("gc takes a page that it cannot read for an empty one", theme="pages", in_race=True)
def gc_skips_unreadable(stack: ExitStack) -> None:
    def add(found: set[bytes], bag: EntryBag) -> None:
        for item in bag.items:
            found.add(packed(item.uid))
            if not isinstance(item, Entry):
                with suppress(CorruptData, TransientError):
                    add(found, EntryBag(bag.pages.read(item), bag.pages))

    patch_in(stack, manifests.namesakes, "_add_listed", add)


@mutant("gc does not wait for what is uploaded and not committed", theme="trims", in_race=True)
def gc_does_not_wait(stack: ExitStack) -> None:
    real = PartitionArchiver.amend

    def amend(self: PartitionArchiver, change: Callable[[Head], Head], *, discards: bool = False) -> Head:
        return real(self, change, discards=True)

    patch_in(stack, PartitionArchiver, "amend", amend)


@mutant("gc spares what is live", theme="collected", noted=93)
def gc_reads_live_only(stack: ExitStack) -> None:
    patch_in(stack, archival.collection.collector, "listed_uids", lambda head: listed_uids(replace(head, superseded=())))


@mutant("the archive's retention takes the newest run too", theme="trims", noted=19)
def trim_everything(stack: ExitStack) -> None:
    patch_in(stack, archival.plan.trim, "_newest_run", lambda entries: 2**62)


@mutant("what dead branches have left is forgotten at once", theme="collected", noted=93)
def superseded_forgotten(stack: ExitStack) -> None:
    def outlived(collector: Collector, head: Head, settings: Any, *, remember: bool) -> Any:
        return {archival.collection.collector._name(entry) for entry in head.superseded}

    patch_in(stack, Collector, "_outlived", outlived)


# Pauses


@mutant("an agent that has not read what is paused takes it for nothing", theme="pauses", noted=6)
def pauses_unknown_are_none(plants: ExitStack) -> None:
    def now(self: KnownPauses) -> PauseList:
        return self.known or PauseList()

    plants.enter_context(patch.object(KnownPauses, "now", now))


@mutant("a pause holds for the agent alone that has written it", theme="pauses", noted=6)
def pauses_are_not_heeded(plants: ExitStack) -> None:
    plants.enter_context(patch.object(KnownPauses, "applied", lambda self, place, policy: policy))
