import pytest

from headwater_core.errors import UsageError
from headwater_core.partition import PartitionId, TopicPartition, check_topic_id, check_topic_name, topic_id_bytes, topic_id_text

CLUSTER = "mPtQxumzSB6UIzXMtmWVUg"
TOPIC_ID = "kqJTtAW9T1mWG2YKKY9dsw"


@pytest.mark.parametrize("name", ["a", "rack--2-1", "cookbook.1990", "__consumer_offsets", "x" * 249, "...", "-"])
def test_a_name_that_kafka_accepts_is_accepted(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\0", "x" * 250, "é", "a b", "a\n"])
def test_a_name_that_could_leave_its_place_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_topic_name(name)


def test_a_topic_id_reads_back() -> None:
    assert topic_id_text(topic_id_bytes(check_topic_id(TOPIC_ID))) == TOPIC_ID


@pytest.mark.parametrize("topic_id", ["", "short", TOPIC_ID + "x", "../../../../../../../..", TOPIC_ID[:-1] + "x"])
def test_what_is_no_uuid_is_refused(topic_id: str) -> None:
    with pytest.raises(UsageError):
        check_topic_id(topic_id)


def test_a_recreated_topic_is_another_partition() -> None:
    old = PartitionId(CLUSTER, TOPIC_ID, 0, "orders")
    assert old != PartitionId(CLUSTER, "JLRaEr9lRX-6bwfLL6jYzg", 0, "orders")
    assert old == PartitionId(CLUSTER, TOPIC_ID, 0, "orders")


def test_partition_numbers_stay_in_range() -> None:
    with pytest.raises(UsageError):
        TopicPartition("orders", -1)
    with pytest.raises(UsageError):
        TopicPartition("orders", 2**31)
