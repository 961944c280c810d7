"""The records that a new controller begins with."""

import pytest

from headwater_core.segments.metadata.metadata_records import (
    NO_LEADER,
    ConfigRecord,
    FeatureLevel,
    Partition,
    ProducerIds,
    Topic,
    decode_metadata_record,
)
from recovery.initial_metadata import FEATURES, bootstrap_checkpoint, bootstrap_records
from recovery.plan_document import decode_plan, encode_plan
from tests.recovery.plans import TOPIC_ID, a_head, a_topic, an_entry, planned


def test_the_records_come_in_the_order_a_controller_can_replay() -> None:
    plan = planned(a_topic(a_head(an_entry(0, 9, epochs=((4, 0),), max_producer_id=1234)), cleanup_policy="compact"), node_id=3)
    records = list(bootstrap_records(plan))
    assert [type(record) for record in records] == [FeatureLevel] * len(FEATURES) + [Topic, Partition, ConfigRecord, ProducerIds]
    assert [decode_metadata_record(record.encode()) for record in records] == records
    assert Topic(name="orders", topic_id=TOPIC_ID) in records
    [partition] = [record for record in records if isinstance(record, Partition)]
    assert (partition.leader, partition.leader_epoch) == (NO_LEADER, 4)
    assert partition.replicas == partition.in_sync == partition.last_known_elr == (3,)
    [ids] = [record for record in records if isinstance(record, ProducerIds)]
    assert ids.next_producer_id > 1234 + 1000
    assert ids.next_producer_id % 1000 == 0


@pytest.mark.parametrize("number", [2**63 - 1, 2**63 - 1 - 500_000, 2**62 + 1])
def test_a_producer_id_that_no_coordinator_gave_is_noted_and_not_followed(number: int) -> None:
    """A producer writes the id it likes, and brokers take it."""
    plan = planned(a_topic(a_head(an_entry(0, 9, max_producer_id=4000), an_entry(10, 19, max_producer_id=number))))
    [ids] = [record for record in bootstrap_records(decode_plan(encode_plan(plan))) if isinstance(record, ProducerIds)]
    assert 4000 < ids.next_producer_id < 2_000_000
    assert [note for note in plan.notes if str(number) in note]
    assert bootstrap_checkpoint(plan, timestamp_ms=0)


def test_a_log_that_never_had_a_leader_begins_at_epoch_zero() -> None:
    [partition] = [record for record in bootstrap_records(planned(a_topic(a_head()))) if isinstance(record, Partition)]
    assert partition.leader_epoch == 0
