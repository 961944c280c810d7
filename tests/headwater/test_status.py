"""`headwater status` while the store answers, hangs or is away; with an agent to ask, and without."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headwater import survey
from headwater.wiring import Bucket, load_head
from headwater_core.partition import PartitionId
from manifests.head import Head
from tests.headwater.conftest import Ran, Stage
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
    "store_try_ms",
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
    assert silent.code == 5
    assert "no answer" in silent.err
    assert numbers(silent) == numbers(healthy)
    assert {row["state"] for row in silent.rows} == {"archived"}
    assert all(row["known_age_s"] >= 0 and "no answer" in row["reason"] for row in silent.rows)


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
