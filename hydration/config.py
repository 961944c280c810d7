"""How reading is set up."""

from dataclasses import dataclass
from enum import Enum

from headwater_core.errors import UsageError


class ReadPriority(Enum):
    """Which tier is read first, and whether the other one is read at all."""

    LOCAL_FIRST = "local-first"
    LOCAL_ONLY = "local-only"
    OFFLOADED_FIRST = "offloaded-first"
    OFFLOADED_ONLY = "offloaded-only"

    @classmethod
    def _missing_(cls, value: object) -> "ReadPriority":
        """In any case, with `_` for `-`; also the names that Pulsar and its proposal use for the same. Raises ValueError."""
        names = {each.value: each for each in cls} | {
            "bookkeeper-first": cls.LOCAL_FIRST,
            "bookkeeper-only": cls.LOCAL_ONLY,
            "tiered-storage-first": cls.OFFLOADED_FIRST,
            "tiered-storage-only": cls.OFFLOADED_ONLY,
        }
        found = names.get(str(value).strip().lower().replace("_", "-"))
        if found is None:
            raise ValueError(f"{str(value)[:80]!r} is not one of {', '.join(each.value for each in cls)}")
        return found

    @property
    def uses_local(self) -> bool:
        return self is not ReadPriority.OFFLOADED_ONLY

    @property
    def uses_archive(self) -> bool:
        return self is not ReadPriority.LOCAL_ONLY

    @property
    def prefers_archive(self) -> bool:
        return self in (ReadPriority.OFFLOADED_FIRST, ReadPriority.OFFLOADED_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class HydrationConfig:
    """
    cache_bytes        what hydrated chunks may take on disk; what is being downloaded or read comes on top
    cache_ttl_s        a chunk that was not read for so long is dropped
    chunk_bytes        about what one download fetches; a larger batch makes a larger chunk
    readahead_chunks   how far ahead of a sequential reader to download, at most; 0 switches it off
    """

    read_priority: ReadPriority = ReadPriority.LOCAL_FIRST
    cache_bytes: int = 20 << 30
    cache_ttl_s: float = 24 * 3600
    chunk_bytes: int = 4 << 20
    readahead_chunks: int = 8

    def __post_init__(self) -> None:
        if self.cache_bytes < 0 or self.cache_ttl_s <= 0:
            raise UsageError(f"hydration: cache_bytes {self.cache_bytes}, cache_ttl {self.cache_ttl_s:g} s")
        if not 64 << 10 <= self.chunk_bytes <= 1 << 30:
            raise UsageError(f"hydration: chunk_bytes {self.chunk_bytes} is not between 64KiB and 1GiB")
        if not 0 <= self.readahead_chunks <= 64:
            raise UsageError(f"hydration: readahead_chunks {self.readahead_chunks} is not between 0 and 64")
