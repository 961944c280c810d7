"""A real Prometheus beside a real broker and a real S3 server: each alert fires when it should, and resolves."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub re-exports nothing
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from headwater.admin.last_scrub import RESULTS, LastScrub, ScrubMemory
from headwater.admin_port import LAST_SCRUB
from headwater.drill.drill_report import DrillOutcome
from headwater.drill.report_store import DIRECTORY, LAST, LastDrill
from headwater_core.errors import Partial, VerificationFailed
from headwater_core.files import replace_file
from headwater_core.segments.checkpoints import PARTITION_METADATA
from manifests.document import seal
from manifests.keys import CLUSTER_LIST
from tests.headwater.admin.contrib import ALERTS, ALERTS_TEST, alerts, panel_expressions
from tests.headwater.test_bad_input import can_mount
from tests.headwater_core.objectstore.badnetwork import LOSE_REQUEST, PASS, BadNetwork, bad_network
from tests.peers.agent import Agent, Headwater
from tests.peers.kafka import KafkaBroker, free_port, produce
from tests.peers.prometheus import Prometheus, promtool
from tests.s3server import S3Server

pytestmark = pytest.mark.peer

FASTER = 240  # every time in the alerts, and every threshold in seconds, is shorter by this factor
LONGEST_MS = 10_000  # of a `for:`, which begins again when one scrape takes too long
EVERY = "500ms"
PATIENCE_S = 180.0
DISK_MIB = 48
SEGMENT_BYTES = 64 << 10
TOPICS = ORDERS, TABLES, MENU = "orders", "tables", "menu"
AT_THE_START = (
    "HeadwaterScrubOverdue",
    "HeadwaterDrillOverdue",
    "HeadwaterDefects",
    "HeadwaterControlLogLeaderless",
    "HeadwaterLagUnknown",
    "HeadwaterStatusStale",
)


def test_the_alerts_and_their_unit_tests_are_accepted() -> None:
    assert f"{len(alerts())} rules found" in promtool("check", "rules", ALERTS)
    assert "SUCCESS" in promtool("test", "rules", ALERTS_TEST)


def test_each_expression_of_the_dashboard_is_accepted(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{at}", "expr": each} for at, each in enumerate(panel_expressions())]
    file = tmp_path / "panels.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)


def faster(text: str) -> str:
    """The alerts with every `for:`, range and threshold divided. A threshold is 0 or seconds."""

    def duration(found: re.Match[str]) -> str:
        seconds = int(found[2]) * {"m": 60, "h": 3600, "d": 86_400}[found[3]]
        milliseconds = seconds * 1000 // FASTER
        return f"{found[1]}{min(milliseconds, LONGEST_MS) if found[1] == 'for: ' else milliseconds}ms"

    text = re.sub(r"(for: |\[)(\d+)([mhd])\b", duration, text)
    return re.sub(r"(?<=[<>] )\d+", lambda found: str(int(found[0]) / FASTER), text)


class Watch:
    """Waits for what Prometheus says, by its API. seen: the alerts that have fired and resolved."""

    def __init__(self, prometheus: Prometheus, agent: Agent) -> None:
        self.prometheus, self.agent, self.seen = prometheus, agent, set[str]()
        self._began_s = time.monotonic()

    def until(self, holds: Callable[[], object], what: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > until_s:
                firing = json.dumps(self.prometheus.firing(), indent=1)
                raise AssertionError(f"not within {PATIENCE_S:g} s: {what}\n{firing[-3000:]}\n{self.agent.log_text()[-6000:]}")
            time.sleep(0.2)
        print(f"{time.monotonic() - self._began_s:6.1f} s  {what}", flush=True)

    def is_firing(self, name: str, **labels: str) -> bool:
        return any(each["labels"].items() >= labels.items() for each in self.prometheus.firing().get(name, []))

    def fires(self, name: str, **labels: str) -> None:
        self.until(lambda: self.is_firing(name, **labels), f"{name} fires {labels or ''}")
        for each in self.prometheus.firing().get(name, []):
            assert not [text for text in each["annotations"].values() if "<" in text or not text], each

    def resolves(self, name: str) -> None:
        self.until(lambda: not self.is_firing(name), f"{name} resolves")
        self.seen.add(name)

    def value(self, expression: str) -> float | None:
        found = self.prometheus.query(expression)
        return float(found[0]["value"][1]) if found else None

    def all_archived(self) -> None:
        self.until(
            lambda: self.value("sum(headwater_archive_lag_bytes)") == 0 and self.value("headwater_archive_unknown_lag_partitions") == 0,
            "all is archived",
        )

    def quiet(self) -> None:
        self.until(lambda: not self.prometheus.firing(), "no alert fires")


def fill(broker: KafkaBroker, topic: str, segments: int = 3) -> None:
    produce(broker.producer(), topic, [bytes(4096)] * (segments * SEGMENT_BYTES // 4096))


def read(address: str, topic: str, offset: int) -> int:
    """Of the record at `offset`, or the next one that there is; its offset."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False, "log_level": 2})
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        until_s = time.monotonic() + PATIENCE_S
        while (message := consumer.poll(0.5)) is None or message.error():
            assert time.monotonic() < until_s, message and message.error()
        found = message.offset()
        assert found is not None
        return found
    finally:
        consumer.close()


