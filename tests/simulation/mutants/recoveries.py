"""Mistakes of recoveries."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import recovery.placement
import recovery.planner
import recovery.restoration
import recovery.revision
import recovery.runs
from headwater_core.errors import (
    CorruptData,
    TransientError,
)
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from manifests.entry import Entry
from recovery.placement import Placement
from recovery.recovery_plan import LostRun, RecoveryPlan
from tests.simulation.mutants.mutant import mutant, patch_in


@mutant("a recovery takes what is gone for damage, whatever the head says by now", theme="recovered", noted=7)
def recovery_calls_it_damage(stack: ExitStack) -> None:
    patch_in(stack, recovery.revision, "_planned_again", lambda *_: {})


@mutant("a recovery that plans again leaves in place what the plan before had put there", theme="recovered", noted=411)
def recovery_leaves_what_is_outdated(stack: ExitStack) -> None:
    patch_in(stack, Placement, "_remove_outdated", lambda *_: None)


@mutant("a recovery trusts a segment in place by its name", theme="recovered", noted=100)
def recovery_trusts_a_name(stack: ExitStack) -> None:
    patch_in(stack, Placement, "_remove_outdated", lambda *_: None)
    patch_in(stack, recovery.runs, "check_run", lambda file, *_: 0)


@mutant("a recovery leaves out what the store did not give in time", theme="pages", noted=17)
def recovery_calls_silence_damage(stack: ExitStack) -> None:
    real = recovery.planner.plan_partition

    def plan_partition(*of: Any) -> Any:
        try:
            return real(*of)
        except TransientError as error:
            raise CorruptData("a page", 0, str(error)) from error

    patch_in(stack, recovery.planner, "plan_partition", plan_partition)


@mutant("a recovery believes what it has downloaded", theme="damaged buckets", noted=4)
def recovery_compares_nothing(stack: ExitStack) -> None:
    def download(store: ObjectStore, entry: Entry, arrived: Callable[[memoryview], object]) -> None:
        buffer = memoryview(bytearray(entry.run_bytes))
        open_layout(entry.layout).read_offloaded(store, entry).read_into(buffer, 0)
        arrived(buffer[: entry.live_bytes])

    patch_in(stack, recovery.runs, "download", download)
    patch_in(stack, recovery.runs, "check_run", lambda file, entry, *_: entry.next_offset)


@mutant("a recovery that skips what is damaged ends the log there", theme="damaged buckets", noted=1)
def recovery_ends_at_a_hole(stack: ExitStack) -> None:
    real = recovery.planner.without

    def without(plan: RecoveryPlan, lost_runs: Iterable[LostRun]) -> RecoveryPlan:
        after = [
            LostRun(
                topic=lost.topic, partition=lost.partition, base_offset=entry.base_offset, last_offset=entry.last_offset, reason="after it"
            )
            for lost in lost_runs
            for topic in plan.topics
            for entry in topic.partitions[lost.partition].files
            if topic.topic == lost.topic and entry.base_offset > lost.base_offset
        ]
        return real(plan, {(each.topic, each.partition, each.base_offset): each for each in (*after, *lost_runs)}.values())

    for module in (recovery.placement, recovery.restoration):
        patch_in(stack, module, "without", without)


@mutant("a recovery takes an older head, and says nothing of what lies beyond its end", theme="damaged buckets", noted=1)
def recovery_says_nothing_of_what_is_beyond(stack: ExitStack) -> None:
    patch_in(stack, recovery, "unlisted_notes", lambda *_: ())
