"""What is being written for a partition over a longer time, and is not listed yet (design §4).

It stands in the head, and never among the entries: readers follow entries only. What it names may be committed by the writer that holds
the partition; who claims it next marks it as failed, and from then on its object is nothing but garbage.
"""

import msgspec

from manifests import keys
from manifests.document import prepared

ASSIGNED, FAILED = "assigned", "failed"
PENDING_MAX = 16  # a head stays small


@prepared
class PendingObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One object, or group of objects, that is being written.

    uid, fence    as in its keys; the fence is the one under which it was assigned
    layout        how it will lie in objects
    status        "assigned": its writer may list it; "failed": it will not, and what it was to hold is written again under another name
    base_offset   where it begins
    last_offset   up to where its writer knows it to be stored, inclusive; None while that is not known
    assigned_ms   when it was assigned, by its writer's clock
    failed_ms     when it was seen to have failed
    context       the layout's own words, opaque to all others
    """

    uid: str
    fence: int
    layout: str
    base_offset: int
    status: str = ASSIGNED
    last_offset: int | None = None
    assigned_ms: int = 0
    failed_ms: int | None = None
    context: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Raises ValueError for what nothing can be."""
        if not keys.is_uid(self.uid) or not 0 < len(self.layout) <= 255 or self.status not in (ASSIGNED, FAILED):
            raise ValueError(f"pending {self.uid[:40]!r}, layout {self.layout[:40]!r}, status {self.status[:40]!r}")
        if not 0 <= self.base_offset < 2**63 or self.fence < 0:
            raise ValueError(f"pending from {self.base_offset} under fence {self.fence}")
        if self.last_offset is not None and not self.base_offset <= self.last_offset < 2**63:
            raise ValueError(f"pending from {self.base_offset} to {self.last_offset}")

    @property
    def is_assigned(self) -> bool:
        return self.status == ASSIGNED
