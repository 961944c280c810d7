"""Since when something has been seen in one state at every look: objects that nothing refers to, and entries of dead branches.

Kept in the data directory, a file for each partition of which there is something to remember. A file that is lost, or damaged, starts
every time anew: what is to be deleted is deleted later.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path

import msgspec

from headwater_core.clock import Clock
from headwater_core.files import disk_errors, replace_file
from headwater_core.partition import PartitionId


class Seen(Enum):
    """What a name was seen as."""

    ORPHAN = "orphans"
    SUPERSEDED = "superseded"


AHEAD_MS = 1_000  # by less than that the wall clock may run away from the monotonic one between two looks

_Since = dict[str, dict[int, list[str]]]  # by what they were seen as: first seen, in ms, and the names


class Sightings:
    """One caller at a time for each partition.

    directory  None: nothing is remembered, so that everything is seen for the first time
    """

    def __init__(self, directory: Path | None, clock: Clock) -> None:
        self._directory, self._clock = directory, clock
        self._first_offset_ms = self._offset_ms()
        self._offsets_ms: dict[tuple[PartitionId, Seen], int] = {}  # as of the last look

    def of(self, partition: PartitionId, seen: Seen) -> Mapping[str, int]:
        """Since when, in ms, each name has been seen so."""
        return {name: since_ms for since_ms, names in self._load(partition).get(seen.value, {}).items() for name in names}

    def see(self, partition: PartitionId, seen: Seen, names: Collection[str]) -> Mapping[str, int]:
        """Look again: these are so now, and no others. Since when, in ms; what is returned is on disk.

        A clock that was set back makes the time begin anew; by as much as it was put ahead since the last look in this process, the time
        has not passed. Raises DiskFull, Unauthorised and TransientError; then what was remembered stays.
        """
        before, now_ms, offset_ms = self.of(partition, seen), self._clock.now_ms(), self._offset_ms()
        last_ms = self._offsets_ms.get((partition, seen), self._first_offset_ms)
        is_moved = abs(offset_ms - last_ms) >= AHEAD_MS
        ahead_ms = max(0, offset_ms - last_ms) if is_moved else 0
        since = {name: min(before[name] + ahead_ms, now_ms) if name in before else now_ms for name in names}
        if since != before:
            by_time: dict[int, list[str]] = {}
            for name in sorted(since):
                by_time.setdefault(since[name], []).append(name)
            self._save(partition, {**self._load(partition), seen.value: by_time})
        self._offsets_ms[partition, seen] = offset_ms if is_moved else last_ms
        return since

    def forget(self, partition: PartitionId) -> None:
        """It is gone from here. Should somebody collect it all the same, every time begins anew. Raises nothing: what stays is small."""
        for seen in Seen:
            self._offsets_ms.pop((partition, seen), None)
        path = self._path(partition)
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _offset_ms(self) -> int:
        """How far the wall clock is from the one that nobody sets."""
        return self._clock.now_ms() - int(self._clock.monotonic_s() * 1000)

    def _path(self, partition: PartitionId) -> Path | None:
        return self._directory / f"{partition.topic_id}-{partition.partition}.json" if self._directory is not None else None

    def _load(self, partition: PartitionId) -> _Since:
        path = self._path(partition)
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Since) if path is not None else {}
        except (OSError, msgspec.MsgspecError):
            return {}

    def _save(self, partition: PartitionId, since: _Since) -> None:
        path = self._path(partition)
        if path is None:
            return
        with disk_errors(path):
            if any(since.values()):
                path.parent.mkdir(exist_ok=True)
                replace_file(path, msgspec.json.encode(since))
            else:
                path.unlink(missing_ok=True)
