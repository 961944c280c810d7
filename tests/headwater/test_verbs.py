"""The verbs on logs that a real broker wrote: archive, status, read, verify, cache, topics."""

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headwater_core.objectstore.store_url import open_store
from headwater_core.partition import topic_id_text
from manifests.repository import ManifestRepository
from manifests.topic import Sight, TopicManifest
from tests.fixtures import Isolation, expected, expected_offsets
from tests.headwater.conftest import Stage

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")


def as_expected(row: dict[str, Any]) -> dict[str, Any]:
    """Long values stand in the expectation as length and hash."""
    value = base64.b64decode(row["value"]) if row["value"] else b""
    return row | {"value": {"len": len(value), "sha256": hashlib.sha256(value).hexdigest()}} if len(value) > 2048 else row


def read_all(stage: Stage, name: str, isolation: Isolation, log: Path | None) -> None:
    """`headwater read` of every topic equals what the Java consumer got from the broker, in every field."""
    topics = {record["topic"] for record in expected(name, isolation)}
    assert topics
    for topic in sorted(topics):
        ran = stage.run("read", topic, "--isolation", isolation, log=log)
        assert ran.code == 0, ran.err
        assert [as_expected(row) for row in ran.rows] == [record for record in expected(name, isolation) if record["topic"] == topic], topic


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("pantry", marks=pytest.mark.long), "pantry-live", "kitchen"])
def test_what_is_read_is_what_the_broker_delivered_in_every_state(stage: Stage, name: str) -> None:
    log = stage.log(name)
    assert stage.run("archive", "--set", "log.owned=true", log=log).code == 0  # the rest is local: reads cross the border
    for isolation in ISOLATIONS:
        read_all(stage, name, isolation, log)
    assert stage.run("flush", log=log).code == 0
    shutil.rmtree(log)
    shutil.rmtree(stage.data_dir)
    for isolation in ISOLATIONS:
        read_all(stage, name, isolation, None)
    into = stage.root / "recovered"
    as_it_was = ("--open-transactions", "keep")  # readers of committed data see more of a log in which nothing is open
    assert stage.run("recover", "apply", "topic", "--all", *as_it_was, "--into", str(into)).code == 0
    shutil.rmtree(stage.bucket)
    stage.bucket.mkdir()
    for isolation in ISOLATIONS:
        read_all(stage, name, isolation, into)


def test_archive_takes_sealed_segments_and_flush_the_rest(stage: Stage) -> None:
    log = stage.log("kitchen")
    first = stage.run("archive", "-o", "jsonl", log=log)
    assert first.code == 0, first.err
    assert all(row["error"] is None for row in first.rows)
    second = stage.run("archive", "-o", "jsonl", log=log)
    assert sum(row["objects"] for row in second.rows) == 0
    flushed = stage.run("flush", "-o", "jsonl", log=log)
    assert sum(row["objects"] for row in flushed.rows) > 0
    ends = {(row["topic"], row["partition"]): row["last_offset"] + 1 for row in flushed.rows}
    for place, offsets in by_place(expected_offsets("kitchen", "read_uncommitted")).items():
        assert ends[place] == offsets["high_watermark"]


def by_place(offsets: Any) -> dict[tuple[str, int], dict[str, int]]:
    if isinstance(offsets, list):
        return {(each["topic"], each["partition"]): each for each in offsets}
    return {(topic, int(partition)): each for topic, partitions in offsets.items() for partition, each in partitions.items()}


def test_flush_leaves_young_tails_alone(stage: Stage) -> None:
    log = stage.log("kitchen")
    assert stage.run("archive", log=log).code == 0
    ran = stage.run("flush", "--older-than", "1h", "-o", "jsonl", log=log)
    assert sum(row["objects"] for row in ran.rows) == 0


def test_a_selection_limits_a_pass_and_before_bounds_it(stage: Stage) -> None:
    log = stage.log("pantry")
    ran = stage.run("archive", "thermo-samples:0", "--before", "100", "-o", "jsonl", log=log)
    assert [(row["topic"], row["partition"]) for row in ran.rows] == [("thermo-samples", 0)]
    assert ran.rows[0]["last_offset"] < 100
    assert stage.run("archive", "absent", log=log).code == 6
    assert stage.run("archive", "bad:name:0", log=log).code == 2


