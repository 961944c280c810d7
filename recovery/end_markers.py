"""The markers in archived runs, with what they end."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from headwater_core.segments.batch_walk import walk
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from recovery.open_transactions import DAMAGE, RunIndexes
from recovery.runs import fetched


class EndMarker(NamedTuple):
    """A marker as a log has it. data_epoch, data_ms: of the last data of its transaction; -1: there is none, or it is not known.
    first_offset: of that transaction's records in this log; -1: it has none there"""

    producer_id: int
    producer_epoch: int
    offset: int
    is_commit: bool
    timestamp_ms: int
    data_epoch: int
    data_ms: int
    first_offset: int


def markers_in(indexes: RunIndexes, at: int, wanted: Collection[int] | None) -> Iterator[EndMarker]:
    """Yield the markers in one run; wanted: of these producers, None: of all."""
    entries, entry = indexes.entries, indexes.entries[at]
    first_offsets, unknown_from = dict[int, int](), -1
    try:
        first_offsets.update(indexes.open_before(at))
    except DAMAGE:
        unknown_from = entries[at - 1].open_from or 0  # where the oldest of them begins, which is not lost with the run before
    concerned = first_offsets.keys() if wanted is None else first_offsets.keys() & set(wanted)
    try:
        opened = indexes.open_after(at - 1) if concerned else ()
    except DAMAGE:
        opened = ()  # what the markers' data were is not known
    data = {
        transaction.producer_id: (transaction.producer_epoch, transaction.last_ms)
        for transaction in opened
        if transaction.producer_epoch is not None
    }  # epoch and time of each producer's last
    with fetched(indexes.store, entry) as file:
        for position, header in walk(file, 0, entry.live_bytes, where=entry.key):
            producer_id = header.producer_id
            if (wanted is not None and producer_id not in wanted) or not header.is_transactional:
                continue
            if not header.is_control:
                first_offsets.setdefault(producer_id, header.base_offset)
                data[producer_id] = header.producer_epoch, header.max_timestamp_ms
                continue
            file.seek(position)
            kind = read_marker(file.read(header.size_bytes), where=entry.key).type if header.records else -1
            if kind in (ABORT, COMMIT):
                epoch, data_ms = data.pop(producer_id, (-1, -1))
                yield EndMarker(
                    producer_id=producer_id,
                    producer_epoch=header.producer_epoch,
                    offset=header.base_offset,
                    is_commit=kind == COMMIT,
                    timestamp_ms=header.max_timestamp_ms,
                    data_epoch=epoch,
                    data_ms=data_ms,
                    first_offset=first_offsets.pop(producer_id, unknown_from),
                )
