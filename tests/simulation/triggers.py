"""Triggers in a simulated world: an operator who sets them, a broker whose retention is changed, and what an archiver must make of both."""

from collections import Counter
from collections.abc import Sequence
from random import Random

from archival.partition.archiver import Outcome
from archival.plan.policy import Triggers
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.metadata.cluster_metadata import Retention
from tests.simulation.brokers import Brokers
from tests.simulation.bucket import Violation

_AGES_MS = (None, 30_000, 100_000, 3_600_000)
_SIZES = (None, 1_000, 3_000, 100_000)


class TriggerWorld:
    """What is set now, and what the brokers keep; both are drawn anew now and then."""

    def __init__(self, random: Random, brokers: Brokers, seen: Counter[str]) -> None:
        self._random, self._brokers, self._seen = random, brokers, seen
        self.set: Triggers | None = None

    def change(self) -> str:
        draw = self._random.choice
        if draw((True, False)):
            self._brokers.retention = Retention(draw(_AGES_MS), draw(_SIZES), "the topic's", "the topic's")
        else:
            chosen = Triggers(draw((None, 10_000, 60_000, 200_000)), draw((None, 500, 2_000, 20_000)))
            self.set = chosen if chosen != Triggers(None, None) else None
        return f"triggers {self.set}, retention {self._brokers.retention}"

    def check(self, log: LocalLog, triggers: Triggers, now_ms: int, outcome: Outcome, next_offset: int | None) -> None:
        """What went had to go, or might; what waits must not have to go. next_offset: of the archive after the step."""
        due = _due_end(log, triggers, now_ms)
        if outcome.action == "archived" and outcome.entry is not None:
            for entry in (*outcome.before, outcome.entry):
                end = _sealed_end_over(log, entry.last_offset)
                if end is not None and end <= (log.high_watermark or 0):
                    self._seen["a trigger lets a segment go"] += 1
                    if end > due:
                        raise Violation(f"offsets {entry.base_offset} to {entry.last_offset} went before their trigger, at {triggers}")
        if outcome.action == "idle" and outcome.reason.startswith("a sealed segment waits") and next_offset is not None:
            self._seen["a trigger holds a segment back"] += 1
            end = _sealed_end_over(log, max(next_offset, log.start_offset))
            if end is None or end <= due:
                raise Violation(f"offset {next_offset} waits though it is due: {triggers}, {log.retention}")
        if _is_too_late(log, triggers):
            self._seen["a trigger is not applied"] += 1


def _limits(log: LocalLog) -> tuple[Sequence[int], int | None]:
    """Of ages, and of bytes."""
    ages = [] if log.retention is None or log.retention.age_ms is None else [log.retention.age_ms]
    if log.delete_retention_ms is not None:
        ages.append(log.delete_retention_ms // 2)
    return ages, log.retention.size_bytes if log.retention else None


def _is_too_late(log: LocalLog, triggers: Triggers) -> bool:
    ages, size = _limits(log)
    by_age = triggers.after_ms is not None and any(triggers.after_ms >= age for age in ages)
    return by_age or (triggers.log_bytes is not None and size is not None and triggers.log_bytes >= size)


def _due_end(log: LocalLog, triggers: Triggers, now_ms: int) -> int:
    """Where the last segment ends that may go, by what is said to operators: set triggers, or four fifths of a limit."""
    if _is_too_late(log, triggers):
        return 2**62
    ages, size = _limits(log)
    end = 0
    for at, segment in enumerate(log.segments[:-1]):
        age_ms = now_ms - segment.generation.modified_ns // 10**6
        size_bytes = sum(each.size_bytes for each in log.segments[at:])
        if (
            (triggers.after_ms is not None and age_ms >= triggers.after_ms)
            or (triggers.log_bytes is not None and size_bytes > triggers.log_bytes)
            or any(age_ms >= age * 4 // 5 for age in ages)
            or (size is not None and size_bytes > size * 4 // 5)
        ):
            end = log.segments[at + 1].base_offset
    return end


def _sealed_end_over(log: LocalLog, offset: int) -> int | None:
    """Where the sealed segment ends that holds `offset`; None where that is the active one, or none."""
    return next((end for _, end in log.segments_from(offset)), None)
