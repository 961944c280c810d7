"""Mistakes planted in the real code. Each leaves out a rule of design §4, or misreads it; the simulation must notice.

Most are those of the protocol's reference model, under its names. What goes wrong with pages takes a page that is
collected or replaced at one moment: most of that is led to in `test_races`.

Some rules have no mistake here, since others imply them:

* Release takes the archiver's lock. But another agent's archiver, which shares no lock with it, may commit at any point of a release
  too, and everything else in `release` is there so that this does no harm. The lock spares the two of one agent each other's retries.
* A sealed file must have the size and time of the look when it is opened (`check_unchanged`). Whoever changes it otherwise is found
  later: a truncation leaves another epoch history and a compaction another inode, which the second look compares after the scan; what
  changes after that differs from the digest of the scan when it is sent; and what no rule explains fails its checksums. The
  comparison saves the scan of a file that is known to be another one.
* What was taken of a log that was cut since is given up by the look that shows the cut (`PartitionStreams.follow`). But a log is cut by a
  newer leader epoch, which is claimed before anything else, and a claim fails what was assigned: then it is given up too.
* What is open when streaming is switched off is completed first. Else it would be given up by the next commit, and read again: that loses
  nothing, and `tests/archival/test_streams.py` shows it.
* Where the tier that a read priority prefers fails, the other one is asked. A reader that gets a retriable error does what the
  simulation expects, as long as something is read; `tests/hydration/test_read_priority.py` breaks each tier.
"""

from tests.simulation.mutants import (  # noqa: F401  each lists its own
    collection,
    groups,
    incarnations,
    layouts,
    lineages,
    merges,
    pages,
    readers,
    recoveries,
    releases,
    statuses,
    streams,
    triggers,
    uploads,
)
from tests.simulation.mutants.mutant import MUTANTS, Mutant, planted

__all__ = ["MUTANTS", "Mutant", "planted"]
