"""Where the rows of `headwater status` come from: the agent's pages, and the log directories and the bucket only without them."""

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headwater import status_answer as source
from headwater.agent_api import AgentApi, NoAgent
from headwater.commands.status import status
from headwater.config import load
from headwater.status_answer import KEYS, StatusAnswer, find_status
from headwater_core.errors import HeadwaterError, NotFound, Partial, TransientError, Unauthorised
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import running

SURVEYED = [{"topic": "from", "partition": 0, "state": "due"}]


def a_row(topic: str, partition: int) -> dict[str, Any]:
    return dict.fromkeys(KEYS) | {"topic": topic, "partition": partition}


def a_page(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"listed": True, "store_failing_s": 0.0, "damaged_topics": {}, "partitions": list(rows)} | more


class Agent:
    """What it answers, page by page; or what asking it raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pages: object) -> None:
        self.pages, self.asked = list(pages), list[Mapping[str, Any]]()
        self.limits_s: list[float] = []
        monkeypatch.setattr(AgentApi, "get", self._get)
        monkeypatch.setattr(source, "_surveyed", lambda config, selection: iter(SURVEYED))

    def _get(self, path: str, query: Mapping[str, Any], *, timeout_s: float) -> object:
        assert path == "/v1/status"
        assert 0 < timeout_s <= source.AGENT_S
        self.limits_s.append(timeout_s)
        self.asked.append(query)
        page = self.pages.pop(0)
        if isinstance(page, Exception):
            raise page
        return page


def asked(selection: str | None = None) -> StatusAnswer:
    return find_status(load(None, {}, {"log.dirs": ["/var/lib/kafka"]}), selection)


def test_all_pages_of_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(monkeypatch, a_page(a_row("orders", 3), next_after="orders:3"), a_page(a_row("orders", 3)))
    assert [row["topic"] for row in asked("orders:3").rows] == ["orders", "orders"]
    first, second = agent.asked
    assert (first["topic"], first["partition"], first["wait_s"]) == ("orders", 3, source.WAIT_S)
    assert (second["after"], second["topic"]) == ("orders:3", "orders")
    assert "wait_s" not in second
    agent.pages = [a_page(a_row("orders", 3))]
    asked()
    assert not {"topic", "partition"} & agent.asked[-1].keys()


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (NoAgent("no agent is running"), "no agent is running"),
        (TransientError("the agent stopped answering: timed out"), "timed out"),
        (Unauthorised("not allowed to connect"), "not allowed"),
        (HeadwaterError("the agent is of another version"), "another version"),
        ({"partitions": []}, "another version"),
        (a_page({"topic": "orders"}), "another version"),
        (["what?"], "another version"),
        (a_page(listed=False), "has not listed"),
        (a_page(listed=False, has_log_directories=False), "the agent has no log directories"),
        (a_page(), "knows nothing of any partition"),
    ],
)
def test_without_the_agents_answer_it_is_looked_elsewhere_and_said_why(monkeypatch: pytest.MonkeyPatch, page: object, why: str) -> None:
    Agent(monkeypatch, page)
    answer = asked()
    assert answer.rows == SURVEYED
    assert why in answer.note
    assert answer.note.endswith("this is from the log directories and the bucket")


def test_an_agent_that_ends_between_two_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    Agent(monkeypatch, a_page(a_row("orders", 3), next_after="orders:3"), NoAgent("it is gone"))
    assert asked().rows == SURVEYED


def test_each_page_is_waited_for_and_not_all_of_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred thousand partitions an agent that answers at once has fifty pages."""
    pages = [a_page(a_row("orders", number), next_after=f"orders:{number}") for number in range(49)]
    agent = Agent(monkeypatch, *pages, a_page(a_row("orders", 49)))
    assert [row["partition"] for row in asked().rows] == list(range(50))
    assert agent.limits_s == [source.AGENT_S] * 50
    agent.pages = [*pages[:30], TransientError("the agent stopped answering: timed out")]
    answer = asked()
    assert answer.rows == SURVEYED
    assert "timed out" in answer.note


def test_what_the_agent_knows_of_a_silent_store_and_of_damaged_topics_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [a_row("orders", 3)]
    agent = Agent(monkeypatch, a_page(*rows, store_failing_s=source.STORE_FAILING_S))
    answer = asked()
    assert (answer.rows, answer.note, type(answer.failure)) == (rows, "", TransientError)
    damaged = a_page(*rows, store_failing_s=1.0, damaged_topics={"bills": "cut"})
    agent.pages = [damaged, damaged]
    answer = asked()
    assert isinstance(answer.failure, Partial)
    assert "bills: cut" in str(answer.failure)
    assert asked("orders").failure is None


