"""How far the cleaner of each local log had got, and when that was seen (see `archival.plan.cleaner`); kept across restarts.

A look is evidence, and losing one only takes evidence away: where it was needed, archiving stops rather than guesses. So no
failure of the file stops anything by itself, and looks may be thinned out.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from archival import state_file
from archival.plan.cleaner import CLOCK_STEP_MS, CleanerLook, look_at, overtaken
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError
from headwater_core.files import replace_file, with_checksum
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from manifests.head import Head

LOOKS_MAX = 32  # per partition
KEEP_MS = 90 * 24 * 3600 * 1000  # of a partition that is not looked at any more, because it is gone
REFRESH_MS = 300_000  # an idle partition is looked at for this alone that often, or four times in delete.retention.ms
_UNSAVED_MS = 60_000  # a look that is repeated is worth a write of the file only so often


class CleanerLooks:
    """Safe to use from many threads. `save` writes what has changed since it was last called."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._looks = _load(path) if path else {}
        self._saved = dict(self._looks)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def saw(self, log: LocalLog, at_ms: int) -> None:
        """`log` was looked at, not earlier than `at_ms`."""
        if not log.topic_policy_proves_compaction or not log.segments:
            return
        key = _key(log.partition)
        with self._lock:
            looks = self._looks.get(key, ())
            self._looks[key] = with_look(looks, look_at(log, looks[-1] if looks else None, at_ms))

    def is_due(self, log: LocalLog) -> bool:
        """Has `log` not been looked at for so long that a look should be taken, whatever else there is to do?"""
        if not log.topic_policy_proves_compaction:
            return False
        looks, refresh_ms = self.of(log.partition), min(REFRESH_MS, (log.delete_retention_ms or 0) // 4 or REFRESH_MS)
        return not looks or not 0 <= self.now_ms() - looks[-1].seen_ms < refresh_ms

    def of(self, partition: PartitionId) -> tuple[CleanerLook, ...]:
        """What is remembered of `partition`, oldest first."""
        with self._lock:
            return self._looks.get(_key(partition), ())

    def overtaken(self, log: LocalLog, head: Head | None, first: int, stale_keys_below: int | None, end: int | None = None) -> str:
        """Why what lies from `first` on must not follow what `head` lists (see `cleaner.overtaken`); "" when it may."""
        if head is None:
            return ""
        return overtaken(log, head, first, self.of(log.partition), self.now_ms(), stale_keys_below=stale_keys_below, end=end)

    def save(self) -> None:
        """Write the file, when enough has changed. A failure is logged, and costs evidence only."""
        if self._path is None:
            return
        with self._saving:
            with self._lock:  # not while the disk syncs: archivers wait for it
                newest_ms = self.now_ms()
                self._looks = {key: looks for key, looks in self._looks.items() if newest_ms - looks[-1].seen_ms < KEEP_MS}
                looks = dict(self._looks)
            if not _worth_saving(self._saved, looks):
                return
            try:
                replace_file(self._path, with_checksum(msgspec.json.encode(looks)))
                self._saved = looks
            except HeadwaterError as error:
                structlog.get_logger().warning("cleaner_looks_not_saved", path=str(self._path), reason=str(error))


def with_look(looks: Sequence[CleanerLook], look: CleanerLook) -> tuple[CleanerLook, ...]:
    """`looks`, oldest first, and one more: the same again only moves its time. Looks that a clock dated which has since been put
    back leave, and beyond the limit the one whose neighbours are nearest to each other for its age: what counts is how long ago
    something was seen last, so that the newest lie densely however long a log has been looked at."""
    kept = [each for each in looks if each.seen_ms <= look.seen_ms + CLOCK_STEP_MS]
    if kept and (kept[-1].cleaned_to, kept[-1].sealed_to) == (look.cleaned_to, look.sealed_to):
        last = kept.pop()
        look = replace(look, seen_ms=max(last.seen_ms, look.seen_ms))
    elif kept:
        kept[-1] = replace(kept[-1], epochs=())
    kept.append(look)
    if len(kept) > LOOKS_MAX:
        leaves = min(range(1, len(kept) - 1), key=lambda at: _room_ms(kept, at) / max(look.seen_ms - kept[at].seen_ms, 1))
        known = [each.delete_retention_ms for each in kept[leaves - 1 : leaves + 1] if each.delete_retention_ms is not None]
        kept[leaves - 1] = replace(kept[leaves - 1], delete_retention_ms=min(known, default=None))
        del kept[leaves]
    return tuple(kept)


def _room_ms(looks: Sequence[CleanerLook], at: int) -> int:
    return looks[at + 1].seen_ms - looks[at - 1].seen_ms


_Looks = dict[str, tuple[CleanerLook, ...]]


def _worth_saving(saved: _Looks, looks: _Looks) -> bool:
    return saved.keys() != looks.keys() or any(
        before != now and (before[:-1] != now[:-1] or now[-1].seen_ms - before[-1].seen_ms >= _UNSAVED_MS or _place(before) != _place(now))
        for before, now in ((saved[key], now) for key, now in looks.items())
    )


def _place(looks: tuple[CleanerLook, ...]) -> tuple[int, int]:
    return looks[-1].cleaned_to, looks[-1].sealed_to


def _key(partition: PartitionId) -> str:
    return f"{partition.cluster_id}/{partition.topic_id}/{partition.partition}"


def _load(path: Path) -> _Looks:
    found = state_file.load(path, _Looks, "a compacted partition may stop for lack of this evidence") or {}
    return {key: looks for key, looks in found.items() if looks}
