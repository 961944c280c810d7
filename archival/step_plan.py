"""What the archiver of one partition does next (design §4, Plan): plain data in, steps out, best first.

A step here is an intention. Whether a segment really holds a batch for it is seen only when it is opened; a step without
substance gives way to the next one. The last one is always Idle and says why.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from archival.config import ArchivalConfig
from archival.lineage import Behind, CutAt, branches_at, is_proven, may_lack, newest_epoch, resumes_at, verdict, written_epochs
from headwater_core.errors import HeadwaterError, NeedsReplacement, UnfinishedSwap, UnrelatedLog
from headwater_core.segments.local_log import LocalLog, LocalSegment
from manifests import keys
from manifests.head import Entry, Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What one pass may archive beyond what is lost if it is not.

    tail_after_ms  archive the committed part of an unfinished segment when it has waited this long; None: never
    before         archive only what lies wholly below this offset; None: everything
    begin_anew_epoch  a log whose oldest leader epoch is this one, or older, may supersede an archive that it shares nothing with
    stale_keys_below  deletions that a log has forgotten below this offset may be missing from its archive
    """

    tail_after_ms: int | None = None
    before: int | None = None
    begin_anew_epoch: int | None = None
    stale_keys_below: int | None = None

    def __post_init__(self) -> None:
        if any(each is not None and each < 0 for each in (self.tail_after_ms, self.before, self.begin_anew_epoch, self.stale_keys_below)):
            raise ValueError(f"negative: {self}")

    @classmethod
    def of(cls, settings: ArchivalConfig) -> "Policy":
        """What a pass of the running agent may."""
        return cls(
            tail_after_ms=settings.seal_timeout_s * 1000,
            begin_anew_epoch=settings.begin_anew_epoch,
            stale_keys_below=settings.stale_keys_below,
        )


SEALED_ONLY = Policy()
PolicyFor = Callable[[ArchivalConfig], Policy]


@dataclass(frozen=True, slots=True)
class Idle:
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing goes on until a person has done what `error` says."""

    error: HeadwaterError


@dataclass(frozen=True, slots=True)
class Claim:
    """Take the next fence; `leader_epoch` is the highest one followed from then on."""

    start_offset: int
    leader_epoch: int

    def __post_init__(self) -> None:
        if self.start_offset < 0 or self.leader_epoch < -1:
            raise ValueError(f"impossible claim: {self}")


@dataclass(frozen=True, slots=True)
class Cut:
    """Supersede what is live from `at` on, up to the entry that begins at `until`; None: all of it."""

    at: int
    leader_epoch: int
    until: int | None = None

    def __post_init__(self) -> None:
        if self.at < 0 or self.leader_epoch < -1 or (self.until is not None and self.until <= self.at):
            raise ValueError(f"offsets out of order: {self}")


@dataclass(frozen=True, slots=True)
class Replace:
    """Archive anew what is live from `first` on; all of it takes its place in one commit. At the archive's start: the whole of it."""

    first: int


@dataclass(frozen=True, slots=True)
class Revive:
    """Make a superseded run live again, whole batches below `up_to`."""

    entry: Entry
    up_to: int

    def __post_init__(self) -> None:
        if not self.entry.base_offset < self.up_to <= self.entry.next_offset:
            raise ValueError(f"nothing to revive below {self.up_to} in {self.entry.base_offset} to {self.entry.last_offset}")


@dataclass(frozen=True, slots=True)
class Gap:
    """Record that nobody holds [first, last] any more."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"offsets out of order: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Archive whole batches of one segment.

    first     offset the new entry begins at
    read_from first offset the log still offers; the run begins with the batch that holds it
    up_to     only batches wholly below it
    reach     the entry may cover a hole up to here (exclusive), since compaction made it; None without proof
    refills   the gap entry that the run replaces, in whole or in part
    """

    segment: LocalSegment
    first: int
    read_from: int
    up_to: int
    reach: int | None = None
    refills: Entry | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.read_from < self.up_to <= (self.up_to if self.reach is None else self.reach):
            raise ValueError(f"offsets out of order: {self}")


Step = Idle | Stop | Claim | Cut | Replace | Revive | Gap | Upload


@dataclass(frozen=True, slots=True)
class Acting:
    """This log may be archived, under this leader epoch."""

    leader_epoch: int


def archiving_role(log: LocalLog) -> Acting | Idle:
    """Who archives: the leader; where no leader is known, a replica that could become one.

    Without a broker's metadata log (an owned directory) there is nobody to ask. While a partition has no leader, its last
    in-sync replicas are as good as it was; under eligible leader replicas nobody is in sync then, and a replica that lags acts
    under its own newest epoch, which the head tells to be behind.
    """
    newest, leadership = log.epochs.newest, log.leadership
    if newest is None and (log.high_watermark or 0) > log_start(log):
        return Idle("the log has no leader epoch history")
    if leadership is None:
        return Acting(-1 if newest is None else newest)
    if leadership.leader == -1:
        if leadership.in_sync and leadership.node not in leadership.in_sync:
            return Idle("no leader, and this replica is not in sync")
        return Acting(-1 if newest is None else newest)
    if not leadership.is_ours:
        return Idle(f"follower of broker {leadership.leader}")
    if newest is None or newest < leadership.leader_epoch:
        return Idle(f"leader epoch {leadership.leader_epoch} has not reached the log's epoch history yet")
    return Acting(max(leadership.leader_epoch, -1 if newest is None else newest))


