"""Exports hold each offset once, with where it came from, whatever happened on the way."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import recovery
from headwater.pipeline.export import parquet
from headwater.pipeline.export.checkpoint import open_checkpoint
from headwater.pipeline.export.directory_export import MILESTONES, DirectoryExport, DirectoryExportResult
from headwater.pipeline.export.parquet import _NO_DAY, _by_day, _day_text
from headwater.pipeline.runner import Threads
from headwater.pipeline.scan.decoder import arrow_schema
from headwater.pipeline.scan.query import COLUMNS, Query
from headwater.pipeline.scan.query_options import parse_query
from headwater_core.errors import CorruptData, Locked, Partial, UnsupportedFormat, UsageError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import topic_id_text
from manifests import keys
from manifests.document import _digest
from tests.fixtures import expected, unpack
from tests.headwater.pipeline.bucket import TOPICS, Crash, Crashing, a_bucket
from tests.headwater.pipeline.growing import Growing
from tests.headwater.test_verbs import as_expected
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_record, a_segment
from tests.manifests import format_1
from tests.recovery.archived import archive_in_memory

ROOT = Path(__file__).parents[4]
ONCE = ("export.planned", "export.saved")  # steps that a short run reaches once


def a_query(topics: tuple[str, ...] = TOPICS, **options: Any) -> Query:
    return parse_query({"topics": topics, "columns": COLUMNS, "splitBytes": 16 << 10, "isolation": "read_committed", **options})


def export(store: ObjectStore, directory: Path, query: Query | None = None, *, runner: Any = None) -> DirectoryExportResult:
    query = query or a_query()
    held = open_checkpoint(directory, store_url=store.url, read_committed=query.read_committed, columns=query.columns, read_only=False)
    with held as checkpoint:
        return DirectoryExport(store, query, checkpoint).run(runner or Threads(store, 2))


def rows(directory: Path) -> list[dict[str, Any]]:
    """What a reader of the directory finds, in the fields and the order of the expectation."""
    table = (
        ds.dataset(directory, partitioning="hive")
        .to_table()
        .sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
    )
    return list(map(as_row, table.to_pylist()))


def text(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def as_row(row: dict[str, Any]) -> dict[str, Any]:
    return as_expected(
        {
            "topic": row["topic"],
            "partition": row["partition"],
            "offset": row["offset"],
            "timestamp": round(row["timestamp"].timestamp() * 1000),
            "timestamp_type": ["CreateTime", "LogAppendTime"][row["timestampType"]],
            "leader_epoch": row["leaderEpoch"],
            "key": text(row["key"]),
            "value": text(row["value"]),
            "headers": [[header["key"], text(header["value"])] for header in row["headers"] or []],
        }
    )


def wanted(isolation: Any = "read_committed", topics: tuple[str, ...] = TOPICS) -> list[dict[str, Any]]:
    return [row for row in expected("pantry", isolation) if row["topic"] in topics]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_an_export_holds_what_the_broker_delivered_in_every_field(isolation: str, tmp_path: Path) -> None:
    bucket = a_bucket()
    summary = export(bucket.store, tmp_path / "out", a_query(isolation=isolation))
    assert rows(tmp_path / "out") == wanted(isolation)
    assert summary.files.rows == len(wanted(isolation))
    assert summary.verdict() is None


def test_rows_lie_under_their_topic_and_day_and_say_where_they_come_from(tmp_path: Path) -> None:
    bucket = a_bucket()
    export(bucket.store, tmp_path / "out")
    found = ds.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
    entries = {(entry.key, head.topic, head.partition): (head, entry) for head, entry in bucket.entries()}
    assert found
    for row in found:
        head, entry = entries[row["object"], row["topic"], row["partition"]]
        assert row["offset"] in entry
        assert row["topicId"] == head.topic_id
        assert row["rangeFirst"] <= row["offset"] < row["rangeEnd"]
        assert str(row["date"]) == row["timestamp"].date().isoformat()


def test_the_second_run_adds_nothing_and_the_third_what_is_new(tmp_path: Path) -> None:
    bucket = a_bucket()
    whole = {head.partition_id: head for head in bucket.heads}
    for head in whole.values():  # as the archive was some time ago
        if len(head.entries) > 1 and head.entries[0].open_from is None:
            bucket.rewrite(head, entries=tuple(head.entries)[:1], last_offset=head.entries[0].last_offset)
    export(bucket.store, tmp_path / "out")
    some = rows(tmp_path / "out")
    assert 0 < len(some) < len(wanted())
    before = sorted(tmp_path.rglob("*.parquet"))
    again = export(bucket.store, tmp_path / "out")
    assert (again.ranges, again.files.files) == (0, 0)
    assert sorted(tmp_path.rglob("*.parquet")) == before
    for head in whole.values():
        bucket.put(keys.head(head.partition_id), format_1.encode(head))
    export(bucket.store, tmp_path / "out")
    assert rows(tmp_path / "out") == wanted()
    assert set(before) <= set(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("seed", range(4))
def test_runs_that_end_early_and_are_repeated_end_like_an_undisturbed_one(seed: int, tmp_path: Path) -> None:
    bucket, random = a_bucket(), Random(seed)
    for _ in range(3):
        with suppress(Crash):
            export(bucket.store, tmp_path / "out", runner=Crashing(bucket.store, random.randrange(6)))
    export(bucket.store, tmp_path / "out")
    export(a_bucket().store, tmp_path / "calm")
    assert rows(tmp_path / "out") == rows(tmp_path / "calm") == wanted()
    assert names(tmp_path / "out") == names(tmp_path / "calm")


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [MILESTONES[0], MILESTONES[-1], *(pytest.param(each, marks=pytest.mark.long) for each in MILESTONES[1:-1])]
)
def test_killed_at_any_step_the_next_run_finishes(step: str, tmp_path: Path) -> None:
    bucket = a_bucket()
    bucket.write_to(tmp_path / "bucket")

    def run(kill_at: str) -> int:
        command = [
            sys.executable,
            "-m",
            "tests.kill_at",
            "jobs",
            "export",
            *TOPICS,
            "--to",
            "out",
        ]
        command += ["--store", (tmp_path / "bucket").as_uri(), "--split-bytes", "16KiB", "--workers", "2"]
        environment = {**os.environ, "KILL_AT": kill_at, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode in (0, -signal.SIGKILL), ran.stderr
        return ran.returncode

    assert run(step if step in ONCE else f"{step}:3") == -signal.SIGKILL
    assert run("") == 0
    assert rows(tmp_path / "out") == wanted()
    export(a_bucket().store, tmp_path / "calm")
    assert names(tmp_path / "out") == names(tmp_path / "calm")


def names(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def failed(summary: DirectoryExportResult) -> set[tuple[str, int | None]]:
    assert isinstance(summary.verdict(), Partial) == bool(summary.failed)
    return {(each.topic, each.partition) for each in summary.failed}


def test_a_branch_that_was_exported_and_is_dead_now_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    bucket = a_bucket()
    head = next(head for head in bucket.heads if len(head.entries) > 1)
    late = next(each for each in bucket.heads if each.topic != head.topic and len(each.entries) > 1 and each.entries[0].open_from is None)
    bucket.rewrite(late, entries=tuple(late.entries)[:1], last_offset=late.entries[0].last_offset)
    export(bucket.store, tmp_path / "out")
    *before, last = head.entries
    bucket.rewrite(head, entries=tuple(before), last_offset=before[-1].last_offset)
    bucket.put(keys.head(late.partition_id), format_1.encode(late))
    summary = export(bucket.store, tmp_path / "out")
    assert failed(summary) == {(head.topic, head.partition)}
    assert "export to another place" in summary.failed[0].error
    assert rows(tmp_path / "out") == wanted()  # what is new of the other topic, too
    other = msgspec.structs.replace(last, epochs=tuple((epoch + 1, first) for epoch, first in last.epochs))
    bucket.rewrite(head, entries=(*before, other))
    assert failed(export(bucket.store, tmp_path / "out")) == {(head.topic, head.partition)}


def test_what_retention_took_before_it_was_exported_is_reported_unless_allowed(tmp_path: Path) -> None:
    bucket = a_bucket()
    head = next(head for head in bucket.heads if head.topic == "thermo-samples" and len(head.entries) > 3)
    bucket.rewrite(head, entries=tuple(head.entries)[:1], last_offset=head.entries[0].last_offset)
    export(bucket.store, tmp_path / "out", a_query(("thermo-samples",)))
    bucket.rewrite(head, entries=tuple(head.entries)[2:], start_offset=head.entries[2].base_offset)
    summary = export(bucket.store, tmp_path / "out", a_query(("thermo-samples",)))
    assert failed(summary) == {(head.topic, head.partition)}
    assert "--allow-data-loss" in summary.failed[0].error
    assert not failed(export(bucket.store, tmp_path / "out", a_query(("thermo-samples",), failOnDataLoss=False)))
    lost = head.entries[1]
    assert rows(tmp_path / "out") == [
        row for row in wanted(topics=("thermo-samples",)) if row["partition"] != head.partition or row["offset"] not in lost
    ]


def test_a_partition_that_is_gone_is_not_passed_over(tmp_path: Path) -> None:
    bucket = a_bucket()
    export(bucket.store, tmp_path / "out")
    head = next(head for head in bucket.heads if head.topic == "till.sales")
    bucket.store.delete(keys.head(head.partition_id))
    assert failed(export(bucket.store, tmp_path / "out")) == {("till.sales", head.partition)}
    assert export(bucket.store, tmp_path / "out", a_query(failOnDataLoss=False)).verdict() is None


def test_a_damaged_manifest_is_reported_and_the_others_are_exported(tmp_path: Path) -> None:
    bucket = a_bucket()
    head = next(head for head in bucket.heads if head.topic == "till.sales")
    key = keys.head(head.partition_id)
    content = bucket.content(key)
    bucket.put(key, content[:-40])
    assert failed(export(bucket.store, tmp_path / "out")) == {("till.sales", head.partition)}
    bucket.put(key, content)
    assert not failed(export(bucket.store, tmp_path / "out"))
    assert rows(tmp_path / "out") == wanted()


# Topics that are deleted and created again


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    growing = Growing(tmp_path / "bucket")
    for topic in ("pay.a", "pay.b", "pay.c"):
        growing.append(topic, records=3, batches=2)
    return growing


def create_again(growing: Growing, topic: str) -> None:
    del growing.archives[topic, 0]
    growing.archive(topic, incarnation=2).append(a_segment(0, 1, records=2))


def export_all(growing: Growing, tmp_path: Path, topics: str = "pay*", **how: Any) -> DirectoryExportResult:
    store = DirectoryStore(growing.root)
    query = a_query((topics,), **how)
    held = open_checkpoint(tmp_path / "out", store_url=store.url, read_committed=True, columns=query.columns, read_only=False)
    with held as checkpoint:
        return DirectoryExport(store, query, checkpoint).run(Threads(store, 2))


def exported(tmp_path: Path) -> Counter[tuple[str, str]]:
    """Rows by topic and topic id; each offset of them once."""
    found = ds.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
    assert len({(row["topicId"], row["partition"], row["offset"]) for row in found}) == len(found)
    return Counter((row["topic"], row["topicId"][-3:]) for row in found)


def test_a_topic_that_was_created_again_is_exported_after_the_rest_of_the_former_one(growing: Growing, tmp_path: Path) -> None:
    first, second = (topic_id_text(b"pay.b".rjust(15, b".") + bytes([number]))[-3:] for number in (1, 2))
    assert not failed(export_all(growing, tmp_path))
    growing.append("pay.b", records=4)
    growing.append("pay.a", records=5)
    create_again(growing, "pay.b")
    assert not failed(export_all(growing, tmp_path))
    found = exported(tmp_path)
    assert found["pay.b", first] == 10
    assert found["pay.b", second] == 2
    assert sum(found.values()) == 11 + 12 + 6
    growing.append("pay.b", records=1)
    assert export_all(growing, tmp_path).ranges == 1
    former = topic_id_text(b"pay.b".rjust(15, b".") + bytes([1]))
    assert export_all(growing, tmp_path, f"pay.b@{former}").ranges == 0  # nothing of it is exported twice
    assert exported(tmp_path)["pay.b", second] == 3


def test_a_topic_that_was_created_again_may_be_left_and_the_others_go_on(growing: Growing, tmp_path: Path) -> None:
    export_all(growing, tmp_path)
    create_again(growing, "pay.b")
    growing.append("pay.a", records=5)
    store, query = DirectoryStore(growing.root), a_query(("pay*",))
    held = open_checkpoint(tmp_path / "out", store_url=store.url, read_committed=True, columns=query.columns, read_only=False)
    with held as checkpoint:
        summary = DirectoryExport(store, query, checkpoint, start_anew=False).run(Threads(store, 2))
    assert failed(summary) == {("pay.b", None)}
    assert "--on-recreated start-anew" in summary.failed[0].error
    assert sum(exported(tmp_path).values()) == 18 + 5
    assert export_all(growing, tmp_path, "pay*,!pay.b").verdict() is None


def test_a_former_incarnation_that_is_gone_is_reported_until_that_is_allowed(growing: Growing, tmp_path: Path) -> None:
    export_all(growing, tmp_path)
    (head,) = (tmp_path / "bucket" / "meta" / "pay.b").glob("*/0/manifest.json")
    create_again(growing, "pay.b")
    head.unlink()
    assert failed(export_all(growing, tmp_path)) == {("pay.b", 0)}
    assert failed(export_all(growing, tmp_path)) == {("pay.b", 0)}
    growing.append("pay.b", records=1)
    assert not failed(export_all(growing, tmp_path, failOnDataLoss=False))
    assert not failed(export_all(growing, tmp_path))
    assert sum(exported(tmp_path).values()) == 18 + 3


@pytest.mark.parametrize("is_gone", [False, True])
def test_ranges_of_a_former_incarnation_that_were_not_written_are_still_read_from_it(
    growing: Growing, tmp_path: Path, is_gone: bool
) -> None:
    class Ends:
        def each(self, work: Any, tasks: Any) -> Iterator[Any]:
            raise InterruptedError

    store, query = DirectoryStore(growing.root), a_query(("pay*",))
    held = open_checkpoint(tmp_path / "out", store_url=store.url, read_committed=True, columns=query.columns, read_only=False)
    with pytest.raises(InterruptedError), held as checkpoint:
        DirectoryExport(store, query, checkpoint).run(Ends())
    (head,) = (tmp_path / "bucket" / "meta" / "pay.b").glob("*/0/manifest.json")
    create_again(growing, "pay.b")
    if is_gone:
        head.unlink()
        assert failed(export_all(growing, tmp_path)) == {("pay.b", 0)}
    assert not failed(export_all(growing, tmp_path, failOnDataLoss=not is_gone))
    assert sum(exported(tmp_path).values()) == (12 if is_gone else 18) + 2
    held = open_checkpoint(tmp_path / "out", store_url=store.url, read_committed=True, columns=query.columns, read_only=True)
    with held as checkpoint:
        assert bool(checkpoint.pending) is False


def test_files_that_hold_more_than_could_be_written_again_are_kept(tmp_path: Path) -> None:
    bucket = a_bucket()
    head = next(head for head in bucket.heads if head.topic == "thermo-samples" and len(head.entries) > 3)
    query = a_query(("thermo-samples",), failOnDataLoss=False)

    class Ends:
        def each(self, work: Any, tasks: Any) -> Iterator[Any]:
            for task in tasks:
                work(bucket.store, task)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        export(bucket.store, tmp_path / "out", query, runner=Ends())
    there = names(tmp_path / "out")
    bucket.rewrite(head, entries=tuple(head.entries)[2:], start_offset=head.entries[2].base_offset)
    left = export(bucket.store, tmp_path / "out", query)
    assert "Move these files away" in left.failed[0].error
    assert names(tmp_path / "out") == there


def test_a_damaged_range_is_left_and_the_others_are_done(tmp_path: Path) -> None:
    bucket = a_bucket()
    head, entry = next(each for each in bucket.entries() if each[0].topic == "till.sales")
    content = bucket.content(entry.key)
    bucket.put(entry.key, content[:-1] + bytes([content[-1] ^ 1]))
    summary = export(bucket.store, tmp_path / "out")
    assert isinstance(summary.verdict(), Partial)
    assert failed(summary) == {(head.topic, head.partition)}
    assert len(rows(tmp_path / "out")) > 0
    assert all(not path.name.startswith(".") for path in tmp_path.rglob("*") if path.is_file())
    bucket.put(entry.key, content)
    assert export(bucket.store, tmp_path / "out").ranges == len(summary.failed)
    assert rows(tmp_path / "out") == wanted()


def test_topics_may_be_exported_one_after_the_other(tmp_path: Path) -> None:
    bucket = a_bucket()
    for topic in TOPICS:
        export(bucket.store, tmp_path / "out", a_query((topic,)))
    assert rows(tmp_path / "out") == wanted()


def test_a_directory_belongs_to_one_export(tmp_path: Path) -> None:
    bucket = a_bucket()
    export(bucket.store, tmp_path / "out")
    with pytest.raises(UsageError, match="isolation"):
        export(bucket.store, tmp_path / "out", a_query(isolation="read_uncommitted"))
    with pytest.raises(UsageError, match="columns"):
        export(bucket.store, tmp_path / "out", a_query(columns="partition,offset,timestamp,value"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letters.txt").write_text("dear")
    with pytest.raises(UsageError, match="is not empty and holds no export"):
        export(bucket.store, tmp_path / "other")
    query = a_query()
    held = open_checkpoint(tmp_path / "out", store_url=bucket.store.url, read_committed=True, columns=query.columns, read_only=False)
    with held, pytest.raises(Locked):
        export(bucket.store, tmp_path / "out")
    path = tmp_path / "out" / "_headwater" / "export.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptData):
        export(bucket.store, tmp_path / "out")


def test_records_without_a_time_have_no_day() -> None:
    times = [-1000, 0, -1, 86_400_000_000 - 1, 86_400_000_000, None, 2**62]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(range(len(times)), pa.int64()), pa.array(times, pa.timestamp("us", tz="UTC"))],
        schema=arrow_schema(["offset", "timestamp"]),
    )
    found = {day: part.column("offset").to_pylist() for day, part in _by_day(batch)}
    assert found.pop(_NO_DAY) == [0, 5, 6]
    assert {_day_text(day): offsets for day, offsets in found.items()} == {"1969-12-31": [2], "1970-01-01": [1, 3], "1970-01-02": [4]}


def times(growing: Growing, topic: str, *timestamps: int) -> None:
    archive = growing.archive(topic)
    start = archive.head.next_offset if archive.held else 0
    archive.append(a_batch(start, [a_record(start + at, timestamp=time) for at, time in enumerate(timestamps)]))


AWKWARD = ("007", "7", "1.5", "2026-01-31", "null", "-1", "orders", "NaN")


def test_a_plain_reader_reads_every_topic_and_records_without_a_day(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "bucket")
    for topic in AWKWARD:
        times(growing, topic, BASE_TIME, -1, 1000 * BASE_TIME)  # a clock, none, and one that counts microseconds
    assert not failed(export_all(growing, tmp_path, "*"))
    table = pd.read_parquet(tmp_path / "out")
    assert sorted(table["topicName"]) == sorted([*AWKWARD] * 3)
    assert set(table["topic"]) == {"orders", *(f"{topic}@" for topic in AWKWARD if topic != "orders")}
    assert (table["topic"].str.removesuffix("@") == table["topicName"]).all()
    assert Counter(table["date"]) == {str(np.datetime64(BASE_TIME, "ms").astype("M8[D]")): 8, "1970-01-01": 16}
    assert set(rows_by_topic(tmp_path / "out")) == {(topic, 3) for topic in AWKWARD}


def rows_by_topic(directory: Path) -> list[tuple[str, int]]:
    found = ds.dataset(directory, partitioning="hive").to_table(columns=["topicName"])
    return [(row["values"], row["counts"]) for row in found["topicName"].value_counts().to_pylist()]


def rewrite(path: Path, **fields: object) -> None:
    """The document with these fields; without those that are None."""
    body = {name: value for name, value in (json.loads(path.read_bytes()) | fields).items() if value is not None and name != "digest"}
    path.write_bytes(json.dumps(body | {"digest": _digest(body)}).encode())


def test_a_directory_that_an_older_version_began_stays_as_it_is(growing: Growing, tmp_path: Path) -> None:
    times(growing, "pay.a", -1)
    times(growing, "007", BASE_TIME)
    path = tmp_path / "out" / "_headwater" / "export.json"
    store, query = DirectoryStore(growing.root), a_query(("*",))
    held = open_checkpoint(tmp_path / "out", store_url=store.url, read_committed=True, columns=query.columns, read_only=False)
    with held as checkpoint:
        checkpoint.save({}, {}, ())
    rewrite(path, file_layout=None)
    assert not failed(export_all(growing, tmp_path, "*"))
    folders = {str(each.parent.relative_to(tmp_path / "out")) for each in (tmp_path / "out").glob("topic=*/*/*.parquet")}
    assert {each.partition("/")[0] for each in folders} == {"topic=007", "topic=pay.a", "topic=pay.b", "topic=pay.c"}
    assert "topic=pay.a/date=__HIVE_DEFAULT_PARTITION__" in folders
    assert "topicName" not in ds.dataset(next((tmp_path / "out").rglob("*.parquet"))).schema.names
    assert json.loads(path.read_bytes()).get("file_layout", 1) == 1


def test_a_directory_that_a_newer_version_began_is_refused(growing: Growing, tmp_path: Path) -> None:
    export_all(growing, tmp_path)
    path = tmp_path / "out" / "_headwater" / "export.json"
    rewrite(path, file_layout=3)
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        export_all(growing, tmp_path)


def test_a_range_that_jumps_between_days_keeps_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "DAYS_OPEN_MAX", 1)
    monkeypatch.setattr(parquet, "BUFFER_BYTES", 1)
    bucket = a_bucket()
    export(bucket.store, tmp_path / "out")
    assert rows(tmp_path / "out") == wanted()


def test_what_another_cluster_has_taken_over_is_not_exported_twice(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    query = a_query(("bills",))
    export(store, tmp_path / "out", query)
    before = rows(tmp_path / "out")
    recovery.apply(recovery.plan(repository, None, recovery.Options(take_over=True)), tmp_path / "log", store)
    summary = export(store, tmp_path / "out", query)
    assert "a recovered cluster has taken it over" in summary.failed[0].error
    assert failed(summary) == {("bills", None)}
    assert rows(tmp_path / "out") == before
