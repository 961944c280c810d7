"""Since when the unfinished end of each log has been waiting, remembered across restarts.

The clock starts when a tail is first seen or when the offset before it is committed; record timestamps, which anyone may
set, never count. Losing the file starts every clock again.
"""

import threading
from collections.abc import Collection
from pathlib import Path

import msgspec

from archival import state_file
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError
from headwater_core.files import replace_file
from headwater_core.partition import PartitionId


class _Tail(msgspec.Struct, frozen=True):
    next_offset: int
    since_ms: int

    def __post_init__(self) -> None:
        if self.next_offset < 0:
            raise ValueError(f"not an offset: {self.next_offset}")


class Tails:
    """Safe to use from many threads, one per partition. `save` writes what has changed since it was last called."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._tails = _load(path) if path else {}
        self._changed = False
        self._saving = threading.Lock()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def age_ms(self, partition: PartitionId, next_offset: int) -> int:
        """For how many milliseconds `next_offset` has been the first offset that waits."""
        key, now = _key(partition), self._clock.now_ms()
        tail = self._tails.get(key)
        if tail is None or tail.next_offset != next_offset or tail.since_ms > now:
            self._tails[key] = tail = _Tail(next_offset, now)
            self._changed = True
        return now - tail.since_ms

    def age_since(self, partition: PartitionId, next_offset: int, high_watermark: int | None) -> int:
        """The same, and 0 where nothing waits: what is committed ends at `high_watermark`."""
        if high_watermark is None or high_watermark <= next_offset:
            self.forget(partition)
            return 0
        return self.age_ms(partition, next_offset)

    def forget(self, partition: PartitionId) -> None:
        """Nothing of the partition waits."""
        if self._tails.pop(_key(partition), None):
            self._changed = True

    def retain(self, partitions: Collection[PartitionId]) -> None:
        """Forget all others."""
        for key in self._tails.keys() - {_key(each) for each in partitions}:
            del self._tails[key]
            self._changed = True

    def save(self) -> None:
        """Write the file, when something has changed. Raises DiskFull, Unauthorised and TransientError; then the next call tries again."""
        with self._saving:  # the agent's loop and a one-shot pass come to it at once, and the partial file has one name
            if self._path is None or not self._changed:
                return
            self._changed = False
            try:
                replace_file(self._path, msgspec.json.encode(dict(self._tails)))
            except HeadwaterError:
                self._changed = True
                raise


def _key(partition: PartitionId) -> str:
    return f"{partition.cluster_id}/{partition.topic_id}/{partition.partition}"


def _load(path: Path) -> dict[str, _Tail]:
    return state_file.load(path, dict[str, _Tail], "every tail starts to wait again for its seal timeout") or {}
