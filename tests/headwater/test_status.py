"""`headwater status` while the store answers, hangs or is away; with an agent to ask, and without."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater import survey
from headwater.broker.broker_connection import BrokerApi
from headwater.wiring import Bucket, load_head
from headwater_core.partition import PartitionId, TopicPartition, topic_id_bytes
from headwater_core.segments import checkpoints
from headwater_core.segments.log_dirs import LogDirs
from manifests.head import Head
from tests.headwater.conftest import Ran, Stage
from tests.headwater.socket_broker import SocketBroker
from tests.headwater.test_agent import running
from tests.s3server import S3Server

KEYS = [
    "topic",
    "partition",
    "topic_id",
    "archive_start",
    "local_start",
    "last_offset",
    "high_watermark",
    "lag_bytes",
    "lag_s",
    "archived_bytes",
    "objects",
    "cached_bytes",
    "known_age_s",
    "state",
    "reason",
    "released_end",
    "released_bytes",
    "release_reason",
    "release_group",
    "release_group_offset",
    "release_blocked_ms",
    "release_blocked_bytes",
    "trigger_trouble",
    "stream_trouble",
    "merge_trouble",
    "collection_trouble",
    "damage",
    "store_try_ms",
    "high_watermark_source",
    "high_watermark_age_s",
    "age_s",
]
NUMBERS = ("topic", "partition", "archive_start", "local_start", "last_offset", "high_watermark", "lag_bytes", "objects")


@contextmanager
def stopped(server: S3Server) -> Iterator[None]:
    """It accepts connections and says nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.fixture
def places(s3_environ: S3Server) -> list[str]:
    return ["--store", f"s3://{s3_environ.bucket()}/archive", "--endpoint-url", s3_environ.endpoint_url]


def numbers(ran: Ran) -> list[list[Any]]:
    return [[row[name] for name in NUMBERS] for row in ran.rows]


