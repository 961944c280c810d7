"""What reading has cost, for metrics. Counted without a lock: a lost increment harms nobody."""

from dataclasses import dataclass


@dataclass(slots=True)
class ReadCounters:
    """
    reads               answered, from whichever tier
    fallbacks           reads that the first tier failed and the second served or failed, too
    chunk_hits          chunks found in the cache when a reader asked; chunk_misses: those it had to wait for
    downloads           GETs for chunks, read-ahead included; downloaded_bytes
    ahead               chunks asked for because a sequential reader was expected to want them
    damaged             chunks whose bytes did not verify
    gaps_skipped        reads that moved forward over offsets which no tier has
    """

    reads: int = 0
    fallbacks: int = 0
    chunk_hits: int = 0
    chunk_misses: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    ahead: int = 0
    damaged: int = 0
    gaps_skipped: int = 0
