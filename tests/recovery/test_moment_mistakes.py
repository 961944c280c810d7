"""Mistakes planted in what recovery decides about transactions and groups: the model of Kafka's coordinators must notice each.

Each has the seeds of archived moments that catch it, so that nothing is searched for.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headwater_core.errors import HeadwaterError
from headwater_core.segments.coordinator_records import CommitValue, idle_group
from recovery import coordinator_tail, coordinators, log_ends
from recovery.coordinator_logs import with_rewritten
from recovery.recovery_plan import Abort, PartitionPlan
from recovery.torn_transactions import TornFound, find_torn
from tests.recovery.archived_moment import ArchivedMoment
from tests.recovery.recovered_moment import RecoveredMoment
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

    def ended(self: Any, partition: PartitionPlan, known: Any, log: Any, where: str) -> PartitionPlan:
        found = honest(self, partition, known, log, where)
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

    def ended(self: Any, partition: PartitionPlan, known: Any, log: Any, where: str) -> PartitionPlan:
        found = honest(self, partition, known, log, where)
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
    )
}


def problems(seed: int, into: Path) -> Iterator[str]:
    moment = ArchivedMoment(seed)
    yield from (problem.kind for problem in RecoveredMoment(moment, into, moment.recover(into)).problems())


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