def panels_without_data(prometheus: Prometheus) -> list[str]:
    """Expressions of the dashboard that find nothing after all this; not those of a proxy, or that show only what is not 0."""
    found = (each for each in panel_expressions() if not re.search(" > 0$", each) and "headwater_proxy_" not in each)
    return [each for each in found if not prometheus.query(each)]


def read_until(watch: Watch, topic: str, offset: int, counter: str) -> None:
    """The first read may be answered locally, while the manifest is not known yet."""

    def counts() -> bool:
        read(watch.agent.address(), topic, offset)
        return (watch.value(counter) or 0) > 0

    watch.until(counts, f"{counter} counts")


def read_well(watch: Watch, topic: str, offset: int) -> None:
    """What was damaged is fetched again after a pause."""

    def is_well() -> bool:
        read(watch.agent.address(), topic, offset)
        return watch.value("sum(headwater_damaged_objects)") == 0

    watch.until(is_well, "no object is damaged any more")


@contextmanager
def damaged(file: Path) -> Iterator[None]:
    """For the time of a block, one byte of it is another one."""

    def flip() -> None:
        with file.open("r+b") as content:
            content.seek(200)
            byte = content.read(1)[0]
            content.seek(200)
            content.write(bytes([byte ^ 1]))

    flip()
    yield
    flip()


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="this kernel lets us mount nothing, not even in a namespace of our own")
def test_each_alert_fires_when_it_should_and_resolves(tmp_path: Path, s3_environ: S3Server) -> None:
    rules, bucket, admin = tmp_path / "alerts.yaml", s3_environ.bucket(), f"127.0.0.1:{free_port()}"
    rules.write_text(faster(ALERTS.read_text("utf-8")))
    deletes_soon = {"log.retention.check.interval.ms": 500, "log.segment.delete.delay.ms": 500}
    broker = KafkaBroker(tmp_path / "kafka", tmp_path / "broker", properties=deletes_soon)
    cluster_id = broker.format()
    (scratch := tmp_path / "scratch").mkdir()  # beside the agent's own small disk
    with bad_network(s3_environ.endpoint_url) as network:

        def beside(broker: KafkaBroker | None, name: str, *, admin: str = "", listen: str = "", control: str = "") -> Headwater:
            return Headwater(
                tmp_path / name,
                broker.log_dir if broker else None,
                admin=admin,
                listen=listen,
                control=control,
                store=f'url = "s3://{bucket}/archive"\nendpoint_url = "{network.endpoint_url}"',
                log=f'bootstrap_servers = "{broker.bootstrap}"' if broker else "",
                hydration='read_priority = "offloaded-first"\nchunk_bytes = "64KiB"',
            )

        with (
            broker,
            Agent(beside(broker, "headwater", admin=admin), DISK_MIB) as agent,
            Prometheus(tmp_path / "prom", admin, [rules], EVERY) as prom,
        ):
            watch = Watch(prom, agent)
            for topic in TOPICS:
                broker.create_topic(topic, 1, internal_segment_bytes=SEGMENT_BYTES)
                fill(broker, topic)
            watch.all_archived()
            watch.quiet()
            agent.verb("pause", MENU)
            full_disk(watch, broker)
            with damaged_object(s3_environ, bucket):
                read_until(watch, TABLES, 20, "headwater_damaged_chunks_total")
                watch.fires("HeadwaterChunksDamaged")
                watch.fires("HeadwaterObjectDamaged")
                agent.verb("verify", TABLES, "--data", code=VerificationFailed.exit_code)
                watch.fires("HeadwaterScrubFoundDamage", result="damaged")
                agent.verb("drill", TABLES, "--scratch", str(scratch), code=VerificationFailed.exit_code)
                watch.fires("HeadwaterDrillFailed", outcome="failed")
            read_well(watch, TABLES, 20)
            watch.resolves("HeadwaterObjectDamaged")
            agent.verb("verify", "--data")
            watch.resolves("HeadwaterScrubFoundDamage")
            agent.verb("drill", TABLES, "--scratch", str(scratch))
            watch.resolves("HeadwaterDrillFailed")
            damaged_list(watch, broker, s3_environ, bucket)
            outage_and_corrupt_segment(watch, broker, network)
            watch.resolves("HeadwaterChunksDamaged")
            pause_that_loses_records(watch, broker)
            recovered = tmp_path / "recovered"
            agent.verb("recover", "apply", "topic", "--all", "--into", str(recovered), "--cluster-id", cluster_id)
            watch.until(lambda: not panels_without_data(prom), "each panel of the dashboard has data")
            agent.stop()
            watch.fires("HeadwaterDown")
            broker.kill()
            again, nodes = KafkaBroker(recovered, tmp_path / "again"), (free_port(), free_port())
            here = beside(again, "headwater-again", admin=admin, **of_two(*nodes))
            remember_scrub(here, hours_ago=1)
            remember_drill(here, hours_ago=5)
            with again, planted(tmp_path / "defect", again.log_dir) as removed, Agent(here, defect=tmp_path / "defect") as watch.agent:
                watch.resolves("HeadwaterDown")
                for name in AT_THE_START:
                    watch.fires(name)
                removed()
                with Agent(beside(None, "headwater-there", **of_two(*reversed(nodes)))) as peer:
                    watch.agent.verb("verify", "--data")
                    watch.agent.verb("drill", TABLES, "--scratch", str(scratch))
                    fill(again, ORDERS)
                    for name in ("HeadwaterGapSkipped", *AT_THE_START):
                        watch.resolves(name)
                    watch.all_archived()
                    watch.quiet()
                    watch.agent.stop()
                    peer.stop()
    assert watch.seen == alerts().keys()


