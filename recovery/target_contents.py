"""What a target is to hold by its mark, to the last byte, and what of it differs."""

import os
import re
from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping
from pathlib import Path, PurePath

from headwater_core.errors import CorruptData, UnsupportedFormat, VerificationFailed
from headwater_core.files import PARTIAL, disk_errors
from headwater_core.threads import ContextThreads
from recovery import layout
from recovery.cluster_state import copied_state
from recovery.coordinator_tail import tail_rows
from recovery.indexes import Indexes
from recovery.layout import partition_directory, partitions
from recovery.recovery_plan import PartitionPlan, TopicPlan
from recovery.run_check import check_run
from recovery.runs import SEGMENT_SUFFIXES, segment_name
from recovery.target import LOCK, MARK, REASSIGNMENT, Mark, copy_name, plan_name
from recovery.target_files import read_if_there

_AT_A_TIME = 4  # partitions
_SEGMENT_FILE = re.compile(rf"([0-9]{{20}})({'|'.join(map(re.escape, SEGMENT_SUFFIXES))})")


def foreign_files(into: Path, mark: Mark) -> list[Path]:
    """What is there and has no place in the plan, by names alone; a broker may take a directory for a log, so these count as well. What a
    run left that ended while it wrote is no other's."""
    found = [each for directory, names in _top_names(mark).items() for each in _others(into / directory, names)]
    for _, partition, directory in _directories(mark):
        found += _others(into / directory, _PartitionNames(partition))
    return found


def differences(into: Path, mark: Mark) -> list[str]:
    """What a finished recovery left and is not there as it was, and what is there beside it, for people. Reads everything: each batch's
    CRC, and what was digested when it was archived."""

    def of_partition(place: tuple[TopicPlan, PartitionPlan, PurePath]) -> list[str]:
        topic, partition, directory = place
        return list(_partition_differences(into / directory, mark, topic, partition))

    found = [f"{path} does not belong there" for path in foreign_files(into, mark)]
    with ContextThreads(_AT_A_TIME, "recover-compare") as pool:
        found += [each for some in pool.map(of_partition, _directories(mark)) for each in some]
    try:
        state = copied_state(mark.plan, into)
    except (CorruptData, VerificationFailed) as error:
        return [*found, str(error)]
    bootstrap = layout.bootstrap_files(mark.plan, mark.started_ms, state)
    for files in (layout.checkpoint_files(mark.plan), bootstrap, layout.identity_files(mark.plan, mark.directory_id)):
        found += _changed(into, files)
    return found


def _partition_differences(directory: Path, mark: Mark, topic: TopicPlan, partition: PartitionPlan) -> Iterator[str]:
    """Stops at the first segment that differs: what lies beside the last one follows from it."""
    end = None
    for entry in partition.files:
        path = directory / segment_name(entry.base_offset)
        indexes = Indexes(entry.base_offset, layout.index_interval_bytes(topic))
        if not path.is_file():
            yield f"{path} is gone"
            return
        try:
            with disk_errors(path), path.open("rb") as file:
                end = check_run(file, entry, str(path), indexes)
        except (CorruptData, UnsupportedFormat) as error:
            yield str(error)
            return
        yield from _changed(directory, {PurePath(path.with_suffix(suffix).name): each for suffix, each in indexes.files().items()})
    rows = tail_rows(mark.plan, topic, partition, directory, mark.started_ms)
    yield from _changed(directory, layout.partition_files(topic, partition, end, mark.started_ms, rows))


def _changed(directory: Path, files: Mapping[PurePath, bytes]) -> Iterator[str]:
    for name, content in files.items():
        path = directory / name
        if (found := read_if_there(path)) != content:
            yield f"{path} is {'gone' if found is None else 'not what recovery wrote'}"


def _directories(mark: Mark) -> Iterator[tuple[TopicPlan, PartitionPlan, PurePath]]:
    for topic, partition in partitions(mark.plan):
        yield topic, partition, partition_directory(topic, partition)


def _others(directory: Path, names: Container[str]) -> list[Path]:
    with disk_errors(directory):
        try:
            with os.scandir(directory) as found:
                return sorted(Path(each.path) for each in found if each.name not in names and not each.name.endswith(PARTIAL))
        except FileNotFoundError:
            return []


def _top_names(mark: Mark) -> Mapping[PurePath, Container[str]]:
    """Of the target, and of each broker's log directory in it, everything that the plan has a use for."""
    plan = mark.plan
    paths = [PurePath(name) for name in (MARK, LOCK, plan_name(mark.plan_digest))]
    if plan.running is not None:
        paths.append(PurePath(REASSIGNMENT))
    if plan.cluster is not None:
        paths.append(PurePath(copy_name(plan.cluster)))
    paths += [PurePath(broker.directory) for broker in plan.brokers]
    paths += [PurePath(broker.directory, layout.BOOTSTRAP) for broker in plan.targets]
    paths += [*layout.checkpoint_files(plan), *layout.identity_files(plan, mark.directory_id)]
    paths += [directory for _, _, directory in _directories(mark)]
    found: dict[PurePath, set[str]] = {PurePath(): set()}
    for path in paths:
        found.setdefault(path.parent, set()).add(path.name)
    return found


class _PartitionNames:
    """The names that a partition's directory may hold."""

    def __init__(self, partition: PartitionPlan) -> None:
        self._bases = partition.files.base_offsets()
        self._written = {*(each.base_offset for each in partition.written), partition.log_end}

    def __contains__(self, name: object) -> bool:
        if name in layout.PARTITION_NAMES:
            return True
        if (segment := _SEGMENT_FILE.fullmatch(str(name))) is None:
            return False
        base_offset = int(segment[1])
        at = bisect_left(self._bases, base_offset)
        return base_offset in self._written or (at < len(self._bases) and self._bases[at] == base_offset)
