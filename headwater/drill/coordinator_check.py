"""The restored logs, replayed as their leaders and coordinators would: nothing in them may be left to be ended, or be about to expire."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headwater.drill.drill_tally import DrillTally, places_of
from headwater_core.errors import CorruptData
from headwater_core.files import disk_errors
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.batches import BatchHeader
from headwater_core.segments.coordinator_records import (
    CommitKey,
    CommitValue,
    UnknownRecord,
    decode_commit_key,
    decode_commit_value,
    decode_transaction_key,
    decode_transaction_value,
)
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from headwater_core.segments.records import Record, decode_batch
from headwater_core.segments.share_records import ShareKey
from headwater_core.segments.transactions import Transactions
from recovery import PartitionPlan, RecoveryPlan, TopicPlan
from recovery.recovered_groups import CommittedPlace
from recovery.share_groups import ShareStates

OFFSETS, TRANSACTIONS, SHARE_GROUPS = "__consumer_offsets", "__transaction_state", "__share_group_state"
COORDINATORS = frozenset({OFFSETS, TRANSACTIONS, SHARE_GROUPS})
"""Topics whose records mean something only together: a drill restores them whole."""


class Finding(NamedTuple):
    offset: int
    text: str


@dataclass(slots=True)
class RestoredState:
    """State that coordinators have to know of the restored logs.

    commits            by the partition of __consumer_offsets that holds them
    transactional_ids  that have a state in the archive, before the tombstones that recovery writes, or still
    starts             start offsets of share groups
    """

    commits: dict[int, dict[CommittedPlace, int]] = field(default_factory=dict)
    transactional_ids: set[str] = field(default_factory=set)
    starts: dict[ShareKey, int] = field(default_factory=dict)


def check_coordinators(whole: RecoveryPlan, restored: RecoveryPlan, log_dir: Path, began_ms: int, tally: DrillTally) -> RestoredState:
    """Replay every log that was restored to its end, and return what their coordinators have to know. What is wrong becomes a finding.

    began_ms  when the restoring began: no live commit may be older

    Raises what the disk raises.
    """
    state = RestoredState()
    for topic, partition in tails_of(whole, restored):
        directory = log_dir / f"{topic.topic}-{partition.partition}"
        try:
            for found in replay(
                topic.topic, directory, began_ms, partition=partition.partition, archived=partition.next_offset, into=state
            ):
                tally.find("differs", topic.topic, partition.partition, found.offset, found.text, "replay")
        except CorruptData as error:
            tally.find("differs", topic.topic, partition.partition, None, f"it cannot be replayed: {error}", "replay")
    return state


def tails_of(whole: RecoveryPlan, restored: RecoveryPlan) -> Iterator[tuple[TopicPlan, PartitionPlan]]:
    """Yield the partitions of which something was restored, up to the end."""
    ends = {(topic.topic, partition.partition): partition.next_offset for topic, partition in places_of(whole)}
    for topic, partition in places_of(restored):
        if partition.files and partition.next_offset == ends.get((topic.topic, partition.partition)):
            yield topic, partition


def replay(
    topic: str,
    directory: Path,
    began_ms: int,
    *,
    partition: int = 0,
    archived: int = 2**63 - 1,
    into: RestoredState | None = None,
) -> Iterator[Finding]:
    """Yield what a broker that starts on this log would have to end, or would soon expire. Raises CorruptData, and what the disk raises.

    archived  from this offset on, recovery wrote the records
    into      gets what the coordinator of `partition` has to know
    """
    into = RestoredState() if into is None else into
    transactions, states, commits, shares = Transactions(), dict[str, Record](), _Commits(), ShareStates()
    archived_states = dict[str, Record]()
    for header, raw in _batches(directory, decoded=topic in COORDINATORS):
        producer_id = header.producer_id
        if header.is_control:
            if header.records and (kind := read_marker(raw, where=topic).type) in (ABORT, COMMIT):
                transactions.marker(producer_id, header.base_offset, aborts=kind == ABORT)
                commits.end(producer_id, commits=kind == COMMIT)
            continue
        if header.is_transactional:
            transactions.data(producer_id, header.base_offset)
        if topic == OFFSETS:
            for record in decode_batch(raw, where=topic):
                commits.take(record, producer_id if header.is_transactional else None)
        elif topic == TRANSACTIONS:
            for record in decode_batch(raw, where=topic):
                _take_state(states, record)
                if record.offset < archived:
                    _take_state(archived_states, record)
        elif topic == SHARE_GROUPS:
            for record in decode_batch(raw, where=topic):
                shares.record(record, topic)
    if found := commits.live():
        into.commits[partition] = found
    into.transactional_ids |= archived_states.keys() | states.keys()
    into.starts |= {key: share.start_offset for key, share in shares.outcome().items() if share.start_offset >= 0}
    for producer_id, first_offset in transactions.open:
        yield Finding(first_offset, f"the transaction of producer id {producer_id} from offset {first_offset} on is open")
    yield from _unfinished(states)
    yield from commits.aged(began_ms)


def _batches(directory: Path, *, decoded: bool) -> Iterator[tuple[BatchHeader, bytes]]:
    """Every batch; its bytes only where they are `decoded`, or of a marker."""
    for path in sorted(directory.glob("*.log")):
        with disk_errors(path), path.open("rb") as file:
            for position, header in walk(file, 0, path.stat().st_size, where=str(path)):
                raw = b""
                if decoded or header.is_control:
                    file.seek(position)
                    raw = file.read(header.size_bytes)
                yield header, raw


def _take_state(states: dict[str, Record], record: Record) -> None:
    try:
        transactional_id = decode_transaction_key(record.key or b"", TRANSACTIONS)
    except (UnknownRecord, CorruptData):
        return  # nor can recovery tell whose it is
    states.pop(transactional_id, None)
    if record.value is not None:
        states[transactional_id] = record


def _unfinished(states: dict[str, Record]) -> Iterator[Finding]:
    for transactional_id, record in states.items():
        try:
            state = decode_transaction_value(record.value or b"", TRANSACTIONS)
        except (UnknownRecord, CorruptData) as error:
            yield Finding(
                record.offset, f"the state of transactional id {transactional_id!r} at offset {record.offset} is not known: {error}"
            )
            continue
        if state.unfinished:
            text = (
                f"transactional id {transactional_id!r} is in state {state.status} by offset {record.offset}: its coordinator would end it"
            )
            yield Finding(record.offset, text)


class _Commit(NamedTuple):
    offset: int
    value: CommitValue


class _Commits:
    """The commits of groups that a coordinator has when it has loaded a log."""

    def __init__(self) -> None:
        self._live: dict[CommitKey, _Commit] = {}
        self._pending: dict[int, dict[CommitKey, _Commit]] = {}

    def take(self, record: Record, producer_id: int | None) -> None:
        """producer_id: of the transaction that it is part of"""
        try:
            key = decode_commit_key(record.key or b"", OFFSETS)
        except (UnknownRecord, CorruptData):
            return
        if key is None:
            return
        try:
            commit = None if record.value is None else _Commit(record.offset, decode_commit_value(record.value, OFFSETS))
        except (UnknownRecord, CorruptData):
            commit = None  # only a broker can tell how old it is
        if commit is None:
            for commits in (self._live, *self._pending.values()):
                commits.pop(key, None)  # as a coordinator does: a marker that follows brings nothing of it back
        elif producer_id is None:
            self._live[key] = commit
        else:
            self._pending.setdefault(producer_id, {})[key] = commit

    def end(self, producer_id: int, *, commits: bool) -> None:
        for key, commit in self._pending.pop(producer_id, {}).items():
            before = self._live.get(key)
            if commits and (before is None or before.offset < commit.offset):
                self._live[key] = commit

    def live(self) -> dict[CommittedPlace, int]:
        return {CommittedPlace(*key): commit.value.offset for key, commit in self._live.items()}

    def aged(self, began_ms: int) -> Iterator[Finding]:
        """Yield those of which a broker would count an age from before `began_ms`, and those that no marker has ended."""
        for producer_id, pending in self._pending.items():
            for key, commit in pending.items():
                text = f"the commit of group {key.group!r} for {key.topic}:{key.partition} at offset {commit.offset} is pending"
                yield Finding(commit.offset, f"{text}, in the transaction of producer id {producer_id}")
        for key, commit in self._live.items():
            if commit.value.commit_ms < began_ms or commit.value.expires:
                text = f"the commit of group {key.group!r} for {key.topic}:{key.partition} at offset {commit.offset} has its age of before"
                yield Finding(commit.offset, f"{text}: it would expire early")
