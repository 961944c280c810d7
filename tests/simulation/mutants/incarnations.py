"""Mistakes about topics that were deleted and created again."""

from contextlib import ExitStack
from dataclasses import replace as dataclass_replace
from typing import Any

import msgspec

import manifests.page_store
import manifests.repository
from archival.partition.source import PartitionSource
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from manifests import keys
from manifests.head import Head, decode_head
from manifests.topic import Current
from tests.simulation.mutants.mutant import mutant, patch_in


@mutant("heads and objects are found by topic name")
def incarnations_mixed(stack: ExitStack) -> None:
    real_decode = decode_head

    def head_key(partition: PartitionId) -> str:
        return f"meta/{partition.topic}/{'A' * 22}/{partition.partition}/manifest.json"

    def decode(raw: bytes, partition: PartitionId) -> Head:
        first = dataclass_replace(partition, topic_id=msgspec.json.decode(raw)["topic_id"])
        return real_decode(raw, first)

    def look(self: PartitionSource) -> LocalLog:
        log = self._logs.look(self._partition.topic_partition)
        return dataclass_replace(log, partition=self._partition)

    patch_in(stack, keys, "head", head_key)
    patch_in(stack, manifests.repository, "decode_head", decode)
    patch_in(stack, PartitionSource, "look", look)


@mutant("current.json always turns to the last writer", theme="incarnations", noted=118)
def name_always_turns(stack: ExitStack) -> None:
    def turn(held: Current | None, seen: Any, *_: Any) -> Current | None:
        if held is not None and held.topic_id == seen.topic_id:
            return None
        version = 1 if held is None else held.version + 1
        return Current(cluster_id=seen.cluster_id, topic=seen.topic, topic_id=seen.topic_id, version=version)

    patch_in(stack, manifests.repository, "turn_to", turn)
