"""Which full segment of chunks becomes one object next, and when one is tried again that could not.

One that failed is passed over for a while, so that neither other segments nor merges wait for it. What is no fault of the segment, such as
a full disk or a right that is missing, would meet the next one, too: then none is tried for as long.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from archival.partition.run_names import ChunkNames
from archival.plan.consolidation_plan import ConsolidationPlan, open_from, plan_consolidation
from archival.plan.policy import Policy
from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, HeadwaterError
from manifests.entry import OFFSET_MAX, Entry
from manifests.head import Head

AGAIN_MS, AGAIN_MS_MAX = 60_000, 24 * 3600 * 1000  # after the first failure, and after many: an attempt may read a whole segment


_NOTHING = OFFSET_MAX, OFFSET_MAX
STOPPED_MAX = 3  # that often is one begun again because its partition had something to archive: a busy one always has


class _Failures(NamedTuple):
    """tries: so many in a row; end: of the segment, exclusive"""

    tries: int = 0
    again_ms: int = 0
    end: int = OFFSET_MAX
    reason: str = ""

    def another(self, end: int, now_ms: int, reason: str) -> "_Failures":
        return _Failures(self.tries + 1, now_ms + min(AGAIN_MS << min(self.tries, 20), AGAIN_MS_MAX), end, reason)


class FullSegments:
    """Those of one partition. Lost with the process: then what failed is tried again, and what was looked at is looked at again."""

    def __init__(self, names: ChunkNames, now_ms: Callable[[], int]) -> None:
        self._names, self._now_ms = names, now_ms
        self._failed: dict[int, _Failures] = {}  # by base offset
        self._pause = _Failures()
        self._stopped = -1, 0  # the segment that was stopped last, by its base offset, and how often in a row
        self._seen = _NOTHING  # between these offsets nothing is left but what has failed

    def end(self, head: Head, policy: Policy) -> int:
        """Where what is full ends, and another segment is being written."""
        streams = policy.stream is not None and policy.stream.chunks is not None
        return open_from(head, self._names.queue(head.fence), self._names.limits, streams=streams)

    def next(self, head: Head, history: EpochHistory, policy: Policy, passed: int) -> ConsolidationPlan:
        """As plan_consolidation, from `passed` on, or from where an earlier one ended that began there or before. Raises what that does."""
        if self.is_paused:
            return ConsolidationPlan((), OFFSET_MAX)
        begin, end = self._seen
        if passed < begin:
            begin = end = passed
        full_end, span_ms = self.end(head, policy), policy.merge_span_ms
        plan = plan_consolidation(head, history, end=full_end, span_ms=span_ms, passed=end, skipped=self._failed)
        self._seen = begin, plan.passed
        return plan if plan.group or plan.is_cut_short else plan._replace(group=self._due_again(head, history, full_end, span_ms))

    def _due_again(self, head: Head, history: EpochHistory, full_end: int, span_ms: int) -> tuple[Entry, ...]:
        """One that failed, and whose time has come."""
        for base in sorted(self._failed):
            failures = self._failed[base]
            if self._now_ms() < failures.again_ms:
                continue
            again = plan_consolidation(head, history, end=min(full_end, failures.end), span_ms=span_ms, passed=base)
            if again.group and again.group[0].base_offset == base:
                return again.group
            del self._failed[base]  # what is live there is something else now
        return ()

    def forget(self) -> None:
        """What is live may be something else."""
        self._seen = _NOTHING

    def failed(self, group: Sequence[Entry], error: HeadwaterError) -> None:
        """`group` could not become one object."""
        base, end, now_ms = group[0].base_offset, group[-1].next_offset, self._now_ms()
        self._failed[base] = self._failed.get(base, _Failures()).another(end, now_ms, str(error))
        if not isinstance(error, CorruptData):
            self._pause = self._pause.another(end, now_ms, str(error))

    def stopped(self, group: Sequence[Entry]) -> None:
        """`group` would have become one object, if something else had not come first."""
        base, times = self._stopped
        self._stopped = group[0].base_offset, times + 1 if base == group[0].base_offset else 1

    def is_urgent(self, group: Sequence[Entry]) -> bool:
        """Has `group` been stopped so often that it is not to be again?"""
        base, times = self._stopped
        return base == group[0].base_offset and times >= STOPPED_MAX

    def consolidated(self, group: Sequence[Entry]) -> None:
        """`group` is one object now."""
        self._failed.pop(group[0].base_offset, None)
        self._pause = _Failures()

    @property
    def is_paused(self) -> bool:
        """Is none tried for now? Their chunks wait for that."""
        return self._now_ms() < self._pause.again_ms

    @property
    def trouble(self) -> str:
        """Why what is full is not all one object; "" where nothing has failed."""
        reason = self._pause.reason or next((each.reason for each in self._failed.values()), "")
        return f"chunks of {len(self._failed)} full segments stay as they are for now: {reason}" if reason and self._failed else ""

    @property
    def again_in_s(self) -> float | None:
        """When what has failed is tried again; None where nothing has."""
        if not self._failed:
            return None
        again_ms = max(self._pause.again_ms, min(each.again_ms for each in self._failed.values()))
        return max(0, again_ms - self._now_ms()) / 1000
