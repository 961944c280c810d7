"""Which transactions are open after an archived run, by its index, the run itself and the runs before it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from headwater_core.errors import CorruptData, NotFound, UnsupportedFormat
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.run_scan import scan_run
from headwater_core.segments.runindex import RunIndex, new_points
from headwater_core.segments.transactions import OpenTransaction
from manifests.entry import Entry
from recovery.runs import fetched

_MARKED_RUNS = 16  # how far back a producer's last marker is searched for; one that commits at all commits often
_KEPT_STATES = 1 << 15  # of producers and transactions: 8 MiB of each log
DAMAGE = (CorruptData, NotFound, UnsupportedFormat)


class Open(NamedTuple):
    """A transaction without its end. producer_epoch None: it is not known any more. last_ms: greatest timestamp of its last batch; -1: it
    is not known"""

    producer_id: int
    first_offset: int
    producer_epoch: int | None
    coordinator_epoch: int
    last_ms: int = -1


class RunIndexes:
    """What the indexes of one log's runs say of its producers and transactions. A run without an index is read itself, from the last one
    on that has one; so what was used last, and what is damaged, is kept in mind for the neighbours."""

    def __init__(self, store: ObjectStore, entries: Sequence[Entry]) -> None:
        """entries: more may be appended to them, and one that cannot be read may become a gap"""
        self.store, self.entries = store, entries
        self._known: dict[int, RunIndex] = {}  # what was used last is the last
        self._damaged: dict[int, Exception] = {}
        self._states = 0  # of producers and transactions, in what is known

    def cut(self, entries: Sequence[Entry]) -> None:
        """Go on with fewer entries, of which the last may be cut."""
        self.entries = entries
        for at in [at for at in self._known if at >= len(entries) - 1]:
            self._forget(at)
        self._damaged = {at: error for at, error in self._damaged.items() if at < len(entries) - 1}

    def of(self, at: int) -> RunIndex:
        """What the index of entries[at] says of its live part, without its points: as its layout keeps it, or the run itself where that is
        cut or the index is missing or damaged. Raises CorruptData or NotFound when neither can be read."""
        if (index := self._without_scan(at)) is not None:
            return index
        start, opened, entries = at, tuple[OpenTransaction, ...](), self.entries
        while self._is_open_before(start):
            if (index := self._without_scan(start - 1)) is not None:
                opened = index.open_transactions
                break
            start -= 1  # what is open before it is known by the run before
        before = [earlier for earlier in range(start, at) if entries[earlier].max_producer_id >= 0]  # no other begins or ends anything
        for run in [*before, at]:
            index = self._keep(run, self._scanned(run, opened))
            opened = index.open_transactions
        assert index is not None
        return index

    def open_before(self, at: int) -> Sequence[OpenTransaction]:
        """The transactions that are open before entries[at]. Raises what `of` does."""
        return self.of(at - 1).open_transactions if self._is_open_before(at) else ()

    def open_after(self, at: int, unread: list[Exception] | None = None) -> list[Open]:
        """The transactions that are open after entries[at], and their producers' epochs as far as runs before it have them.

        unread  gets why such a run cannot be read; None: that is raised, as what `of` raises of entries[at] is
        """
        last, entries = self.of(at), self.entries
        index: RunIndex | None = last
        missing = {each.producer_id: each.first_offset for each in last.open_transactions}
        epochs: dict[int, tuple[int, int, int]] = {}
        back = at
        while True:
            for state in index.producers if index is not None else ():
                if state.producer_id not in missing:
                    continue
                producer_epoch, coordinator_epoch, last_ms = epochs.get(state.producer_id, (state.producer_epoch, -1, state.timestamp_ms))
                coordinator_epoch = state.coordinator_epoch if coordinator_epoch < 0 else coordinator_epoch
                epochs[state.producer_id] = producer_epoch, coordinator_epoch, last_ms
            left = [first for producer_id, first in missing.items() if producer_id not in epochs]
            if not left or back == 0 or entries[back].gap or entries[back].base_offset <= min(left):
                break
            back -= 1
            if entries[back].gap:
                break
            try:
                index = self.of(back)
            except DAMAGE as error:
                if unread is None:
                    raise
                unread.append(error)
                index = None
        unmarked = {producer_id for producer_id, (_, coordinator_epoch, _) in epochs.items() if coordinator_epoch < 0}
        marked = self._coordinator_epochs(back, unmarked)
        found = []
        for producer_id, first in missing.items():
            epoch, coordinator_epoch, last_ms = epochs.get(producer_id, (None, -1, -1))
            found.append(Open(producer_id, first, epoch, marked.get(producer_id, coordinator_epoch), last_ms))
        return found

    def _coordinator_epochs(self, before: int, producer_ids: set[int]) -> dict[int, int]:
        """Return the coordinator epochs of the producers' last markers, as far as the runs right before entries[before] have some: a leader
        wants no lower one. A run that cannot be read says nothing."""
        found: dict[int, int] = {}
        for at in reversed(range(max(0, before - _MARKED_RUNS), before)):
            if found.keys() == producer_ids:
                break
            if self.entries[at].gap or self.entries[at].max_producer_id < min(producer_ids):
                continue
            try:
                states = self.of(at).producers
            except DAMAGE:
                continue
            for state in states:
                if state.producer_id in producer_ids and state.coordinator_epoch >= 0:
                    found.setdefault(state.producer_id, state.coordinator_epoch)
        return found

    def _is_open_before(self, at: int) -> bool:
        return at > 0 and not self.entries[at - 1].gap and self.entries[at - 1].open_from is not None

    def _without_scan(self, at: int) -> RunIndex | None:
        """Raises what reading the run itself has raised before."""
        if at in self._damaged:
            raise self._damaged[at]
        if (index := self._known.pop(at, None)) is not None:
            self._known[at] = index
            return index
        entry = self.entries[at]
        if not entry.is_cut and entry.index_bytes:
            with suppress(*DAMAGE):
                return self._keep(at, open_layout(entry.layout).read_offloaded(self.store, entry).read_index())
        return None

    def _scanned(self, at: int, opened: Sequence[OpenTransaction]) -> RunIndex:
        entry = self.entries[at]
        try:
            with fetched(self.store, entry) as file:
                scan = scan_run(file, start=0, end=entry.live_bytes, open_before=opened, where=entry.key)
            if scan is None:
                raise CorruptData(entry.key, 0, "no batches")
        except DAMAGE as error:
            self._damaged[at] = error
            raise
        return scan.index

    def _keep(self, at: int, index: RunIndex) -> RunIndex:
        index = self._known[at] = replace(index, points=new_points(), aborted=(), epochs=())
        self._states += _states_of(index)
        while self._states > _KEPT_STATES and len(self._known) > 1:
            self._forget(next(iter(self._known)))
        return index

    def _forget(self, at: int) -> None:
        self._states -= _states_of(self._known.pop(at))


def _states_of(index: RunIndex) -> int:
    return 1 + len(index.producers) + len(index.open_transactions)
