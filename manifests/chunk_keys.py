"""The keys below chunks/ (docs/formats/chunks.md). They name a partition's topic and not its id: see manifests.namesakes."""

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
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
_PAGE = 1000  # objects that a store lists by one request


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
    for info in _scan(store, lambda key: _onward(key, of, reads_all=True)):
        if (name := parse(info.key)) is not None and (name.topic, name.partition) == (of.topic, of.partition):
            yield info, name


def highest_fence(store: ObjectStore, of: TopicPartition, limit: int) -> int:
    """Up to `limit`, under which anything of partitions of this name was written; -1 where nothing was."""
    highest = -1
    for info in _scan(store, lambda key: _onward(key, of, reads_all=False)):
        directory, _, rest = info.key.removeprefix(CHUNKS).partition("/")[2].partition("/")
        fence = _BROKER.fullmatch(directory)
        if fence is not None and int(fence[2]) <= limit and rest.startswith(f"{of.topic}/{of.partition}/"):
            highest = max(highest, int(fence[2]))
    return highest


def queues(store: ObjectStore) -> Iterator[TopicPartition]:
    """The partitions that have objects below chunks/, by name, each once."""
    found = set[TopicPartition]()
    for info in _scan(store, _after_queue):
        if (name := parse(info.key)) is not None and (of := TopicPartition(name.topic, name.partition)) not in found:
            found.add(of)
            yield of


def _scan(store: ObjectStore, onward: Callable[[str], str]) -> Iterator[ObjectInfo]:
    """What lies below chunks/, in key order. Nothing between a key and `onward` of it is wanted, and is left out where that saves requests:
    what a request has brought is read first, as there may be thousands of directories with little in each."""
    after: str | None = ""
    while after is not None:
        page = islice(store.list(CHUNKS, start_after=after), _PAGE)
        after = None
        for number, info in enumerate(page, 1):
            yield info
            after = max(info.key, onward(info.key)) if number == _PAGE else None


def _onward(key: str, of: TopicPartition, *, reads_all: bool) -> str:
    """Where in the directories of writers and fences the next object of the partition may be; reads_all: more than one of each."""
    parts = key.split("/", 3)
    if len(parts) < 4:
        return key
    directory = "/".join(parts[:3])
    wanted = f"{directory}/{of.topic}/{of.partition}/"
    if key < wanted:
        return wanted
    return key if reads_all and key.startswith(wanted) else f"{directory}/{_AFTER}"


def _after_queue(key: str) -> str:
    name = parse(key)
    return key if name is None else f"{name.place.queue}/{_AFTER}"
