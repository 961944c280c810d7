"""`headwater pause` and `resume`, as a user runs them: with an agent that obeys, and without."""

from collections.abc import Iterator
from typing import Any

import pytest

from headwater.admin_port import Vitals, open_admin_port
from headwater.agent_api import AgentApi, NoAgent
from headwater.config import load
from headwater.session import open_session
from headwater.wiring import open_logs
from headwater_core.partition import TopicPartition
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import running

TOPIC = "orders.placed"


def paused(stage: Stage, *arguments: str) -> list[Any]:
    ran = stage.run(*arguments, "-o", "jsonl")
    assert ran.code == 0, ran.err
    return [row["selection"] for row in ran.rows]


def test_without_an_agent_it_holds_for_every_later_pass(stage: Stage) -> None:
    log = stage.log("pantry")
    stage.bucket.mkdir()
    assert paused(stage, "pause", TOPIC, "--dry-run") == [TOPIC]
    assert paused(stage, "pause", TOPIC) == [TOPIC]
    assert stage.run("flush", log=log).code == 0
    rows = {(row["topic"], row["state"]) for row in stage.run("status", "-o", "jsonl", log=log).rows}
    assert (TOPIC, "paused") in rows
    assert {state for topic, state in rows if topic != TOPIC} == {"archived"}
    why = stage.run("explain", f"{TOPIC}:0", "-o", "jsonl", log=log).rows[0]
    assert why["kind"] == "paused"
    assert why["reason"].startswith("paused since 20")
    assert stage.run("resume", f"{TOPIC}:0", log=log).code == 2
    assert paused(stage, "resume", TOPIC) == []
    assert stage.run("flush", log=log).code == 0
    assert {row["state"] for row in stage.run("status", "-o", "jsonl", log=log).rows} == {"archived"}


def test_an_agent_obeys_at_once_and_after_a_restart(stage: Stage) -> None:
    log = stage.log("pantry")
    stage.bucket.mkdir()
    assert paused(stage, "pause", "--all") == ["everything"]
    with running(stage, log, "--set", "archival.seal_timeout=0s") as agent:
        agent.wait_for("topics_paused", selection="everything")
        assert paused(stage, "resume", "--all") == []
        agent.wait_for("topics_resumed")
        agent.wait_for("run_archived", partition=f"{TOPIC}:0")
        assert paused(stage, "pause", TOPIC) == [TOPIC]
        agent.wait_for("topics_paused", selection=TOPIC)
        assert agent.stop() == 0
    with running(stage, log) as agent:
        agent.wait_for("topics_paused", selection=TOPIC)
        status = stage.run("status", f"{TOPIC}:0", "-o", "jsonl", log=log).rows[0]
        assert status["state"] == "paused", (status["reason"], status["age_s"])
    warnings = {event["event"] for event in agent.events if event.get("level") in ("warning", "error")}
    assert warnings <= {"retention_near"}, "an old log, which its broker would have deleted by now"


def test_what_was_changed_before_an_agent_listened_is_read_by_it_after_that(stage: Stage) -> None:
    stage.bucket.mkdir()
    assert paused(stage, "pause", "--all") == ["everything"]
    flags = {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}", "admin.listen": ""}
    config = load(file=None, environ={}, flags=flags)
    with open_session(config) as session, open_logs(config, session.bucket) as logs:
        assert session.pauses.now().of(TopicPartition(TOPIC, 0)) is not None
        assert paused(stage, "resume", "--all") == [], "nothing listens yet"
        with open_admin_port(session, logs, Vitals.of(session, logs)):
            session.pauses.look(0)
            assert session.pauses.now().of(TopicPartition(TOPIC, 0)) is None


def test_an_agent_that_began_to_listen_while_the_bucket_was_changed_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stage.log("pantry")
    stage.bucket.mkdir()
    assert paused(stage, "pause", "--all") == ["everything"]
    with running(stage, log) as agent:
        agent.wait_for("gateway_started")
        agent.wait_for("topics_paused")
        real, missed = AgentApi.rows, list[str]()

        def rows(self: AgentApi, path: str, *arguments: Any, **options: Any) -> Iterator[dict[str, Any]]:
            if not missed:
                missed.append(path)
                raise NoAgent("not yet")
            return real(self, path, *arguments, **options)

        monkeypatch.setattr(AgentApi, "rows", rows)
        assert paused(stage, "resume", "--all") == []
        agent.wait_for("operation_ended", verb="resume")
        agent.wait_for("topics_resumed")
    assert missed == ["/v1/resume"]


