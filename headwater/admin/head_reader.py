"""Heads that nobody holds, read for what they say of an archive's size: after a start most partitions have nothing to archive.

Of each one once, and of what another agent archives now and then; slowly, and not while the store is silent. Nothing waits for it.
"""

import threading
from collections import deque
from collections.abc import Callable

import structlog

from headwater.admin.status_board import StatusBoard
from headwater_core.errors import CorruptData, ForeignOwner, HeadwaterError, UnsupportedFormat
from headwater_core.partition import PartitionId
from manifests.head import Head

HEAD_S = 0.1  # between two heads: those of ten thousand partitions take a quarter of an hour, and a cent
NONE_S = 5.0  # before it is looked again whether there are some to read
SILENT_S = 30.0  # after a read that failed

log = structlog.get_logger()


class HeadReader:
    """load: of one partition; None where the bucket has none. Raises what the store raises, and why a head cannot be used."""

    def __init__(self, board: StatusBoard, load: Callable[[PartitionId], Head | None]) -> None:
        self._board, self._load = board, load
        self._queue: deque[PartitionId] = deque()

    def turn(self) -> float:
        """Read one head, if one is wanted; how many seconds to wait before the next turn."""
        if not self._queue:
            self._queue.extend(self._board.unsized())
            if not self._queue:
                return NONE_S
        partition, asked_s = self._queue.popleft(), self._board.clock.monotonic_s()
        try:
            self._board.head_read(partition, self._load(partition), asked_s=asked_s)
        except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
            self._board.head_read(partition, None, str(error), asked_s=asked_s)
        except HeadwaterError:  # what has work for the store notices, too
            self._queue.clear()
            return SILENT_S
        except Exception:
            log.exception("status_not_updated", partition=str(partition))
            return SILENT_S
        return HEAD_S

    def run(self, stop: threading.Event) -> None:
        """Turns, until `stop` is set."""
        wait_s = 0.0
        while not stop.wait(wait_s):
            wait_s = self.turn()
