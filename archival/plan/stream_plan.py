"""The object that is written while it fills (PIP-76): which name it has, and when it is closed. Values in, values out."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from archival.plan.policy import StreamLimits
from manifests.head import Head
from manifests.pending_list import FAILED, PendingObject

LAYOUT = "streaming"
_FAILED_MAX = 2  # are kept in the head, for people


class OpenStream(NamedTuple):
    """What an object that is written while it fills has taken, and no manifest lists yet: whole batches of [base_offset, next_offset)."""

    base_offset: int
    next_offset: int
    size_bytes: int

    def waits_for(self, limits: StreamLimits, age_ms: int) -> str:
        """When it is closed, for people; "" where that is now."""
        if reason_to_close(limits, size_bytes=self.size_bytes, age_ms=age_ms, is_full=False):
            return ""
        return (
            f"in an open stream of {self.size_bytes} bytes, which is closed when it has {limits.segment_bytes}, or when its first record "
            f"has waited {limits.age_ms // 1000} s"
        )


def assigned_to(head: Head) -> PendingObject | None:
    """What is to be written from where the live entries of `head` end; None while nothing is."""
    found = (each for each in head.pending if each.layout == LAYOUT and each.is_assigned and each.base_offset == head.next_offset)
    return next(found, None)


def with_assignment(
    before: Head | None, after: Head, *, streams: bool | None, fails: bool, new_uid: Callable[[], str], now_ms: int
) -> Head:
    """`after`, which is to follow `before`, with what is pending in it: what was assigned stays so while it begins where the live entries
    end; else the next one is assigned, so that this costs no commit of its own.

    streams  something is written, or will be; None: that is not known here, nothing new is assigned
    fails    nobody will list what was assigned
    new_uid  makes the name of the next one
    """
    others = tuple(each for each in after.pending if each.layout != LAYOUT)
    was = assigned_to(before) if before is not None else None
    stays = was is not None and was.base_offset == after.next_offset and not fails
    ours = [each for each in after.pending if each.layout == LAYOUT and each.base_offset == after.next_offset and not each.is_assigned]
    if was is not None and was.base_offset == after.next_offset and fails:
        ours.append(replace(was, status=FAILED, failed_ms=now_ms))
    ours = ours[-_FAILED_MAX:]
    if was is not None and stays and streams is not False:
        ours.append(was)
    elif streams:
        ours.append(PendingObject(uid=new_uid(), fence=after.fence, layout=LAYOUT, base_offset=after.next_offset, assigned_ms=now_ms))
    else:
        ours = []
    pending = (*others, *ours)
    return after if pending == after.pending else replace(after, pending=pending)


def reason_to_close(limits: StreamLimits, *, size_bytes: int, age_ms: int, is_full: bool) -> str:
    """Why an open object takes nothing more, for people; "" while it does."""
    if limits.completes:
        return "it was requested"
    if is_full or size_bytes >= limits.segment_bytes:
        return f"it has {size_bytes} bytes"
    return f"its first record has waited {age_ms // 1000} s" if age_ms >= limits.age_ms else ""
