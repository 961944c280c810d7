"""Which transactions are open after an archived run, by its index, the run itself and the runs before it."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from headwater_core.errors import CorruptData, NotFound, UnsupportedFormat
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.run_scan import scan_run
from headwater_core.segments.runindex import RunIndex
from headwater_core.segments.transactions import OpenTransaction
from manifests.entry import Entry
from recovery.runs import fetched

_MARKED_RUNS = 16  # how far back a producer's last marker is searched for; one that commits at all commits often
DAMAGE = (CorruptData, NotFound, UnsupportedFormat)


class Open(NamedTuple):
    """A transaction without its end. producer_epoch None: it is not known any more. last_ms: greatest timestamp of its last batch; -1: it
    is not known"""

    producer_id: int
    first_offset: int
    producer_epoch: int | None
    coordinator_epoch: int
    last_ms: int = -1


def open_after(store: ObjectStore, entries: Sequence[Entry], at: int, unread: list[Exception] | None = None) -> list[Open]:
    """The transactions that are open after entries[at], and their producers' epochs as far as runs before it have them.

    unread  gets why such a run cannot be read; None: that is raised, as what run_index raises of entries[at] is
    """
    last = run_index(store, entries, at)
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
            index = run_index(store, entries, back)
        except DAMAGE as error:
            if unread is None:
                raise
            unread.append(error)
            index = None
    unmarked = {producer_id for producer_id, (_, coordinator_epoch, _) in epochs.items() if coordinator_epoch < 0}
    marked = _coordinator_epochs(store, entries, back, unmarked)
    found = []
    for producer_id, first in missing.items():
        epoch, coordinator_epoch, last_ms = epochs.get(producer_id, (None, -1, -1))
        found.append(Open(producer_id, first, epoch, marked.get(producer_id, coordinator_epoch), last_ms))
    return found


def _coordinator_epochs(store: ObjectStore, entries: Sequence[Entry], before: int, producer_ids: set[int]) -> dict[int, int]:
    """Return the coordinator epochs of the producers' last markers, as far as the runs right before entries[before] have some: a leader
    wants no lower one. A run that cannot be read says nothing."""
    found: dict[int, int] = {}
    for at in reversed(range(max(0, before - _MARKED_RUNS), before)):
        if found.keys() == producer_ids:
            break
        if entries[at].gap or entries[at].max_producer_id < min(producer_ids):
            continue
        try:
            states = run_index(store, entries, at).producers
        except DAMAGE:
            continue
        for state in states:
            if state.producer_id in producer_ids and state.coordinator_epoch >= 0:
                found.setdefault(state.producer_id, state.coordinator_epoch)
    return found


def run_index(store: ObjectStore, entries: Sequence[Entry], at: int) -> RunIndex:
    """What the index of entries[at] says of its live part: as its layout keeps it, or the run itself where that is cut or the index is
    missing or damaged. Raises CorruptData or NotFound when neither can be read."""
    if (index := _kept_index(store, entries[at])) is not None:
        return index
    start, opened = at, tuple[OpenTransaction, ...]()
    while start > 0 and not entries[start - 1].gap and entries[start - 1].open_from is not None:
        if (index := _kept_index(store, entries[start - 1])) is not None:
            opened = index.open_transactions
            break
        start -= 1  # what is open before it is known by the run before
    before = [entry for entry in entries[start:at] if entry.max_producer_id >= 0]  # without producers nothing begins or ends in one
    for entry in [*before, entries[at]]:
        with fetched(store, entry) as file:
            scan = scan_run(file, start=0, end=entry.live_bytes, open_before=opened, where=entry.key)
        if scan is None:
            raise CorruptData(entry.key, 0, "no batches")
        index, opened = scan.index, scan.index.open_transactions
    assert index is not None
    return index


def _kept_index(store: ObjectStore, entry: Entry) -> RunIndex | None:
    if not entry.is_cut and entry.index_bytes:
        with suppress(*DAMAGE):
            return open_layout(entry.layout).read_offloaded(store, entry).read_index()
    return None


def open_before(store: ObjectStore, entries: Sequence[Entry], at: int) -> Sequence[OpenTransaction]:
    """The transactions that are open before entries[at]. Raises what run_index does."""
    if at == 0 or entries[at - 1].gap or entries[at - 1].open_from is None:
        return ()
    return run_index(store, entries, at - 1).open_transactions
