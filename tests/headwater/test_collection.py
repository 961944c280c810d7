"""`headwater gc` and `headwater delete-before` as a user runs them, on logs that a real broker wrote."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater import collection
from headwater.collection import CollectionRequest, _selected
from headwater.wiring import Bucket
from headwater_core.control.lock import DataDirLock
from headwater_core.errors import TransientError
from headwater_core.objectstore.store_url import open_store
from headwater_core.partition import PartitionId, topic_id_text
from manifests import keys
from manifests.repository import ManifestRepository
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import running
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import a_head, a_topic

TOPIC = "orders.placed"


@pytest.fixture
def log(stage: Stage) -> Path:
    """A log, and its archive."""
    log = stage.log("pantry")
    assert stage.run("flush", log=log).code == 0
    return log


def row_of(rows: list[dict[str, Any]], topic: str, partition: int = 0) -> dict[str, Any]:
    return next(row for row in rows if (row["topic"], row["partition"]) == (topic, partition))


def runs_of(stage: Stage, topic: str, partition: int = 0) -> list[dict[str, Any]]:
    rows = stage.run("topics", "entries", f"{topic}:{partition}", "-o", "jsonl").rows
    return [row for row in rows if not row["superseded"]]


def objects(stage: Stage) -> list[Path]:
    return sorted(path for path in stage.bucket.rglob("*") if path.is_file() and "+" not in str(path))


def a_partition_of_several_runs(stage: Stage) -> tuple[str, int, list[dict[str, Any]]]:
    rows = stage.run("topics", "entries", "-o", "jsonl").rows
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["topic"], row["partition"]), []).append(row)
    (topic, partition), runs = max(found.items(), key=lambda item: len(item[1]))
    assert len(runs) > 2
    return topic, partition, runs


def test_an_orphan_is_noted_first_and_deleted_when_its_lease_is_over(stage: Stage, log: Path) -> None:
    before = objects(stage)
    topic, partition, runs = a_partition_of_several_runs(stage)
    orphan = runs[0]["key"].replace(runs[0]["uid"], "f" * 32)
    open_store(f"file://{stage.bucket}").create(orphan, b"left by a crash")
    selection = f"{topic}:{partition}"
    dry = stage.run("gc", selection, "--dry-run", "-o", "jsonl", log=log)
    assert [(row["orphans"], row["deleted"]) for row in dry.rows] == [(1, 0)], dry.err
    assert not (stage.data_dir / "sightings").exists()
    first = stage.run("gc", selection, "--yes", "-o", "jsonl", log=log)
    assert [(row["orphans"], row["deleted"], row["error"]) for row in first.rows] == [(1, 0, None)], first.err
    again = stage.run("gc", "--yes", "-o", "jsonl", "--set", "archival.reader_lease=0s", log=log)
    assert again.code == 0, again.err
    assert row_of(again.rows, topic, partition)["deleted"] == 1
    assert objects(stage) == before
    assert stage.run("verify", log=log).code == 0


def test_without_a_terminal_it_has_to_be_confirmed(stage: Stage, log: Path) -> None:
    for command in (("gc",), ("delete-before", f"{TOPIC}:0", "1")):
        ran = stage.run(*command, log=log)
        assert ran.code == 2
        assert "--yes" in ran.err


def test_records_below_an_offset_are_deleted_from_the_archive(stage: Stage, log: Path) -> None:
    topic, partition, runs = a_partition_of_several_runs(stage)
    selection, offset = f"{topic}:{partition}", runs[1]["base_offset"] + 1
    records = stage.run("read", selection).rows
    dry = stage.run("delete-before", selection, str(offset), "--dry-run", "-o", "jsonl", log=log)
    assert [(row["start_offset"], row["trimmed_entries"]) for row in dry.rows] == [(offset, 1)], dry.err
    assert len(runs_of(stage, topic, partition)) == len(runs)
    done = stage.run("delete-before", selection, str(offset), "--yes", "-o", "jsonl", log=log)
    assert [(row["start_offset"], row["trimmed_entries"], row["orphans"]) for row in done.rows] == [(offset, 1, 2)], done.err
    assert [run["base_offset"] for run in runs_of(stage, topic, partition)] == [run["base_offset"] for run in runs[1:]]
    assert stage.run("read", selection).rows == [row for row in records if row["offset"] >= offset]
    gone = stage.run("read", selection, "--from", "0")
    assert gone.code != 0 or gone.rows[0]["offset"] >= offset
    last = runs[-1]["last_offset"] + 1
    too_far = stage.run("delete-before", selection, str(last + 1), "--yes", log=log)
    assert (too_far.code, f"archived up to {last}" in too_far.err) == (2, True)
    assert stage.run("verify", log=log).code == 0


def test_everything_may_be_deleted_and_archiving_continues(stage: Stage, log: Path) -> None:
    topic, partition, runs = a_partition_of_several_runs(stage)
    selection, end = f"{topic}:{partition}", runs[-1]["last_offset"] + 1
    done = stage.run("delete-before", selection, str(end), "--yes", "-o", "jsonl", "--set", "archival.reader_lease=0s", log=log)
    assert [(row["start_offset"], row["trimmed_entries"]) for row in done.rows] == [(end, len(runs) - 1)], done.err
    assert [run["base_offset"] for run in runs_of(stage, topic, partition)] == [runs[-1]["base_offset"]], "the newest run stays"
    assert stage.run("read", selection).rows == []
    assert stage.run("archive", log=log).code == 0
    assert stage.run("verify", "--data", log=log).code == 0


@pytest.mark.parametrize("everything", [False, True])
def test_a_recovery_begins_where_the_archive_does(stage: Stage, log: Path, everything: bool) -> None:
    topic, partition, runs = a_partition_of_several_runs(stage)
    selection, offset = f"{topic}:{partition}", runs[-1]["last_offset"] + 1 if everything else runs[1]["base_offset"] + 1
    records = [row for row in stage.run("read", selection).rows if row["offset"] >= offset]
    assert stage.run("delete-before", selection, str(offset), "--yes", log=log).code == 0
    into = stage.root / "recovered"
    applied = stage.run("recover", "apply", "topic", topic, "--into", str(into))
    assert applied.code == 0, applied.err
    shutil.rmtree(stage.bucket)
    stage.bucket.mkdir()
    shutil.rmtree(stage.data_dir)
    assert stage.run("read", selection, log=into).rows == records


def test_retention_is_previewed_applied_and_leaves_the_newest_run(stage: Stage, log: Path) -> None:
    topic, partition, runs = a_partition_of_several_runs(stage)
    configured = ("--set", "archival.retention=1ms", "--set", "archival.reader_lease=0s")
    assert stage.run("gc", "--dry-run", "--set", "archival.retention=1ms", log=log).code == 2, "a whole second, at least"
    configured = ("--set", "archival.retention=1s", "--set", "archival.reader_lease=0s")
    before = objects(stage)
    dry = stage.run("gc", "--dry-run", "-o", "jsonl", *configured, log=log)
    assert row_of(dry.rows, topic, partition)["trimmed_entries"] == len(runs) - 1, dry.err
    assert objects(stage) == before
    done = stage.run("gc", "--yes", "-o", "jsonl", *configured, log=log)
    assert done.code == 0, done.err
    assert row_of(done.rows, topic, partition)["start_offset"] == runs[-1]["base_offset"]
    assert len(objects(stage)) < len(before)
    assert len(runs_of(stage, topic, partition)) == 1
    assert stage.run("verify", "--data", log=log).code == 0


def test_a_running_agent_does_it(stage: Stage, log: Path) -> None:
    topic, partition, runs = a_partition_of_several_runs(stage)
    with running(stage, log, "--log-format", "json") as agent:
        agent.wait_for("gateway_started")
        ran = stage.run("delete-before", f"{topic}:{partition}", str(runs[1]["base_offset"]), "--yes", "-o", "jsonl", log=log)
        assert (ran.code, [row["trimmed_entries"] for row in ran.rows]) == (0, [1]), ran.err
        agent.wait_for("archive_trimmed", partition=f"{topic}:{partition}", start_offset=runs[1]["base_offset"])
        assert agent.stop() == 0 or agent.process.returncode is not None


def test_a_locked_data_directory_is_left_alone(stage: Stage, log: Path) -> None:
    with DataDirLock(stage.data_dir):
        assert stage.run("gc", "--yes", log=log).code == 7


def test_data_without_a_manifest_is_reported_and_kept(stage: Stage, log: Path) -> None:
    topic, partition, runs = a_partition_of_several_runs(stage)
    store = open_store(f"file://{stage.bucket}")
    prefix = runs[0]["key"].rpartition("/")[0] + "/"
    [head] = [info.key for info in store.list(keys.META) if f"/{runs[0]['topic_id']}/{partition}/manifest.json" in info.key]
    store.delete(head)
    kept = [info.key for info in store.list(prefix)]
    ran = stage.run("gc", "--yes", "-o", "jsonl", "--set", "archival.reader_lease=0s", log=log)
    assert "no manifest" in row_of(ran.rows, topic, partition)["reason"]
    assert [info.key for info in store.list(prefix)] == kept


def test_what_is_cancelled_lists_no_further_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it end as if it had seen all."""
    prefixes = [keys.data_prefix(a_topic().partition_id(number)) for number in range(3)]
    listed, stop = list[str](), threading.Event()

    def listing(_: object) -> Iterator[str]:
        for each in prefixes:
            listed.append(each)
            yield each

    monkeypatch.setattr(collection, "data_prefixes", listing)
    store = MemoryStore()
    rows = collection._without_manifest(Bucket(store, ManifestRepository(store)), set(), set(), stop)
    assert next(rows)["partition"] == 0
    stop.set()
    with pytest.raises(TransientError, match="the collection was stopped before its end"):
        next(rows)
    assert listed == prefixes[:2]


