"""What groups had committed as a recovery brings it back, and how a cluster that was started on it differs."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from headwater_core.errors import VerificationFailed
from headwater_core.objectstore.store import ObjectStore
from recovery.coordinator_logs import read_commits, read_shares
from recovery.coordinator_tail import commit_positions
from recovery.coordinators import OFFSETS
from recovery.log_ends import EndingNotes
from recovery.recovery_plan import PartitionPlan, RecoveryPlan
from recovery.runs import fetched
from recovery.share_groups import SHARE_GROUPS

_SHOWN = 20


class CommittedPlace(NamedTuple):
    group: str
    topic: str
    partition: int


class GroupAdmin(Protocol):
    """Groups of a cluster, as their coordinators answer. Raises what is wrong where not all of it can be read."""

    def committed(self, groups: Collection[str]) -> Mapping[CommittedPlace, int]: ...

    def shared(self, groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        """As `committed`, of the start offsets of share groups."""
        ...


def unlike_groups(plan: RecoveryPlan, store: ObjectStore, cluster: GroupAdmin) -> dict[str, str]:
    """Return the topics of which groups have not what came back, or are before it, and which groups these are.

    store  the bucket of the recovery: brokers may have compacted what it wrote

    Raises VerificationFailed where the archive does not have it any more, and what `store` and `cluster` raise.
    """
    wanted = recovered_commits(plan, store)
    starts = recovered_starts(plan, store)
    wrong: dict[str, list[str]] = {}
    for topic, text in (*_differences("group", wanted, cluster.committed), *_differences("share group", starts, cluster.shared)):
        wrong.setdefault(topic, []).append(text)
    return {
        topic: "; ".join(texts[:_SHOWN]) + (f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
        for topic, texts in wrong.items()
    }


def _differences(
    kind: str, wanted: Mapping[CommittedPlace, int], read: Callable[[Collection[str]], Mapping[CommittedPlace, int]]
) -> Iterator[tuple[str, str]]:
    """Yield topic and text. A group that has gone on is none."""
    found = read({key.group for key in wanted}) if wanted else {}
    for key, offset in sorted(wanted.items()):
        if found.get(key, -1) < offset:
            has = f"offset {found[key]}" if key in found else "no offset"
            yield key.topic, f"{kind} {key.group} has {has} of {key.topic}:{key.partition}, {offset} came back"


def recovered_commits(plan: RecoveryPlan, store: ObjectStore) -> dict[CommittedPlace, int]:
    """Return what groups have committed of the plan's topics once it is applied. Raises VerificationFailed where the archive does not have
    it any more, and what the store raises."""
    notes, position, names = EndingNotes(), commit_positions(plan), {topic.topic for topic in plan.topics}
    found: dict[CommittedPlace, int] = {}
    for partition in _partitions(plan, OFFSETS):
        commits = read_commits(partial(fetched, store), partition, notes)
        for key, committed in commits.current.items():
            if key.topic in names:
                found[CommittedPlace(*key)] = position(key.topic, key.partition, committed.value.offset)[0]
    _check(notes)
    return found


def recovered_starts(plan: RecoveryPlan, store: ObjectStore) -> dict[CommittedPlace, int]:
    """The same of the start offsets of share groups."""
    notes, names = EndingNotes(), {topic.topic_id: topic.topic for topic in plan.topics}
    keeps = plan.request.options.keep_offsets
    ends = {(topic.topic, partition.partition): partition.log_end for topic in plan.topics for partition in topic.partitions}
    found: dict[CommittedPlace, int] = {}
    for partition in _partitions(plan, SHARE_GROUPS):
        for key, state in read_shares(partial(fetched, store), partition, notes).outcome().items():
            name = names.get(key.topic_id, "")
            end = ends.get((name, key.partition))
            if end is not None and state.start_offset >= 0:
                found[CommittedPlace(key.group, name, key.partition)] = state.start_offset if keeps else min(state.start_offset, end)
    _check(notes)
    return found


def _partitions(plan: RecoveryPlan, topic: str) -> Iterator[PartitionPlan]:
    return (partition for planned in plan.topics if planned.topic == topic for partition in planned.partitions)


def _check(notes: EndingNotes) -> None:
    if notes.texts:
        raise VerificationFailed(
            f"what groups had committed is not in the archive any more, so they cannot be compared and nothing was put back: "
            f"{'; '.join(notes.texts[:_SHOWN])}. --unchecked does it all the same"
        )
