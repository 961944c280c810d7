import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.simulation.__main__ import themes_of
from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.world import DRAWN, MERGING, THEMES, run_seed

SEEDS = 50
SEEDS_MAX = 2000  # until all that is interesting has been reached: some of it one in hundreds comes to
TIMES = int(os.environ.get("SEED_TIMES", "1"))  # as many seeds of each theme
_AT_ONCE = 50
WITNESSES = (
    "a checkpoint is ahead of the high watermark",
    "a dead branch is superseded",
    "a gap",
    "a log is cut in place while it is read",
    "a leader's log does not show its epoch yet",
    "a read_committed reader skips an aborted record",
    "a reader answers from what is out of date",
    "a reader has read all there is",
    "a reader gets an out-of-range error",
    "a reader has to retry",
    "a reader looks up a time",
    "a reader reads across the border of the tiers",
    "a reader reads what is archived alone",
    "a topic was created again and is archived",
    "a transaction is open at the end of an entry",
    "a write is in flight",
    "an entry is cut inside",
    "a task waits for another one's lock",
    "an old leader does not know the new epoch",
    "archived where the leader is unknown",
    "compacted",
    "consent to begin again",
    "crash",
    "damage is noticed: CorruptData",
    "damage is noticed: SuspectedGap",
    "error Conflict",
    "error Fenced",
    "error SourceChanged",
    "error UnknownOutcome",
    "no leader, eligible leader replicas",
    "orphans collected",
    "outcome archived",
    "outcome cut",
    "outcome gap",
    "outcome merged",
    "outcome outrun",
    "outcome refilled",
    "outcome revived",
    "released records are served by the archive",
    "segments released",
    "several claims",
    "stopped: compaction went past the archive",
    "stopped: the log shares nothing with the archive",
    "superseded, and the newer epoch is archived",
    "the archive has caught up",
    "the clock is set back",
    "the control log is compared with the head",
    "trouble Conflict",
    "trouble CorruptData",
    "trouble DiskFull",
    "trouble OSError",
    "trouble Unauthorised",
    "trouble Unforeseen",
    "two agents are at work",
    "two tasks of one agent are at work",
)


ONCE_VIOLATED = (
    ("forgotten", 25),
    ("damage", 290),
    ("merged keys", 245),
    ("damaged buckets", 24),
    ("damaged buckets", 98),
    ("damaged buckets", 144),
    ("disks", 20282),
    ("disks", 40016),
    ("disks", 80085),
    ("disks", 80328),
    ("even", 20181),
    ("forgotten", 20053),
    ("forgotten", 200190),
    ("gaps", 755),
    ("gaps", 20265),
    ("gaps", 20380),
    ("gaps", 40011),
    ("gaps", 41168),
    ("gaps", 70002),
    ("gaps", 90012),
    ("gaps", 200633),
    ("gaps", 200689),
    ("gaps", 200707),
    ("gaps", 201274),
    ("gaps", 401354),
    ("gaps", 401955),
    ("gaps", 403552),
    ("gaps", 405809),
    ("gaps", 703372),
    ("gaps", 703422),
    ("incarnations", 20462),
    ("incarnations", 910039),
    ("layouts", 1015),
    ("layouts", 910229),
    ("lineage", 41291),
    ("pages", 79),
    ("recovered", 161),
    ("recovered", 299),
    ("release", 30746),
    ("requests", 1200103),
    ("vacancies", 50040),
)


@cache
def _result_of(seed: int) -> tuple[str, Counter[str]]:
    """What is wrong in a seed's run, and what was seen in it. Tests below walk through all seeds: in one process, each runs once."""
    result = run_seed(seed)
    wrong = [*result.trace, f"python -m tests.simulation --seeds 1 --first {seed}", result.violation] if result.violation else []
    return "\n".join(wrong), result.seen


