"""Since when something has been seen in one state at every look: objects that nothing refers to, and entries of dead branches.

Kept in the data directory, a file for each partition of which there is something to remember. A file that is lost, or damaged, starts
its times again: what is to be deleted is deleted later.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path

import msgspec

from archival import state_file
from headwater_core.clock import Clock
from headwater_core.files import disk_errors, replace_file, with_checksum
from headwater_core.partition import PartitionId


class Seen(Enum):
    """What a name was seen as."""

    ORPHAN = "orphans"
    SUPERSEDED = "superseded"
    LOST = "lost"


AHEAD_MS = 1_000  # by less than that the wall clock may run away from the monotonic one between two looks

_Since = dict[str, dict[int, list[str]]]  # by what they were seen as: first seen, in ms, and the names; and see `_offset_field`
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Of the machine since it was started: for so long its monotonic clock goes on, whatever process asks. "" where that is not known."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


class Sightings:
    """One caller at a time for each partition.

    directory  None: nothing is remembered, so that everything is seen for the first time
    boot       see boot_id
    """

    def __init__(self, directory: Path | None, clock: Clock, boot: str | None = None) -> None:
        self._directory, self._clock = directory, clock
        self._boot = boot_id() if boot is None else boot

    def of(self, partition: PartitionId, seen: Seen) -> Mapping[str, int]:
        """Since when, in ms, each name has been seen so."""
        return {name: since_ms for since_ms, names in self._load(partition).get(seen.value, {}).items() for name in names}

    def see(self, partition: PartitionId, seen: Seen, names: Collection[str]) -> Mapping[str, int]:
        """Look again: these are so now, and no others. Since when, in ms; what is returned is on disk.

        A clock that was set back makes the time begin again; by as much as it was put ahead since the last look, on a machine that has not
        been started again, the time has not passed. Raises DiskFull, Unauthorised and TransientError; then what was remembered stays.
        """
        before, now_ms, offset_ms = self.of(partition, seen), self._clock.now_ms(), self._offset_ms()
        last_ms = self._last_offset_ms(partition, seen)
        is_moved = last_ms is None or abs(offset_ms - last_ms) >= AHEAD_MS
        ahead_ms = max(0, offset_ms - last_ms) if is_moved and last_ms is not None else 0
        since = {name: min(before[name] + ahead_ms, now_ms) if name in before else now_ms for name in names}
        if since != before or (before and is_moved):
            by_time: dict[int, list[str]] = {}
            for name in sorted(since):
                by_time.setdefault(since[name], []).append(name)
            offset = {offset_ms if last_ms is None or is_moved else last_ms: [self._boot]}
            self._save(partition, {**self._load(partition), seen.value: by_time, _offset_field(seen): offset})
        return since

    def forget(self, partition: PartitionId) -> None:
        """It is gone from here. Should somebody collect it all the same, every time begins again. Raises nothing: what stays is small."""
        path = self._path(partition)
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _offset_ms(self) -> int:
        """How far the wall clock is from the one that nobody sets."""
        return self._clock.now_ms() - int(self._clock.monotonic_s() * 1000)

    def _last_offset_ms(self, partition: PartitionId, seen: Seen) -> int | None:
        """As it was at the last look that wrote something; None where the monotonic clock has begun again since."""
        found = self._load(partition).get(_offset_field(seen), {})
        return next((offset_ms for offset_ms, boots in found.items() if self._boot and boots == [self._boot]), None)

    def _path(self, partition: PartitionId) -> Path | None:
        return self._directory / f"{partition.topic_id}-{partition.partition}.json" if self._directory is not None else None

    def _load(self, partition: PartitionId) -> _Since:
        path = self._path(partition)
        if path is None:
            return {}
        return state_file.load(path, _Since, "what nothing refers to is deleted later") or {}

    def _save(self, partition: PartitionId, since: _Since) -> None:
        path = self._path(partition)
        if path is None:
            return
        with disk_errors(path):
            if any(since.get(seen.value) for seen in Seen):
                path.parent.mkdir(exist_ok=True)
                replace_file(path, with_checksum(msgspec.json.encode(since)))
            else:
                path.unlink(missing_ok=True)


def _offset_field(seen: Seen) -> str:
    """Where a file says how far the wall clock was from the monotonic one, in ms, and since which start of the machine."""
    return f"{seen.value} offset"
