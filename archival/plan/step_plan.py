"""What the archiver of one partition does next (design §4, Plan): plain data in, steps out, best first. The last one is Idle, unless one
before it cannot turn out to be without substance.
"""

from collections.abc import Iterator

from archival.plan.lineage import Behind, CutAt, branches_at, is_proven, newest_epoch, resumes_at, verdict, written_epochs
from archival.plan.policy import Policy
from archival.plan.replacement import Overtaken, plan_overtaken, plan_replacement, plan_smaller
from archival.plan.role import Standby, archiving_role
from archival.plan.steps import ClaimPartition, CutEntries, Follow, Idle, RecordGap, Revive, Step, Stop, Upload
from headwater_core.errors import UnfinishedSwap, UnrelatedLog
from headwater_core.segments.local_log import LocalLog
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head


def next_steps(
    log: LocalLog,
    head: Head | None,
    *,
    writer: str,
    policy: Policy,
    tail_age_ms: int,
    overtaken: Overtaken = lambda _: "",
    held_to: int = 0,
) -> Iterator[Step]:
    """The steps open to `writer`'s archiver beside `log`, best first.

    tail_age_ms  since the offset after the head's last one was first seen waiting, or that last one was committed
    held_to      up to here an open object holds what follows the head's last offset, whatever the log still offers
    """
    acting = archiving_role(log)
    if isinstance(acting, Standby):
        yield Idle(acting.reason, compared=False)
    elif policy.off:
        yield Idle(policy.off, compared=False)
    elif step := _unready(log) or _claim_or_cut(log, head, acting.leader_epoch, writer, policy):
        yield step
    else:
        assert head  # without one comes a claim
        committed = log.high_watermark or 0
        committed = committed if policy.pass_end is None else min(committed, policy.pass_end)
        yield from _archiving(log, head, committed, policy, tail_age_ms, overtaken, held_to)


def may_be_empty(step: Step) -> bool:
    """May the step turn out to be without substance, and again and again? A gap may be missing in the log as it is in the archive."""
    return isinstance(step, Revive) or (isinstance(step, Upload) and step.refills is not None)


def _unready(log: LocalLog) -> Idle | Stop | None:
    """What keeps anything from being concluded from this look."""
    if log.leftovers:
        return Stop(
            UnfinishedSwap(
                f"{log.directory}: {', '.join(log.leftovers)} were left in the middle of a compaction, and the directory is owned: no "
                "broker finishes it. Start Kafka on it once and stop it in order, it knows which files replace which; then continue"
            )
        )
    if not log.settled:
        return Idle("a compaction is in the middle of its renames", compared=False)
    if log.high_watermark is None:
        return Idle("no checkpoint names the partition's high watermark", compared=False)
    return None


def _claim_or_cut(
    log: LocalLog, head: Head | None, leader_epoch: int, writer: str, policy: Policy
) -> Idle | Stop | ClaimPartition | CutEntries | None:
    """What must come before anything is archived under `leader_epoch`: the head is `writer`'s, follows that epoch, and lies on the log's
    history. A log that may not cut a dead branch does not claim the partition either."""
    if head is None:
        return ClaimPartition(log.start_offset, leader_epoch)
    found = verdict(log.epochs, leader_epoch, head)
    if isinstance(found, Behind):
        return Idle(f"behind: {found.reason}", compared=False)
    cut = supersede(log, head, found.offset, leader_epoch, policy) if isinstance(found, CutAt) else None
    if isinstance(cut, Stop):
        return cut
    if head.writer != writer:
        return ClaimPartition(head.start_offset, head.leader_epoch if cut else leader_epoch)
    if cut:
        return cut
    return ClaimPartition(head.start_offset, leader_epoch) if leader_epoch > head.leader_epoch else None


def _archiving(
    log: LocalLog, head: Head, high_watermark: int, policy: Policy, tail_age_ms: int, overtaken: Overtaken, held_to: int
) -> Iterator[Step]:
    if replace := plan_replacement(log, head, high_watermark, overtaken):
        yield replace
        if isinstance(replace, Stop):
            return
    yield from _refills(log, head, high_watermark, overtaken)
    yield from _revivals(log, head, high_watermark)
    if head.next_offset < min(log.start_offset, held_to):
        yield Follow(head.next_offset, held_to)  # the broker has deleted what is open
    elif head.next_offset < log.start_offset:
        yield RecordGap(head.next_offset, log.start_offset - 1)
    for step in _uploads(log, head, high_watermark, policy, tail_age_ms, overtaken, held_to):
        if isinstance(step, Idle) and (smaller := plan_smaller(log, head, high_watermark, policy.min_saved_percent)):
            yield smaller
        yield step


def supersede(log: LocalLog, head: Head, at: int, leader_epoch: int, policy: Policy) -> CutEntries | Stop:
    """Cut what is live from `at` on; stop where nothing shows that log and archive were ever one.

    An epoch has one leader and that one log: with an epoch in common the two are branches of one log, and the newer epoch wins.
    A log that begins again, on a replaced disk, has a newer epoch too, and would win over all that the archive alone still holds.
    """
    written = written_epochs(log.epochs)
    consented = policy.begin_anew_epoch is not None and min(written) <= policy.begin_anew_epoch
    if consented or not written.isdisjoint(span.epoch for span in head.entries.spans()):
        return CutEntries(at, leader_epoch, resumes_at(log.epochs, head.entries, at))
    reason = (
        f"the archive holds offsets {head.start_offset} to {head.last_offset}, of leader epochs up to {newest_epoch(head.entries)}; "
        f"the log ends at {log.high_watermark} and begins in epoch {min(written)}. They share no epoch, as after a disk was replaced, and "
        f"archiving would supersede what is archived from {at} on. Bring that back into the log (headwater recover), or consent to begin "
        f'anew: begin_anew_epoch = {min(written)} under [topics."{log.partition.topic}"]'
    )
    return Stop(UnrelatedLog(reason, min(written)))


