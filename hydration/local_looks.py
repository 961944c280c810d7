"""Looks at the local log, taken by threads that may wait for its disk."""

from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from headwater_core.errors import CorruptData, HeadwaterError, SourceChanged, UnsupportedFormat
from headwater_core.segments.local_log import LocalLog
from hydration.local.local_tier import LocalTier
from hydration.resumption import Resumable
from hydration.tiers import Tiers

LOOKS_MAX = 3  # at a local log that is replaced while it is read

T = TypeVar("T")


class LocalLooks:
    """At one partition's local log: one at a time, however many readers want one."""

    def __init__(self, tiers: Tiers) -> None:
        self._partition, self._local, self._hydrator = tiers.partition, tiers.local, tiers.hydrator

    def join(self, local: LocalTier, max_age_s: float | None) -> Future[None]:
        """The end of a look that is in flight, or of a new one unless the last is younger than that or, with None, than is usual."""
        return self._hydrator.join_look(self._partition, partial(_look, local, max_age_s), local.log_dir)

    def while_same(self, looked_at: LocalLog, question: Resumable[T]) -> Resumable[T]:
        """What `question` finds in that log. Raises what it does; for damage SourceChanged, where the log was cut
        or replaced since."""
        try:
            return (yield from question)
        except (CorruptData, UnsupportedFormat) as error:
            assert self._local is not None
            moment_s = self._hydrator.clock.monotonic_s()
            for _ in range(LOOKS_MAX):  # one that was in flight already began too early
                if self._local.last.began_s >= moment_s and self._local.last.log is not looked_at:
                    break
                yield self.join(self._local, 0.0)
            now = self._local.last.log
            if now is None or is_cut(looked_at, now):
                raise SourceChanged(f"{looked_at.directory} was cut or replaced: {error}") from error
            raise


def is_cut(before: LocalLog, now: LocalLog) -> bool:
    """Whether the broker has cut its log since, or replaced files of it."""
    sizes = {each.generation.inode: each.size_bytes for each in now.segments}
    return before.epochs != now.epochs or any(sizes.get(each.generation.inode, -1) < each.size_bytes for each in before.segments)


def _look(local: LocalTier, max_age_s: float | None) -> None:
    with suppress(HeadwaterError):  # it is published with the look
        local.log(local.max_age_s if max_age_s is None else max_age_s)
