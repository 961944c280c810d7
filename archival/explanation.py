"""Why local bytes are not archived: each range of a log that its archive does not hold, and what it waits for.

Batches are counted where their last offset lies, as archiving counts them, so that the ranges add up to every byte of the segment
files that no live entry holds.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from archival.partition.source import open_segment
from archival.plan.lineage import Behind, lies_on, verdict
from archival.plan.offload_trigger import bounded
from archival.plan.policy import Policy, TriggerBound
from archival.plan.role import Standby, Unfit, archiving_role
from archival.plan.step_plan import next_steps
from archival.plan.steps import Stop
from archival.plan.stream_plan import OpenStream
from archival.watermark import WatermarkOrigin, WatermarkSource
from headwater_core.counts import count_text
from headwater_core.epochs import EpochHistory, leader_epoch_at
from headwater_core.errors import (
    CorruptData,
    Fenced,
    HeadwaterError,
    NeedsReplacement,
    NeedsUpgrade,
    TransientError,
    TruncatedData,
    Unauthorised,
)
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.local_log import LocalLog, LocalSegment
from manifests.entry import Entry
from manifests.head import Head


class Why(NamedTuple):
    """kind: one word for programs; since_ms, until_ms: when the wait began, and when it ends by itself; None where nobody knows."""

    kind: str
    reason: str
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unarchived:
    """Local bytes that are not archived, with the same reason: those of the batches that end in [base_offset, next_offset)."""

    base_offset: int
    next_offset: int
    size_bytes: int
    why: Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How the agent's scheduler holds a partition. Seconds count from now.

    in_hand     a step of it is being done
    due_before  how many partitions became due before it; None when it is not due
    error       why its last step failed, and since when steps have failed in a row
    again_in_s  when it is tried again; None when it is not postponed
    probe_in_s  when the store is tried again; None while the store answers
    """

    in_hand: bool = False
    due_before: int | None = None
    error: HeadwaterError | None = None
    failing_since_ms: int | None = None
    again_in_s: float | None = None
    probe_in_s: float | None = None


def explain(
    log: LocalLog,
    head: Head | None,
    *,
    policy: Policy,
    tail_age_ms: int,
    now_ms: int,
    turn: Turn | None,
    trouble: str = "",
    origin: WatermarkOrigin | None = None,
    stream: OpenStream | None = None,
) -> list[Unarchived]:
    """Every range, in offset order; neighbours with the same reason are one.

    turn     None when no agent archives this log
    trouble  what is known to have stopped the partition, in words
    origin   see status_of
    stream   what streaming offload has taken, as far as that is known

    Raises what `open_segment` raises.
    """
    policy, origin = bounded(policy, log, now_ms), origin or WatermarkOrigin(WatermarkSource.CHECKPOINT, None)
    blocked = _blocked(log, head, policy, now_ms, turn, trouble)
    tail = _tail(head, policy, tail_age_ms, now_ms, turn)
    if policy.follows and not log.topic_policy_proves_compaction:
        tail = _in_turn(turn)  # it goes before its segment is sealed
    streamed = _streamed(stream, policy, tail_age_ms, now_ms) or _in_turn(turn)
    ranges: list[Unarchived] = []
    for stretch in _stretches(log, head, (stream.base_offset, stream.next_offset) if stream is not None else ()):
        is_taken = stream is not None and stream.base_offset <= stretch.first and stretch.end <= stream.next_offset
        blocks = blocked or (streamed if is_taken else None)
        why = stretch.damage or _why(stretch, log, blocks, policy.bound, tail, turn, origin)
        last = ranges[-1] if ranges else None
        if last and last.why == why:
            start, size_bytes = ranges.pop().base_offset, last.size_bytes + stretch.size_bytes
        else:
            start, size_bytes = stretch.first, stretch.size_bytes
        ranges.append(Unarchived(base_offset=start, next_offset=stretch.end, size_bytes=size_bytes, why=why))
    return ranges


