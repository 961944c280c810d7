"""Which queues' buffers become objects now. Pure.

A queue's buffer goes when it is large enough, when its first byte has waited long enough, or when all buffers together are too large:
then the largest go, and of equal ones those that have waited longest, until half of the pool is left. So an object is as large as the
pool lets it be, and not every queue has to go whenever one more byte arrives.
"""

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

Queue = TypeVar("Queue", bound=Hashable)


class FlushLimits(NamedTuple):
    """When one queue's buffer goes: at so many bytes, or when its first byte has waited so long."""

    size_bytes: int
    age_ms: int


class Gathered(NamedTuple):
    """What one queue's buffer holds; since_ms: when its first byte arrived."""

    size_bytes: int
    since_ms: int
    limits: FlushLimits

    def is_due(self, now_ms: int) -> bool:
        """By its own limits."""
        return self.size_bytes > 0 and (self.size_bytes >= self.limits.size_bytes or now_ms - self.since_ms >= self.limits.age_ms)


def due_queues(gathered: Mapping[Queue, Gathered], pool_bytes: int, now_ms: int) -> set[Queue]:
    """The queues whose buffers go now; what is left is less than `pool_bytes`."""
    due = {queue for queue, each in gathered.items() if each.is_due(now_ms)}
    rest = [(each.size_bytes, -each.since_ms, queue) for queue, each in gathered.items() if queue not in due and each.size_bytes]
    left_bytes = sum(size_bytes for size_bytes, _, _ in rest)
    if left_bytes < pool_bytes:
        return due
    for size_bytes, _, queue in sorted(rest, key=lambda each: each[:2], reverse=True):
        if 2 * left_bytes < pool_bytes:
            break
        due.add(queue)
        left_bytes -= size_bytes
    return due
