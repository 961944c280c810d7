"""What each leader epoch wrote of archived offsets: neighbouring entries of one epoch are one span."""

from collections.abc import Iterable
from typing import NamedTuple

from manifests.entry import Entry


class EpochSpan(NamedTuple):
    """The records of one leader epoch, both offsets inclusive; is it the last epoch of its entry?"""

    epoch: int
    first_offset: int
    last_offset: int
    ends_entry: bool


def spans_of_entry(entry: Entry) -> tuple[EpochSpan, ...]:
    """None for a gap, and for an entry that does not know its epochs."""
    if len(entry.epochs) == 1:  # nearly all: this is done for each entry of a head
        ((epoch, first),) = entry.epochs
        return (EpochSpan(epoch, first, entry.last_offset, True),)
    ends = (*(first - 1 for _, first in entry.epochs[1:]), entry.last_offset)
    last = len(entry.epochs) - 1
    return tuple(EpochSpan(epoch, first, end, at == last) for at, ((epoch, first), end) in enumerate(zip(entry.epochs, ends, strict=False)))


def join_spans(spans: Iterable[EpochSpan]) -> list[EpochSpan]:
    """An epoch that continues in the next entry is one span, which ends as the later one does."""
    joined: list[EpochSpan] = []
    for span in spans:
        if joined and joined[-1].epoch == span.epoch:
            joined[-1] = EpochSpan(span.epoch, joined[-1].first_offset, span.last_offset, span.ends_entry)
        else:
            joined.append(span)
    return joined
