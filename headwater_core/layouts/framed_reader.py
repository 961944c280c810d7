"""Reads a run out of frames, by the map of its object."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import closing

from headwater_core.layouts.frame_stream import FrameForm, stream_run
from headwater_core.layouts.offloader import StoredRun
from headwater_core.layouts.run_maps import RunMap, RunMaps
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.runindex import RunIndex


class FramedReader(ABC):
    """All of a RunReader but `check_rest`. Requests the map only when it is not remembered.

    maps          remembers those of many objects
    index_digest  of the object's index: with the key, the name of its map there
    """

    def __init__(self, store: ObjectStore, run: StoredRun, maps: RunMaps, form: FrameForm, index_digest: str) -> None:
        self._store, self._run, self._maps, self._form, self._index_digest = store, run, maps, form, index_digest

    def read_into(self, buffer: memoryview, start: int) -> None:
        with closing(self.stream_into((buffer,), start)) as filled:
            for _ in filled:
                pass

    def stream_into(self, buffers: Sequence[memoryview], start: int) -> Generator[None, None, None]:
        found = self._maps.get(self._run.key, self._index_digest) or self._read_map()
        return stream_run(self._form, found, self._run.size_bytes, self._fetch, buffers, start, self._run.key)

    def read_index(self) -> RunIndex:
        return self._read_map().run_index

    def _fetch(self, pieces: Sequence[memoryview], start: int) -> Generator[None, None, None]:
        return self._store.stream_into(self._run.key, pieces, start=start)

    @abstractmethod
    def _read_map(self) -> RunMap:
        """From the store, to be remembered. Raises NotFound, CorruptData, UnsupportedFormat."""
