"""The keys of a segment's objects, in both variants.

Source: the published proposal to put RocketMQ's tiered segments on S3; docs/formats/chunks.md.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from headwater_core.errors import UsageError
from headwater_core.objectstore.store import ObjectInfo, ObjectStore, check_key

_NUMBER = "0|[1-9][0-9]{0,18}"  # below 2**63
_POSITION = re.compile(f"chunk-({_NUMBER})")
_BASES = {
    "append": re.compile(f"seg-({_NUMBER})/(?:segment|chunk-(?:{_NUMBER}))"),
    "fixed": re.compile(f"({_NUMBER})(?:-seg|/chunk-(?:{_NUMBER}))"),
}


class Variant(Enum):
    """How a segment is cut: an object for each commit, or chunks of one size, the last of which grows."""

    APPEND = "append"
    FIXED = "fixed"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"{value!r} is not one of {', '.join(each.value for each in cls)}")


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """Where one segment lies.

    queue      directory of the queue: {cluster}/{broker}/{topic}/{queue}
    file_type  commitLog, consumeQueue or index
    base       of the segment, as its name has it
    """

    queue: str
    file_type: str
    base: int
    variant: Variant

    def __post_init__(self) -> None:
        if self.base < 0 or "/" in self.file_type:
            raise UsageError(f"no segment: {self.file_type[:40]!r} from {self.base} on")
        check_key(self.segment_key)

    @property
    def prefix(self) -> str:
        """Of its chunks, with the slash: without it, another base may begin with this one."""
        return f"{_stem(self.queue, self.file_type, self.variant)}{self.base}/"

    @property
    def segment_key(self) -> str:
        """Of the consolidated object: in the directory of the chunks, or beside it."""
        return f"{self.prefix}segment" if self.variant is Variant.APPEND else f"{self.prefix[:-1]}-seg"

    def chunk_key(self, position: int) -> str:
        return f"{self.prefix}chunk-{position}"

    def position_of(self, key: str) -> int | None:
        """The number in a chunk's key; None for anything else."""
        found = _POSITION.fullmatch(key.removeprefix(self.prefix)) if key.startswith(self.prefix) else None
        return int(found[1]) if found else None


def find_bases(store: ObjectStore, queue: str, file_type: str, variant: Variant) -> list[int]:
    """The bases of all segments of a queue that the store lists, in ascending order."""
    stem = f"{queue}/{file_type}/" if variant is Variant.APPEND else _stem(queue, file_type, variant)
    return sorted(set(_bases(store.list(stem), stem, variant)))


def _bases(listing: Iterable[ObjectInfo], stem: str, variant: Variant) -> Iterable[int]:
    for info in listing:
        if found := _BASES[variant.value].fullmatch(info.key.removeprefix(stem)):
            yield int(found[1])


def _stem(queue: str, file_type: str, variant: Variant) -> str:
    """What stands before the base in all keys of a queue's segments."""
    return f"{queue}/{file_type}/seg-" if variant is Variant.APPEND else f"{queue}/{file_type}-"
