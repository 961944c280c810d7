"""A segment on a bad network against a plain byte array: any order of commits that fail, retries that are shorter, restarts, deletions."""

import io
from collections.abc import Callable
from contextlib import suppress
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater_core.errors import CorruptData, SourceChanged, TransientError, UsageError
from headwater_core.layouts.chunks import ChunkSegment, SegmentPlace, SegmentState, Variant, consolidate, delete_chunks
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectForm, ObjectStore
from tests.headwater_core.objectstore.faulty import NO_FAULTS, Faults, FaultyStore

CHUNK_BYTES = 64
LENGTHS = st.integers(0, 3 * CHUNK_BYTES)
SOME_FAIL = Faults(refused=0.3, lost_request=0.2, lost_reply=0.1, delayed=0.1)
FAULTS = st.sampled_from(
    [
        Faults(refused=1),
        Faults(lost_request=1),
        Faults(lost_reply=1),
        Faults(delayed=1),
        Faults(echoed=1),
        Faults(refused=0.3, lost_request=0.2, lost_reply=0.1, delayed=0.1),
    ]
)


class Interrupted(FaultyStore):
    """The same network as `store` has, of which the call after so many is the last that a process makes: it fails, and so do all after it.

    left  how many calls were still to pass; below 0 it was interrupted
    """

    def __init__(self, store: FaultyStore, calls: int, faults: Faults) -> None:
        super().__init__(store.inner, store._random, NO_FAULTS)
        self._in_flight = store._in_flight
        self.left, self._last = calls, faults

    def _fault(self) -> str:
        self.left -= 1
        self.faults = NO_FAULTS if self.left >= 0 else self._last if self.left == -1 else Faults(refused=1)
        return super()._fault()