def test_a_dry_run_says_what_is_due_and_does_nothing(stage: Stage) -> None:
    log = stage.log("kitchen")
    ran = stage.run("archive", "--dry-run", "-o", "jsonl", log=log)
    assert ran.code == 0, ran.err
    assert ran.rows
    assert not stage.bucket.exists()


def test_status_before_and_after(stage: Stage) -> None:
    log = stage.log("pantry")
    before = {(row["topic"], row["partition"]): row for row in stage.run("status", "-o", "jsonl", log=log).rows}
    assert before["recipes.zstd", 0]["last_offset"] is None
    assert before["recipes.zstd", 0]["lag_bytes"] > 0
    assert before["recipes.zstd", 0]["lag_s"] > 0
    assert stage.run("flush", "--set", "log.owned=true", log=log).code == 0
    after = {(row["topic"], row["partition"]): row for row in stage.run("status", "-o", "jsonl", log=log).rows}
    for place, offsets in by_place(expected_offsets("pantry", "read_uncommitted")).items():
        row = after[place]
        assert (row["archive_start"], row["high_watermark"]) == (offsets["start"], offsets["high_watermark"]), place
        assert (row["state"], row["lag_bytes"], row["lag_s"]) == ("archived", 0, 0)
    assert after["thermo-samples", 1]["local_start"] > after["thermo-samples", 1]["archive_start"]  # released
    assert after["compost", 0]["archive_start"] == 54
    shutil.rmtree(log)
    alone = stage.run("status", "recipes.zstd", "-o", "jsonl")
    assert {row["state"] for row in alone.rows} == {"archive-only"}
    assert stage.run("status", "absent").code == 6


def test_a_name_is_set_to_an_incarnation(stage: Stage) -> None:
    assert stage.run("archive", log=stage.log("kitchen")).code == 0
    listed = stage.run("topics", "list", "-o", "jsonl").rows[0]
    topic, topic_id, other = listed["topic"], listed["topic_id"], topic_id_text(b"o" * 16)
    seen = TopicManifest(cluster_id=listed["cluster_id"], topic=topic, topic_id=other, partitions=1)
    manifests = ManifestRepository(open_store(f"file://{stage.bucket}"))
    current = manifests.current(topic)
    assert current is not None
    assert current.as_of  # the broker's metadata log said so
    manifests.ensure_topic(seen, Sight(as_of=2**40))
    assert stage.run("topics", "list", "-o", "jsonl").rows[0]["topic_id"] == other
    ask = ("topics", "set", topic, "--incarnation", topic_id, "-o", "jsonl")
    tried = stage.run(*ask, "--dry-run")
    assert (tried.code, tried.rows[0]["before"], tried.rows[0]["changed"]) == (0, other, True)
    refused = stage.run(*ask)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert stage.run("topics", "list", "-o", "jsonl").rows[0]["topic_id"] == other
    assert stage.run(*ask, "--yes").rows[0]["changed"]
    assert stage.run("topics", "list", "-o", "jsonl").rows[0]["topic_id"] == topic_id
    assert not stage.run(*ask, "--yes").rows[0]["changed"]
    assert stage.run("topics", "set", topic, "--incarnation", "x").code == 2
    unknown = stage.run("topics", "set", topic, "--incarnation", topic_id_text(b"u" * 16), "--dry-run")
    assert unknown.code == 6
    assert other in unknown.err
    assert topic_id in unknown.err


def test_topics_are_listed_and_shown(stage: Stage) -> None:
    log = stage.log("kitchen")
    assert stage.run("flush", log=log).code == 0
    listed = stage.run("topics", "list", "-o", "jsonl").rows
    shown = stage.run("topics", "show", listed[-1]["topic"], "-o", "jsonl").rows
    assert len(shown) == listed[-1]["partitions"]
    assert sum(row["objects"] for row in shown) == listed[-1]["objects"]
    assert stage.run("topics", "show", "absent").code == 6


