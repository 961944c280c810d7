"""A head is compared with the one that a task was planned from."""

import pytest

from headwater.pipeline.scan.supersession import first_superseded
from headwater_core.epochs import EpochStart
from manifests.entry import Entry
from tests.headwater.pipeline.scan.test_splits import a_head


def an_entry(base_offset: int, last_offset: int, *epochs: tuple[int, int]) -> Entry:
    starts = tuple(EpochStart(*each) for each in epochs)
    return Entry(base_offset=base_offset, last_offset=last_offset, size_bytes=1, live_bytes=1, epochs=starts)


PLANNED = (an_entry(0, 99, (1, 0)), an_entry(100, 199, (2, 100)))


@pytest.mark.parametrize(
    ("now", "superseded"),
    [
        (PLANNED, None),
        ((an_entry(0, 199, (1, 0), (2, 100)),), None),  # merged
        ((an_entry(0, 199, (1, 0), (2, 120)),), None),  # the first batches of an epoch were compacted away
        ((an_entry(0, 199, (1, 0), (3, 100)),), 100),
        ((an_entry(0, 199, (1, 0), (3, 50)),), 50),
        ((an_entry(0, 149, (1, 0), (2, 100)),), 150),  # a shorter log
    ],
)
def test_where_a_newer_leader_epoch_begins(now: tuple[Entry, ...], superseded: int | None) -> None:
    assert first_superseded(PLANNED, a_head(*now), 0, 200) == superseded


def test_only_the_offsets_that_are_left_count() -> None:
    now = a_head(an_entry(0, 199, (1, 0), (3, 50)), an_entry(200, 299, (4, 200)))
    assert first_superseded(PLANNED, now, 0, 50) is None
    assert first_superseded(PLANNED, now, 60, 200) == 60


def test_a_planned_gap_may_have_been_filled() -> None:
    planned = (an_entry(0, 99, (1, 0)), Entry(base_offset=100, last_offset=199, gap=True))
    assert first_superseded(planned, a_head(an_entry(0, 199, (1, 0), (5, 100))), 0, 200) is None
