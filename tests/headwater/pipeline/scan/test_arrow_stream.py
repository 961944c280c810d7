"""Scans against what the Java consumer read, and what keeps them small."""

import gc
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headwater.pipeline.scan import arrow_stream
from headwater.pipeline.scan.archive_snapshot import ArchiveSnapshot, latest
from headwater.pipeline.scan.arrow_stream import scan
from headwater.pipeline.scan.query import COLUMNS, Predicate
from headwater.pipeline.scan.query_options import parse_query
from headwater.pipeline.scan.scan_plan import plan_scan
from headwater_core.errors import CorruptData, DataLoss, UsageError
from headwater_core.objectstore.directory import DirectoryStore
from tests.fixtures import Isolation, expected, expected_offsets
from tests.headwater.pipeline.archives import a_copy, fixture, in_small_objects, rows, soup, soup_rows
from tests.headwater.pipeline.growing import Growing
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore

NAMES = ("pantry", "pantry-live", "kitchen")


def without_epoch(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "leader_epoch"} for row in found]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("archive", [fixture, in_small_objects])
@pytest.mark.parametrize("name", NAMES)
def test_a_scan_gives_what_the_java_consumer_got_in_every_field(
    name: str, archive: Callable[[str], MemoryStore], isolation: Isolation
) -> None:
    wanted = without_epoch(expected(name, isolation))
    assert wanted
    found = rows(scan(archive(name), "*", isolation=isolation, include_headers=True, split_bytes=5_000).read_all())
    assert found == sorted(wanted, key=lambda row: (row["topic"], row["partition"], row["offset"]))


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", NAMES)
def test_counts_offsets_and_times_of_each_partition_are_kafkas(name: str, isolation: Isolation) -> None:
    table = scan(fixture(name), "*", isolation=isolation, columns="topic,partition,offset,timestamp").read_all()
    table = table.set_column(3, "timestamp", pc.divide(table["timestamp"].cast(pa.int64()), 1000))
    found = table.group_by(["topic", "partition"]).aggregate(
        [("offset", "count"), ("offset", "min"), ("offset", "max"), ("timestamp", "min"), ("timestamp", "max")]
    )
    wanted: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in expected(name, isolation):
        wanted.setdefault((row["topic"], row["partition"]), []).append((row["offset"], row["timestamp"]))
    summary = {}
    for key, pairs in wanted.items():
        offsets, times = zip(*pairs, strict=True)
        summary[key] = (len(pairs), min(offsets), max(offsets), min(times), max(times))
    assert {(row[0], row[1]): tuple(row[2:]) for row in (tuple(each.values()) for each in found.to_pylist())} == summary


@pytest.mark.parametrize("name", NAMES)
def test_the_ends_of_each_partition_are_kafkas(name: str) -> None:
    query = parse_query({"topics": "*"})
    heads = {(head.topic, head.partition): head for head in ArchiveSnapshot.read(fixture(name), query).heads}
    reported = expected_offsets(name, "read_committed")
    assert reported
    for each in reported:
        head = heads[each["topic"], each["partition"]]
        assert head.start_offset == each["start"]
        assert latest(head, read_committed=True) == each.get("last_stable", latest(head, read_committed=True)), each


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_scan_gives_what_the_agent_reads(isolation: Isolation) -> None:
    wanted = soup_rows(isolation)
    assert len(wanted) > 200
    assert rows(scan(soup(), "soup", isolation=isolation, include_headers=True, fail_on_data_loss=False).read_all()) == wanted


def test_what_is_filtered_out_is_not_fetched() -> None:
    store = MeteredStore(soup())
    everything = scan(store, "soup", fail_on_data_loss=False).read_all()
    whole = store.bytes_read
    store.reset()
    some = scan(store, "soup", starting_offsets={"soup": {"0": 65}}, ending_offsets={"soup": {"0": 70}}).read_all()
    assert some["offset"].to_pylist() == list(range(65, 70))
    assert everything.num_rows > 10 * some.num_rows
    assert store.bytes_read < whole / 3


# As a stream


def test_a_scan_is_what_pandas_and_others_read() -> None:
    reader = scan(soup(), "soup", columns=["offset", "value"], fail_on_data_loss=False)
    assert reader.schema.names == ["offset", "value"]
    frame = reader.read_pandas()
    assert frame["offset"].tolist() == [row["offset"] for row in soup_rows("read_uncommitted")]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_number_of_workers_gives_the_same_order(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_stream, "READ_AHEAD_BYTES", 1)  # every batch has to wait for its turn
    table = scan(soup(), "soup", workers=workers, split_bytes=60_000, columns="offset", fail_on_data_loss=False).read_all()
    assert table["offset"].to_pylist() == [row["offset"] for row in soup_rows("read_uncommitted")]


def test_a_reader_that_is_let_go_stops_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_stream, "READ_AHEAD_BYTES", 1)
    store = MeteredStore(soup())
    reader = scan(store, "soup", workers=2, split_bytes=60_000, fail_on_data_loss=False)
    assert reader.read_next_batch().num_rows
    assert [thread for thread in threading.enumerate() if thread.name == "scan"]
    del reader
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "scan"]
    assert store.calls["read_into"] < 20


