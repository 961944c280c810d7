"""What runs of verify and scrub say of the whole archive, and what of that outlives the agent."""

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.admin.last_scrub import DAY_MS, NO_SCRUB, LastScrub, ScrubMemory, ScrubRun
from headwater_core.errors import TransientError
from tests.headwater_core.objectstore.volatile_disk import VolatileDisk

SOUND = {"examined": 5, "damaged": 0, "missing": 0, "unexamined": 0, "skipped": 0}
WORN = SOUND | {"damaged": 2, "missing": 1}


def a_run(at_ms: int, results: dict[str, Any] | None = None, *, by_itself: bool = True, **arguments: Any) -> ScrubRun:
    return ScrubRun.of(arguments, SOUND if results is None else results, ended_ms=at_ms, by_itself=by_itself)


def a_share(day: int, number: int, of: int, **more: int) -> ScrubRun:
    return a_run(day * DAY_MS, SOUND | {"skipped": 40, "share": number, "shares": of} | more, sample="34%")


def flaws(scrub: LastScrub) -> tuple[int | None, int | None, int | None]:
    """When all had been read; what is damaged, and missing."""
    return scrub.ended_ms, scrub.objects.get("damaged"), scrub.objects.get("missing")


WORN_SCRUB = NO_SCRUB.after(a_run(100, WORN, data=True))


def test_a_run_that_reads_every_object_settles_everything() -> None:
    assert flaws(WORN_SCRUB) == (100, 2, 1)
    assert flaws(WORN_SCRUB.after(a_run(200, data=True))) == (200, 0, 0)
    assert flaws(WORN_SCRUB.after(a_run(200))) == (200, 0, 0)  # jobs scrub, which always reads


@pytest.mark.parametrize(
    "partial",
    [
        a_run(200, selection="orders"),
        a_run(200, by_itself=False),
        a_run(200, SOUND | {"examined": 0}),
        a_run(200, SOUND | {"examined": 5, "unexamined": 5}),
        a_run(200, {"examined": "all", "damaged": None}),
    ],
)
def test_a_run_that_has_not_looked_at_everything_settles_nothing(partial: ScrubRun) -> None:
    assert flaws(WORN_SCRUB.after(partial)) == (100, 2, 1)
    assert flaws(NO_SCRUB.after(partial)) == (None, None, None)


@pytest.mark.parametrize(
    "listed",
    [
        a_run(200, data=False),
        a_run(200, SOUND | {"skipped": 40}),  # of a state, in which these were read before
        a_run(200, {each: SOUND[each] for each in SOUND if each != "skipped"}),  # of a version that does not say it
        a_share(0, 1, 3),
    ],
)
def test_a_run_that_lists_all_and_reads_some_shows_that_nothing_is_missing(listed: ScrubRun) -> None:
    assert flaws(WORN_SCRUB.after(listed)) == (100, 2, 0)
    assert flaws(NO_SCRUB.after(listed)) == (None, None, None)


def test_what_could_not_be_examined_may_be_damaged_still() -> None:
    found = WORN_SCRUB.after(a_run(200, SOUND | {"unexamined": 1}))
    assert flaws(found) == (200, 2, 1)
    assert found.objects["unexamined"] == 1


def test_every_run_raises_what_it_finds() -> None:
    for run in (a_run(200, WORN | {"damaged": 7}, selection="orders"), a_run(200, WORN | {"damaged": 7}, by_itself=False)):
        assert flaws(WORN_SCRUB.after(run)) == (100, 7, 1)
    assert flaws(NO_SCRUB.after(a_run(200, WORN, data=False))) == (None, 2, 1)


def test_a_round_of_samples_is_a_whole_and_goes_on_as_one() -> None:
    scrub = NO_SCRUB
    for day, number in ((10, 1), (11, 2)):
        scrub = scrub.after(a_share(day, number, 3))
        assert scrub.ended_ms is None
    for day, number in ((12, 0), (13, 1), (15, 0)):  # a day was missed
        scrub = scrub.after(a_share(day, number, 3))
        assert scrub.ended_ms == day * DAY_MS
    for day, number in ((30, 0), (31, 1)):  # two weeks were
        scrub = scrub.after(a_share(day, number, 3))
        assert scrub.ended_ms == 15 * DAY_MS
    assert scrub.after(a_share(32, 2, 3)).ended_ms == 32 * DAY_MS
    assert scrub.after(a_share(32, 2, 4)).ended_ms == 15 * DAY_MS  # of other shares


