"""Where recovered logs end: transactions that are open there, and offsets that groups committed beyond.

Tails are archived at different moments. A log that ends inside a transaction stops every reader of committed data there, for
ever, unless a coordinator comes back that knows of it; a group that committed more than came back would skip what is
produced next.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple

from msgspec.structs import replace

from archival.entries import part_of
from headwater_core.errors import CorruptData, NotFound, UnsupportedFormat
from headwater_core.files import disk_errors
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from headwater_core.segments.records import decode_batch
from headwater_core.segments.run_scan import scan_run
from headwater_core.segments.runindex import RunIndex, decode_index
from headwater_core.segments.transactions import OpenTransaction
from manifests.head import Entry
from recovery.coordinators import OFFSETS, TRANSACTIONS, Commits, States
from recovery.plan import Abort, Commit, OffsetAhead, PartitionPlan, RecoveryPlan, TopicPlan, Written
from recovery.runs import download

_READERS = 8
_SHARE_GROUPS = "__share_group_state"
_SHOWN = 20  # of the groups that are ahead; the plan lists them all
_DAMAGE = (CorruptData, NotFound, UnsupportedFormat)

Place = tuple[str, int]  # topic, partition


class Open(NamedTuple):
    """A transaction without its end. producer_epoch None: nothing tells it any more."""

    producer_id: int
    first_offset: int
    producer_epoch: int | None
    coordinator_epoch: int


def with_endings(plan: RecoveryPlan, store: ObjectStore) -> RecoveryPlan:
    """`plan`, with what recovery writes where logs end. What was decided before is decided anew.

    Reads the archive: the indexes of runs that end inside a transaction, and all of __consumer_offsets and __transaction_state
    that is planned. What is damaged there is noted.
    """
    topics = {topic.topic: topic for topic in plan.topics}
    notes: list[str] = []
    with ThreadPoolExecutor(_READERS, "recover-endings") as pool:
        states = States()
        for each in pool.map(lambda partition: _states(store, partition, notes), _partitions(topics, TRANSACTIONS)):
            states.current |= each.current
            states.unknown |= each.unknown
        ends = _Ends(store, plan, states.unfinished(), notes)
        places = [(topic, partition) for topic in plan.topics for partition in topic.partitions]
        ended = dict(zip(((t.topic, p.partition) for t, p in places), pool.map(lambda place: ends.of(*place), places), strict=True))
        log_ends = {place: partition.log_end for place, partition in ended.items()}
        mine = [partition for place, partition in ended.items() if place[0] == OFFSETS]
        found = list(pool.map(lambda partition: _commits(store, partition, notes), mine))
    ahead: list[OffsetAhead] = []
    for partition, commits in zip(mine, found, strict=True):
        moved, beyond = _clamped(commits, log_ends)
        ahead += beyond
        if moved and not plan.request.options.keep_offsets:
            ended[OFFSETS, partition.partition] = _with_commits(partition, moved)
    unknown = states.unknown.union(*(commits.unknown for commits in found))
    notes = sorted(notes) + list(_notes(plan, ahead, unknown))
    return replace(
        plan,
        topics=tuple(
            replace(topic, partitions=tuple(ended[topic.topic, partition.partition] for partition in topic.partitions))
            for topic in plan.topics
        ),
        offsets_ahead=tuple(ahead),
        endings=tuple(notes),
    )


def _partitions(topics: Mapping[str, TopicPlan], name: str) -> Sequence[PartitionPlan]:
    return topics[name].partitions if name in topics else ()


def _notes(plan: RecoveryPlan, ahead: Sequence[OffsetAhead], unknown: Iterable[str]) -> Iterator[str]:
    what = "they stay, as was asked" if plan.request.options.keep_offsets else "they are set back to the end"
    if ahead:
        yield f"{len(ahead)} committed offsets lie beyond the end of the recovered logs, where new records would be skipped: {what}"
    for each in ahead[:_SHOWN]:
        yield f"group {each.group} has committed {each.offset} of {each.topic}:{each.partition}, which ends at {each.log_end}"
    if len(ahead) > _SHOWN:
        yield f"{len(ahead) - _SHOWN} more groups and partitions are in the plan, offsets_ahead"
    for kind in sorted(unknown):
        yield f"{kind}: left as it is, this version cannot read it"
    if any(topic.topic == _SHARE_GROUPS and topic.records for topic in plan.topics):
        yield f"share groups keep their place in {_SHARE_GROUPS}, which is recovered as it is and not compared with the ends of the logs"


# Transactions


class _Ends:
    """Decides how partitions end. unfinished: by place the producers whose transactions the recovered coordinator ends."""

    def __init__(self, store: ObjectStore, plan: RecoveryPlan, unfinished: Mapping[Place, frozenset[int]], notes: list[str]) -> None:
        self._store, self._unfinished, self._notes = store, unfinished, notes
        self._how = plan.request.options.open_transactions

    def of(self, topic: TopicPlan, partition: PartitionPlan) -> PartitionPlan:
        partition = replace(partition, written=(), open_from=None)
        if all(entry.open_from is None for entry in partition.entries):
            return partition
        place, where = (topic.topic, partition.partition), f"{topic.topic}:{partition.partition}"
        known = self._unfinished.get(place, frozenset())
        try:
            if self._how == "cut":
                partition = self._cut(partition, known, where)
            return self._ended(partition, known, place, where)
        except _DAMAGE as error:
            self._notes.append(f"{where}: which transactions are open where it ends cannot be read, and they stay open: {error}")
            return replace(partition, open_from=_open_from(partition))

    def _ended(self, partition: PartitionPlan, known: frozenset[int], place: Place, where: str) -> PartitionPlan:
        """With an ABORT marker for every transaction that nobody else ends, where the log ends and where a gap begins: what ended in a
        gap, nobody knows, and the producer's next marker would end both."""
        entries = partition.entries
        files = [at for at, entry in enumerate(entries) if not entry.gap]
        written: list[Written] = []
        left: list[int] = []
        for at in files:
            gap = entries[at + 1] if at + 1 < len(entries) else None
            is_last = at == files[-1]
            if entries[at].open_from is None or (gap is not None and not gap.gap):
                continue
            found = open_after(self._store, entries, at)
            ours = [each for each in found if not (is_last and each.producer_id in known)]
            room = len(ours) if gap is None else gap.next_offset - gap.base_offset
            if self._how == "keep" or room < len(ours) or any(each.producer_epoch is None for each in ours):
                left += [each.first_offset for each in found]
                self._notes.append(_left_open(*place, min(each.first_offset for each in found)))
                continue
            if is_last and len(ours) < len(found):
                left += [each.first_offset for each in found if each not in ours]
                self._notes.append(f"{where} ends inside {len(found) - len(ours)} transactions, which the recovered coordinator ends")
            if ours:
                written.append(
                    Written(
                        base_offset=partition.next_offset if gap is None else gap.base_offset,
                        leader_epoch=partition.leader_epoch + 1 if gap is None else _last_epoch(entries[at]),
                        aborts=tuple(
                            Abort(
                                producer_id=each.producer_id,
                                producer_epoch=each.producer_epoch or 0,
                                coordinator_epoch=max(0, each.coordinator_epoch),
                            )
                            for each in ours
                        ),
                    )
                )
                which = "where it ends" if is_last else f"before the gap at offset {written[-1].base_offset}"
                first = min(each.first_offset for each in ours)
                self._notes.append(
                    f"{where}: {len(ours)} transactions are open {which}, from offset {first} on; "
                    "their ends were not archived, and they are aborted"
                )
        return replace(partition, written=tuple(written), open_from=max(min(left), partition.start_offset) if left else None)

    def _cut(self, partition: PartitionPlan, known: frozenset[int], where: str) -> PartitionPlan:
        """Without everything from the first transaction on that nobody ends; what is cut may have ended an earlier one."""
        entries, end = list(partition.entries), partition.next_offset
        while entries and entries[-1].open_from is not None:
            found = [each for each in open_after(self._store, entries, len(entries) - 1) if each.producer_id not in known]
            if not found:
                break
            end = min(each.first_offset for each in found)
            while entries and entries[-1].base_offset >= end:
                entries.pop()
            if entries and end <= entries[-1].last_offset:
                at = len(entries) - 1
                with fetched(self._store, entries[at]) as file:
                    before = _open_before(self._store, entries, at)
                    scan = scan_run(file, start=0, end=entries[at].live_bytes, open_before=before, up_to=end, where=entries[at].key)
                if scan is None:
                    entries.pop()
                else:
                    entries[at] = part_of(entries[at], scan, end)
        if end == partition.next_offset:
            return partition
        end = entries[-1].next_offset if entries else end
        if end <= partition.start_offset:
            entries, end = [], partition.start_offset
        gone = partition.records - sum(entry.records for entry in entries)
        self._notes.append(
            f"{where} is cut at offset {end}, where transactions begin whose ends were not archived: {gone} records are left out"
        )
        return replace(partition, entries=tuple(entries), next_offset=end)


