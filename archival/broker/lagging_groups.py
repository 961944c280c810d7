"""Which consumer groups have not read yet what release deletes at the broker.

A group that reads the broker directly would find its offset out of range and jump, one that reads Headwater's endpoint reads on.
Nothing at the broker tells the two apart, so this warns and stops nothing.
"""

import threading
from collections.abc import Mapping

import structlog

from archival.broker.broker_view import Broker, GroupOffset
from headwater_core.clock import Clock
from headwater_core.errors import HeadwaterError
from headwater_core.partition import PartitionId, TopicPartition

REFRESH_S = 3600.0  # it takes requests to all brokers of the cluster
FAILED_S = 300.0

_log = structlog.get_logger()


class LaggingGroups:
    """Safe to use from many threads."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker, self._clock = broker, clock
        self._refreshing, self._lock = threading.Lock(), threading.Lock()
        self._lowest: Mapping[TopicPartition, GroupOffset] | None = None
        self._refresh_s = float("-inf")
        self._warned: dict[TopicPartition, GroupOffset] = {}

    def check(self, partition: PartitionId, end: int) -> None:
        """Records before offset `end` are about to be deleted: report a group that has committed less than that, once for each group and
        offset. What groups have committed is looked up every hour."""
        place = partition.topic_partition
        if self._refreshing.acquire(blocking=self._lowest is None):  # later, others go on with what was known
            try:
                self._refresh(self._clock.monotonic_s())
            finally:
                self._refreshing.release()
        with self._lock:
            lowest = (self._lowest or {}).get(place)
            if lowest is None or lowest.offset >= end or self._warned.get(place) == lowest:
                return
            self._warned[place] = lowest
        _log.warning(
            "consumers_behind_release",
            partition=str(partition),
            group=lowest.group,
            offset=lowest.offset,
            next_offset=end,
            reason="records that this group has not committed are deleted at the broker: it must read them from Headwater's endpoint",
        )

    def _refresh(self, now_s: float) -> None:
        if now_s < self._refresh_s:
            return
        self._refresh_s = now_s + REFRESH_S
        try:
            self._lowest = self._broker.lowest_commits()
        except HeadwaterError as error:
            self._lowest, self._refresh_s = self._lowest or {}, now_s + FAILED_S
            _log.warning("consumer_groups_unknown", reason=str(error))
