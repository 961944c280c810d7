"""The entries of a plan: a sequence that is as good as a tuple of them, and of which next to nothing is in memory.

An entry takes 1.7 KiB as a value, and there may be millions. So they are packed in blocks of BLOCK_ENTRIES, which lie in a file without a
name; only a list's last block, which may be short, stays in memory, and a few that were read last.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import NamedTuple, Self, overload

import msgspec

from manifests.entry import Entry
from recovery.spill_file import Spill, SpilledPiece

BLOCK_ENTRIES = 128
_BLOCKS_AT_HAND = 16  # some 200 KiB each

_spill = Spill()
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[Entry])


class _Block(NamedTuple):
    """Some entries, packed, and what most questions about them want to know. first: base offset of the first one"""

    packed: bytes | SpilledPiece
    first: int
    length: int
    gaps: int
    records: int
    live_bytes: int
    is_open: bool

    def entries(self) -> tuple[Entry, ...]:
        return _unpacked(self.packed)


@lru_cache(maxsize=_BLOCKS_AT_HAND)
def _unpacked(packed: bytes | SpilledPiece) -> tuple[Entry, ...]:
    raw = packed if isinstance(packed, bytes) else packed.read()
    return tuple(_decoder.decode(zlib.decompress(raw)))


def _block(entries: Sequence[Entry]) -> _Block:
    raw = zlib.compress(_encoder.encode(entries), 1)
    return _Block(
        _spill.append(raw) if len(entries) == BLOCK_ENTRIES else raw,
        entries[0].base_offset,
        len(entries),
        sum(entry.gap for entry in entries),
        sum(entry.records for entry in entries),
        sum(entry.live_bytes for entry in entries),
        any(entry.open_from is not None for entry in entries),
    )


class EntryList(Sequence[Entry]):
    """Entries in offset order, gaps among them. A value: equal to any sequence of the same entries.

    Whatever makes one raises DiskFull where the disk for temporary files has no room, and whatever reads one TransientError where that
    disk does not answer.
    """

    __slots__ = ("_blocks", "_ends")

    def __init__(self, blocks: Iterable[_Block] = ()) -> None:
        self._blocks = tuple(blocks)
        self._ends = tuple(accumulate(block.length for block in self._blocks))

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        """`entries` as one of these; itself when it is. They are taken a block at a time."""
        if isinstance(entries, cls):
            return entries
        rest = iter(entries)
        return cls(map(_block, iter(lambda: tuple(islice(rest, BLOCK_ENTRIES)), ())))

    @classmethod
    def of_reversed(cls, entries: Iterable[Entry]) -> Self:
        """`entries`, which come from the last one to the first."""
        rest = iter(entries)
        blocks = [_block(block[::-1]) for block in iter(lambda: tuple(islice(rest, BLOCK_ENTRIES)), ())]
        return cls(reversed(blocks))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Entry]:
        for block in self._blocks:
            yield from block.entries()

    def __reversed__(self) -> Iterator[Entry]:
        for block in reversed(self._blocks):
            yield from reversed(block.entries())

    @overload
    def __getitem__(self, at: int) -> Entry: ...

    @overload
    def __getitem__(self, at: slice) -> "EntryList": ...

    def __getitem__(self, at: "int | slice") -> "Entry | EntryList":
        if isinstance(at, slice):
            return self._slice(range(*at.indices(len(self))))
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError(f"no entry {at} of {len(self)}")
        number = bisect_right(self._ends, place)
        return self._blocks[number].entries()[place - self._ends[number] + self._blocks[number].length]

    def _slice(self, places: range) -> "EntryList":
        """Blocks that are wanted as a whole are shared."""
        if places.step != 1:
            return EntryList.of(self[place] for place in places)
        blocks = []
        for end, block in zip(self._ends, self._blocks, strict=True):
            begin = end - block.length
            low, high = max(places.start - begin, 0), min(places.stop - begin, block.length)
            if low < high:
                blocks.append(block if high - low == block.length else _block(block.entries()[low:high]))
        return EntryList(blocks)

    def __add__(self, other: Iterable[Entry]) -> "EntryList":
        """These, and `other` after them."""
        return EntryList((*self._blocks, *EntryList.of(other)._blocks))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        if isinstance(other, EntryList) and self._blocks == other._blocks:
            return True
        return len(self) == len(other) and all(ours == theirs for ours, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((len(self), self.records, self.live_bytes))

    def __repr__(self) -> str:
        return f"EntryList({list(self[:3])!r}{f' and {len(self) - 3} more' if len(self) > 3 else ''})"

    @property
    def records(self) -> int:
        return sum(block.records for block in self._blocks)

    @property
    def live_bytes(self) -> int:
        return sum(block.live_bytes for block in self._blocks)

    @property
    def is_open(self) -> bool:
        """A transaction is open after one of them."""
        return any(block.is_open for block in self._blocks)

    @property
    def runs(self) -> "EntryList":
        """Those that are no gaps."""
        if not any(block.gaps for block in self._blocks):
            return self
        kept = (block if not block.gaps else tuple(entry for entry in block.entries() if not entry.gap) for block in self._blocks)
        return EntryList(each if isinstance(each, _Block) else _block(each) for each in kept if each)

    @property
    def gaps(self) -> Iterator[Entry]:
        """Those that are."""
        for block in self._blocks:
            if block.gaps:
                yield from (entry for entry in block.entries() if entry.gap)

    def at_base(self, base_offset: int) -> Entry | None:
        """The one that begins there."""
        number = bisect_right(self._blocks, base_offset, key=lambda block: block.first) - 1
        if number < 0:
            return None
        return next((entry for entry in self._blocks[number].entries() if entry.base_offset == base_offset), None)
