"""Mistakes of recoveries."""

from contextlib import ExitStack
from typing import Any

import recovery.planner
import recovery.revision
import recovery.runs
from headwater_core.errors import (
    CorruptData,
    TransientError,
)
from recovery.placement import Placement
from tests.simulation.mutants.mutant import mutant, patch_in


@mutant("a recovery takes what is gone for damage, whatever the head says by now", theme="recovered", noted=6)
def recovery_calls_it_damage(stack: ExitStack) -> None:
    patch_in(stack, recovery.revision, "_planned_again", lambda *_: {})


@mutant("a recovery that plans again leaves in place what the plan before had put there", theme="recovered", noted=411)
def recovery_leaves_what_is_outdated(stack: ExitStack) -> None:
    patch_in(stack, Placement, "_remove_outdated", lambda *_: None)


@mutant("a recovery trusts a segment in place by its name", theme="recovered", noted=85)
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
