"""Where recovered logs end: transactions that are open there, and offsets that groups committed beyond.

Tails are archived at different moments. A log that ends inside a transaction stops every reader of committed data there, until a
coordinator that knows of the transaction ends it; a group that committed more than came back would skip what is
produced next.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, ForeignOwner, UnsupportedFormat
from headwater_core.objectstore.store import ObjectStore
from headwater_core.threads import ContextThreads
from manifests.entry import Entry
from manifests.repository import ManifestRepository
from recovery.coordinator_logs import ahead_of_logs, read_commits, read_shares, read_states, with_commits, with_rewritten
from recovery.coordinators import OFFSETS, TRANSACTIONS, Commitment, States
from recovery.cut import OpenTransactionAtCut, TornTransaction, cut_of
from recovery.entry_list import EntryList
from recovery.initial_metadata import first_producer_id
from recovery.local_part import readable
from recovery.log_ends import EndingNotes, LogEnds
from recovery.open_transactions import Open
from recovery.recovery_plan import GroupCommit, OffsetAhead, PartitionPlan, Place, RecoveryPlan, TopicPlan
from recovery.runs import fetched
from recovery.share_groups import SHARE_GROUPS, below_logs, with_leader_epochs, within_logs
from recovery.torn_transactions import find_torn, may_be_torn

_READERS = 8
_ARCHIVED_RUNS = 64  # of a log that stays in the archive: those in which a marker is searched for
_SHOWN = 20  # of the groups that are ahead; the plan lists them all


class Ended(NamedTuple):
    """A plan with its endings. unread: the places of which something that decides about them is missing or damaged; the plan notes it."""

    plan: RecoveryPlan
    unread: Collection[Place]


def with_endings(plan: RecoveryPlan, store: ObjectStore) -> Ended:
    """`plan`, with what recovery writes where logs end. What was decided before is decided again.

    Reads the archive: the indexes of runs that end inside a transaction, and all of __consumer_offsets, __transaction_state and
    __share_group_state that is planned. What is damaged there is noted.
    """
    ends: dict[Place, int] = {}
    with ContextThreads(_READERS, "recover-endings") as pool:
        while True:
            found = _Decision(plan, store, pool, ends)
            if plan.request.options.open_transactions == "keep":
                return found.ended(())
            torn = find_torn(
                store, pool, found.planned, found.partitions, _ArchivedRuns(plan, store).of, found.notes.ended, found.commitments
            )
            shorter = {log: end for log, end in torn.ends.items() if end < found.partitions[log].next_offset}
            if plan.request.options.open_transactions != "cut" or not shorter:
                return found.ended(torn.torn)
            ends |= shorter


class _ArchivedRuns:
    """The runs of logs, with those that stay in the archive."""

    def __init__(self, plan: RecoveryPlan, store: ObjectStore) -> None:
        self._plan, self._manifests = plan, ManifestRepository(store)
        self._topics = {topic.topic: topic for topic in plan.topics}

    def of(self, log: Place, partition: PartitionPlan) -> Sequence[Entry]:
        """Return the runs that come back, or, where others stay below them, the newest of all; what cannot be read is left away."""
        if partition.left is not None:
            identity = self._topics[log[0]].archived_id(self._plan.source_cluster_id, partition.partition)
            try:
                if (stored := self._manifests.load_of_any_owner(identity)) is not None:
                    below = islice(reversed(readable(stored.head.entries)), _ARCHIVED_RUNS)
                    return [entry for entry in below if entry.next_offset <= partition.next_offset][::-1]
            except (CorruptData, ForeignOwner, UnsupportedFormat):
                pass  # it could be read when the plan was made; what comes back is known without it
        return EntryList.of(partition.beneath) + partition.entries


class _Decision:
    """How all logs of a plan end.

    ends        of logs that end earlier, because a transaction that is cut off begins there
    planned     the partitions as they were before
    partitions  as they end, by topic and partition
    """

    def __init__(self, plan: RecoveryPlan, store: ObjectStore, pool: ContextThreads, ends: Mapping[Place, int]) -> None:
        self.notes = notes = EndingNotes()
        options = plan.request.options
        topics = {topic.topic: topic for topic in plan.topics}
        self.planned = planned = {(topic.topic, partition.partition): partition for topic in plan.topics for partition in topic.partitions}
        suspect = may_be_torn(
            planned, shortened=options.open_transactions == "cut" or options.to_time_ms is not None or bool(options.to_offsets)
        )
        open_run = partial(fetched, store)
        own_ends = LogEnds(store, plan, {}, notes, ends)
        stated = list(pool.map(lambda each: own_ends.of(topics[TRANSACTIONS], each), _partitions(topics, TRANSACTIONS)))
        self._states = list(pool.map(lambda partition: read_states(open_run, partition, notes, suspect), stated))  # as far as it comes back
        known = merged(self._states).unfinished() if options.open_transactions == "keep" else {}
        log_ends = LogEnds(store, plan, known, notes, ends)
        shared = list(pool.map(lambda each: log_ends.of(topics[SHARE_GROUPS], each), _partitions(topics, SHARE_GROUPS)))
        self._shares = list(pool.map(lambda each: read_shares(open_run, each, notes), shared))
        self._plan = plan = replace(plan, topics=with_leader_epochs(plan.topics, self._shares))
        decided = {TRANSACTIONS: stated, SHARE_GROUPS: shared}
        places = [(topic, partition) for topic in plan.topics if topic.topic not in decided for partition in topic.partitions]
        ended = dict(zip(((t.topic, p.partition) for t, p in places), pool.map(lambda place: log_ends.of(*place), places), strict=True))
        self.partitions = ended | {(name, each.partition): each for name, partitions in decided.items() for each in partitions}
        mine = [partition for place, partition in ended.items() if place[0] == OFFSETS]
        self._commits = list(pool.map(lambda partition: read_commits(open_run, partition, notes), mine))
        for partition, commits in zip(mine, self._commits, strict=True):
            self.partitions[OFFSETS, partition.partition] = with_rewritten(partition, commits.rows)
        if options.open_transactions != "keep":
            for partition, states in zip(stated, self._states, strict=True):
                self.partitions[TRANSACTIONS, partition.partition] = with_rewritten(partition, len(states.live))
        self._shared = shared

    @property
    def commitments(self) -> Iterator[Commitment]:
        """What coordinators had decided to commit, where parts of it may be missing, and what they had not decided yet."""
        for states in self._states:
            yield from states.commitments
            for transactional_id, state in states.current.items():
                if state.status == "ongoing":
                    yield Commitment(transactional_id, state, state.partitions)

    def ended(self, torn: Sequence[TornTransaction]) -> Ended:
        """The plan with all that was decided."""
        plan, ended, notes, found, shares = self._plan, self.partitions, self.notes, self._commits, self._shares
        log_ends = {place: partition.log_end for place, partition in ended.items()}
        ahead = [beyond for commits in found for beyond in ahead_of_logs(commits, log_ends)]
        for partition, held in zip(self._shared, shares, strict=True):
            kept, beyond = within_logs(held, plan.topics, log_ends)
            ahead += beyond
            if kept and not plan.request.options.keep_offsets:
                ended[SHARE_GROUPS, partition.partition] = with_commits(partition, kept)
        if plan.running is not None:
            ahead += commits_ahead(plan.running.commits, log_ends)
        states = merged(self._states)
        unknown = states.unknown.union(*(commits.unknown for commits in found), *(held.unknown for held in shares))
        left = {(topic.topic, each.partition): each.start_offset for topic in plan.topics for each in topic.partitions if each.left}
        below = {
            (key.group, *place)
            for commits in found
            for key, at in commits.outcome()
            if at.value.offset < left.get(place := (key.topic, key.partition), 0)
        }
        skipping = {group for held in shares for group in below_logs(held, plan.topics, left)}
        for commit in plan.running.commits if plan.running is not None else ():
            if commit.offset < left.get((commit.topic, commit.partition), 0):
                skipping |= {commit.group} if commit.shared else set()
                below |= set() if commit.shared else {(commit.group, commit.topic, commit.partition)}
        retired = sum(written.rewritten for (topic, _), log in ended.items() if topic == TRANSACTIONS for written in log.written)
        texts = (
            *sorted(notes.texts),
            *_notes(plan, ahead, unknown),
            *_notes_of_coordinators(ended, states, retired),
            *_notes_of_committed(notes.ended, states),
            *_notes_below(below),
            *_notes_skipping(skipping),
        )
        ended_plan = replace(
            plan,
            topics=tuple(
                replace(topic, partitions=tuple(ended[topic.topic, partition.partition] for partition in topic.partitions))
                for topic in plan.topics
            ),
            offsets_ahead=tuple(ahead),
            endings=texts,
        )
        named = named_before(plan, torn, self.partitions)
        transactions = [*notes.transactions, *cut_off_before(plan, self.partitions)]
        cut = replace(cut_of(plan, ended_plan, transactions, states), torn=(*torn, *named), retired=retired)
        ended_plan = replace(ended_plan, cut=cut)
        if plan.running is None:  # a running cluster has producer ids of its own
            ended_plan = replace(ended_plan, cut=replace(cut, next_producer_id=first_producer_id(ended_plan)))
        return Ended(ended_plan, notes.unread)


def named_before(plan: RecoveryPlan, torn: Sequence[TornTransaction], partitions: Mapping[Place, PartitionPlan]) -> list[TornTransaction]:
    """What was named when these ends were first decided, and of which a COMMIT still comes back: what was cut then is not in the plan any
    more."""

    def markers(each: TornTransaction) -> set[tuple[int, int, str, int]]:
        return {(each.producer_id, each.producer_epoch, *marker) for marker in zip(each.committed, each.markers, strict=True)}

    again = {marker for each in torn for marker in markers(each)}
    ends = {f"{topic}:{number}": partition.next_offset for (topic, number), partition in partitions.items()}
    return [
        each
        for each in (plan.cut.torn if plan.cut is not None else ())
        if not markers(each) & again and any(offset < ends.get(log, 0) for _, _, log, offset in markers(each))
    ]


def cut_off_before(plan: RecoveryPlan, partitions: Mapping[Place, PartitionPlan]) -> list[OpenTransactionAtCut]:
    """The same of transactions before which logs were cut then."""
    return [
        each
        for each in (plan.cut.transactions if plan.cut is not None else ())
        if each.outcome == "left out" and (each.topic, each.partition) in partitions
        if each.first_offset >= partitions[each.topic, each.partition].next_offset
    ]


def merged(found: Iterable[States]) -> States:
    """The states of all partitions as those of one."""
    states = States()
    for each in found:
        states.current |= each.current
        states.unknown |= each.unknown
        states.unreadable |= each.unreadable
    return states


def _notes_of_committed(ended: Iterable[tuple[Place, Open]], states: States) -> Iterator[str]:
    """Name the transactions of which no marker was archived, though their producers may have been told that they are committed."""
    open_epochs = {(transaction.producer_id, transaction.producer_epoch) for _, transaction in ended}
    committed = [
        f"{transactional_id} (producer id {state.marked_id}, epoch {state.data_epoch})"
        for transactional_id, state in sorted(states.current.items())
        if state.is_committed and (state.marked_id, state.data_epoch) in open_epochs
    ]
    if committed:
        shown = ", ".join(committed[:_SHOWN]) + (f" and {len(committed) - _SHOWN} more" if len(committed) > _SHOWN else "")
        yield f"their coordinator had decided to commit, but nothing proves that all their records were archived, so they end: {shown}"


def _notes_of_coordinators(ended: Mapping[Place, PartitionPlan], states: States, retired: int) -> Iterator[str]:
    for (topic, number), partition in sorted(ended.items()):
        if topic == TRANSACTIONS:
            for gap in partition.gaps:
                yield f"{topic}:{number}: offsets {gap.base_offset}-{gap.last_offset} are lost, with what its coordinator knew by them"
    if retired:
        yield f"new producer ids for {count_text(retired, 'transactional id')}: producers that survived are refused, and begin again"
    for transactional_id, state in sorted(states.current.items()):
        if retired and state.is_two_phase and state.unfinished:
            yield (
                f"the two-phase transaction of {transactional_id} (producer id {state.producer_id}, epoch {state.producer_epoch}) is "
                "aborted, though it may be prepared: its transaction manager must be told"
            )


def commits_ahead(commits: Iterable[GroupCommit], log_ends: Mapping[Place, int]) -> Iterator[OffsetAhead]:
    """Those that lie beyond the recovered logs."""
    for each in commits:
        end = log_ends.get((each.topic, each.partition))
        if end is not None and each.offset > end:
            yield OffsetAhead(
                group=each.group, topic=each.topic, partition=each.partition, offset=each.offset, log_end=end, shared=each.shared
            )


def _notes_below(below: Collection[tuple[str, str, int]]) -> Iterator[str]:
    """below: group, topic and partition of each committed offset that the recovered logs do not have and a gateway serves"""
    if below:
        groups = sorted({group for group, _, _ in below})
        shown = ", ".join(groups[:_SHOWN]) + (f" and {len(groups) - _SHOWN} more" if len(groups) > _SHOWN else "")
        yield (
            f"below the recovered logs, in what stays in the archive: {count_text(len(below), 'committed offset')}; groups continue there "
            f"through a gateway alone, at the broker auto.offset.reset decides: {shown}"
        )


def _notes_skipping(groups: Collection[str]) -> Iterator[str]:
    """groups: share groups that are not done with what stays in the archive"""
    if groups:
        ordered = sorted(groups)
        shown = ", ".join(ordered[:_SHOWN]) + (f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else "")
        yield (
            f"share groups skip what stays in the archive, as no gateway serves them: {shown}; recover their topics in full to have it "
            "delivered"
        )


def _partitions(topics: Mapping[str, TopicPlan], name: str) -> Sequence[PartitionPlan]:
    return topics[name].partitions if name in topics else ()


def _notes(plan: RecoveryPlan, ahead: Sequence[OffsetAhead], unknown: Iterable[str]) -> Iterator[str]:
    what = "kept, as requested" if plan.request.options.keep_offsets else "set back to the end"
    if ahead:
        yield f"beyond the end of the recovered logs, where new records would be skipped: {count_text(len(ahead), 'group offset')}; {what}"
    for each in ahead[:_SHOWN]:
        has = f"share group {each.group} has a state up to" if each.shared else f"group {each.group} has committed"
        yield f"{has} {each.offset} of {each.topic}:{each.partition}, which ends at {each.log_end}"
    if len(ahead) > _SHOWN:
        yield f"and {len(ahead) - _SHOWN} more, which are in the plan, offsets_ahead"
    for kind in sorted(unknown):
        yield f"{kind}: left as it is, this version cannot read it"
