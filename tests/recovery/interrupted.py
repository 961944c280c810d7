"""Recoveries that fail, and buckets that are damaged."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import recovery
from headwater_core.errors import (
    HeadwaterError,
)
from manifests.entry import Entry
from manifests.repository import ManifestRepository
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore

ROOT = Path(__file__).parents[2]


class Failing(MemoryStore):
    """Reads data objects only so many times, then fails with `error`."""

    def __init__(self, other: MemoryStore, error: HeadwaterError, after: int) -> None:
        self.__dict__ = dict(other.__dict__)
        self.error, self.left = error, after

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().read_into(key, buffer, start=start)


def damaged(store: MemoryStore, key: str, change: str) -> MemoryStore:
    """A copy in which one object was changed by another hand."""
    other = MemoryStore(ManualClock())
    for info in store.list(""):
        raw = bytearray(store.get(info.key)[0])
        if info.key == key:
            if change == "gone":
                continue
            if change == "short":
                del raw[-1]
            else:
                raw[len(raw) // 2] ^= 0x10
        other.create(info.key, bytes(raw))
    return other


def runs_of(repository: ManifestRepository, topic: str) -> list[tuple[int, Entry]]:
    [planned_topic] = recovery.plan(repository, [topic]).topics
    return [(partition.partition, entry) for partition in planned_topic.partitions for entry in partition.files]


def started(archive_in: Path, into: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A recovery in a process of its own. environment: see tests/kill_at.py"""
    command = [sys.executable, "-m", "tests.recovery.apply_once", str(archive_in), str(into), *arguments]
    where = {**os.environ, **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=where)


def run(archive_in: Path, into: Path, *arguments: str, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    with started(archive_in, into, *arguments, KILL_AT=kill_at) as process:
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
