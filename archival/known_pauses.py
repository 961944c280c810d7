"""The pauses of the archive as this agent knows them (manifests.pause_list, manifests.known_document): asked for by every step.

An agent with nothing to archive and nothing paused asks the bucket nothing.
"""

from dataclasses import replace

import structlog

from archival.plan.policy import PAUSED, Policy
from headwater_core.clock import Clock, time_text
from headwater_core.errors import HeadwaterError
from headwater_core.partition import TopicPartition
from manifests.known_document import KnownDocument
from manifests.pause_list import Pause, PauseList, PauseScope
from manifests.repository import ManifestRepository

EXPLAINS_MS = 24 * 3600 * 1000  # what a log lost so long after a pause was lost by it

log = structlog.get_logger()


class KnownPauses(KnownDocument[PauseList]):
    """Until the bucket has once been read, every question reads it: what is paused is never archived for want of an answer."""

    def __init__(self, repository: ManifestRepository, clock: Clock) -> None:
        super().__init__(
            repository.load_pauses, repository.change_pauses, clock, taken=_taken, unread=_report_unread, in_use=_is_any_in_force
        )

    @property
    def is_known(self) -> bool:
        """Has the bucket been read once? Then no question waits for it."""
        return self.known is not None

    def applied(self, place: TopicPartition, policy: Policy) -> Policy:
        """What `policy` comes to for `place`. Raises as `now`."""
        known = self.now()
        if policy.is_excluded:
            return policy
        if pause := known.of(place):
            return replace(policy, off=paused_reason(pause))
        last = known.last_of(place)
        if last is None or last.until_ms is None or self._clock.now_ms() - last.until_ms > EXPLAINS_MS:
            return policy
        return replace(policy, gap_reason=f"archiving was paused from {time_text(last.since_ms)} to {time_text(last.until_ms)}")


def _is_any_in_force(known: PauseList) -> bool:
    return any(each.in_force for each in known.pauses)


def _taken(before: PauseList | None, found: PauseList) -> bool:
    """Is anything paused or resumed with it?"""
    was = {_key(each): each for each in before.pauses if each.in_force} if before else {}
    now = {_key(each): each for each in found.pauses if each.in_force}
    for key in now.keys() - was.keys():
        log.info("topics_paused", selection=str(now[key].selection), reason=paused_reason(now[key]))
    for key in was.keys() - now.keys():
        log.info("topics_resumed", selection=str(was[key].selection))
    return was.keys() != now.keys()


def _report_unread(error: HeadwaterError) -> None:
    log.warning("pauses_not_read", reason=str(error), consequence="what was known to be paused stays so")


def paused_reason(pause: Pause) -> str:
    """As people read it, and as a policy says why nothing is archived."""
    whole = "" if pause.topic is not None else ", with everything else"
    return f"{PAUSED}since {time_text(pause.since_ms)} by {pause.by}{whole}"


def _key(pause: Pause) -> tuple[PauseScope, int]:
    return pause.selection, pause.since_ms
