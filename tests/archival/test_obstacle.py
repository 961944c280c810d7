"""What is in the way of a log, and for how long that is so."""

from dataclasses import replace

import pytest

from archival.obstacle import Obstacle
from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, HeadwaterError, SuspectedGap, TransientError, Unauthorised, UnsupportedFormat
from headwater_core.segments.local_log import Generation, LocalLog
from tests.archival.builders import a_log

LOG = a_log(0, 10, 20, 30, hw=35)
AT = f"{LOG.directory}/{10:020}.log"


def in_the_way(next_offset: int = 10) -> Obstacle:
    found = Obstacle.of(CorruptData(AT, 7, "CRC mismatch"), LOG, next_offset)
    assert found
    return found


@pytest.mark.parametrize("error", [CorruptData(AT, 7, "CRC mismatch"), SuspectedGap(f"{AT} lacks 12"), UnsupportedFormat(f"{AT}: magic 1")])
def test_what_the_files_hold_is_in_the_way(error: HeadwaterError) -> None:
    found = Obstacle.of(error, LOG, 10)
    assert found
    assert found.remains(LOG)


@pytest.mark.parametrize("error", [TransientError(AT), Unauthorised(AT), CorruptData("meta/soup/manifest.json", 0, "not JSON")])
def test_what_may_pass_or_lies_elsewhere_is_not(error: HeadwaterError) -> None:
    assert Obstacle.of(error, LOG, 10) is None


def with_segment(log: LocalLog, number: int, **changes: object) -> LocalLog:
    segments = list(log.segments)
    segments[number] = replace(segments[number], **changes)  # type: ignore[arg-type]
    return replace(log, segments=tuple(segments))


def test_what_is_added_or_archived_already_mends_nothing() -> None:
    found = in_the_way()
    grown = with_segment(LOG, 3, size_bytes=1000, generation=Generation(31, 99))
    assert found.remains(replace(grown, high_watermark=40))
    sealed = with_segment(grown, 3, is_active=False)
    assert found.remains(replace(sealed, segments=(*sealed.segments, a_log(50, hw=None).segments[0])))
    assert found.remains(replace(LOG, segments=LOG.segments[1:], log_start=10))  # retention, below what is due
    assert found.remains(with_segment(LOG, 0, generation=Generation(77, 1)))


@pytest.mark.parametrize(
    "now",
    [
        with_segment(LOG, 1, generation=Generation(77, 1)),
        with_segment(LOG, 2, generation=Generation(21, 2)),
        with_segment(LOG, 1, size_bytes=50),
        with_segment(LOG, 3, size_bytes=50),  # a broker that starts cuts a damaged end off
        replace(LOG, segments=LOG.segments[:1] + LOG.segments[2:]),
        replace(LOG, segments=LOG.segments[2:], log_start=20),
        replace(LOG, cleaned_to=30),
        replace(LOG, compacted=True),
        replace(LOG, epochs=EpochHistory.of(((0, 0), (1, 30)))),
        replace(LOG, leftovers=("00000000000000000000.log.swap",)),
    ],
)
def test_any_other_change_is_worth_another_look(now: LocalLog) -> None:
    assert not in_the_way().remains(now)
