"""What an agent released is on a disk that loses power and fails to sync, whenever that happens."""

import os
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from headwater_core.objectstore.directory import DirectoryStore, directory_store
from headwater_core.objectstore.directory.durable_names import DurableNames
from headwater_core.objectstore.store import NewObject
from tests.simulation.power import run_seed

SEEDS = 200  # until a mistake is caught
_AT_ONCE = 50
WITNESSES = (
    "a commit that was never confirmed is on disk",
    "error TransientError",
    "error UnknownOutcome",
    "killed at directory.named",
    "killed at the sync of a directory",
    "power fails after a release",
    "power fails at archive.committed",
    "power fails at archive.uploaded",
    "power fails at directory.named",
    "power fails at directory.written",
    "power fails at release.log_unlinked",
    "power fails at the sync of a directory",
    "power fails at the sync of a file",
    "segments released",
    "the agent cannot start",
    "the sync of a directory fails",
    "the sync of a file fails",
)


_result_of = cache(run_seed)  # for the two tests below, which are in one process


@pytest.mark.xdist_group("power")
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(_AT_ONCE, SEEDS, _AT_ONCE))])
def test_no_power_loss_violates_an_invariant(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        result = _result_of(seed)
        assert not result.violation, "\n".join([*result.trace, f"seed {seed}", result.violation])


@pytest.mark.xdist_group("power")
def test_the_seeds_reach_what_is_interesting() -> None:
    seen = Counter[str]()
    for seed in range(SEEDS):
        seen += _result_of(seed).seen
        if all(seen[witness] for witness in WITNESSES):
            return
    pytest.fail(f"never reached: {[witness for witness in WITNESSES if not seen[witness]]}")


def reads_back_what_it_could_not_sync() -> Any:
    return patch.object(DurableNames, "check", lambda _, url: None)


def takes_a_failed_sync_for_done() -> Any:
    real = DurableNames.sync

    def sync(self: DurableNames, *directories: Path) -> None:
        try:
            real(self, *directories)
        except OSError:
            self._failed.clear()  # as if it had been no failure

    return patch.object(DurableNames, "sync", sync)


def syncs_no_directory_above() -> Any:
    real = DurableNames.sync

    def sync(self: DurableNames, *directories: Path) -> None:
        self._unsynced.clear()
        real(self, *directories)

    return patch.object(DurableNames, "sync", sync)


def syncs_no_data() -> Any:
    """Only documents, and directories."""
    real = DirectoryStore.put_all

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.fsync(fd)

    def put_all(self: DirectoryStore, objects: Sequence[NewObject]) -> list[str]:
        with patch.object(directory_store, "os", SimpleNamespace(**{**vars(os), "fsync": fsync})):
            return real(self, objects)

    return patch.object(DirectoryStore, "put_all", put_all)


MISTAKES = [reads_back_what_it_could_not_sync, takes_a_failed_sync_for_done, syncs_no_directory_above, syncs_no_data]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_caught(mistake: Callable[[], Any]) -> None:
    with mistake():
        assert any(run_seed(seed).violation for seed in range(SEEDS)), f"{mistake.__name__} is not caught"
