"""The leader changes: what it costs the new one's agent to take the partition over, however long its archive is."""

from pathlib import Path

from headwater_core.partition import PartitionId
from manifests import keys
from tests.archival.builders import PARTITION, Agent, Directory, fill
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import a_segment

SEGMENTS = 110  # more than a head lists: the others are in pages
END = 10 * SEGMENTS


def replicas(root: Path, partition: PartitionId) -> tuple[Directory, Directory]:
    """The log of one partition at the old leader, and at the new one, which has written a segment since."""
    old, new = Directory(root / "old", partition), Directory(root / "new", partition)
    for directory in (old, new):
        fill(directory, *range(0, END, 10), end=END)
    new.segment(END, a_segment(END, 10, epoch=1))
    new.segment(END + 10, a_segment(END + 10, 1, epoch=1))
    new.high_watermark(END + 10)
    new.epochs((0, 0), (1, END))
    return old, new


def test_a_claim_is_one_get_and_one_swap_of_the_head_and_the_next_step_plans_from_it(tmp_path: Path) -> None:
    store, control = MeteredStore(MemoryStore(), log_calls=1000), LocalControl()
    old, new = replicas(tmp_path, PARTITION)
    Agent(old.root, store=store, control=control, writer="agent-a").run()
    known = control.state().partition(PARTITION)
    assert known
    agent = Agent(new.root, store=store, control=control, writer="agent-b")
    store.log.clear()

    assert agent.step().action == "claimed"

    head = keys.head(PARTITION)
    of_topic = {keys.OWNER, keys.topic_manifest(PARTITION.topic, PARTITION.topic_id), keys.current(PARTITION.topic)}
    calls = [(call.operation, call.key) for call in store.log]
    assert [call for call in calls if call[1] not in of_topic] == [("get", head), ("replace", head)]
    assert sorted(key for _, key in calls if key in of_topic) == sorted(of_topic)  # once for all partitions of the topic

    store.log.clear()
    step = agent.step()
    assert step.entry
    assert (step.action, step.entry.base_offset) == ("archived", known.last_offset + 1)
    assert [call.operation for call in store.log if call.operation in ("get", "list")] == []
    assert [call.key for call in store.log if call.operation == "replace"] == [head]
