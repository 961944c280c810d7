"""Whatever the moments at which the logs of a cluster were archived, and however late it is recovered: I29.

`MOMENT_SEEDS=100000` draws more of them (`make soak`); `MOMENT_SEEDS_FROM=4711 MOMENT_SEEDS=1` repeats one.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from recovery import (
    archive_remainder,
    bucket_survey,
    discovery,
    endings,
    placement,
    requested_ends,
    revision,
    target_contents,
    unlisted_runs,
)
from tests.recovery.recovered_moment import losses
from tests.simulation.recoveries import InlinePool

SEEDS, FIRST = int(os.environ.get("MOMENT_SEEDS", "200")), int(os.environ.get("MOMENT_SEEDS_FROM", "0"))
BLOCKS = 10
SHOWN = 12  # of the last events
POOLED = (archive_remainder, bucket_survey, discovery, endings, placement, requested_ends, revision, target_contents, unlisted_runs)


@pytest.fixture(autouse=True)
def _inline() -> Iterator[None]:
    """Without threads, and without fsync, as no power is cut: both would take most of the time."""
    with ExitStack() as patched:
        patched.enter_context(patch("os.fsync"))
        for module in POOLED:
            patched.enter_context(patch.object(module, "ContextThreads", InlinePool))
        yield


@pytest.mark.parametrize("block", range(BLOCKS))
def test_transactions_and_groups_are_whole_after_a_recovery(block: int, tmp_path: Path) -> None:
    for seed in range(FIRST + block, FIRST + SEEDS, BLOCKS):
        for moment, problems in losses(seed, tmp_path / str(seed)):
            shown = "\n".join(f"{problem.kind}: {problem.text}" for problem in problems)
            assert not problems, f"{moment}\n" + "\n".join(moment.cluster.events[-SHOWN:]) + f"\n{shown}"
        shutil.rmtree(tmp_path / str(seed))