@pytest.mark.parametrize("share", [(3, 3), (-1, 3), (0, 0), (1, 2**60)])
def test_an_impossible_share_is_none(share: tuple[int, int]) -> None:
    assert a_share(1, *share).share is None


def test_a_round_of_samples_after_the_last_damage_settles_that() -> None:
    scrub = NO_SCRUB.after(a_share(10, 1, 3)).after(a_share(11, 2, 3, damaged=2))
    for day, number in ((12, 0), (13, 1)):
        scrub = scrub.after(a_share(day, number, 3))
        assert scrub.objects == {"damaged": 2}
    assert scrub.after(a_share(14, 2, 3)).objects == {"damaged": 0}
    again = scrub.after(a_run(13 * DAY_MS + 1, WORN, selection="orders"))
    assert flaws(again.after(a_share(14, 2, 3)))[1] == 2
    assert flaws(scrub.after(a_share(14, 2, 3, damaged=1)))[1] == 2
    assert flaws(scrub.after(a_share(14, 2, 3, unexamined=1)))[1] == 2


counts = st.integers(0, 3)
runs = st.builds(
    lambda results, whole, data, share: a_run(0, results | share, selection=None if whole else "orders", data=data),
    st.fixed_dictionaries(dict.fromkeys(SOUND, counts)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([{}, {"share": 0, "shares": 2}, {"share": 1, "shares": 2}]),
)


@given(st.lists(runs, max_size=12))
def test_damage_is_settled_only_by_runs_that_have_read_everything_since(made: list[ScrubRun]) -> None:
    scrub = NO_SCRUB
    suspected, shares = False, set[int]()
    for at, run in enumerate(made):
        run = run._replace(ended_ms=at + 1)
        scrub = scrub.after(run)
        if run.found["damaged"]:
            suspected, shares = True, set()
        elif run.is_read and run.is_complete:
            suspected = False
        elif run.share is not None:
            shares.add(run.share.number)
            suspected = suspected and len(shares) < 2
        assert (scrub.objects.get("damaged", 0) > 0) == suspected


def test_what_is_kept_is_there_after_a_restart_and_a_power_loss(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    disk, memory = VolatileDisk(tmp_path / "data"), ScrubMemory(tmp_path / "data" / "last_scrub.json")
    assert memory.last == NO_SCRUB
    worn = WORN_SCRUB.after(a_share(1, 1, 3))
    with disk.watching():
        memory.keep(worn)
        memory.save()
    assert ScrubMemory(disk.after_power_loss(tmp_path / "left") / "last_scrub.json").last == worn


def test_any_damage_of_the_file_means_that_nothing_is_known(tmp_path: Path) -> None:
    path = tmp_path / "last_scrub.json"
    memory = ScrubMemory(path)
    memory.keep(WORN_SCRUB)
    memory.save()
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        for raw in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            path.write_bytes(raw)
            assert ScrubMemory(path).last in (NO_SCRUB, WORN_SCRUB)
    path.write_bytes(whole.replace(b'"damaged": 2', b'"damaged": 0'))
    assert ScrubMemory(path).last == NO_SCRUB
    path.unlink()
    path.mkdir()
    assert ScrubMemory(path).last == NO_SCRUB


def test_a_disk_that_fails_is_tried_again_and_once_more_at_the_end(tmp_path: Path) -> None:
    memory, stop = ScrubMemory(tmp_path / "absent" / "last_scrub.json"), threading.Event()
    memory.keep(WORN_SCRUB)
    with pytest.raises(TransientError, match=r"last_scrub\.json"):
        memory.save()
    (tmp_path / "absent").mkdir()
    stop.set()
    memory.run(stop)
    assert ScrubMemory(tmp_path / "absent" / "last_scrub.json").last == WORN_SCRUB
