"""What the coordinators' own topics say, as far as they are recovered, and what is written after them."""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from headwater_core.segments.records import decode_batch
from manifests.entry import Entry
from recovery.coordinators import OFFSETS, TRANSACTIONS, Commits, States
from recovery.log_ends import EndingNotes
from recovery.open_transactions import DAMAGE
from recovery.recovery_plan import Commit, OffsetAhead, PartitionPlan, Place, Written
from recovery.runs import fetched
from recovery.share_groups import SHARE_GROUPS, ShareStates


def read_states(store: ObjectStore, partition: PartitionPlan, notes: EndingNotes) -> States:
    """The transactions that one recovered partition of __transaction_state holds. What cannot be read is added to `notes`."""
    states = States()

    def batch(raw: bytes, transaction_of: int | None, where: str) -> None:
        for record in decode_batch(raw, where=where):
            states.record(record, where)

    for entry in partition.files:
        _read(store, (TRANSACTIONS, partition.partition), entry, batch, lambda producer_id, ended: None, notes)
    return states


def read_shares(store: ObjectStore, partition: PartitionPlan, notes: EndingNotes) -> ShareStates:
    """The states of share groups that one recovered partition of __share_group_state holds. What cannot be read is added to `notes`."""
    states = ShareStates()

    def batch(raw: bytes, transaction_of: int | None, where: str) -> None:
        for record in decode_batch(raw, where=where):
            states.record(record, where)

    for entry in partition.files:
        _read(store, (SHARE_GROUPS, partition.partition), entry, batch, lambda producer_id, ended: None, notes)
    return states


def read_commits(store: ObjectStore, partition: PartitionPlan, notes: EndingNotes) -> Commits:
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
            _read(store, (OFFSETS, partition.partition), entry, batch, marker, notes)
    _abort(commits, written.get(partition.next_offset))
    return commits


def _abort(commits: Commits, written: Written | None) -> None:
    for abort in written.aborts if written else ():
        commits.marker(abort.producer_id, commits=False)


def _read(
    store: ObjectStore,
    place: Place,
    entry: Entry,
    batch: Callable[[bytes, int | None, str], None],
    marker: Callable[[int, bool], None],
    notes: EndingNotes,
) -> None:
    """Every batch of `entry`, in order; what cannot be read is noted."""
    try:
        with fetched(store, entry) as file:
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


def clamped(commits: Commits, log_ends: Mapping[Place, int]) -> tuple[list[Commit], list[OffsetAhead]]:
    """New commits in place of those that lie beyond the logs' ends, and which those are."""
    moved: dict[tuple[str, str, int], Commit] = {}
    ahead: dict[tuple[str, str, int], OffsetAhead] = {}
    for key, committed in commits.outcome():
        end = log_ends.get((key.topic, key.partition))
        if end is None or committed.value.offset <= end:
            continue
        moved[key] = Commit(key=committed.key, value=committed.value.moved_to(end))
        ahead[key] = OffsetAhead(group=key.group, topic=key.topic, partition=key.partition, offset=committed.value.offset, log_end=end)
    return [moved[key] for key in sorted(moved)], [ahead[key] for key in sorted(ahead)]


def with_commits(partition: PartitionPlan, commits: Sequence[Commit]) -> PartitionPlan:
    """`partition` with `commits` after everything else: of each key the last record counts."""
    after = [each for each in partition.written if each.base_offset == partition.next_offset]
    end = after[0] if after else Written(base_offset=partition.next_offset, leader_epoch=partition.leader_epoch + 1)
    return replace(partition, written=(*(each for each in partition.written if each is not end), replace(end, commits=tuple(commits))))
