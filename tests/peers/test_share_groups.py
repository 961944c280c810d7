"""Share groups (KIP-932) of a lost cluster go on in the recovered one, and no record is skipped."""

import json
from pathlib import Path
from typing import Any

import pytest

from headwater import cli
from tests.peers.java_client import java_client
from tests.peers.kafka import KafkaBroker, produce

pytestmark = pytest.mark.peer

PROPERTIES = {
    "share.coordinator.state.topic.num.partitions": 2,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.share.delivery.count.limit": 10,  # what a member gives back comes again with each of its polls
}
GROUPS = ("cooks", "waiters")


def acquired(broker: KafkaBroker, group: str, **accepted: range | tuple[int, ...]) -> set[tuple[int, int]]:
    """Partition and offset of every record that a member of `group` gets until it has accepted those of p0 and p1."""
    places = [f"{name[1:]}:{offset}" for name, offsets in accepted.items() for offset in offsets]
    lines = java_client().request("share", broker.bootstrap, group, "soup", ",".join(places))
    return {(line["partition"], line["offset"]) for line in lines}


def places(broker: KafkaBroker) -> dict[tuple[str, int], Any]:
    """Start and lag of each group and partition, as kafka-share-groups has them."""
    lines = java_client().request("shared", broker.bootstrap, ",".join(GROUPS))
    return {(line["group"], line["partition"]): (line["start"], line["lag"]) for line in lines}


def shown(options: list[str], capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, int], Any]:
    """The same, as `cluster show` has it of the archive."""
    capsys.readouterr()
    assert cli.run(["cluster", "show", "share-groups", "-o", "json", *options]) == 0
    rows = json.loads(capsys.readouterr().out)["share-groups"]
    return {(row["group"], row["partition"]): (row["start"], row["lag"]) for row in rows if row["topic"] == "soup"}


def at(places: set[tuple[int, int]], partition: int) -> set[int]:
    return {offset for number, offset in places if number == partition}


def test_a_share_group_goes_on_and_gets_what_is_written_in_place_of_lost_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tail of soup:0 is lost; what cooks took of it, and that they took single records, is not. soup:1 comes back whole."""
    options = ["--store", f"file://{tmp_path}/bucket", "--data-dir", str(tmp_path / "state")]

    def flush(broker: KafkaBroker, *topics: str) -> None:
        beside = ["--log-dir", str(broker.log_dir), "--set", f"log.bootstrap_servers={broker.bootstrap}"]
        for topic in topics:
            assert cli.run(["flush", topic, *beside, *options]) == 0

    with KafkaBroker(tmp_path / "kafka", tmp_path / "one", properties=PROPERTIES) as broker:
        broker.create_topic("soup", 2)
        for group in GROUPS:
            java_client().request("group", broker.bootstrap, group, "share.auto.offset.reset", "earliest")
        for partition in (0, 1):
            produce(broker.producer(), "soup", [b"archived"] * 10, partition=partition)
        acquired(broker, "cooks", p0=range(5), p1=range(2))
        flush(broker, "soup")
        assert cli.run(["archive", "--log-dir", str(broker.log_dir), *options]) == 0  # the cluster, and no tail
        broker.stop()
        broker.start()  # leaders of higher epochs than the archive and the snapshot have of soup
        produce(broker.producer(), "soup", [b"lost"] * 10)
        acquired(broker, "cooks", p0=range(5, 15), p1=range(2, 4))
        acquired(broker, "waiters", p0=(0, 1, 6, 12, 13), p1=(0, 2))
        before = places(broker)
        flush(broker, "__share_group_state", "__consumer_offsets")
        broker.kill()
    whole = {place: each for place, each in before.items() if place[1] == 1}
    assert {place: each for place, each in shown(options, capsys).items() if place in whole} == whole
    assert cli.run(["recover", "apply", "cluster", "--into", str(tmp_path / "recovered"), *options]) == 0
    said = capsys.readouterr().err
    assert "share group cooks has a state up to " in said
    assert "of soup:0, which ends at 10" in said
    with KafkaBroker(tmp_path / "recovered", tmp_path / "two", properties=PROPERTIES) as broker:
        assert {place: each for place, each in places(broker).items() if place in whole} == whole
        produce(broker.producer(), "soup", [b"new"] * 10)
        cooks = acquired(broker, "cooks", p0=range(10, 20), p1=(4, 9))
        assert (at(cooks, 0), at(cooks, 1)) == (set(range(10, 20)), set(range(4, 10)))
        waiters = acquired(broker, "waiters", p0=range(7, 20), p1=(1, 9))
        assert (at(waiters, 0), at(waiters, 1)) == ({2, 3, 4, 5, *range(7, 20)}, {1, *range(3, 10)})
    with KafkaBroker(tmp_path / "running", tmp_path / "three", properties=PROPERTIES) as broker:
        beside = ["--into", str(tmp_path / "staging"), "--bootstrap-servers", broker.bootstrap, *options]
        assert cli.run(["recover", "apply", "topic", "soup", "--running", *beside]) == 0
        broker.stop()
        assert cli.run(["recover", "place", "--into", str(tmp_path / "staging"), "--log-dir", str(broker.log_dir)]) == 0
        broker.start()
        assert cli.run(["recover", "finish", *beside]) == 0
        archived = shown(options, capsys)
        assert {place: start for place, (start, _) in places(broker).items()} == {
            place: min(start, 10) for place, (start, _) in archived.items()
        }
        produce(broker.producer(), "soup", [b"new"] * 10)
        assert at(acquired(broker, "cooks", p0=range(10, 20), p1=(4, 9)), 0) == set(range(min(archived["cooks", 0][0], 10), 20))
