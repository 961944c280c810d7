"""All verbs on an archive in RocketMQ's layout, in both variants: it is one log to each of them."""

import shutil
from pathlib import Path

import pytest

import headwater
from tests.e2e.sample_topics import a_sample_log, read, sample_records
from tests.fixtures import Isolation
from tests.headwater.conftest import Stage

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
VARIANTS = {
    "append": ("--set", "archival.layout=chunks", "--set", "archival.max_segment_bytes=64KiB"),
    "fixed": ("--set", "archival.layout=chunks", "--set", "archival.chunk_variant=fixed", "--set", "archival.chunk_bytes=4KiB"),
}


def chunks(stage: Stage) -> list[Path]:
    """Those that hold data, the longest run's first."""
    found = [path for path in (stage.bucket / "chunks").rglob("chunk-*") if path.suffix != ".index"]
    return sorted(found, key=lambda path: (-len(list(path.parent.iterdir())), path))


@pytest.fixture(params=VARIANTS)
def archived(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    """All of the sample is archived, what is active too."""
    log = a_sample_log(stage.root)
    assert stage.run("flush", *VARIANTS[request.param], log=log).code == 0
    assert not (stage.bucket / "data").exists()
    assert {row["layout"] for row in stage.run("topics", "entries", "-o", "jsonl").rows if not row["gap"]} == {"chunks"}
    log.rename(stage.root / "aside")
    return stage


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_everything_is_read_back(archived: Stage, isolation: Isolation) -> None:
    assert read(archived, isolation, None) == sample_records(isolation)


def test_verify_looks_at_every_chunk(archived: Stage) -> None:
    assert archived.run("verify").code == 0
    ran = archived.run("verify", "--data")
    assert ran.code == 0, ran.out + ran.err
    of_one_run = [path for path in chunks(archived) if path.parent == chunks(archived)[0].parent]
    assert len(of_one_run) > 1
    victim = of_one_run[-1]
    content = victim.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 4
    victim.write_bytes(flipped)
    assert archived.run("verify", "--data").code == 4
    victim.write_bytes(content[:-1])
    ran = archived.run("verify", "-o", "jsonl")
    assert ran.code == 4
    assert [(row["kind"], Path(row["key"]).name) for row in ran.rows if row.get("kind")] == [("truncated", victim.name)]
    victim.unlink()
    ran = archived.run("verify", "-o", "jsonl")
    assert ran.code == 4
    assert [(row["kind"], Path(row["key"]).name) for row in ran.rows if row.get("kind")] == [("missing", victim.name)]
    assert archived.run("recover", "plan", "topic", "--all", "--into", str(archived.root / "nowhere")).code in (0, 3, 4)


def test_a_chunk_that_nothing_lists_is_found_and_collected(archived: Stage) -> None:
    first = chunks(archived)[0]
    stray = first.with_name("chunk-999999999")
    stray.write_bytes(b"left by an attempt")
    before = {path for path in archived.bucket.rglob("*") if path.is_file()} - {stray}
    ran = archived.run("verify", "-o", "jsonl")
    assert ran.code == 0, "it is young"
    log = archived.root / "aside"
    for _ in range(2):
        ran = archived.run("gc", "--yes", "--set", "archival.reader_lease=0s", log=log)
        assert ran.code == 0, ran.err
    assert not stray.exists()
    data = {path for path in archived.bucket.rglob("*") if path.is_file()}
    assert {path for path in before if "chunks" in path.parts} == {path for path in data if "chunks" in path.parts}


def test_a_recovered_log_is_what_was_archived(archived: Stage) -> None:
    into = archived.root / "recovered"
    ran = archived.run("recover", "apply", "topic", "--all", "--open-transactions", "keep", "--into", str(into))
    assert ran.code == 0, ran.err
    shutil.rmtree(archived.bucket)
    archived.bucket.mkdir()
    for isolation in ISOLATIONS:
        assert read(archived, isolation, into) == sample_records(isolation)


def test_a_scan_yields_all(archived: Stage) -> None:
    expected = {(row["topic"], row["partition"], row["offset"]) for row in sample_records("read_committed")}
    columns = ["topic", "partition", "offset"]
    batches = headwater.scan(f"file://{archived.bucket}", "*", columns=columns, isolation="read_committed")
    assert {tuple(row.values()) for batch in batches for row in batch.to_pylist()} == expected


def test_chunks_without_a_manifest_are_reported_and_stay(archived: Stage) -> None:
    """Nobody deletes what may be all that is left of a topic."""
    shutil.rmtree(archived.bucket / "meta")
    before = chunks(archived)
    ran = archived.run("verify", "-o", "jsonl")
    assert ran.code == 4
    assert {row["kind"] for row in ran.rows if "chunks/" in row["key"]} == {"no-manifest"}
    ran = archived.run("gc", "--yes", "-o", "jsonl", log=archived.root / "aside")
    assert all(row["reason"] == "there are chunks and no manifest; nothing is deleted" for row in ran.rows)
    assert ran.rows
    assert chunks(archived) == before
