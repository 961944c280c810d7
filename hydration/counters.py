"""What reading has cost. Counted without a lock: a lost increment does no harm."""

from dataclasses import dataclass, field

import structlog

from headwater_core.durations import Durations
from headwater_core.partition import PartitionId

WAIT_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

log = structlog.get_logger()


@dataclass(slots=True)
class ReadCounters:
    """
    reads               answered, from whichever tier
    fallbacks           reads that failed in the first tier, and were served by the second or failed there, too
    chunk_hits          chunks found in the cache when a reader needed them; chunk_misses: those it had to wait for
    downloads           GETs for chunks, read-ahead included; downloaded_bytes
    ahead               chunks requested because a sequential reader was expected to need them
    ahead_used          those that a reader came to; ahead_wasted: those that were dropped or not fetched before one did
    waits               for each chunk that a reader came to too early: how long until it was there, or its download had failed
    damaged             chunks whose bytes did not verify
    gaps_skipped        reads that moved forward over offsets that no tier has
    """

    reads: int = 0
    fallbacks: int = 0
    chunk_hits: int = 0
    chunk_misses: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    ahead: int = 0
    ahead_used: int = 0
    ahead_wasted: int = 0
    damaged: int = 0
    gaps_skipped: int = 0
    waits: Durations = field(default_factory=lambda: Durations(WAIT_BOUNDS_S))


def report_gap(counters: ReadCounters, partition: PartitionId, offset: int, next_offset: int) -> None:
    """A reader at `offset` is moved to `next_offset`, over what no tier has."""
    counters.gaps_skipped += 1
    log.warning("gap_skipped", partition=str(partition), offset=offset, next_offset=next_offset)