def log_start(log: LocalLog) -> int:
    """First offset this log offers."""
    return log.start_offset


Overtaken = Callable[[int], str]
"""Why what lies from an offset on must not follow what is archived below it, compaction having gone past it; "" when it may."""


def next_steps(
    log: LocalLog, head: Head | None, *, writer: str, policy: Policy, tail_age_ms: int, overtaken: Overtaken = lambda _: ""
) -> Iterator[Step]:
    """The steps open to `writer`'s archiver beside `log`, best first.

    tail_age_ms  since the offset after the head's last one was first seen waiting, or that last one was committed
    """
    acting = archiving_role(log)
    if isinstance(acting, Idle):
        yield acting
        return
    if log.leftovers:
        yield Stop(
            UnfinishedSwap(
                f"{log.directory}: {', '.join(log.leftovers)} were left in the middle of a compaction, and the directory is owned: no "
                "broker finishes it. Start Kafka on it once and stop it in order, it knows which files replace which; then go on"
            )
        )
        return
    if not log.settled:
        yield Idle("a compaction is in the middle of its renames")
        return
    if log.high_watermark is None:
        yield Idle("no checkpoint names the partition's high watermark")
        return
    if head is None:
        yield Claim(log_start(log), acting.leader_epoch)
        return
    found = verdict(log.epochs, acting.leader_epoch, head)
    if isinstance(found, Behind):
        yield Idle(f"behind: {found.reason}")
        return
    cut = supersede(log, head, found.offset, acting.leader_epoch, policy) if isinstance(found, CutAt) else None
    if isinstance(cut, Stop):
        yield cut
        return
    if head.writer != writer:
        yield Claim(head.start_offset, head.leader_epoch if cut else acting.leader_epoch)
        return
    if cut:
        yield cut
        return
    if acting.leader_epoch > head.leader_epoch:
        yield Claim(head.start_offset, acting.leader_epoch)
        return
    if replacement := _replacement(log, head, log.high_watermark, overtaken):
        yield replacement
        if isinstance(replacement, Stop):
            return
    yield from _refills(log, head, log.high_watermark, overtaken)
    yield from _revivals(log, head, log.high_watermark)
    if head.next_offset < log_start(log):
        yield Gap(head.next_offset, log_start(log) - 1)
    yield from _uploads(log, head, log.high_watermark, policy, tail_age_ms, overtaken)


def supersede(log: LocalLog, head: Head, at: int, leader_epoch: int, policy: Policy) -> Cut | Stop:
    """Cut what is live from `at` on; stop where nothing shows that log and archive were ever one.

    An epoch has one leader and that one log: with an epoch in common the two are branches of one log, and the newer epoch wins.
    A log that begins anew, on a replaced disk, has a newer epoch too, and would win over all that the archive alone still holds.
    """
    written = written_epochs(log.epochs)
    consented = policy.begin_anew_epoch is not None and min(written) <= policy.begin_anew_epoch
    if consented or not written.isdisjoint(epoch for entry in head.entries for epoch, _ in entry.epochs):
        return Cut(at, leader_epoch, resumes_at(log.epochs, head.entries, at))
    reason = (
        f"the archive holds offsets {head.start_offset} to {head.last_offset}, of leader epochs up to {newest_epoch(head.entries)}; "
        f"the log ends at {log.high_watermark} and begins in epoch {min(written)}. They share no epoch, as after a disk was replaced, and "
        f"archiving would supersede what is archived from {at} on. Bring that back into the log (headwater recover), or consent to begin "
        f'anew: begin_anew_epoch = {min(written)} under [topics."{log.partition.topic}"]'
    )
    return Stop(UnrelatedLog(reason, min(written)))


def _replacement(log: LocalLog, head: Head, high_watermark: int, overtaken: Overtaken) -> Replace | Stop | None:
    """Where something live may lack a record that counts again, all that is live is archived anew, so that it is one log's.

    Else from the first such run on that the log holds all of: what only the archive has stays. But the log's cleaner must not have
    been past that for too long.
    """
    start = log_start(log)
    lacking = [entry for entry in may_lack(log.epochs, head.entries) if entry.next_offset > start]
    if not lacking or high_watermark < head.next_offset or not log.topic_policy_proves_compaction:
        return None
    if start <= head.start_offset:
        return Replace(head.start_offset)
    first = next((max(entry.base_offset, start) for entry in lacking if _first_batch(entry) >= start), None)
    if first is None:
        return None
    stays = any(not entry.gap and entry.base_offset < first for entry in head.entries)
    if stays and (reason := overtaken(first)):
        why = f"what is archived from {first} on may lack records that count again since an unclean election"
        return Stop(NeedsReplacement(f"needs replacement: {why}; {reason.removeprefix('needs replacement: ')}"))
    return Replace(first)


