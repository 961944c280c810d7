"""Where recovered logs end: transactions that are open there, and offsets that groups committed beyond.

Tails are archived at different moments. A log that ends inside a transaction stops every reader of committed data there, until a
coordinator that knows of the transaction ends it; a group that committed more than came back would skip what is
produced next.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from headwater_core.objectstore.store import ObjectStore
from headwater_core.threads import ContextThreads
from recovery.coordinator_logs import clamped, read_commits, read_shares, read_states, with_commits
from recovery.coordinators import OFFSETS, TRANSACTIONS, States
from recovery.cut import cut_of
from recovery.initial_metadata import first_producer_id
from recovery.log_ends import EndingNotes, LogEnds
from recovery.recovery_plan import GroupCommit, OffsetAhead, PartitionPlan, Place, RecoveryPlan, TopicPlan
from recovery.share_groups import SHARE_GROUPS, below_logs, with_leader_epochs, within_logs

_READERS = 8
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
    topics = {topic.topic: topic for topic in plan.topics}
    notes = EndingNotes()
    with ContextThreads(_READERS, "recover-endings") as pool:
        states, own_ends = States(), LogEnds(store, plan, {}, notes)
        stated = list(pool.map(lambda each: own_ends.of(topics[TRANSACTIONS], each), _partitions(topics, TRANSACTIONS)))
        for each in pool.map(lambda partition: read_states(store, partition, notes), stated):  # no further than the log comes back
            states.current |= each.current
            states.unknown |= each.unknown
        ends = LogEnds(store, plan, states.unfinished(), notes)
        shared = list(pool.map(lambda each: ends.of(topics[SHARE_GROUPS], each), _partitions(topics, SHARE_GROUPS)))
        shares = list(pool.map(lambda each: read_shares(store, each, notes), shared))
        plan = replace(plan, topics=with_leader_epochs(plan.topics, shares))
        decided = {TRANSACTIONS: stated, SHARE_GROUPS: shared}
        places = [(topic, partition) for topic in plan.topics if topic.topic not in decided for partition in topic.partitions]
        ended = dict(zip(((t.topic, p.partition) for t, p in places), pool.map(lambda place: ends.of(*place), places), strict=True))
        ended |= {(name, each.partition): each for name, partitions in decided.items() for each in partitions}
        log_ends = {place: partition.log_end for place, partition in ended.items()}
        mine = [partition for place, partition in ended.items() if place[0] == OFFSETS]
        found = list(pool.map(lambda partition: read_commits(store, partition, notes), mine))
    ahead: list[OffsetAhead] = []
    for partition, commits in zip(mine, found, strict=True):
        moved, beyond = clamped(commits, log_ends)
        ahead += beyond
        if moved and not plan.request.options.keep_offsets:
            ended[OFFSETS, partition.partition] = with_commits(partition, moved)
    for partition, held in zip(shared, shares, strict=True):
        kept, beyond = within_logs(held, plan.topics, log_ends)
        ahead += beyond
        if kept and not plan.request.options.keep_offsets:
            ended[SHARE_GROUPS, partition.partition] = with_commits(partition, kept)
    if plan.running is not None:
        ahead += commits_ahead(plan.running.commits, log_ends)
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
    texts = (*sorted(notes.texts), *_notes(plan, ahead, unknown), *_notes_below(below), *_notes_skipping(skipping))
    ended_plan = replace(
        plan,
        topics=tuple(
            replace(topic, partitions=tuple(ended[topic.topic, partition.partition] for partition in topic.partitions))
            for topic in plan.topics
        ),
        offsets_ahead=tuple(ahead),
        endings=texts,
    )
    ended_plan = replace(ended_plan, cut=cut_of(plan, ended_plan, notes.transactions, states))
    if ended_plan.cut is not None and plan.running is None:  # a running cluster has producer ids of its own
        ended_plan = replace(ended_plan, cut=replace(ended_plan.cut, next_producer_id=first_producer_id(ended_plan)))
    return Ended(ended_plan, notes.unread)


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
            f"{len(below)} committed offsets lie below the recovered logs, in what stays in the archive: their groups continue there "
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
    what = "they stay, as requested" if plan.request.options.keep_offsets else "they are set back to the end"
    if ahead:
        kinds = "committed offsets and states of share groups" if any(each.shared for each in ahead) else "committed offsets"
        yield f"{len(ahead)} {kinds} lie beyond the end of the recovered logs, where new records would be skipped: {what}"
    for each in ahead[:_SHOWN]:
        has = f"share group {each.group} has a state up to" if each.shared else f"group {each.group} has committed"
        yield f"{has} {each.offset} of {each.topic}:{each.partition}, which ends at {each.log_end}"
    if len(ahead) > _SHOWN:
        yield f"{len(ahead) - _SHOWN} more groups and partitions are in the plan, offsets_ahead"
    for kind in sorted(unknown):
        yield f"{kind}: left as it is, this version cannot read it"
