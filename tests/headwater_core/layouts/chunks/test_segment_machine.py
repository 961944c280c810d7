"""The machine on each kind of store, and with mistakes planted that it has to find."""

import tempfile
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from headwater_core.errors import HeadwaterError, TransientError
from headwater_core.layouts.chunks import SegmentPlace, Variant, chunk_finder, consolidation
from headwater_core.layouts.chunks.chunk_segment import ChunkSegment
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.s3 import S3Store
from tests.headwater_core.layouts.chunks.segment_machine import SegmentMachine
from tests.headwater_core.objectstore.faulty import NO_FAULTS, Faults, FaultyStore
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.s3server import S3Server

QUICK = settings(deadline=None, stateful_step_count=30, max_examples=60, suppress_health_check=list(HealthCheck))


class InMemory(SegmentMachine):
    new_store = MemoryStore


InMemory.TestCase.settings = QUICK
TestInMemory = InMemory.TestCase


def test_in_a_directory() -> None:
    class InDirectory(SegmentMachine):
        @staticmethod
        def new_store() -> DirectoryStore:
            path = Path(root) / uuid.uuid4().hex
            path.mkdir()
            return DirectoryStore(path)

    with tempfile.TemporaryDirectory() as root:
        run_state_machine_as_test(InDirectory, settings=settings(QUICK, max_examples=10))


def test_on_an_s3_server(s3_environ: S3Server) -> None:
    with closing(S3Store(s3_environ.bucket(), "", endpoint_url=s3_environ.endpoint_url)) as store:

        class OnServer(SegmentMachine):
            @staticmethod
            def new_store() -> S3Store:
                for info in list(store.list("")):
                    store.delete(info.key)
                return store

        run_state_machine_as_test(OnServer, settings=settings(QUICK, max_examples=5, stateful_step_count=20))


class Overwriting(MemoryStore):
    """Replaces whatever is there: a store without conditional writes."""

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        return super().replace(key, document, expected_tag=self.stat(key).tag)


def no_comparison(patch: pytest.MonkeyPatch) -> None:
    """What is there is taken for what is wanted."""
    patch.setattr(ChunkSegment, "_compare", lambda self, position, data: min(self.end, position + len(data)))


def no_second_look(patch: pytest.MonkeyPatch) -> None:
    """A listing is taken at its word."""
    patch.setattr(chunk_finder, "_ends", lambda place, found, following: [])


def no_confirmation(patch: pytest.MonkeyPatch) -> None:
    """An object is taken for the segment because it is there."""
    patch.setattr(consolidation, "_confirm", lambda store, place, found, end: None)


def no_end(patch: pytest.MonkeyPatch) -> None:
    """Where the segment ends is taken from the object."""
    confirm = consolidation._confirm
    patch.setattr(consolidation, "_confirm", lambda store, place, found, end: confirm(store, place, found, 0))


@pytest.mark.parametrize("plant", [no_comparison, no_second_look, no_confirmation, no_end])
def test_a_planted_mistake_is_found(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, HeadwaterError)):
        run_state_machine_as_test(
            InMemory, settings=settings(QUICK, max_examples=5000, stateful_step_count=50, phases=[Phase.generate], derandomize=True)
        )


class Late(Random):
    """Lets nothing arrive before it is told to."""

    def random(self) -> float:
        return 0.99


@pytest.mark.parametrize(("kind", "end"), [(MemoryStore, 30), (Overwriting, 15)])
def test_without_conditional_writes_a_late_one_would_undo_a_later(kind: type[MemoryStore], end: int) -> None:
    """So such a store cannot have the fixed variant."""
    store, place = FaultyStore(kind(), Late(), NO_FAULTS), SegmentPlace("q", "commitLog", 0, Variant.FIXED)
    segment = ChunkSegment.open(store, place)
    segment.commit0(0, bytes(10))
    store.faults = Faults(delayed=1)
    with pytest.raises(TransientError):
        segment.commit0(10, b"b" * 5)
    store.faults = NO_FAULTS
    assert segment.commit0(10, b"b" * 20) == 30
    store.land()
    assert ChunkSegment.open(store, place).end == end