def _first_batch(entry: Entry) -> int:
    """A run may begin with a hole that compaction made."""
    return entry.epochs[0][1] if entry.epochs else entry.base_offset


def irreplaceable(log: LocalLog, head: Head) -> tuple[Entry, ...]:
    """What may lack a record that counts again, and begins where the log holds nothing any more."""
    return tuple(entry for entry in may_lack(log.epochs, head.entries) if _first_batch(entry) < log_start(log))


def rereads(log: LocalLog, draft: Head, head: Head) -> Iterator[Upload]:
    """The next run of `draft`, which is to replace `head`. It ends where an entry of that does, so that one which is the same can
    stay."""
    first = draft.next_offset
    read_from = max(first, log_start(log))
    for segment, end in _from(log.segments, read_from):
        if segment.base_offset >= head.next_offset:
            return
        limit = head.next_offset if end is None else min(end, head.next_offset)
        for up_to in (*(entry.next_offset for entry in head.entries if read_from < entry.next_offset < limit), limit):
            yield Upload(segment=segment, first=first, read_from=read_from, up_to=up_to, reach=up_to)


def _refills(log: LocalLog, head: Head, high_watermark: int, overtaken: Overtaken) -> Iterator[Step]:
    """A gap gives way as soon as the log holds its offsets."""
    for entry in head.entries:
        if not entry.gap:
            continue
        first = max(entry.base_offset, log_start(log))
        limit = high_watermark if entry is head.entries[-1] else min(high_watermark, entry.next_offset)
        if first > entry.last_offset or first >= limit or overtaken(first):
            continue
        for segment, end in _from(log.segments, first):
            if segment.base_offset >= limit:
                break
            yield Upload(segment=segment, first=first, read_from=first, up_to=min(end or limit, limit), refills=entry)


def _revivals(log: LocalLog, head: Head, high_watermark: int) -> Iterator[Step]:
    """A superseded run that continues the live ones and provably lies on the history again. The newest branch first.

    Not in a compacted log that still holds the offsets: there an old copy could bring deleted keys back.
    """
    next_offset = head.next_offset
    if log.topic_policy_proves_compaction and log_start(log) <= next_offset:
        return
    for entry in sorted(head.superseded, key=lambda each: -each.epochs[0][0] if each.epochs else 1):
        if entry.base_offset != next_offset or not entry.epochs or not continues(head, entry):
            continue
        branch = branches_at(log.epochs, (entry,))
        up_to = min(high_watermark, entry.next_offset if branch is None else branch)
        if is_proven(log.epochs, (entry,), up_to):
            yield Revive(entry, up_to)


def continues(head: Head, entry: Entry) -> bool:
    """Can `entry`, superseded, be listed right after the live entries? An entry's bytes begin at its object's start, so it
    must be its object's first part, or go on where the same object was cut."""
    name = keys.parse_data(entry.key)
    return (head.entries and head.entries[-1].uid == entry.uid) or (name is not None and name.base_offset == entry.base_offset)


def _uploads(log: LocalLog, head: Head, high_watermark: int, policy: Policy, tail_age_ms: int, overtaken: Overtaken) -> Iterator[Step]:
    """In offset order: sealed and wholly committed, or what of the rest is committed once it has waited long enough."""
    first = head.next_offset
    read_from = max(first, log_start(log))
    proof = log.topic_policy_proves_compaction
    if read_from >= high_watermark:
        yield Idle("caught up")
        return
    if reason := overtaken(read_from):
        yield Stop(NeedsReplacement(reason))
        return
    for segment, end in _from(log.segments, read_from):
        if end is not None and end <= high_watermark:
            if policy.before is not None and end > policy.before:
                yield Idle(f"the next segment ends at or beyond {policy.before}")
                return
            yield Upload(segment=segment, first=first, read_from=read_from, up_to=end, reach=end if proof else None)
        elif policy.tail_after_ms is None or (policy.before is not None and high_watermark > policy.before):
            yield Idle("the rest is in a segment that is not sealed and committed")
            return
        elif tail_age_ms < policy.tail_after_ms:
            yield Idle(f"the tail has waited {tail_age_ms // 1000} s of {policy.tail_after_ms // 1000} s")
            return
        else:
            yield Upload(segment=segment, first=first, read_from=read_from, up_to=high_watermark)
            break
    yield Idle("no committed batch after the archived ones")


def _from(segments: Sequence[LocalSegment], offset: int) -> Iterator[tuple[LocalSegment, int | None]]:
    """The segment whose range holds `offset` and those after it, each with its end (exclusive), None for the active one."""
    ends = [segment.base_offset for segment in segments[1:]]
    for segment, end in zip(segments, [*ends, None], strict=False):
        if end is None or end > offset:
            yield segment, end
