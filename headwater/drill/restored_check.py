"""What was restored, read back by each way there is, and compared with the archive."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from msgspec.structs import replace

from headwater.drill.comparison import Difference, ReadFailed, archived_batches, check_index, compare_run, is_listed
from headwater.drill.drill_report import NOTHING, Amount, ComparedWindow
from headwater.drill.drill_tally import REPLACED, DrillTally, amount_of, place_of, places_of
from headwater.drill.equipment import DrillEquipment, SpareBroker
from headwater.drill.read_path import ReadPath, open_directory
from headwater.drill.scratch import Scratch
from headwater_core import milestones
from headwater_core.counts import count_text
from headwater_core.errors import ENVIRONMENT_ERRORS, CorruptData, DiskFull, HeadwaterError, VerificationFailed
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.batches import read_batch_header
from manifests.entry import Entry
from recovery import PartitionPlan, RecoveryPlan, TopicPlan


def check_directory(
    equipment: DrillEquipment, plan: RecoveryPlan, scratch: Scratch, tally: DrillTally, progressed: Callable[[int], object]
) -> float | None:
    """Compare all that lies in the scratch directory with the archive. Returns how long the first record took; None: there was none."""
    clock, first_s = equipment.clock, None
    began_s = clock.monotonic_s()

    def advance(size_bytes: int) -> None:
        nonlocal first_s
        first_s = clock.monotonic_s() - began_s if first_s is None else first_s
        progressed(size_bytes)

    with open_directory(scratch.log_dir, scratch.work_dir) as path:
        for topic, partition in places_of(plan):
            place = TopicPartition(topic.topic, partition.partition)
            identity = PartitionId(plan.source_cluster_id, topic.topic_id, partition.partition, topic.topic)
            _check_bounds(path, topic, partition, tally)
            if not partition.files:
                continue
            compared = NOTHING
            for entry in partition.files:
                compared += _compare_entry(equipment.store, identity, partition, entry, path, tally, advance)
            _check_written(path, place, partition, tally)
            tally.add(path.name, compared)
            tally.windows.append(_window(topic, partition, path.name, compared))
        tally.add(path.name, NOTHING, clock.monotonic_s() - began_s)
    return first_s


def _compare_entry(
    store: ObjectStore,
    identity: PartitionId,
    partition: PartitionPlan,
    entry: Entry,
    path: ReadPath,
    tally: DrillTally,
    progressed: Callable[[int], object],
) -> Amount:
    """Raises what the store raises."""
    place = TopicPartition(identity.topic, identity.partition)
    first, end = max(entry.base_offset, partition.start_offset), entry.next_offset
    damage, compared = None, NOTHING
    try:
        check_index(store, entry)
    except CorruptData as error:
        damage = error
    try:
        compared = compare_run(place, _noted(archived_batches(store, entry), tally), path, first, end, progressed)
    except CorruptData as error:
        damage = error
    except ReadFailed as error:
        tally.blocked.append(str(error))
    except Difference as error:
        tally.find("differs", place.topic, place.partition, error.offset, str(error), path.name)
    if damage is None:
        return compared
    if is_listed(store, identity, entry):
        tally.find_damage(place, entry, damage)
    elif not compared.runs:
        tally.unmet.append(f"{path.name}: {place} offsets {entry.base_offset}-{entry.last_offset}: {REPLACED}")
    return compared


def _noted(batches: Iterator[bytes], tally: DrillTally) -> Iterator[bytes]:
    for batch in batches:
        tally.producer_id_max = max(tally.producer_id_max, read_batch_header(batch).producer_id)
        yield batch


def _check_bounds(path: ReadPath, topic: TopicPlan, partition: PartitionPlan, tally: DrillTally, *, end: bool = True) -> None:
    """end: of a broker's log the end may lie beyond: its coordinators end transactions"""
    place = TopicPartition(topic.topic, partition.partition)
    wanted = (topic.topic_id, partition.start_offset, partition.log_end)
    try:
        bounds = path.bounds(place)
        is_end = bounds.end == partition.log_end if end else bounds.end >= partition.log_end
        if path.topic_id(topic.topic) == topic.topic_id and bounds.start == partition.start_offset and is_end:
            return
        text = f"{path.name} gives topic id {path.topic_id(topic.topic)}, offsets {bounds.start} to {bounds.end}; planned: {wanted}"
    except ENVIRONMENT_ERRORS as error:
        tally.blocked.append(f"{path.name} does not give the bounds of {place}: {error}")
        return
    except HeadwaterError as error:
        text = f"{path.name} does not give its bounds: {error}"
    tally.find("differs", place.topic, place.partition, None, text, path.name)