_PROGRAM = """
import multiprocessing, os, sys, threading
from headwater.pipeline.scan import arrow_stream

puts, is_ahead, put = [], threading.Event(), arrow_stream._Channel._put

def counted(self, batch):
    puts.append(batch)
    if len(puts) == 3:  # the first was consumed, the second is ready
        is_ahead.set()
    return put(self, batch)

def scan():
    arrow_stream.READ_AHEAD_BYTES = 1
    arrow_stream._Channel._put = counted
    return arrow_stream.scan(sys.argv[1], "soup", workers=2, columns="offset", fail_on_data_loss=False)

def refuse(reader):
    try:
        reader.read_next_batch()
    except Exception as error:
        print(error, flush=True)

def read_other():
    print(scan().read_all().num_rows > 200)

if __name__ == "__main__":
    reader = scan()
"""


@pytest.mark.parametrize(
    ("end", "code", "printed"),
    [
        ("for batch in reader: is_ahead.wait(); raise ValueError('of the caller')", 1, "of the caller"),
        ("for batch in reader: is_ahead.wait(); break", 0, ""),
        ("next(reader); is_ahead.wait(); reader = reader.__arrow_c_stream__()", 0, ""),  # as DuckDB takes it, whose LIMIT leaves it unread
        ("next(reader); is_ahead.wait(); os.fork() or (refuse(reader), sys.exit()); os.wait()", 0, "only in the process that made it"),
        (
            "next(reader); is_ahead.wait(); multiprocessing.get_context('fork').Process(target=refuse, args=[reader]).start()",
            0,
            "only in the process",
        ),
        ("next(reader); is_ahead.wait(); multiprocessing.get_context('spawn').Process(target=read_other).start()", 0, "True"),
    ],
)
def test_a_reader_that_is_not_read_to_its_end_keeps_no_process_alive(end: str, code: int, printed: str, tmp_path: Path) -> None:
    directory = DirectoryStore(tmp_path / "store")
    for info in soup().list(""):
        directory.create(info.key, soup().get(info.key)[0])
    (tmp_path / "program.py").write_text(f"{_PROGRAM}    {end}\n")
    run = [sys.executable, str(tmp_path / "program.py"), directory.url]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, printed in ended.stdout + ended.stderr) == (code, True), ended.stderr


def test_nobody_reads_further_ahead_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_stream, "READ_AHEAD_BYTES", 1)
    store = MeteredStore(soup())
    reader = scan(store, "soup", workers=2, split_bytes=60_000, fail_on_data_loss=False)
    splits = len(plan_scan(soup(), parse_query({"topics": "soup", "split_bytes": 60_000, "failOnDataLoss": "false"})).splits)
    for _ in range(3):
        reader.read_next_batch()
    touched = store.calls["read_into"]
    assert touched <= (3 + 3) * 3  # three splits under way or ready, three consumed: an index and a range or two each
    assert splits > 15


def test_damage_reaches_whoever_reads_and_nobody_waits_for_ever() -> None:
    store = a_copy(soup())
    (head,) = ArchiveSnapshot.read(store, parse_query({"topics": "soup"})).heads
    store.delete(head.entries[2].key)
    reader = scan(store, "soup", workers=2, split_bytes=60_000, columns="offset", fail_on_data_loss=False)
    found: list[int] = []
    with pytest.raises(CorruptData, match="the store does not have it"):
        found.extend(offset for batch in reader for offset in batch["offset"].to_pylist())
    assert found == [row["offset"] for row in soup_rows("read_uncommitted") if row["offset"] < head.entries[2].base_offset]


def test_what_is_wrong_with_a_request_is_said_at_once() -> None:
    with pytest.raises(UsageError, match="did you mean 'columns'"):
        scan(soup(), "soup", colums="offset")
    with pytest.raises(DataLoss, match="offsets 155 to 169 were never archived"):
        scan(soup(), "soup")
    with pytest.raises(UsageError, match="no store for"):
        scan("gopher://x", "soup")


def test_the_archives_directory_may_be_a_path(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "an archive")
    growing.append("orders", records=3)
    assert scan(tmp_path / "an archive", "orders", where=None).read_all().num_rows == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"store": Path("s3://bucket/prefix")}, "give it as text"),
        ({"store": None}, "store: s3://bucket/prefix, file:///path or a path is expected"),
        ({"store": b"file:///x"}, "store: s3://bucket/prefix, file:///path or a path is expected"),
        ({"where": "offset > 10"}, "where: a headwater.Predicate is expected, such as headwater.Predicate.of_times"),
        ({"workers": 0}, "workers: a number from 1 on"),
        ({"workers": "4"}, "workers: a number from 1 on"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_expected(arguments: dict[str, Any], expected: str) -> None:
    named: dict[str, Any] = {"store": MemoryStore(), "topics": "orders"} | arguments
    with pytest.raises(UsageError, match=re.escape(expected)):
        scan(**named)


@pytest.mark.parametrize(
    "wrong", [{"topics": "orders"}, {"partitions": 0}, {"first_offset": "5"}, {"end_timestamp_ms": datetime(2026, 1, 1, tzinfo=UTC)}]
)
def test_a_predicate_of_something_else_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"Predicate: {next(iter(wrong))} is an? "):
        Predicate(**wrong)


def test_nothing_wanted_is_an_empty_table_with_its_columns() -> None:
    table = scan(soup(), "soup", where=Predicate(first_offset=5000)).read_all()
    assert table.num_rows == 0
    assert table.schema.names == list(COLUMNS[:-1])


# To files
