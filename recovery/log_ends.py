"""How a recovered log ends where transactions are open: cut before them, aborted, or left open."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from archival.plan.entries import part_of
from headwater_core.counts import count_text
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.coordinator_records import TransactionState
from headwater_core.segments.run_scan import scan_run
from manifests.entry import Entry
from recovery.coordinators import TRANSACTIONS
from recovery.cut import OpenTransactionAtCut, Outcome
from recovery.end_markers import markers_in
from recovery.entry_list import EntryList
from recovery.open_transactions import DAMAGE, Open, RunIndexes
from recovery.recovery_plan import Abort, PartitionPlan, Place, RecoveryPlan, TopicPlan, Written
from recovery.runs import fetched

PRODUCER_EPOCH_MAX = 2**15 - 1


@dataclass(slots=True)
class EndingNotes:
    """What people should know of where logs end.

    unread        of which places something could not be read
    transactions  that are open there
    ended         those of them that recovery aborts, or ends the log before
    """

    texts: list[str] = field(default_factory=list)
    unread: set[Place] = field(default_factory=set)
    transactions: list[OpenTransactionAtCut] = field(default_factory=list)
    ended: list[tuple[Place, Open]] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.texts.append(text)

    def opened(self, place: Place, found: Iterable[Open], outcome: Outcome) -> None:
        found = list(found)
        self.ended += ((place, transaction) for transaction in found if outcome in ("aborted", "left out"))
        self.transactions += (
            OpenTransactionAtCut(
                topic=place[0],
                partition=place[1],
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                first_offset=each.first_offset,
                outcome=outcome,
            )
            for each in found
        )

    def cannot_read(self, place: Place, text: str) -> None:
        self.texts.append(text)
        self.unread.add(place)


class LogEnds:
    """Decides how partitions end.

    unfinished  by place and producer id, the transactions that the recovered coordinator ends, where open ones are kept
    notes       what is decided is added
    ends        of logs that end earlier, because a transaction that is cut off elsewhere begins there
    """

    def __init__(
        self,
        store: ObjectStore,
        plan: RecoveryPlan,
        unfinished: Mapping[Place, Mapping[int, TransactionState]],
        notes: EndingNotes,
        ends: Mapping[Place, int] | None = None,
    ) -> None:
        self._store, self._unfinished, self._notes, self._ends = store, unfinished, notes, ends or {}
        self._how = plan.request.options.open_transactions
        coordinators = [topic for topic in plan.topics if topic.topic == TRANSACTIONS]
        self._coordinator_epoch = max((partition.leader_epoch for topic in coordinators for partition in topic.partitions), default=0)

    def of(self, topic: TopicPlan, partition: PartitionPlan) -> PartitionPlan:
        """`partition` as it ends, whatever was decided before. What cannot be read is noted, and stays open."""
        place, where = (topic.topic, partition.partition), f"{topic.topic}:{partition.partition}"
        partition = self._to_requested_end(replace(partition, written=(), open_from=None), place, where)
        if not _with_beneath(partition).is_open:
            return partition
        try:
            if self._how == "cut":
                partition = self._cut(partition, place, where)
            readable = replace(partition, beneath=self._readable(partition.beneath, place, where))
            return replace(self._ended(readable, place, where), beneath=partition.beneath)
        except DAMAGE as error:
            self._notes.cannot_read(
                place, f"{where}: which transactions are open where it ends cannot be read, and they stay open: {error}"
            )
            return replace(partition, open_from=_open_from(partition))

    def _readable(self, entries: Sequence[Entry], place: Place, where: str) -> tuple[Entry, ...]:
        """Return what stays in the archive below the log, with gaps for runs that cannot be read: no plan has looked at them before."""
        found: list[Entry] = []
        indexes = RunIndexes(self._store, found)
        for at, entry in enumerate(entries):
            found.append(entry)
            try:
                if not entry.gap and entry.max_producer_id >= 0:  # without producers it has ended nothing
                    indexes.of(at)
            except DAMAGE as error:
                found[at] = Entry(base_offset=entry.base_offset, last_offset=entry.last_offset, gap=True)
                self._notes.cannot_read(
                    place,
                    f"{where}: offsets {entry.base_offset}-{entry.last_offset}, which stay in the archive, cannot be read, nor what ended "
                    f"there: {error}",
                )
        return tuple(found)

    def _to_requested_end(self, partition: PartitionPlan, place: Place, where: str) -> PartitionPlan:
        """Without what follows the end that the user requested. A run that cannot be read to be cut is left out as a whole."""
        end = min(
            (end for end in (partition.end.offset if partition.end else None, self._ends.get(place)) if end is not None), default=None
        )
        if end is None or partition.next_offset <= end:
            return partition
        entries = _beginning_before(partition.listed, end)
        try:
            entries = self._cut_at(RunIndexes(self._store, entries), end)
        except DAMAGE as error:
            self._notes.cannot_read(place, f"{where}: offsets {entries[-1].base_offset}-{entries[-1].last_offset} are left out: {error}")
            entries = entries[:-1]
        return _of_entries(partition, entries, end)

    def _ended(self, partition: PartitionPlan, place: Place, where: str) -> PartitionPlan:
        """With an ABORT marker for every open transaction, where the log ends and where a gap begins: what ended in a gap is not known, and
        the producer's next marker would end both. Unless they are to be kept, none is left to the recovered coordinator: it may know an
        older transaction of the same producer."""
        entries = _with_beneath(partition)
        indexes = RunIndexes(self._store, entries)
        last = next((at for at in reversed(range(len(entries))) if not entries[at].gap), None)
        written: list[Written] = []
        opened: dict[tuple[int, int], Open] = {}  # by producer id and first offset; its epoch may be known before a gap alone
        unplaced: dict[int, Open] = {}  # for their markers a gap had no room, or lies in what stays in the archive
        for at, entry in enumerate(entries):
            is_local, is_last = at >= len(partition.beneath), at == last
            gap = entries[at + 1] if at + 1 < len(entries) and entries[at + 1].gap else None
            if unplaced and entry.max_producer_id >= min(unplaced):
                ended = {state.producer_id for state in indexes.of(at).producers if state.coordinator_epoch >= 0}
                self._notes.ended += ((place, unplaced[producer_id]) for producer_id in _aborted(indexes, at, ended & unplaced.keys()))
                unplaced = {producer_id: unplaced[producer_id] for producer_id in unplaced if producer_id not in ended}
            if self._how == "keep" and opened and entry.max_producer_id >= min(producer_id for producer_id, _ in opened):
                states = indexes.of(at).producers
                ended = {state.producer_id for state in states if state.coordinator_epoch >= 0}
                opened = {key: transaction for key, transaction in opened.items() if transaction.producer_id not in ended}
            if entry.gap or (entry.open_from is None and not (is_last and unplaced)):
                continue
            if gap is None and not is_last:
                continue
            found = self._open_after(indexes, at, place, where)  # none: it began in what is lost, and has no record in what is left
            opened |= {transaction[:2]: transaction for transaction in found if transaction.producer_epoch is not None}
            found = [opened.setdefault(transaction[:2], transaction) for transaction in found]
            if self._how == "keep":  # one of which nothing is left is not open
                is_read = place not in self._notes.unread
                opened = {key: opening for key, opening in opened.items() if not is_read or opening.producer_epoch is not None}
                continue
            ours = {transaction.producer_id: transaction for transaction in found}
            if is_last:
                self._notes.ended += ((place, unplaced[producer_id]) for producer_id in unplaced.keys() & ours.keys())
                ours = unplaced | ours
            if not is_local:
                gap = None
                if not is_last:
                    unplaced |= ours
                    continue
            room = len(ours) if gap is None else gap.next_offset - gap.base_offset
            if len(ours) > room and is_last:
                gap = None  # behind it there is room
            elif len(ours) > room:
                unplaced |= dict(list(ours.items())[room:])
                ours = dict(list(ours.items())[:room])
                self._notes.add(
                    f"{where}: the gap at offset {entry.next_offset} has room for {count_text(room, 'ABORT marker')}; ended with the "
                    f"producer's next marker, or where the log ends: {count_text(len(unplaced), 'more transaction')}"
                )
            if not ours:
                continue
            self._notes.opened(place, ours.values(), "aborted")
            base_offset = partition.next_offset if gap is None else gap.base_offset
            leader_epoch = partition.leader_epoch + 1 if gap is None else _last_epoch(entry)
            aborts = tuple(_abort_of(transaction, self._coordinator_epoch) for transaction in ours.values())
            written.append(Written(base_offset=base_offset, leader_epoch=leader_epoch, aborts=aborts))
            which = "where it ends" if is_last else f"before the gap at offset {base_offset}"
            first = min(transaction.first_offset for transaction in ours.values())
            self._notes.add(
                f"{where}: {count_text(len(ours), 'open transaction')} {which}, from offset {first} on: aborted, as no end was archived"
            )
        if self._how == "keep" and opened:
            first = self._keep(opened.values(), partition, place)
            return replace(partition, written=(), open_from=max(first, partition.start_offset))
        return replace(partition, written=tuple(written), open_from=None)

    def _open_after(self, indexes: RunIndexes, at: int, place: Place, where: str) -> list[Open]:
        unread: list[Exception] = []
        found = indexes.open_after(at, unread)
        if unread:
            self._notes.cannot_read(place, f"{where}: what is open there is known, but not all of its epochs: {unread[0]}")
        return found

    def _keep(self, found: Collection[Open], partition: PartitionPlan, log: Place) -> int:
        """Note that they stay open; return the first offset of all."""
        unfinished, first = self._unfinished.get(log, {}), min(transaction.first_offset for transaction in found)
        known: Collection[int] = {transaction.producer_id for transaction in found}
        if first < partition.start_offset:
            known = self._local_producers(partition, {transaction.producer_id for transaction in found})
        ended = set()
        in_order = sorted(found, key=lambda transaction: transaction.first_offset)
        newest = {transaction.producer_id: transaction.producer_epoch for transaction in in_order}  # as leaders know it
        for transaction in found:
            state = unfinished.get(transaction.producer_id)
            if state is not None and state.ends(newest[transaction.producer_id] if transaction.producer_id in known else None):
                ended.add(transaction)
        self._notes.opened(log, (transaction for transaction in found if transaction not in ended), "left open")
        self._notes.opened(log, (transaction for transaction in found if transaction in ended), "ended by the coordinator")
        self._notes.add(_left_open(*log, first))
        return first

    def _local_producers(self, partition: PartitionPlan, wanted: Set[int]) -> Collection[int]:
        """Those of `wanted` that its leader knows. Of what stays in the archive it knows nothing."""
        known: set[int] = set()
        indexes = RunIndexes(self._store, partition.entries)
        for at in reversed(range(len(partition.entries))):
            if known == wanted:
                break
            if partition.entries[at].max_producer_id >= min(wanted - known):
                known |= wanted & {state.producer_id for state in indexes.of(at).producers}
        return known

    def _cut(self, partition: PartitionPlan, place: Place, where: str) -> PartitionPlan:
        """Without everything from the first open transaction on; what is cut may have ended an earlier one."""
        entries, end, gone = partition.listed, partition.next_offset, list[Open]()
        indexes = RunIndexes(self._store, entries)
        while entries and entries[-1].open_from is not None:
            if not (found := self._open_after(indexes, len(entries) - 1, place, where)):
                break
            end = min(each.first_offset for each in found)
            gone += found
            entries = self._cut_at(indexes, end)
            indexes.cut(entries)
        if end == partition.next_offset:
            return partition
        cut = _of_entries(partition, entries, end)
        self._notes.opened(place, gone, "left out")
        self._notes.add(
            f"{where} is cut at offset {cut.next_offset}, where transactions begin whose ends were not archived; "
            f"left out: {count_text(partition.records - cut.records, 'record')}"
        )
        return cut

    def _cut_at(self, indexes: RunIndexes, end: int) -> EntryList:
        """Their entries without what does not lie wholly below `end`, batch by batch. Raises DAMAGE."""
        entries = _beginning_before(EntryList.of(indexes.entries), end)
        if not entries or end > entries[-1].last_offset:
            return entries
        before, last = entries[:-1], entries[-1]
        if last.gap:
            return before + EntryList.of((replace(last, last_offset=end - 1),))
        with fetched(self._store, last) as file:
            opened = indexes.open_before(len(before))
            scan = scan_run(file, start=0, end=last.live_bytes, open_before=opened, end_offset=end, where=last.key)
        return before if scan is None else before + EntryList.of((part_of(last, scan, end),))


def _aborted(indexes: RunIndexes, at: int, ended: Set[int]) -> Iterator[int]:
    """Return the producers whose first marker in that run is an ABORT, or cannot be read: what a COMMIT ends comes back whole."""
    committed: dict[int, bool] = {}
    with suppress(*DAMAGE):
        for found in markers_in(indexes, at, ended) if ended else ():
            committed.setdefault(found.producer_id, found.is_commit)
    return (producer_id for producer_id in ended if not committed.get(producer_id))


def _with_beneath(partition: PartitionPlan) -> EntryList:
    return EntryList.of(partition.beneath) + partition.entries


def _beginning_before(entries: EntryList, end: int) -> EntryList:
    """Those that begin below `end`."""
    return entries[: bisect_left(entries, end, key=lambda entry: entry.base_offset)]


def _of_entries(partition: PartitionPlan, entries: EntryList, end: int) -> PartitionPlan:
    """`partition` with these of its entries, which end where the last one does; without any, an empty log at `end`. A log does not end
    below its start."""
    end = max(partition.start_offset, entries[-1].next_offset if entries else end)
    if not entries or end == partition.start_offset:
        return replace(partition, entries=(), start_offset=end, next_offset=end)
    return replace(partition, entries=entries, next_offset=end)


def _abort_of(transaction: Open, coordinator_epoch: int) -> Abort:
    """The marker that ends `transaction`. Its epoch is above that of the data, as brokers check it for transactions of version 2, and as it
    does no harm to one of version 1: no producer has the id again (KIP-1228).

    coordinator_epoch  the highest of any that is known: the producer's last marker may lie in what stays in the archive
    """
    epoch = PRODUCER_EPOCH_MAX if transaction.producer_epoch is None else transaction.producer_epoch + 1
    return Abort(
        producer_id=transaction.producer_id,
        producer_epoch=min(epoch, PRODUCER_EPOCH_MAX),
        coordinator_epoch=max(coordinator_epoch, transaction.coordinator_epoch),
    )


def _left_open(topic: str, partition: int, offset: int) -> str:
    return (
        f"{topic}:{partition} ends inside a transaction whose end was not archived: readers with read_committed stop at offset {offset} "
        f"until `kafka-transactions.sh abort --topic {topic} --partition {partition} --start-offset {offset}`"
    )


def _open_from(partition: PartitionPlan) -> int | None:
    found = next((entry.open_from for entry in reversed(_with_beneath(partition)) if not entry.gap), None)
    return None if found is None else max(found, partition.start_offset)


def _last_epoch(entry: Entry) -> int:
    return entry.epochs[-1][0] if entry.epochs else -1
