"""Which transactions offsets may belong to, by what an index of a run says."""

from headwater_core.segments.runindex import RunIndex
from headwater_core.segments.transactions import OpenTransaction


def open_at(index: RunIndex, offset: int) -> tuple[OpenTransaction, ...]:
    """Transactions begun before `offset`, which lies in the run or right after it, and not ended by then.

    One that commits later in the run is missing: an index does not list it. It changes no answer, as its marker is
    after `offset` and no abort.
    """
    ended_later = (each for each in index.aborted if each.first_offset < offset <= each.last_offset)
    still = [OpenTransaction(each.producer_id, each.first_offset) for each in ended_later]
    still.extend(each for each in index.open_transactions if each.first_offset < offset)
    return tuple(sorted(still, key=lambda each: each.first_offset))
