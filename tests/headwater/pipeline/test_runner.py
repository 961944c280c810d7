"""Wherever tasks run, the job comes to the same: threads, processes, Spark; and the verbs that start them."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from headwater.pipeline.runner import Processes, Runner, StorePlace, Threads
from headwater.pipeline.spark.spark_runner import OnSpark, spark_session
from headwater_core.errors import CorruptData, HeadwaterError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import ObjectStore
from tests.headwater.conftest import Stage, stage
from tests.headwater.pipeline.bucket import TOPICS, Bucket, a_bucket
from tests.headwater.pipeline.export.test_directory_export import rows, wanted

__all__ = ["stage"]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def bucket(stage: Stage) -> Bucket:
    """On disk as the stage's bucket, with one flipped bit and one object that is gone."""
    bucket = a_bucket()
    (_, flipped), (_, gone), *_ = bucket.entries()
    content = bucket.content(flipped.key)
    bucket.put(flipped.key, content[:-1] + bytes([content[-1] ^ 1]))
    bucket.put(gone.key, None)
    bucket.write_to(stage.bucket)
    return bucket


def length(store: ObjectStore, key: str) -> int:
    return store.stat(key).size_bytes


def broken(store: ObjectStore, key: str) -> int:
    raise ValueError(key)


def assert_each(runner: Runner, bucket: Bucket) -> None:
    sizes = {info.key: info.size_bytes for info in list(bucket.store.list("meta/"))[:9]}
    assert sorted(runner.each(length, sizes)) == sorted(sizes.values())
    assert list(runner.each(length, ())) == []
    with pytest.raises(Exception, match=r"headwater\.json"):
        list(runner.each(broken, ["headwater.json"]))


def test_threads_work_on_every_task(bucket: Bucket, stage: Stage) -> None:
    assert_each(Threads(DirectoryStore(stage.bucket), 3), bucket)


def test_tasks_are_taken_no_faster_than_they_are_done(bucket: Bucket, stage: Stage) -> None:
    taken = 0

    def tasks() -> Iterator[str]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield "headwater.json"

    results = Threads(DirectoryStore(stage.bucket), 2).each(length, tasks())
    next(iter(results))
    assert taken <= 8


def hang(store: ObjectStore, pipe: str) -> int:
    with open(pipe, "w") as out:
        print(os.getpid(), file=out)
    threading.Event().wait()
    return 0


