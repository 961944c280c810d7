"""What the log cleaner of a compacted topic means for its archive. Values in, decisions out.

A log is clean below its cleaner checkpoint: no key has two records there. Runs are archived one after the other, and the cleaner
continues, so that runs which were clean one by one need not be clean together. A head therefore says up to where all that
it lists is clean as one (`Head.clean_to`): every run was read when the checkpoint had got there.

The cleaner keeps a tombstone (and a transaction's marker) for `delete.retention.ms` from the beginning of the first cleaning that
passes it, and drops it in a later one. What it ended may be archived: then the tombstone must be archived too, else a deleted key
comes back. Where can one be missing that would delete something archived? Not below the first offset that is still to be
archived; and not below `clean_to`, since a cleaning that passes both the value and its tombstone drops the value at once: it would
not have been there to be archived. So nothing is missing as long as the checkpoint has not passed the greater of the two, the
*floor*; and nothing for `delete.retention.ms` after a cleaning that passes it began. In a run that ends at or below `clean_to` nothing
is missing however long ago that was passed: what is archived holds nothing that a tombstone of the run would end. A transaction that
is open where the run begins is another matter: its records may have been read before newer ones of their keys came, and its marker
is gone once they are.

No file says when a cleaning began. One that passes the floor had not ended when the checkpoint was last seen at or below it, and
had not begun when the active segment was (the cleaner leaves that alone). The second is proof. After the first only half of the
retention counts, the other half being what the cleaning in progress then may have taken already.

A truncation takes the checkpoint back to the base of the segment that is the active one then, and what a cleaner took does not come
back with it. So a look keeps how far the one before it was, up to where the log has left its branch since (`look_at`).

Looks are remembered by broker directory (`archival.partition.looks`), for each has a cleaner of its own. Without one, the floor passed,
nothing is known of how long ago that was: this counts as too long. It stops no healthy topic at a first start: nothing is archived
yet, so the first run that is read puts `clean_to` at the checkpoint, and the rest of the backlog lies below the floor. Later the
archive follows each roll of a segment, which the cleaner needs to continue. What is left is a cleaner that passed the floor while no
look was kept (a lost data directory, a leader whose agent never ran). A replica that was fetched from a leader after that one's
cleaner had dropped a tombstone is not noticed: its own cleaner has done nothing.
"""

from collections.abc import Sequence

import msgspec

from archival.plan.lineage import written_epochs
from headwater_core.epochs import EpochHistory, EpochStart
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.run_scan import RunScan
from manifests.entry import Entry, EpochOffset
from manifests.head import Head

CLOCK_STEP_MS = 60_000  # a look dated later than that from now was dated by a clock that has been put back: it says nothing


class CleanerLook(msgspec.Struct, frozen=True):
    """How far the cleaner had got, and up to where it might go, at `seen_ms` or later.

    epochs  the log's history then; only the last look at a log keeps it
    delete_retention_ms  the topic's then, or the least until the look after this one; None: not known
    """

    cleaned_to: int
    sealed_to: int
    seen_ms: int
    epochs: tuple[EpochStart, ...] = ()
    delete_retention_ms: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.cleaned_to <= self.sealed_to:
            raise ValueError(f"cleaned to {self.cleaned_to}, sealed to {self.sealed_to}")


def look_at(log: LocalLog, before: CleanerLook | None, seen_ms: int) -> CleanerLook:
    """
    before  the last look at it, if there was one
    """
    # The cleaner leaves the active segment alone: a checkpoint beyond its base is left from before a truncation.
    sealed_to = log.segments[-1].base_offset if log.segments else log.cleaned_to or 0
    cleaned_to, epochs = min(log.cleaned_to or 0, sealed_to), log.epochs.starts
    if before and before.epochs:
        parts_at = EpochHistory(before.epochs).parts_at(log.epochs)
        kept_to = before.sealed_to if parts_at is None else parts_at
        cleaned_to, sealed_to = max(cleaned_to, min(before.cleaned_to, kept_to)), max(sealed_to, min(before.sealed_to, kept_to))
        epochs = epochs or before.epochs
    return CleanerLook(cleaned_to, sealed_to, seen_ms, epochs, log.delete_retention_ms)


def clean_below(log: LocalLog) -> int:
    """The checkpoint, the first dirty offset. One beyond the active segment's base is disbelieved, as the broker does."""
    if log.cleaned_to is None or not log.segments or log.cleaned_to > log.segments[-1].base_offset:
        return 0
    return log.cleaned_to


