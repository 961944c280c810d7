"""Kill -9 at every step of archive, release and recover: the same command again finishes it, nothing is lost, nothing doubled."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

import recovery
from archival.collection import collector
from archival.config import ArchivalConfig
from archival.partition import archiver, release, streams
from headwater import cli
from headwater.session import RUNS_MAX
from headwater_core.layouts import open_layout
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.segments.log_dirs import LogDirs
from manifests import chunk_keys, keys
from manifests.entry import Entry
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic_survey import survey_topics
from recovery import given_state, held_settings, partition_swap, take_over
from tests.e2e.sample_topics import SEGMENTS, TOPICS, a_sample_log, read, sample_records
from tests.fixtures import KAFKA
from tests.headwater.conftest import Stage
from tests.peers.kafka import free_port

ROOT = KAFKA.parents[2]
DIRECTORY_STEPS = ("directory.written", "directory.named")
FLUSH = ("flush", "--set", "log.owned=true")
DEATHS = (*archiver.MILESTONES, *release.MILESTONES)
ARCHIVE_KILLS = (
    *DEATHS,
    *DIRECTORY_STEPS,
    *(f"{step}:{times}" for step in ("archive.uploaded", "release.log_unlinked") for times in (2, 5)),
    *(f"{step}:{times}" for step in DIRECTORY_STEPS for times in (12, 45)),  # a topic's first documents; heads and data
)
STREAM_KILLS = (
    *streams.MILESTONES,
    "stream.uploaded:3",
    "stream.closed:3",
    "archive.claimed:2",
    "archive.committed:3",
    "directory.named:20",
)
COLLECT_KILLS = (*collector.MILESTONES, "collect.deleted:3", "collect.committed:2")
RECOVER_KILLS = (*recovery.MILESTONES, *take_over.MILESTONES, "recover.fetched:7", f"recover.placed:{SEGMENTS}")


def walked(kills: Iterable[str], *, but: Collection[str] = ()) -> list[Any]:
    """Each step at its first time, without those that another test walks as well; the soak has these, and later times."""
    return [pytest.param(kill, marks=pytest.mark.long) if ":" in kill or kill in but else kill for kill in kills]


def killed(stage: Stage, step: str, *arguments: str) -> None:
    """`headwater ARGUMENTS` with the stage's directories, as a process of its own, which must die at `step` and nowhere else."""
    killed_bare(stage, step, *arguments, "--data-dir", str(stage.data_dir), "--store", f"file://{stage.bucket}")


def killed_bare(stage: Stage, step: str, *arguments: str) -> None:
    """The same of `headwater ARGUMENTS`."""
    command = [sys.executable, "-m", "tests.kill_at", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "KILL_AT": step}
    ran = subprocess.run(command, cwd=stage.root, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == -signal.SIGKILL, f"{step} was never reached: exit code {ran.returncode}, {ran.stderr[-1000:]}"


def heads(stage: Stage) -> list[Head]:
    repository = ManifestRepository(DirectoryStore(stage.bucket))
    topics, _ = survey_topics(repository.store)
    found = [repository.load(each) for topic in topics for each in repository.partitions(topic.topic, topic.topic_id)]
    return [held.head for held in found if held]


def test_every_step_that_the_code_names_is_walked() -> None:
    quoted = re.compile(r'"((?:archive|release|recover|directory|collect|stream)\.[a-z_]+)"')
    sources = [path for package in ("archival", "headwater_core", "recovery") for path in (ROOT / package).rglob("*.py")]
    named = {name for path in sources if "milestones" in (text := path.read_text()) for name in quoted.findall(text)}
    beside_a_broker = {"release.requested"}  # the simulation and peer tests walk it
    in_a_running_cluster = {  # tests/e2e/test_recovery_kills.py
        "recover.created",
        *partition_swap.MILESTONES,
        *given_state.MILESTONES,
        *held_settings.MILESTONES,
    }
    assert named - beside_a_broker - in_a_running_cluster == {
        kill.partition(":")[0] for kill in (*ARCHIVE_KILLS, *STREAM_KILLS, *RECOVER_KILLS, *COLLECT_KILLS)
    }
    calls = re.compile(r"milestones\.reached\(")
    callers = {path.parts[len(ROOT.parts)] for path in ROOT.glob("[a-z]*/**/*.py") if calls.search(path.read_text())}
    assert callers - {"tests", "headwater"} == {"archival", "headwater_core", "recovery"}  # the tests of the pipeline walk its own


@pytest.mark.slow
@pytest.mark.parametrize("kill", walked(ARCHIVE_KILLS, but=DEATHS))
def test_killed_while_it_archives_and_releases(stage: Stage, kill: str) -> None:
    log = a_sample_log(stage.root)
    killed(stage, kill, *FLUSH, "--log-dir", str(log))
    assert read(stage, "read_uncommitted", log) == sample_records("read_uncommitted")  # what is released is archived, what is not is here
    again = stage.run(*FLUSH, log=log)
    assert again.code == 0, again.err
    assert_whole(stage, log)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill", "first", "then"),
    [
        ("directory.written:45", "blocks", "blocks"),
        pytest.param("directory.named:45", "blocks", "segment", marks=pytest.mark.long),
        pytest.param("archive.uploaded", "blocks", "blocks", marks=pytest.mark.long),
        pytest.param("archive.uploaded:5", "segment", "blocks", marks=pytest.mark.long),
        ("archive.committed", "blocks", "segment"),
        pytest.param("release.log_unlinked:2", "blocks", "blocks", marks=pytest.mark.long),
    ],
)
def test_killed_while_it_archives_in_blocks(stage: Stage, kill: str, first: str, then: str) -> None:
    """Whatever layout it continues in."""
    log = a_sample_log(stage.root)
    killed(stage, kill, *FLUSH, "--set", f"archival.layout={first}", "--log-dir", str(log))
    assert read(stage, "read_uncommitted", log) == sample_records("read_uncommitted")
    again = stage.run(*FLUSH, "--set", f"archival.layout={then}", log=log)
    assert again.code == 0, again.err
    assert_whole(stage, log)


