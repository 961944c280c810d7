"""Threads for downloads: shares for each kind, and what hangs delays no other."""

import threading
from collections.abc import Iterator

import pytest

from hydration.archive.downloads import GROUP_LATE_MAX, Downloads

PATIENCE_S = 0.05
WAIT_S = 20.0


class Hanging:
    """Runs until `go`."""

    def __init__(self, go: threading.Event) -> None:
        self.has_begun, self.touched_s = False, 0.0
        self.go = go
        self.begun, self.late = threading.Event(), threading.Event()

    def run(self) -> None:
        self.begun.set()
        assert self.go.wait(WAIT_S)

    def on_late(self) -> None:
        self.late.set()


@pytest.fixture
def go() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def downloads(go: threading.Event) -> Iterator[Downloads]:
    made = Downloads(2, 2, patience_s=PATIENCE_S)
    yield made
    go.set()
    made.close()


def submitted(downloads: Downloads, go: threading.Event, count: int, *, urgent: bool, group: object = None) -> list[Hanging]:
    jobs = [Hanging(go) for _ in range(count)]
    for at, job in enumerate(jobs):
        downloads.submit(job, group=(group, at) if group is None else group, urgent=urgent)
    return jobs


def test_what_is_fetched_ahead_takes_no_place_of_what_is_waited_for(go: threading.Event) -> None:
    patient = Downloads(2, 2, patience_s=3600)
    ahead = submitted(patient, go, 10, urgent=False)
    assert all(each.begun.wait(WAIT_S) for each in ahead[:2])
    assert patient.queued(urgent=False) == 8
    demand = submitted(patient, go, 3, urgent=True)
    assert all(each.begun.wait(WAIT_S) for each in demand[:2])
    assert patient.queued(urgent=True) == 1
    go.set()
    assert all(each.begun.wait(WAIT_S) for each in ahead + demand)
    patient.close()


@pytest.mark.parametrize("urgent", [False, True])
def test_what_hangs_gives_its_place_to_others(downloads: Downloads, go: threading.Event, urgent: bool) -> None:
    hanging = submitted(downloads, go, 2, urgent=urgent)
    assert all(each.begun.wait(WAIT_S) for each in hanging)
    others = submitted(downloads, go, 2, urgent=urgent)
    assert all(each.begun.wait(WAIT_S) for each in others)
    assert all(each.late.is_set() or each.late.wait(WAIT_S) for each in hanging)


def test_one_partition_that_hangs_takes_a_few_places_at_most(downloads: Downloads, go: threading.Event) -> None:
    hanging = submitted(downloads, go, 20, urgent=True, group="hangs")
    assert all(each.late.wait(WAIT_S) for each in hanging[:GROUP_LATE_MAX])
    other = submitted(downloads, go, 1, urgent=True, group="answers")
    assert other[0].begun.wait(WAIT_S)
    assert sum(each.begun.is_set() for each in hanging) <= GROUP_LATE_MAX + 2
    go.set()
    assert all(each.begun.wait(WAIT_S) for each in hanging)


def test_what_gets_on_is_not_late(downloads: Downloads, go: threading.Event) -> None:
    class GetsOn(Hanging):
        def run(self) -> None:
            super().run()

        @property
        def touched_s(self) -> float:
            return float("inf")

        @touched_s.setter
        def touched_s(self, _: float) -> None:
            pass

    busy = GetsOn(go)
    downloads.submit(busy, group="busy", urgent=True)
    assert all(each.late.wait(WAIT_S) for each in submitted(downloads, go, 1, urgent=True))
    assert not busy.late.is_set()


def test_closing_leaves_out_what_has_not_begun(go: threading.Event) -> None:
    closing = Downloads(1, 1, patience_s=3600)
    jobs = submitted(closing, go, 3, urgent=True)
    assert jobs[0].begun.wait(WAIT_S)
    closer = threading.Thread(target=closing.close)
    closer.start()
    while closing.queued(urgent=True):
        closer.join(0.005)
    go.set()
    closer.join(WAIT_S)
    assert [each.begun.is_set() for each in jobs] == [True, False, False]
    with pytest.raises(RuntimeError):
        closing.submit(jobs[1], group="", urgent=True)
