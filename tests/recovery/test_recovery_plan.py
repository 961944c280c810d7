"""The plan as a document."""

from typing import Any

import pytest
from msgspec.structs import replace

from headwater_core.errors import CorruptData, HeadwaterError, UnsupportedFormat, UsageError
from recovery.plan_document import decode_plan, encode_plan
from recovery.recovery_plan import PartitionPlan, RecoveryPlan, check_plan
from tests.recovery.plans import a_gap, a_head, a_topic, an_entry, planned


def test_a_plan_reads_back() -> None:
    plan = planned(a_topic(a_head(a_gap(0, 4), an_entry(5, 9, open_from=6), a_gap(10, 14), an_entry(15, 19)), retention_ms="5"))
    assert decode_plan(encode_plan(plan)) == plan


def changed(**changes: Any) -> RecoveryPlan:
    plan = planned(a_topic(a_head(an_entry(0, 9), an_entry(10, 19))))
    [topic] = plan.topics
    of_partition = {name: changes.pop(name) for name in list(changes) if name in PartitionPlan.__struct_fields__ and name != "partition"}
    of_topic = {name: changes.pop(name) for name in list(changes) if name in topic.__struct_fields__}
    partition = replace(topic.partitions[0], **of_partition)
    return replace(plan, topics=(replace(topic, partitions=(partition,), **of_topic),), **changes)


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        (changed(entries=(an_entry(0, 9), an_entry(11, 19))), CorruptData),
        (changed(entries=(an_entry(0, 9),)), CorruptData),
        (changed(entries=()), CorruptData),
        (changed(start_offset=10), CorruptData),
        (changed(topic="../orders"), UsageError),
        (changed(topic_id="short"), UsageError),
        (changed(cluster_id="a/b"), UsageError),
        (changed(recovery_id="../x"), CorruptData),
        (changed(mode="sideways"), UnsupportedFormat),
        (changed(entries=(an_entry(0, 9, key="data/x/passwd.log"), an_entry(10, 19))), CorruptData),
        (changed(entries=(an_entry(0, 9, layout="bricks"), an_entry(10, 19))), UnsupportedFormat),
        (changed(entries=(an_entry(0, 9), an_entry(10, 19, size_bytes=2**31, live_bytes=2**31))), UnsupportedFormat),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(plan: RecoveryPlan, error: type[HeadwaterError]) -> None:
    with pytest.raises(error):
        check_plan(plan)


@pytest.mark.parametrize("cut", [0, 1, -2])
def test_a_plan_file_with_a_changed_byte_is_refused(cut: int) -> None:
    raw = encode_plan(planned(a_topic(a_head(an_entry(0, 9)))))
    at = raw.index(b'"node_id": 1')
    for broken in (raw[:cut], raw[:at] + raw[at:].replace(b'"node_id": 1', b'"node_id": 2', 1)):
        with pytest.raises(CorruptData):
            decode_plan(broken)
