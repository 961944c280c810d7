"""The cut of a recovery: where each log ends against where its archive does, and what had to be changed so that all agree with it.

Tails are archived at different moments, so a cluster comes back as of no single one: what groups have committed, transactions and
producer ids are brought to where the logs end.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from manifests.entry import OFFSET_MAX
from recovery.coordinators import States

if TYPE_CHECKING:
    from recovery.recovery_plan import PartitionPlan, RecoveryPlan

_SHOWN = 8  # partitions of one transaction

Outcome = Literal["aborted", "ended by the coordinator", "left open", "left out"]


class PartitionCut(msgspec.Struct, frozen=True, kw_only=True):
    """One partition. Ends are exclusive.

    head     where its archive ends
    bound    where the user, or a transaction that is cut off, lets it end at the latest; null: with the archive
    end      the smaller of both, and where a batch begins: the records of the recovered log end there
    log_end  the same with what recovery writes behind them
    last_timestamp_ms  of the newest record that comes back to the disk, or when it was published if that is earlier; null: of none, or
                       it is not known
    rpo_ms   how much later than the newest record that comes back, or stays in the archive below it, the reference is; null: not known
    rpo_from the reference. `archive`: the newest record that the archive has of the partition, so what is lost of it reaches so far;
             `snapshot`: when that of the cluster's metadata was taken, later than the newest record: at most that is lost before it, or
             nothing was written meanwhile
    """

    topic: str
    partition: int
    head: int
    bound: int | None
    end: int
    log_end: int
    last_timestamp_ms: int | None
    rpo_ms: int | None = None
    rpo_from: Literal["archive", "snapshot"] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.end <= self.log_end <= OFFSET_MAX + 1 or self.end > self.head:
            raise ValueError(f"{self.topic[:200]}:{self.partition} is cut at {self.end}, with a head at {self.head}")


class OpenTransactionAtCut(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction whose end did not come back.

    outcome      `aborted`: a marker is written; `left out`: the log is cut before it; `left open`, `ended by the coordinator`: as
                 requested, and the recovered coordinator does not know, or knows, a transaction of that producer
    coordinator  what the recovered coordinator says of that producer's last transaction, which may be a later one; "" where it does not
                 know the producer. `complete-commit` beside `aborted`: it, or a later one, was committed, and some of its records are
                 in partitions whose archive goes further
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int | None
    first_offset: int
    outcome: Outcome
    coordinator: str = ""


class UnfinishedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """One that the archived coordinator had not ended, in these partitions, TOPIC:NUMBER each.

    missing  those of them that do not come back
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    status: str
    partitions: tuple[str, ...]
    missing: tuple[str, ...] = ()
    is_two_phase: bool = False


class TornTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that its coordinator committed, and of which only a part comes back: readers of committed data see that part.

    transactional_id  "" where the coordinator's log does not name it
    producer_epoch    of its data
    committed, markers       partitions with its COMMIT, TOPIC:NUMBER each, and the markers' offsets
    missing, missing_from    partitions whose archive ends before its COMMIT, and where its records begin there, or the log ends
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: tuple[str, ...]
    markers: tuple[int, ...]
    missing: tuple[str, ...]
    missing_from: tuple[int, ...]

    def __str__(self) -> str:
        def listed(partitions: tuple[str, ...], offsets: tuple[int, ...]) -> str:
            shown = ", ".join(f"{partition} offset {offset}" for partition, offset in zip(partitions[:_SHOWN], offsets, strict=False))
            return shown + (f" and {len(partitions) - _SHOWN} more" if len(partitions) > _SHOWN else "")

        name = f"transaction of {self.transactional_id!r}" if self.transactional_id else "transaction"
        return (
            f"torn: {name} (producer id {self.producer_id}, epoch {self.producer_epoch}) is committed in "
            f"{listed(self.committed, self.markers)}, and its records are not in {listed(self.missing, self.missing_from)}"
        )


