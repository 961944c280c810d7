"""The index answers as a walk over the newest head would, and a damaged one is an empty one."""

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import manifests.index
from headwater_core.errors import DiskFull
from headwater_core.partition import PartitionId, topic_id_text
from manifests.entry import Entry
from manifests.head import Head
from manifests.index import ManifestIndex
from manifests.page import Item, PageRef
from tests.manifests.builders import PARTITION, a_gap, a_head, an_entry, heads
from tests.manifests.trees import SMALL, Pages, grown

OTHERS = (
    PartitionId("cluster-2", PARTITION.topic_id, 3, "orders"),
    PartitionId("cluster-1", PARTITION.topic_id, 2, "orders"),
    PartitionId("cluster-1", PARTITION.topic_id, 4, "orders"),
    PartitionId("cluster-1", topic_id_text(b"\xff" * 16), 3, "orders"),
)


def first_at_or_past(head: Head, timestamp_ms: int) -> Entry | None:
    return next((entry for entry in head.entries if entry.last_timestamp_ms is not None and entry.last_timestamp_ms >= timestamp_ms), None)


def assert_answers_as(index: ManifestIndex, head: Head) -> None:
    partition = head.partition_id
    assert index.version(partition) == head.version
    offsets = {0, head.start_offset, head.last_offset + 1, 2**63 - 1}
    offsets |= {at for entry in head.entries for at in (entry.base_offset - 1, entry.base_offset, entry.last_offset)}
    for offset in offsets:
        assert index.floor(partition, offset) == head.entries.at(offset), offset
    times = {-(2**63), 0, 2**63 - 1, 2**70}
    times |= {at for entry in head.entries for at in ((entry.last_timestamp_ms or 0), (entry.last_timestamp_ms or 0) + 1)}
    for timestamp in times:
        assert index.floor_time(partition, timestamp) == first_at_or_past(head, timestamp), timestamp


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=st.lists(heads(), min_size=1, max_size=4))
def test_it_answers_as_the_newest_head_does(found: list[Head], tmp_path: Path) -> None:
    with ManifestIndex(Path(tempfile.mkdtemp(dir=tmp_path)) / "index", 16 << 20) as index:
        for number, head in enumerate(found):
            commit = msgspec.structs.replace(head, commit_id=f"{number:032x}")  # no two heads have the same
            index.replace(commit)
            assert_answers_as(index, commit)


def test_a_commit_of_the_same_version_or_a_lower_one_replaces_what_is_there(tmp_path: Path) -> None:
    with ManifestIndex(tmp_path / "index") as index:
        assert index.replace(a_head(an_entry(0, 9), an_entry(10, 19, uid="aa" * 16), version=5))
        other = a_head(an_entry(0, 9), an_entry(10, 14, uid="bb" * 16), version=5, commit_id="d" * 32)
        assert index.replace(other)
        assert not index.replace(other)
        assert_answers_as(index, other)
        restored = a_head(an_entry(0, 9), version=4)
        assert index.replace(restored)
        assert_answers_as(index, restored)


def test_a_cut_and_a_trim_take_their_entries_out(tmp_path: Path) -> None:
    with ManifestIndex(tmp_path / "index") as index:
        index.replace(a_head(an_entry(0, 9), an_entry(10, 19), an_entry(20, 29), version=1))
        cut = msgspec.structs.replace(an_entry(10, 19), last_offset=14, live_bytes=50)
        head = a_head(cut, a_gap(15, 16), version=2)
        index.replace(head)
        assert_answers_as(index, head)


def test_neighbours_do_not_mix(tmp_path: Path) -> None:
    with ManifestIndex(tmp_path / "index") as index:
        for partition in OTHERS:
            index.replace(a_head(an_entry(0, 99, partition=partition), partition=partition))
        assert index.version(PARTITION) is None
        assert index.floor(PARTITION, 50) is None
        assert index.floor_time(PARTITION, 50) is None
        index.replace(a_head(start_offset=54, last_offset=53))
        assert index.floor(PARTITION, 53) is None
        assert all(index.floor(partition, 50) is not None for partition in OTHERS)


