"""What is left of an archiver whose partition has nothing to do: enough to see, from a look alone, that this is still so."""

from collections.abc import Callable
from dataclasses import dataclass

from archival.plan.policy import Policy
from archival.plan.role import Acting, Standby, archiving_role
from headwater_core.epochs import EpochHistory
from headwater_core.segments.local_log import LocalLog
from manifests.head import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A step on a log that looked so had nothing to do.

    next_offset     of what is archived
    high_watermark  the log's
    is_ours         this agent's archiver holds the claim
    is_sure         the head was read. Else the control log says it, which is a hint: the next step reads the head
    waits           nothing is to be done whatever the log gets
    """

    next_offset: int
    high_watermark: int
    reason: str
    is_ours: bool
    is_sure: bool
    waits: bool
    policy: Policy
    log: "_Log"

    @classmethod
    def of(cls, log: LocalLog, head: Head | None, policy: Policy, reason: str, writer: str) -> "Rest | None":
        """After a step on `log` that did nothing and left `head`; None for a compacted log, of which it counts how often it is seen."""
        if log.topic_policy_proves_compaction or policy.end is not None:
            return None
        return cls(
            next_offset=head.next_offset if head is not None else 0,
            high_watermark=log.high_watermark or 0,
            reason=reason,
            is_ours=head is not None and head.writer == writer,
            is_sure=True,
            waits=bool(policy.off) or isinstance(archiving_role(log), Standby),
            policy=policy.unbound,
            log=_seen(log),
        )

    @classmethod
    def by_hint(cls, log: LocalLog, next_offset: int, policy: Policy) -> "Rest | None":
        """When the control log says that this agent has archived up to `next_offset`, and it is none of the others: a start of ten
        thousand partitions archives what is due before it reads what is not. None where there may be something to do."""
        idle = not log.leftovers and log.settled and log.high_watermark is not None and log.high_watermark <= next_offset
        if not idle or log.topic_policy_proves_compaction or policy.end is not None:
            return None
        return cls(
            next_offset=next_offset,
            high_watermark=log.high_watermark or 0,
            reason="caught up, as far as the control log knows",
            is_ours=True,
            is_sure=False,
            waits=False,
            policy=policy.unbound,
            log=_seen(log),
        )

    def remains(self, log: LocalLog, policy: Policy, tail_age_ms: Callable[[], int]) -> bool:
        """Would a step on `log` have nothing to do either? What is committed meanwhile waits for its segment to be sealed, or for
        `tail_age_ms`, which is how long it has waited."""
        if not self.is_sure or _seen(log) != self.log or policy.unbound != self.policy:
            return False
        if self.waits:
            return True
        committed = log.high_watermark or 0
        if committed < self.high_watermark:
            return False
        if policy.follows:
            return committed <= self.next_offset
        if committed > self.next_offset:
            _, end = next(log.segments_from(max(self.next_offset, log.start_offset)))
            if end is not None and end <= committed and (policy.bound is None or end <= policy.bound.end):
                return False
        age_ms = tail_age_ms()  # also where there is none: its clock stops
        return committed <= self.next_offset or policy.tail_wait_ms is None or age_ms < policy.tail_wait_ms

    def is_quiet(self, log: LocalLog) -> bool:
        """There will be nothing to do until something happens to the log."""
        return self.waits or (log.high_watermark or 0) <= self.next_offset


_Log = tuple[EpochHistory, int, int, bool, bool, tuple[str, ...], bool, bool, Acting | Standby]


def _seen(log: LocalLog) -> _Log:
    """All that a plan depends on, apart from where segments and what is committed end."""
    return (
        log.epochs,
        log.start_offset,
        log.local_start,
        log.settled,
        log.leadership_unread,
        log.leftovers,
        log.high_watermark is None,
        log.leadership is None or log.leadership.all_in_sync,
        archiving_role(log),
    )
