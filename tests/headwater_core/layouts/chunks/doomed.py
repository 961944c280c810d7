"""What a consolidation in a process of its own comes to, on a directory: `python -m tests.headwater_core.layouts.chunks.doomed`

kill VARIANT DIRECTORY STEP:TIMES   it consolidates and deletes, and sends itself SIGKILL before that step, at the so manieth time;
                                    steps are the store's calls and headwater_core.milestones
full VARIANT DIRECTORY              it mounts a disk there that has no room for the object beside its chunks, and more room later:
                                    wants a mount namespace of its own
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from headwater_core import milestones
from headwater_core.errors import DiskFull
from headwater_core.layouts.chunks import ChunkSegment, SegmentState, Variant, consolidate, delete_chunks
from headwater_core.objectstore.directory import DirectoryStore
from tests.headwater_core.layouts.chunks.recovery import PLACES

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
    (kill if verb == "kill" else full)(Variant(name), Path(directory), *rest)