def test_a_floor_beyond_the_entry_is_no_answer(tmp_path: Path) -> None:
    with ManifestIndex(tmp_path / "index") as index:
        index.replace(a_head(an_entry(5, 9)))
        assert index.floor(PARTITION, 10) is None
        assert index.floor(PARTITION, 4) is None
        assert index.floor(PARTITION, -1) is None
        assert index.floor(PARTITION, 2**64) is None


def test_timestamps_out_of_order_lead_to_the_first_entry_that_reaches_them(tmp_path: Path) -> None:
    stamps = [100, 50, None, 300, 200, -5]
    entries = [an_entry(at * 10, at * 10 + 9, last_timestamp_ms=stamp) for at, stamp in enumerate(stamps)]
    with ManifestIndex(tmp_path / "index") as index:
        head = a_head(*entries)
        index.replace(head)
        assert_answers_as(index, head)
        assert index.floor_time(PARTITION, 150) == entries[3]
        assert index.floor_time(PARTITION, 301) is None


def test_a_partition_that_is_gone_takes_any_head(tmp_path: Path) -> None:
    with ManifestIndex(tmp_path / "index") as index:
        index.replace(a_head(an_entry(0, 9), version=9))
        index.retain([PARTITION])
        assert index.version(PARTITION) == 9
        index.retain([])
        assert index.version(PARTITION) is None
        assert index.floor(PARTITION, 5) is None
        assert index.floor_time(PARTITION, 0) is None
        assert index.replace(a_head(an_entry(0, 9), version=1))


def test_a_clean_close_keeps_the_index(tmp_path: Path) -> None:
    head = a_head(an_entry(0, 9), version=3)
    with ManifestIndex(tmp_path / "index") as index:
        assert not index.kept
        index.replace(head)
    with ManifestIndex(tmp_path / "index") as index:
        assert index.kept
        assert_answers_as(index, head)
    with ManifestIndex(tmp_path / "index") as index:
        assert index.kept


