"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where a leader epoch ends.

v2 current leader epoch (KIP-320)
v3 replica id
v4 flexible

Not here: what a replica id means, since no client sees offsets beyond the high watermark.
"""

from typing import Any

from headwater.gateway.lookups import Lookups, Question, left
from headwater.gateway.messages import Fields
from headwater.gateway.protocol import once_each
from hydration.partition_log import Bounds, Isolation, PartitionLog
from hydration.scope import UNDEFINED, EpochEnd, Scope, epoch_end

VERSIONS = range(2, 5)


async def respond(lookups: Lookups, body: Fields) -> Fields:
    """The response; each partition has its own error code."""

    def from_log(log: PartitionLog, bounds: Bounds, requested: Fields, deadline_s: float) -> EpochEnd:
        return log.epoch_end(requested["leader_epoch"], timeout_s=left(deadline_s))

    def from_known(log: PartitionLog, scope: Scope, requested: Fields, _: float) -> EpochEnd:
        return epoch_end(scope.epochs, requested["leader_epoch"], scope.high_watermark)

    topics: dict[Any, list[Fields]] = {}
    requested = once_each(body["topics"], "topic", "partition")
    question = Question("OffsetForLeaderEpoch", Isolation.READ_UNCOMMITTED, from_log, from_known)
    for each in await lookups.all(requested, question):
        epoch, end = each.found or UNDEFINED
        topics.setdefault(each.topic, []).append(
            {"partition": each.partition, "error_code": each.code, "leader_epoch": epoch, "end_offset": end}
        )
    return {"topics": [{"topic": name, "partitions": partitions} for name, partitions in topics.items()]}