def kind_of(error: HeadwaterError) -> str:
    """One word for what an error means to a partition."""
    match error:
        case Fenced():
            return "fenced"
        case CorruptData():
            return "corrupt"
        case NeedsReplacement():
            return "needs-replacement"
        case NeedsUpgrade():
            return "needs-upgrade"
        case TransientError():
            return "backing-off"
    return "stopped"


def _why(
    stretch: "_Stretch",
    log: LocalLog,
    blocked: Why | None,
    bound: TriggerBound | None,
    tail: Why,
    turn: Turn | None,
    origin: WatermarkOrigin,
) -> Why:
    if stretch.end <= log.start_offset:
        return Why("below-start", "below the log start: no client can read it, and the broker deletes it")
    if log.high_watermark is None:
        return Why("no-high-watermark", "no checkpoint of the broker names the partition's high watermark: what is committed is not known")
    if stretch.first >= log.high_watermark:
        return Why("above-high-watermark", f"above the high watermark {log.high_watermark} ({origin}): not replicated yet")
    if blocked:
        return blocked
    if stretch.sealed_end is None or stretch.sealed_end > log.high_watermark:
        return tail
    if bound is not None and stretch.sealed_end > bound.end:
        return Why("trigger", bound.reason, None, bound.until_ms)
    return _in_turn(turn)


def _blocked(log: LocalLog, head: Head | None, policy: Policy, now_ms: int, turn: Turn | None, trouble: str) -> Why | None:
    """What keeps everything that is committed from being archived; None when nothing does."""
    acting = archiving_role(log)
    if isinstance(acting, Standby):
        return Why("stopped" if isinstance(acting, Unfit) else "standby", acting.reason)
    if policy.off:
        return Why("paused" if policy.is_paused else "excluded", policy.off)
    if head and isinstance(found := verdict(log.epochs, acting.leader_epoch, head), Behind):
        return Why("behind", found.reason)
    if turn and turn.probe_in_s is not None and not turn.in_hand:
        reason = "the store is unavailable for every partition"
        if turn.error:
            reason = str(turn.error) if isinstance(turn.error, Unauthorised) else f"the store does not answer: {turn.error}"
        return Why("store-unavailable", reason, turn.failing_since_ms, now_ms + round(turn.probe_in_s * 1000))
    if turn and turn.error and (turn.again_in_s is not None or not isinstance(turn.error, TransientError)):
        until_ms = now_ms + round(turn.again_in_s * 1000) if turn.again_in_s is not None else None
        return Why(kind_of(turn.error), str(turn.error), turn.failing_since_ms, until_ms)
    if trouble:
        return Why("stopped", trouble)
    if not log.settled:
        return Why("unsettled", "a compaction of the broker is in the middle of its renames")
    step = next(next_steps(log, head, writer=head.writer if head else "", policy=policy, tail_age_ms=0))
    return Why(kind_of(step.error), str(step.error)) if isinstance(step, Stop) else None


def _streamed(stream: OpenStream | None, policy: Policy, tail_age_ms: int, now_ms: int) -> Why | None:
    """For what streaming offload has taken; None where its object is closed now."""
    limits = policy.stream_limits
    if stream is None or limits is None:
        return None
    reason = stream.waits_for(limits, tail_age_ms)
    since_ms = now_ms - tail_age_ms
    return Why("open-stream", reason, since_ms, since_ms + limits.age_ms) if reason else None


def _tail(head: Head | None, policy: Policy, tail_age_ms: int, now_ms: int, turn: Turn | None) -> Why:
    """For what is committed and lies in a segment that is not sealed, or not wholly committed."""
    if policy.tail_wait_ms is None:
        return Why("active", "in a segment that is not sealed and committed yet")
    if head is None:
        return Why("active", "in the active segment; its seal timeout begins when the partition is claimed")
    if tail_age_ms < policy.tail_wait_ms:
        since_ms = now_ms - tail_age_ms
        reason = f"in the active segment, until it is sealed or the seal timeout of {policy.tail_wait_ms // 1000} s has passed"
        return Why("seal-timeout", reason, since_ms, since_ms + policy.tail_wait_ms)
    return _in_turn(turn)


