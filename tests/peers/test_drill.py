"""Drills beside a real broker: what was restored is read by another broker, too, and compared with the live one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from headwater.drill.drill_report import DrillOutcome, DrillReport, decode_report
from headwater.drill.report_store import ReportStore
from headwater.spare_broker import find_java, running_broker
from headwater_core.errors import Partial, VerificationFailed
from headwater_core.segments.coordinator_records import CommitValue
from headwater_core.segments.records import decode_batch
from tests.fixtures import KAFKA
from tests.headwater.conftest import Stage, stage
from tests.headwater.drill.test_coordinator_check import PREPARE_ABORT, older_coordinator
from tests.headwater.drill.test_drill_run import drill
from tests.peers.java_client import kafka_jars, wait_for_markers
from tests.peers.kafka import KafkaBroker, commit, produce
from tests.peers.test_coordinator_facts import LogFile
from tests.recovery.written_archive import state

__all__ = ["stage"]

pytestmark = pytest.mark.peer

ROOT = KAFKA.parents[2]


@pytest.fixture
def kafka_home(tmp_path: Path) -> Path:
    """As an unpacked Kafka has its jars."""
    libs = tmp_path / "kafka-home" / "libs"
    libs.mkdir(parents=True)
    for jar in kafka_jars().split(os.pathsep):
        for path in Path(jar).parent.glob("*.jar") if jar.endswith("*") else [Path(jar)]:
            (libs / path.name).symlink_to(path)
    return libs.parent


def reported(stage: Stage) -> DrillReport:
    last = ReportStore(stage.data_dir, 10).last()
    assert last is not None
    return decode_report((stage.data_dir / "drills" / last.report).read_bytes(), last.report)


def fill(broker: KafkaBroker) -> None:
    broker.create_topic("plain", 2, internal_segment_bytes=4000, segment_ms=86_400_000)
    broker.create_topic("packed", 1, compression_type="zstd")
    broker.create_topic(
        "table", 1, cleanup_policy="compact", internal_segment_bytes=2000, min_cleanable_dirty_ratio=0.01, min_compaction_lag_ms=0
    )
    producer = broker.producer()
    for partition in range(2):
        produce(producer, "plain", [b"%d" % at * 100 for at in range(60)], partition=partition)
    produce(producer, "packed", [b"salt" * 200 for _ in range(20)])
    produce(producer, "table", [b"v" * 300] * 40, keys=[b"key-%d" % (at % 7) for at in range(40)])
    transactions = broker.producer(transactional_id="tx")
    transactions.init_transactions(30)
    for commits in (True, False):
        transactions.begin_transaction()
        produce(transactions, "plain", [b"in a transaction"] * 5)
        (transactions.commit_transaction if commits else transactions.abort_transaction)(30)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers", "enable.auto.commit": False})
    commit(consumer, "plain", {0: 7, 1: 9})
    consumer.close()
    wait_for_markers(broker.bootstrap)


def test_every_read_path_gives_what_was_archived(stage: Stage, kafka_home: Path) -> None:
    log_dir, work = stage.root / "kafka", stage.root / "broker"
    with KafkaBroker(log_dir, work, properties={"log.cleaner.backoff.ms": 300, "segment.bytes": 1 << 20}) as broker:
        fill(broker)
        live = ("--set", f"log.bootstrap_servers={broker.bootstrap}")
        assert stage.run("flush", *live, log=log_dir).code == 0
        produce(broker.producer(), "plain", [b"not archived"] * 3)
        before = {path: path.stat().st_mtime_ns for path in stage.bucket.rglob("*")}
        topics = broker.topics(), broker.admin.list_topics(timeout=20).topics.keys()
        ran = stage.run("drill", *live, "--kafka-home", str(kafka_home), "-o", "json", log=log_dir)
        assert ran.code == 0, ran.err
        report = decode_report(ran.out.encode(), "stdout")
        assert report.outcome is DrillOutcome.PASSED
        by = {path.name.split()[0]: path for path in report.paths}
        assert by.keys() == {"headwater", "kafka", "live"}
        assert by["headwater"].amount == by["kafka"].amount
        assert by["kafka"].name.startswith("kafka 4")
        assert by["live"].amount.records > 150
        ends = len({(window.topic, window.partition) for window in report.windows})
        assert report.answers == {"committed offsets": 2, "transactional ids": 1, "ends of logs": ends}
        assert report.rpo.source == "live cluster"
        assert report.rpo.unmeasured == ()
        assert report.rpo.partitions == report.partitions
        lags = {(lag.topic, lag.partition): lag for lag in report.rpo.worst}
        assert lags["plain", 0].records == 3
        assert lags["plain", 0].behind_s is not None
        assert (broker.topics(), broker.admin.list_topics(timeout=20).topics.keys()) == topics  # nothing was made, nothing is gone
        assert {path: path.stat().st_mtime_ns for path in stage.bucket.rglob("*")} == before

        other = max(stage.bucket.glob("data/*/plain/*/1/*.log"), key=lambda path: path.stat().st_size)
        raw = bytearray(other.read_bytes())
        raw[len(raw) // 2] ^= 1
        other.chmod(0o644)
        other.write_bytes(bytes(raw))
        ran = stage.run("drill", *live, "--kafka-home", str(kafka_home), log=log_dir)
        assert ran.code == VerificationFailed.exit_code
        assert {(each.topic, each.partition) for each in reported(stage).findings} == {("plain", 1)}
    ran = stage.run("drill", *live, log=log_dir)  # the cluster is lost, and a drill is still one
    raw[len(raw) // 2] ^= 1
    other.write_bytes(bytes(raw))
    ran = stage.run("drill", *live, log=log_dir)
    assert ran.code == 0, ran.err
    assert "the live cluster could not be read" in reported(stage).rpo.why
    ran = stage.run("drill", "pl*", *live, "--live", log=log_dir)  # unless the comparison was requested
    assert ran.code == Partial.exit_code, ran.err
    assert not list((stage.data_dir / "drills").glob("scratch-*"))


def test_a_broker_ends_with_the_drill_that_is_killed(stage: Stage, kafka_home: Path) -> None:
    log = stage.log("pantry")
    assert stage.run("flush", log=log).code == 0
    places = ["--data-dir", str(stage.data_dir), "--store", f"file://{stage.bucket}", "--log-dir", str(log)]
    command = [sys.executable, "-m", "tests.kill_at", "drill", "--kafka-home", str(kafka_home), "--log-level", "info", *places]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "KILL_AT": "drill.served"}
    ran = subprocess.run(command, cwd=stage.root, env=environ, capture_output=True, text=True, check=False, timeout=200)
    assert ran.returncode == -signal.SIGKILL, ran.stderr[-1000:]
    [started] = [json.loads(line) for line in ran.stderr.splitlines() if "spare_broker_started" in line]
    pid = started["pid"]
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            break
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError(f"broker {pid} outlives its drill")
    again = stage.run("drill", "--kafka-home", str(kafka_home), log=log)
    assert again.code == 0, again.err
    assert not list((stage.data_dir / "drills").glob("scratch-*"))


def test_what_would_go_wrong_on_day_one_goes_wrong_in_a_drill(kafka_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits come back with the times that they had, and logs have what recovery would have ended."""
    java = find_java()
    assert java

    def meddle(log_dir: Path) -> None:
        LogFile(log_dir, "orders-0").data(9, 0)
        ended_by_nobody = state(0, "stuck", 7, PREPARE_ABORT, ("orders", 0))  # the log has a later epoch of this producer
        [record] = decode_batch(ended_by_nobody)
        LogFile(log_dir, "__transaction_state-0").record(record.key or b"", record.value)

    monkeypatch.setattr(CommitValue, "rewritten", lambda value, *_, **__: value.raw)
    report = drill(
        older_coordinator().store,
        tmp_path,
        meddle=meddle,
        spare=lambda scratch, plan: running_broker(java, kafka_home, scratch.log_dir, scratch.work_dir, plan),
    )
    assert report.outcome is DrillOutcome.FAILED
    found = {(each.topic, each.partition, each.text) for each in report.findings if each.where.startswith("kafka")}
    assert {text for topic, _, text in found if topic == "__consumer_offsets"} == {
        "group 'readers' has no commit for menu:0, 7 was restored",
        "group 'writers' has no commit for menu:0, 700 was restored",
    }
    assert ("orders", 0, "a reader of committed data ends at offset 4, the log at 5") in found
    assert any(
        topic == "__transaction_state" and text.startswith("transactional id 'stuck' cannot begin again") for topic, _, text in found
    )