@pytest.mark.xdist_group("seeds")
@pytest.mark.parametrize("first", range(0, SEEDS, _AT_ONCE))
def test_no_seed_violates_an_invariant(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        wrong, _ = _result_of(seed)
        assert not wrong, wrong


def test_a_soak_runs_every_theme() -> None:
    assert set(themes_of("apart")) | set(DRAWN) == set(themes_of("all")) == set(THEMES)
    assert not set(themes_of("apart")) - {*MERGING} & set(DRAWN), "what seeds draw has as many of them"
    assert themes_of("streams") == ("streams",)


def _sound(theme: str, seed: int) -> Counter[str]:
    """What is seen in a run that violates nothing."""
    result = run_seed(seed, theme=theme)
    how = f"python -m tests.simulation --seeds 1 --first {seed} --theme '{theme}'"
    assert not result.violation, "\n".join([*result.trace, how, result.violation])
    return result.seen


def _seen(theme: str, seeds: int, *witnesses: str) -> Counter[str]:
    """What is seen in runs of so many seeds, all of the `witnesses` among it. Once it is, a commit's tests need a third of the seeds; the
    soak has many more."""
    seen = Counter[str]()
    for seed in range(seeds * TIMES):
        seen += _sound(theme, seed)
        if TIMES == 1 and 3 * (seed + 1) >= seeds and witnesses and all(seen[each] for each in witnesses):
            break
    assert not [each for each in witnesses if not seen[each]]
    return seen


@pytest.mark.parametrize(("theme", "seed"), ONCE_VIOLATED)
def test_a_seed_that_once_violated_an_invariant_does_so_no_more(theme: str, seed: int) -> None:
    _sound(theme, seed)


@pytest.mark.xdist_group("seeds")
@pytest.mark.parametrize("theme", ["branches", "forgotten"])
def test_what_a_dead_branch_had_displaced_is_archived_again(theme: str) -> None:
    _seen(theme, 60, "outcome replaced")


@pytest.mark.parametrize(
    "theme", ["merges", *(pytest.param(theme, marks=pytest.mark.long) for theme in ("merged branches", "merged keys"))]
)
def test_merges_of_many_runs_violate_no_invariant(theme: str) -> None:
    """What the seeds above draw is shorter."""
    seen = Counter[str]()
    for seed in (4, 5, 11):
        seen += _sound(theme, seed)
    assert seen["outcome merged"]


@pytest.mark.parametrize(
    ("theme", "witnesses"), [("shrinks", ("space is saved",)), pytest.param("shrunk branches", (), marks=pytest.mark.long)]
)
def test_saving_space_violates_no_invariant(theme: str, witnesses: tuple[str, ...]) -> None:
    _seen(theme, 10, *witnesses)


@pytest.mark.parametrize(
    ("theme", "witnesses"),
    [
        # the uploads were left by crashes between two parts of an object
        ("layouts", ("chunks become one object", "a collection meets unfinished uploads")),
        pytest.param("layouts again", (), marks=pytest.mark.long),
        pytest.param("layouts of keys", (), marks=pytest.mark.long),
    ],
)
def test_a_partition_of_several_layouts_is_one_log(theme: str, witnesses: tuple[str, ...]) -> None:
    layouts = (f"an agent starts with layout {layout}" for layout in ("segment", "blocks", "chunks, append", "chunks, fixed"))
    _seen(theme, 30, *layouts, "crash", *witnesses)


@pytest.mark.parametrize(
    ("theme", "states"),
    [
        ("chunks", ("open", "consolidation pending", "done", "delete pending")),
        pytest.param("chunks of two", ("open",), marks=pytest.mark.long),
        pytest.param("chunks of names", ("open", "consolidation pending", "done", "delete pending"), marks=pytest.mark.long),
    ],
)
def test_segments_of_chunks_are_found_by_a_listing_in_every_state(theme: str, states: tuple[str, ...]) -> None:
    """Lost chunks and broken consolidations are those of the test below; a new segment has no objects."""
    found = (f"a segment is {state}" for state in states)
    _seen(theme, 25, *found, "two writers' segments", "two agents are at work", "several claims", "crash")


def test_each_state_of_a_segment_is_met_and_recovered_while_another_owner_claims_it() -> None:
    """Chunks go several at a time: some arrive late, never, or before others; and what becomes one object may be cut short unnoticed."""
    pending = ("consolidation pending", "delete pending")
    states = (f"a segment is {state}" for state in ("open", *pending, "done", "broken consolidation", "lost chunk"))
    _seen("scattered chunks", 40, *states, *(f"two owners while a segment is {state}" for state in pending), "crash")


def test_chunks_that_never_become_one_object_stay_readable_and_keep_nothing_else_from_its_turn() -> None:
    assert not _seen("chunks that stay", 9, "chunks stay as they are")["chunks become one object"]


@pytest.mark.parametrize(
    ("theme", "witnesses"),
    [
        ("streams", ()),
        pytest.param("streamed branches", (), marks=pytest.mark.long),
        ("streamed runs", ("an agent's offload is switched while a write of it is late",)),
    ],
)
def test_what_is_written_while_it_fills_is_listed_once_and_whole(theme: str, witnesses: tuple[str, ...]) -> None:
    switched = ("streams are switched", "such objects beside others", "a name has failed")
    _seen(theme, 25, "stream.closed", "outcome assigned", *switched, "crash", *witnesses)


@pytest.mark.parametrize(("theme", "witnesses"), [("streamed chunks", ()), ("streamed chunk branches", ("a segment of several chunks",))])
def test_chunks_that_are_written_while_a_segment_fills_are_listed_once_and_whole(theme: str, witnesses: tuple[str, ...]) -> None:
    layouts = (f"an agent starts with layout chunks, {variant}" for variant in ("append", "fixed"))
    _seen(theme, 15, *layouts, "stream.closed", "outcome assigned", "a name has failed", "crash", *witnesses)


@pytest.mark.xdist_group("seeds")
@pytest.mark.parametrize(
    ("theme", "seeds", "witnesses"),
    [
        ("streamed damage", 30, ("damage is noticed: CorruptData", "an object that was written while it filled")),
        ("streamed triggers", 15, ("a trigger lets an object go", "a trigger holds a segment back", "a trigger is not applied")),
        ("triggers", 12, ("a trigger holds a segment back", "a trigger lets a segment go", "a trigger is not applied", "crash")),
        ("pauses", 12, ("an agent is paused", "all agents know of a pause", "a gap with a pause as its reason", "crash")),
        ("groups", 9, ("a group holds a release back", "a look-up of groups fails", "the broker deletes records on request")),
        ("trims", 30, ("archive trimmed", "orphans collected", "a fence raised to collect", "a reader gets an out-of-range error")),
        ("collected", 15, ("orphans noted", "orphans collected", "a dead branch is superseded")),
        ("versions", 12, ("an agent needs an upgrade", "an agent is upgraded", "a manifest is carried over")),
    ],
)
def test_a_theme_reaches_what_it_is_for_and_violates_no_invariant(theme: str, seeds: int, witnesses: tuple[str, ...]) -> None:
    _seen(theme, seeds, *witnesses)


@pytest.mark.xdist_group("seeds")
def test_a_recovery_under_way_has_all_that_is_archived_whatever_is_let_go() -> None:
    _seen(
        "recovered",
        30,
        "a recovery is killed",
        "a recovery has to be run again",
        "a recovery is planned again",
        "archive trimmed",
        "outcome merged",
        "an archive is taken over",
        "a take-over is killed",
        "more was archived than a take-over knows",
        "an agent is refused by an archive that was taken over",
    )


@pytest.mark.xdist_group("seeds")
def test_of_a_damaged_bucket_all_that_is_sound_comes_back_and_the_rest_is_named() -> None:
    _seen(
        "damaged buckets",
        30,
        "a damaged bucket comes back whole",
        "a hole of a damaged bucket is named",
        "a recovery of a damaged bucket is refused",
        "an older head comes back, and that is said",
        "a name means what it once meant",
    )


@pytest.mark.long
@pytest.mark.xdist_group("seeds")
def test_the_seeds_reach_what_is_interesting() -> None:
    """A run that never gets there proves nothing."""
    seen = Counter[str]()
    for seed in range(SEEDS_MAX):
        seen += _result_of(seed)[1]
        if all(seen[witness] for witness in WITNESSES):
            return
    pytest.fail(f"never reached: {[witness for witness in WITNESSES if not seen[witness]]}")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if mutant.rare else ()) for name, mutant in MUTANTS.items() if not mutant.in_race]
)
def test_a_planted_mistake_is_caught(name: str) -> None:
    """By a seed that violates nothing without it, as a few are known to (docs/design.md, "Known, not mended")."""
    mutant = MUTANTS[name]

    def is_caught(seed: int) -> bool:
        with planted(name):
            violation = run_seed(seed, theme=mutant.theme).violation
        return bool(violation) and not run_seed(seed, theme=mutant.theme).violation

    assert any(map(is_caught, mutant.seeds)), f"{mutant.what}: not caught"


def test_a_seed_replays_exactly_in_another_process() -> None:
    """Whatever hash seed, process or directory: the same trace."""
    seed = 7
    result = run_seed(seed)
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "1", "--first", str(seed)]
    printed = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[:-1] == [f"{number:4} {line}" for number, line in enumerate(result.trace, 1)]
    assert len(result.trace) > 100
