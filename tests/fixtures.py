"""Log directories that a real Kafka broker wrote, and what its consumer read from them (tests/fixtures/kafka/README.md)."""

import atexit
import functools
import json
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

KAFKA = Path(__file__).parent / "fixtures" / "kafka"
NAMES = ("pantry", "pantry-live", "kitchen", "brigade", "brigade-node2-dead-branch")
Isolation = Literal["read_uncommitted", "read_committed"]

_EXPECTED_OF = {"pantry-live": "pantry", "brigade-node2-dead-branch": "brigade"}


@functools.cache
def unpack(name: str) -> Path:
    """The log directory `name` (for brigade: the one that holds node1, node2, node3, node9), unpacked once per process.

    It is shared: copy what a test changes, with `private_copy`.
    """
    root = Path(tempfile.mkdtemp(prefix=f"headwater-{name}-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    with tarfile.open(KAFKA / f"{name}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # in Python 3.11 from its fourth patch on
        archive.extractall(root)
    return root / name


def private_copy(name: str, into: Path) -> Path:
    """A copy to change: the index files of a live broker are left out, they are sparse, and no test reads them."""
    return Path(shutil.copytree(unpack(name), into / name, ignore=shutil.ignore_patterns("*.index", "*.timeindex")))


@functools.cache
def expected(name: str, isolation: Isolation) -> list[dict[str, Any]]:
    """What the Java consumer delivered, by topic, partition and offset; see the README for the fields. Do not change it."""
    return list(_lines(KAFKA / "expected" / f"{_EXPECTED_OF.get(name, name)}.{isolation}.jsonl.xz"))


@functools.cache
def expected_offsets(name: str, isolation: Isolation) -> Any:
    """Per partition its start, end and record count."""
    return json.loads((KAFKA / "expected" / f"{_EXPECTED_OF.get(name, name)}.{isolation}.offsets.json").read_bytes())


@functools.cache
def expected_cluster(name: str) -> Any:
    """What the admin API answered before the stop."""
    return json.loads((KAFKA / "expected" / f"{_EXPECTED_OF.get(name, name)}.cluster.json").read_bytes())


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
