"""Bookkeeping of a cache: what goes first, what stays, and that the sums are right."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydration.cache.lru_table import CacheEntry, LruTable
from hydration.runfile import RunFile


@pytest.fixture
def table() -> LruTable:
    return LruTable(30)


def names(table: LruTable) -> list[str]:
    return [name for name, _ in table.items()]


def a_file(tmp_path: Path, name: str) -> RunFile:
    path = tmp_path / name
    path.write_bytes(b"abc")
    return RunFile.open(path)


def test_the_least_recently_used_goes_first(table: LruTable) -> None:
    for name in "abc":
        table.add(name, CacheEntry(10, 0.0))
    table.touch("a", 5.0)
    assert table.make_room(0) == []
    assert table.make_room(5) == ["b"]
    assert (names(table), table.used_bytes) == (["c", "a"], 20)


def test_what_is_in_use_stays(table: LruTable, tmp_path: Path) -> None:
    file = a_file(tmp_path, "a")
    table.add("a", CacheEntry(20, 0.0, file))
    file.hold()
    table.add("b", CacheEntry(20, 0.0))
    assert table.make_room(15) == ["b"]
    assert table.forget("a") == 20
    assert os.pread(file.fileno(), 3, 0) == b"abc", "the reader reads on"
    file.release()


def test_a_name_that_comes_again_counts_once(table: LruTable) -> None:
    table.add("a", CacheEntry(10, 0.0))
    table.add("a", CacheEntry(4, 0.0))
    assert (names(table), table.used_bytes, table.forget("b")) == (["a"], 4, 0)


def test_few_files_stay_open(table: LruTable, tmp_path: Path) -> None:
    for name in "abc":
        table.add(name, CacheEntry(1, 0.0, a_file(tmp_path, name)))
    held = table.get("a")
    assert held is not None
    assert held.file is not None
    held.file.hold()
    table.close_files(2)
    assert [name for name, entry in table.items() if entry.file is not None] == ["a"]
    held.file.release()


def test_what_is_forgotten_is_noted_on_request(table: LruTable) -> None:
    table.add("a", CacheEntry(1, 0.0))
    table.forgotten = set()
    table.forget("a")
    table.forget("b")
    assert table.forgotten == {"a"}


@given(st.lists(st.tuples(st.sampled_from(["add", "forget", "room"]), st.sampled_from("abcde"), st.integers(1, 20))))
def test_its_bytes_are_those_of_its_entries(steps: list[tuple[str, str, int]]) -> None:
    table = LruTable(30)
    for what, name, size_bytes in steps:
        if what == "add":
            table.add(name, CacheEntry(size_bytes, 0.0))
        elif what == "forget":
            table.forget(name)
        else:
            table.make_room(size_bytes)
            assert table.used_bytes + size_bytes <= 30
        assert table.used_bytes == sum(entry.size_bytes for _, entry in table.items())