def assert_whole(stage: Stage, log: Path, kills: int = 1) -> None:
    """Everything is archived, once, and released; every byte is right, and every record can be read."""
    third = stage.run(*FLUSH, "-o", "jsonl", log=log)
    assert third.code == 0, third.err
    assert {(row["objects"], row["released_bytes"], row["error"]) for row in third.rows} == {(0, 0, None)}
    scrubbed = stage.run("verify", "--data", log=log)
    assert scrubbed.code == 0, scrubbed.err

    found = heads(stage)
    assert {head.topic for head in found} == set(TOPICS)
    listed = Counter(entry.key for head in found for entry in (*head.entries, *head.superseded))
    assert set(listed.values()) == {1}
    for head in found:
        assert not head.superseded
        assert not any(entry.gap for entry in head.entries)
        assert all(entry.next_offset == after.base_offset for entry, after in zip(head.entries, tuple(head.entries)[1:], strict=False))
    store = DirectoryStore(stage.bucket)
    stored = {
        info.key for head in found for info in store.list(keys.data_prefix(head.partition_id)) if info.key.endswith((".log", ".blocks"))
    }
    assert listed.keys() <= stored
    on_their_way = ArchivalConfig().uploads_in_flight * RUNS_MAX  # the runs of one commit each: garbage, and not a second copy
    assert len(stored - listed.keys()) <= on_their_way * kills

    ends = {head.partition_id: head.next_offset for head in found}
    for local in LogDirs([log]).partitions():
        assert len(local.segments) == 1, f"{local.partition} still has {len(local.segments)} segments"
        assert ends[local.partition] == local.high_watermark
    released = {"thermo-samples", "fridge-state", "stock.levels", "orders.placed"}
    starts = {head.partition_id: head.start_offset for head in found}
    assert {each.partition.topic for each in LogDirs([log]).partitions() if each.local_start > starts[each.partition]} == released

    assert read(stage, "read_committed", log) == sample_records("read_committed")
    assert read(stage, "read_uncommitted", None) == sample_records("read_uncommitted")


@pytest.mark.slow
def test_killed_at_each_step_one_after_the_other(stage: Stage) -> None:
    """One log, one bucket, one data directory, and a process that never lives for long."""
    log = a_sample_log(stage.root)
    for step in DEATHS:
        killed(stage, step, *FLUSH, "--log-dir", str(log))
    assert stage.run(*FLUSH, log=log).code == 0
    assert_whole(stage, log, len(DEATHS))


@pytest.mark.slow
@pytest.mark.parametrize("kill", walked(STREAM_KILLS))
def test_killed_while_it_streams(stage: Stage, kill: str) -> None:
    """What a process was writing is written again by the next one, and every record is there once."""
    log, streaming = a_sample_log(stage.root), (*FLUSH, "--set", "archival.offload=streaming")
    killed(stage, kill, *streaming, "--log-dir", str(log))
    assert read(stage, "read_uncommitted", log) == sample_records("read_uncommitted")
    again = stage.run(*streaming, log=log)
    assert again.code == 0, again.err
    assert stage.run("verify", "--data", log=log).code == 0
    found = heads(stage)
    assert "streaming" in {entry.layout for head in found for entry in head.entries}
    assert all(head.pending[-1].is_assigned for head in found if head.pending)
    for head in found:
        assert not any(entry.gap for entry in head.entries)
        assert all(entry.next_offset == after.base_offset for entry, after in zip(head.entries, tuple(head.entries)[1:], strict=False))
    assert read(stage, "read_committed", log) == sample_records("read_committed")
    assert read(stage, "read_uncommitted", None) == sample_records("read_uncommitted")