def test_an_agent_tells_what_it_knows_while_the_store_hangs(
    stage: Stage, s3_environ: S3Server, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stage.log("kitchen")
    with running(stage, log, *places, "--set", "log.owned=true", "--set", "archival.release=false") as agent:
        agent.wait_for("gateway_started")
        assert stage.run("flush", *places, log=log).code == 0
        healthy = stage.run("status", "-o", "jsonl", *places, log=log)
        assert healthy.code == 0, healthy.err
        assert {row["state"] for row in healthy.rows} == {"archived"}
        with stopped(s3_environ):
            silent = stage.run("status", "-o", "jsonl", *places, log=log)
    assert (silent.code, silent.err) == (0, "")  # an agent with nothing to do does not call the store
    assert numbers(silent) == numbers(healthy)
    assert {row["state"] for row in silent.rows} == {"archived"}
    ages = [(after["known_age_s"], before["known_age_s"]) for after, before in zip(silent.rows, healthy.rows, strict=True)]
    assert min(before for _, before in ages) >= 0
    assert any(after > before for after, before in ages)  # one that is looked at in between is younger


def test_without_an_agent_a_store_that_hangs_is_not_waited_for(
    stage: Stage, s3_environ: S3Server, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "SILENCE_S", 0.5)
    log = stage.log("kitchen")
    assert stage.run("flush", *places, log=log).code == 0
    with stopped(s3_environ):
        silent = stage.run("status", "-o", "jsonl", *places, log=log)
    assert silent.code == 5
    assert {row["state"] for row in silent.rows} == {"unknown"}
    assert all(row["known_age_s"] is None and row["high_watermark"] is not None for row in silent.rows)


def test_explain_answers_from_what_is_known_while_the_store_hangs(
    stage: Stage, s3_environ: S3Server, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "SILENCE_S", 0.5)
    log = stage.log("pantry")
    assert stage.run("flush", *places, log=log).code == 0
    with stopped(s3_environ):
        ranges = stage.run("explain", "orders.placed:0", "-o", "jsonl", *places, log=log)
        local = stage.run("explain", f"orders.placed:0@{ranges.rows[0]['base_offset']}", "-o", "jsonl", *places, log=log)
        absent = stage.run("explain", "orders.placed:0@99999", "-o", "jsonl", *places, log=log)
    assert [ran.code for ran in (ranges, local, absent)] == [5, 5, 5]
    assert "shown is what is known without it" in " ".join(ranges.err.split())
    (row,) = ranges.rows
    assert (row["kind"], row["size_bytes"]) == ("store-away", None)
    assert row["reason"].endswith("nothing is known of its archive")
    assert [(row["readable"], row["answers"]) for row in local.rows] == [(True, "local")], local.rows
    (row,) = absent.rows
    assert not row["readable"]
    assert "it is not in the local log, and the bucket does not answer" in row["reason"]


def test_a_store_that_refuses_the_key_does_not_count_as_one_without_an_answer(
    stage: Stage, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stage.log("kitchen")
    assert stage.run("flush", *places, log=log).code == 0
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "unknown-key")
    denied = stage.run("status", "-o", "jsonl", *places, log=log)
    assert denied.rows
    for row in denied.rows:
        assert "refuses the key" in row["reason"]
        assert "does not answer" not in row["reason"]


def test_a_head_that_could_not_be_read_does_not_pass_for_one_that_is_not_there(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stage.log("kitchen")
    assert stage.run("flush", log=log).code == 0

    def load(bucket: Bucket, partition: PartitionId) -> Head | None:
        if partition.topic == "orders.in":
            raise OSError("input/output error")
        return load_head(bucket, partition)

    monkeypatch.setattr(survey, "load_head", load)
    ran = stage.run("status", "-o", "jsonl", log=log)
    assert (ran.code, ran.out) == (1, "")
    assert "input/output error" in ran.err


def test_json_has_a_row_per_partition_and_the_same_keys_whatever_people_see(stage: Stage) -> None:
    log = stage.log("kitchen")
    plain = stage.run("status", "-o", "jsonl", log=log)
    assert len(plain.rows) > len({row["topic"] for row in plain.rows})
    assert all(list(row) == KEYS for row in plain.rows)
    by_partition = stage.run("status", "-p", "-o", "jsonl", log=log)
    assert [(row["topic"], row["partition"]) for row in by_partition.rows] == [(row["topic"], row["partition"]) for row in plain.rows]


def test_a_lag_above_the_limit_is_an_exit_code(stage: Stage) -> None:
    log = stage.log("kitchen")
    late = stage.run("status", "--max-lag", "1s", "-o", "jsonl", log=log)
    assert late.code == 4
    assert late.rows
    assert "not archived within" in late.err
    assert stage.run("flush", log=log).code == 0
    assert stage.run("status", "--max-lag", "0s", log=log).code == 0
    topic = late.rows[-1]["topic"]
    next((stage.bucket / "meta" / topic).rglob("manifest.json")).write_bytes(b"{}")
    damaged = stage.run("status", "--max-lag", "52w", log=log)
    assert damaged.code == 4
    assert f"{topic}:" in damaged.err
    elsewhere = stage.run("status", "--max-lag", "52w", late.rows[0]["topic"])
    assert elsewhere.code == 10
    assert stage.run("status", "--max-lag", "10", log=log).code == 2


def test_an_unreadable_bucket_is_no_small_lag(
    stage: Stage, s3_environ: S3Server, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "SILENCE_S", 0.5)
    log = stage.log("kitchen")
    assert stage.run("flush", *places, log=log).code == 0
    with stopped(s3_environ):
        assert stage.run("status", "--max-lag", "52w", *places, log=log).code == 5


def test_what_watches_is_for_people(stage: Stage) -> None:
    log = stage.log("kitchen")
    for options in (["--watch", "-o", "jsonl"], ["--watch", "--max-lag", "1m"], ["--interval", "1s"], ["--watch", "--interval", "1ms"]):
        assert stage.run("status", *options, log=log).code == 2, options


PLACED = TopicPartition("orders.placed", 0)
CHECKPOINTED, COMMITTED = 150, 197


def checkpointed(log: Path) -> dict[TopicPartition, int]:
    """The high watermarks of `log`, of which that of PLACED is old now."""
    path = log / checkpoints.HIGH_WATERMARKS
    known = dict(checkpoints.decode_offsets(path.read_bytes(), where=str(path))) | {PLACED: CHECKPOINTED}
    path.write_bytes(checkpoints.encode_offsets(known))
    return known


def leader_of(log: Path) -> SocketBroker:
    """The broker of this log directory, which says how far PLACED is committed, and nothing of others."""
    dirs = LogDirs([log])
    placed = dirs.look(PLACED)

    def describe(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        topics = [
            {
                "error_code": 0 if each["name"] == PLACED.topic else 3,
                "name": each["name"],
                "topic_id": topic_id_bytes(placed.partition.topic_id),
            }
            | {"is_internal": False, "partitions": [], "topic_authorized_operations": -1}
            for each in fields["topics"]
        ]
        own = {"node_id": dirs.node_id, "host": broker.address.host, "port": broker.address.port, "rack": None}
        return {"brokers": [own], "cluster_id": dirs.cluster_id, "controller_id": 1, "topics": topics}

    def offsets(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        def of(topic: str, each: Mapping[str, Any]) -> Mapping[str, Any]:
            is_led = (topic, each["partition_index"]) == PLACED
            said = {"offset": COMMITTED, "leader_epoch": 8} if is_led else {"offset": -1, "leader_epoch": -1}
            return {"partition_index": each["partition_index"], "error_code": 0 if is_led else 6, "timestamp": -1} | said

        return {
            "topics": [
                {"name": each["name"], "partitions": [of(each["name"], one) for one in each["partitions"]]} for each in fields["topics"]
            ]
        }

    broker = SocketBroker({BrokerApi.METADATA: describe, BrokerApi.LIST_OFFSETS: offsets})
    return broker


def watermarks(ran: Ran) -> dict[TopicPartition, tuple[int, str]]:
    assert ran.code == 0, ran.err
    assert all(row["high_watermark_age_s"] >= 0 for row in ran.rows)
    return {TopicPartition(row["topic"], row["partition"]): (row["high_watermark"], row["high_watermark_source"]) for row in ran.rows}


def test_the_broker_itself_says_how_far_its_logs_are_committed(stage: Stage) -> None:
    log = stage.log("pantry-live")
    known = {place: (offset, "checkpoint") for place, offset in checkpointed(log).items()}
    with leader_of(log) as broker:
        asking = ["--set", f"log.bootstrap_servers={broker.address}"]
        by_file = watermarks(stage.run("status", "-o", "jsonl", log=log))
        assert by_file == {place: known[place] for place in by_file}
        assert not broker.asked
        by_broker = watermarks(stage.run("status", "-o", "jsonl", *asking, log=log))
        assert by_broker == by_file | {PLACED: (COMMITTED, "broker")}
        above = stage.run("explain", "orders.placed:0", "-o", "jsonl", log=log).rows[-1]
        assert (above["kind"], above["base_offset"], above["next_offset"]) == ("above-high-watermark", CHECKPOINTED, COMMITTED)
        assert f"{CHECKPOINTED} (the broker's checkpoint of " in above["reason"]
        assert {row["kind"] for row in stage.run("explain", "orders.placed:0", "-o", "jsonl", *asking, log=log).rows} == {
            "no-agent",
            "active",
        }
        assert stage.run("archive", log=log).code == 0
        beyond = stage.run("explain", f"orders.placed:0@{COMMITTED}", "-o", "jsonl", *asking, log=log).rows[0]
        assert f"{COMMITTED} (the broker's answer of " in beyond["reason"]


def test_an_agent_asks_the_broker_for_whoever_wants_to_know(stage: Stage) -> None:
    log = stage.log("pantry-live")
    checkpointed(log)
    with (
        leader_of(log) as broker,
        running(stage, log, "--set", f"log.bootstrap_servers={broker.address}", "--set", "archival.seal_timeout=1h") as agent,
    ):
        agent.wait_for("gateway_started")
        while watermarks(stage.run("status", "orders.placed:0", "-o", "jsonl", log=log)) != {PLACED: (COMMITTED, "broker")}:
            pass  # a loaded machine may take long for its first request
        broker.close()
        last = stage.run("status", "orders.placed:0", "-o", "jsonl", log=log)
        assert watermarks(last) == {PLACED: (COMMITTED, "broker")}  # as it said when it last answered
        later = stage.run("status", "orders.placed:0", "-o", "jsonl", log=log)
        assert later.rows[0]["high_watermark_age_s"] > last.rows[0]["high_watermark_age_s"]


def test_a_broker_that_hangs_is_not_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "SILENCE_S", 0.2)
    log, answer = stage.log("pantry-live"), threading.Event()
    checkpointed(log)
    with leader_of(log) as broker:

        def hang(_: Mapping[str, Any]) -> None:
            answer.wait(20)

        broker.answers[BrokerApi.LIST_OFFSETS] = hang
        ran = stage.run("status", "orders.placed:0", "-o", "jsonl", "--set", f"log.bootstrap_servers={broker.address}", log=log)
        answer.set()
    assert watermarks(ran) == {PLACED: (CHECKPOINTED, "checkpoint")}