def of_two(own: int, peer: int) -> dict[str, str]:
    """The settings of one of two nodes of a control log: alone it has no leader."""
    return {"listen": f"127.0.0.1:{own}", "control": f'peers = ["127.0.0.1:{peer}"]'}


def remember_scrub(headwater: Headwater, *, hours_ago: int) -> None:
    data_dir = headwater.config.node.data_dir
    data_dir.mkdir()
    memory = ScrubMemory(data_dir / LAST_SCRUB)
    memory.keep(LastScrub(ended_ms=round(time.time() * 1000) - hours_ago * 3_600_000, objects=dict.fromkeys(RESULTS, 0)))
    memory.save()


def remember_drill(headwater: Headwater, *, hours_ago: int) -> None:
    directory = headwater.config.node.data_dir / DIRECTORY
    directory.mkdir()
    passed_ms = round(time.time() * 1000) - hours_ago * 3_600_000
    last = LastDrill(
        id="drill-before", outcome=DrillOutcome.PASSED, ended_ms=passed_ms, passed_ms=passed_ms, report="report-drill-before.json"
    )
    replace_file(directory / LAST, seal(last))


@contextmanager
def planted(defect: Path, log_dir: Path) -> Iterator[Callable[[], None]]:
    """A mistake in the agent, as long as `defect` is there, and a partition whose directory does not answer, as on a disk that dies.
    Yields what removes both, which is done at the end at the latest."""
    directory = log_dir / "hung-0"
    directory.mkdir()
    os.mkfifo(directory / PARTITION_METADATA)
    held = [os.open(directory / PARTITION_METADATA, os.O_RDWR)]  # so it can be opened, and not be read to its end
    defect.touch()

    def remove() -> None:
        defect.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
        while held:
            os.close(held.pop())

    try:
        yield remove
    finally:
        remove()


