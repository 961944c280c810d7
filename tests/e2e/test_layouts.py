"""All verbs on an archive in layout `blocks`, on one that was streamed, and on those whose layout was switched to and fro: it is one log to
each of them."""

import json
import os
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import headwater
from headwater_core.layouts import layout_table
from tests.e2e.sample_topics import TOPICS, a_sample_log, read, sample_records
from tests.fixtures import Isolation
from tests.headwater.conftest import Stage
from tests.headwater_core.layouts.recompression import Recompression

BLOCKS = ("--set", "archival.layout=blocks")
STREAMING = ("--set", "archival.offload=streaming", "--set", "archival.max_segment_bytes=4KiB")  # less than a segment of the sample
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")


def objects(stage: Stage) -> set[Path]:
    return {path for root in ("data", "stream") for path in (stage.bucket / root).rglob("*") if path.is_file()}


def suffixes(stage: Stage) -> set[str]:
    return {path.suffix for path in objects(stage)}


def runs(stage: Stage, layout: str) -> list[dict[str, Any]]:
    rows = stage.run("topics", "entries", "-o", "jsonl").rows
    return [row for row in rows if not row["gap"] and row["layout"] == layout]


def beside(data: Path) -> list[Path]:
    """All objects of the run that this one holds."""
    return [data, *data.parent.glob(f"{data.name}-*")]


def check_ledgers(stage: Stage, log: Path) -> None:
    """A ledger, which is a segment of the log, lies in several objects, and an object has several ledgers."""
    rows = [row for row in runs(stage, "streaming") if row["topic"] == "orders.placed"]
    bases = {(path.parent.name, int(path.stem)) for path in log.glob("orders.placed-*/*.log")}
    inner = [
        row
        for row in rows
        for place, base in bases
        if place.endswith(f"-{row['partition']}") and row["base_offset"] < base <= row["last_offset"]
    ]
    assert inner
    assert len(rows) > len(bases)


def layouts(stage: Stage) -> set[str]:
    return {row["layout"] for row in stage.run("topics", "entries", "-o", "jsonl").rows if not row["gap"]}


def aside_of(stage: Stage) -> Path:
    """Where the log lies that was archived: nothing is read from it."""
    return stage.root / "aside"


def archive_in_turns(stage: Stage, log: Path, other: tuple[str, ...]) -> None:
    """Each topic's segments in turn in the native layout and as `other` says. What is active, too, but for the newest."""
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
        assert stage.run("flush", *(other if number % 2 else ()), "--set", "archival.merge_bytes=0", log=log).code in (0, 3)


@pytest.fixture(params=["blocks", "switched", "streaming", "to-streaming"])
def archived(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    """All of the sample is archived, what is active too: in one layout, or each topic's segments in turn in the native one and another."""
    log = a_sample_log(stage.root)
    if request.param == "blocks":
        assert stage.run("flush", *BLOCKS, log=log).code == 0
        assert suffixes(stage) == {".blocks"}
        assert layouts(stage) == {"blocks"}
    elif request.param == "switched":
        archive_in_turns(stage, log, BLOCKS)
        assert stage.run("flush", *BLOCKS, log=log).code == 0
        assert layouts(stage) == {"blocks", "segment"}
        assert suffixes(stage) == {".blocks", ".log", ".index"}
    elif request.param == "streaming":
        assert stage.run("flush", *STREAMING, log=log).code == 0
        check_ledgers(stage, log)
    else:
        archive_in_turns(stage, log, STREAMING)
        assert stage.run("flush", *STREAMING, "--set", "archival.merge_bytes=0", log=log).code == 0
        assert {row["layout"] for row in stage.run("topics", "entries", "orders.placed:0", "-o", "jsonl").rows} == {"segment", "streaming"}
    if "streaming" in request.param:
        assert layouts(stage) == {"segment", "streaming"}, "a compacted topic is never streamed"
    log.rename(aside_of(stage))
    return stage


def a_victim(stage: Stage) -> Path:
    """The largest data object of the layout that is not the native one."""
    (layout,) = layouts(stage) - {"segment"}
    key: str = max(runs(stage, layout), key=lambda row: row["size_bytes"])["key"]
    return stage.bucket / key


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_everything_is_read_back(archived: Stage, isolation: Isolation) -> None:
    assert read(archived, isolation, None) == sample_records(isolation)


def test_verify_finds_nothing_wrong_until_something_is(archived: Stage) -> None:
    assert archived.run("verify").code == 0
    ran = archived.run("verify", "--data")
    assert ran.code == 0, ran.out + ran.err
    victim = a_victim(archived)
    content = bytearray(victim.read_bytes())
    for at in (5, 100, len(content) // 2, len(content) - 3):
        content[at] ^= 4
        victim.write_bytes(content)
        ran = archived.run("verify", "--data", "-o", "jsonl")
        assert ran.code == 4
        assert victim.name in ran.out + ran.err, f"byte {at}"
        content[at] ^= 4
    victim.write_bytes(content)
    for other in set(beside(victim)) - {victim}:
        whole = other.read_bytes()
        other.write_bytes(whole[:30] + bytes([whole[30] ^ 4]) + whole[31:])
        ran = archived.run("verify", "--data", "-o", "jsonl")
        assert ran.code == 4
        assert other.name in ran.out + ran.err
        other.write_bytes(whole)
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
            assert os.getxattr(archived.bucket / row["key"], "user.headwater-blocks-version") == b"1"
        elif row["layout"] == "streaming":
            assert row["run_bytes"] < object_bytes
            assert int(row["context"]["index_bytes"]) == (archived.bucket / f"{row['key']}-index").stat().st_size
            assert os.getxattr(archived.bucket / row["key"], "user.headwater-streaming-version") == b"1"
        else:
            assert row["run_bytes"] == object_bytes
            assert row["context"] == {}


def test_explain_names_the_object_of_an_offset(archived: Stage) -> None:
    ran = archived.run("explain", "orders.placed:0@3", "-o", "json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (archived.bucket / (found if isinstance(found, dict) else found[0])["key"]).is_file()


def test_collection_lets_go_of_what_no_head_lists(archived: Stage) -> None:
    before, victim = objects(archived), a_victim(archived)
    base, last, *_ = victim.stem.split("-")
    name = f"{base}-{last}-{0:010}-{'e' * 32}.blocks" if victim.suffix else str(UUID("e" * 32))
    orphans = [path.with_name(path.name.replace(victim.name, name)) for path in beside(victim)]
    for path, orphan in zip(beside(victim), orphans, strict=True):
        shutil.copy(path, orphan)
    lease = ("--set", "archival.reader_lease=0s")
    for _ in range(2):
        assert archived.run("gc", "--yes", *lease, log=aside_of(archived)).code == 0
    assert not any(orphan.exists() for orphan in orphans)
    assert objects(archived) == before


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
