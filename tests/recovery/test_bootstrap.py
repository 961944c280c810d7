"""The records that a new controller begins with."""

from recovery.bootstrap import FEATURES, bootstrap_records
from segments.metadata_records import NO_LEADER, Config, FeatureLevel, Partition, ProducerIds, Topic, decode_metadata_record
from tests.recovery.test_plan import TOPIC_ID, a_head, a_topic, an_entry, planned


def test_the_records_come_in_the_order_a_controller_can_replay() -> None:
    plan = planned(a_topic(a_head(an_entry(0, 9, epochs=((4, 0),), max_producer_id=1234)), cleanup_policy="compact"), node_id=3)
    records = list(bootstrap_records(plan))
    assert [type(record) for record in records] == [FeatureLevel] * len(FEATURES) + [Topic, Partition, Config, ProducerIds]
    assert [decode_metadata_record(record.encode()) for record in records] == records
    assert Topic(name="orders", topic_id=TOPIC_ID) in records
    [partition] = [record for record in records if isinstance(record, Partition)]
    assert (partition.leader, partition.leader_epoch) == (NO_LEADER, 4)
    assert partition.replicas == partition.in_sync == partition.last_known_elr == (3,)
    [ids] = [record for record in records if isinstance(record, ProducerIds)]
    assert ids.next_producer_id > 1234 + 1000
    assert ids.next_producer_id % 1000 == 0


def test_a_log_that_never_had_a_leader_begins_at_epoch_zero() -> None:
    [partition] = [record for record in bootstrap_records(planned(a_topic(a_head()))) if isinstance(record, Partition)]
    assert partition.leader_epoch == 0