class RecoveryCut(msgspec.Struct, frozen=True, kw_only=True):
    """What group offsets are set back to stands in the plan's `offsets_ahead`.

    unfinished           transactions that the archived coordinator had not ended: recovery does it, or, where they are kept, the recovered
                         coordinator
    torn                 transactions of which a part comes back
    retired              how many transactional ids are ended by a tombstone: their producers get new producer ids
    coordinator_producer_id  the highest that it has given, as far as its log came back; -1: none
    next_producer_id     new producers get ids from there on
    """

    partitions: tuple[PartitionCut, ...]
    transactions: tuple[OpenTransactionAtCut, ...] = ()
    unfinished: tuple[UnfinishedTransaction, ...] = ()
    coordinator_producer_id: int = -1
    next_producer_id: int = 0
    torn: tuple[TornTransaction, ...] = ()
    retired: int = 0

    @property
    def shortened(self) -> tuple[PartitionCut, ...]:
        """The partitions whose logs end before their archives."""
        return tuple(each for each in self.partitions if each.end < each.head)


def cut_of(planned: "RecoveryPlan", ended: "RecoveryPlan", transactions: Iterable[OpenTransactionAtCut], states: States) -> RecoveryCut:
    """planned: as it was before its logs' ends were decided; ended: after; states: of the recovered coordinator"""
    known = {(each.topic, each.partition): each.head for each in planned.cut.partitions} if planned.cut else {}
    heads = {
        (topic.topic, each.partition): max(each.next_offset, each.archive_end or 0, known.get((topic.topic, each.partition), 0))
        for topic in planned.topics
        for each in topic.partitions
    }
    partitions = [
        _partition_cut(topic.topic, partition, heads[topic.topic, partition.partition], ended.cluster.taken_ms if ended.cluster else None)
        for topic in ended.topics
        for partition in topic.partitions
    ]
    by_producer = {state.producer_id: state.status for state in states.current.values()}
    found = (replace(each, coordinator=by_producer.get(each.producer_id, "")) for each in transactions)
    return RecoveryCut(
        partitions=tuple(partitions),
        transactions=tuple(sorted(found, key=lambda each: (each.topic, each.partition, each.first_offset, each.producer_id))),
        unfinished=tuple(_unfinished(states, heads.keys())),
        coordinator_producer_id=max(by_producer, default=-1),
    )


class Rpo(NamedTuple):
    """As rpo_ms and rpo_from say it."""

    ms: int
    reference: Literal["archive", "snapshot"]


def rpo_of(back_ms: int | None, archived_ms: int | None, taken_ms: int | None) -> Rpo | None:
    """None where it is not known.

    back_ms, archived_ms  the newest record that comes back, or stays below it; and the newest of the archive. None: none has a time
    taken_ms              when the snapshot was taken; None: there is none
    """
    if back_ms is None or archived_ms is None:
        return None
    if taken_ms is not None and taken_ms > max(back_ms, archived_ms):
        return Rpo(taken_ms - back_ms, "snapshot")
    return Rpo(max(0, archived_ms - back_ms), "archive")


def _partition_cut(topic: str, partition: "PartitionPlan", head: int, taken_ms: int | None) -> PartitionCut:
    end = partition.next_offset
    bound = partition.end.offset if partition.end is not None else end if end < head else None
    newest_ms = max((entry.newest_ms for entry in partition.files if entry.newest_ms is not None), default=None)
    rpo = rpo_of(newest_ms if end < head or partition.end is not None else partition.newest_ms, partition.newest_ms, taken_ms)
    return PartitionCut(
        topic=topic,
        partition=partition.partition,
        head=max(head, end),
        bound=bound,
        end=end,
        log_end=partition.log_end,
        last_timestamp_ms=newest_ms,
        rpo_ms=rpo.ms if rpo else None,
        rpo_from=rpo.reference if rpo else None,
    )


def _unfinished(states: States, places: Collection[tuple[str, int]]) -> Iterable[UnfinishedTransaction]:
    current: Mapping[str, object] = states.current
    for transactional_id in sorted(current):
        state = states.current[transactional_id]
        if state.unfinished:
            ordered = sorted(state.partitions)
            yield UnfinishedTransaction(
                transactional_id=transactional_id,
                producer_id=state.producer_id,
                producer_epoch=state.producer_epoch,
                status=state.status,
                partitions=tuple(f"{topic}:{number}" for topic, number in ordered),
                missing=tuple(f"{topic}:{number}" for topic, number in ordered if (topic, number) not in places),
                is_two_phase=state.is_two_phase,
            )
