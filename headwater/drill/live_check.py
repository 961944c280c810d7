"""What was restored, compared with the live cluster as far as its logs reach; and how far the archive is behind it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from msgspec.structs import replace

from headwater.drill.comparison import Difference, ReadFailed, archived_batches, compare_records, is_listed
from headwater.drill.drill_report import NOTHING, Amount, ComparedWindow, Lag, MeasuredPoint, NotCompared, numbers_text
from headwater.drill.drill_tally import REPLACED, DrillTally, amount_of, place_of, places_of
from headwater.drill.equipment import DrillEquipment, LiveLogs
from headwater_core.clock import Clock
from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, HeadwaterError, TransientError
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, TopicPartition
from manifests.entry import Entry
from recovery import RecoveryPlan

NAME = "live cluster"
WHYS_MAX = 3  # reasons that one line names
LAGS_MAX = 20  # partitions that a report names, of those that the archive is behind of


class _Silent(Exception):
    """The live cluster does not answer any more."""


def check_live(equipment: DrillEquipment, whole: RecoveryPlan, plan: RecoveryPlan, tally: DrillTally) -> MeasuredPoint:
    """What was restored against the live logs, as far as they reach; and how far the archive is behind them. A cluster that does not
    answer is no damage: a recovery is for when there is none. Raises what the store raises."""
    clock = equipment.clock
    began_s = clock.monotonic_s()
    point = _compare(equipment, whole, plan, tally)
    tally.add(NAME, NOTHING, clock.monotonic_s() - began_s)
    if equipment.needs_live and not tally.paths[NAME].amount.batches:
        whys = sorted({window.live for window in tally.windows} - {""}) or [tally.paths[NAME].why or "there was nothing to compare"]
        tally.unmet.append(f"{NAME}: nothing was compared: {'; '.join(whys[:WHYS_MAX])}")
    return point


def _compare(equipment: DrillEquipment, whole: RecoveryPlan, plan: RecoveryPlan, tally: DrillTally) -> MeasuredPoint:
    alone = archive_alone(whole)

    def ended(why: str) -> MeasuredPoint:
        tally.add(NAME, NOTHING, why=why)
        tally.windows = [window if NAME in window.by else replace(window, live=why) for window in tally.windows]
        return replace(alone, why=why)

    if equipment.live is None:
        return ended(equipment.no_live)
    with ExitStack() as stack:
        try:
            path = stack.enter_context(equipment.live())
        except HeadwaterError as error:
            return ended(f"the live cluster could not be read: {error}")
        if path.cluster_id != plan.source_cluster_id:
            why = f"the brokers are of cluster {path.cluster_id}, the archive is of {plan.source_cluster_id}"
            return ended(f"the live cluster could not be read: {why}")
        try:
            for at, window in enumerate(tally.windows):
                compared, why = _compare_window(equipment.store, plan, window, path, tally)
                tally.add(NAME, compared, why=why and "not everything: see each partition")
                tally.windows[at] = replace(window, by=window.by | {NAME: compared}, live=why)
        except _Silent as error:
            return ended(f"the live cluster could not be read: {error}")
        return _recovery_point(whole, path, equipment.clock, alone)


def _compare_window(
    store: ObjectStore, plan: RecoveryPlan, window: ComparedWindow, path: LiveLogs, tally: DrillTally
) -> tuple[Amount, str]:
    """What was compared, and why not more."""
    topic, partition = place_of(plan, window)
    place, compared = TopicPartition(window.topic, window.partition), NOTHING
    identity = PartitionId(plan.source_cluster_id, window.topic_id, window.partition, window.topic)
    try:
        if why := _why_another(path.topic_id(window.topic), window.topic_id):
            return NOTHING, why
    except TransientError as error:
        raise _Silent(str(error)) from error
    except HeadwaterError as error:
        return NOTHING, str(error)
    try:
        bounds = path.bounds(place)
    except HeadwaterError as error:
        return NOTHING, str(error)
    whys = []
    if bounds.start > partition.start_offset:
        whys.append(f"the live log begins at offset {bounds.start}")
    if bounds.end < partition.next_offset:
        whys.append(f"the live log ends at offset {bounds.end}")
    for entry in partition.files:
        first, end = max(entry.base_offset, partition.start_offset, bounds.start), min(entry.next_offset, bounds.end)
        if first >= end:
            continue
        try:
            compared += compare_records(
                place, archived_batches(store, entry), path, first, end, is_compacted=topic.compacted, progressed=lambda _: None
            )
        except CorruptData as error:
            if not is_listed(store, identity, entry):
                return compared, "; ".join([*whys, REPLACED])
            tally.find_damage(place, entry, error)
            whys.append(f"what is archived at offset {entry.base_offset} is damaged")
        except ReadFailed as error:
            return compared, "; ".join([*whys, str(error)])
        except Difference as error:
            if why := _why_none(store, identity, entry, path, place, error.offset):
                return compared, "; ".join([*whys, why])
            tally.find("live differs", place.topic, place.partition, error.offset, str(error), path.name)
            whys.append(f"it differs at offset {error.offset}")
    if topic.compacted and not whys and compared.records < partition.records:
        whys.append(f"{compared.records} of {count_text(partition.records, 'record')} in the live log, which is compacted")
    return compared, "; ".join(whys)


def _why_another(live_id: str | None, topic_id: str) -> str:
    """Why the live topic is not the archived one; "" when it is."""
    if live_id is None:
        return "the live cluster has no such topic"
    return "" if live_id == topic_id else f"the live topic has id {live_id}, the archive {topic_id}"


def _why_none(store: ObjectStore, identity: PartitionId, entry: Entry, path: LiveLogs, place: TopicPartition, offset: int) -> str:
    """Why a difference at `offset` may be none: both sides live on meanwhile. "" when it is one. Raises what the store raises."""
    try:
        if path.bounds(place).start > offset:
            return "the live log was shortened meanwhile"
    except HeadwaterError as error:
        return f"the difference at offset {offset} could not be looked at again: {error}"
    return "" if is_listed(store, identity, entry) else REPLACED


def archive_alone(whole: RecoveryPlan) -> MeasuredPoint:
    newest = [entry.newest_ms for _, partition in places_of(whole) for entry in partition.files[-1:] if entry.newest_ms is not None]
    partitions = sum(1 for _ in places_of(whole))
    return MeasuredPoint(source="archive alone", partitions=partitions, newest_record_ms=max(newest, default=None))


def _recovery_point(whole: RecoveryPlan, path: LiveLogs, clock: Clock, alone: MeasuredPoint) -> MeasuredPoint:
    """Of all that was selected: each partition is measured, or named with the reason why it could not be. By timestamps only those that
    are furthest behind are asked about."""
    ends: dict[TopicPartition, int] = {}
    whys: dict[TopicPartition, str] = {}
    for topic in whole.topics:
        places = {TopicPartition(topic.topic, each.partition): each.next_offset for each in topic.partitions}
        try:
            why = _why_another(path.topic_id(topic.topic), topic.topic_id)
            if not why:  # a live partition that the archive does not know is behind by all that it has
                places |= {TopicPartition(topic.topic, at): 0 for at in range(len(topic.partitions), path.partitions(topic.topic))}
        except HeadwaterError as error:
            why = str(error)
        if why:
            whys |= dict.fromkeys(places, why)
        else:
            ends |= places
    try:
        live = path.ends(list(ends))
    except HeadwaterError as error:
        live, why = {}, str(error)
    else:
        why = "the live cluster does not say where its log ends"
    whys |= dict.fromkeys(ends.keys() - live.keys(), why)
    unmeasured = tuple(_unmeasured(whole, whys))
    if not live:
        found = "; ".join(sorted(set(whys.values()))[:WHYS_MAX]) or "nothing was selected"
        return replace(alone, unmeasured=unmeasured, why=f"of no partition the live log's end is known: {found}")
    lags = [
        Lag(topic=place.topic, partition=place.partition, archived_end=ends[place], live_end=live_end) for place, live_end in live.items()
    ]
    behind = sorted((lag for lag in lags if lag.records), key=lambda lag: -lag.records)
    worst = [replace(lag, behind_s=_waited_s(path, lag, clock)) for lag in behind[:LAGS_MAX]]
    waits = [lag.behind_s for lag in worst if lag.behind_s is not None]
    return replace(
        alone,
        source="live cluster",
        partitions=len(live),
        behind=len(behind),
        records=sum(lag.records for lag in behind),
        worst_s=max(waits, default=None) if behind or unmeasured else 0.0,
        worst=tuple(worst),
        unmeasured=unmeasured,
    )


def _waited_s(path: LiveLogs, lag: Lag, clock: Clock) -> float | None:
    """None: not known."""
    try:
        since_ms = path.first_timestamp_ms(TopicPartition(lag.topic, lag.partition), lag.archived_end)
    except HeadwaterError:
        return None
    return None if since_ms is None else max(0.0, (clock.now_ms() - since_ms) / 1000)


def _unmeasured(whole: RecoveryPlan, whys: Mapping[TopicPartition, str]) -> Iterator[NotCompared]:
    """By topic and reason; with what is archived of them."""
    archived = {TopicPartition(topic.topic, partition.partition): amount_of(partition) for topic, partition in places_of(whole)}
    groups: dict[tuple[str, str], list[TopicPartition]] = defaultdict(list)
    for place in sorted(whys):
        groups[place.topic, whys[place]].append(place)
    for (topic, why), places in groups.items():
        amount = sum((archived.get(place, NOTHING) for place in places), NOTHING)
        numbers = numbers_text([place.partition for place in places])
        yield NotCompared(topic=topic, partitions=len(places), numbers=numbers, amount=amount, why=why)