@pytest.mark.slow
def test_processes_end_with_a_killed_parent(stage: Stage, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = (
        "from headwater.pipeline.runner import Processes, StorePlace\nfrom tests.headwater.pipeline.test_runner import hang\n"
        f"if __name__ == '__main__': list(Processes(StorePlace('file://{stage.bucket}'), 1).each(hang, ['{pipe}']))"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    parent = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    with pipe.open() as reported:
        worker = psutil.Process(int(reported.readline()))
    parent.kill()
    parent.wait()
    worker.wait(30)  # raises when it is still there


@pytest.mark.slow
def test_processes_work_on_every_task(bucket: Bucket, stage: Stage) -> None:
    assert_each(Processes(StorePlace(f"file://{stage.bucket}"), 2), bucket)


def test_spark_works_on_every_task(bucket: Bucket, stage: Stage, spark: SparkSession) -> None:
    assert_each(OnSpark(StorePlace(f"file://{stage.bucket}"), spark.sparkContext), bucket)


def damaged(store: ObjectStore, key: str) -> int:
    raise CorruptData(key, 3, "crc")


def test_what_a_task_raises_leaves_sparks_session_as_itself(bucket: Bucket, stage: Stage, spark: SparkSession) -> None:
    runner = OnSpark(StorePlace(f"file://{stage.bucket}"), spark.sparkContext)
    with pytest.raises(CorruptData, match=r"^data/1\.log, byte 3: crc$"), spark_session(None, "test"):
        list(runner.each(damaged, ["data/1.log"]))
    with pytest.raises(HeadwaterError, match=r"^Spark: .*nowhere") as raised, spark_session(None, "test") as session:
        session.table("nowhere").collect()
    assert "\n" not in str(raised.value)


# The verbs


@pytest.mark.parametrize("master", [(), ("--master", "local[2]")])
def test_scrub_tells_what_is_wrong_and_how_much_it_read(
    stage: Stage, bucket: Bucket, master: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    if master:
        request.getfixturevalue("spark")
    ran = stage.run("jobs", "scrub", *master, "-o", "json")
    assert ran.code == 4, ran.err
    summary = json.loads(ran.out)
    assert [finding["kind"] for finding in summary["findings"]] == ["flipped", "missing"]
    assert summary["examined"] == len(bucket.entries())
    assert summary["read_bytes"] == sum(entry.size_bytes for _, entry in bucket.entries())
    assert summary["damaged"] == 2


def test_scrub_on_spark_tells_the_same(stage: Stage, bucket: Bucket, spark: SparkSession) -> None:
    here, there = stage.run("jobs", "scrub", "-o", "json"), stage.run("jobs", "scrub", "--master", "local[2]", "-o", "json")
    assert (there.code, there.out) == (here.code, here.out)


def test_verify_and_scrub_tell_the_same(stage: Stage, bucket: Bucket) -> None:
    verified, scrubbed = stage.run("verify", "--data", "-o", "jsonl"), stage.run("jobs", "scrub", "-o", "jsonl")
    assert verified.code == scrubbed.code == 4
    assert verified.rows == scrubbed.rows


def test_a_dry_run_reads_no_object(stage: Stage, bucket: Bucket) -> None:
    ran = stage.run("jobs", "scrub", "--dry-run", "--state", str(stage.root / "state.json"), "-o", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["due"] == len(bucket.entries())
    assert not (stage.root / "state.json").exists()


def test_scrub_with_a_state_reads_what_is_new(stage: Stage, bucket: Bucket) -> None:
    state = ("--state", str(stage.root / "state.json"), "-o", "json")
    first, second = (json.loads(stage.run("jobs", "scrub", *state).out) for _ in range(2))
    assert (first["skipped"], second["examined"]) == (0, 2)
    assert first["findings"] == second["findings"]


NONSENSE = (["--sample", "ten"], ["--sample", "0%"], ["--sample", "101%"], ["--grace", "1"], ["--master", "local[2]", "--workers", "2"])


@pytest.mark.parametrize("wrong", NONSENSE)
def test_scrub_refuses_what_makes_no_sense(stage: Stage, bucket: Bucket, wrong: list[str]) -> None:
    assert stage.run("jobs", "scrub", *wrong).code == 2


def test_scrub_of_nothing_says_so(stage: Stage) -> None:
    stage.bucket.mkdir()
    assert stage.run("jobs", "scrub").code == 10
    assert stage.run("jobs", "scrub", "absent").code == 6


def test_an_extra_object_is_told_when_it_is_older_than_the_grace_period(stage: Stage) -> None:
    a_bucket().write_to(stage.bucket)
    (stage.bucket / "data" / "stray").write_bytes(b"x")
    assert stage.run("jobs", "scrub").code == 0
    ran = stage.run("jobs", "scrub", "--grace", "0s", "-o", "jsonl")
    assert (ran.code, [(row["kind"], row["key"]) for row in ran.rows]) == (4, [("extra", "data/stray")])


def test_export_fills_a_directory_and_goes_on_where_it_ended(stage: Stage) -> None:
    a_bucket().write_to(stage.bucket)
    out = str(stage.root / "out")
    planned = stage.run("jobs", "export", *TOPICS, "--to", out, "--dry-run", "-o", "jsonl")
    assert planned.code == 0, planned.err
    assert planned.rows
    assert not Path(out).exists()
    ran = stage.run("jobs", "export", *TOPICS, "--to", out, "-o", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["rows"] == len(wanted())
    assert rows(Path(out)) == wanted()
    again = stage.run("jobs", "export", *TOPICS, "--to", out, "-o", "json")
    assert (again.code, json.loads(again.out)["rows"]) == (0, 0)


@pytest.mark.long
def test_export_on_spark_is_the_same(stage: Stage, spark: SparkSession) -> None:
    a_bucket().write_to(stage.bucket)
    out = stage.root / "out"
    ran = stage.run("jobs", "export", *TOPICS, "--to", str(out), "--master", "local[2]", "-o", "json")
    assert ran.code == 0, ran.err
    assert rows(out) == wanted()
    read = spark.read.parquet(str(out))
    assert {"topic", "date", "topicId", "leaderEpoch", "object", "rangeFirst", "rangeEnd", "value"} <= set(read.columns)
    assert read.count() == len(wanted())


def test_export_of_damage_is_partial(stage: Stage, bucket: Bucket) -> None:
    ran = stage.run("jobs", "export", *TOPICS, "--to", str(stage.root / "out"), "-o", "json")
    assert ran.code == 3, ran.err
    failed = json.loads(ran.out)["failed"]
    assert {(each["topic"], each["partition"]) for each in failed} == {(head.topic, head.partition) for head, _ in bucket.entries()[:2]}


@pytest.mark.parametrize("wrong", [["--columns", "colour"], ["--from", "yesterday"], ["--split-bytes", "many"]])
def test_export_refuses_what_makes_no_sense(stage: Stage, wrong: list[str]) -> None:
    a_bucket().write_to(stage.bucket)
    assert stage.run("jobs", "export", "compost", "--to", str(stage.root / "out"), *wrong).code == 2
    assert not (stage.root / "out").exists()


def test_export_of_nothing_known_says_so(stage: Stage) -> None:
    a_bucket().write_to(stage.bucket)
    assert stage.run("jobs", "export", "absent", "--to", str(stage.root / "out")).code == 6
