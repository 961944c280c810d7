"""What a cache has, the least recently used first: its bytes and its open files, counted. Plain bookkeeping, without a look at a disk."""

from collections import OrderedDict
from dataclasses import dataclass

from hydration.runfile import RunFile


@dataclass(slots=True)
class CacheEntry:
    """
    used_s       when it was last used, on the monotonic clock
    file         the cache's own hold; None while it is closed
    trusted      this process wrote or checked the bytes
    memory_only  it did not fit on disk
    sums         of the bytes that were checked
    """

    size_bytes: int
    used_s: float
    file: RunFile | None = None
    trusted: bool = False
    memory_only: bool = False
    sums: bytes = b""

    @property
    def is_in_use(self) -> bool:
        return self.file is not None and self.file.is_in_use


class LruTable:
    """For one thread at a time: its owner has a lock. Only `in` and `get` need none.

    used_bytes  of all entries, and what the owner adds for those to come
    folder_bytes  of the entries in each folder, which is what their names begin with
    evicted     how many entries were forgotten to make room for others
    forgotten   names forgotten since the owner set it; None while that is not noted
    """

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = self.evicted = 0
        self.folder_bytes: dict[str, int] = {}
        self.forgotten: set[str] | None = None
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[str, CacheEntry] = OrderedDict()
        self._open = 0

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def get(self, name: str) -> CacheEntry | None:
        return self._entries.get(name)

    def items(self) -> list[tuple[str, CacheEntry]]:
        """As of now: entries may be forgotten while they are walked."""
        return list(self._entries.items())

    def touch(self, name: str, now_s: float) -> None:
        """It was used just now."""
        self._entries.move_to_end(name)
        self._entries[name].used_s = now_s

    def add(self, name: str, entry: CacheEntry) -> None:
        """In place of the former one, as the most recently used."""
        self.forget(name)
        self._entries[name] = entry
        self.used_bytes += entry.size_bytes
        where = name.partition("/")[0]
        self.folder_bytes[where] = self.folder_bytes.get(where, 0) + entry.size_bytes
        self._open += entry.file is not None

    def take_file(self, entry: CacheEntry, file: RunFile) -> None:
        """The closed entry is open again; the hold is the cache's from now on."""
        entry.file = file
        self._open += 1

    def forget(self, name: str) -> int:
        """Drop the cache's hold; how many bytes the entry had, 0 when there is none."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return 0
        self.used_bytes -= entry.size_bytes
        where = name.partition("/")[0]
        self.folder_bytes[where] -= entry.size_bytes
        if not self.folder_bytes[where]:
            del self.folder_bytes[where]
        if self.forgotten is not None:
            self.forgotten.add(name)
        if entry.file is not None:
            self._open -= 1
            entry.file.drop()
        return entry.size_bytes

    def make_room(self, wanted_bytes: int) -> list[str]:
        """Forget the least recently used until so many more bytes fit, except those in use; their names, for the owner to delete."""
        dropped: list[str] = []
        if self.used_bytes + wanted_bytes <= self._limit_bytes:
            return dropped
        for name, entry in self.items():
            if not entry.is_in_use:
                self.forget(name)
                dropped.append(name)
                self.evicted += 1
                if self.used_bytes + wanted_bytes <= self._limit_bytes:
                    break
        return dropped

    def close_files(self, open_max: int) -> None:
        """When more files are open, close those of the least recently used that are not in use, down to three quarters of it."""
        if self._open <= open_max:
            return
        for entry in self._entries.values():
            if entry.file is not None and not entry.file.is_in_use:
                entry.file.drop()
                entry.file = None
                self._open -= 1
                if self._open <= open_max * 3 // 4:
                    return
