"""The pauses of the archive as this agent knows them (manifests.pause_list): asked for by every step, read from the bucket now and then.

An agent with nothing to archive and nothing paused asks the bucket nothing.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from archival.plan.policy import PAUSED, Policy
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError
from headwater_core.partition import TopicPartition
from manifests.pause_list import Pause, PauseList, PauseScope
from manifests.repository import ManifestRepository

REFRESH_S = 60.0  # what is archived is not paused by another node since longer than that, when the control log does not tell of it
LOOK_S = 1.0  # between two looks at what the control log says
EXPLAINS_MS = 24 * 3600 * 1000  # what a log lost so long after a pause was lost by it

log = structlog.get_logger()


class KnownPauses:
    """Safe to use from many threads. Until the bucket has once been read, every question reads it: what is paused is never archived for
    want of an answer. Later a bucket that does not answer leaves what was known."""

    def __init__(self, repository: ManifestRepository, clock: Clock) -> None:
        self._repository, self._clock = repository, clock
        self._lock = threading.Lock()  # of reading
        self._known: PauseList | None = None
        self._read_for = -1  # the announced version that the bucket was last read for
        self._again_s = self._not_before_s = float("-inf")  # when to read again, whatever is announced; and after a failure
        self.changed: Callable[[], object] = lambda: None  # called after what is known has changed

    @property
    def is_known(self) -> bool:
        """Has the bucket been read once? Then no question waits for it."""
        return self._known is not None

    def now(self) -> PauseList:
        """Raises what the store raises, and CorruptData, when it was never read."""
        if self._known is None:
            self.refresh()
        assert self._known is not None
        return self._known

    def applied(self, place: TopicPartition, policy: Policy) -> Policy:
        """What `policy` comes to for `place`. Raises as `now`."""
        known = self.now()
        if pause := known.of(place):
            return replace(policy, off=paused_reason(pause))
        last = known.last_of(place)
        if last is None or last.until_ms is None or self._clock.now_ms() - last.until_ms > EXPLAINS_MS:
            return policy
        return replace(policy, gap_reason=f"archiving was paused from {_utc(last.since_ms)} to {_utc(last.until_ms)}")

    def refresh(self) -> None:
        """Read the bucket. Raises what the store raises, and CorruptData."""
        with self._lock:
            is_news = self._take(self._repository.load_pauses())
        if is_news:
            self.changed()

    def change(self, decide: Callable[[PauseList], PauseList]) -> PauseList:
        """Let all agents of the archive know; returns what holds from now on. Raises what `decide` and the store raise."""
        with self._lock:
            is_news = self._take(self._repository.change_pauses(decide))
        if is_news:
            self.changed()
        return self.now()

    def follow(self, stop: threading.Event, announced_version: Callable[[], int]) -> None:
        """Keep up with the bucket until `stop` is set. announced_version: the newest list that the control log tells of."""
        while not stop.wait(LOOK_S):
            self.look(announced_version())

    def look(self, announced_version: int) -> None:
        """Read the bucket, if it is known to have a newer list, or now and then while something is paused. Raises nothing: what was known
        holds."""
        known = self._known
        if known is None or announced_version > max(known.version, self._read_for):
            if self._read():
                self._read_for = announced_version  # an older list may have been put in place of the one that was announced
        elif any(each.in_force for each in known.pauses):
            self.look_before_work()

    def look_before_work(self) -> None:
        """Something is about to be archived: read the bucket, if that was long ago. Raises nothing: what was known holds."""
        if self._clock.monotonic_s() >= self._again_s:
            self._read()

    def _read(self) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s < self._not_before_s:
            return False
        try:
            self.refresh()
        except HeadwaterError as error:
            self._not_before_s = now_s + REFRESH_S
            log.warning("pauses_not_read", reason=str(error), consequence="what was known to be paused stays so")
            return False
        return True

    def _take(self, found: PauseList) -> bool:
        """Is anything paused or resumed with it? The caller holds the lock."""
        before, self._known = self._known, found
        self._again_s = self._clock.monotonic_s() + REFRESH_S
        was = {_key(each): each for each in before.pauses if each.in_force} if before else {}
        now = {_key(each): each for each in found.pauses if each.in_force}
        for key in now.keys() - was.keys():
            log.info("topics_paused", selection=str(now[key].selection), reason=paused_reason(now[key]))
        for key in was.keys() - now.keys():
            log.info("topics_resumed", selection=str(was[key].selection))
        return was.keys() != now.keys()


def paused_reason(pause: Pause) -> str:
    """As people read it, and as a policy says why nothing is archived."""
    whole = "" if pause.topic is not None else ", with everything else"
    return f"{PAUSED}since {_utc(pause.since_ms)} by {pause.by}{whole}"


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _key(pause: Pause) -> tuple[PauseScope, int]:
    return pause.selection, pause.since_ms
