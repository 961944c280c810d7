"""The steps that an archiver may take next: values, each checked where it is made (ValueError).

A step is an intention. Whether a segment really holds a batch for it is seen only when it is opened; a step without substance
gives way to the next one.
"""

from dataclasses import dataclass

from headwater_core.errors import HeadwaterError
from headwater_core.segments.local_log import LocalSegment
from manifests.entry import Entry


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is to be done now, and why. compared: log and archive were, and agree; else nothing follows from the look."""

    reason: str
    compared: bool = True


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing is archived until a person has done what `error` says."""

    error: HeadwaterError


@dataclass(frozen=True, slots=True)
class ClaimPartition:
    """Take the next fence; `leader_epoch` is the highest one followed from then on."""

    start_offset: int
    leader_epoch: int

    def __post_init__(self) -> None:
        if self.start_offset < 0 or self.leader_epoch < -1:
            raise ValueError(f"impossible claim: {self}")


@dataclass(frozen=True, slots=True)
class CutEntries:
    """Supersede what is live from `at` on, up to the entry that begins at `end`; None: all of it."""

    at: int
    leader_epoch: int
    end: int | None = None

    def __post_init__(self) -> None:
        if self.at < 0 or self.leader_epoch < -1 or (self.end is not None and self.end <= self.at):
            raise ValueError(f"offsets out of order: {self}")


@dataclass(frozen=True, slots=True)
class Replace:
    """Archive again what is live from `first` on; all of it takes its place in one commit. At the archive's start: the whole of it."""

    first: int
    reason: str  # for people


@dataclass(frozen=True, slots=True)
class Revive:
    """Make a superseded run live again, whole batches below `end`."""

    entry: Entry
    end: int

    def __post_init__(self) -> None:
        if not self.entry.base_offset < self.end <= self.entry.next_offset:
            raise ValueError(f"nothing to revive below {self.end} in {self.entry.base_offset} to {self.entry.last_offset}")


@dataclass(frozen=True, slots=True)
class RecordGap:
    """Record that no log holds [first, last] any more; both are inclusive."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"offsets out of order: {self}")


@dataclass(frozen=True, slots=True)
class Follow:
    """Go on with the object that is written while it fills: it may take what is committed below `end`, from `first` on at its begin."""

    first: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end:
            raise ValueError(f"offsets out of order: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Archive whole batches of one segment.

    first      offset the new entry begins at
    read_from  first offset the log still offers; the run begins with the batch that holds it
    end        only batches wholly below it
    cover_end  the entry may cover offsets up to here that hold no batch; None where nothing proves that compaction removed them
    refills    the gap entry that the run replaces, in whole or in part
    """

    segment: LocalSegment
    first: int
    read_from: int
    end: int
    cover_end: int | None = None
    refills: Entry | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.read_from < self.end <= (self.end if self.cover_end is None else self.cover_end):
            raise ValueError(f"offsets out of order: {self}")


Step = Idle | Stop | ClaimPartition | CutEntries | Replace | Revive | RecordGap | Follow | Upload