def _left_open(topic: str, partition: int, offset: int) -> str:
    return (
        f"{topic}:{partition} ends inside a transaction whose end was not archived: readers with read_committed stop at offset {offset} "
        f"until `kafka-transactions.sh abort --topic {topic} --partition {partition} --start-offset {offset}`"
    )


def _open_from(partition: PartitionPlan) -> int | None:
    found = next((entry.open_from for entry in reversed(partition.entries) if not entry.gap), None)
    return None if found is None else max(found, partition.start_offset)


def _last_epoch(entry: Entry) -> int:
    return entry.epochs[-1][0] if entry.epochs else -1


def open_after(store: ObjectStore, entries: Sequence[Entry], at: int) -> list[Open]:
    """The transactions that are open behind entries[at], and their producers' epochs as far back as they are told."""
    index = run_index(store, entries, at)
    missing = {each.producer_id: each.first_offset for each in index.open_transactions}
    epochs: dict[int, tuple[int, int]] = {}
    back = at
    while True:
        for state in index.producers:
            if state.producer_id in missing and state.producer_id not in epochs:
                epochs[state.producer_id] = state.producer_epoch, state.coordinator_epoch
        left = [first for producer_id, first in missing.items() if producer_id not in epochs]
        if not left or back == 0 or entries[back].gap or entries[back].base_offset <= min(left):
            break
        back -= 1
        if entries[back].gap:
            break
        index = run_index(store, entries, back)
    return [Open(producer_id, first, *epochs.get(producer_id, (None, -1))) for producer_id, first in missing.items()]


