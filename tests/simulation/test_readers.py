"""What the simulation takes for the truth about readers: an answer is right if a look may have shown it, and only then."""

from pathlib import Path

import pytest

from hydration.answers import Isolation
from tests.headwater_core.segments.builders import a_batch, a_commit
from tests.simulation.brokers import Batch
from tests.simulation.bucket import Violation
from tests.simulation.readers import Answered, Moments, Place, Served, check_answer
from tests.simulation.test_races import Stage
from tests.simulation.world import THEMES


def test_a_look_may_show_an_epoch_that_begins_with_the_checkpoint_from_before_it(tmp_path: Path) -> None:
    """An empty replica is elected, so all that is archived is on a dead branch, and what it writes is not known to be committed yet."""
    stage = Stage(1, tmp_path, THEMES["lineage"])
    try:
        stage.write(5, stage.first)
        stage.brokers.fall_behind()
        stage.archive_all(stage.a)
        head = stage.checks.head(stage.brokers.partition)
        assert head is not None
        assert head.last_offset == stage.first.end - 1
        stage.brokers.elect(unclean=True)
        moments = Moments(stage.checks)
        moments.note(stage.brokers, stage.second, head)
        began = moments.now
        stage.write(1, stage.second)
        stage.brokers.write_checkpoint()
        moments.note(stage.brokers, stage.second, head)
        nothing_yet = Answered(0, Isolation.READ_UNCOMMITTED, (), False, (), 0, None)
        check_answer(nothing_yet, moments.since(began), lambda _: False)
        with pytest.raises(Violation, match="I11 offset 0 is readable"):
            check_answer(nothing_yet, moments.since(moments.now), lambda _: False)
    finally:
        stage.close()


def test_what_ends_a_transaction_on_what_may_be_a_dead_branch_ends_none() -> None:
    """It began before the log, where the archive has a gap, and the archive follows a newer leadership that had only 0..9."""
    begun = Batch(base=5, last=5, epoch=0, data=a_batch(5, producer=7, transactional=True))
    places = [Place(9, 9, 0, a_batch(9), 9), Place(10, 10, 0, a_commit(10, 7), 11)]
    assert Served(places, [], (begun,), proven_to=10).stable == 5
    assert Served(places, [], (begun,)).stable == 10
