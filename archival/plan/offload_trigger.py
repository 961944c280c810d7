"""When sealed segments are archived where that is not at once: the triggers that an operator has set, and what the broker's own retention
makes of them.

A trigger must come before the broker's retention, or records would be deleted that no archive has. One that does not is not applied:
everything goes at once. One that does gives way nevertheless, as soon as retention has come near.
"""

from dataclasses import replace
from typing import NamedTuple

from archival.plan.policy import Policy, TriggerBound, Triggers
from archival.plan.retention_deadline import counted_from_ms
from headwater_core.segments.local_log import LocalLog, LocalSegment
from headwater_core.segments.metadata.cluster_metadata import Retention

_NEAR_NUM, _NEAR_DEN = 4, 5  # of the retention: what is left is for a store that does not answer, or an agent that is restarted
AFTER, EXCEEDS = "offload_after", "offload_when_local_exceeds"


class LocalRetention(NamedTuple):
    """What a log keeps of itself, and for how long.

    retention      None where nothing says it, or no broker deletes anything there
    tombstones_ms  how long its cleaner keeps a deleted key's tombstone; None: it is not compacted, or that is not known
    """

    retention: Retention | None
    tombstones_ms: int | None = None

    @classmethod
    def of(cls, log: LocalLog) -> "LocalRetention":
        return cls(log.retention, log.delete_retention_ms if log.topic_policy_proves_compaction else None)

    @property
    def age(self) -> "_Limit | None":
        """Within half the time that tombstones stay: the archive knows no more exactly when the cleaner has come past them."""
        limits = []
        if self.retention is not None and self.retention.age_ms is not None:
            limits.append(_Limit(self.retention.age_ms, f"{self.retention.age_by or 'the retention'} = {self.retention.age_ms} ms"))
        if self.tombstones_ms is not None:
            limits.append(_Limit(self.tombstones_ms // 2, f"half of delete.retention.ms = {self.tombstones_ms} ms"))
        return min(limits, default=None)

    @property
    def size(self) -> "_Limit | None":
        if self.retention is None or self.retention.size_bytes is None:
            return None
        return _Limit(self.retention.size_bytes, f"{self.retention.size_by or 'the retention'} = {self.retention.size_bytes} bytes")


class _Limit(NamedTuple):
    """words: which setting it is, for people"""

    value: int
    words: str

    @property
    def near(self) -> int:
        return self.value * _NEAR_NUM // _NEAR_DEN


def misfit(triggers: Triggers | None, kept: LocalRetention) -> str:
    """Why `triggers` must not be applied, for people; "" where they may."""
    if triggers is None:
        return ""
    if triggers.after_ms is not None and kept.age is not None and triggers.after_ms >= kept.age.value:
        return f"{AFTER} = {triggers.after_ms} ms is not below {kept.age.words}: records would be deleted before they are archived"
    if triggers.log_bytes is not None and kept.size is not None and triggers.log_bytes >= kept.size.value:
        return f"{EXCEEDS} = {triggers.log_bytes} bytes is not below {kept.size.words}: records would be deleted before they are archived"
    return ""


def unknown_limit(triggers: Triggers | None, kept: LocalRetention) -> str:
    """Which setting of the broker's is not known, and a trigger would have to be below; "" where there is none. Not for a directory in
    which no broker works."""
    if triggers is None:
        return ""
    if triggers.after_ms is not None and (kept.retention is None or not kept.retention.age_by):
        return f"{AFTER} has to be below retention.ms"
    if triggers.log_bytes is not None and (kept.retention is None or not kept.retention.size_by):
        return f"{EXCEEDS} has to be below retention.bytes"
    return ""


def bounded(policy: Policy, log: LocalLog, now_ms: int) -> Policy:
    """`policy` with what its triggers come to for this look at the log; itself where it has none. now_ms: of the wall clock, by which files
    are stamped."""
    triggers, kept = policy.triggers, LocalRetention.of(log)
    if triggers is None:
        return policy
    if misfit(triggers, kept):
        return replace(policy, bound=None)
    after_ms, log_bytes = _before(triggers.after_ms, kept.age), _before(triggers.log_bytes, kept.size)
    tail_after_ms = None
    if policy.tail_after_ms is not None and triggers.after_ms is not None:
        tail_after_ms = policy.tail_after_ms + triggers.after_ms
    end, until_ms = _due_end(log, after_ms, log_bytes, now_ms)
    return replace(policy, bound=TriggerBound(end, _before(tail_after_ms, kept.age), until_ms, _reason(after_ms, log_bytes)))


def _before(wanted: int | None, limit: _Limit | None) -> int | None:
    return wanted if limit is None else limit.near if wanted is None else min(wanted, limit.near)


def _due_end(log: LocalLog, after_ms: int | None, log_bytes: int | None, now_ms: int) -> tuple[int, int | None]:
    """Where the newest segment that is due ends, and when time makes the next one due. What lies before one that is due goes with it."""
    end, waits_ms, following_bytes = log.segments[0].base_offset if log.segments else log.start_offset, None, 0
    for at in range(len(log.segments) - 1, -1, -1):
        segment = log.segments[at]
        following_bytes += segment.size_bytes
        if segment.is_active:
            continue
        is_due = log_bytes is not None and following_bytes > log_bytes
        if after_ms is not None:
            due_ms = _written_ms(segment) + after_ms
            if not is_due and due_ms > now_ms:  # only then: what goes anyway need not be read
                due_ms = counted_from_ms(segment) + after_ms
            is_due = is_due or due_ms <= now_ms
            if not is_due:
                waits_ms = due_ms if waits_ms is None else min(waits_ms, due_ms)
        if is_due:
            end = log.segments[at + 1].base_offset if at + 1 < len(log.segments) else segment.base_offset
            break
    return end, waits_ms


def _written_ms(segment: LocalSegment) -> int:
    """A sealed segment counts from when it was last written to, not from the roll that came after: an idle log is rolled late."""
    return segment.generation.modified_ns // 1_000_000


def _reason(after_ms: int | None, log_bytes: int | None) -> str:
    ways = []
    if after_ms is not None:
        ways.append(f"{after_ms // 1000} s have passed since it was last written to, or since its newest record's time")
    if log_bytes is not None:
        ways.append(f"the local log, from it on, exceeds {log_bytes} bytes")
    return f"a sealed segment waits until {' or '.join(ways)}"