def test_what_is_away_comes_first_with_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    store = {"what": "store", "since_ms": 0, "reason": "connection refused"}
    page = a_page(a_row("orders", 3), at_ms=62_000, outages=[store, {"what": "broker", "since_ms": 1000, "reason": "reset"}])
    agent = Agent(monkeypatch, page)
    assert [outage.split(";")[0] for outage in asked().outages] == [
        "object store away since 1970-01-01T00:00:00Z (1 m 2 s): connection refused",
        "broker away since 1970-01-01T00:00:01Z (1 m 1 s): reset",
    ]
    agent.pages = [page]
    result = CliRunner().invoke(status, ["--log-dir", "/var/lib/kafka"])
    assert result.stderr.startswith("object store away since")
    agent.pages = [a_page(a_row("orders", 3))]
    assert asked().outages == ()


def test_a_disk_that_fills_while_releases_wait_names_the_group_with_most(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [("orders", "bills", 3 << 20), ("orders", "audit", 1 << 20), ("bills", "bills", 1 << 20), ("soup", "", 0)]
    rows = [
        a_row(topic, partition) | {"release_group": group, "release_blocked_bytes": size_bytes}
        for partition, (topic, group, size_bytes) in enumerate(waiting)
    ]
    agent = Agent(monkeypatch, a_page(*rows, disk_full_in_s=7200))
    assert asked().outages == (
        "a disk of the log directories is full in 2 h at the pace of the last hour: 5.0 MiB wait for groups to read them, "
        "4.0 MiB of these for bills",
    )
    agent.pages = [a_page(*rows), a_page(rows[-1], disk_full_in_s=7200)]
    assert asked().outages == asked().outages == ()


def test_what_is_nowhere_is_not_found(stage: Stage) -> None:
    with running(stage, stage.log("kitchen")) as agent:
        agent.wait_for("gateway_started")
        with pytest.raises(NotFound):
            find_status(load(None, {}, {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}"}), "absent")
        assert stage.run("status", "absent").code == 6


def test_an_agent_without_log_directories_is_said_to_have_none(stage: Stage) -> None:
    """It serves what is archived, and knows the lag of nothing."""
    assert stage.run("archive", "--set", "archival.seal_timeout=0s", log=stage.log("kitchen")).code == 0
    with running(stage, None) as agent:
        agent.wait_for("gateway_started")
        ran = stage.run("status", "-o", "jsonl")
        assert ran.err.strip() == "the agent has no log directories, so it keeps no status of partitions: this is from the bucket"
        assert {row["state"] for row in ran.rows} == {"archive-only"}
        page = AgentApi(stage.data_dir).get("/v1/status")
    assert (page["has_log_directories"], page["listed"], page["topics"]) == (False, False, [])


def test_an_agent_that_hangs_is_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "AGENT_S", 0.3)
    log = stage.log("kitchen")
    with running(stage, log) as agent:
        agent.wait_for("gateway_started")
        os.kill(agent.process.pid, signal.SIGSTOP)
        try:
            ran = stage.run("status", "-o", "jsonl", log=log)
        finally:
            os.kill(agent.process.pid, signal.SIGCONT)
    assert ran.code == 0
    assert "stopped answering: timed out: this is from the log directories and the bucket" in " ".join(ran.err.split())
    assert all(list(row) == list(KEYS) for row in ran.rows)


def test_a_pass_and_then_status_shows_what_the_pass_did(stage: Stage) -> None:
    """No sleep in between: the agent's looks are waited for."""
    log = stage.log("kitchen")
    with running(stage, log, "--set", "archival.archive=manual", "--set", "log.owned=true") as agent:
        agent.wait_for("gateway_started")
        for topic in sorted({row["topic"] for row in stage.run("status", "-o", "jsonl", log=log).rows})[:3]:
            done = {(row["topic"], row["partition"]): row for row in stage.run("flush", topic, "-o", "jsonl", log=log).rows}
            seen = stage.run("status", topic, "-o", "jsonl", log=log)
            assert seen.err == ""
            assert {(row["topic"], row["partition"]): row["last_offset"] for row in seen.rows} == {
                place: row["last_offset"] if row["last_offset"] != -1 else None for place, row in done.items()
            }
            assert {row["state"] for row in seen.rows} <= {"archived", "waiting"}


def test_rows_have_the_same_fields_with_an_agent_and_without(stage: Stage, tmp_path: Path) -> None:
    log = stage.log("kitchen")
    alone = stage.run("status", "-o", "jsonl", log=log)
    assert "no agent is running" in alone.err
    with running(stage, log) as agent:
        agent.wait_for("gateway_started")
        answered = stage.run("status", "-o", "jsonl", log=log)
        agent.wait_for("cluster_snapshot_taken")
        shown, of_one = stage.run("status", log=log), stage.run("status", "menu", log=log)
    assert answered.err == ""
    assert re.search(r"^snapshot 1 of the cluster's metadata is .* old, and nothing is newer$", shown.err, re.MULTILINE)
    assert "snapshot 1" not in of_one.err
    assert [list(row) for row in answered.rows] == [list(row) for row in alone.rows]
