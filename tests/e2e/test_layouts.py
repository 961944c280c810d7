"""All verbs on an archive in layout `blocks`, and on one whose layout was switched to and fro: it is one log to each of them."""

import json
import os
import shutil
from pathlib import Path

import pytest

import headwater
from headwater_core.layouts import layout_table
from tests.e2e.sample_topics import TOPICS, a_sample_log, read, sample_records
from tests.fixtures import Isolation
from tests.headwater.conftest import Stage
from tests.headwater_core.layouts.recompression import Recompression

BLOCKS = ("--set", "archival.layout=blocks")
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")


def suffixes(stage: Stage) -> set[str]:
    return {path.suffix for path in (stage.bucket / "data").rglob("*") if path.is_file()}


def layouts(stage: Stage) -> set[str]:
    return {row["layout"] for row in stage.run("topics", "entries", "-o", "jsonl").rows if not row["gap"]}


def aside_of(stage: Stage) -> Path:
    """Where the log lies that was archived: nothing is read from it."""
    return stage.root / "aside"


@pytest.fixture(params=["blocks", "switched"])
def archived(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    """All of the sample is archived, what is active too: in blocks, or each topic's segments in turn in one layout and the other."""
    log = a_sample_log(stage.root)
    if request.param == "blocks":
        assert stage.run("flush", *BLOCKS, log=log).code == 0
        assert suffixes(stage) == {".blocks"}
        assert layouts(stage) == {"blocks"}
    else:
        hidden = stage.root / "hidden"
        segments = {place: sorted(place.glob("*.log")) for place in log.iterdir() if place.name.rpartition("-")[0] in TOPICS}
        hidden.mkdir()
        for number in range(max(map(len, segments.values()))):  # the newest are put aside, so that only the next ones are archived
            for place, files in segments.items():
                for at, file in enumerate(files):
                    aside = hidden / f"{place.name}-{file.name}"
                    if at > number and file.exists():
                        shutil.move(file, aside)
                    elif at <= number and aside.exists():
                        shutil.move(aside, file)
            assert stage.run("flush", *(BLOCKS if number % 2 else ()), "--set", "archival.merge_bytes=0", log=log).code in (0, 3)
        assert stage.run("flush", *BLOCKS, log=log).code == 0
        assert layouts(stage) == {"blocks", "segment"}
        assert suffixes(stage) == {".blocks", ".log", ".index"}
    log.rename(aside_of(stage))
    return stage


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_everything_is_read_back(archived: Stage, isolation: Isolation) -> None:
    assert read(archived, isolation, None) == sample_records(isolation)


def test_verify_finds_nothing_wrong_until_something_is(archived: Stage) -> None:
    assert archived.run("verify").code == 0
    ran = archived.run("verify", "--data")
    assert ran.code == 0, ran.out + ran.err
    victim = max((archived.bucket / "data").rglob("*.blocks"), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    for at in (5, 100, len(content) // 2, len(content) - 3):
        content[at] ^= 4
        victim.write_bytes(content)
        ran = archived.run("verify", "--data", "-o", "jsonl")
        assert ran.code == 4
        assert victim.name in ran.out + ran.err, f"byte {at}"
        content[at] ^= 4
    victim.write_bytes(content[:-1])
    assert archived.run("verify").code == 4


def test_a_recovered_log_is_what_was_archived(archived: Stage) -> None:
    into = archived.root / "recovered"
    ran = archived.run("recover", "apply", "topic", "--all", "--open-transactions", "keep", "--into", str(into))
    assert ran.code == 0, ran.err
    shutil.rmtree(archived.bucket)
    archived.bucket.mkdir()
    for isolation in ISOLATIONS:
        assert read(archived, isolation, into) == sample_records(isolation)


def test_a_scan_yields_all_and_a_narrow_one_its_offsets(archived: Stage) -> None:
    store = f"file://{archived.bucket}"
    expected = {(row["topic"], row["partition"], row["offset"]) for row in sample_records("read_committed")}
    columns = ["topic", "partition", "offset"]
    found = {
        tuple(row.values())
        for batch in headwater.scan(store, "*", columns=columns, isolation="read_committed")
        for row in batch.to_pylist()
    }
    assert found == expected


def test_the_catalogue_says_of_each_run_what_its_object_holds(archived: Stage) -> None:
    for row in archived.run("topics", "entries", "-o", "jsonl").rows:
        if row["gap"]:
            continue
        object_bytes = (archived.bucket / row["key"]).stat().st_size
        assert row["size_bytes"] == object_bytes
        assert row["live_bytes"] == row["run_bytes"]
        if row["layout"] == "blocks":
            assert row["key"].endswith(".blocks")
            assert row["run_bytes"] < object_bytes
            assert int(row["context"]["index_bytes"]) < object_bytes
            version = os.getxattr(archived.bucket / row["key"], "user.headwater-blocks-version")
            assert version == b"1"
        else:
            assert row["run_bytes"] == object_bytes
            assert row["context"] == {}


def test_explain_names_the_object_of_an_offset(archived: Stage) -> None:
    ran = archived.run("explain", "orders.placed:0@3", "-o", "json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (archived.bucket / (found if isinstance(found, dict) else found[0])["key"]).is_file()


def test_collection_lets_go_of_what_no_head_lists(archived: Stage) -> None:
    before = {path for path in (archived.bucket / "data").rglob("*") if path.is_file()}
    victim = next(path for path in before if path.suffix == ".blocks")
    base, last, *_ = victim.stem.split("-")
    orphan = victim.with_name(f"{base}-{last}-{0:010}-{'e' * 32}.blocks")
    shutil.copy(victim, orphan)
    lease = ("--set", "archival.reader_lease=0s")
    for _ in range(2):
        assert archived.run("gc", "--yes", *lease, log=aside_of(archived)).code == 0
    assert not orphan.exists()
    assert {path for path in (archived.bucket / "data").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("layout", ["segment", "blocks"])
def test_what_an_offloader_transforms_is_the_same_records(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, layout: str, isolation: Isolation
) -> None:
    """Archived, read, verified, recovered and scanned; what is archived is not what the log holds, byte for byte."""
    monkeypatch.setitem(layout_table._LAYOUTS, layout, Recompression(layout_table._LAYOUTS[layout]))
    log = a_sample_log(stage.root)
    assert stage.run("flush", "--set", f"archival.layout={layout}", log=log).code == 0
    rows = [row for row in stage.run("topics", "entries", "-o", "jsonl").rows if not row["gap"]]
    assert {row["layout"] for row in rows} == {layout}
    assert read(stage, isolation, log) == sample_records(isolation)
    ran = stage.run("verify", "--data", log=log)
    assert ran.code == 0, ran.out + ran.err
    log.rename(aside_of(stage))
    assert read(stage, isolation, None) == sample_records(isolation)
    into = stage.root / "recovered"
    assert stage.run("recover", "apply", "topic", "--all", "--open-transactions", "keep", "--into", str(into)).code == 0
    found = headwater.scan(f"file://{stage.bucket}", "*", columns=["topic", "partition", "offset", "value"], isolation=isolation)
    scanned = {(row["topic"], row["partition"], row["offset"]) for batch in found for row in batch.to_pylist()}
    assert scanned == {(row["topic"], row["partition"], row["offset"]) for row in sample_records(isolation)}
    shutil.rmtree(stage.bucket)
    stage.bucket.mkdir()
    assert read(stage, isolation, into) == sample_records(isolation)


def test_a_layout_that_is_not_known_is_refused(stage: Stage) -> None:
    ran = stage.run("archive", "--set", "archival.layout=bricks", log=Path("/"))
    assert ran.code == 2
    assert "blocks, chunks, segment" in ran.err
