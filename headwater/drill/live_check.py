"""What was restored, compared with the live cluster as far as its logs reach; and how far the archive is behind it."""

from msgspec.structs import replace

from headwater.drill.comparison import Difference, ReadFailed, archived_batches, compare_records
from headwater.drill.drill_report import NOTHING, Amount, ComparedWindow, Lag, MeasuredPoint
from headwater.drill.drill_tally import DrillTally, place_of, places_of
from headwater.drill.equipment import DrillEquipment, LiveLogs
from headwater_core.clock import Clock
from headwater_core.errors import CorruptData, HeadwaterError, NotFound
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, TopicPartition
from manifests.entry import Entry
from manifests.repository import ManifestRepository
from recovery import RecoveryPlan

LAGS_MAX = 20  # partitions that a report names, of those that the archive is behind of


def check_live(equipment: DrillEquipment, whole: RecoveryPlan, plan: RecoveryPlan, tally: DrillTally) -> MeasuredPoint:
    """What was restored against the live logs, as far as they reach; and how far the archive is behind them. A cluster that does not
    answer is no damage: a recovery is for when there is none."""
    name, clock = "live cluster", equipment.clock
    alone = archive_alone(whole)
    if equipment.live is None:
        tally.add(name, NOTHING, why=equipment.no_live)
        tally.windows = [replace(window, live=equipment.no_live) for window in tally.windows]
        return replace(alone, why=equipment.no_live)
    began_s = clock.monotonic_s()
    try:
        with equipment.live() as path:
            if path.cluster_id != plan.source_cluster_id:
                raise NotFound(f"the brokers are of cluster {path.cluster_id}, the archive is of {plan.source_cluster_id}")
            for at, window in enumerate(tally.windows):
                compared, why = _compare_window(equipment.store, plan, window, path, tally)
                tally.add(name, compared, why=why and "not everything: see each partition")
                tally.windows[at] = replace(window, by=window.by | {name: compared}, live=why)
            tally.add(name, NOTHING, clock.monotonic_s() - began_s)
            return _recovery_point(whole, path, clock, alone)
    except HeadwaterError as error:
        why = f"the live cluster could not be read: {error}"
        tally.add(name, NOTHING, clock.monotonic_s() - began_s, why)
        tally.windows = [window if name in window.by else replace(window, live=why) for window in tally.windows]
        return replace(alone, why=why)


def _compare_window(
    store: ObjectStore, plan: RecoveryPlan, window: ComparedWindow, path: LiveLogs, tally: DrillTally
) -> tuple[Amount, str]:
    """What was compared, and why not more."""
    topic, partition = place_of(plan, window)
    place, compared = TopicPartition(window.topic, window.partition), NOTHING
    live_id = path.topic_id(window.topic)
    if live_id != window.topic_id:
        return (
            NOTHING,
            f"the live topic has id {live_id}, the archive {window.topic_id}" if live_id else "the live cluster has no such topic",
        )
    try:
        bounds = path.bounds(place)
    except HeadwaterError as error:
        return NOTHING, str(error)
    why = ""
    if bounds.start > partition.start_offset:
        why = f"the live log begins at offset {bounds.start}"
    if bounds.end < partition.next_offset:
        why = f"the live log ends at offset {bounds.end}"
    for entry in partition.files:
        first, end = max(entry.base_offset, partition.start_offset, bounds.start), min(entry.next_offset, bounds.end)
        if first >= end:
            continue
        try:
            compared += compare_records(
                place,
                archived_batches(store, entry),
                path,
                first,
                end,
                is_compacted=topic.compacted,
                progressed=lambda _: None,
            )
        except CorruptData:
            continue  # it was found before
        except ReadFailed as error:
            return compared, str(error)
        except Difference as error:
            why = _difference_why(store, plan, window, entry, path, place, first)
            if why:
                return compared, why
            tally.find("live differs", place.topic, place.partition, error.offset, str(error), path.name)
    return compared, why


def _difference_why(
    store: ObjectStore, plan: RecoveryPlan, window: ComparedWindow, entry: Entry, path: LiveLogs, place: TopicPartition, first: int
) -> str:
    """Why a difference may be none: both sides live on meanwhile. "" when it is one."""
    try:
        if path.bounds(place).start > first:
            return "the live log was shortened meanwhile"
        held = ManifestRepository(store).load(PartitionId(plan.source_cluster_id, window.topic_id, window.partition, window.topic))
        is_listed = held is not None and entry.key in {each.key for each in held.head.entries}
        if not is_listed:
            return "the archive has replaced what was restored meanwhile"
    except HeadwaterError as error:
        return f"the difference could not be looked at again: {error}"
    return ""


def archive_alone(whole: RecoveryPlan) -> MeasuredPoint:
    newest = [
        entry.last_timestamp_ms
        for _, partition in places_of(whole)
        for entry in partition.files[-1:]
        if entry.last_timestamp_ms is not None
    ]
    partitions = sum(1 for _ in places_of(whole))
    return MeasuredPoint(source="archive alone", partitions=partitions, newest_record_ms=max(newest, default=None))


def _recovery_point(whole: RecoveryPlan, path: LiveLogs, clock: Clock, alone: MeasuredPoint) -> MeasuredPoint:
    """Of all that was selected. By timestamps only those that are furthest behind are asked about."""
    ends = {
        TopicPartition(topic.topic, partition.partition): partition.next_offset
        for topic, partition in places_of(whole)
        if path.topic_id(topic.topic) == topic.topic_id
    }
    live = path.ends(list(ends))
    lags = [
        Lag(topic=place.topic, partition=place.partition, archived_end=ends[place], live_end=live_end) for place, live_end in live.items()
    ]
    behind = sorted((lag for lag in lags if lag.records), key=lambda lag: -lag.records)
    worst = []
    for lag in behind[:LAGS_MAX]:
        since_ms = path.first_timestamp_ms(TopicPartition(lag.topic, lag.partition), lag.archived_end)
        worst.append(replace(lag, behind_s=None if since_ms is None else max(0.0, (clock.now_ms() - since_ms) / 1000)))
    waits = [lag.behind_s for lag in worst if lag.behind_s is not None]
    return replace(
        alone,
        source="live cluster",
        partitions=len(live),
        behind=len(behind),
        records=sum(lag.records for lag in behind),
        worst_s=max(waits, default=None) if behind else 0.0,
        worst=tuple(worst),
    )