def test_the_catalogue_has_a_row_for_each_run(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    rows = stage.run("topics", "entries", "-o", "jsonl").rows
    shown = [
        row
        for each in stage.run("topics", "list", "-o", "jsonl").rows
        for row in stage.run("topics", "show", each["topic"], "-o", "jsonl").rows
    ]
    assert len(rows) == sum(row["objects"] + row["gaps"] + row["superseded"] for row in shown)
    keys = {key for row in rows for key in row}
    assert all(row.keys() == keys for row in rows)
    assert keys >= {
        "topic", "topic_id", "partition", "base_offset", "last_offset", "layout", "key", "size_bytes", "live_bytes", "digest", "context",
        "epochs", "first_timestamp", "last_timestamp", "gap", "superseded",
    }  # fmt: skip
    assert all((stage.bucket / row["key"]).stat().st_size == row["size_bytes"] for row in rows if not row["gap"])
    topic, partition = rows[0]["topic"], rows[0]["partition"]
    alone = stage.run("topics", "entries", f"{topic}@{rows[0]['topic_id']}:{partition}", "-o", "jsonl").rows
    assert alone == [row for row in rows if (row["topic"], row["partition"]) == (topic, partition)]
    assert [row["base_offset"] for row in alone] == sorted(row["base_offset"] for row in alone)
    assert topic in stage.run("topics", "entries", topic).out
    assert stage.run("topics", "entries", "absent").code == 6
    assert stage.run("topics", "entries", f"{topic}:999").code == 6


def test_the_catalogue_names_what_it_cannot_read(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    whole = stage.run("topics", "entries", "-o", "jsonl").rows
    objects(stage, "manifest.json")[-1].write_bytes(b"{}")
    listed = stage.run("topics", "entries", "-o", "jsonl")
    assert listed.code == 3
    assert "not shown" in listed.err
    assert 0 < len(listed.rows) < len(whole)


def objects(stage: Stage, suffix: str) -> list[Path]:
    found = sorted(path for path in stage.bucket.rglob(f"*{suffix}") if path.is_file())
    assert found
    return found


def test_verify_finds_nothing_wrong_with_a_whole_archive(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    for options in ([], ["--data"]):
        ran = stage.run("verify", *options, "-o", "json")
        assert ran.code == 0, ran.err
        assert json.loads(ran.out) == []


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_verify_finds_what_is_gone(stage: Stage, suffix: str) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    objects(stage, suffix)[0].unlink()
    ran = stage.run("verify", "-o", "jsonl")
    assert ran.code == 4
    assert len(ran.rows) == 1


def test_verify_data_finds_one_flipped_bit(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    flip(objects(stage, ".log")[1], -3)
    ran = stage.run("verify", "--data", "-o", "jsonl")
    assert ran.code == 4
    assert len(ran.rows) == 1
    assert "digest" in ran.rows[0]["problem"]


def flip(path: Path, position: int) -> None:
    path.chmod(0o644)
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 1
    path.write_bytes(damaged)


def test_verify_that_examined_nothing_says_so(stage: Stage) -> None:
    stage.bucket.mkdir()
    assert stage.run("verify").code == 10
    assert stage.run("verify", "absent").code == 6


def test_a_damaged_head_is_found_and_does_not_hide_the_others(stage: Stage) -> None:
    log = stage.log("kitchen")
    assert stage.run("flush", log=log).code == 0
    flip(objects(stage, "manifest.json")[0], 40)
    assert stage.run("verify").code == 4
    ran = stage.run("status", "-o", "jsonl", log=log)
    assert ran.code == 0
    assert [row["state"] for row in ran.rows].count("stopped") == 1
    assert stage.run("flush", log=log).code == 3


def test_evicted_chunks_are_fetched_again(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("flush", log=log).code == 0
    before = stage.run("read", "recipes.gzip:0")
    assert before.rows
    cached = cached_files(stage)
    assert sum(cached.values()) > 0
    assert stage.run("cache", "evict").code == 2  # everything must be asked for by name
    assert "would delete" in stage.run("cache", "evict", "--all", "--dry-run").err
    assert cached_files(stage) == cached
    assert stage.run("cache", "evict", "recipes.lz4").code == 0
    assert cached_files(stage) == cached
    assert stage.run("cache", "evict", "recipes.gzip:0").code == 0
    assert cached_files(stage) == {}
    assert stage.run("read", "recipes.gzip:0").out == before.out
    for verb in (["cache", "evict"], ["cache", "show"]):
        assert stage.run(*verb, "nonesuch").code == 6


def cached_files(stage: Stage) -> dict[str, int]:
    return {row["name"]: row["size_bytes"] for row in stage.run("cache", "show", "-o", "jsonl").rows}


def test_reading_begins_and_ends_where_it_is_told(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("pantry")).code == 0

    def offsets(*options: str) -> list[int]:
        return [row["offset"] for row in stage.run("read", "recipes.none:0", *options).rows]

    everything = stage.run("read", "recipes.none:0").rows
    assert offsets("--from", "10", "--to", "20") == list(range(10, 20))
    assert offsets("--from", "10", "--count", "3") == [10, 11, 12]
    assert offsets("--count", "0") == []
    middle = everything[len(everything) // 2]["timestamp"]
    later = offsets("--from", iso(middle))
    assert later == [
        row["offset"] for row in everything if row["offset"] >= next(r["offset"] for r in everything if r["timestamp"] >= middle)
    ]
    assert offsets("--from", "2100-01-01") == []
    assert stage.run("read", "recipes.none:0", "--from", "yesterday").code == 2
    assert stage.run("read", "recipes.none:9").code == 6


def iso(timestamp_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def test_a_lost_head_is_found(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    lost = next(path for path in objects(stage, "manifest.json") if path.parts[-4:-3] == ("orders.in",) and path.parent.name == "0")
    lost.unlink()
    for selection in ([], ["orders.in"], ["orders.in:0"]):
        ran = stage.run("verify", *selection, "-o", "jsonl")
        assert ran.code == 4
        assert [(row["topic"], row["partition"]) for row in ran.rows] == [("orders.in", 0)]
        assert "no manifest" in ran.rows[0]["problem"]
    for topics in ("--all", "orders.in"):
        plan = stage.run("recover", "plan", "topic", topics, "-o", "json")
        assert plan.code == 3
        assert "left out: orders.in: of partitions 0 there is no manifest" in plan.err
        [planned] = [topic for topic in json.loads(plan.out)["topics"] if topic["topic"] == "orders.in"]
        assert [bool(partition["entries"]) for partition in planned["partitions"]][:2] == [False, True]
    applied = stage.run("recover", "apply", "topic", "--all", "--into", str(stage.root / "recovered"))
    assert applied.code == 3
    assert (stage.root / "recovered" / "meta.properties").exists()


def test_looking_deletes_nothing_from_the_cache(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("flush", log=log).code == 0
    assert stage.run("read", "recipes.gzip:0").rows
    cached = cached_files(stage)
    tight = ("--set", "hydration.cache_bytes=1")
    for verb in (["status"], ["cache", "evict", "--all", "--dry-run"], ["cache", "show"]):
        assert stage.run(*verb, *tight).code == 0
        assert cached_files(stage) == cached


def test_reading_what_is_not_there_names_what_is(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("pantry")).code == 0
    start = stage.run("status", "compost:0", "-o", "jsonl").rows[0]["archive_start"]
    assert start > 0
    ran = stage.run("read", "compost:0", "--from", "0", "--to", str(start))
    assert ran.code == 1
    assert str(start) in ran.err
    assert "--from earliest" in ran.err
    end = stage.run("status", "recipes.gzip:0", "-o", "jsonl").rows[0]["last_offset"] + 1
    assert (ran := stage.run("read", "recipes.gzip:0", "--from", str(end))).code == 0
    assert ran.out == ""
    ran = stage.run("read", "recipes.gzip:0", "--from", str(end + 1))
    assert ran.code == 1
    assert f"it has 0 to {end - 1}" in ran.err


def test_a_topic_that_is_archived_on_request_only_and_one_that_is_not_at_all(stage: Stage) -> None:
    log = stage.log("kitchen")
    file = stage.root / "modes.toml"
    file.write_text("[archival]\narchive = 'manual'\n[topics.'orders.*']\narchive = 'off'\n")
    ran = stage.run("flush", "-o", "jsonl", "--config", str(file), "--set", "log.owned=true", log=log)
    assert ran.code == 0, ran.err
    assert {row["reason"] for row in ran.rows if row["topic"] == "orders.in"} == {"archive = off"}
    archived = {row["topic"] for row in ran.rows if row["objects"]}
    assert "specials" in archived
    assert "orders.in" not in archived