def test_under_manual_an_agent_archives_what_a_command_requests_and_no_more(stage: Stage) -> None:
    """By topic or pattern; and `off` not even that."""
    log = stage.log("pantry")
    (stage.root / "headwater.toml").write_text('[topics."orders.*"]\narchive = "manual"\n[topics."stock.*"]\narchive = "off"\n')
    settings = ("--config", str(stage.root / "headwater.toml"))
    with running(stage, log, *settings) as agent:
        agent.wait_for("run_archived")

        def first() -> dict[str, Any]:
            return stage.run("status", f"{TOPIC}:0", "-o", "jsonl", *settings, log=log).rows[0]

        assert (first()["last_offset"], first()["reason"]) == (None, "archive = manual")
        why = stage.run("explain", f"{TOPIC}:0", "-o", "jsonl", *settings, log=log).rows[0]
        assert (why["kind"], why["reason"]) == ("excluded", "archive = manual")
        assert stage.run("archive", f"{TOPIC}:0", "--before", "10", *settings, log=log).code == 0
        before = first()["last_offset"]
        assert before is None or before < 10
        assert stage.run("flush", TOPIC, *settings, log=log).code == 0
        assert first()["last_offset"] == first()["high_watermark"] - 1


def test_an_excluded_topic_has_no_lag_with_an_agent_and_without(stage: Stage) -> None:
    """Set in the file for one topic, by command for all others, taken back; not even a pause makes it late."""
    log = stage.log("pantry")
    stage.bucket.mkdir()
    (stage.root / "headwater.toml").write_text(f'[topics."{TOPIC}"]\narchive = "off"\n')
    settings = ("--config", str(stage.root / "headwater.toml"))

    def states(*arguments: str) -> dict[str, str]:
        ran = stage.run("status", *arguments, "-o", "jsonl", *settings, log=log)
        assert all(row["lag_s"] is None and row["lag_bytes"] is None for row in ran.rows if row["state"] == "excluded")
        return {row["topic"]: row["state"] for row in ran.rows}

    alone = states()
    assert alone[TOPIC] == "excluded" != alone["stock.levels"]
    assert stage.run("topics", "set", "*", "archive=off", *settings, log=log).code == 0
    assert set(states().values()) == {"excluded"}
    assert stage.run("status", "--max-lag", "1s", *settings, log=log).code == 10
    with running(stage, log, *settings) as agent:
        agent.wait_for("gateway_started")
        assert set(states().values()) == {"excluded"}
        assert stage.run("status", "--max-lag", "1s", *settings, log=log).code == 10
        paused(stage, "pause", "--all")
        assert set(states().values()) == {"excluded"}
        paused(stage, "resume", "--all")
        assert stage.run("topics", "set", "*", "archive=", *settings, log=log).code == 0
        agent.wait_for("run_archived")
        after = states()
    assert after[TOPIC] == "excluded" != after["stock.levels"]


def test_what_to_pause_must_be_said(stage: Stage) -> None:
    for wrong in (["pause"], ["resume"], ["pause", TOPIC, "--all"], ["pause", "no topic"]):
        assert stage.run(*wrong).code == 2, wrong


@pytest.mark.parametrize(
    "command", [("pause", "orders.palced"), ("resume", "orders.placed:9"), ("topics", "set", "orders.palced", "archive=off")]
)
def test_a_misspelt_name_is_not_passed_over_in_silence(stage: Stage, command: tuple[str, ...]) -> None:
    log = stage.log("pantry")
    stage.bucket.mkdir()
    ran = stage.run(*command, log=log)
    assert ran.code == 0, "it may be created later"
    assert "is neither in the log directories nor in the archive; this applies once it is created" in ran.err
    assert "note:" not in stage.run("pause", TOPIC, log=log).err
