"""What a recovery will take: room on disk and time, the time as a short download from this store says."""

from pathlib import Path
from typing import NamedTuple

from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError
from headwater_core.objectstore.store import ObjectStore
from manifests.entry import Entry
from recovery.indexes import most_index_bytes
from recovery.layout import index_interval_bytes
from recovery.recovery_plan import Forecast, RecoveryPlan, TopicPlan
from recovery.restoration import WORKERS
from recovery.target_room import free_bytes

SAMPLE_BYTES = 4 << 20  # long enough that the first byte's delay does not decide, short enough that nobody waits for it


class TimeRange(NamedTuple):
    """Least and greatest timestamp of records, in milliseconds."""

    first_ms: int
    last_ms: int


def estimate(plan: RecoveryPlan, store: ObjectStore, into: Path | None, clock: Clock) -> Forecast:
    """Of applying `plan`. Fetches a part of one object."""
    files = [(topic, entry) for topic in plan.topics for partition in topic.partitions for entry in partition.files]
    needed = sum(entry.live_bytes + most_index_bytes(entry.live_bytes, index_interval_bytes(topic)) for topic, entry in files)
    seconds = rate = None
    if files and (sample := _sample(store, max((entry for _, entry in files), key=lambda entry: entry.size_bytes), clock)):
        delay_s, rate = sample
        seconds = (len(files) * delay_s + sum(entry.run_bytes for _, entry in files) / rate) / WORKERS
    return Forecast(needed, None if into is None else _free_bytes(into), seconds, rate)


def time_range(topic: TopicPlan) -> TimeRange | None:
    """Of the records that come back, as their entries say it; None when there is none with a time."""
    entries = [entry for partition in topic.partitions for entry in partition.files]
    firsts = [entry.first_timestamp_ms for entry in entries if entry.first_timestamp_ms is not None]
    lasts = [entry.last_timestamp_ms for entry in entries if entry.last_timestamp_ms is not None]
    return TimeRange(min(firsts), max(lasts)) if firsts and lasts else None


def _sample(store: ObjectStore, entry: Entry, clock: Clock) -> tuple[float, float] | None:
    """The delay of a request in seconds, and bytes per second after it; None when the object cannot be read."""
    buffer = memoryview(bytearray(min(SAMPLE_BYTES, entry.size_bytes)))
    try:
        begun_s = clock.monotonic_s()
        store.stat(entry.key)
        answered_s = clock.monotonic_s()
        store.read_into(entry.key, buffer, start=0)
        ended_s = clock.monotonic_s()
    except HeadwaterError:
        return None
    delay_s = answered_s - begun_s
    return delay_s, len(buffer) / max(ended_s - answered_s - delay_s, 1e-3)


def _free_bytes(into: Path) -> int | None:
    """On the file system that `into` is on, or will be."""
    for each in (into.absolute(), *into.absolute().parents):
        if each.exists():
            return free_bytes(each)
    return None
