"""Mistakes planted in what recovery decides about transactions and groups: the model of Kafka's coordinators must notice each.

Each has the seeds of archived moments that catch it, so that nothing is searched for.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headwater_core.errors import HeadwaterError
from headwater_core.segments.coordinator_records import CommitValue, TransactionState, idle_group
from recovery import coordinator_logs, coordinator_tail, coordinators, log_ends
from recovery.coordinator_logs import with_rewritten
from recovery.recovery_plan import Abort, PartitionPlan
from recovery.torn_transactions import TornFound, find_torn
from tests.recovery.recovered_moment import losses
from tests.recovery.test_archived_moments import _inline  # noqa: F401  without threads

SEEDS = range(120)
Patch = pytest.MonkeyPatch


def no_tombstones(patch: Patch) -> None:
    def without(partition: PartitionPlan, count: int) -> PartitionPlan:
        is_transactions = any(entry.key.find("__transaction_state") >= 0 for entry in partition.files)
        return partition if is_transactions else with_rewritten(partition, count)

    patch.setattr("recovery.endings.with_rewritten", without)


def old_commit_times(patch: Patch) -> None:
    honest = CommitValue.rewritten

    def kept(self: Any, offset: int, *, epoch_max: int, commit_ms: int) -> bytes:
        raw = bytearray(honest(self, offset, epoch_max=epoch_max, commit_ms=commit_ms))
        for at in range(len(raw) - 7):
            if raw[at : at + 8] == commit_ms.to_bytes(8, "big", signed=True):
                raw[at : at + 8] = self.raw[at : at + 8]
        return bytes(raw)

    patch.setattr(CommitValue, "rewritten", kept)


def old_idle_times(patch: Patch) -> None:
    def kept(value: bytes, where: str, *, since_ms: int) -> bytes | None:
        return value if idle_group(value, where, since_ms=since_ms) else None

    patch.setattr("recovery.coordinators.idle_group", kept)


def pending_commits_stay(patch: Patch) -> None:
    honest = log_ends.LogEnds._ended

    def ended(self: Any, partition: PartitionPlan, log: Any, where: str) -> PartitionPlan:
        found = honest(self, partition, log, where)
        return replace(found, written=()) if log[0] == coordinators.OFFSETS else found

    patch.setattr(log_ends.LogEnds, "_ended", ended)


def markers_of_the_data_s_epoch_less_one(patch: Patch) -> None:
    honest = log_ends._abort_of

    def lower(transaction: Any, coordinator_epoch: int) -> Abort:
        made = honest(transaction, coordinator_epoch)
        return replace(made, producer_epoch=max(0, made.producer_epoch - 2))

    patch.setattr(log_ends, "_abort_of", lower)


def coordinator_epoch_0(patch: Patch) -> None:
    honest = log_ends._abort_of
    patch.setattr(log_ends, "_abort_of", lambda transaction, epoch: replace(honest(transaction, epoch), coordinator_epoch=0))


def nothing_is_torn(patch: Patch) -> None:
    patch.setattr("recovery.endings.find_torn", lambda *arguments: TornFound((), {}))


def what_is_torn_is_not_cut(patch: Patch) -> None:
    def blind(*arguments: Any) -> TornFound:
        found = find_torn(*arguments)
        return TornFound((), {}) if found.ends else found

    patch.setattr("recovery.endings.find_torn", blind)


def the_coordinator_is_believed(patch: Patch) -> None:
    """It ends what it knows, by producer id alone."""
    honest = log_ends.LogEnds._ended

    def ended(self: Any, partition: PartitionPlan, log: Any, where: str) -> PartitionPlan:
        found = honest(self, partition, log, where)
        return replace(found, written=found.written[:-1]) if found.written else found

    patch.setattr(log_ends.LogEnds, "_ended", ended)


def commits_beyond_the_end(patch: Patch) -> None:
    patch.setattr(coordinator_tail, "commit_positions", lambda plan: lambda topic, partition, offset: (offset, -1))


def an_older_leader_epoch_is_kept(patch: Patch) -> None:
    honest = coordinator_tail.commit_positions

    def positions(plan: Any) -> Callable[[str, int, int], tuple[int, int]]:
        position = honest(plan)
        return lambda topic, partition, offset: (position(topic, partition, offset)[0], 2**31 - 1)

    patch.setattr(coordinator_tail, "commit_positions", positions)


def a_fixed_next_producer_id(patch: Patch) -> None:
    """It is above all ids of a first life, and not above those of a second."""
    patch.setattr("recovery.initial_metadata.first_producer_id", lambda plan: 1_001_000)


def offsets_are_counted_by_records(patch: Patch) -> None:
    """What the cleaner removed has an offset, and no record: what is written behind the log lies within it."""
    honest = coordinator_logs._with_end

    def with_end(partition: PartitionPlan, change: Any) -> PartitionPlan:
        if partition.gaps or partition.written:
            return honest(partition, change)
        counted = replace(partition, next_offset=partition.start_offset + partition.records, written=())
        return replace(honest(counted, change), next_offset=partition.next_offset)

    patch.setattr(coordinator_logs, "_with_end", with_end)


def a_tombstone_deletes_nothing(patch: Patch) -> None:
    honest = coordinators.Commits.record

    def record(self: Any, record: Any, transaction_of: int | None, where: str) -> None:
        if record.value is not None:
            honest(self, record, transaction_of, where)

    patch.setattr(coordinators.Commits, "record", record)


def what_is_kept_is_aborted(patch: Patch) -> None:
    honest = log_ends.LogEnds.__init__

    def init(self: Any, *arguments: Any) -> None:
        honest(self, *arguments)
        self._how = "abort" if self._how == "keep" else self._how

    patch.setattr(log_ends.LogEnds, "__init__", init)


def what_is_kept_is_not_named(patch: Patch) -> None:
    honest = log_ends.LogEnds._keep

    def kept(self: Any, *arguments: Any) -> int:
        texts = [*self._notes.texts]
        found = honest(self, *arguments)
        self._notes.texts[:] = texts
        return found

    patch.setattr(log_ends.LogEnds, "_keep", kept)


def a_coordinator_ends_whatever_has_its_producer_id(patch: Patch) -> None:
    patch.setattr(TransactionState, "ends", lambda self, data_epoch: self.unfinished)


MISTAKES = {
    mistake.__name__: mistake
    for mistake in (
        no_tombstones,
        old_commit_times,
        old_idle_times,
        pending_commits_stay,
        markers_of_the_data_s_epoch_less_one,
        coordinator_epoch_0,
        nothing_is_torn,
        what_is_torn_is_not_cut,
        the_coordinator_is_believed,
        commits_beyond_the_end,
        an_older_leader_epoch_is_kept,
        a_fixed_next_producer_id,
        offsets_are_counted_by_records,
        a_tombstone_deletes_nothing,
        what_is_kept_is_aborted,
        what_is_kept_is_not_named,
        a_coordinator_ends_whatever_has_its_producer_id,
    )
}


def problems(seed: int, within: Path) -> Iterator[str]:
    for _, found in losses(seed, within):
        yield from (problem.kind for problem in found)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_about_transactions_and_groups_is_caught(name: str, monkeypatch: Patch, tmp_path: Path) -> None:
    MISTAKES[name](monkeypatch)
    for seed in SEEDS:
        try:
            if any(problems(seed, tmp_path / str(seed))):
                return
        except HeadwaterError:  # it cannot even be recovered any more
            return
    pytest.fail(f"no seed of {SEEDS} notices {name}")
