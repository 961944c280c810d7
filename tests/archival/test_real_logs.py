"""Logs that a real broker wrote, archived whole: what the bucket holds is what its consumer read."""

import pytest

from headwater_core.segments.log_dirs import LogDirs
from manifests.archivedrun import ArchivedRun
from tests.archival.builders import Agent, load
from tests.archival.reading import archived
from tests.fixtures import expected, expected_offsets, unpack
from tests.headwater_core.objectstore.memory import MemoryStore


@pytest.mark.parametrize("name", ["pantry", "pantry-live", "kitchen"])
def test_everything_a_broker_wrote_is_archived(name: str) -> None:
    store = MemoryStore()
    root = unpack(name)
    Agent(root, store).archive_all()
    logs = LogDirs([root]).partitions()
    user = [log.partition for log in logs if not log.partition.topic.startswith("__")]
    rows = expected(name, "read_uncommitted")
    assert rows
    assert archived(store, user) == rows
    for said in expected_offsets(name, "read_uncommitted"):
        partition = next(each for each in user if (each.topic, each.partition) == (said["topic"], said["partition"]))
        head = load(store, partition)
        assert (head.start_offset, head.next_offset) == (said["start"], said["high_watermark"]), str(partition)
    internal = [log for log in logs if log.partition.topic.startswith("__")]
    assert all(load(store, log.partition).next_offset == log.high_watermark for log in internal)


def test_archiving_again_finds_nothing_to_do() -> None:
    store = MemoryStore()
    root = unpack("pantry")
    Agent(root, store).archive_all()
    before = [(info.key, info.tag) for info in store.list("")]
    Agent(root, store).archive_all()
    assert [(info.key, info.tag) for info in store.list("")] == before


def test_an_archived_run_reads_like_a_file() -> None:
    store = MemoryStore()
    agent = Agent(unpack("kitchen"), store)
    agent.archive_all()
    log = next(log for log in agent.logs.partitions() if load(store, log.partition).entries)
    entry = load(store, log.partition).entries[0]
    run = ArchivedRun(store, entry)
    assert run.readall() == store.get(entry.key)[0]
    assert run.read(10) == b""
    run.seek(5)
    assert run.read(7) == store.get(entry.key)[0][5:12]