def _in_turn(turn: Turn | None) -> Why:
    if turn is None:
        return Why("no-agent", "no agent runs here; `headwater agent` or `headwater archive` archives it")
    if turn.in_hand:
        return Why("in-hand", "it is being archived now")
    if turn.due_before is not None:
        return Why("due", f"waiting for its turn; due before it: {count_text(turn.due_before, 'partition')}")
    return Why("due", "it is archived when the log is looked at next")


class _Span(NamedTuple):
    """Offsets [first, end)."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Bytes of one segment file that no live entry holds: those of batches that end in [first, end).

    sealed_end  where the next segment begins; None in the active one
    damage      what makes the bytes unreadable; None when nothing was found
    """

    first: int
    end: int
    size_bytes: int
    sealed_end: int | None
    damage: Why | None = None


def _stretches(log: LocalLog, head: Head | None, taken: Sequence[int]) -> Iterator[_Stretch]:
    held = _held_spans(log, head)
    edges = sorted(
        {
            log.start_offset,
            *([log.high_watermark] if log.high_watermark is not None else []),
            *(edge for span in held for edge in span),
            *taken,
        }
    )
    for segment, sealed_end in log.segments_from(log.local_start):
        if not _within(held, segment.base_offset, sealed_end):
            for piece in _cut(segment, sealed_end, edges):
                if not _within(held, piece.first, piece.end):
                    yield piece


def _within(spans: Sequence[_Span], first: int, end: int | None) -> bool:
    return end is not None and any(span.first <= first and end <= span.end for span in spans)


def _held_spans(log: LocalLog, head: Head | None) -> list[_Span]:
    """Offsets of which live entries hold what this log holds."""
    spans: list[_Span] = []
    for entry in head.entries.within(log.local_start, head.next_offset, lambda ref: ref.entries > ref.gaps) if head else ():
        first, end = entry.base_offset, _held_to(log.epochs, entry)
        if spans and spans[-1].end == first:
            first = spans.pop().first
        spans.append(_Span(first, end))
    return [span for span in spans if span.first < span.end]


def _held_to(history: EpochHistory, entry: Entry) -> int:
    """Where what `entry` holds ceases to be what the log holds. An epoch has one leader, and so one log; a record that lies on the
    history proves everything before it in the same run."""
    if entry.gap:
        return entry.base_offset
    if not entry.epochs or history.newest is None:
        return entry.next_offset
    starts = {start.first_offset for start in (*entry.epochs, *history.starts) if start.first_offset in entry}
    end = entry.next_offset
    for first in sorted({entry.base_offset, *starts}, reverse=True):
        epoch = leader_epoch_at(entry.epochs, first)
        if lies_on(history, entry.epochs[0].epoch if epoch is None else epoch, first):
            return end
        end = first
    return end


def _cut(segment: LocalSegment, sealed_end: int | None, edges: Sequence[int]) -> Iterator[_Stretch]:
    """The file in pieces, whose batches end between neighbouring `edges`; by headers alone."""
    inner = deque(edge for edge in edges if segment.base_offset < edge and (sealed_end is None or edge < sealed_end))
    first, start, end, broken = segment.base_offset, 0, segment.base_offset, None
    if inner or sealed_end is None:
        try:
            with open_segment(segment) as file:
                for position, header in headers(file, 0, segment.size_bytes, where=str(segment.path)):
                    if position + header.size_bytes > segment.size_bytes:
                        continue  # it is torn, and ends the walk
                    while inner and header.last_offset >= inner[0]:
                        if position > start:
                            yield _Stretch(first, inner[0], position - start, sealed_end)
                        first, start = inner.popleft(), position
                    end = header.last_offset + 1
        except CorruptData as error:
            broken = error
    damage = None
    if broken is not None:
        if broken.position > start:
            yield _Stretch(first, end, broken.position - start, sealed_end)
        first, start = max(first, end), broken.position
        if not (segment.is_active and isinstance(broken, TruncatedData)):  # else the broker may be in the middle of a write
            damage = Why("corrupt", str(broken))
    if start < segment.size_bytes:
        yield _Stretch(first, sealed_end or max(end, first + 1), segment.size_bytes - start, sealed_end, damage)
