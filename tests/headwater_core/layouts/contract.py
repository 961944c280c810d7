"""What every layout does with a store that fails; what it does with one that works is headwater_core.layouts.testing."""

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from headwater_core.errors import AlreadyExists, CorruptData, TransientError, UnknownOutcome
from headwater_core.layouts import NewRun, Offloaded, Offloader
from headwater_core.layouts.testing import PARTITION
from headwater_core.objectstore.store import PLAIN, ObjectForm, ObjectInfo
from headwater_core.segments.run_scan import RunScan, scan_run
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_batch, a_commit, a_segment, an_abort

RUN = a_batch(5, 3, producer=7, transactional=True) + an_abort(8, 7) + a_segment(9, 40, value_bytes=9_000) + a_commit(49, 8)


def scanned(run: bytes = RUN, *, start: int = 0) -> RunScan:
    scan = scan_run(io.BytesIO(run), start=start, end=len(run), where="run")
    assert scan is not None
    return scan


class LossyStore(MemoryStore):
    """Loses the reply of a put, with or without having done it, and keeps digests to itself on request."""

    def __init__(self) -> None:
        super().__init__()
        self.lose: Callable[[str], str] = lambda key: ""  # "request", "reply" or ""
        self.keeps_digests = True

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        fate = self.lose(key)
        if fate == "request":
            raise UnknownOutcome(key)
        digest = super().put(key, data, size_bytes=size_bytes, form=form)
        if fate == "reply":
            raise UnknownOutcome(key)
        return digest

    def stat(self, key: str) -> ObjectInfo:
        info = super().stat(key)
        return info if self.keeps_digests else ObjectInfo(info.key, info.size_bytes, info.tag)


def new_run(number: int, suffixes: tuple[str, str]) -> NewRun:
    """RUN under its `number`."""
    data, index = (f"data/{number}{suffix}" if suffix else "" for suffix in suffixes)
    scan = scanned()
    return NewRun(PARTITION, scan.base_offset, scan.last_offset, data, index, io.BytesIO(RUN), scan)


def stored(layout: Offloader, run: NewRun, done: Offloaded) -> Any:
    """What a manifest entry would say."""
    fields = {name: getattr(done, name) for name in Offloaded.__slots__}
    return SimpleNamespace(layout=layout.name, key=run.key, index_key=run.index_key, **fields)


class OffloaderOnBadNetwork:
    """A subclass supplies the `layout` fixture, and the suffixes of its objects: "" where it has none beside the data."""

    suffixes = (".log", ".index")

    def offload(self, layout: Offloader, store: MemoryStore) -> Offloaded:
        return layout.offload(store, [new_run(0, self.suffixes)], {})[0]

    def keys(self) -> list[str]:
        return [f"data/0{suffix}" for suffix in self.suffixes if suffix]

    @pytest.mark.parametrize("keeps_digests", [True, False])
    def test_a_put_that_was_done_although_its_reply_is_lost_is_recognised(self, layout: Offloader, keeps_digests: bool) -> None:
        for key in self.keys():
            store = LossyStore()
            store.keeps_digests = keeps_digests
            store.lose = lambda each, key=key: "reply" if each == key else ""  # type: ignore[misc]
            done = self.offload(layout, store)
            run = stored(layout, new_run(0, self.suffixes), done)
            assert layout.read_offloaded(store, run).read_index() == scanned().index

    def test_a_put_that_may_still_happen_is_not_taken_for_done(self, layout: Offloader) -> None:
        for key in self.keys():
            store = LossyStore()
            store.lose = lambda each, key=key: "request" if each == key else ""  # type: ignore[misc]
            with pytest.raises(UnknownOutcome):
                self.offload(layout, store)

    @pytest.mark.parametrize("number", [0, 1])
    @pytest.mark.parametrize("fate", ["request", "reply"])
    def test_of_several_runs_what_is_missing_after_a_failure_is_sent_again(self, layout: Offloader, number: int, fate: str) -> None:
        for suffix in filter(None, self.suffixes):
            store, fates = LossyStore(), [fate]
            key = f"data/{number}{suffix}"
            store.lose = lambda each, key=key, fates=fates: fates.pop() if each == key and fates else ""  # type: ignore[misc]
            runs = [new_run(at, self.suffixes) for at in range(2)]
            if (number, suffix, fate) == (0, self.suffixes[0], "request"):  # nothing is there
                with pytest.raises(UnknownOutcome):
                    layout.offload(store, runs, {})
            for done, run in zip(layout.offload(store, runs, {}), runs, strict=True):
                reader = layout.read_offloaded(store, stored(layout, run, done))
                content = bytearray(len(RUN))
                reader.read_into(memoryview(content), 0)
                assert (bytes(content), reader.read_index()) == (RUN, run.scan.index)

    def test_an_impossible_index_length_is_refused_before_anything_is_read(self, layout: Offloader) -> None:
        done = self.offload(layout, MemoryStore())
        for size_bytes in (0, -1, 1 << 40):
            run = stored(layout, new_run(0, self.suffixes), done)
            run.index_bytes = size_bytes
            run.context = {name: str(size_bytes) if name.endswith("_bytes") else value for name, value in done.context.items()}
            with pytest.raises(CorruptData):
                layout.read_offloaded(MemoryStore(), run).read_index()

    def test_other_errors_of_the_store_pass(self, layout: Offloader) -> None:
        store = LossyStore()

        def throttled(key: str) -> str:
            raise TransientError("slow down")

        store.lose = throttled
        with pytest.raises(TransientError) as caught:
            self.offload(layout, store)
        assert not isinstance(caught.value, UnknownOutcome | AlreadyExists)
