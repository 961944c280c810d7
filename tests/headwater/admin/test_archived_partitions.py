"""What the archive is known to have, by the control log and by the bucket's topics."""

from headwater.admin.archived_partitions import ArchivedPartitions
from headwater_core.control.control_records import Advanced
from headwater_core.control.state import EMPTY, ControlState, apply
from manifests.topic import TopicManifest
from tests.manifests.builders import PARTITION, a_topic


def test_the_control_log_knows_offsets_and_the_bucket_what_that_does_not_know() -> None:
    state, listed = EMPTY, dict[str, TopicManifest]()
    archived = ArchivedPartitions(lambda: state, lambda: listed)
    assert archived.now() == {}
    listed = {"orders": a_topic(partitions=4)}
    assert sorted(each.partition for each in archived.now()) == [0, 1, 2, 3]
    assert set(archived.now().values()) == {None}
    state = known(state)
    found = archived.now()[PARTITION]
    assert found is not None
    assert (found.start_offset, found.last_offset) == (0, 9)
    assert len(archived.now()) == 4


def test_it_is_the_same_object_as_long_as_nothing_changes() -> None:
    """So that nobody has to compare ten thousand."""
    listed = {"orders": a_topic()}
    archived = ArchivedPartitions(lambda: EMPTY, lambda: dict(listed))
    assert archived.now() is archived.now()
    before = archived.now()
    listed["other"] = a_topic("other", "B" * 21 + "A")
    assert archived.now() is not before


def known(state: ControlState) -> ControlState:
    return apply(
        state,
        Advanced(
            cluster_id=PARTITION.cluster_id,
            topic=PARTITION.topic,
            topic_id=PARTITION.topic_id,
            partition=PARTITION.partition,
            version=1,
            fence=1,
            writer="me",
            start_offset=0,
            last_offset=9,
        ),
    )