def run_index(store: ObjectStore, entries: Sequence[Entry], at: int) -> RunIndex:
    """What the index of entries[at] says of its live part: the object beside it, or the run itself where that is cut or the index is
    missing or damaged. Raises CorruptData or NotFound when neither tells."""
    entry = entries[at]
    if not entry.is_cut and entry.index_key:
        try:
            raw, _ = store.get(entry.index_key)
            if entry.index_digest in ("", digest_of(raw)):
                return decode_index(raw, where=entry.index_key)
        except _DAMAGE:
            pass
    with fetched(store, entry) as file:
        scan = scan_run(file, start=0, end=entry.live_bytes, open_before=_open_before(store, entries, at), where=entry.key)
    if scan is None:
        raise CorruptData(entry.key, 0, "no batches")
    return scan.index


def _open_before(store: ObjectStore, entries: Sequence[Entry], at: int) -> Sequence[OpenTransaction]:
    if at == 0 or entries[at - 1].gap or entries[at - 1].open_from is None:
        return ()
    return run_index(store, entries, at - 1).open_transactions


@contextmanager
def fetched(store: ObjectStore, entry: Entry) -> Iterator[BinaryIO]:
    """The live part of a run, in a file without a name."""
    with disk_errors(Path("a temporary file")), TemporaryFile() as file:
        download(store, entry, file)
        file.flush()
        yield file


# Coordinators


def _states(store: ObjectStore, partition: PartitionPlan, notes: list[str]) -> States:
    states = States()

    def batch(raw: bytes, transaction_of: int | None, where: str) -> None:
        for record in decode_batch(raw, where=where):
            states.record(record, where)

    for entry in partition.files:
        _read(store, f"{TRANSACTIONS}:{partition.partition}", entry, batch, lambda producer_id, ended: None, notes)
    return states


def _commits(store: ObjectStore, partition: PartitionPlan, notes: list[str]) -> Commits:
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
            _read(store, f"{OFFSETS}:{partition.partition}", entry, batch, marker, notes)
    _abort(commits, written.get(partition.next_offset))
    return commits


def _abort(commits: Commits, written: Written | None) -> None:
    for abort in written.aborts if written else ():
        commits.marker(abort.producer_id, commits=False)


def _read(
    store: ObjectStore,
    place: str,
    entry: Entry,
    batch: Callable[[bytes, int | None, str], None],
    marker: Callable[[int, bool], None],
    notes: list[str],
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
    except _DAMAGE as error:
        notes.append(
            f"{place} offsets {entry.base_offset}-{entry.last_offset} cannot be read, so what was committed there is not known: {error}"
        )


def _clamped(commits: Commits, log_ends: Mapping[Place, int]) -> tuple[dict[tuple[str, str, int], Commit], list[OffsetAhead]]:
    """New commits in place of those that lie beyond the logs' ends, and which those are."""
    moved: dict[tuple[str, str, int], Commit] = {}
    ahead: dict[tuple[str, str, int], OffsetAhead] = {}
    for key, committed in commits.outcome():
        end = log_ends.get((key.topic, key.partition))
        if end is None or committed.value.offset <= end:
            continue
        moved[key] = Commit(key=committed.key, value=committed.value.moved_to(end))
        ahead[key] = OffsetAhead(group=key.group, topic=key.topic, partition=key.partition, offset=committed.value.offset, log_end=end)
    return moved, [ahead[key] for key in sorted(ahead)]


def _with_commits(partition: PartitionPlan, moved: Mapping[tuple[str, str, int], Commit]) -> PartitionPlan:
    """Behind everything else: of each key the last record counts."""
    commits = tuple(moved[key] for key in sorted(moved))
    behind = [each for each in partition.written if each.base_offset == partition.next_offset]
    end = behind[0] if behind else Written(base_offset=partition.next_offset, leader_epoch=partition.leader_epoch + 1)
    return replace(partition, written=(*(each for each in partition.written if each is not end), replace(end, commits=commits)))