def _check_written(path: ReadPath, place: TopicPartition, partition: PartitionPlan, tally: DrillTally) -> None:
    """Where the archive has nothing, the log has what recovery wrote, and nothing else."""
    own = [range(each.base_offset, each.next_offset) for each in partition.written]
    ranges = [(first, last + 1) for first, last in partition.gaps]
    ranges += [(partition.next_offset, partition.log_end)] if partition.log_end > partition.next_offset else []
    for first, end in ranges:
        wanted = sum(len(each) for each in own if first <= each.start < end)
        try:
            found = [read_batch_header(batch) for batch in path.batches(place, first, end)]
        except ENVIRONMENT_ERRORS as error:
            tally.blocked.append(f"{path.name} cannot read what recovery wrote at offset {first} of {place}: {error}")
            continue
        except HeadwaterError as error:
            text = f"{path.name} cannot read what recovery wrote at offset {first}: {error}"
        else:
            offsets = sum(header.last_offset_delta + 1 for header in found)
            if offsets == wanted and all(any(header.base_offset in each for each in own) for header in found):
                continue
            text = (
                f"{path.name} gives {count_text(offsets, 'offset')} from {first} to {end}, where the archive has none and recovery "
                f"writes {wanted}"
            )
        tally.find("differs", place.topic, place.partition, first, text, path.name)


def _window(topic: TopicPlan, partition: PartitionPlan, name: str, compared: Amount) -> ComparedWindow:
    files = partition.files
    return ComparedWindow(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partition=partition.partition,
        head_version=partition.manifest_version,
        start_offset=partition.start_offset,
        end_offset=partition.next_offset,
        base_offset=files[0].base_offset,
        last_offset=files[-1].last_offset,
        archived=amount_of(partition),
        by={name: compared},
    )


def check_by_broker(
    equipment: DrillEquipment, plan: RecoveryPlan, scratch: Scratch, tally: DrillTally, ask: Callable[[SpareBroker], object]
) -> None:
    """The same again by a real broker, which starts on the directory; so this comes after everything that reads the directory itself.
    Raises what the store raises, and DiskFull.

    ask  what else it is to be asked, at last
    """
    name, clock = "kafka", equipment.clock
    if equipment.spare is None:
        tally.add(name, NOTHING, why=equipment.no_spare)
        tally.unchecked.append(f"committed offsets, transactional ids and reads of committed data at a broker: {equipment.no_spare}")
        if equipment.needs_spare:
            tally.blocked.append(f"{name}: nothing was compared: {equipment.no_spare}")
        return
    began_s = clock.monotonic_s()
    with ExitStack() as stack:
        try:
            spare = stack.enter_context(equipment.spare(scratch, plan))
            path = spare.path
        except DiskFull:
            raise
        except VerificationFailed as error:
            tally.add(name, NOTHING, clock.monotonic_s() - began_s, f"the broker could not be used: {error}")
            tally.find("differs", "", None, None, f"no broker starts on what was restored: {error}", name)
            return
        except HeadwaterError as error:
            tally.add(name, NOTHING, clock.monotonic_s() - began_s, f"the broker could not be used: {error}")
            tally.blocked.append(f"{name}: no broker could be started: {error}")
            return
        milestones.reached("drill.served")
        for at, window in enumerate(tally.windows):
            topic, partition = place_of(plan, window)
            identity = PartitionId(plan.source_cluster_id, topic.topic_id, partition.partition, topic.topic)
            _check_bounds(path, topic, partition, tally, end=False)
            compared = NOTHING
            for entry in partition.files:
                compared += _compare_entry(equipment.store, identity, partition, entry, path, tally, lambda _: None)
            tally.add(path.name, compared)
            tally.windows[at] = replace(window, by=window.by | {path.name: compared})
        ask(spare)
        tally.add(path.name, NOTHING, clock.monotonic_s() - began_s)
