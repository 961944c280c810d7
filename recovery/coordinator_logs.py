"""What the coordinators' own topics say, as far as they are recovered, and what is written after them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO

from msgspec.structs import replace

from headwater_core.segments.batch_walk import walk
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from headwater_core.segments.records import decode_batch
from manifests.entry import Entry
from recovery.coordinators import OFFSETS, TRANSACTIONS, Commitment, Commits, States
from recovery.log_ends import EndingNotes
from recovery.open_transactions import DAMAGE
from recovery.recovery_plan import Commit, OffsetAhead, PartitionPlan, Place, Written
from recovery.share_groups import SHARE_GROUPS, ShareStates

OpenRun = Callable[[Entry], AbstractContextManager[BinaryIO]]
"""Of an entry: its live part, as a file; it is fetched, or lies in a recovered directory."""


def read_states(
    open_run: OpenRun, partition: PartitionPlan, notes: EndingNotes, may_be_torn: Callable[[Commitment], bool] = lambda commitment: False
) -> States:
    """The transactions that one recovered partition of __transaction_state holds. What cannot be read is added to `notes`."""
    states = States(may_be_torn=may_be_torn)

    def batch(raw: bytes, transaction_of: int | None, where: str) -> None:
        for record in decode_batch(raw, where=where):
            states.record(record, where)

    for entry in partition.files:
        _read(open_run, (TRANSACTIONS, partition.partition), entry, batch, lambda producer_id, ended: None, notes)
    return states


def read_shares(open_run: OpenRun, partition: PartitionPlan, notes: EndingNotes) -> ShareStates:
    """The states of share groups that one recovered partition of __share_group_state holds. What cannot be read is added to `notes`."""
    states = ShareStates()

    def batch(raw: bytes, transaction_of: int | None, where: str) -> None:
        for record in decode_batch(raw, where=where):
            states.record(record, where)

    for entry in partition.files:
        _read(open_run, (SHARE_GROUPS, partition.partition), entry, batch, lambda producer_id, ended: None, notes)
    return states


def read_commits(open_run: OpenRun, partition: PartitionPlan, notes: EndingNotes) -> Commits:
    """As a coordinator will find them in the recovered partition, its gaps and what recovery writes included."""
    commits = Commits()

    def batch(raw: bytes, transaction_of: int | None, where: str) -> None:
        for record in decode_batch(raw, where=where):
            commits.record(record, transaction_of, where)

    def marker(producer_id: int, ended: bool) -> None:
        commits.marker(producer_id, commits=ended)

    written = {each.base_offset: each for each in partition.written}
    for entry in partition.entries:
        if entry.gap:
            _abort(commits, written.get(entry.base_offset))
        else:
            _read(open_run, (OFFSETS, partition.partition), entry, batch, marker, notes)
    _abort(commits, written.get(partition.next_offset))
    return commits


def _abort(commits: Commits, written: Written | None) -> None:
    for abort in written.aborts if written else ():
        commits.marker(abort.producer_id, commits=False)


def _read(
    open_run: OpenRun,
    place: Place,
    entry: Entry,
    batch: Callable[[bytes, int | None, str], None],
    marker: Callable[[int, bool], None],
    notes: EndingNotes,
) -> None:
    """Every batch of `entry`, in order; what cannot be read is noted."""
    try:
        with open_run(entry) as file:
            for position, header in walk(file, 0, entry.live_bytes, where=entry.key):
                file.seek(position)
                raw = file.read(header.size_bytes)
                if not header.is_control:
                    batch(raw, header.producer_id if header.is_transactional else None, entry.key)
                elif header.records and (kind := read_marker(raw, where=entry.key).type) in (ABORT, COMMIT):
                    marker(header.producer_id, kind == COMMIT)
    except DAMAGE as error:
        offsets = f"{place[0]}:{place[1]} offsets {entry.base_offset}-{entry.last_offset}"
        notes.cannot_read(place, f"{offsets} cannot be read, so what was committed there is not known: {error}")


def ahead_of_logs(commits: Commits, log_ends: Mapping[Place, int]) -> list[OffsetAhead]:
    """The commits that lie beyond the logs' ends."""
    found = [
        OffsetAhead(group=key.group, topic=key.topic, partition=key.partition, offset=committed.value.offset, log_end=end)
        for key, committed in commits.outcome()
        if (end := log_ends.get((key.topic, key.partition))) is not None and committed.value.offset > end
    ]
    return sorted(found, key=lambda ahead: (ahead.group, ahead.topic, ahead.partition))


def with_rewritten(partition: PartitionPlan, count: int) -> PartitionPlan:
    """Return `partition` with so many records behind everything else, which are derived from it when it is in place."""
    return _with_end(partition, lambda end: replace(end, rewritten=count)) if count else partition


def with_commits(partition: PartitionPlan, commits: Sequence[Commit]) -> PartitionPlan:
    """`partition` with `commits` after everything else: of each key the last record counts."""
    return _with_end(partition, lambda end: replace(end, commits=tuple(commits)))


def _with_end(partition: PartitionPlan, change: Callable[[Written], Written]) -> PartitionPlan:
    after = [written for written in partition.written if written.base_offset == partition.next_offset]
    end = after[0] if after else Written(base_offset=partition.next_offset, leader_epoch=partition.leader_epoch + 1)
    return replace(partition, written=(*(written for written in partition.written if written is not end), change(end)))