class SegmentMachine(RuleBasedStateMachine):
    """`log`: what was ever to be in the segment; `confirmed`: so much of it was confirmed to the caller. A subclass gives `new_store`."""

    new_store: Callable[[], ObjectStore]

    @initialize(variant=st.sampled_from(Variant), seed=st.integers(0, 1 << 30), at_once=st.booleans(), rereads=st.booleans())
    def begin(self, variant: Variant, seed: int, at_once: bool, rereads: bool) -> None:
        self.random = Random(seed)
        self.apply = map if at_once else None
        self.before = (lambda start, end: bytes(self.log[start:end])) if rereads else None
        self.store = FaultyStore(type(self).new_store(), self.random, NO_FAULTS)
        self.variant, self.base = variant, 0
        self.new_segment()

    def new_segment(self) -> None:
        self.log, self.confirmed = bytearray(), 0
        self.base += 1
        self.open()

    def commit0(self, data: bytearray) -> int:
        return self.segment.commit0(self.confirmed, data, before=self.before, apply=self.apply)

    def open(self) -> None:
        place = SegmentPlace("chunks/cluster/node.1/orders/0", "commitLog", self.base, self.variant)
        self.segment = ChunkSegment.open(self.store, place, chunk_bytes=CHUNK_BYTES)

    @rule(length=LENGTHS, faults=st.one_of(st.just(NO_FAULTS), FAULTS))
    def commit(self, length: int, faults: Faults) -> None:
        """From the confirmed end on, so that a commit after one that failed is a retry: as long, shorter, or longer."""
        end = self.confirmed + length
        if end > len(self.log):
            self.log += self.random.randbytes(end - len(self.log))
        self.store.faults = faults
        try:
            assert self.commit0(self.log[self.confirmed : end]) == end
            self.confirmed = end
        except TransientError:
            assert faults != NO_FAULTS
        finally:
            self.store.faults = NO_FAULTS

    @rule(length=st.integers(1, 100))
    def change_what_was_not_confirmed(self, length: int) -> None:
        """The log was cut there, by a new leader. Where the old bytes have arrived, the segment ends, and another continues."""
        before = bytes(self.log)
        self.log[self.confirmed :] = bytes(byte ^ 0xFF for byte in before[self.confirmed :]) or self.random.randbytes(length)
        try:
            self.commit0(self.log[self.confirmed :])
            self.confirmed = len(self.log)
        except SourceChanged:
            assert self.segment.end > self.confirmed or self.before is not None
            assert self.segment.read0(0, self.confirmed) == before[: self.confirmed]
            self.new_segment()

    @precondition(lambda self: self.confirmed)
    @rule(fails=st.integers(0, 12), faults=FAULTS, then_delete=st.booleans())
    def consolidate(self, fails: int, faults: Faults, then_delete: bool) -> None:
        """Nothing is added any more; interrupted at any request, and taken up again, as by another process."""
        place, states = self.segment.place, set[SegmentState]()
        for attempt in (Interrupted(self.store, fails, faults), self.store):
            with suppress(TransientError, CorruptData):
                states.add(consolidate(attempt, place, self.confirmed).state)
                if then_delete:
                    states.add(delete_chunks(attempt, place, self.confirmed).state)
            self.open()
            assert self.segment.read0(0, self.confirmed) == self.log[: self.confirmed]
        late = self.segment.found.state is SegmentState.BROKEN  # a chunk that came after the object was made
        assert late or states & {SegmentState.DONE, SegmentState.LEFTOVER}
        if then_delete and not late:
            assert [info.key for info in self.store.inner.list(place.prefix) if place.position_of(info.key) is not None] == []
        self.store.land()  # what was sent before, and arrives after all of it
        self.open()
        assert self.segment.read0(0, self.confirmed) == self.log[: self.confirmed]
        self.new_segment()

    @precondition(lambda self: self.confirmed)
    @rule(kind=st.sampled_from(["garbled", "other", "short"]))
    def refuse_another_object(self, kind: str) -> None:
        """One that is not what was confirmed, and whose metadata agree with it (garbled: with what was confirmed): it replaces nothing."""
        place, content = self.segment.place, bytes(self.log[: self.confirmed])
        wrong = content[:-1] if kind == "short" else content[:-1] + bytes([content[-1] ^ 0xFF])
        digest = digest_of(content if kind == "garbled" else wrong)
        form = ObjectForm({"headwater-bytes": str(len(wrong)), "headwater-crc": digest.partition(":")[2]})
        before = {info.key for info in self.store.inner.list(place.prefix)}
        self.store.inner.put(place.segment_key, io.BytesIO(wrong), size_bytes=len(wrong), form=form)
        for call in (consolidate, delete_chunks):
            try:
                call(self.store, place, self.confirmed)
            except (CorruptData, UsageError):
                continue
            raise AssertionError(f"{call.__name__} takes an object of other bytes for the segment")
        assert before <= {info.key for info in self.store.inner.list(place.prefix)}
        self.store.inner.delete(place.segment_key)
        self.open()

    @precondition(lambda self: self.store.in_flight)
    @rule()
    def some_late_write_arrives(self) -> None:
        self.store.land(1)

    @rule(stale=st.booleans())
    def restart(self, stale: bool) -> None:
        self.store.faults = Faults(stale_list=1) if stale else NO_FAULTS
        self.open()
        self.store.faults = NO_FAULTS
        is_open = SegmentState.OPEN if self.segment.end else SegmentState.NEW
        assert self.segment.found.state in ({is_open, SegmentState.LOST} if self.apply else {is_open})  # a chunk before others has failed
        assert self.confirmed <= self.segment.end <= len(self.log)

    @rule()
    def delete(self) -> None:
        self.store.lose()
        self.segment.delete()
        assert list(self.store.inner.list(self.segment.place.prefix)) == []
        self.new_segment()

    @rule(start=st.integers(0, 500), length=st.integers(0, 300))
    def read(self, start: int, length: int) -> None:
        start = min(start, self.confirmed)
        length = min(length, self.confirmed - start)
        assert self.segment.read0(start, length) == self.log[start : start + length]

    @invariant()
    def what_was_confirmed_is_there(self) -> None:
        if hasattr(self, "segment"):
            assert self.segment.end >= self.confirmed
            assert self.segment.read0(0, self.confirmed) == self.log[: self.confirmed]
