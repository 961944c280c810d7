"""What an operator may set about archiving."""

from dataclasses import dataclass
from enum import Enum

from headwater_core.errors import UsageError
from headwater_core.layouts import LAYOUT_NAMES, Offloader, open_layout
from headwater_core.layouts.chunks import CHUNK_BYTES, Variant
from headwater_core.layouts.chunks.chunk_handle import COMMIT_BYTES
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.chunks.upload_pool import POOL_BYTES

UPLOAD_BYTES_PER_S_MIN = 1 << 20  # with less, 64 uploads in turn would let a server wait for longer than the 20 s after which S3 gives up

DAY_S = 24 * 3600
GC_INTERVAL_S_MIN = 60  # a round lists what it looks at
SNAPSHOT_INTERVAL_S_MIN = 60
MERGE_BYTES_MIN = 4 << 10
CHUNK_SENDERS_MAX = 64
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 4 << 10, 64 << 20  # a chunk is held while it is sent
OFFLOAD_BUFFER_BYTES_MIN = 1 << 20
FOLLOW_S_MIN, FOLLOW_S_MAX = 0.5, 10.0
MERGE_BYTES_MAX = 1 << 30  # a merge takes that much room in the data directory


class ArchiveMode(Enum):
    """AUTO: the agent archives by itself; MANUAL: only what a command requests, or a trigger releases; OFF: nothing is archived, what is
    archived stays."""

    AUTO = "auto"
    MANUAL = "manual"
    OFF = "off"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"{value!r} is not one of {', '.join(each.value for each in cls)}")


