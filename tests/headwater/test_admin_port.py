"""The admin port of an agent that runs."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from headwater.admin import admin_server
from headwater.admin.status_page import StatusPage
from headwater.admin_port import Vitals, open_admin_port, outages
from headwater.agent_api import AgentApi
from headwater.config import Config, load
from headwater.replay import consume
from headwater.session import open_session
from headwater.wiring import open_logs
from headwater_core.errors import UsageError
from headwater_core.objectstore.store_meter import StoreHealth
from headwater_core.segments.log_dirs import LogDirs
from tests.headwater.admin.client import Address, call
from tests.headwater.admin.test_admin_server import eventually
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import Agent, running
from tests.headwater.test_status import stopped
from tests.s3server import S3Server

PORT = ("--set", "admin.listen=127.0.0.1:0")
HANGS_S = 4.0  # some listings of the directories
ANSWER_S = 2.0  # for two answers, on a machine that does other things


def address_of(agent: Agent) -> Address:
    host, _, port = str(agent.wait_for("admin_started")["listen"]).rpartition(":")
    return host, int(port)


def test_an_agent_is_ready_when_all_that_it_was_started_for_works(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log, *PORT, "--set", "archival.seal_timeout=0s") as agent:
        address = address_of(agent)
        assert eventually(lambda: call(address, "/readyz").status == 200)
        assert call(address, "/livez").text == "ok"
        names = [line.partition(" ")[0] for line in call(address, "/readyz?verbose").text.splitlines()]
        assert names == ["[+]gateway", "[+]store", "[+]log_directories", "readyz"]
        log.rename(aside := log.with_name("aside"))
        assert eventually(lambda: "[-]log_directories failed: " in call(address, "/readyz").text)
        assert call(address, "/livez").status == 200
        aside.rename(log)
        assert eventually(lambda: call(address, "/readyz").status == 200)
        assert agent.stop() == 0


def test_it_can_be_switched_off_and_a_taken_one_is_an_error_in_words(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log, *PORT) as agent:
        host, port = address_of(agent)
        agent.wait_for("gateway_started")
        other = stage.run_bare(
            "agent", "--data-dir", str(stage.root / "other"), "--store", f"file://{stage.bucket}", "--log-dir", str(log),
            "--set", "gateway.listen=127.0.0.1:0", "--set", f"admin.listen={host}:{port}",
        )  # fmt: skip
        assert other.code == UsageError.exit_code
        assert f"admin cannot listen on {host}:{port}" in other.err
        assert agent.stop() == 0
    with running(stage, log) as agent:
        agent.wait_for("gateway_started")
        assert agent.stop() == 0
        assert "admin_started" not in {each["event"] for each in agent.events}


def test_an_address_that_nobody_has_set_keeps_no_agent_from_archiving(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update, on a machine with two agents. It is taken as soon as it is free."""
    stage.bucket.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        told = load(None, {}, places(stage) | {"admin.listen": address})
        with pytest.raises(UsageError, match="admin cannot listen"), opened(told):
            pass
        by_default = replace(load(None, {}, places(stage) | {"admin.partition_metrics": "true"}), admin=told.admin)
        monkeypatch.setattr(admin_server, "RELOAD_S", 0.05)
        with capture_logs() as logs, opened(by_default):
            assert [each["event"] for each in logs if each["event"].startswith("admin")] == ["admin_not_started"]
            taken.close()
            assert eventually(lambda: logs[-1]["event"] == "admin_started")
            assert call((address.partition(":")[0], int(address.partition(":")[2])), "/livez").status == 200


def places(stage: Stage) -> dict[str, object]:
    return {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}"}


@contextmanager
def opened(config: Config) -> Iterator[None]:
    with (
        open_session(config) as session,
        open_logs(config, session.bucket) as logs,
        open_admin_port(session, logs, Vitals.of(session, logs)),
    ):
        yield


def test_other_machines_need_a_token(stage: Stage) -> None:
    refused = stage.run_bare("config", "check", "--set", "admin.listen=0.0.0.0:9293")
    assert refused.code == UsageError.exit_code
    assert "set admin.token_file" in refused.err


