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
    needed = files = fetched_bytes = 0
    largest: Entry | None = None
    for topic in plan.topics:
        interval_bytes = index_interval_bytes(topic)
        for entry in (entry for partition in topic.partitions for entry in partition.files):
            needed += entry.live_bytes + most_index_bytes(entry.live_bytes, interval_bytes)
            files, fetched_bytes = files + 1, fetched_bytes + entry.run_bytes
            largest = entry if largest is None or entry.size_bytes > largest.size_bytes else largest
    seconds = rate = None
    if largest is not None and (sample := _sample(store, largest, clock)):
        delay_s, rate = sample
        seconds = (files * delay_s + fetched_bytes / rate) / WORKERS
    return Forecast(needed, None if into is None else _free_bytes(into), seconds, rate)


def time_range(topic: TopicPlan) -> TimeRange | None:
    """Of the records that come back, as their entries say it; None when there is none with a time."""
    first_ms: int | None = None
    last_ms: int | None = None
    for entry in (entry for partition in topic.partitions for entry in partition.files):
        if entry.first_timestamp_ms is not None and entry.last_timestamp_ms is not None:
            first_ms = entry.first_timestamp_ms if first_ms is None else min(first_ms, entry.first_timestamp_ms)
            last_ms = entry.last_timestamp_ms if last_ms is None else max(last_ms, entry.last_timestamp_ms)
    return None if first_ms is None or last_ms is None else TimeRange(first_ms, last_ms)


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
