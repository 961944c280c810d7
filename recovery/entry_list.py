"""The entries of a plan: a sequence that is as good as a tuple of them, and of which next to nothing is in memory.

An entry takes 1.7 KiB as a value, and there may be millions. So they are packed in blocks of BLOCK_ENTRIES, which lie in a file without a
name; small blocks stay in memory, packed, and a few that were read last.
"""

import threading
import weakref
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Self, overload

import msgspec

from manifests.entry import Entry
from recovery.spill_file import Spill, SpilledPiece

BLOCK_ENTRIES = 128
_SPILLED_BYTES_MIN = 1 << 10  # what is smaller takes no more room in memory than what says where it lies
_BLOCKS_AT_HAND = 16  # some 200 KiB each

_spill = Spill()
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[Entry])


class _Block:
    """Some entries, packed, and what most questions about them want to know."""

    __slots__ = ("__weakref__", "_at_hand", "_packed", "gaps", "is_open", "length", "live_bytes", "records")

    def __init__(self, entries: Sequence[Entry]) -> None:
        raw = zlib.compress(_encoder.encode(entries), 1)
        self._packed: bytes | SpilledPiece = raw if len(raw) < _SPILLED_BYTES_MIN else _spill.append(raw)
        self._at_hand: tuple[Entry, ...] | None = None
        self.length = len(entries)
        self.gaps = sum(entry.gap for entry in entries)
        self.records = sum(entry.records for entry in entries)
        self.live_bytes = sum(entry.live_bytes for entry in entries)
        self.is_open = any(entry.open_from is not None for entry in entries)

    def entries(self) -> tuple[Entry, ...]:
        held = self._at_hand
        if held is None:
            raw = self._packed if isinstance(self._packed, bytes) else self._packed.read()
            self._at_hand = held = tuple(_decoder.decode(zlib.decompress(raw)))
            _at_hand.add(self)
        return held


class _AtHand:
    """The blocks that were unpacked last, as long as anyone has them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: deque[weakref.ref[_Block]] = deque()

    def add(self, block: _Block) -> None:
        with self._lock:
            self._blocks.append(weakref.ref(block))
            if len(self._blocks) > _BLOCKS_AT_HAND and (oldest := self._blocks.popleft()()) is not None:
                oldest._at_hand = None


_at_hand = _AtHand()


class EntryList(Sequence[Entry]):
    """Entries in offset order, gaps among them. A value: equal to a tuple or a list of the same entries.

    Whatever makes one raises DiskFull where the disk for temporary files has no room, and whatever reads one TransientError where that
    disk does not answer.
    """

    __slots__ = ("_blocks", "_ends", "_runs")

    def __init__(self, blocks: Iterable[_Block] = ()) -> None:
        self._blocks = tuple(blocks)
        self._ends = tuple(accumulate(block.length for block in self._blocks))
        self._runs: EntryList | None = None  # what `runs` has found: it is asked for again and again

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        """`entries` as one of these; itself when it is. They are taken a block at a time."""
        if isinstance(entries, cls):
            return entries
        rest = iter(entries)
        return cls(map(_Block, iter(lambda: tuple(islice(rest, BLOCK_ENTRIES)), ())))

    @classmethod
    def of_reversed(cls, entries: Iterable[Entry]) -> Self:
        """`entries`, which come from the last one to the first."""
        rest = iter(entries)
        blocks = [_Block(block[::-1]) for block in iter(lambda: tuple(islice(rest, BLOCK_ENTRIES)), ())]
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
                blocks.append(block if high - low == block.length else _Block(block.entries()[low:high]))
        return EntryList(blocks)

    def __add__(self, other: Iterable[Entry]) -> "EntryList":
        """These, and `other` after them."""
        return EntryList((*self._blocks, *EntryList.of(other)._blocks))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EntryList | tuple | list):
            return NotImplemented
        if isinstance(other, EntryList) and self._blocks == other._blocks:
            return True
        return len(self) == len(other) and all(ours == theirs for ours, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a tuple's would be that of all entries

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
        if self._runs is None:
            self._runs = self._without_gaps()
        return self._runs

    def _without_gaps(self) -> "EntryList":
        if not any(block.gaps for block in self._blocks):
            return self
        kept = (block if not block.gaps else tuple(entry for entry in block.entries() if not entry.gap) for block in self._blocks)
        return EntryList(each if isinstance(each, _Block) else _Block(each) for each in kept if each)

    @property
    def gaps(self) -> Iterator[Entry]:
        """Those that are."""
        for block in self._blocks:
            if block.gaps:
                yield from (entry for entry in block.entries() if entry.gap)

    def base_offsets(self) -> Sequence[int]:
        """Of each, 8 bytes."""
        return array("q", (entry.base_offset for entry in self))
