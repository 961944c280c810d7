"""A broker that was started on what was restored: no commit of a group is gone after a check of expiry, every transactional id can begin
again, and readers of committed data get to the end of each log."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

from headwater.drill.coordinator_check import COORDINATORS, OFFSETS, SHARE_GROUPS, TRANSACTIONS, RestoredState, tails_of
from headwater.drill.drill_tally import DrillTally
from headwater.drill.equipment import SpareBroker
from headwater.drill.metadata_check import EXPIRY, expiry_settings
from headwater_core.counts import count_text
from headwater_core.errors import ENVIRONMENT_ERRORS, HeadwaterError, UnsupportedFormat
from headwater_core.partition import TopicPartition
from headwater_core.segments.share_records import ShareKey
from recovery import RecoveryPlan
from recovery.recovered_groups import CommittedPlace

IDS_MAX = 1000  # transactional ids that begin again

T = TypeVar("T")


def check_broker(
    spare: SpareBroker, whole: RecoveryPlan, restored: RecoveryPlan, state: RestoredState, log_dir: Path, seed: int, tally: DrillTally
) -> None:
    """Ask for all that `state` has, and read each log that was restored to its end. What is wrong becomes a finding, what does not answer
    blocks the drill.

    seed  of the sample of transactional ids, where there are more than IDS_MAX
    """
    _check_commits(spare, restored, state.commits, tally)
    _check_starts(spare, restored, state.starts, tally)
    _check_ids(spare, state.transactional_ids, seed, tally)
    _check_ends(spare, whole, restored, tally)
    if defaults := [name for name in EXPIRY if name not in expiry_settings(log_dir, restored.node_id)]:
        tally.unchecked.append(f"the lost brokers' {', '.join(defaults)}: no snapshot has them, the drill's broker has Kafka's defaults")


def _check_commits(spare: SpareBroker, plan: RecoveryPlan, commits: Mapping[int, Mapping[CommittedPlace, int]], tally: DrillTally) -> None:
    if not commits:
        return
    wanted = {key: offset for some in commits.values() for key, offset in some.items()}
    groups = {key.group for key in wanted}
    partitions = next(len(topic.partitions) for topic in plan.topics if topic.topic == OFFSETS)
    controls = [control_group(number, partitions, groups) for number in commits]

    def found() -> Mapping[CommittedPlace, int]:
        spare.coordinators.pass_expiry_check(controls, OFFSETS)
        return spare.coordinators.committed(groups)

    known = _answer(found, OFFSETS, "committed offsets", spare.path.name, tally)
    if known is None:
        return
    tally.answers["committed offsets"] = len(wanted)
    for key, offset in sorted(wanted.items()):
        if known.get(key) != offset:
            has = f"offset {known[key]}" if key in known else "no commit"
            text = f"group {key.group!r} has {has} for {key.topic}:{key.partition}, {offset} was restored"
            tally.find("differs", OFFSETS, None, None, text, spare.path.name)


def control_group(partition: int, partitions: int, taken: Collection[str]) -> str:
    """Return a name that is not `taken`, of a group that this partition of __consumer_offsets holds, of so many."""
    number = 0
    while (name := f"headwater-drill-{number}") in taken or java_hash(name) % partitions != partition:
        number += 1
    return name


def java_hash(text: str) -> int:
    """Return String.hashCode() of ASCII text, without its sign, as Kafka's Utils.abs has it."""
    found = 0
    for letter in text:
        found = (found * 31 + ord(letter)) & 0xFFFFFFFF
    signed = found - (1 << 32) if found >> 31 else found
    return 0 if signed == -(1 << 31) else abs(signed)


def _check_starts(spare: SpareBroker, plan: RecoveryPlan, starts: Mapping[ShareKey, int], tally: DrillTally) -> None:
    names = {topic.topic_id: topic.topic for topic in plan.topics}
    wanted = {
        CommittedPlace(key.group, names[key.topic_id], key.partition): start for key, start in starts.items() if key.topic_id in names
    }
    if not wanted:
        return
    known = _answer(lambda: spare.coordinators.shared({key.group for key in wanted}), SHARE_GROUPS, "share groups", spare.path.name, tally)
    if known is None:
        return
    tally.answers["start offsets of share groups"] = len(wanted)
    for key, start in sorted(wanted.items()):
        text = f"share group {key.group!r} begins at offset {known.get(key)} of {key.topic}:{key.partition}, {start} was restored"
        if key not in known:  # its group may be archived as it was before or after
            tally.unmet.append(f"{spare.path.name}: share group {key.group!r} is not known for {key.topic}:{key.partition}")
        elif known[key] != start:
            tally.find("differs", key.topic, key.partition, start, text, spare.path.name)


def _check_ids(spare: SpareBroker, ids: Collection[str], seed: int, tally: DrillTally) -> None:
    chosen: Sequence[str] = sorted(ids)
    if len(ids) > IDS_MAX:
        chosen = sorted(Random(seed).sample(chosen, IDS_MAX))
        tally.unchecked.append(f"{count_text(len(ids) - IDS_MAX, 'transactional id')} of {len(ids)}: {IDS_MAX} were drawn to begin again")
    if not chosen:
        return
    done = _answer(lambda: spare.coordinators.initialize(chosen), TRANSACTIONS, "transactional ids", spare.path.name, tally)
    if done is None:
        return
    tally.answers["transactional ids"] = len(chosen)
    for name in chosen:
        if why := done.get(name, "no answer"):
            tally.find("differs", TRANSACTIONS, None, None, f"transactional id {name!r} cannot begin again: {why}", spare.path.name)


def _check_ends(spare: SpareBroker, whole: RecoveryPlan, plan: RecoveryPlan, tally: DrillTally) -> None:
    """Read each log to its end, and find any that has become longer: a coordinator has ended a transaction there. Only the coordinators'
    own logs grow by what the drill asks of them."""
    for topic, partition in tails_of(whole, plan):
        log = TopicPartition(topic.topic, partition.partition)
        first = max(partition.start_offset, partition.files[-1].base_offset)

        def ends(log: TopicPartition = log, first: int = first) -> tuple[int, int]:
            return spare.path.bounds(log).end, spare.path.stable_end(log, first)

        found = _answer(ends, log.topic, f"the end of {log}", spare.path.name, tally)
        if found is None:
            continue
        tally.answers["ends of logs"] = tally.answers.get("ends of logs", 0) + 1
        end, stable = found
        if stable < end:
            text = f"a reader of committed data ends at offset {stable}, the log at {end}"
        elif end > partition.log_end and topic.topic not in COORDINATORS:
            text = f"the log ends at offset {end}, it was restored up to {partition.log_end}: a coordinator has ended a transaction there"
        else:
            continue
        tally.find("differs", log.topic, log.partition, min(stable, end), text, spare.path.name)


def _answer(ask: Callable[[], T], topic: str, what: str, name: str, tally: DrillTally) -> T | None:
    """Return the answer; None where there is none, which is noted."""
    try:
        return ask()
    except (*ENVIRONMENT_ERRORS, UnsupportedFormat) as error:  # the drill's broker has no such request, or no share groups
        tally.blocked.append(f"{name}: {what} could not be checked: {error}")
    except HeadwaterError as error:
        tally.find("differs", topic, None, None, f"{what} cannot be read: {error}", name)
    return None
