"""Transactions that were committed and come back in part: partitions are archived at different moments.

A COMMIT in one log, and records without one in another, or none where the coordinator names the partition. Nothing can make them whole: no
archive proves that it has all of a transaction's records before it has the marker behind them. So what has no marker is aborted, and the
transaction is named, or every log ends before it.

An end of a transaction is known by its epoch. With transactions of version 2 each has its own, one above that of its data (KIP-890). Those
of version 1 share one: there it is the first that is not older than the open records, as a producer has one transaction at a time. The
marker before it may be younger than these records: commits return before their markers are written. It has a counterpart in the log in
which they are open.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.coordinator_records import TransactionState
from headwater_core.threads import ContextThreads
from manifests.entry import Entry
from recovery.coordinators import TRANSACTIONS, Commitment
from recovery.cut import TornTransaction
from recovery.end_markers import EndMarker, markers_in
from recovery.local_part import OPEN_RUNS_MAX
from recovery.open_transactions import DAMAGE, Open, RunIndexes
from recovery.recovery_plan import PartitionPlan, Place

_RUNS_MIN = 8  # of a log that are searched from its end on, whichever times their records have
_SPAN_MS = 3_600_000  # how much older than its marker a record may be: Kafka's limit for a transaction is 15 minutes
_TWINS_APART_MS = 1_000  # the same where they are taken for one without further evidence
_MARKERS_APART_MS = 10_000  # how far from each other the markers of one transaction may be: leaders write them, each by its own clock


class TornFound(NamedTuple):
    """ends: where logs end that are cut before the transactions"""

    torn: tuple[TornTransaction, ...]
    ends: Mapping[Place, int]


@dataclass(slots=True)
class _Parts:
    """One transaction, by what is found of it."""

    producer_id: int
    producer_epoch: int
    transactional_id: str = ""
    committed: dict[Place, EndMarker] = field(default_factory=dict)
    missing: dict[Place, int] = field(default_factory=dict)

    def is_one_with(self, other: "_Parts") -> bool:
        """Are these parts of one transaction, given that their epoch is one, and that they are of version 1?"""
        same = self.committed.keys() & other.committed.keys()
        is_complete_there = self.committed.keys() & other.missing.keys() or other.committed.keys() & self.missing.keys()
        return bool(same) and not is_complete_there and all(self.committed[log] == other.committed[log] for log in same)

    def add(self, other: "_Parts") -> None:
        self.transactional_id = other.transactional_id or self.transactional_id
        self.committed |= other.committed
        self.missing = other.missing | self.missing


class _Found:
    """Transactions that may be torn. An epoch is that of one transaction of version 2, and of any number of version 1: these are told apart
    by their markers."""

    def __init__(self) -> None:
        self._parts: list[_Parts] = []
        self._exact: dict[tuple[int, int], _Parts] = {}
        self._marked: defaultdict[tuple[Place, EndMarker], list[_Parts]] = defaultdict(list)

    def add(self, added: _Parts, *, is_exact: bool) -> None:
        """Add to what is found of a transaction. is_exact: it is of version 2"""
        key = added.producer_id, added.producer_epoch
        if is_exact:
            known = self._exact.get(key)
        else:
            marked = (parts for marker in added.committed.items() for parts in self._marked.get(marker, ()))
            known = next((parts for parts in marked if parts.is_one_with(added)), None)
        new = added.committed.items() - (known.committed.items() if known is not None else ())
        if known is None:
            known = added
            self._parts.append(known)
        else:
            known.add(added)
        if is_exact:
            self._exact[key] = known
        else:
            for marker in new:
                self._marked[marker].append(known)

    def torn(self) -> list[_Parts]:
        torn = (parts for parts in self._parts if parts.committed and parts.missing)
        return sorted(torn, key=lambda parts: (parts.producer_id, parts.producer_epoch))


class _EpochMarkers:
    """The markers of one epoch of a producer in one log, by time."""

    def __init__(self, markers: Iterable[EndMarker]) -> None:
        self._markers = sorted(markers, key=lambda marker: (marker.timestamp_ms, marker.offset))
        self._times = [marker.timestamp_ms for marker in self._markers]
        self._first = _first_from(self._markers)
        self._commits = [marker for marker in self._markers if marker.is_commit]
        self._commit_times = [marker.timestamp_ms for marker in self._commits]

    @property
    def first(self) -> EndMarker:
        return self._first[0]

    def since(self, time_ms: int) -> EndMarker | None:
        """Return the first in the log of those that are not older."""
        at = bisect_left(self._times, time_ms)
        return self._first[at] if at < len(self._first) else None

    def nearest_commit(self, time_ms: int) -> EndMarker | None:
        at = bisect_left(self._commit_times, time_ms)
        return min(self._commits[max(0, at - 1) : at + 1], key=lambda marker: abs(marker.timestamp_ms - time_ms), default=None)


class _ProducerMarkers:
    """The markers of one producer in one log."""

    def __init__(self, markers: Sequence[EndMarker]) -> None:
        self.all = markers
        by_epoch: defaultdict[int, list[EndMarker]] = defaultdict(list)
        for marker in markers:
            by_epoch[marker.producer_epoch].append(marker)
        self._epochs = sorted(by_epoch)
        self._by_epoch = {epoch: _EpochMarkers(by_epoch[epoch]) for epoch in self._epochs}
        self._first = _first_from([min(by_epoch[epoch], key=lambda marker: marker.offset) for epoch in self._epochs])

    def nearest_commit(self, epoch: int, time_ms: int) -> EndMarker | None:
        return self._by_epoch[epoch].nearest_commit(time_ms) if epoch in self._by_epoch else None

    def of(self, epoch: int) -> EndMarker | None:
        """Return the first of this epoch."""
        return self._by_epoch[epoch].first if epoch in self._by_epoch else None

    def above(self, epoch: int) -> EndMarker | None:
        """Return the first of any later epoch."""
        at = bisect_right(self._epochs, epoch)
        return self._first[at] if at < len(self._first) else None

    def since(self, epoch: int, time_ms: int) -> EndMarker | None:
        """Return the first of this or a later epoch that is not older."""
        later = (self._by_epoch[each].since(time_ms) for each in self._epochs[bisect_left(self._epochs, epoch) :])
        return min((marker for marker in later if marker is not None), key=lambda marker: marker.offset, default=None)


def _first_from(markers: Sequence[EndMarker]) -> list[EndMarker]:
    """Return for each of them the one of the least offset from there on."""
    first = list(markers)
    for at in reversed(range(len(first) - 1)):
        first[at] = min(first[at], first[at + 1], key=lambda marker: marker.offset)
    return first


_NONE = _ProducerMarkers(())


class _Searched(NamedTuple):
    """One log. markers: by producer; is_emptied: retention has removed everything, so nothing is missing"""

    markers: Mapping[int, _ProducerMarkers]
    is_emptied: bool

    def of(self, producer_id: int) -> _ProducerMarkers:
        return self.markers.get(producer_id, _NONE)


MayBeTorn = Callable[[Commitment], bool]


def may_be_torn(partitions: Mapping[Place, PartitionPlan], *, shortened: bool = False) -> MayBeTorn:
    """Return whether a commitment's transaction may have a part that was not archived: nothing in that partition is as young.

    shortened  the partitions may yet be cut
    """
    newest = {} if shortened else _newest(partitions)

    def check(commitment: Commitment) -> bool:
        since_ms = commitment.state.updated_ms
        return any(newest.get(log, -1) < since_ms for log in commitment.partitions if log in partitions)

    return check


def _newest(partitions: Mapping[Place, PartitionPlan]) -> Mapping[Place, int]:
    def newest_of(plan: PartitionPlan) -> int:
        if plan.left is not None and plan.newest_ms is not None:
            return plan.newest_ms  # of what stays in the archive
        return max((entry.newest_ms for entry in plan.files if entry.newest_ms is not None), default=-1)

    return {log: newest_of(plan) for log, plan in partitions.items()}


def find_torn(
    store: ObjectStore,
    pool: ContextThreads,
    planned: Mapping[Place, PartitionPlan],
    partitions: Mapping[Place, PartitionPlan],
    runs_of: Callable[[Place, PartitionPlan], Sequence[Entry]],
    ended: Sequence[tuple[Place, Open]],
    commitments: Iterable[Commitment],
) -> TornFound:
    """Return the transactions that come back in part.

    planned      the partitions before they were cut
    partitions   as they are recovered, by topic and partition
    runs_of      their runs, with the newest of what stays in the archive below them
    ended        what is open there, or was before they were cut
    commitments  of which may_be_torn is true, and transactions that the coordinator had not decided yet

    Reads indexes of the logs' last runs, and those runs that have a marker of the producers concerned.
    """
    check = may_be_torn(partitions)
    suspected = [commitment for commitment in commitments if not commitment.state.is_committed or check(commitment)]
    since: dict[int, int] = {}
    for commitment in suspected:
        state = commitment.state
        since[state.marked_id] = min(since.get(state.marked_id, state.started_ms), state.started_ms)
    shortened = [(log, planned[log], plan.next_offset) for log, plan in partitions.items() if plan.next_offset < planned[log].next_offset]
    away = {log: _cut_away(store, before, end) for log, before, end in shortened}
    lost = [(log, marker) for log, (commits, _) in away.items() for marker in commits]
    ended = [*ended, *((log, transaction) for log, (_, unended) in away.items() for transaction in unended)]
    for _, marker in lost:
        oldest_ms = marker.timestamp_ms - _MARKERS_APART_MS
        since[marker.producer_id] = min(since.get(marker.producer_id, oldest_ms), oldest_ms)
    for _, transaction in ended:
        since[transaction.producer_id] = min(since.get(transaction.producer_id, transaction.last_ms), transaction.last_ms)
    if not since:
        return TornFound((), {})

    def search(item: tuple[Place, PartitionPlan]) -> tuple[Place, _Searched]:
        runs, markers = runs_of(*item), defaultdict[int, list[EndMarker]](list)
        for marker in _end_markers(store, runs, since):
            markers[marker.producer_id].append(marker)
        by_producer = {producer_id: _ProducerMarkers(of_producer) for producer_id, of_producer in markers.items()}
        log, plan = item
        return log, _Searched(by_producer, is_emptied=not runs and plan.next_offset > 0 and (plan.end is None or plan.below_retention > 0))

    searched = dict(pool.map(search, [item for item in partitions.items() if item[0][0] != TRANSACTIONS]))
    found = _Found()
    for log, transaction in ended:
        if commits := dict(_commits_of(transaction, log, searched)):
            epoch = transaction.producer_epoch or 0
            added = _Parts(transaction.producer_id, epoch, committed=commits, missing={log: transaction.first_offset})
            found.add(added, is_exact=any(marker.producer_epoch > epoch for marker in commits.values()))
    gone = defaultdict[tuple[Place, int], list[EndMarker]](list)
    for log, marker in lost:
        gone[log, marker.producer_id].append(marker)
    for log, marker in lost:
        mine = [*gone[log, marker.producer_id], *searched[log].of(marker.producer_id).all] if log in searched else [marker]
        _add_cut(found, log, marker, mine, partitions[log].next_offset, searched)
    newest = _newest(partitions)
    for commitment in suspected:
        _add_commitment(found, commitment, partitions, newest, searched)
    torn = found.torn()
    ends: dict[Place, int] = {}
    for parts in torn:
        for log, marker in parts.committed.items():
            first = marker.first_offset if marker.first_offset >= 0 else marker.offset
            ends[log] = min(first, ends.get(log, first))
    return TornFound(tuple(map(_torn_of, torn)), ends)


def _commits_of(transaction: Open, log: Place, searched: Mapping[Place, _Searched]) -> Iterator[tuple[Place, EndMarker]]:
    """Yield the COMMITs of `transaction`, which is open in `log`, in other logs; and behind a gap in its own."""
    epoch = transaction.producer_epoch
    all_ends = (marker for each in searched.values() for marker in each.of(transaction.producer_id).all)
    is_version_1 = any(marker.producer_epoch == marker.data_epoch == epoch for marker in all_ends)
    behind = [
        (other, marker)
        for other, each in searched.items()
        for marker in each.of(transaction.producer_id).all
        if marker.data_epoch in (-1, epoch) and (other != log or marker.offset > transaction.first_offset)
    ]
    exact = [
        (other, marker)
        for other, marker in behind
        if epoch is not None and marker.producer_epoch == epoch + 1 and marker.is_commit
        if marker.data_epoch == epoch or (other != log and not is_version_1)
    ]
    if exact:
        yield from exact
        return
    others = [(other, marker) for other, marker in behind if other != log]
    mine = searched[log].of(transaction.producer_id).all if log in searched else ()
    earlier = (marker for marker in mine if marker.offset < transaction.first_offset)
    before = max(earlier, key=lambda marker: marker.offset, default=None)
    ends: dict[Place, EndMarker] = {}
    for other in sorted({other for other, _ in others}):
        found = sorted((marker for at, marker in others if at == other and marker.producer_epoch == epoch), key=lambda each: each.offset)
        if (end := _first_after(transaction, before, found)) is not None:
            ends[other] = end
    own = [marker for other, marker in behind if other == log]
    if own and not ends:  # no other log shows that it ended before
        following = min(own, key=lambda marker: marker.offset)
        is_in_time = following.timestamp_ms - transaction.last_ms <= _SPAN_MS
        if following.producer_epoch == following.data_epoch == epoch and is_in_time:
            ends[log] = following
    first = min(ends.values(), key=lambda marker: (marker.timestamp_ms, not marker.is_commit), default=None)
    if first is not None and first.is_commit:
        until_ms = first.timestamp_ms + _MARKERS_APART_MS
        yield from ((other, marker) for other, marker in ends.items() if marker.is_commit and marker.timestamp_ms <= until_ms)


def _first_after(transaction: Open, before: EndMarker | None, found: Sequence[EndMarker]) -> EndMarker | None:
    """Return the first marker of another log that may end the open transaction.

    before  the marker before it, in the log in which it is open
    found   of the same producer and epoch, in order
    """
    if before is not None and found:
        at, twin = min(enumerate(found), key=lambda each: abs(each[1].timestamp_ms - before.timestamp_ms))
        if abs(twin.timestamp_ms - before.timestamp_ms) <= _TWINS_APART_MS and twin.data_ms < transaction.last_ms:
            found = found[at + 1 :]
    return next((marker for marker in found if max(marker.data_ms, marker.timestamp_ms) >= transaction.last_ms), None)


def _add_cut(found: _Found, log: Place, lost: EndMarker, mine: Sequence[EndMarker], end: int, searched: Mapping[Place, _Searched]) -> None:
    """Add a transaction whose COMMIT was cut away in one log, where the others have it.

    mine  all markers of its producer there: of version 1 two markers are of one transaction where each is the other's nearest
    """
    is_exact = 0 <= lost.data_epoch < lost.producer_epoch
    added = _Parts(lost.producer_id, lost.producer_epoch - is_exact, missing={log: max(lost.first_offset, end)})
    for other, each in searched.items():
        nearest = None if other == log else each.of(lost.producer_id).nearest_commit(lost.producer_epoch, lost.timestamp_ms)
        if nearest is not None and (is_exact or _are_twins(nearest, lost, mine)):
            added.committed[other] = nearest
    if added.committed:
        found.add(added, is_exact=is_exact)


def _are_twins(one: EndMarker, other: EndMarker, all_there: Iterable[EndMarker]) -> bool:
    """all_there: in the log of `other`"""
    apart_ms = abs(one.timestamp_ms - other.timestamp_ms)
    return apart_ms <= _MARKERS_APART_MS and all(abs(one.timestamp_ms - each.timestamp_ms) >= apart_ms for each in all_there)


def _add_commitment(
    found: _Found,
    commitment: Commitment,
    partitions: Mapping[Place, PartitionPlan],
    newest: Mapping[Place, int],
    searched: Mapping[Place, _Searched],
) -> None:
    """Add what the coordinator says: which partitions the transaction has, and that it is committed."""
    state = commitment.state
    added = _Parts(state.marked_id, state.data_epoch, commitment.transactional_id)
    named = commitment.partitions & searched.keys()
    ends = {log: _marker_of(state, searched[log].of(state.marked_id)) for log in sorted(named if state.is_committed else searched)}
    added.committed = {log: marker for log, marker in ends.items() if marker is not None and marker.is_commit}
    decided_ms = max([state.updated_ms, *(marker.timestamp_ms for marker in added.committed.values() if not state.is_committed)])
    for log, marker in ends.items():
        if marker is None and log in named and not searched[log].is_emptied and newest[log] < decided_ms:
            added.missing[log] = partitions[log].next_offset
    if added.committed or _is_exact(state):
        found.add(added, is_exact=_is_exact(state))


def _is_exact(state: TransactionState) -> bool:
    return state.marker_epoch > state.data_epoch


def _marker_of(state: TransactionState, markers: _ProducerMarkers) -> EndMarker | None:
    """Return the marker that shows that a log goes on behind the transaction, its own where there is one."""
    if _is_exact(state):
        return markers.of(state.marker_epoch) or markers.above(state.marker_epoch)
    return markers.since(state.marker_epoch, state.started_ms)


def _torn_of(parts: _Parts) -> TornTransaction:
    committed, missing = sorted(parts.committed), sorted(parts.missing)
    return TornTransaction(
        transactional_id=parts.transactional_id,
        producer_id=parts.producer_id,
        producer_epoch=parts.producer_epoch,
        committed=tuple(f"{topic}:{number}" for topic, number in committed),
        markers=tuple(parts.committed[log].offset for log in committed),
        missing=tuple(f"{topic}:{number}" for topic, number in missing),
        missing_from=tuple(parts.missing[log] for log in missing),
    )


def _cut_away(store: ObjectStore, before: PartitionPlan, end: int) -> tuple[list[EndMarker], list[Open]]:
    """Return the COMMITs from offset `end` on, of transactions with records in this log, and the transactions with records there whose end
    cannot be read: it may lie in a run that is lost, or in a gap."""
    entries, commits, unended = before.listed, list[EndMarker](), list[Open]()
    indexes = RunIndexes(store, entries)
    following: dict[int, EndMarker] = {}  # the next marker of each producer
    for at in reversed(range(len(entries))):
        if entries[at].next_offset <= end:
            break
        with suppress(*DAMAGE):
            if not entries[at].gap:
                markers = [*markers_in(indexes, at, None)] if entries[at].max_producer_id >= 0 else []
                following |= {marker.producer_id: marker for marker in reversed(markers)}
                commits += (marker for marker in markers if marker.is_commit and marker.offset >= end and marker.first_offset >= 0)
                continue
        if at == 0 or entries[at - 1].gap or entries[at - 1].open_from is None:
            continue
        with suppress(*DAMAGE):
            for opened in indexes.open_after(at - 1, []):
                ends = following.get(opened.producer_id)
                if opened.first_offset >= end and ends is None:
                    unended.append(opened)
                elif opened.first_offset >= end and ends is not None and ends.is_commit and ends.first_offset < 0:
                    commits.append(ends._replace(first_offset=opened.first_offset))  # its data lie before the gap
    return commits, unended


def _end_markers(store: ObjectStore, entries: Sequence[Entry], since: Mapping[int, int]) -> Iterator[EndMarker]:
    """Yield markers of the producers in one log, from its end back to where they can be of their transactions.

    OPEN_RUNS_MAX runs are searched at most: one transaction that hangs for months would have every index of every log read. A run that
    cannot be read says nothing: it is left out of the recovery, and its end decided again.

    since  the oldest time that matters, by producer id
    """
    oldest_ms, lowest_id = min(since.values()) - _SPAN_MS, min(since)
    searched, indexes = 0, RunIndexes(store, entries)
    for at in reversed(range(len(entries))):
        entry = entries[at]
        if entry.gap:
            continue
        if searched == OPEN_RUNS_MAX:
            return
        if searched >= _RUNS_MIN and entry.newest_ms is not None and entry.newest_ms < oldest_ms:
            return
        searched += 1
        if entry.max_producer_id < lowest_id:
            continue
        try:
            marked = {state.producer_id for state in indexes.of(at).producers if state.coordinator_epoch >= 0}
        except DAMAGE:
            marked = set(since)  # the run may be readable, if not those before it
        try:
            if wanted := marked & since.keys():
                yield from markers_in(indexes, at, wanted)
        except DAMAGE:
            continue