def test_what_is_not_there_is_not_found(stage: Stage, log: Path) -> None:
    assert stage.run("gc", "nowhere", "--yes", log=log).code == 6
    assert stage.run("delete-before", TOPIC, "5", "--yes", log=log).code == 2


def test_records_of_another_incarnation_are_not_deleted() -> None:
    """Offsets of a topic that was deleted and created again are other records."""
    store = MemoryStore()
    manifests = ManifestRepository(store)
    former, present = topic_id_text(bytes(range(16))), topic_id_text(bytes(range(1, 17)))
    partitions = []
    for incarnation in (former, present):
        topic = a_topic(topic_id=incarnation)
        manifests.ensure_topic(topic)
        partitions.append(topic.partition_id(3))
        manifests.commit(None, a_head(partition=partitions[-1]))
    bucket = Bucket(store, manifests)

    def selected(selection: str, before: int | None = 5) -> list[PartitionId]:
        return list(_selected(bucket, CollectionRequest(selection=selection, before=before), []))

    [meant] = selected("orders:3")
    assert meant.topic_id == manifests.resolve("orders").topic_id
    assert [selected(f"orders@{each.topic_id}:3") for each in partitions] == [[each] for each in partitions]
    assert selected("orders:2") == []
    assert selected("orders:3", before=None) == partitions
