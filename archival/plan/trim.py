"""What the archive's own retention, or a person, lets go: pure decisions, from the head alone (design §4, I14).

Nothing of it depends on a local log. Whole entries leave, the oldest first; the newest run stays whatever happens, since without it nothing
could be compared with a leader whose log ends below the archive's start.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from archival.config import ArchivalConfig
from headwater_core.errors import UsageError
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.page import Item

ModifiedMs = Callable[[Entry], int]
"""When an entry's object was written, in ms, by the store's clock: its time where its records have none, as Kafka takes a segment's file's;
where they are dated later than now, it has to agree with `Entry.published_ms`."""


def expired_to(head: Head, settings: ArchivalConfig, now_ms: int, modified_ms: ModifiedMs) -> int:
    """The first offset that retention by time and by size leaves; the archive's start where all of it stays.

    As in Kafka: an entry is as old as its newest record, a young one keeps all that follows it, and by size the oldest leave as long as
    what is left is not less than `retention_bytes`. A record that is dated later than now does not keep its entry for longer than its
    publication does, nor than the date that the store has of its object, by another clock. What the head does not list itself is read
    only across the border.
    """
    if settings.retention_s is None and settings.retention_bytes is None:
        return head.start_offset
    limit = None if settings.retention_s is None else _AgeLimit(now_ms, now_ms - settings.retention_s * 1000, modified_ms)
    spare_bytes = 0 if settings.retention_bytes is None else head.entries.live_bytes - settings.retention_bytes
    border = _Border(head.entries, limit, spare_bytes, _newest_run(head.entries))
    border.pass_all(head.entries)
    return max(border.offset, head.start_offset)


def next_expiry_ms(head: Head, settings: ArchivalConfig, now_ms: int) -> int | None:
    """Not before when, in ms, time alone lets something go; None: never. Reads nothing."""
    if settings.retention_s is None or not head.entries or head.entries.items[0].next_offset == head.next_offset:
        return None
    oldest = head.entries.items[0]
    written_ms = oldest.retained_from_ms(now_ms) if isinstance(oldest, Entry) else oldest.first_timestamp_ms
    return 0 if written_ms is None else min(written_ms, now_ms) + settings.retention_s * 1000


class _AgeLimit(NamedTuple):
    """Let what is older than `oldest_ms` leave."""

    now_ms: int
    oldest_ms: int
    modified_ms: ModifiedMs

    def is_older(self, item: Item) -> bool:
        if not isinstance(item, Entry):
            return item.last_timestamp_ms is not None and item.last_timestamp_ms < self.oldest_ms and not item.untimed
        last_ms = item.retained_from_ms(self.now_ms)
        if last_ms is None:
            return self.modified_ms(item) < self.oldest_ms
        is_clamped = last_ms != item.last_timestamp_ms  # the store is not called for others
        return last_ms < self.oldest_ms and not (is_clamped and self.modified_ms(item) >= self.oldest_ms)


class _Border:
    """Moves up the entries, as far as they may leave."""

    def __init__(self, entries: EntryTree, limit: _AgeLimit | None, spare_bytes: int, stays: int) -> None:
        self.offset = entries.base_offset if entries else 0
        self._limit, self._spare_bytes, self._stays = limit, spare_bytes, stays

    def pass_all(self, entries: EntryTree) -> bool:
        """False when one of them does not leave."""
        for item in entries.items:
            if isinstance(item, Entry) and item.gap:
                continue  # it leaves with what follows it
            if item.next_offset <= self._stays and self._leaves(item):
                self._spare_bytes -= item.live_bytes
                self.offset = item.next_offset
            elif isinstance(item, Entry) or not self.pass_all(EntryTree(entries.pages.read(item), entries.pages)):
                return False
        return True

    def _leaves(self, item: Item) -> bool:
        return self._spare_bytes >= item.live_bytes > 0 or (self._limit is not None and self._limit.is_older(item))


def _newest_run(entries: EntryTree) -> int:
    """Where the newest entry that is no gap begins; 0 when there is none."""
    return next((entry.base_offset for entry in reversed(entries) if not entry.gap), 0)


def delete_to(head: Head, offset: int) -> int:
    """The archive's start when a person deletes all before `offset`. Raises UsageError for one that the archive does not reach."""
    if offset > head.next_offset:
        raise UsageError(f"{head.topic}:{head.partition} is archived up to {head.next_offset}, not up to {offset}")
    return max(offset, head.start_offset)


def trimmed(head: Head, start_offset: int) -> Head:
    """`head` with that start, or as near to it as may be; the very same when it does not move.

    An entry leaves when no offset of it is kept, the newest run never: of that, the start moves past the last offset.
    """
    base = max(start_offset, head.start_offset)
    if base == head.start_offset or not head.entries:
        return head
    holding = head.entries.at(base)
    _, kept = head.entries.split_at(min(base if holding is None else holding.base_offset, _newest_run(head.entries)))
    start = min(base, kept[0].next_offset)
    if start == head.start_offset and len(kept) == len(head.entries):
        return head
    return replace(head, entries=kept, start_offset=start)
