"""`headwater explain`, as a user runs it: with an agent to ask, and without."""

import json
from pathlib import Path
from typing import Any

from tests.headwater.admin.test_admin_server import eventually
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import running

TOPIC = "orders.placed:0"


def local_bytes(log: Path) -> int:
    return sum(path.stat().st_size for path in (log / "orders.placed-0").glob("*.log"))


def explained(stage: Stage, *arguments: str, log: Path) -> list[dict[str, Any]]:
    ran = stage.run("explain", *arguments, "-o", "jsonl", log=log)
    assert ran.code == 0, ran.err
    return ran.rows


def test_without_an_agent_nothing_is_archived_by_itself(stage: Stage) -> None:
    log = stage.log("pantry")
    before = explained(stage, TOPIC, log=log)
    assert {row["kind"] for row in before} <= {"no-agent", "active"}
    assert sum(row["size_bytes"] for row in before) == local_bytes(log)
    assert stage.run("flush", log=log).code == 0
    assert explained(stage, TOPIC, log=log) == []
    table = stage.run("explain", TOPIC, log=log)
    assert "every local byte is archived" in table.err


def test_an_agent_says_what_it_waits_for_and_where_an_offset_is_read(stage: Stage) -> None:
    log = stage.log("pantry")
    with running(stage, log, "--set", "archival.seal_timeout=1h") as agent:
        agent.wait_for("partition_claimed", partition=TOPIC)
        agent.wait_for("run_archived", partition=TOPIC)
        while (rows := explained(stage, TOPIC, log=log)) and {row["kind"] for row in rows} != {"seal-timeout"}:
            pass
        tail = rows[0]
        assert tail["until_ms"] - tail["since_ms"] == 3_600_000
        status = stage.run("status", TOPIC, "-o", "jsonl", log=log).rows[0]
        assert (tail["base_offset"], tail["next_offset"], tail["size_bytes"]) == (
            status["last_offset"] + 1,
            status["high_watermark"],
            status["lag_bytes"],
        )
        where = explained(stage, f"{TOPIC}@0", log=log)[0]
        assert (where["readable"], where["cached"], where["chunk"]) == (True, False, 0)
        assert where["tiers"] == ["local", "archive"]
        assert (stage.bucket / where["key"]).exists()
        assert (stage.bucket / where["listed_in"]).exists()
        assert Path(where["segment"]).exists()
        beyond = explained(stage, f"{TOPIC}@{status['high_watermark']}", log=log)[0]
        assert not beyond["readable"]
        assert "high watermark" in beyond["reason"]


def test_a_cached_chunk_is_told(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("flush", log=log).code == 0
    assert stage.run("read", TOPIC, "--count", "1", "--set", "hydration.read_priority=offloaded-only").code == 0
    away = stage.run("explain", f"{TOPIC}@0", "-o", "json")
    row = json.loads(away.out)[0]
    assert (row["tiers"], row["cached"], row["segment"]) == (["archive"], True, "")
    assert stage.run("explain", f"{TOPIC}@0").code == 0


def test_what_is_asked_must_name_a_partition(stage: Stage) -> None:
    log = stage.log("pantry")
    for wrong in ("orders.placed", f"{TOPIC}@", f"{TOPIC}@-1", f"{TOPIC}@now"):
        assert stage.run("explain", wrong, log=log).code == 2, wrong
    assert stage.run("explain", "orders.placed:7", log=log).code == 6


def test_archiving_that_is_switched_off_is_the_reason(stage: Stage) -> None:
    log = stage.log("pantry")
    rows = explained(stage, TOPIC, "--set", "archival.archive=off", log=log)
    assert {(row["kind"], row["reason"]) for row in rows} == {("excluded", "archive = off")}


def test_a_running_agent_says_what_is_in_an_open_stream(stage: Stage) -> None:
    log = stage.log("pantry")
    with running(stage, log, "--set", "archival.offload=streaming") as agent:
        agent.wait_for("partition_claimed", partition=TOPIC)

        def rows() -> list[dict[str, Any]]:
            return [row for row in explained(stage, TOPIC, log=log) if row["kind"] == "open-stream"]

        assert eventually(lambda: bool(rows()))
        (row,) = rows()
        assert row["until_ms"] - row["since_ms"] == 600_000
        assert f"an open stream of {row['size_bytes']} bytes" in row["reason"]

        def status() -> dict[str, Any]:
            return stage.run("status", TOPIC, "-o", "jsonl", log=log).rows[0]

        assert eventually(lambda: status()["state"] == "waiting")
        assert (status()["reason"], status()["lag_bytes"]) == (row["reason"], row["size_bytes"])
        assert agent.stop() == 0
