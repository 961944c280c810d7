"""Mistakes about the triggers that let sealed segments wait."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import archival.plan.offload_trigger
import archival.plan.step_plan
import tests.simulation.agents
from archival.plan.policy import Policy
from headwater_core.segments.local_log import LocalLog
from tests.simulation.mutants.mutant import mutant, patch_in


@mutant("a trigger is applied though the broker's retention is shorter", theme="triggers")
def trigger_beyond_retention(stack: ExitStack) -> None:
    patch_in(stack, archival.plan.offload_trigger, "misfit", lambda *_: "")


@mutant("retention that has come near releases nothing", theme="triggers", noted=36)
def trigger_until_retention(stack: ExitStack) -> None:
    patch_in(stack, archival.plan.offload_trigger, "_before", lambda wanted, limit: wanted)


@mutant("the planner does not heed the bound that triggers come to", theme="triggers", noted=3)
def trigger_unheeded(stack: ExitStack) -> None:
    real = archival.plan.offload_trigger.bounded

    def unbound(policy: Policy, log: LocalLog, now_ms: int) -> Policy:
        found = real(policy, log, now_ms)
        return replace(found, bound=found.bound and found.bound._replace(end=2**62))

    patch_in(stack, tests.simulation.agents, "bounded", unbound)


@mutant("a segment's bytes count from its end on, not from its begin", theme="triggers", noted=4)
def trigger_by_what_follows(stack: ExitStack) -> None:
    real = archival.plan.offload_trigger._due_end

    def due_end(log: LocalLog, after_ms: int | None, log_bytes: int | None, now_ms: int) -> Any:
        own = max((each.size_bytes for each in log.segments), default=0)
        return real(log, after_ms, None if log_bytes is None else log_bytes + own, now_ms)

    patch_in(stack, archival.plan.offload_trigger, "_due_end", due_end)


@mutant("a segment counts from its file's time, though its records are older", theme="triggers", noted=15)
def trigger_by_file_time(stack: ExitStack) -> None:
    patch_in(stack, archival.plan.offload_trigger, "counted_from_ms", lambda segment: segment.generation.modified_ns // 10**6)


@mutant("what is streamed does not heed triggers", theme="streamed triggers", noted=24)
def trigger_unheeded_by_streams(stack: ExitStack) -> None:
    patch_in(stack, archival.plan.step_plan, "_released_end", lambda log, first, high_watermark, *_: high_watermark)


@mutant("a sealed segment that is due goes up to the high watermark, before all of it is committed", in_race=True)
def trigger_cuts_at_the_high_watermark(stack: ExitStack) -> None:
    real = archival.plan.step_plan._released_end

    def released_end(log: LocalLog, first: int, high_watermark: int, policy: Policy, *of: int) -> int:
        due = 0 if policy.bound is None else policy.bound.end
        return max(real(log, first, high_watermark, policy, *of), min(high_watermark, due))

    patch_in(stack, archival.plan.step_plan, "_released_end", released_end)


@mutant("what a trigger has let go stays open for its age", theme="streamed triggers", noted=15)
def trigger_keeps_open(stack: ExitStack) -> None:
    patch_in(stack, Policy, "stream_limits", property(lambda policy: policy.stream))