CHUNKED = {"append": ("layout=chunks", "max_segment_bytes=24KiB"), "fixed": ("layout=chunks", "chunk_variant=fixed", "chunk_bytes=4KiB")}


def chunked(variant: str) -> tuple[str, ...]:
    settings = CHUNKED.get(variant, (f"layout={variant}",))
    return tuple(word for setting in settings for word in ("--set", f"archival.{setting}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill", "first", "then"),
    [
        pytest.param("directory.written:20", "fixed", "fixed", marks=pytest.mark.long),
        pytest.param("directory.named:60", "fixed", "append", marks=pytest.mark.long),
        ("directory.written:45", "append", "append"),
        pytest.param("archive.uploaded", "fixed", "fixed", marks=pytest.mark.long),
        pytest.param("archive.uploaded:2", "append", "append", marks=pytest.mark.long),
        pytest.param("archive.uploaded:3", "append", "segment", marks=pytest.mark.long),
        ("archive.committed", "append", "fixed"),
        pytest.param("archive.claimed:2", "blocks", "append", marks=pytest.mark.long),
        ("release.log_unlinked:2", "fixed", "append"),
    ],
)
def test_killed_while_it_archives_in_chunks(stage: Stage, kill: str, first: str, then: str) -> None:
    """Whatever layout it continues in; under a new fence, so that what is left of a segment is nobody's to continue."""
    log = a_sample_log(stage.root)
    killed(stage, kill, *FLUSH, *chunked(first), "--log-dir", str(log))
    assert read(stage, "read_uncommitted", log) == sample_records("read_uncommitted")
    again = stage.run(*FLUSH, *chunked(then), log=log)
    assert again.code == 0, again.err
    assert_each_once(stage, log)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill", "variant"),
    [
        ("stream.uploaded:3", "append"),
        pytest.param("stream.closed", "append", marks=pytest.mark.long),
        pytest.param("directory.named:60", "fixed", marks=pytest.mark.long),
        ("stream.closed:3", "fixed"),
    ],
)
def test_killed_while_it_streams_into_chunks(stage: Stage, kill: str, variant: str) -> None:
    """Its open segment has failed then: it is written again under the next fence, and collection takes what is left of it."""
    log = a_sample_log(stage.root)
    streaming = (*FLUSH, *chunked(variant), "--set", "archival.offload=streaming", "--set", "archival.chunk_commit_bytes=4KiB")
    killed(stage, kill, *streaming, "--log-dir", str(log))
    assert read(stage, "read_uncommitted", log) == sample_records("read_uncommitted")
    again = stage.run(*streaming, log=log)
    assert again.code == 0, again.err
    assert_each_once(stage, log)
    assert "chunks" in {entry.layout for head in heads(stage) for entry in head.entries}
    for _ in range(2):
        assert stage.run("gc", "--yes", "--set", "archival.reader_lease=0s", "--log-dir", str(log)).code == 0
    assert_nothing_is_left(stage)
    assert_each_once(stage, log)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["append", pytest.param("fixed", marks=pytest.mark.long)])
@pytest.mark.parametrize("kill", [pytest.param("merge.planned", marks=pytest.mark.long), "merge.uploaded", "archive.committed"])
def test_killed_while_chunks_become_one_object(stage: Stage, kill: str, variant: str) -> None:
    """By an agent, in its own time; the next one takes it up again, and collection leaves nothing but what is listed."""
    log = a_sample_log(stage.root)
    assert stage.run(*FLUSH, *chunked(variant), log=log).code == 0
    listen = f"control.listen=127.0.0.1:{free_port()}"
    agent = [
        *(
            "agent",
            "--log-dir",
            str(log),
            *chunked(variant),
            "--set",
            "log.owned=true",
            "--set",
            "archival.merge_after=1s",
            "--set",
            "archival.rescan=1s",
        )
    ]
    agent += ["--set", listen, "--set", "gateway.listen=127.0.0.1:0", "--set", "admin.listen="]
    killed(stage, kill, *agent)
    assert read(stage, "read_uncommitted", log) == sample_records("read_uncommitted")
    for _ in range(len(heads(stage))):  # small runs of another partition may become one before
        if has_joined(stage):
            break
        killed(stage, "archive.committed", *agent)
    assert has_joined(stage)
    assert_each_once(stage, log)
    for _ in range(2):
        assert stage.run("gc", "--yes", "--set", "archival.reader_lease=0s", "--log-dir", str(log)).code == 0
    assert_nothing_is_left(stage)
    assert_each_once(stage, log)


