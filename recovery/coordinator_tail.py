"""The records that recovery writes behind a coordinator's log, so that the coordinator that loads it has nothing left to do.

Behind __transaction_state a tombstone for each transactional id: its producer gets a new id when it begins again, and one that survived
is refused. Behind __consumer_offsets each commit again, and each classic group without members, as of the moment when applying began:
brokers count their age from then. A plan counts these records; they are made of the partition once it is in place.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, NotFound
from headwater_core.files import disk_errors
from manifests.entry import Entry
from recovery.coordinator_logs import read_commits, read_states
from recovery.coordinators import OFFSETS, TRANSACTIONS, CommitPosition, Row
from recovery.log_ends import EndingNotes
from recovery.recovery_plan import PartitionPlan, Place, RecoveryPlan, TopicPlan
from recovery.runs import segment_name


def tail_rows(plan: RecoveryPlan, topic: TopicPlan, partition: PartitionPlan, directory: Path, now_ms: int) -> Sequence[Row]:
    """Return the records that `partition` counts as rewritten.

    directory  holds its segments
    now_ms     when applying the plan began

    Raises CorruptData when they are not as many as the plan says, or a segment cannot be read.
    """
    count = sum(written.rewritten for written in partition.written)
    if not count:
        return ()
    notes = EndingNotes()

    def opened(entry: Entry) -> AbstractContextManager[BinaryIO]:
        path = directory / segment_name(entry.base_offset)
        with disk_errors(path):
            try:
                return path.open("rb")
            except FileNotFoundError as error:
                raise NotFound(f"{path} is gone") from error

    rows: Sequence[Row] = ()
    if topic.topic == TRANSACTIONS:
        rows = [(key, None) for key in sorted(read_states(opened, partition, notes).live)]
    elif topic.topic == OFFSETS:
        rows = list(read_commits(opened, partition, notes).rewritten(now_ms, commit_positions(plan)))
    if notes.texts or len(rows) != count:
        why = "; ".join(notes.texts) or f"{count_text(len(rows), 'record')} to write behind it, the plan counts {count}"
        raise CorruptData(f"{topic.topic}:{partition.partition}", partition.next_offset, why)
    return rows


def commit_positions(plan: RecoveryPlan) -> CommitPosition:
    """Return where commits lie in the logs that `plan` recovers: not beyond their ends, unless they were to be kept as they are."""
    keeps = plan.request.options.keep_offsets
    ends: dict[Place, int] = {(cut.topic, cut.partition): cut.log_end for cut in plan.cut.partitions} if plan.cut else {}
    epochs = {(topic.topic, partition.partition): partition.leader_epoch for topic in plan.topics for partition in topic.partitions}

    def position(topic: str, partition: int, offset: int) -> tuple[int, int]:
        end = ends.get((topic, partition))
        if end is not None and offset > end and not keeps:
            return end, -1
        return offset, epochs.get((topic, partition), -1)

    return position
