"""How much of a local log one question may read: little in an event loop, more in a worker."""

INLINE_SCAN_BYTES = 256 << 10  # what a read scans in an event loop: some milliseconds where batches are small
WORKER_SCAN_BYTES = 16 << 20  # what a worker scans before other partitions have their turn


class ScanBudgetExceeded(Exception):
    """The answer takes more bytes than the budget. What was met so far is kept, so that the same question then takes fewer."""


class ScanBudget:
    """How many bytes of files a question may still read. None: as many as it takes."""

    __slots__ = ("left_bytes",)

    def __init__(self, left_bytes: int | None = None) -> None:
        self.left_bytes = left_bytes

    def take(self, size_bytes: int) -> None:
        """Raises ScanBudgetExceeded when nothing is left: the last request may go beyond."""
        if self.left_bytes is None:
            return
        if self.left_bytes <= 0:
            raise ScanBudgetExceeded
        self.left_bytes -= size_bytes
