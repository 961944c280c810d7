"""Log directories whose disk hangs: what is in others is found as ever, and no caller waits for long."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from headwater_core.errors import NotFound
from headwater_core.partition import TopicPartition
from headwater_core.segments.disk import LATE_MAX, Disk, DiskHangs
from headwater_core.segments.log_dirs import LogDirs
from tests.fixtures import private_copy
from tests.headwater_core.segments.log_dirs.broker import Broker
from tests.hung_disk import HungDisk, hung_disk, within

T = TypeVar("T")
SOUP, TEA = TopicPartition("soup", 0), TopicPartition("tea", 0)


def after_it_answers(ask: Callable[[], T]) -> T:
    """The first answer of a disk that has begun to answer: what hung before may take a moment to end."""
    pause = threading.Event()
    for _ in range(1000):
        try:
            return ask()
        except DiskHangs:
            pause.wait(0.02)
    return ask()


class Two:
    """Soup is in the directory whose disk will hang, tea in the other."""

    def __init__(self, root: Path) -> None:
        self.hanging, self.sound = Broker(root / "a"), Broker(root / "b")
        self.hanging.partition("soup-0")
        self.sound.partition("tea-0")
        self.logs = LogDirs([self.hanging.root, self.sound.root], patience_s=1.0)


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


@pytest.fixture
def hung(two: Two) -> Iterator[HungDisk]:
    with hung_disk(two.hanging.root) as disk:
        yield disk


@pytest.mark.parametrize("known", [True, False])
def test_a_partition_of_another_directory_is_looked_at(two: Two, known: bool) -> None:
    if known:
        two.logs.listing()
    with hung_disk(two.hanging.root):
        assert within(20, lambda: two.logs.look(TEA)).partition.topic == "tea"


def test_a_partition_that_is_in_none_that_answers_is_not_absent(two: Two, hung: HungDisk) -> None:
    for place in (SOUP, TopicPartition("beer", 0)):
        with pytest.raises(DiskHangs, match=str(two.hanging.root)):
            within(20, partial(two.logs.look, place))
    hung.answers.set()
    assert after_it_answers(lambda: two.logs.look(SOUP)).partition.topic == "soup"
    with pytest.raises(NotFound):
        two.logs.look(TopicPartition("beer", 0))


def test_a_survey_and_a_listing_name_the_directory_and_have_the_others(two: Two, hung: HungDisk) -> None:
    survey, listing = within(20, two.logs.survey), within(20, two.logs.listing)
    assert [each.partition.topic for each in survey.logs] == [each.topic for each in listing.partitions] == ["tea"]
    for problems in (survey.problems, listing.problems):
        assert [(path, type(error)) for path, error in problems] == [(two.hanging.root, DiskHangs)]
    assert within(20, lambda: two.logs.cluster_id) == "kitchen-cluster"


def test_directories_that_all_hang_are_not_empty(two: Two, hung: HungDisk) -> None:
    with hung_disk(two.sound.root), pytest.raises(DiskHangs):
        within(20, two.logs.listing)


def test_no_caller_waits_again_for_what_hangs(tmp_path: Path) -> None:
    disk, go = Disk(tmp_path, 0.5), threading.Event()
    started: list[int] = []

    def hang(number: int, _: object = None) -> None:
        started.append(number)
        go.wait(60)

    for _ in range(3):
        with pytest.raises(DiskHangs):
            disk.ask("soup", partial(hang, 0))
    assert started == [0]
    assert disk.ask("tea", lambda _: "it may be one directory only") != ""
    for number in range(1, 2 * LATE_MAX):
        with pytest.raises(DiskHangs):
            disk.ask(number, partial(hang, number))
    assert started == list(range(LATE_MAX)), "then it is the whole disk"
    go.set()
    assert after_it_answers(lambda: disk.ask("soup", lambda _: "soup")) == "soup"


def test_work_that_gets_on_may_take_long(tmp_path: Path) -> None:
    disk, pause = Disk(tmp_path, 0.5), threading.Event()

    def work(progressed: Callable[[], None]) -> str:
        for _ in range(40):
            pause.wait(0.02)
            progressed()
        return "done"

    assert disk.ask("much", work) == "done"


def test_who_leads_is_what_the_metadata_log_said_last(tmp_path: Path) -> None:
    """Its disk is one of a broker's, the first one by default."""
    first = private_copy("pantry-live", tmp_path)
    second = tmp_path / "second"
    second.mkdir()
    (second / "meta.properties").write_bytes((first / "meta.properties").read_bytes())
    place = TopicPartition("menu.prices", 0)
    (first / "menu.prices-0").rename(second / "menu.prices-0")
    logs = LogDirs([first, second], patience_s=1.0)
    before = logs.look(place)
    assert before.leadership is not None
    with hung_disk(first):
        assert within(20, lambda: logs.look(place)) == before
        fresh = within(20, lambda: LogDirs([first, second], patience_s=1.0).look(place))
    assert (fresh.leadership, fresh.leadership_unread) == (None, True)


def test_a_time_out_of_the_file_system_is_no_hanging_disk() -> None:
    def timed_out(_: object) -> None:
        raise TimeoutError(110, "Connection timed out")

    with pytest.raises(TimeoutError, match="Connection"):
        Disk(Path("/"), patience_s=30.0).ask("a", timed_out)
