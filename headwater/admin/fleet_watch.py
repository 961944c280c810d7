"""The work of the scheduler, watched on its way: what it shows is noted, for health and status."""

from collections.abc import Collection, Sequence
from pathlib import Path

from archival.fleet import MergeTurn, PartitionOutcome
from archival.plan.policy import PolicyFor
from archival.schedule.scheduler import Work
from archival.schedule.upload_permit import StepWatch
from headwater.admin.status_board import StatusBoard
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError
from headwater_core.partition import TopicPartition
from headwater_core.segments.log_dirs import Listing

LATE_FACTOR, LATE_S = 3, 60.0  # a listing is late after so many times its interval, and no sooner than that


class FleetWatch:
    """Stands between the scheduler and `work`; to the scheduler it is the same. Safe to use from many threads.

    board  learns what may have changed
    """

    def __init__(self, work: Work, dirs: Sequence[Path], board: StatusBoard, clock: Clock) -> None:
        self._work, self._dirs, self._board, self._clock = work, set(dirs), board, clock
        self._listed_at_s = clock.monotonic_s()
        self._unread = "they have not been listed yet"

    def unreadable(self, rescan_s: float) -> str:
        """Why the log directories cannot be read; "" while they can.

        rescan_s  how often they are listed
        """
        age_s = self._clock.monotonic_s() - self._listed_at_s
        if age_s > max(LATE_S, LATE_FACTOR * rescan_s):
            return f"not listed for {age_s:.0f} s"
        return self._unread

    def listing(self) -> Listing:
        began_s = self._clock.monotonic_s()
        try:
            found = self._work.listing()
        except Exception as error:
            self._unread = str(error) or repr(error)
            raise
        self._unread = "; ".join(str(error) for path, error in found.problems if path in self._dirs)
        self._listed_at_s = self._clock.monotonic_s()
        self._board.listed(found, began_s)
        return found

    def expect(self, places: Collection[TopicPartition]) -> None:
        self._board.happened(places)
        self._work.expect(places)

    def step(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> PartitionOutcome:
        return self._work.step(place, policy_for, watch)

    def merge(self, place: TopicPartition, policy_for: PolicyFor, watch: StepWatch) -> MergeTurn:
        return self._work.merge(place, policy_for, watch)

    def note(self, outcome: PartitionOutcome) -> None:
        self._work.note(outcome)

    def trouble(self, place: TopicPartition, error: Exception) -> HeadwaterError:
        return self._work.trouble(place, error)

    def retain(self, places: Collection[TopicPartition]) -> None:
        self._board.retain(places)
        self._work.retain(places)

    def save(self) -> None:
        self._work.save()
