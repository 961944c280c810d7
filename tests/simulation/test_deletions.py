"""A broker is asked to delete what is archived, while everything else happens: by seeds, and at the points that they seldom come to."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.bucket import Violation
from tests.simulation.mutants import planted
from tests.simulation.test_races import NotToThePoint, Stage, delete_records
from tests.simulation.world import Theme, quiet, run_seed

SEEDS = 15 * int(os.environ.get("SEED_TIMES", "1"))
_TRIES = 100  # within so many a race comes to its point: batches are drawn
BEFORE_DELETION = "request Metadata"
ASKED = Theme(compacted=0, pairs=0, unnamed=0, requests=True)


def test_no_seed_deletes_what_is_not_archived() -> None:
    seen = Counter[str]()
    for seed in range(SEEDS):
        result = run_seed(seed, theme="requests")
        how = f"python -m tests.simulation --seeds 1 --first {seed} --theme requests"
        assert not result.violation, "\n".join([*result.trace, how, result.violation])
        seen += result.seen
    assert seen["the broker deletes records on request"] > 5
    assert seen["the broker says what is committed"] > 25
    assert seen["a metadata log is behind"] > 25


def test_a_broker_deletes_what_is_archived_and_readers_notice_nothing(tmp_path: Path) -> None:
    with quiet():
        stage = Stage(1, tmp_path, ASKED)
        try:
            archived_by_first(stage)
            stage.a.release()
            stage.resume(stage.a)
            assert stage.first.start >= 10
            stage._finish(stage.a)
        finally:
            stage.close()


def archived_by_first(stage: Stage) -> None:
    """Both brokers have some segments, and the first one's agent has archived them."""
    for end in (5, 10):
        stage.write(end, stage.first)
        stage.brokers.roll(stage.first)
    stage.write(stage.first.end + 5, stage.first)
    stage.brokers.follow()
    stage.archive_all(stage.a)


def release_until_deletion(stage: Stage) -> None:
    """Everything is checked but what the name means."""
    stage.start(stage.a.release, stage.a, until="request DescribeQuorum")
    stage.resume(stage.a, until=BEFORE_DELETION)


def cut_and_rewritten(stage: Stage, end: int) -> None:
    """The other one is elected uncleanly and writes in place of what was archived; then the first one leads again, with all of that."""
    stage.take_over(unclean=True)
    stage.write(end, stage.second)
    stage.brokers.follow()
    stage.take_over(unclean=False)
    stage.brokers.follow()


def deposed_before_the_deletion(stage: Stage) -> None:
    """Not every replica was in sync when it was decided."""
    brokers = stage.brokers
    stage.write(3, stage.first)
    brokers.follow()
    brokers.fall_behind()
    archived_alone(stage)
    release_until_deletion(stage)
    cut_and_rewritten(stage, stage.first.end + 5)
    stage.resume(stage.a)


def archived_alone(stage: Stage) -> None:
    for _ in range(2):
        stage.write(stage.first.end + 4, stage.first)
        stage.brokers.roll(stage.first)
    stage.write(stage.first.end + 2, stage.first)
    stage.archive_all(stage.a)


def in_sync_by_an_old_word(stage: Stage) -> None:
    """A replica has dropped out; the broker's own copy of the metadata log does not say so yet, and the high watermark has moved since."""
    brokers = stage.brokers
    stage.write(3, stage.first)
    brokers.follow()
    stage.archive_all(stage.a)
    brokers.fall_behind()
    stage.a.late.is_held = True
    archived_alone(stage)
    release_until_deletion(stage)
    stage.a.late.is_held = False
    cut_and_rewritten(stage, stage.first.end + 5)
    stage.resume(stage.a)


def elected_before_the_deletion(stage: Stage) -> None:
    """The broker that was asked has deleted its oldest records itself; the one that leads by then still has them, unarchived."""
    brokers = stage.brokers
    for end in (5, 10):
        stage.write(end, stage.first)
        brokers.roll(stage.first)
    stage.write(stage.first.end + 5, stage.first)
    brokers.follow()
    delete_records(stage, stage.first.segments[1].base)
    stage.archive_all(stage.a)
    release_until_deletion(stage)
    stage.take_over(unclean=False)
    stage.resume(stage.a)


def created_again_before_the_deletion(stage: Stage) -> None:
    archived_by_first(stage)
    release_until_deletion(stage)
    end = stage.first.end
    stage.brokers.recreate()
    stage.brokers.begin()
    stage.write(end + 5, stage.first)
    stage.brokers.follow()
    stage.resume(stage.a)


def gap_that_the_new_leader_still_holds(stage: Stage) -> None:
    """The first one's retention was quicker than its agent; the second one has the records, and its agent has not archived them yet."""
    brokers, second = stage.brokers, stage.second
    stage.write(5, stage.first)
    brokers.roll(stage.first)
    stage.archive_all(stage.a)
    stage.write(stage.first.end + 6, stage.first)
    brokers.follow()
    delete_records(stage, stage.first.end)
    stage.archive_all(stage.a)
    stage.take_over(unclean=False)
    brokers.roll(second)
    stage.write(second.end + 2, second)
    brokers.follow()
    brokers.write_checkpoint()
    stage.b.step_now()
    stage.b.release()
    stage.resume(stage.b)


RACES: list[tuple[Callable[[Stage], None], str]] = [
    (deposed_before_the_deletion, "request_without_in_sync_set"),
    (in_sync_by_an_old_word, "request_by_old_metadata"),
    (elected_before_the_deletion, "request_routed"),
    (created_again_before_the_deletion, "request_by_name"),
    (gap_that_the_new_leader_still_holds, "request_across_gap"),
]


@pytest.mark.parametrize(("race", "mistake"), RACES, ids=[mistake for _, mistake in RACES])
def test_a_deletion_takes_what_is_not_archived_only_with_a_mistake(race: Callable[[Stage], None], mistake: str, tmp_path: Path) -> None:
    with planted(mistake):
        seed = next((seed for seed in range(_TRIES) if _lost(race, seed, tmp_path)), None)
    assert seed is not None, f"{mistake} is not caught"
    assert not any(_lost(race, each, tmp_path) for each in {seed, *range(10)})


def _lost(race: Callable[[Stage], None], seed: int, root: Path) -> bool:
    with quiet():
        stage = Stage(seed, root / str(seed), ASKED)
        try:
            race(stage)
            stage.checks.after_action()
        except NotToThePoint:
            return False
        except Violation:
            return True
        finally:
            stage.close()
    return False