def has_joined(stage: Stage) -> bool:
    """Chunks have become one object."""
    return any(entry.key.endswith(("/segment", "-seg")) for head in heads(stage) for entry in head.entries)


def assert_nothing_is_left(stage: Stage) -> None:
    """Below chunks/ is what the manifests list, and nothing else."""
    listed = {name for head in heads(stage) for entry in head.entries for name in objects_of(entry)}
    assert {info.key for info in DirectoryStore(stage.bucket).list(chunk_keys.CHUNKS)} <= listed


def objects_of(entry: Entry) -> set[str]:
    return {entry.index_key, *(key for key, _ in open_layout(entry.layout).data_objects(entry))}


def assert_each_once(stage: Stage, log: Path) -> None:
    """Every record is there once, and every byte right."""
    assert stage.run("verify", "--data", log=log).code == 0
    for head in heads(stage):
        assert not any(entry.gap for entry in head.entries)
        assert all(entry.next_offset == after.base_offset for entry, after in zip(head.entries, tuple(head.entries)[1:], strict=False))
    assert read(stage, "read_committed", log) == sample_records("read_committed")
    assert read(stage, "read_uncommitted", None) == sample_records("read_uncommitted")


@pytest.mark.slow
@pytest.mark.parametrize("kill", walked(COLLECT_KILLS))
def test_killed_while_it_trims_and_collects(stage: Stage, kill: str) -> None:
    """What is left is readable throughout, and the next round ends what this one began."""
    log = a_sample_log(stage.root)
    assert stage.run(*FLUSH, log=log).code == 0
    wanted = read(stage, "read_uncommitted", log)
    for head in heads(stage):
        newest = head.entries[-1]
        DirectoryStore(stage.bucket).create(newest.key.replace(newest.uid, "f" * 32), b"left by a crash")
    collect = ("gc", "--yes", "--set", "archival.reader_lease=0s", "--log-dir", str(log))
    killed(stage, kill, *collect)
    assert read(stage, "read_uncommitted", log) == wanted
    again = stage.run(*collect)
    assert again.code == 0, again.err
    found, store = heads(stage), DirectoryStore(stage.bucket)
    listed = {key for head in found for entry in (*head.entries, *head.superseded) for key in (entry.key, entry.index_key)}
    assert {info.key for info in store.list(keys.DATA)} == listed
    assert stage.run("verify", "--data", log=log).code == 0
    assert read(stage, "read_uncommitted", log) == wanted


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bucket of a sample log of which nothing else is left."""
    root = tmp_path_factory.mktemp("archived")
    log = a_sample_log(root)
    arguments = ["flush", "--log-dir", str(log), "--data-dir", str(root / "state"), "--store", f"file://{root / 'bucket'}"]
    assert cli.run(arguments) == 0
    shutil.rmtree(log)
    return root / "bucket"


@pytest.mark.slow
@pytest.mark.parametrize("kill", walked(RECOVER_KILLS, but=recovery.MILESTONES[1::2]))  # test_recovery_kills has a sample, too
def test_killed_while_it_recovers(stage: Stage, archived: Path, kill: str) -> None:
    shutil.copytree(archived, stage.bucket)
    into = stage.root / "recovered"
    more = ["--take-over"] if kill in take_over.MILESTONES else []
    recover = ("recover", "apply", "topic", "--all", "--open-transactions", "keep", "--into", str(into), "-o", "jsonl", *more)
    killed(stage, kill, *recover)
    again = stage.run(*recover)
    assert again.code == 0, again.err
    assert [row["again"] for row in again.rows] == [kill == "recover.finished"]
    assert [row["state"] for row in stage.run_bare("recover", "status", "--into", str(into), "-o", "jsonl").rows] == ["finished"]
    assert stage.run(*recover).rows[0]["again"]  # once only
    assert not list(into.rglob("*.partial"))
    assert len(list(into.glob("[!_]*-*/*.log"))) == SEGMENTS
    shutil.rmtree(stage.bucket)
    stage.bucket.mkdir()  # what is read now is the recovered directory alone
    for isolation in ("read_uncommitted", "read_committed"):
        assert read(stage, isolation, into) == sample_records(isolation)
