import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, NotFound, UsageError
from headwater_core.partition import TopicPartition
from headwater_core.segments.log_dirs import LogDirs, partition_directory
from tests.fixtures import expected_cluster, unpack
from tests.headwater_core.segments.log_dirs.broker import SOUP, Broker, aged


def test_one_log_directory_given_twice_is_a_mistake(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(broker.root)
    for again in (broker.root, tmp_path / "broker" / ".." / "broker", tmp_path / "link"):
        with pytest.raises(UsageError, match="twice"):
            LogDirs([broker.root, again])


def test_a_listing_names_what_a_survey_looks_at(broker: Broker) -> None:
    broker.partition("soup-0")
    broker.partition("tea-3")
    (broker.root / "soup-1.90484efc86e24096b9266de879f44e19-delete").mkdir()
    broker.checkpoint("replication", soup_0=14)
    listing = broker.logs.listing()
    assert {each: seen.high_watermark for each, seen in listing.partitions.items()} == {SOUP: 14, TopicPartition("tea", 3): None}
    assert set(listing.partitions) == {log.partition.topic_partition for log in broker.logs.partitions()}


def test_a_survey_continues_past_a_directory_it_cannot_use(broker: Broker) -> None:
    broker.partition("soup-0")
    (broker.partition("stew-0") / "partition.metadata").unlink()
    aged(broker.root / "stew-0")
    (broker.partition("tea-0") / "partition.metadata").write_bytes(b"version: 0\ntopic_id: ../../x\n")
    (broker.partition("rice-0") / "leader-epoch-checkpoint").write_bytes(b"0\n1\nx\n")
    survey = broker.logs.survey()
    assert [str(log.partition) for log in survey.logs] == ["soup:0"]
    assert sorted(path.name for path, _ in survey.problems) == ["rice-0", "stew-0", "tea-0"]
    assert all(isinstance(error, CorruptData) for _, error in survey.problems)
    assert broker.logs.partitions() == list(survey.logs)
    with pytest.raises(CorruptData, match=r"no partition\.metadata"):
        broker.logs.look(TopicPartition("stew", 0))


def test_a_partition_in_two_directories_is_a_problem(broker: Broker, tmp_path: Path) -> None:
    other = Broker(tmp_path / "other", cluster_id="kitchen-cluster")
    broker.partition()
    other.partition()
    survey = LogDirs([broker.root, other.root]).survey()
    assert [log.directory for log in survey.logs] == [broker.root / "soup-0"]
    assert len(survey.problems) == 1


def test_an_absent_partition_is_not_found(broker: Broker) -> None:
    with pytest.raises(NotFound):
        broker.logs.look(SOUP)


@pytest.mark.parametrize("name", ["pantry", "kitchen"])
def test_every_partition_of_a_real_broker_is_found(name: str) -> None:
    logs = LogDirs([unpack(name)])
    expected = expected_cluster(name)
    wanted = {(topic["name"], each["partition"], topic["topic_id"]) for topic in expected["topics"] for each in topic["partitions"]}
    survey = logs.survey()
    assert {(log.partition.topic, log.partition.partition, log.partition.topic_id) for log in survey.logs} == wanted
    assert not survey.problems
    assert (logs.cluster_id, logs.node_id) == (expected["cluster_id"], 1)


def test_a_disk_that_hangs_holds_up_its_own_partitions_only(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.partition("soup-0")
    broker.partition("tea-0")
    logs, there, go_on = broker.logs, threading.Event(), threading.Event()
    real = partition_directory._epochs

    def hang(directory: Path) -> EpochHistory:
        if directory.name == "soup-0":
            there.set()
            assert go_on.wait(30)
        return real(directory)

    monkeypatch.setattr(partition_directory, "_epochs", hang)
    with ThreadPoolExecutor(1) as other:
        looking = other.submit(logs.look, SOUP)
        assert there.wait(30)
        assert logs.look(TopicPartition("tea", 0)).partition.topic == "tea"
        go_on.set()
        assert looking.result().partition.topic == "soup"
