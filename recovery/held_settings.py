"""Settings that a recovery held back, so that the broker keeps what came back: which they are, and putting them back.

A broker measures retention against the times of the records: with its own settings a recovered topic would lose most of what came back
within minutes. They are put back, topic by topic, once the broker's logs of it are seen to begin and end as they were recovered. Until then
the bucket has them as well: the archive of the recovered cluster knows no other settings than those that the recovery gave.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace as with_fields
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from headwater_core import milestones
from headwater_core.clock import Clock
from headwater_core.counts import count_text
from headwater_core.errors import ForeignOwner, HeadwaterError, NotFound, TransientError, UsageError, VerificationFailed
from headwater_core.objectstore.store import ObjectStore
from recovery.completion import is_finished
from recovery.discovery import ArchivedTopic, Found
from recovery.local_part import is_internal
from recovery.plan_notes import HELD_BACK
from recovery.recovered_groups import GroupAdmin, GroupComparison, compare_groups
from recovery.recovery_plan import HeldSetting, Place, RecoveryPlan, TopicPlan
from recovery.target import Mark, locked_mark, read_mark, write_mark
from recovery.target_record import read_records, record_put_back

_SHOWN = 20
_LOOKS, _PAUSE_S = 50, 0.2  # the broker that is asked may know less than the controller that has accepted it

MILESTONES = ("finish.changed", "finish.put_back", "finish.recorded")
"""Those of putting back."""

TopicValues = Mapping[str, Mapping[str, str | None]]
"""By topic and name; None: the topic itself has none."""


class LogBounds(NamedTuple):
    start_offset: int
    next_offset: int


class ClusterAdmin(GroupAdmin, Protocol):
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


class Finished(NamedTuple):
    """
    put_back   what the topics have again now, no matter who set it
    changed    what somebody has set otherwise since, and stays so
    left       what needs more than a setting, such as a remote tier
    unlike     topics of which nothing was put back, and why: they are not as they were recovered
    notes      what groups lack that keeps nothing from being put back
    again      it had been done before, and nothing was looked at
    unreported     why the bucket does not say that it is done; "" when it does, or nothing had to be said
    """

    put_back: Sequence[HeldSetting]
    changed: Sequence[HeldSetting]
    left: Sequence[HeldSetting]
    unlike: Mapping[str, str] = {}
    notes: Sequence[str] = ()
    again: bool = False
    unreported: str = ""


def held_of(into: Path) -> list[HeldSetting]:
    """What the recovery in `into` still holds back; nothing where there is none."""
    mark = read_mark(into)
    return [] if mark is None else [*_waiting(mark), *_beyond_settings(mark.plan)]


def _waiting(mark: Mark) -> list[HeldSetting]:
    """The retention that is still to be put back."""
    if mark.put_back_ms is not None:
        return []
    return [each for each in mark.plan.held if each.name in HELD_BACK and each.topic not in mark.put_back]


def _beyond_settings(plan: RecoveryPlan) -> list[HeldSetting]:
    return [each for each in plan.held if each.name not in HELD_BACK]


def with_originals(found: Found, store: ObjectStore) -> Found:
    """`found`, with the settings that an earlier recovery of this cluster held back and that nobody has put back or changed since: they are
    held back again, and put back in the end. Raises what the store raises."""
    records, wrong = read_records(store)
    waiting: dict[tuple[str, str], dict[str, HeldSetting | None]] = {}  # by cluster and topic id; the newest recovery of a topic counts
    for record in records:
        for each in record.held:
            by_name = waiting.setdefault((record.cluster_id, each.topic_id), {})
            by_name[each.name] = each if record.put_back_ms is None else None
    notes = [*found.notes, *(f"{each}: what that recovery has held back is not known" for each in wrong)]
    topics: list[ArchivedTopic] = []
    for archived in found.topics:
        manifest, configs = archived.manifest, dict(archived.manifest.configs or {})
        for name, held in waiting.get((manifest.cluster_id, manifest.topic_id), {}).items():
            if held and configs.get(name) == held.recovered:
                configs.pop(name, None)
                configs |= {} if held.value is None else {name: held.value}
                was = "none" if held.value is None else held.value
                notes.append(f"{manifest.topic}: {name} was {was} before an earlier recovery, and was never put back: `finish` does")
        topics.append(archived if manifest.configs is None else with_fields(archived, manifest=replace(manifest, configs=configs)))
    return with_fields(found, topics=topics, notes=notes)


def finish(
    into: Path,
    cluster: ClusterAdmin,
    clock: Clock,
    *,
    checked: bool = True,
    groups_checked: bool = True,
    store: ObjectStore | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> Finished:
    """Put back the retention that the recovery in `into` held back, of each topic once; may be repeated after any interruption.

    A value that somebody has changed since stays: it was set by a person who knew. A topic that is not as it was recovered, or not there
    any more, keeps no other one back; it is looked at again by the next run.

    checked  only where each log of a topic begins and ends where it was recovered, or ends later, and groups have what they had committed
             of it; else everywhere, and what is not there any more is done with
    groups_checked  else logs alone count: groups were deleted or reset on purpose
    store    the bucket of the recovery, which says from then on that nothing is held back; None: it is not recorded, and groups, which
             are compared with the archive, are not
    pause    waits so many seconds between two looks at what brokers know

    Raises NotFound when there is no recovery, UsageError when it is not finished, ForeignOwner when this is not its cluster,
    VerificationFailed when not one topic is as it was recovered, or the archive does not have any more what groups had committed,
    TransientError when a partition does not answer or a setting is not yet what was set; and what `cluster` raises.
    """
    with locked_mark(into) as mark:
        if mark is None:
            raise NotFound(f"no recovery was started in {into}")
        if mark.finished_ms is None or not is_finished(into, mark):
            raise UsageError(f"the recovery in {into} is not finished: run `headwater recover apply` again")
        left = _beyond_settings(mark.plan)
        if mark.put_back_ms is not None:
            put_back = [each for each in mark.plan.held if each.name in HELD_BACK]
            return Finished(put_back, (), left, again=True, unreported=_say_put_back(mark, store))
        _check_cluster(mark, cluster)
        waiting = _waiting(mark)
        topics = {setting.topic for setting in waiting}
        unlike = unlike_topics(mark.plan, topics, cluster, checked=checked)
        groups = GroupComparison({}, [])
        if checked and groups_checked and store is not None and mark.plan.running is None and (alike := topics - unlike.keys()):
            groups = compare_groups(mark.plan, alike, store, cluster, clock.now_ms() - mark.started_ms)
        unlike |= groups.unlike
        retention = [each for each in waiting if each.topic not in unlike]
        if checked and unlike and not retention:
            raise VerificationFailed(
                f"not as recovered: {count_text(len(unlike), 'topic')}; nothing was put back:{_listed(unlike.values())}"
                + ("\n--unchecked-groups compares logs alone, where groups were deleted or reset on purpose" if groups.unlike else "")
            )
        changed = _put_back(retention, cluster, pause)
        if checked and unlike:
            mark = with_fields(mark, put_back=tuple(sorted({*mark.put_back, *(each.topic for each in retention)})))
        else:
            mark = with_fields(mark, put_back_ms=clock.now_ms(), put_back=())
        mark = write_mark(into, mark)
        milestones.reached("finish.put_back")
        unreported = _say_put_back(mark, store)
        milestones.reached("finish.recorded")
        return Finished([each for each in retention if each not in changed], changed, left, unlike, groups.notes, unreported=unreported)


def _say_put_back(mark: Mark, store: ObjectStore | None) -> str:
    """In the bucket, when it is done; why that could not be. The cluster has its settings by then, and the next run says it again."""
    if store is None or mark.put_back_ms is None:
        return ""
    try:
        record_put_back(store, mark.plan.recovery_id, mark.put_back_ms)
    except HeadwaterError as error:
        return str(error)
    return ""


def _put_back(retention: Sequence[HeldSetting], cluster: ClusterAdmin, pause: Callable[[float], object]) -> list[HeldSetting]:
    """What was changed by somebody else, and stays."""
    found = cluster.values(_names(retention))
    unchanged = [each for each in retention if found[each.topic].get(each.name) == each.recovered]
    wanted: dict[str, dict[str, str | None]] = {}
    for each in unchanged:
        if each.value != each.recovered:
            wanted.setdefault(each.topic, {})[each.name] = each.value
    if wanted:
        cluster.change(wanted)
        milestones.reached("finish.changed")
        for _ in range(_LOOKS):
            if not (wrong := _not_set(wanted, cluster)):
                break
            pause(_PAUSE_S)
        else:
            raise TransientError(f"not yet as set: {count_text(len(wrong), 'setting')}, {wrong[0]} among them; run the same command again")
    return [each for each in retention if each not in unchanged and found[each.topic].get(each.name) != each.value]


def _not_set(wanted: TopicValues, cluster: ClusterAdmin) -> list[str]:
    now = cluster.values({topic: values.keys() for topic, values in wanted.items()})
    return [f"{topic} {name}" for topic, values in wanted.items() for name, value in values.items() if now[topic].get(name) != value]


def _names(settings: Sequence[HeldSetting]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for each in settings:
        names.setdefault(each.topic, []).append(each.name)
    return names


def _check_cluster(mark: Mark, cluster: ClusterAdmin) -> None:
    if (found := cluster.cluster_id()) != mark.plan.cluster_id:
        raise ForeignOwner(f"the brokers are of cluster {found}, what was recovered is {mark.plan.cluster_id}")


def unlike_topics(
    plan: RecoveryPlan, names: Collection[str], cluster: ClusterAdmin, *, checked: bool, trimmed: bool = False
) -> dict[str, str]:
    """Which of the topics are not as they were recovered, and why. checked: by their logs, too; trimmed: which may begin later."""
    topics = [topic for topic in plan.topics if topic.topic in names]
    ids = cluster.topic_ids(names)
    found = {
        topic.topic: f"{topic.topic} is not there any more, or another topic by its name"
        for topic in topics
        if ids.get(topic.topic) != topic.topic_id
    }
    if checked:
        found |= _unlike_logs([topic for topic in topics if topic.topic not in found], cluster, trimmed=trimmed)
    return found


def _unlike_logs(topics: Sequence[TopicPlan], cluster: ClusterAdmin, *, trimmed: bool) -> dict[str, str]:
    """A broker that lacks records says nothing of it: the log begins later, or ends earlier. Kafka itself trims what is internal."""
    planned = {(topic.topic, each.partition): each for topic in topics for each in topic.partitions}
    bounds = cluster.log_bounds(planned)
    if silent := [f"{topic}:{number}" for topic, number in planned if (topic, number) not in bounds]:
        raise TransientError(
            f"no leader answers for {count_text(len(silent), 'partition')}, {silent[0]} among them: run the same command again"
        )
    wrong: dict[str, list[str]] = {}
    for (topic, number), partition in planned.items():
        start, end = bounds[topic, number]
        if (start > partition.start_offset and not (trimmed or is_internal(topic))) or end < partition.log_end:
            wrong.setdefault(topic, []).append(
                f"{topic}:{number} has offsets {start} to {end - 1}, {partition.start_offset} to {partition.log_end - 1} came back"
            )
    return {
        topic: texts[0] + (f", and {len(texts) - 1} more of its logs are otherwise" if texts[1:] else "") for topic, texts in wrong.items()
    }


def _listed(texts: Collection[str]) -> str:
    shown = "".join(f"\n  {each}" for each in list(texts)[:_SHOWN])
    return shown + (f"\n  {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
