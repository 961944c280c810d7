"""The keys below chunks/ (docs/formats/chunks.md). They name a partition's topic and not its id: see manifests.namesakes."""

import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from headwater_core.errors import UsageError
from headwater_core.layouts.chunks.chunk_names import SegmentPlace, Variant
from headwater_core.objectstore.store import ObjectInfo, ObjectStore
from headwater_core.partition import TopicPartition, check_cluster_id

CHUNKS = "chunks/"
LAYOUT = "chunks"
INDEX = ".index"
_NUMBER = "0|[1-9][0-9]{0,18}"
_BROKER = re.compile(r"([A-Za-z0-9._-]{1,200})\.(0|[1-9][0-9]{0,9})")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_OBJECT = re.compile(  # what follows the queue's directory
    rf"commitLog(?:/seg-(?P<append>{_NUMBER})/(?:segment|chunk-(?P<append_at>{_NUMBER}))"
    rf"|-(?P<fixed>{_NUMBER})(?:-seg|/chunk-(?P<fixed_at>{_NUMBER})))(?P<index>\.index)?"
)
_AFTER = "~"  # sorts after every topic's name


class ChunkName(NamedTuple):
    """What the key of a chunk, of a consolidated object, or of the index beside one says.

    node, fence  of its writer
    position     of a chunk, in its segment; None for a consolidated object
    uid          of the object, and of the index beside it: an entry has that of the object which its key names
    """

    topic: str
    partition: int
    node: str
    fence: int
    place: SegmentPlace
    position: int | None
    uid: str

    @property
    def key(self) -> str:
        """Of the data object, whatever the name was read from."""
        return self.place.segment_key if self.position is None else self.place.chunk_key(self.position)


def queue(cluster_id: str, node: str, fence: int, place: TopicPartition) -> str:
    """The directory of what one writer has written of a partition under one fence."""
    return f"{CHUNKS}{cluster_id}/{node}.{fence}/{place.topic}/{place.partition}"


def named(key: str) -> ChunkName:
    """`parse` for a key of ours."""
    found = parse(key)
    assert found is not None, key
    return found


@lru_cache(maxsize=4096)
def parse(key: str) -> ChunkName | None:
    """The parts of a key below chunks/; None for anything else, names that we would not have written included."""
    parts = key.split("/", 5)
    if len(parts) < 6 or parts[0] != "chunks":
        return None
    _, cluster_id, broker, topic, number, rest = parts
    by, found = _BROKER.fullmatch(broker), _OBJECT.fullmatch(rest)
    if by is None or found is None or not _PARTITION.fullmatch(number):
        return None
    try:
        check_cluster_id(cluster_id)
        of = TopicPartition(topic, int(number))
        is_append = found["append"] is not None
        variant = Variant.APPEND if is_append else Variant.FIXED
        directory = key[: len(key) - len(rest) - 1]
        place = SegmentPlace(directory, "commitLog", int(found["append"] if is_append else found["fixed"]), variant)
    except UsageError:
        return None
    at = found["append_at"] or found["fixed_at"]
    position = None if at is None else int(at)
    return ChunkName(of.topic, of.partition, by[1], int(by[2]), place, position, _uid(place, position))


def _uid(place: SegmentPlace, position: int | None) -> str:
    named_by = place.segment_key if position is None else place.chunk_key(position)
    return hashlib.blake2b(named_by.encode(), digest_size=16).hexdigest()


def segment_uid(place: SegmentPlace) -> str:
    """Of a segment that is being written: what the head's list of what is pending calls it. In the fixed variant its entry is called so."""
    return hashlib.blake2b(place.prefix.encode(), digest_size=16).hexdigest()


def stored_chunks(store: ObjectStore, of: TopicPartition) -> Iterator[tuple[ObjectInfo, ChunkName]]:
    """Every object of ours below chunks/ of partitions of this name, of whatever incarnation, and what its key says. Raises what the store
    raises: a listing that was cut is none."""
    for directory in _brokers(store):
        for info in store.list(f"{directory}{of.topic}/{of.partition}/"):
            if (name := parse(info.key)) is not None:
                yield info, name


def highest_fence(store: ObjectStore, of: TopicPartition) -> int:
    """Under which anything of partitions of this name was written; -1 where nothing was. Reads one name of each writer and fence."""
    highest = -1
    for directory in _brokers(store):
        first = next(iter(store.list(f"{directory}{of.topic}/{of.partition}/")), None)
        fence = _BROKER.fullmatch(directory.split("/")[2])
        if first is not None and fence is not None:
            highest = max(highest, int(fence[2]))
    return highest


def queues(store: ObjectStore) -> Iterator[TopicPartition]:
    """The partitions that have objects below chunks/, by name, each once, without reading the names of all objects."""
    found = set[TopicPartition]()
    after = ""
    while (info := next(iter(store.list(CHUNKS, start_after=after)), None)) is not None:
        name = parse(info.key)
        if name is None:
            after = info.key
            continue
        of = TopicPartition(name.topic, name.partition)
        if of not in found:
            found.add(of)
            yield of
        after = f"{name.place.queue}/{_AFTER}"


def _brokers(store: ObjectStore) -> Iterator[str]:
    """The directories of cluster and writer, a request for each."""
    after = ""
    while (info := next(iter(store.list(CHUNKS, start_after=after)), None)) is not None:
        parts = info.key.split("/")
        if len(parts) < 6:
            after = info.key
            continue
        directory = "/".join(parts[:3]) + "/"
        yield directory
        after = directory + _AFTER
