"""Every kind of recovery, killed at every named step and run again, leaves what an undisturbed one leaves; and so does one run twice.

By an exception that nothing catches, so in a fraction of a second. By a real SIGKILL: tests/recovery/test_restoration.py, and from the
command line tests/e2e/test_kill9.py. At every write, not at named steps alone: tests/recovery/test_full_disk.py.
"""

import os
from functools import partial
from pathlib import Path

import pytest

from tests.recovery.kill_walk import FIRST, LATER, UNDECIDED, VARIANTS, Walk, is_killed, steps_of


@pytest.fixture(autouse=True)
def nothing_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends takes nothing with it; syncing is for a machine that does."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_at_any_step_the_next_run_leaves_the_same_bytes(variant: str, tmp_path: Path) -> None:
    walk = Walk.of(variant, tmp_path)
    walk.apply("undisturbed", FIRST)
    wanted = walk.left("undisturbed")
    for step in steps_of(variant):
        assert is_killed(step, partial(walk.apply, step, FIRST)), f"{step} was never reached"
        report = walk.apply(step, FIRST if step in UNDECIDED else LATER)
        assert report.again == (step == "recover.finished")
        assert walk.left(step) == wanted, step


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_at_one_step_after_the_other_it_comes_to_the_same(variant: str, tmp_path: Path) -> None:
    walk = Walk.of(variant, tmp_path)
    walk.apply("undisturbed", FIRST)
    for step in steps_of(variant):
        seed = FIRST if step in (*UNDECIDED, "recover.recorded") else LATER
        assert is_killed(step, partial(walk.apply, "killed", seed)), f"{step} was never reached"
    walk.apply("killed", LATER)
    assert walk.left("killed") == walk.left("undisturbed")


@pytest.mark.parametrize("variant", VARIANTS)
def test_applied_twice_is_applied_once(variant: str, tmp_path: Path) -> None:
    walk = Walk.of(variant, tmp_path)
    walk.apply("log", FIRST)
    wanted = walk.left("log")
    assert walk.apply("log", LATER).again
    assert walk.apply("log", LATER, unchanged=True).again
    assert walk.left("log") == wanted
