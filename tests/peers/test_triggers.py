"""When segments go beside a live broker: by time, by size, by request, and what becomes of that when its retention is changed."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub re-exports nothing
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from headwater_core.segments.log_dirs import LogDirs
from tests.headwater.admin.client import Address, Answer, call
from tests.peers.agent import ROOT, Agent, Headwater
from tests.peers.kafka import KafkaBroker, free_port, produce

pytestmark = [pytest.mark.peer, pytest.mark.slow]

AGED, SIZED, ASKED, SHRINKING, BY_BROKER = "aged.events", "sized.events", "asked.events", "shrinking.events", "plain.events"
STREAMED = "streamed.events"
TOPICS = (AGED, SIZED, ASKED, SHRINKING, BY_BROKER, STREAMED)
HOUR_MS = 3_600_000
AFTER_S, EXCEEDS = 5, 9000
TOKEN = "a-token-of-this-test"
SETTINGS = f"""
[topics."{AGED}"]
offload_after = "{AFTER_S}s"
[topics."{SIZED}"]
offload_when_local_exceeds = {EXCEEDS}
[topics."{SHRINKING}"]
offloadTimeInMinutes = 60
[topics."{BY_BROKER}"]
offload_after = "1h"
[topics."{STREAMED}"]
offload = "streaming"
offload_when_local_exceeds = {EXCEEDS}
"""


class Ran(subprocess.CompletedProcess[str]):
    @property
    def rows(self) -> Any:
        return json.loads(self.stdout)


def verb(headwater: Headwater, *arguments: str) -> Ran:
    command = [sys.executable, "-c", "from headwater.cli import main; main()", "--config", str(headwater.file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    return Ran(done.args, done.returncode, done.stdout, done.stderr)


def alter(broker: KafkaBroker, kind: Any, name: str, key: str, value: int) -> None:
    """As kafka-configs --alter --add-config does."""
    entry = ConfigEntry(key, str(value), incremental_operation=AlterConfigOpType.SET)
    admin = broker.admin  # held: its futures die with it
    for future in admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]).values():
        future.result(30)


def offload(address: Address, topic: str, before: int | None = None) -> Answer:
    body = None if before is None else json.dumps({"position": before}).encode()
    return call(
        address,
        f"/v1/topics/{topic}/partitions/0/offload",
        method="GET" if body is None else "POST",
        token=TOKEN,
        body=body,
        content_type="application/json",
    )


def wait(holds: Callable[[], object], agent: Agent, what: str) -> None:
    until_s = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < until_s, f"{what}\n{agent.log_text()[-6000:]}"
        assert not agent.has_ended(), agent.log_text()[-4000:]
        time.sleep(0.2)


def events(agent: Agent) -> list[tuple[str, str]]:
    """What the agent has said of triggers, and of which topic."""
    said = [json.loads(line) for line in agent.log_text().splitlines() if line.startswith("{")]
    return [(each["event"], each["topic"]) for each in said if each["event"].startswith(("trigger_", "local_retention"))]


def test_segments_go_by_time_by_size_and_by_request_and_at_once_when_retention_is_shorter(tmp_path: Path) -> None:
    rng, admin = random.Random(3), ("127.0.0.1", free_port())
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    with KafkaBroker(tmp_path / "kafka", tmp_path / "broker") as broker:
        for topic in TOPICS:
            broker.create_topic(topic, 1, internal_segment_bytes=4096)
        for topic in (AGED, SHRINKING):
            alter(broker, ResourceType.TOPIC, topic, "retention.ms", 2 * HOUR_MS)
        headwater = Headwater(
            tmp_path / "headwater",
            tmp_path / "kafka",
            archival='archive = "manual"\nrescan = "1s"',
            log=f'bootstrap_servers = "{broker.bootstrap}"',
            admin=f'{admin[0]}:{admin[1]}"\ntoken_file = "{token}',
        )
        headwater.file.write_text(headwater.file.read_text() + SETTINGS)
        refused = verb(headwater, "config", "check")
        assert (refused.returncode, "log.server_properties" in refused.stderr) == (0, True), refused.stderr

        producer, began_s = broker.producer(), time.time()
        for topic in TOPICS:
            produce(producer, topic, [rng.randbytes(400) for _ in range(40)])
        logs = {log.partition.topic: log for log in LogDirs([tmp_path / "kafka"]).partitions() if log.partition.topic in TOPICS}
        sealed = {topic: log.segments[-1].base_offset for topic, log in logs.items()}
        assert all(len(log.segments) > 4 for log in logs.values())

        def end(topic: str) -> int:
            head = headwater.heads().get((topic, 0))
            return head.next_offset if head else 0

        with Agent(headwater) as agent:
            agent.address()
            wait(lambda: end(AGED) == sealed[AGED], agent, "by time")
            uploaded = {int(each.name[:20]): each.stat().st_mtime for each in (headwater.bucket / "data").rglob(f"{AGED}/**/*.log")}
            assert uploaded.keys() == {each.base_offset for each in logs[AGED].segments if not each.is_active}
            assert min(uploaded.values()) >= began_s + AFTER_S

            sizes = [each.size_bytes for each in logs[SIZED].segments]
            kept = [at for at in range(len(sizes)) if sum(sizes[at:]) <= EXCEEDS]
            wait(lambda: end(SIZED) == logs[SIZED].segments[kept[0]].base_offset, agent, "by size")

            streamed = logs[STREAMED].segments
            kept = [at for at in range(len(streamed)) if sum(each.size_bytes for each in streamed[at:]) <= EXCEEDS]
            wait(lambda: end(STREAMED) == streamed[kept[0]].base_offset, agent, "what is streamed, by size")
            [row] = verb(headwater, "topics", "entries", STREAMED, "-o", "json").rows
            assert (row["base_offset"], row["layout"]) == (0, "streaming")

            too_late = verb(headwater, "topics", "set", "aged.*", "offload_after=2h")
            assert too_late.returncode == 2
            assert "is not below the topic's retention.ms = 7200000 ms" in too_late.stderr

            # Nothing else has gone: by request, up to an offset.
            assert (end(ASKED), end(SHRINKING), end(BY_BROKER)) == (0, 0, 0)
            middle = logs[ASKED].segments[2].base_offset
            assert (offload(admin, ASKED).json["state"], offload(admin, "no.such").status) == ("not_run", 404)
            assert offload(admin, ASKED, middle + 1).status == 202
            wait(lambda: offload(admin, ASKED).json["state"] == "success", agent, "by request")
            assert (end(ASKED), offload(admin, ASKED).json["before"]) == (middle, middle + 1)
            assert offload(admin, ASKED, 41).status == 202
            wait(lambda: offload(admin, ASKED).json["state"] == "error", agent, "beyond the high watermark")
            assert "beyond the high watermark 40" in offload(admin, ASKED).json["error"]
            later = logs[ASKED].segments[3].base_offset
            rows = verb(headwater, "archive", f"{ASKED}:0", "--before", str(later), "-o", "json")
            assert (rows.returncode, rows.rows[0]["last_offset"], end(ASKED)) == (0, later - 1, later)
            assert verb(headwater, "topics", "set", "asked.*", "offloadTimeInMinutes=0").returncode == 0
            wait(lambda: end(ASKED) == sealed[ASKED], agent, "by a trigger that a command has set")

            # A topic's owner shortens its retention, and then the operator of the brokers the default of all.
            assert end(SHRINKING) == 0
            alter(broker, ResourceType.TOPIC, SHRINKING, "retention.ms", HOUR_MS)
            wait(lambda: end(SHRINKING) == sealed[SHRINKING], agent, "the topic's retention is too short")
            [row] = verb(headwater, "status", SHRINKING, "-p", "-o", "json").rows
            assert "offload_after = 3600000 ms is not below the topic's retention.ms = 3600000 ms" in row["trigger_trouble"]
            assert end(BY_BROKER) == 0
            alter(broker, ResourceType.BROKER, "1", "log.retention.ms", HOUR_MS // 2)
            wait(lambda: end(BY_BROKER) == sealed[BY_BROKER], agent, "the broker's retention is too short")
            alter(broker, ResourceType.TOPIC, SHRINKING, "retention.ms", 2 * HOUR_MS)
            wait(lambda: ("trigger_applied", SHRINKING) in events(agent), agent, "the topic's retention is long enough again")
            agent.stop()
    said = events(agent)
    assert said.count(("local_retention_unknown", BY_BROKER)) == 1
    assert [each for each in said if each[0] != "local_retention_unknown"] == [
        ("trigger_not_applied", SHRINKING),
        ("trigger_not_applied", BY_BROKER),
        ("trigger_applied", SHRINKING),
    ]
