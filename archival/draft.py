"""What is to replace live runs of an archive, run by run, until one commit puts all of it in their place."""

from dataclasses import dataclass
from dataclasses import replace as dataclass_replace

from msgspec.structs import replace

from archival.entries import in_order
from headwater_core.epochs import EpochHistory
from manifests.head import Entry, Head


@dataclass(frozen=True, slots=True)
class Draft:
    """Kept in memory: nothing lists its runs yet.

    of      the head whose runs from offset `first` on are replaced
    epochs  of the log that the runs are read from
    head    `of` with what there is of the new runs instead
    dead    what leaves the live list with the commit
    """

    of: Head
    first: int
    epochs: EpochHistory
    head: Head
    dead: tuple[Entry, ...]

    @classmethod
    def begin(cls, of: Head, first: int, epochs: EpochHistory, live: tuple[Entry, ...], dead: tuple[Entry, ...]) -> "Draft":
        """live, dead  the entries of `of` that stay, and those that are replaced; what ends before the archive's start does not stay"""
        if live and live[-1].next_offset <= of.start_offset:
            live, dead = (), of.entries
        last_offset = live[-1].last_offset if live else of.start_offset - 1
        return cls(of, first, epochs, replace(of, entries=live, last_offset=last_offset), dead)

    def is_for(self, head: Head, first: int, epochs: EpochHistory) -> bool:
        """Does it replace what `head` lists from `first` on, and has the log the same history still?"""
        return (self.of, self.first, self.epochs) == (head, first, epochs)

    def with_run(self, head: Head) -> "Draft":
        """With one more run, which `head` lists."""
        return dataclass_replace(self, head=head)

    @property
    def is_complete(self) -> bool:
        return self.head.next_offset >= self.of.next_offset

    @property
    def replaced(self) -> tuple[Entry, ...]:
        """The runs that were live and are not listed any more. One whose bytes are the same stays."""
        return tuple(entry for entry in self.dead if not entry.gap and _name(entry) not in self._names)

    @property
    def result(self) -> Head:
        """What to commit."""
        listed = [entry for entry in self.of.superseded if _name(entry) not in self._names]
        return replace(self.head, superseded=in_order([*listed, *self.replaced]))

    @property
    def _names(self) -> set[tuple[str, int]]:
        return {_name(entry) for entry in self.head.entries}


def _name(entry: Entry) -> tuple[str, int]:
    return entry.uid, entry.base_offset
