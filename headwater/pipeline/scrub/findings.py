"""What a check found wrong, and what sort of wrong it is."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Of objects, of what heads say, of the other documents; and what could not be looked at, which is no damage."""

    MISSING = "missing"
    TRUNCATED = "truncated"
    TOO_LONG = "too-long"
    FLIPPED = "flipped"  # the right length, other bytes; or a batch that contradicts its own checksum
    SWAPPED = "swapped"  # whole, and another object's content
    EXTRA = "extra"  # no head lists it
    INDEX = "index"  # whole, and no index of these data
    DISAGREES = "disagrees"  # whole, and not what the head says of it
    GAP = "gap"
    OVERLAP = "overlap"
    EPOCHS = "epochs"  # leader epochs that fall
    HEAD = "head"
    NO_MANIFEST = "no-manifest"
    DOCUMENT = "document"  # of a topic, or of the bucket
    UNEXAMINED = "unexamined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    topic, partition  whose: partition None for a topic's own documents, topic "" for what belongs to none
    found_digest      of what lies under the key instead, when that could be read whole; "" otherwise
    """

    kind: Kind
    key: str
    problem: str
    topic: str = ""
    partition: int | None = None
    found_digest: str = ""

    @property
    def damage(self) -> bool:
        return self.kind is not Kind.UNEXAMINED

    def row(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "key": self.key,
            "kind": str(self.kind),
            "problem": self.problem,
            "damage": self.damage,
        }
