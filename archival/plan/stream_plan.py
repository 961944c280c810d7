"""What is written while it fills, an object (PIP-76) or a segment of chunks: which name it has, and when it is closed. Values in, values
out."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from archival.plan.policy import StreamLimits
from manifests import chunk_keys
from manifests.head import Head
from manifests.pending_list import FAILED, PendingObject

LAYOUT = "streaming"
LAYOUTS = (LAYOUT, chunk_keys.LAYOUT)
_FAILED_MAX = 2  # are kept in the head, for people


NO_ROOM = "the offload buffer is full (archival.offload_buffer_bytes)"


class OpenStream(NamedTuple):
    """What an object that is written while it fills has taken, and no manifest lists yet: whole batches of [base_offset, next_offset).

    lacks_room  there was more, for which the offload buffer had none
    stored_bytes  of a segment of chunks: its commit position
    failed        why the last of its uploads did not come through, for people; "" when it did
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    lacks_room: bool = False
    stored_bytes: int | None = None
    failed: str = ""

    def waits_for(self, limits: StreamLimits, age_ms: int) -> str:
        """When it is closed, for people; "" where that is now."""
        if reason_to_close(limits, size_bytes=self.size_bytes, age_ms=age_ms, is_full=False):
            return ""
        stored = "" if self.stored_bytes is None else f" ({self.stored_bytes} stored)"
        failed = f"; what follows is sent again: {self.failed}" if self.failed else ""
        return (
            f"in an open stream of {self.size_bytes} bytes{stored}, which is closed when it has {limits.segment_bytes}, or when its first "
            f"record has waited {limits.age_ms // 1000} s{failed}"
        )


def assigned_to(head: Head) -> PendingObject | None:
    """What is to be written from where the live entries of `head` end; None while nothing is."""
    found = (each for each in head.pending if each.layout in LAYOUTS and each.is_assigned and each.base_offset == head.next_offset)
    return next(found, None)


def with_assignment(
    before: Head | None,
    after: Head,
    *,
    streams: bool | None,
    fails: bool,
    new_uid: Callable[[Head], str],
    next_fence: Callable[[Head], int],
    now_ms: int,
    layout: str = LAYOUT,
) -> Head:
    """`after`, which is to follow `before`, with what is pending in it: what was assigned stays so while it begins where the live entries
    end; else the next one is assigned, so that this costs no commit of its own.

    streams  something is written, or will be; None: that is not known here, nothing new is assigned
    fails    what was assigned will not be listed. Where names follow from what is listed, `after` gets another fence for the next one
    next_fence  above the head's, and nobody else's: see manifests.namesakes.next_fence
    new_uid  makes the name of the next one, which begins where `after` ends
    layout   of the next one
    """
    others = tuple(each for each in after.pending if each.layout not in LAYOUTS)
    was = assigned_to(before) if before is not None else None
    if was is not None and fails and was.layout == chunk_keys.LAYOUT and was.fence == after.fence:
        after = replace(after, fence=next_fence(after))
    stays = was is not None and was.base_offset == after.next_offset and not fails and (was.layout == layout or not streams)
    ours = [each for each in after.pending if each.layout in LAYOUTS and each.base_offset == after.next_offset and not each.is_assigned]
    if was is not None and was.base_offset == after.next_offset and fails:
        ours.append(replace(was, status=FAILED, failed_ms=now_ms))
    ours = ours[-_FAILED_MAX:]
    if was is not None and stays and streams is not False:
        ours.append(was)
    elif streams:
        ours.append(PendingObject(uid=new_uid(after), fence=after.fence, layout=layout, base_offset=after.next_offset, assigned_ms=now_ms))
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
