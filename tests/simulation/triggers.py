"""Triggers in a simulated world: an operator who sets them, a broker whose retention is changed, and what an archiver must make of both."""

import struct
from collections import Counter
from collections.abc import Sequence
from random import Random

from archival.partition.archiver import Outcome
from archival.plan.policy import Triggers
from headwater_core.segments.local_log import LocalLog, LocalSegment
from headwater_core.segments.metadata.cluster_metadata import Retention
from tests.simulation.brokers import Brokers
from tests.simulation.bucket import Violation

_AGES_MS = (None, 30_000, 100_000, 3_600_000)
_SIZES = (None, 1_000, 3_000, 100_000)


class TriggerWorld:
    """What is set now, and what the brokers keep; both are drawn again now and then."""

    def __init__(self, random: Random, brokers: Brokers, seen: Counter[str], *, streams: bool = False) -> None:
        """streams: without triggers what is committed is streamed, so there are none more often"""
        self._random, self._brokers, self._seen, self._streams = random, brokers, seen, streams
        self.set: Triggers | None = None

    def change(self) -> str:
        draw = self._random.choice
        if self._streams and self.set is not None and draw((True, False)):
            self.set = None
        elif draw((True, False)):
            self._brokers.retention = Retention(draw(_AGES_MS), draw(_SIZES), "the topic's", "the topic's")
        else:
            chosen = Triggers(draw((None, 10_000, 60_000, 200_000)), draw((None, 500, 2_000, 20_000)))
            self.set = chosen if chosen != Triggers(None, None) else None
        return f"triggers {self.set}, retention {self._brokers.retention}"

    def check(self, log: LocalLog, triggers: Triggers, due: int, outcome: Outcome, next_offset: int | None, held_to: int) -> None:
        """What went had to go, or might; what waits must not have to go.

        due          see `due_end`, of the look that the step was made on
        next_offset  of the archive after the step
        held_to      up to there an object was open that had been begun without triggers: it is completed first
        """
        self._seen["what was open is completed first"] += outcome.action == "archived" and held_to > due
        due = max(due, held_to)
        if outcome.reason.startswith("a stream is open") and not is_too_late(log, triggers):
            raise Violation(f"an object is kept open though nothing more of it may go, at {triggers}")
        if outcome.action == "archived" and outcome.entry is not None:
            for entry in (*outcome.before, outcome.entry):
                self._seen["a trigger lets an object go"] += entry.layout == "streaming" and not held_to
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
        if is_too_late(log, triggers):
            self._seen["a trigger is not applied"] += 1

    def check_whole(self, log: LocalLog, outcome: Outcome, first: int) -> None:
        """Where no unfinished end goes, a sealed segment waits until all of it is committed. first: of what was to be archived next"""
        if outcome.entry is None or outcome.action != "archived" or (*outcome.before, outcome.entry)[0].base_offset != first:
            return
        end = _sealed_end_over(log, outcome.entry.last_offset)
        if end is not None and end > (log.high_watermark or 0):
            raise Violation(f"a segment that ends at {end} was cut behind {outcome.entry.last_offset}, at {self.set}")


def _limits(log: LocalLog) -> tuple[Sequence[int], int | None]:
    """Of ages, and of bytes."""
    ages = [] if log.retention is None or log.retention.age_ms is None else [log.retention.age_ms]
    if log.delete_retention_ms is not None:
        ages.append(log.delete_retention_ms // 2)
    return ages, log.retention.size_bytes if log.retention else None


def is_too_late(log: LocalLog, triggers: Triggers) -> bool:
    ages, size = _limits(log)
    by_age = triggers.after_ms is not None and any(triggers.after_ms >= age for age in ages)
    return by_age or (triggers.log_bytes is not None and size is not None and triggers.log_bytes >= size)


def due_end(log: LocalLog, triggers: Triggers, now_ms: int) -> int:
    """Where the last segment ends that may go, by what is said to operators: set triggers, or four fifths of a limit."""
    if is_too_late(log, triggers):
        return 2**62
    ages, size = _limits(log)
    end = 0
    for at, segment in enumerate(log.segments[:-1]):
        age_ms = now_ms - _counted_from_ms(segment)
        size_bytes = sum(each.size_bytes for each in log.segments[at:])
        if (
            (triggers.after_ms is not None and age_ms >= triggers.after_ms)
            or (triggers.log_bytes is not None and size_bytes > triggers.log_bytes)
            or any(age_ms >= age * 4 // 5 for age in ages)
            or (size is not None and size_bytes > size * 4 // 5)
        ):
            end = log.segments[at + 1].base_offset
    return end


def _counted_from_ms(segment: LocalSegment) -> int:
    """The file's time, or that of its newest record where the broker's index says an earlier one."""
    index = segment.path.with_suffix(".timeindex")
    written_ms = segment.generation.modified_ns // 10**6
    return min(written_ms, struct.unpack(">q", index.read_bytes()[:8])[0]) if index.exists() else written_ms


def _sealed_end_over(log: LocalLog, offset: int) -> int | None:
    """Where the sealed segment ends that holds `offset`; None where that is the active one, or none: the broker deletes what is open."""
    return next((end for segment, end in log.segments_from(offset) if segment.base_offset <= offset), None)