def test_metrics_say_when_everything_is_archived(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log, *PORT, "--set", "archival.seal_timeout=0s", "--set", "log.owned=true") as agent:
        address = address_of(agent)
        partitions = len(LogDirs([log]).listing().partitions)
        assert eventually(lambda: metrics(address).get('headwater_partitions{state="archived"}') == partitions)
        assert eventually(lambda: metrics(address)["headwater_archive_unknown_lag_partitions"] == 0)
        found = metrics(address)
        assert found["headwater_archive_worst_lag_seconds"] == 0
        assert found['headwater_archive_lag_bytes{topic="orders.in"}'] == 0
        assert found["headwater_last_commit_timestamp_seconds"] > 1_700_000_000
        assert found['headwater_store_call_seconds_count{operation="get"}'] > 0
        assert found["headwater_store_failing_seconds"] == 0
        assert found['headwater_check_ok{check="store"}'] == 1
        assert found["headwater_defects_total"] == 0
        assert eventually(lambda: metrics(address)["headwater_uploads_in_flight"] == 0)
        assert found["process_resident_memory_bytes"] > 10 << 20
        list(consume(agent.wait_for("gateway_started")["listen"], committed=False, keep=lambda topic: topic == "orders.in"))
        assert eventually(lambda: metrics(address)['headwater_gateway_request_seconds_count{api="fetch"}'] > 0)
        assert agent.stop() == 0


