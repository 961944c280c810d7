"""Settings that a recovery held back, so that the broker keeps what came back: which they are, and putting them back.

A broker measures retention against the times of the records: with its own settings a recovered topic would lose most of what came back
within minutes. They are put back, topic by topic, once the broker's logs of it are seen to begin and end as they were recovered.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from headwater_core.clock import Clock
from headwater_core.errors import ForeignOwner, NotFound, TransientError, UsageError, VerificationFailed
from recovery.completion import is_finished
from recovery.local_part import is_internal
from recovery.plan_notes import HELD_BACK
from recovery.recovery_plan import Place, RecoveryPlan, TopicPlan
from recovery.target import Mark, locked, read_mark, write_mark

_SHOWN = 20

TopicValues = Mapping[str, Mapping[str, str | None]]
"""By topic and name; None: the topic itself has none."""


class LogBounds(NamedTuple):
    start_offset: int
    next_offset: int


class ClusterAdmin(Protocol):
    """The recovered cluster, as its brokers answer. Everything raises TransientError, Unauthorised and UnsupportedFormat."""

    def cluster_id(self) -> str: ...

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Of those that there are."""
        ...

    def log_bounds(self, places: Collection[Place]) -> Mapping[Place, LogBounds]:
        """Start and high watermark of each log, by its leader."""
        ...

    def values(self, topics: Mapping[str, Collection[str]]) -> TopicValues:
        """Settings of topics by their names, as the topics themselves have them."""
        ...

    def change(self, wanted: TopicValues) -> None:
        """Set these; None: as if they had never been set for the topic. Done when it returns; after an error it may have been done too."""
        ...


class HeldSetting(msgspec.Struct, frozen=True, kw_only=True):
    """value: what is put back, None: the topic had none; recovered: what the recovered topic was given in its place, None: none."""

    topic: str
    name: str
    value: str | None
    recovered: str | None


class Finished(NamedTuple):
    """
    put_back   what the topics have again now, whoever set it
    changed    what somebody has set otherwise since, and stays so
    left       what needs more than a setting, such as a remote tier
    unlike     topics of which nothing was put back, and why: they are not as they were recovered
    again      it had been done before, and nothing was looked at
    """

    put_back: Sequence[HeldSetting]
    changed: Sequence[HeldSetting]
    left: Sequence[HeldSetting]
    unlike: Mapping[str, str] = {}
    again: bool = False


def all_held(plan: RecoveryPlan) -> list[HeldSetting]:
    """All that is held back, by topic."""
    return [
        HeldSetting(topic=topic.topic, name=name, value=value, recovered=topic.configs.get(name))
        for topic in plan.topics
        for name, value in sorted(topic.held.items())
    ]


def held_of(into: Path) -> list[HeldSetting]:
    """What the recovery in `into` still holds back; nothing where there is none."""
    mark = read_mark(into)
    return [] if mark is None else [*_waiting(mark), *_beyond_settings(mark.plan)]


def _waiting(mark: Mark) -> list[HeldSetting]:
    """The retention that is still to be put back."""
    if mark.put_back_ms is not None:
        return []
    return [each for each in all_held(mark.plan) if each.name in HELD_BACK and each.topic not in mark.put_back]


def _beyond_settings(plan: RecoveryPlan) -> list[HeldSetting]:
    return [each for each in all_held(plan) if each.name not in HELD_BACK]


