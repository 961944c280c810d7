"""Whether a batch that is met in a local log was there when the log was looked at.

A follower cuts the end of its log in place, for a newer leader, and fills it again: the file stays, and so do offsets. What is
new shows by its leader epoch. A broker writes an epoch into its history before it appends the first batch of it, and one epoch
has one leader: a batch whose epoch is the one that the look's history has at its offset is the one that was there, and so is
everything before it.
"""

from collections.abc import Callable

from headwater_core.epochs import EpochHistory
from headwater_core.errors import SourceChanged


class EpochCheck:
    """By the leader epochs of one look at a log."""

    __slots__ = ("_denied", "_epochs")

    def __init__(self, epochs: EpochHistory, denied: Callable[[], None]) -> None:
        """denied   is called before a batch is denied"""
        self._epochs, self._denied = epochs, denied

    def check(self, epoch: int, offset: int, where: str) -> None:
        """Raises SourceChanged for a batch that was not there."""
        if self._epochs.denies(epoch, offset):
            self._denied()
            raise SourceChanged(f"{where}: offset {offset} is of leader epoch {epoch} by now")