class OffloadMode(Enum):
    """PER_SEGMENT: a segment goes when it is sealed; STREAMING: what is committed goes while it is written (PIP-76)."""

    PER_SEGMENT = "per-segment"
    STREAMING = "streaming"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"{value!r} is not one of {', '.join(each.value for each in cls)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivalConfig:
    """archive         whether anything is
    seal_timeout_s  archive the committed tail of an unfinished segment when it has waited this long
    offload_after_s  a sealed segment waits so long before it goes; None: not for that
    offload_when_local_exceeds  it waits until the local log, from it on, exceeds this size; None: not for that. With both,
                    the first counts; with neither it goes at once, or, where `archive` is MANUAL, by command alone
    offload         "per-segment", or "streaming": what is committed goes into objects that are written while they fill, in a layout of
                    their own
    offload_buffer_bytes  memory for what streaming offload has taken and not sent yet, of all partitions together; when it is full
                    nothing is taken, and the log is read later
    max_segment_bytes  an object of streaming offload is closed when it has so many; in the layout "chunks", append variant, no segment
                    gets longer, but one of a single run
    max_segment_age_s  or when it was begun so long ago
    layout          how new runs lie in objects: "segment", a run as Kafka wrote it and its index beside it; "blocks", one object with
                    both; "chunks", RocketMQ's chunk objects, which become one when a segment is full; "streaming", that of offload =
                    "streaming" alone. What is archived already stays as it is
    chunk_variant   of "chunks": "append", an object for each run, of which several make a segment; "fixed", objects of one size, and a run
                    is a segment
    chunk_bytes     of the fixed variant: how long its chunks are, but a segment's last
    chunks_in_flight  of the fixed variant: so many of one run are sent at once; None: as many as one commit has, see `chunk_senders`
    chunk_commit_bytes  streaming offload in the layout "chunks": a queue's buffer becomes chunks when it has so many
    chunk_commit_age_s  or when its first byte has waited so long
    chunk_pool_bytes  of all queues' buffers together: with so many the largest become chunks, until half of it is left. The bytes lie
                    in the log meanwhile, not in memory
    release         delete locally what is archived: in a directory that we own, or at the broker beside us, by request; None:
                    in a directory that we own only
    release_past_groups  release at the broker what a group has not read too
    release_ignore_groups_after_s  a group without members whose commits have not changed for so long holds nothing back
    release_keep_bytes  the newest so many bytes of a local log are never released
    release_keep_ms  nor is what follows a segment that was written to within so long, or that segment
    begin_anew_epoch  consent: a log that begins in this leader epoch or an older one may supersede an archive that it shares
                    nothing with
    stale_keys_below  consent: keys whose deletion the log has forgotten below this offset may stay in the archive
    recover_from    the key of a topic manifest: an agent over an owned log directory without this topic downloads it, once; of one topic by
                    its name alone
    merge_bytes     small neighbours become objects of up to this size; 0: they stay as they are
    merge_after_s   look for some so long after something was archived
    min_saved_percent  a compacted topic's archive is replaced by what its log has become when that saves so much of its bytes at least;
                    None: not for that
    rescan_s        look at every partition this often, whatever the file system reported
    uploads_in_flight  partitions that are archived at once
    upload_bytes_per_s  of all uploads together; None: as fast as the store takes them
    retention_s     the archive lets go what is older, by its newest record; None: nothing by age
    retention_bytes  as much of a partition stays at least; None: nothing leaves by size
    superseded_retention_s  what dead branches have left stays listed for so long after it was first seen so
    gc_interval_s   how often the archive is trimmed, and orphans are looked for; 0: only when a command requests it
    reader_lease_s  what is not listed any more is deleted after so long: readers that began before may still want it
    """

    archive: ArchiveMode = ArchiveMode.AUTO
    seal_timeout_s: int = 1800
    offload_after_s: int | None = None
    offload_when_local_exceeds: int | None = None
    offload: OffloadMode = OffloadMode.PER_SEGMENT
    offload_buffer_bytes: int = 256 << 20  # places in the log rather than bytes: it holds those of many thousand partitions
    max_segment_bytes: int = 1 << 30  # as Pulsar's brokers have it
    max_segment_age_s: int = 600  # likewise
    layout: str = "segment"
    chunk_variant: Variant = Variant.APPEND
    chunk_bytes: int = CHUNK_BYTES
    chunks_in_flight: int | None = None
    chunk_commit_bytes: int = COMMIT_BYTES
    chunk_commit_age_s: float = 30.0
    chunk_pool_bytes: int = POOL_BYTES
    release: bool | None = None
    release_past_groups: bool = False
    release_ignore_groups_after_s: int = 7 * DAY_S  # as Kafka's offsets.retention.minutes
    release_keep_bytes: int = 0
    release_keep_ms: int = 0
    merge_bytes: int = 64 << 20  # four chunks of a reader's read-ahead; uploaded in a few seconds, so that archiving waits for no merge
    merge_after_s: int = 3600
    min_saved_percent: int | None = None
    rescan_s: int = 30
    begin_anew_epoch: int | None = None
    stale_keys_below: int | None = None
    recover_from: str | None = None
    uploads_in_flight: int = 4  # enough to keep a store busy with small segments, few enough to bound memory
    upload_bytes_per_s: int | None = None
    retention_s: int | None = None
    retention_bytes: int | None = None
    superseded_retention_s: int = 30 * DAY_S
    gc_interval_s: int = DAY_S // 4
    reader_lease_s: int = DAY_S  # plans of Spark live for hours

    def __post_init__(self) -> None:
        if self.layout not in (*LAYOUT_NAMES, "streaming"):
            raise UsageError(f"archival.layout is {self.layout[:40]!r}; one of {', '.join(LAYOUT_NAMES)}")
        if self.seal_timeout_s < 0:
            raise UsageError(f"archival.seal_timeout is {self.seal_timeout_s} s; it cannot be negative")
        for name, trigger in (("offload_after", self.offload_after_s), ("offload_when_local_exceeds", self.offload_when_local_exceeds)):
            if trigger is not None and trigger < 0:
                raise UsageError(f"archival.{name} is {trigger}; it cannot be negative, leave it out for none")
        for name, kept in (("release_keep_bytes", self.release_keep_bytes), ("release_keep_ms", self.release_keep_ms)):
            if kept < 0:
                raise UsageError(f"archival.{name} is {kept}; it cannot be negative")
        if self.release_ignore_groups_after_s < 1:
            raise UsageError(
                f"archival.release_ignore_groups_after is {self.release_ignore_groups_after_s} s; at least 1 s, or set "
                "release_past_groups = true: no group holds anything back"
            )
        for name, most in (("max_segment_bytes", self.max_segment_bytes), ("max_segment_age", self.max_segment_age_s)):
            if most < 1:
                raise UsageError(f"archival.{name} is {most}; at least 1")
        if not CHUNK_BYTES_MIN <= self.chunk_bytes <= CHUNK_BYTES_MAX:
            raise UsageError(f"archival.chunk_bytes is {self.chunk_bytes}; {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}")
        if not CHUNK_BYTES_MIN <= self.chunk_commit_bytes <= CHUNK_BYTES_MAX:
            raise UsageError(f"archival.chunk_commit_bytes is {self.chunk_commit_bytes}; {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}")
        if self.chunk_commit_age_s <= 0 or self.chunk_pool_bytes < CHUNK_BYTES_MIN:
            raise UsageError(
                f"archival: chunk_commit_age {self.chunk_commit_age_s:g} s, chunk_pool_bytes {self.chunk_pool_bytes}; more than 0 s, and "
                f"at least {CHUNK_BYTES_MIN}"
            )
        if self.chunks_in_flight is not None and not 1 <= self.chunks_in_flight <= CHUNK_SENDERS_MAX:
            raise UsageError(f"archival.chunks_in_flight is {self.chunks_in_flight}; 1 to {CHUNK_SENDERS_MAX}")
        if self.offload_buffer_bytes < OFFLOAD_BUFFER_BYTES_MIN:
            raise UsageError(f"archival.offload_buffer_bytes is {self.offload_buffer_bytes}; at least {OFFLOAD_BUFFER_BYTES_MIN}")
        for name, consent in (("begin_anew_epoch", self.begin_anew_epoch), ("stale_keys_below", self.stale_keys_below)):
            if consent is not None and consent < 0:
                raise UsageError(f"archival.{name} is {consent}; it cannot be negative")
        for name, least in (("retention", self.retention_s), ("retention_bytes", self.retention_bytes)):
            if least is not None and least < 1:
                raise UsageError(f"archival.{name} is {least}; leave it out to keep everything")
        for name, time_s in (("superseded_retention", self.superseded_retention_s), ("reader_lease", self.reader_lease_s)):
            if time_s < 0:
                raise UsageError(f"archival.{name} is {time_s} s; it cannot be negative")
        if self.gc_interval_s and self.gc_interval_s < GC_INTERVAL_S_MIN:
            raise UsageError(f"archival.gc_interval is {self.gc_interval_s} s; at least {GC_INTERVAL_S_MIN} s, or 0 for never")
        if not (self.merge_bytes == 0 or MERGE_BYTES_MIN <= self.merge_bytes <= MERGE_BYTES_MAX):
            raise UsageError(f"archival.merge_bytes is {self.merge_bytes}; {MERGE_BYTES_MIN} to {MERGE_BYTES_MAX}, or 0: nothing is merged")
        if self.merge_after_s < 1:
            raise UsageError(f"archival.merge_after is {self.merge_after_s} s; at least 1 s")
        if self.min_saved_percent is not None and not 1 <= self.min_saved_percent <= 99:
            raise UsageError(
                f"archival.min_saved_percent is {self.min_saved_percent}; 1 to 99, or leave it out: nothing is replaced for that"
            )
        if self.rescan_s < 1:
            raise UsageError(f"archival.rescan is {self.rescan_s} s; at least 1 s")
        if not 1 <= self.uploads_in_flight <= 64:
            raise UsageError(f"archival.uploads_in_flight is {self.uploads_in_flight}; 1 to 64")
        if self.upload_bytes_per_s is not None and self.upload_bytes_per_s < UPLOAD_BYTES_PER_S_MIN:
            raise UsageError(
                f"archival.upload_bytes_per_s is {self.upload_bytes_per_s}; at least {UPLOAD_BYTES_PER_S_MIN}, or leave it out"
            )

    @property
    def run_layout(self) -> str:
        """How a run lies in its object when all of it is there before it is uploaded: what streaming leaves is merged, and a gap filled, as
        native objects."""
        return "segment" if self.layout == "streaming" else self.layout

    @property
    def offloader(self) -> Offloader:
        """What writes such runs."""
        if self.run_layout != ChunksLayout.name:
            return open_layout(self.run_layout)
        return ChunksLayout(self.chunk_variant, self.chunk_bytes, segment_bytes=self.max_segment_bytes, senders=self.chunk_senders)

    @property
    def chunk_senders(self) -> int:
        """As many chunks as are sent at once: by default one thread for each chunk of a commit, as RocketMQ's proposal has it."""
        return self.chunks_in_flight or min(max(self.chunk_commit_bytes // self.chunk_bytes, 1), CHUNK_SENDERS_MAX)

    @property
    def follow_s(self) -> float:
        """So often what is committed is taken, where it is archived while it is written: a tenth of its age may pass unseen."""
        return min(self.idle_follow_s, FOLLOW_S_MAX)

    @property
    def idle_follow_s(self) -> float:
        """The same while nothing of it is open: there may be thousands of them."""
        age_s = self.max_segment_age_s if self.layout != ChunksLayout.name else min(self.max_segment_age_s, 3 * self.chunk_commit_age_s)
        return max(age_s / 10, FOLLOW_S_MIN)

    def check_layout(self, *, is_set: bool) -> None:
        """Raises UsageError for a layout that does not go with the offload: streaming has its own, and is the only one that has it.
        is_set: the layout is not the default"""
        if self.offload is OffloadMode.STREAMING and is_set and self.layout not in ("streaming", ChunksLayout.name):
            raise UsageError(
                f'offload = "streaming" has a layout of its own: leave layout = "{self.layout}" out, or set "streaming" or "chunks"'
            )
        if self.offload is OffloadMode.PER_SEGMENT and self.layout == "streaming":
            raise UsageError('layout = "streaming" is that of offload = "streaming": set that, and leave the layout out')


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """snapshots    of the cluster's metadata are archived
    secrets      credentials and passwords are in them, so that a recovered cluster lets in whom the old one let in
    interval_s   at least so long from one to the next
    retention_s  so long they are kept, ever fewer of them; None: without limit
    """

    snapshots: bool = True
    secrets: bool = True
    interval_s: int = SNAPSHOT_INTERVAL_S_MIN
    retention_s: int | None = 30 * DAY_S

    def __post_init__(self) -> None:
        if self.interval_s < SNAPSHOT_INTERVAL_S_MIN:
            raise UsageError(f"cluster.interval is {self.interval_s} s; at least {SNAPSHOT_INTERVAL_S_MIN} s")
        if self.retention_s is not None and self.retention_s < 1:
            raise UsageError(f"cluster.retention is {self.retention_s}; leave it out to keep them without limit")