def finish(into: Path, cluster: ClusterAdmin, clock: Clock, *, checked: bool = True) -> Finished:
    """Put back the retention that the recovery in `into` held back, of each topic once; may be repeated after any interruption.

    A value that somebody has changed since stays: it was set by a person who knew. A topic that is not as it was recovered, or not there
    any more, keeps no other one back; it is looked at again by the next run.

    checked  only where each log of a topic begins and ends where it was recovered, or ends later; else everywhere, and what is not there
             any more is done with

    Raises NotFound when there is no recovery, UsageError when it is not finished, ForeignOwner when this is not its cluster,
    VerificationFailed when not one topic is as it was recovered, TransientError when a partition does not answer or a setting is not yet
    what was set; and what `cluster` raises.
    """
    mark = read_mark(into)
    if mark is None:
        raise NotFound(f"no recovery was started in {into}")
    with locked(into):
        if mark.finished_ms is None or not is_finished(into, mark):
            raise UsageError(f"the recovery in {into} is not finished: run `headwater recover apply` again")
        left = _beyond_settings(mark.plan)
        if mark.put_back_ms is not None:
            return Finished([each for each in all_held(mark.plan) if each.name in HELD_BACK], (), left, again=True)
        _check_cluster(mark, cluster)
        waiting = _waiting(mark)
        unlike = _unlike(mark.plan, {each.topic for each in waiting}, cluster, checked=checked)
        retention = [each for each in waiting if each.topic not in unlike]
        if checked and unlike and not retention:
            raise VerificationFailed(
                f"{len(unlike)} topics are not as they were recovered; nothing was put back:{_listed(unlike.values())}"
            )
        changed = _put_back(retention, cluster)
        if checked and unlike:
            mark = replace(mark, put_back=tuple(sorted({*mark.put_back, *(each.topic for each in retention)})))
        else:
            mark = replace(mark, put_back_ms=clock.now_ms(), put_back=())
        write_mark(into, mark)
        return Finished([each for each in retention if each not in changed], changed, left, unlike)


def _put_back(retention: Sequence[HeldSetting], cluster: ClusterAdmin) -> list[HeldSetting]:
    """What was changed by somebody else, and stays."""
    found = cluster.values(_names(retention))
    unchanged = [each for each in retention if found[each.topic].get(each.name) == each.recovered]
    wanted: dict[str, dict[str, str | None]] = {}
    for each in unchanged:
        if each.value != each.recovered:
            wanted.setdefault(each.topic, {})[each.name] = each.value
    if wanted:
        cluster.change(wanted)
        now = cluster.values({topic: values.keys() for topic, values in wanted.items()})
        wrong = [f"{topic} {name}" for topic, values in wanted.items() for name, value in values.items() if now[topic].get(name) != value]
        if wrong:
            raise TransientError(f"{len(wrong)} settings are not yet as they were set, {wrong[0]} among them: run the same command again")
    return [each for each in retention if each not in unchanged and found[each.topic].get(each.name) != each.value]


def _names(settings: Sequence[HeldSetting]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for each in settings:
        names.setdefault(each.topic, []).append(each.name)
    return names


def _check_cluster(mark: Mark, cluster: ClusterAdmin) -> None:
    if (found := cluster.cluster_id()) != mark.plan.cluster_id:
        raise ForeignOwner(f"the brokers are of cluster {found}, what was recovered is {mark.plan.cluster_id}")


def _unlike(plan: RecoveryPlan, names: Collection[str], cluster: ClusterAdmin, *, checked: bool) -> dict[str, str]:
    """Which of the topics are not as they were recovered, and why. checked: by their logs, too."""
    topics = [topic for topic in plan.topics if topic.topic in names]
    ids = cluster.topic_ids(names)
    found = {
        topic.topic: f"{topic.topic} is not there any more, or another topic by its name"
        for topic in topics
        if ids.get(topic.topic) != topic.topic_id
    }
    if checked:
        found |= _unlike_logs([topic for topic in topics if topic.topic not in found], cluster)
    return found


def _unlike_logs(topics: Sequence[TopicPlan], cluster: ClusterAdmin) -> dict[str, str]:
    """A broker that lacks records says nothing of it: the log begins later, or ends earlier. Kafka itself trims what is internal."""
    planned = {(topic.topic, each.partition): each for topic in topics for each in topic.partitions}
    bounds = cluster.log_bounds(planned)
    if silent := [f"{topic}:{number}" for topic, number in planned if (topic, number) not in bounds]:
        raise TransientError(f"{len(silent)} partitions have no leader that answers, {silent[0]} among them: run the same command again")
    wrong: dict[str, list[str]] = {}
    for (topic, number), partition in planned.items():
        start, end = bounds[topic, number]
        if (start > partition.start_offset and not is_internal(topic)) or end < partition.log_end:
            wrong.setdefault(topic, []).append(
                f"{topic}:{number} has offsets {start} to {end - 1}, {partition.start_offset} to {partition.log_end - 1} came back"
            )
    return {
        topic: texts[0] + (f", and {len(texts) - 1} more of its logs are otherwise" if texts[1:] else "") for topic, texts in wrong.items()
    }


def _listed(texts: Collection[str]) -> str:
    shown = "".join(f"\n  {each}" for each in list(texts)[:_SHOWN])
    return shown + (f"\n  {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
