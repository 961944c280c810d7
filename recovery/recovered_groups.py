"""Committed offsets as a recovery brings them back, and how those of a cluster that was started on it differ."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from headwater_core.errors import UnsupportedFormat, VerificationFailed
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
        """Return start offsets of share groups."""
        ...

    def offsets_retention_ms(self) -> int:
        """Return the age at which the first of the brokers removes commits of a group without members."""
        ...


class GroupComparison(NamedTuple):
    """Offsets that came back and that groups lack.

    unlike  by topic, those that only damage, or somebody on purpose, can have removed or set back
    notes   the others: commits that may have expired, and start offsets of share groups, whose group may be archived as it was earlier
    """

    unlike: dict[str, str]
    notes: list[str]


def compare_groups(plan: RecoveryPlan, topics: Collection[str], store: ObjectStore, cluster: GroupAdmin, age_ms: int) -> GroupComparison:
    """Return what groups lack of the commits and start offsets that came back of these topics.

    store   the bucket of the recovery: brokers may have compacted what it wrote
    age_ms  of the commits that came back, which is that of the recovery

    Raises VerificationFailed where the archive does not have it any more, and what `store` and `cluster` raise.
    """
    notes: list[str] = []
    wanted, starts = recovered_commits(plan, topics, store), recovered_starts(plan, topics, store)
    lower, absent = _differences("group", wanted, cluster.committed({key.group for key in wanted}) if wanted else {})
    try:
        further, unshared = _differences("share group", starts, cluster.shared({key.group for key in starts}) if starts else {})
        lower, notes = lower + further, [text for _, text in unshared]
    except UnsupportedFormat as error:
        notes.append(f"share groups were not compared: {error}")
    if absent and age_ms < cluster.offsets_retention_ms():
        lower += absent
    else:
        notes = [text for _, text in absent] + notes
    wrong: dict[str, list[str]] = {}
    for topic, text in lower:
        wrong.setdefault(topic, []).append(text)
    return GroupComparison({topic: "; ".join(_shown(texts)) for topic, texts in wrong.items()}, _shown([*dict.fromkeys(notes)]))


def _shown(texts: list[str]) -> list[str]:
    return texts[:_SHOWN] + ([f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else [])


def _differences(
    kind: str, wanted: Mapping[CommittedPlace, int], found: Mapping[CommittedPlace, int]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return topic and text of each lower offset, and of each that is not there. A group that has gone on is none."""
    lower: list[tuple[str, str]] = []
    absent: list[tuple[str, str]] = []
    known = {key.group for key in found}
    lost = Counter(key.group for key in wanted if key.group not in known)
    for key, offset in sorted(wanted.items()):
        if key.group in lost:
            absent.append((key.topic, f"{kind} {key.group} has no offsets at all, {lost[key.group]} came back"))
        elif key not in found:
            absent.append((key.topic, f"{kind} {key.group} has no offset of {key.topic}:{key.partition}, {offset} came back"))
        elif found[key] < offset:
            lower.append((key.topic, f"{kind} {key.group} has offset {found[key]} of {key.topic}:{key.partition}, {offset} came back"))
    return lower, [*dict.fromkeys(absent)]


def recovered_commits(plan: RecoveryPlan, topics: Collection[str], store: ObjectStore) -> dict[CommittedPlace, int]:
    """Return what groups have committed of these topics once the plan is applied. Raises VerificationFailed where the archive does not have
    it any more, and what the store raises."""
    notes, position = EndingNotes(), commit_positions(plan)
    found: dict[CommittedPlace, int] = {}
    for partition in _partitions(plan, OFFSETS):
        commits = read_commits(partial(fetched, store), partition, notes)
        for key, committed in commits.current.items():
            if key.topic in topics:
                found[CommittedPlace(*key)] = position(key.topic, key.partition, committed.value.offset)[0]
    _check(notes)
    return found


def recovered_starts(plan: RecoveryPlan, topics: Collection[str], store: ObjectStore) -> dict[CommittedPlace, int]:
    """Return where share groups begin in these topics once the plan is applied. Raises as `recovered_commits` does."""
    notes, names = EndingNotes(), {topic.topic_id: topic.topic for topic in plan.topics if topic.topic in topics}
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
            f"what groups had committed is not in the archive any more, as when an agent has merged it after a take-over, so nothing "
            f"was compared or put back: {'; '.join(notes.texts[:_SHOWN])}; --unchecked-groups compares logs alone"
        )