@pytest.mark.parametrize("damage", ["flip", "cut", "noise", "empty", "missing", "mark", "all", "file", "data.mdb", "lock.mdb", "closed"])
def test_a_damaged_index_is_an_empty_one(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "index"
    with ManifestIndex(path) as index:
        index.replace(a_head(*(an_entry(at, at) for at in range(500)), version=3))
    data = path / "data.mdb"
    content = data.read_bytes()
    match damage:
        case "flip":
            data.write_bytes(content[:9000] + bytes([content[9000] ^ 1]) + content[9001:])
        case "cut":
            data.write_bytes(content[: len(content) // 2])
        case "noise":
            data.write_bytes(random.Random(7).randbytes(len(content)))
        case "empty":
            data.write_bytes(b"")
        case "missing":
            data.unlink()
        case "mark":
            (path / "closed").write_bytes(b"\xff\x00")
        case "all":
            shutil.rmtree(path)
        case "file":
            shutil.rmtree(path)
            path.write_bytes(content)
        case directory:
            (path / directory).unlink()
            (path / directory).mkdir()
    with ManifestIndex(path) as index:
        assert not index.kept
        assert index.version(PARTITION) is None
        assert index.replace(a_head(an_entry(0, 9), version=1))


def test_a_killed_process_leaves_an_index_that_starts_empty(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from manifests.index import ManifestIndex; from tests.manifests.builders import *\n"
        "index = ManifestIndex(Path(sys.argv[1])); index.replace(a_head(an_entry(0, 9)))\n"
        "os.kill(os.getpid(), 9)"
    )
    with ManifestIndex(tmp_path / "index") as index:
        index.replace(a_head(an_entry(0, 9)))
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "index")], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    with ManifestIndex(tmp_path / "index") as index:
        assert not index.kept
        assert index.version(PARTITION) is None


def test_no_room_is_disk_full_and_changes_nothing(tmp_path: Path) -> None:
    with ManifestIndex(tmp_path / "index", 256 << 10) as index:
        small = a_head(an_entry(0, 9), version=1)
        index.replace(small)
        with pytest.raises(DiskFull):
            index.replace(a_head(*(an_entry(at, at) for at in range(2000)), version=2))
        assert_answers_as(index, small)


def test_readers_see_one_version_while_it_is_replaced(tmp_path: Path) -> None:
    """Every version holds one entry over all offsets, so a reader that finds none has seen half a change."""
    with ManifestIndex(tmp_path / "index") as index:
        index.replace(a_head(an_entry(0, 99), version=1))
        stop, missed = threading.Event(), []

        def read() -> None:
            while not stop.is_set():
                entry = index.floor(PARTITION, 60)
                if not isinstance(entry, Entry) or 60 not in entry:
                    missed.append(entry)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for version in range(2, 200):
            split = 10 + version % 80
            index.replace(a_head(an_entry(0, split), an_entry(split + 1, 99), version=version))
        stop.set()
        for reader in readers:
            reader.join()
        assert missed == []


def test_a_tree_answers_page_by_page_and_keeps_what_it_learned(tmp_path: Path) -> None:
    pages = Pages()
    entries = [an_entry(at * 10, at * 10 + 9) for at in range(60)]
    tree = grown(pages, entries)
    with ManifestIndex(tmp_path / "index") as index:
        head = a_head(*tree.items, version=7)  # type: ignore[arg-type]
        index.replace(head)

        def found(look_up: Callable[[], Item | None]) -> tuple[Entry | None, int]:
            loads = 0
            while isinstance(item := look_up(), PageRef):
                index.add_page(item, pages.reader.read(item))
                loads += 1
            return item, loads

        for at, entry in enumerate(entries):
            answer, loads = found(partial(index.floor, PARTITION, at * 10 + 5))
            assert answer == entry
            assert loads <= 3
            assert found(partial(index.floor_time, PARTITION, at * 10_000 + 1)) == (entry, 0)
        assert found(partial(index.floor, PARTITION, 600)) == (None, 0)
        assert found(partial(index.floor_time, PARTITION, 700_000)) == (None, 0)
        more = pages.packed(tree.followed_by(*(an_entry(at * 10, at * 10 + 9) for at in range(60, 70))))
        index.replace(a_head(*more.items, version=8))  # type: ignore[arg-type]
        assert [found(partial(index.floor, PARTITION, at * 10 + 5))[0] for at in range(70)] == list(more)
        index.retain([])
        with index._env.begin() as txn:
            assert [txn.stat(each)["entries"] for each in (index._heads, index._items, index._times)] == [0, 0, 0]
        assert found(partial(index.floor, PARTITION, 5)) == (None, 0)


def test_pages_below_pages_that_left_leave_with_them(tmp_path: Path) -> None:
    """Retention lets a whole subtree go, and growth rewrites the pages above others: no row stays that the head does not lead to."""
    pages = Pages(SMALL)
    tree = grown(pages, [an_entry(at, at + 9) for at in range(0, 600, 10)])

    def rows(items: Iterable[Item]) -> int:
        return sum(1 + (rows(pages.reader.read(item)) if isinstance(item, PageRef) else 0) for item in items)

    with ManifestIndex(tmp_path / "index") as index:
        for version in range(1, 6):
            index.replace(a_head(*tree.items, version=version))  # type: ignore[arg-type]
            for at in range(tree.base_offset, tree.next_offset, 10):
                while isinstance(found := index.floor(PARTITION, at), PageRef):
                    index.add_page(found, pages.reader.read(found))
                assert found is not None
                assert at in found
            with index._env.begin() as txn:
                assert txn.stat(index._items)["entries"] == rows(tree.items)
            for at in range(tree.next_offset, tree.next_offset + 300, 10):
                tree = pages.packed(tree.followed_by(an_entry(at, at + 9)))
            tree = pages.packed(tree.split_at(tree.base_offset + 300)[1])
        index.replace(a_head(an_entry(tree.next_offset, tree.next_offset + 9), version=6))
        with index._env.begin() as txn:
            assert [txn.stat(database)["entries"] for database in (index._items, index._times)] == [1, 1]


def test_an_index_of_other_keys_starts_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(manifests.index, "_VERSION", 1)
        with ManifestIndex(tmp_path / "index") as index:
            index.replace(a_head(an_entry(0, 9)))
    with ManifestIndex(tmp_path / "index") as index:
        assert not index.kept
        assert index.version(PARTITION) is None
