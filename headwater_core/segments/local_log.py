"""What a broker's directory holds, as one look at it found it: plain values, no open files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple

from headwater_core.epochs import EpochHistory
from headwater_core.partition import PartitionId
from headwater_core.segments.metadata.cluster_metadata import PartitionMetadata, Retention


class Generation(NamedTuple):
    """Distinguishes a file from its replacement under the same name (compaction, truncation). Of an active segment only the inode is
    stable.
    """

    inode: int
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSegment:
    """One .log file, of the partition that `directory` holds."""

    base_offset: int
    directory: Path
    size_bytes: int
    generation: Generation
    is_active: bool

    def __post_init__(self) -> None:
        if self.base_offset < 0 or self.size_bytes < 0:
            raise ValueError(f"{self.directory}: base offset {self.base_offset}, {self.size_bytes} bytes")

    @property
    def path(self) -> Path:
        """Made when it is wanted: a look at a log of many segments is about the last few."""
        return self.directory / f"{self.base_offset:020}.log"

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".index")


class SegmentRange(NamedTuple):
    """A segment, and the offset at which the next one begins; None for the active segment."""

    segment: LocalSegment
    end: int | None


class Glimpse(NamedTuple):
    """What shows from outside that a partition has changed, apart from bytes beyond its high watermark.

    directory  the log directory that it is in
    files      when its own directory and its epoch history were last changed; None when that is too short ago to be sure
    configs    the topic's own settings; broker_configs: those of its broker, and of all brokers, which hold where it has none
    """

    directory: Path
    high_watermark: int | None
    log_start: int | None
    cleaned_to: int | None
    files: tuple[int, int] | None
    topic_id: str | None
    configs: Mapping[str, str] | None
    leadership: PartitionMetadata | None
    broker_configs: tuple[Mapping[str, str], ...] = ()

    def is_as(self, earlier: "Glimpse") -> bool:
        """Has nothing happened in between?"""
        return self.files is not None and self == earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLog:
    """One partition directory. Segments are in offset order; the last is the active one.

    high_watermark  first offset not known to be replicated, from the checkpoint: up to 5 s old, so that after a truncation it
                    may be ahead for as long; None when no checkpoint names the partition: then nothing may be archived
    checkpoint_ms   when that checkpoint was written, in milliseconds since the epoch; None when that is not known
    log_start       first offset a client may read: the checkpoint's, else the first segment's base offset
    cleaned_to      first offset the cleaner has not visited (cleaner-offset-checkpoint), None when never compacted
    delete_retention_ms  how long the cleaner keeps a tombstone at least; None when the metadata log does not say
    retention       what the metadata log says of it; None when it says nothing, or no broker deletes anything here
    leadership      what the broker's own metadata log says; None when it is not known
    metadata_end    up to where in the metadata log that was read; None when there is none
    settled         False while .swap files are there: a compaction is in the middle of its renames
    leftovers       names of those .swap files when there is no broker to finish the compaction
    glimpse         how it looked from outside before the look
    """

    partition: PartitionId
    directory: Path
    segments: tuple[LocalSegment, ...]
    high_watermark: int | None
    log_start: int
    epochs: EpochHistory
    cleaned_to: int | None = None
    compacted: bool = False  # the topic's cleanup.policy names compact, as far as the metadata log says
    compacted_only: bool = False  # and nothing else: its broker deletes no records on request
    delete_retention_ms: int | None = None
    retention: Retention | None = None
    leadership: "Leadership | None" = None
    metadata_end: int | None = None
    leadership_unread: bool = False  # the broker's metadata log is there and cannot be read: who leads is not known then
    settled: bool = True
    leftovers: tuple[str, ...] = ()
    glimpse: Glimpse | None = field(default=None, compare=False, repr=False)
    checkpoint_ms: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """A checkpoint may be older than another one, so that a high watermark below the log start is possible."""
        if self.log_start < 0 or any(each is not None and each < 0 for each in (self.high_watermark, self.cleaned_to)):
            raise ValueError(f"log start {self.log_start}, high watermark {self.high_watermark}, cleaned to {self.cleaned_to}")
        if any(before.base_offset >= after.base_offset for before, after in pairwise(self.segments)):
            raise ValueError(f"segments out of order: {[each.base_offset for each in self.segments]}")

    @property
    def local_start(self) -> int:
        """Base of the first local segment; the log start when there is none."""
        return self.segments[0].base_offset if self.segments else self.log_start

    @property
    def start_offset(self) -> int:
        """First offset this log offers.

        The checkpoint is up to a minute old. Retention may have moved since, so the first file counts too; and a log that was
        truncated below the checkpoint, by an unclean election, begins earlier than it says. The epoch history is cut at once when
        the log start moves, so it is believed.
        """
        first = self.epochs.first_offset
        return max(self.local_start, self.log_start if first is None else min(self.log_start, first))

    def segments_from(self, offset: int) -> Iterator[SegmentRange]:
        """The segment whose range holds `offset`, and those after it."""
        for segment, following in zip_longest(self.segments, self.segments[1:]):
            if following is None or following.base_offset > offset:
                yield SegmentRange(segment, following.base_offset if following else None)

    @property
    def topic_policy_proves_compaction(self) -> bool:
        return self.compacted or self.cleaned_to is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """What the metadata log says of one partition, seen from this node."""

    leader: int  # broker id, -1 while there is none
    leader_epoch: int
    node: int  # this directory's own broker id
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.leader < -1 or self.leader_epoch < -1:
            raise ValueError(f"leader {self.leader}, leader epoch {self.leader_epoch}")

    @property
    def is_ours(self) -> bool:
        return self.leader == self.node

    @property
    def all_in_sync(self) -> bool:
        return set(self.replicas) <= set(self.in_sync)