def full_disk(watch: Watch, broker: KafkaBroker) -> None:
    """Of the data directory: nothing of the cache fits on it, nor what the agent would remember of its partitions."""
    with watch.agent.full_disk():
        fill(broker, ORDERS)
        watch.fires("HeadwaterDiskFull")
        read_until(watch, ORDERS, 0, "headwater_cache_bypassed_total")
        watch.all_archived()
        watch.fires("HeadwaterDiskFull")
    watch.resolves("HeadwaterDiskFull")


@contextmanager
def damaged_object(server: S3Server, bucket: str) -> Iterator[None]:
    """For the time of a block: the second one of TABLES, which nobody has read."""
    client = server.client()
    listed = client.list_objects_v2(Bucket=bucket, Prefix="archive/data/")["Contents"]
    names = [each["Key"] for each in listed if f"/{TABLES}/" in each["Key"] and each["Key"].endswith(".log")]
    key = sorted(names)[1]
    content = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    client.put_object(Bucket=bucket, Key=key, Body=content[:200] + bytes([content[200] ^ 1]) + content[201:])
    yield
    client.put_object(Bucket=bucket, Key=key, Body=content)


def damaged_list(watch: Watch, broker: KafkaBroker, server: S3Server, bucket: str) -> None:
    """Of the snapshots of the cluster's metadata, which changes meanwhile."""
    client, key = server.client(), f"archive/{CLUSTER_LIST}"
    content = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    client.put_object(Bucket=bucket, Key=key, Body=content[:-9])
    entry = ConfigEntry("max.message.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
    admin = broker.admin  # held: its futures die with it
    for future in admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, ORDERS, incremental_configs=[entry])]).values():
        future.result(30)
    watch.agent.verb("archive", code=Partial.exit_code)
    watch.fires("HeadwaterClusterNotArchived")
    client.put_object(Bucket=bucket, Key=key, Body=content)
    watch.agent.verb("archive")
    watch.resolves("HeadwaterClusterNotArchived")


def outage_and_corrupt_segment(watch: Watch, broker: KafkaBroker, network: BadNetwork) -> None:
    """What was written in the outage of the store is damaged on the disk before it is archived."""
    network.fate = lambda: LOSE_REQUEST
    fill(broker, ORDERS)
    fill(broker, TABLES)
    watch.fires("HeadwaterStoreFailing")
    watch.fires("HeadwaterRpoExceeded")
    watch.fires("HeadwaterNotReady", check="store")
    sealed = sorted((broker.log_dir / f"{TABLES}-0").glob("*.log"))[-2]
    with damaged(sealed):
        network.fate = lambda: PASS
        watch.resolves("HeadwaterStoreFailing")
        watch.resolves("HeadwaterNotReady")
        watch.fires("HeadwaterPartitionsStalled", reason="corrupt_data")
    watch.resolves("HeadwaterPartitionsStalled")
    watch.resolves("HeadwaterRpoExceeded")


def pause_that_loses_records(watch: Watch, broker: KafkaBroker) -> None:
    """The broker deletes what was written during a pause."""
    watch.fires("HeadwaterPausedForLong")
    fill(broker, MENU)
    directory = broker.log_dir / f"{MENU}-0"
    sealed = int(sorted(directory.glob("*.log"))[-1].stem)
    admin = broker.admin  # held: its futures die with it
    for future in admin.delete_records([TopicPartition(MENU, 0, sealed)]).values():
        future.result(30)
    watch.until(lambda: not [*directory.glob("*.log"), *directory.glob("*.deleted")][1:], "the broker has deleted what was not archived")
    watch.agent.verb("resume", MENU)
    watch.resolves("HeadwaterPausedForLong")
    watch.all_archived()
    assert read(watch.agent.address(), MENU, sealed - 1) == sealed
    watch.fires("HeadwaterGapSkipped")
