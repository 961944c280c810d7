"""Three brokers of one cluster, and node 2's directory as it was before an unclean election cut its branch off."""

import base64

import pytest

from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.segments.records import decode_batch
from manifests.head import Head
from tests.archival.builders import Agent, batches_of, load
from tests.archival.reading import archived, read_archive
from tests.fixtures import expected, unpack
from tests.headwater_core.objectstore.memory import MemoryStore

BRANCH = "brigade-node2-dead-branch"
ORDERS = {
    "the dead branch first": (BRANCH, "node1", "node2", "node3"),
    "the dead branch first, then backwards": (BRANCH, "node3", "node2", "node1"),
    "the dead branch last": ("node1", "node2", "node3", BRANCH),
    "the dead branch last, backwards": ("node3", "node2", "node1", BRANCH),
    "the dead branch in between": ("node1", BRANCH, "node3", "node2"),
}


def archive_nodes(store: ObjectStore, nodes: tuple[str, ...]) -> None:
    """One agent per directory, one after the other."""
    for node in nodes:
        root = unpack(BRANCH) if node == BRANCH else unpack("brigade") / node
        Agent(root, store, writer=f"agent-{node}").archive_all()


@pytest.mark.parametrize("nodes", ORDERS.values(), ids=list(ORDERS))
def test_what_is_read_is_the_final_state_whatever_the_order(nodes: tuple[str, ...]) -> None:
    store = MemoryStore()
    archive_nodes(store, nodes)
    partitions = sorted({log.partition for node in ("node2", "node3") for log in LogDirs([unpack("brigade") / node]).partitions()})
    user = [each for each in partitions if not each.topic.startswith("__")]
    assert archived(store, user) == expected("brigade", "read_uncommitted")


@pytest.mark.parametrize("nodes", [ORDERS["the dead branch first"], ORDERS["the dead branch first, then backwards"]])
def test_the_dead_branch_is_listed_as_superseded(nodes: tuple[str, ...]) -> None:
    store = MemoryStore()
    archive_nodes(store, nodes)
    partition = next(
        log.partition
        for log in LogDirs([unpack("brigade") / "node3"]).partitions()
        if (log.partition.topic, log.partition.partition) == ("dessert.trolley", 0)
    )
    head = load(store, partition)
    assert head.superseded
    assert min(entry.base_offset for entry in head.superseded) == 41
    assert max(entry.last_offset for entry in head.superseded) == 130
    values = [
        record.value
        for entry in head.superseded
        for batch in whole_batches(store, head, entry.base_offset)
        for record in decode_batch(batch)
        if record.offset in entry
    ]
    assert values
    assert all(value and b"branch-on-2" in value for value in values)
    live = read_archive(store, partition, head)
    assert not any(b"branch-on-2" in base64.b64decode(row["value"]) for row in live)


def whole_batches(store: ObjectStore, head: Head, base_offset: int) -> list[bytes]:
    """Batches of a superseded entry, the dead part of its object included."""
    entry = next(each for each in head.superseded if each.base_offset == base_offset)
    return batches_of(store, entry)


def test_nothing_is_superseded_when_the_final_state_came_first() -> None:
    store = MemoryStore()
    archive_nodes(store, ORDERS["the dead branch last"])
    for log in LogDirs([unpack("brigade") / "node3"]).partitions():
        if log.partition.topic == "dessert.trolley":
            assert load(store, log.partition).superseded == ()
