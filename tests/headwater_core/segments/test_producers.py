import pytest

from headwater_core.segments import runindex
from headwater_core.segments.producers import Producers, ProducerState
from tests.headwater_core.segments.builders import BASE_TIME, Producer, a_batch, a_marker, an_abort
from tests.headwater_core.segments.scans import scanned


def test_producers_are_remembered_as_a_broker_would() -> None:
    raw = (
        a_batch(0, 3, producer=Producer(id=7, epoch=1, sequence=2**31 - 2), transactional=True)
        + a_marker(3, Producer(id=7, epoch=1), aborts=False, coordinator_epoch=5)
        + a_batch(4, 2, producer=Producer(id=9, sequence=10))
        + a_batch(6, 1, producer=Producer(id=8, epoch=0), transactional=True)
        + a_marker(7, Producer(id=8, epoch=1), aborts=True, coordinator_epoch=6)
    )
    assert scanned(raw).index.producers == (
        ProducerState(7, 1, 0, 2, 2, BASE_TIME + 3, 5, -1),  # the sequence wrapped
        ProducerState(8, 1, -1, -1, 0, BASE_TIME + 7, 6, -1),  # the marker's newer epoch begins a new sequence
        ProducerState(9, 0, 11, 5, 1, BASE_TIME + 5, -1, -1),
    )


def test_producers_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runindex, "PRODUCERS_MAX", 5)
    monkeypatch.setattr(runindex, "POINT_SPACING_BYTES", 1)
    raw = b"".join(a_batch(offset, 1, producer=100 - offset) for offset in range(40))
    found = scanned(raw)
    assert [each.producer_id for each in found.index.producers] == [61, 62, 63, 64, 65]
    assert found.max_producer_id == 100


def test_producers_known_by_markers_alone_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runindex, "PRODUCERS_MAX", 5)
    monkeypatch.setattr(runindex, "POINT_SPACING_BYTES", 1)
    most = 0
    prune = Producers.prune

    def counted(self: Producers, limit: int) -> None:
        nonlocal most
        most = max(most, len(self))
        prune(self, limit)

    monkeypatch.setattr(Producers, "prune", counted)
    found = scanned(b"".join(an_abort(offset, offset) for offset in range(200)))
    assert [each.producer_id for each in found.index.producers] == [195, 196, 197, 198, 199]
    assert found.max_producer_id == 199
    assert 5 < most <= 12
