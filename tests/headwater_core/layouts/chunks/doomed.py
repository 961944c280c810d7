"""What a consolidation in a process of its own comes to, on a directory: `python -m tests.headwater_core.layouts.chunks.doomed`

kill VARIANT DIRECTORY STEP:TIMES   it consolidates and deletes, and sends itself SIGKILL before that step, at the so manieth time;
                                    steps are the store's calls and headwater_core.milestones
write VARIANT DIRECTORY WRITES HELD it commits WHOLE, and sends itself SIGKILL after so many writes of chunks. HELD: the position of a
                                    chunk whose write is never done, while four threads write all of it in one commit, and at least
                                    all before that chunk; "": it commits 7 bytes at a time
full VARIANT DIRECTORY              it mounts a disk there that has no room for the object beside its chunks, and more room later:
                                    wants a mount namespace of its own
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from headwater_core import milestones
from headwater_core.errors import DiskFull
from headwater_core.layouts.chunks import ChunkSegment, SegmentState, Variant, consolidate, delete_chunks
from headwater_core.layouts.chunks.chunk_segment import in_threads
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import PLAIN, ObjectForm
from tests.headwater_core.layouts.chunks.recovery import CHUNK_BYTES, PLACES, WHOLE

LARGE_BYTES = 300 << 10


class Doomed(DirectoryStore):
    def __init__(self, root: Path, step: str, times: int) -> None:
        super().__init__(root)
        self._step, self._left = step, times
        milestones.observer = self.reach

    def reach(self, step: str) -> None:
        self._left -= step == self._step
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        self.reach("read")
        return super().read_into(key, buffer, start=start)

    def delete(self, key: str) -> None:
        self.reach("delete")
        super().delete(key)


class DoomedWriter(DirectoryStore):
    """held: what is never written. before: what is, before the end"""

    def __init__(self, root: Path, writes: int, held: str, before: Sequence[str] = ()) -> None:
        super().__init__(root)
        self._counting, self._left, self._held = threading.Lock(), writes, held
        self._missing = [root / key for key in before]

    def create(self, key: str, document: bytes) -> str:
        self._wait(key)
        return self._counted(super().create(key, document))

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        return self._counted(super().replace(key, document, expected_tag=expected_tag))

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        return self._counted(super().put(key, data, size_bytes=size_bytes, form=form))

    def _wait(self, key: str) -> None:
        if self._held and key == self._held:
            threading.Event().wait()  # until the process ends

    def _counted(self, answer: str) -> str:
        with self._counting:
            self._left -= 1
            if self._left <= 0 and all(path.exists() for path in self._missing):  # threads write in any order
                os.kill(os.getpid(), signal.SIGKILL)
        return answer


def write(variant: Variant, root: Path, writes: str, held: str) -> None:
    place = PLACES[variant]
    before = [place.chunk_key(at) for at in range(0, int(held or 0), CHUNK_BYTES)]
    store = DoomedWriter(root, int(writes), place.chunk_key(int(held)) if held else "", before)
    segment = ChunkSegment.open(store, place, chunk_bytes=CHUNK_BYTES)
    if held:
        segment.commit0(0, WHOLE, apply=in_threads(4))
    for at in range(0, len(WHOLE), 7):
        segment.commit0(at, WHOLE[at : at + 7])


def kill(variant: Variant, root: Path, step: str) -> None:
    name, _, times = step.partition(":")
    store = Doomed(root, name, int(times))
    end = ChunkSegment.open(DirectoryStore(root), PLACES[variant]).end
    consolidate(store, PLACES[variant], end)
    delete_chunks(store, PLACES[variant], end)


def full(variant: Variant, root: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "none", root], check=True)
    store, place, content = DirectoryStore(root), PLACES[variant], bytes(range(256)) * (3 * LARGE_BYTES // 256)
    segment = ChunkSegment.open(store, place, chunk_bytes=LARGE_BYTES)
    for at in range(0, len(content), LARGE_BYTES):
        segment.commit0(at, content[at : at + LARGE_BYTES])
    try:
        consolidate(store, place, len(content))
        raise AssertionError("there was room")
    except DiskFull:
        pass
    again = ChunkSegment.open(store, place, chunk_bytes=LARGE_BYTES, is_full=True)
    assert (again.found.state, again.read0(0, len(content))) == (SegmentState.FULL, content)
    assert len(list(store.list(""))) == 3
    try:
        ChunkSegment.open(store, place, chunk_bytes=LARGE_BYTES).commit0(len(content), content)
        raise AssertionError("there was room")
    except DiskFull:
        pass
    assert ChunkSegment.open(store, place, chunk_bytes=LARGE_BYTES).read0(0, len(content)) == content
    subprocess.run(["mount", "-o", "remount,size=16m", root], check=True)
    longer = ChunkSegment.open(store, place, chunk_bytes=LARGE_BYTES)
    end = longer.commit0(longer.end, b"the end")
    consolidate(store, place, end)
    assert delete_chunks(store, place, end).state is SegmentState.DONE
    assert ChunkSegment.open(store, place).read0(0, len(content)) == content


if __name__ == "__main__":
    verb, name, directory, *rest = sys.argv[1:]
    verbs: dict[str, Callable[..., None]] = {"kill": kill, "write": write, "full": full}
    verbs[verb](Variant(name), Path(directory), *rest)
