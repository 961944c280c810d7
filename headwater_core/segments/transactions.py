"""Transactions as a log shows them: data of a producer, then, maybe much later, that producer's marker."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class OpenTransaction(NamedTuple):
    """Data without a marker yet."""

    producer_id: int
    first_offset: int


class AbortedTransaction(NamedTuple):
    """A reader of committed data drops the producer's transactional batches from first_offset to last_offset, the marker's own.

    last_stable_offset   as it was right after the marker
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def overlapping(aborted: Iterable[AbortedTransaction], first: int, end: int) -> Iterator[AbortedTransaction]:
    """Those that some offset in [first, end) may belong to."""
    return (each for each in aborted if each.first_offset < end and each.last_offset >= first)


class Transactions:
    """The state at one place of a log, carried forward batch by batch."""

    __slots__ = ("aborted", "first_offsets")

    def __init__(self, open_before: Iterable[OpenTransaction] = ()) -> None:
        self.first_offsets: dict[int, int] = dict(open_before)
        self.aborted: list[AbortedTransaction] = []

    def data(self, producer_id: int, base_offset: int) -> None:
        """A transactional batch of data at `base_offset`."""
        self.first_offsets.setdefault(producer_id, base_offset)

    def marker(self, producer_id: int, offset: int, *, aborts: bool) -> None:
        """A marker for a transaction without data, as an empty commit leaves it, changes nothing."""
        first = self.first_offsets.pop(producer_id, None)
        if first is not None and aborts:
            stable = min(self.first_offsets.values(), default=offset + 1)
            self.aborted.append(AbortedTransaction(producer_id, first, offset, stable))

    @property
    def open(self) -> tuple[OpenTransaction, ...]:
        """Oldest first."""
        return tuple(sorted((OpenTransaction(*item) for item in self.first_offsets.items()), key=lambda each: each.first_offset))

    @property
    def open_from(self) -> int | None:
        return min(self.first_offsets.values(), default=None)
