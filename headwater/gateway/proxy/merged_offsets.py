"""ListOffsets and OffsetForLeaderEpoch, where broker and archive both know something of a partition.

The broker answers first: who may not see a partition is told so, and ends are the broker's. What the archive has lies below the broker's
start; where it cannot say what it has, the client is to ask again.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from headwater.gateway.handlers.list_offsets import EARLIEST, MAX_TIMESTAMP
from headwater.gateway.messages import Fields
from headwater.gateway.protocol import Code
from headwater.gateway.proxy.broker_requests import BrokerRequests

Partition = tuple[str, int]
_UNKNOWN = {"error_code": Code.KAFKA_STORAGE_ERROR, "offset": -1, "timestamp": -1}  # every client asks again


class OffsetArchive(Protocol):
    def id_of(self, topic: str) -> bytes | None: ...
    def may_hold(self, topic: str, partition: int) -> bool: ...
    def is_earliest(self, topic: str) -> bool:
        """Whether clients are told the archive's first offset."""
        ...

    async def list_offsets(self, body: Fields) -> Fields:
        """As list_offsets.respond."""
        ...

    async def epoch_ends(self, body: Fields) -> Fields:
        """As offset_for_leader_epoch.respond."""
        ...


class OffsetMerges:
    """Of one connection."""

    def __init__(self, archive: OffsetArchive, broker: BrokerRequests) -> None:
        self._archive, self._broker = archive, broker

    async def list_offsets(self, body: Fields, answer: Fields) -> Fields:
        """`answer` is the broker's to `body`; the merged one. Raises what asking the broker does."""
        wanted = {
            (topic["name"], fields["partition_index"]): fields
            for topic in body["topics"]
            for fields in topic["partitions"]
            if (fields["timestamp"] == EARLIEST and self._archive.is_earliest(topic["name"]))
            or fields["timestamp"] == MAX_TIMESTAMP
            or fields["timestamp"] >= 0
        }
        answered = _by_partition(answer, "name", "partition_index")
        sound = [key for key in wanted if key in answered and answered[key]["error_code"] == Code.NONE]
        ours, unknown = await self._ours(sound)
        timed = [key for key in ours if wanted[key]["timestamp"] >= 0 and answered[key]["offset"] >= 0]
        starts = await self._broker.offsets(timed, EARLIEST)
        above = {key for key in timed if answered[key]["offset"] > starts.get(key, -1)}
        wanted_here = {key: {**wanted[key], "current_leader_epoch": -1} for key in ours if key not in above}
        if not wanted_here and not unknown:
            return answer
        theirs = await self._archive.list_offsets(_of(wanted_here, body)) if wanted_here else {"topics": []}
        found = _by_partition(theirs, "name", "partition_index")
        merged = {key: _lower_or_later(wanted[key]["timestamp"], answered[key], found[key]) for key in wanted_here}
        merged |= {key: {**answered[key], **_UNKNOWN} for key in unknown}
        return _replaced(answer, merged, "name", "partition_index")

    async def epoch_ends(self, body: Fields, answer: Fields) -> Fields:
        """As list_offsets: of an epoch that ended at or below the broker's start the archive knows where."""
        wanted = {(topic["topic"], fields["partition"]): fields for topic in body["topics"] for fields in topic["partitions"]}
        answered = _by_partition(answer, "topic", "partition")
        ours, _ = await self._ours([key for key in wanted if key in answered and answered[key]["error_code"] == Code.NONE])
        if not ours:
            return answer
        wanted_here = {key: {**wanted[key], "current_leader_epoch": -1} for key in ours}
        found = _by_partition(await self._archive.epoch_ends(_of(wanted_here, body, "topic")), "topic", "partition")
        starts = await self._broker.offsets(ours, EARLIEST)
        merged = {
            key: {**answered[key], "leader_epoch": found[key]["leader_epoch"], "end_offset": found[key]["end_offset"]}
            for key in ours
            if found[key]["error_code"] == Code.NONE and 0 <= found[key]["end_offset"] <= starts.get(key, -1)
        }
        return _replaced(answer, merged, "topic", "partition")

    async def _ours(self, partitions: Iterable[Partition]) -> tuple[list[Partition], list[Partition]]:
        """Those of topics that the archive has, and not another one of that name; and those of which it is not known."""
        known = [key for key in partitions if self._archive.may_hold(*key)]
        ids = await self._broker.topic_ids(dict.fromkeys(topic for topic, _ in known)) if known else {}
        ours, unknown = [], []
        for key in known:
            mine, theirs = self._archive.id_of(key[0]), ids.get(key[0])
            if mine is None or theirs is None:
                unknown.append(key)
            elif mine == theirs:
                ours.append(key)
        return ours, unknown


def _lower_or_later(timestamp: int, broker: Fields, archive: Fields) -> Fields:
    code = archive["error_code"]
    if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return broker
    if code != Code.NONE:
        return {**broker, "error_code": code, "offset": -1, "timestamp": -1}
    if archive["offset"] < 0:
        return broker
    if timestamp == MAX_TIMESTAMP:
        is_archive = archive["timestamp"] > broker["timestamp"]
    else:
        is_archive = broker["offset"] < 0 or archive["offset"] < broker["offset"]
    return {**broker, **{name: archive[name] for name in ("offset", "timestamp", "leader_epoch")}} if is_archive else broker


def _by_partition(answer: Fields, topic: str, partition: str) -> dict[Partition, Fields]:
    return {(of_topic[topic], fields[partition]): fields for of_topic in answer["topics"] for fields in of_topic["partitions"]}


def _of(wanted_here: Mapping[Partition, Fields], body: Fields, name: str = "name") -> Fields:
    topics = dict[str, list[Fields]]()
    for (topic, _), fields in wanted_here.items():
        topics.setdefault(topic, []).append(fields)
    return {**body, "topics": [{name: topic, "partitions": fields} for topic, fields in topics.items()]}


def _replaced(answer: Fields, merged: Mapping[Partition, Fields], topic: str, partition: str) -> dict[str, Any]:
    topics = [
        {**of_topic, "partitions": [merged.get((of_topic[topic], fields[partition]), fields) for fields in of_topic["partitions"]]}
        for of_topic in answer["topics"]
    ]
    return {**answer, "topics": topics}