def metrics(address: Address) -> dict[str, float]:
    """Name and labels, as they are served: value."""
    lines = [line for line in call(address, "/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_what_a_scrub_found_outlives_the_agent_and_is_settled_only_by_what_reads_it_again(stage: Stage) -> None:
    options = (*PORT, "--set", "archival.seal_timeout=0s", "--set", "log.owned=true", "--set", "archival.archive=manual")
    log = stage.log("kitchen")
    with running(stage, log, *options) as agent:
        address = address_of(agent)
        agent.wait_for("gateway_started")
        assert stage.run("flush", log=log).code == 0
        damaged = next(stage.bucket.rglob("data/**/*.log"))
        content = damaged.read_bytes()
        damaged.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
        assert stage.run("verify", "--data").code == 4
        assert eventually(lambda: metrics(address).get('headwater_scrub_last_objects{result="damaged"}') == 1)
        before = scrub_metrics(address)
        assert agent.stop() == 0
    damaged.write_bytes(content)
    with running(stage, log, *options) as agent:
        address = address_of(agent)
        agent.wait_for("gateway_started")
        assert scrub_metrics(address) == before
        assert stage.run("verify").code == stage.run("jobs", "scrub", "--sample", "50%", "--grace", "1h").code == 0
        rows = AgentApi(stage.data_dir).get("/v1/operations")["operations"]
        assert [row["results"].get("shares") for row in rows if row["verb"] in ("verify", "scrub")] == [2, None]
        assert scrub_metrics(address) == before
        assert stage.run("jobs", "scrub").code == 0
        assert eventually(lambda: scrub_metrics(address)['headwater_scrub_last_objects{result="damaged"}'] == 0)
        assert agent.stop() == 0


def scrub_metrics(address: Address) -> dict[str, float]:
    return {name: value for name, value in metrics(address).items() if name.startswith("headwater_scrub_")}


SHARED = {"topic", "partition", "topic_id", "archive_start", "local_start", "last_offset", "high_watermark", "lag_bytes", "lag_s"}
SHARED |= {"archived_bytes", "objects", "state"}


def status_rows(address: Address, query: str = "") -> dict[tuple[str, int], dict[str, Any]]:
    page = msgspec.json.decode(call(address, f"/v1/status?partitions=true{query}").body, type=StatusPage, strict=True)
    assert not isinstance(page.partitions, msgspec.UnsetType)
    return {(row.topic, row.partition): msgspec.structs.asdict(row) for row in page.partitions}


def test_at_rest_the_status_is_that_of_the_command_and_a_silent_store_changes_ages_alone(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log, *PORT, "--set", "archival.seal_timeout=0s", "--set", "log.owned=true") as agent:
        address = address_of(agent)
        agent.wait_for("gateway_started")
        count = len(LogDirs([log]).listing().partitions)
        assert eventually(lambda: len(status_rows(address, "&state=archived")) == count)
        told = {(row["topic"], row["partition"]): row for row in stage.run("status", "-p", "-o", "jsonl", log=log).rows}
        found = status_rows(address)
        assert {place: {name: row[name] for name in SHARED} for place, row in found.items()} == {
            place: {name: row[name] for name in SHARED} for place, row in told.items()
        }
        whole = call(address, "/v1/status").json["whole"]
        assert whole["states"] == {"archived": count}
        assert whole["archived_bytes"] == sum(row["archived_bytes"] for row in told.values())
        stage.bucket.rename(aside := stage.root / "aside")
        silent = status_rows(address)
        assert {place: row["last_offset"] for place, row in silent.items()} == {place: row["last_offset"] for place, row in told.items()}
        aside.rename(stage.bucket)
        assert agent.stop() == 0


def without_ages(found: Any) -> Any:
    """What was answered, but for how old it is and when that was."""
    if isinstance(found, dict):
        return {name: without_ages(value) for name, value in found.items() if not name.endswith("age_s")}
    return [without_ages(each) for each in found] if isinstance(found, list) else found


def differences(before: dict[str, Any], during: dict[str, Any]) -> list[tuple[str, str, Any, Any]]:
    """place, field, its value before and since."""
    assert before.keys() == during.keys()
    return [
        (place, name, before[place].get(name), during[place].get(name))
        for place in before
        for name in before[place].keys() | during[place].keys()
        if before[place].get(name) != during[place].get(name)
    ]


def test_a_store_that_hangs_changes_nothing_in_the_status_but_the_ages(stage: Stage, s3_environ: S3Server) -> None:
    """Though a partition that appears meanwhile waits for it, and the agent lists its directories again and again."""
    log = stage.log("kitchen")
    (log / "orders.in-0").rename(late := stage.root / "late")
    bucket = ("--store", f"s3://{s3_environ.bucket()}/archive", "--endpoint-url", s3_environ.endpoint_url)
    settings = ("--set", "archival.seal_timeout=0s", "--set", "log.owned=true", "--set", "archival.release=false")
    with running(stage, log, *PORT, *bucket, *settings) as agent:
        address = address_of(agent)
        agent.wait_for("gateway_started")
        count = len(LogDirs([log]).listing().partitions)
        assert eventually(lambda: len(status_rows(address, "&state=archived")) == count)

        def shown() -> dict[str, Any]:
            """Without the topic of the late one, which changes."""
            pages = {kind: call(address, f"/v1/status?partitions={kind}&limit=2000").json for kind in ("true", "false")}
            rows = [row for page in pages.values() for row in (*page.get("topics", ()), *page.get("partitions", ()))]
            return {f"{row['topic']}:{row.get('partition')}": row for row in rows if row["topic"] != "orders.in"}

        before = shown()
        with stopped(s3_environ):
            late.rename(log / "orders.in-0")
            assert eventually(lambda: metrics(address)["headwater_uploads_in_flight"] == 1)
            began_s = time.monotonic()
            while (waited_s := time.monotonic() - began_s) < HANGS_S:
                asked_s = time.monotonic()
                during = shown()
                assert time.monotonic() - asked_s < ANSWER_S
                assert differences(without_ages(before), without_ages(during)) == []
                time.sleep(0.2)
            ages = {place: row["known_age_s"] - before[place]["known_age_s"] for place, row in during.items() if "known_age_s" in row}
            assert min(ages.values()) > 0.8 * waited_s
            assert ("orders.in", 0) in status_rows(address)
            assert len(status_rows(address, "&state=archived")) == count
            assert metrics(address)["headwater_uploads_in_flight"] == 1
        assert eventually(lambda: len(status_rows(address, "&state=archived")) == count + 1)


def test_pages_filters_and_the_document_are_served_and_wrong_parameters_refused(stage: Stage) -> None:
    with running(stage, stage.log("kitchen"), *PORT) as agent:
        address = address_of(agent)
        assert eventually(lambda: call(address, "/v1/status").json["whole"]["partitions"] > 2)
        first = call(address, "/v1/status?partitions=true&limit=1").json
        second = call(address, f"/v1/status?partitions=true&limit=1&after={first['next_after']}").json
        assert len(first["partitions"]) == len(second["partitions"]) == 1
        assert first["partitions"] != second["partitions"]
        for query in (
            "limit=0",
            "limit=9999",
            "limit=x",
            "state=absent",
            "topic=a/b",
            "lag_above_s=-1",
            "after=a:b",
            "partitions=1",
            "page=2",
        ):
            assert call(address, f"/v1/status?{query}").problem == "bad_request", query
        assert call(address, "/v1/openapi.json").json["paths"].keys() >= {"/v1/status", "/metrics"}
        assert agent.stop() == 0


def test_only_what_has_failed_for_a_while_is_an_outage() -> None:
    healthy, failing = StoreHealth(1.0, 0.0, ""), StoreHealth(1.0, 7.0, "reset")
    assert outages(healthy, None) == outages(StoreHealth(1.0, 4.9, "reset"), (1.0, "refused")) == []
    found = outages(failing, (9.0, "refused"))
    assert [(each.what, each.reason) for each in found] == [("store", "reset"), ("broker", "refused")]
    assert found[0].since_ms - found[1].since_ms == 2000