def clean_with(head: Head, *looks: LocalLog) -> int:
    """`Head.clean_to` once a run that was read between `looks` is listed too."""
    read = min(map(clean_below, looks))
    return min(head.clean_to, read) if holds_records(head) else read


def clean_under(history: EpochHistory, head: Head) -> int:
    """`Head.clean_to` once `history` is followed, that of a log in a newer leader epoch.

    What another leader wrote, from its first offset on, may have taken the place of what was clean. A history without the epoch
    that the head follows does not say where it left that one; only what is archived was compared with it.
    """
    newer = next((first for epoch, first in history.starts if epoch > head.leader_epoch), None)
    if newer is None:
        return head.clean_to
    return min(head.clean_to, newer if head.leader_epoch in written_epochs(history) else head.next_offset)


def is_clean(entry: Entry, clean_to: int) -> bool:
    return entry.next_offset <= clean_to


def displaced_by(entry: Entry, scan: RunScan, log: LocalLog) -> EpochOffset | None:
    """`Entry.displaced_by` of a run that `scan` found in `log`.

    A record goes for a later one of its key, or of its transaction. The cleaner reads neither the active segment nor beyond the high
    watermark; but its checkpoint says nothing of a cleaning in progress, and what was fetched from another broker that one had
    cleaned, perhaps further than this one could. So it is the greater of the two. A run with a record at each offset lacks nothing.
    """
    if scan.offsets == entry.next_offset - entry.base_offset:
        return None
    last = max(log.segments[-1].base_offset if log.segments else 0, log.high_watermark or 0) - 1
    epoch = log.epochs.epoch_at(last)
    return None if epoch is None else EpochOffset(epoch, last)


def holds_records(head: Head) -> bool:
    return head.entries.objects > 0


def _is_open(head: Head) -> bool:
    """Is a transaction open at the end of what is archived?"""
    last = head.entries[-1]
    return last.gap or last.open_from is not None


def overtaken(
    log: LocalLog,
    head: Head,
    first: int,
    looks: Sequence[CleanerLook],
    now_ms: int,
    *,
    stale_keys_below: int | None,
    end: int | None = None,
) -> str:
    """Why what lies from `first` on must not be listed after what is archived; "" when it may be.

    looks             earlier ones at this directory, oldest first
    stale_keys_below  a person's consent: deletions that are missing below this offset may be
    end               of a run, where that alone is to be listed
    """
    if not holds_records(head) or (end is not None and end <= head.clean_to and not _is_open(head)):
        return ""
    floor = max(first, head.clean_to, stale_keys_below or 0)
    cleaned_to = look_at(log, looks[-1] if looks else None, now_ms).cleaned_to
    if cleaned_to <= floor:
        return ""
    dated = [look for look in looks if look.seen_ms <= now_ms + CLOCK_STEP_MS]
    if any(look.sealed_to <= floor and now_ms - look.seen_ms < _least_retention_ms(log, dated, look.seen_ms) for look in dated):
        return ""
    at_floor_ms = max((look.seen_ms for look in dated if look.cleaned_to <= floor), default=None)
    retention_ms = _least_retention_ms(log, dated, at_floor_ms or 0)
    if at_floor_ms is not None and now_ms - at_floor_ms < retention_ms // 2:
        return ""
    since = "was never seen" if at_floor_ms is None else f"was last seen {max(now_ms - at_floor_ms, 0) // 1000} s ago"
    known = "is not known without the broker's metadata log" if log.delete_retention_ms is None else f"is {retention_ms} ms"
    return (
        f"needs replacement: compaction has got to offset {cleaned_to}, the archive to {first}. It {since} at or below {floor}, and "
        f"delete.retention.ms {known}: deletions of archived keys may be gone from the log, and such a key would come back in what is "
        "read or recovered from the archive. It is archived again as a whole once the log holds all of it and compaction has passed again "
        f"since the log was cut last; the log begins at {log.start_offset}, the archive at {head.start_offset}. To continue without that, "
        "and keep the keys that were "
        f'deleted in between: stale_keys_below = {cleaned_to} under [topics."{log.partition.topic}"]'
    )


def _least_retention_ms(log: LocalLog, looks: Sequence[CleanerLook], since_ms: int) -> int:
    """The least that `delete.retention.ms` has been since then. A raised one holds for what is cleaned for the first time after that."""
    known = [look.delete_retention_ms for look in looks if look.seen_ms >= since_ms and look.delete_retention_ms is not None]
    return min([log.delete_retention_ms or 0, *known])
