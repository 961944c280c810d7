"""The limits of one pass: how long a tail waits, where the pass ends, what an operator has consented to."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from archival.config import DAY_S, ArchivalConfig, ArchiveMode, OffloadMode
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunk_handle import CommitLimits

PAUSED = "paused "  # how the reason of a pause begins
EXCLUDED = f"archive = {ArchiveMode.OFF.value}"

MERGE_SPAN_MS = 7 * DAY_S * 1000  # retention counts an entry by its newest record; fifty objects a year are few


class Triggers(NamedTuple):
    """What makes a sealed segment go, as an operator has set it; the first of both that comes.

    after_ms   so long has it been sealed; None: it does not go for that
    log_bytes  more than this lies in the log from its first byte on; None: it does not go for that
    """

    after_ms: int | None
    log_bytes: int | None


class TriggerBound(NamedTuple):
    """What triggers come to for one log at one time: only segments that lie wholly below `end` go.

    tail_after_ms  the committed part of an unfinished one goes when it has waited this long; None: never
    until_ms  when time alone lets the next one go, in milliseconds since the epoch; None: never
    reason    what the next one waits for, for people
    """

    end: int
    tail_after_ms: int | None
    until_ms: int | None
    reason: str


class ChunkCommits(NamedTuple):
    """How a segment of chunks is written while it fills.

    limits   of one commit0
    age_ms   what has gathered becomes one when its first byte has waited so long
    """

    variant: Variant
    limits: CommitLimits
    age_ms: int


class StreamLimits(NamedTuple):
    """When an object that is written while it fills is closed.

    age_ms     after its first record was seen waiting
    completes  at once: what is committed now is all that it gets
    chunks     it is a segment of chunks; None: one object of the layout `streaming`
    """

    segment_bytes: int
    age_ms: int
    completes: bool = False
    chunks: ChunkCommits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """tail_after_ms  archive the committed part of an unfinished segment when it has waited this long; None: never
    end               archive only what lies wholly below this offset; None: everything
    pass_end          what is committed from here on is not of this pass; None: all is
    begin_anew_epoch  a log whose oldest leader epoch is this one, or older, may supersede an archive that it shares nothing with
    stale_keys_below  deletions that a log has forgotten below this offset may be missing from its archive
    merge_span_ms     so much longer than it had to may a record stay because it was merged with later ones
    off               the setting, or the pause, by which nothing is archived; "" where something is
    gap_reason        why the log may lack what was not archived in time; "" where nobody knows
    merge_bytes       small neighbours become objects of up to this size; 0: nothing is merged
    min_saved_percent  what is archived of a compacted log is replaced when that saves so much of it; None: not for that
    segment_bytes     no chunk is added that makes a segment larger (layout `chunks`); None: as the archiver was made
    stream            what is committed goes into objects that are written while they fill; None: segments go one by one. With a bound
                      only what that lets go does, and no more: see `stream_limits`
    triggers          what sealed segments wait for; None: they go at once, and what is streamed while it is written
    bound             what that comes to now, for the log that is planned for: see archival.plan.offload_trigger

    Raises ValueError for a negative number.
    """

    tail_after_ms: int | None = None
    end: int | None = None
    pass_end: int | None = None
    begin_anew_epoch: int | None = None
    stale_keys_below: int | None = None
    merge_bytes: int = 0
    merge_span_ms: int = MERGE_SPAN_MS
    min_saved_percent: int | None = None
    off: str = ""
    gap_reason: str = ""
    triggers: Triggers | None = None
    bound: TriggerBound | None = None
    stream: StreamLimits | None = None
    segment_bytes: int | None = None

    def __post_init__(self) -> None:
        if any(each is not None and each < 0 for each in (self.tail_after_ms, self.end, self.begin_anew_epoch, self.stale_keys_below)):
            raise ValueError(f"negative: {self}")

    @property
    def is_paused(self) -> bool:
        """Rather than switched off by a setting."""
        return self.off.startswith(PAUSED)

    @property
    def is_excluded(self) -> bool:
        """Return whether a setting keeps all of it from being archived: then there is no lag."""
        return self.off == EXCLUDED

    @property
    def tail_wait_ms(self) -> int | None:
        """How long the committed part of an unfinished segment waits; None: it does not go."""
        return self.tail_after_ms if self.bound is None else self.bound.tail_after_ms

    @property
    def unbound(self) -> "Policy":
        """As it is for any log, at any time."""
        return self if self.bound is None else replace(self, bound=None)

    @property
    def follows(self) -> bool:
        """Goes what is committed while it is written? Where triggers are heeded it goes later, and what goes then is closed at once."""
        return self.stream is not None and self.bound is None

    @property
    def stream_limits(self) -> StreamLimits | None:
        """Those of `stream`, with what its triggers make of them."""
        return self.stream if self.stream is None or self.bound is None else self.stream._replace(completes=True)

    @classmethod
    def of(cls, settings: ArchivalConfig, *, requested: bool = False) -> "Policy":
        """What the running agent may archive; `requested`: by a command, which waits for no trigger."""
        triggers = None
        if not requested and (settings.offload_after_s is not None or settings.offload_when_local_exceeds is not None):
            after_ms = None if settings.offload_after_s is None else settings.offload_after_s * 1000
            triggers = Triggers(after_ms, settings.offload_when_local_exceeds)
        stream = None
        if settings.offload is OffloadMode.STREAMING:
            limits = CommitLimits(settings.chunk_commit_bytes, settings.chunk_bytes, settings.chunk_senders)
            chunks = ChunkCommits(settings.chunk_variant, limits, int(settings.chunk_commit_age_s * 1000))
            stream = StreamLimits(
                settings.max_segment_bytes,
                settings.max_segment_age_s * 1000,
                completes=requested,
                chunks=chunks if settings.layout == "chunks" else None,
            )
            if settings.archive is not ArchiveMode.MANUAL:
                triggers = None  # of sealed segments, for which nothing waits here
        may = settings.archive is ArchiveMode.AUTO or (settings.archive is ArchiveMode.MANUAL and (requested or triggers is not None))
        return cls(
            stream=stream,
            segment_bytes=settings.max_segment_bytes,
            off="" if may else f"archive = {settings.archive.value}",
            triggers=triggers,
            tail_after_ms=settings.seal_timeout_s * 1000,
            begin_anew_epoch=settings.begin_anew_epoch,
            stale_keys_below=settings.stale_keys_below,
            merge_bytes=0 if requested else settings.merge_bytes,
            min_saved_percent=None if requested else settings.min_saved_percent,
            merge_span_ms=min(MERGE_SPAN_MS, (settings.retention_s or DAY_S * 365) * 1000 // 8),
        )


PolicyFor = Callable[[ArchivalConfig], Policy]
