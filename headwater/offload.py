"""The offload of one partition up to an offset, as the endpoint of PIP-17 requests it: done as a whole, or an error says what is left."""

import threading
from collections.abc import Generator
from typing import Any

from archival.fleet import ArchiverFleet
from headwater.session import PassRequest, pass_rows
from headwater_core.errors import TransientError, UsageError
from headwater_core.partition import TopicPartition
from headwater_core.segments.local_log import LocalLog


def offload_rows(fleet: ArchiverFleet, place: TopicPartition, before: int, stop: threading.Event) -> Generator[dict[str, Any]]:
    """One row, of a pass over `place`.

    Raises NotFound without a log of it here, UsageError for an offset beyond its high watermark, TransientError where segments before
    the offset are left, which says why, and what has stopped the partition. `stop` ends it early.
    """
    log = _committed_to(fleet, place, before)
    wanted_end = sealed_end(log, before)
    for row in pass_rows(fleet, PassRequest(selection=str(place), before=before), stop):
        yield row
        archive_end = 0 if row["last_offset"] is None else row["last_offset"] + 1
        if row["error"] is None and archive_end < wanted_end:
            raise TransientError(f"{place}: archived before {archive_end}, not before {wanted_end}: {row['reason']}")


def _committed_to(fleet: ArchiverFleet, place: TopicPartition, before: int) -> LocalLog:
    """A look at a log that is committed up to `before`. Its broker is asked where the checkpoint, up to 5 s old, does not say so."""
    log, origin = fleet.look(place)
    high_watermark = log.high_watermark
    if fleet.broker_logs is not None and before > (high_watermark or 0):
        said = fleet.broker_logs.watermarks([log], ask=True).get(log.partition)
        high_watermark = said.offset if said is not None else high_watermark
    if high_watermark is None:
        raise TransientError(f"{place}: no checkpoint of the broker names the partition's high watermark")
    if before > high_watermark:
        raise UsageError(f"{place}: offset {before} is beyond the high watermark {high_watermark} ({origin})")
    return log


def sealed_end(log: LocalLog, before: int) -> int:
    """Where the last sealed segment ends whose offsets are all below `before`; the log's start where none is."""
    ends = (following.base_offset for following in log.segments[1:])
    return max((end for end in ends if end <= before), default=log.start_offset)