def _refills(log: LocalLog, head: Head, high_watermark: int, overtaken: Overtaken) -> Iterator[Step]:
    """A gap gives way as soon as the log holds its offsets."""
    for entry in head.entries.within(log.start_offset, high_watermark, lambda ref: ref.gaps > 0):
        if not entry.gap:
            continue
        first = max(entry.base_offset, log.start_offset)
        end = high_watermark if entry.next_offset == head.next_offset else min(high_watermark, entry.next_offset)
        if first > entry.last_offset or first >= end or overtaken(first):
            continue
        for segment, segment_end in log.segments_from(first):
            if segment.base_offset >= end:
                break
            yield Upload(segment=segment, first=first, read_from=first, end=min(segment_end or end, end), refills=entry)


def _revivals(log: LocalLog, head: Head, high_watermark: int) -> Iterator[Step]:
    """A superseded run that continues the live ones and provably lies on the history again. The newest branch first.

    Not in a compacted log that still holds the offsets: there an old copy could bring deleted keys back.
    """
    next_offset = head.next_offset
    if log.topic_policy_proves_compaction and log.start_offset <= next_offset:
        return
    for entry in sorted(head.superseded.at_base(next_offset), key=lambda each: -each.epochs[0].epoch if each.epochs else 1):
        if not entry.epochs or not continues(head, entry):
            continue
        branch = branches_at(log.epochs, EntryTree((entry,)))
        end = min(high_watermark, entry.next_offset if branch is None else branch)
        if is_proven(log.epochs, EntryTree((entry,)), end):
            yield Revive(entry, end)


def continues(head: Head, entry: Entry) -> bool:
    """Can `entry`, superseded, be listed right after the live entries? An entry's bytes begin at its object's start, so it
    must be its object's first part, or continue where the same object was cut."""
    held = entry.held_offsets
    return (bool(head.entries) and head.entries[-1].uid == entry.uid) or (held is not None and held[0] == entry.base_offset)


def _uploads(
    log: LocalLog, head: Head, high_watermark: int, policy: Policy, tail_age_ms: int, overtaken: Overtaken, held_to: int
) -> Iterator[Step]:
    """In offset order: sealed and wholly committed, or what of the rest is committed once it has waited long enough."""
    first = head.next_offset
    read_from = max(first, log.start_offset)
    proof = log.topic_policy_proves_compaction
    if read_from >= high_watermark:
        yield Idle("caught up")
        return
    if replace := plan_overtaken(log, head, read_from, overtaken):
        yield replace
        return
    if policy.stream is not None and not proof and read_from == first:  # a cleaner rewrites what would still be read
        if policy.end is not None and policy.end <= first:
            yield Idle(f"what is below {policy.end} is archived")
            return
        released = _released_end(log, first, high_watermark, policy, tail_age_ms, held_to)
        released = released if policy.end is None else min(released, policy.end)
        if released > first:
            yield Follow(first, released)
    for segment, end in log.segments_from(read_from):
        if end is not None and end <= high_watermark:
            if policy.end is not None and end > policy.end:
                yield Idle(f"the next segment ends at or beyond {policy.end}")
                return
            if policy.bound is not None and end > policy.bound.end:
                yield Idle(policy.bound.reason)
                return
            yield Upload(segment=segment, first=first, read_from=read_from, end=end, cover_end=end if proof else None)
        elif policy.tail_wait_ms is None or (policy.end is not None and high_watermark > policy.end):
            yield Idle("the rest is in a segment that is not sealed and committed")
            return
        elif tail_age_ms < policy.tail_wait_ms:
            yield Idle(f"the tail has waited {tail_age_ms // 1000} s of {policy.tail_wait_ms // 1000} s")
            return
        else:
            yield Upload(segment=segment, first=first, read_from=read_from, end=high_watermark)
            break
    yield Idle("no committed batch after the archived ones")


def _released_end(log: LocalLog, first: int, high_watermark: int, policy: Policy, tail_age_ms: int, held_to: int) -> int:
    """Up to where an object may take that is written while it fills, and begins with `first`: by triggers, whole sealed segments that are
    due, and what it had taken before they were heeded; an unfinished segment when it has waited long enough."""
    if policy.bound is None:
        return high_watermark
    sealed_end = next((end for _, end in log.segments_from(first)), None)
    is_tail = sealed_end is None or sealed_end > high_watermark
    if is_tail and policy.tail_wait_ms is not None and tail_age_ms >= policy.tail_wait_ms:
        return high_watermark
    due = policy.bound.end
    if due > high_watermark:  # a segment of which not all is committed would be cut there
        due = next((segment.base_offset for segment, _ in log.segments_from(high_watermark)), first)
    return max(due, min(high_watermark, held_to))
