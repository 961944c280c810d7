"""What a check found wrong, by kind."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Damage of objects, of heads and of other documents; and what could not be examined, which is no damage."""

    MISSING = "missing"
    TRUNCATED = "truncated"
    TOO_LONG = "too-long"
    FLIPPED = "flipped"  # the right length, but other bytes; or a batch with a wrong checksum
    SWAPPED = "swapped"  # the whole content of another object
    EXTRA = "extra"  # no head lists it
    INDEX = "index"  # undamaged, but not the index of these data
    DISAGREES = "disagrees"  # undamaged, but not what the head says of it
    GAP = "gap"
    OVERLAP = "overlap"
    EPOCHS = "epochs"  # leader epochs that fall
    HEAD = "head"
    PAGE = "page"  # of a manifest: missing or damaged
    NO_MANIFEST = "no-manifest"
    DOCUMENT = "document"  # of a topic, or of the bucket
    UNEXAMINED = "unexamined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    topic, partition  partition None for a topic's own documents, topic "" for what belongs to no topic
    found_digest      digest of the content under the key, when that could be read completely; "" otherwise
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
