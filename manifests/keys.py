"""Every key of the bucket, in one place (design §7). Names were checked when they entered; see `headwater_core.partition`."""

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from headwater_core.errors import UsageError
from headwater_core.objectstore.store import check_key
from headwater_core.partition import PartitionId, TopicPartition, check_topic_id, check_topic_name
from manifests import chunk_keys
from manifests.chunk_keys import CHUNKS

OWNER = "headwater.json"
PAUSES = "paused.json"
META = "meta/"
SETTINGS = "meta/settings.json"
DATA = "data/"
STREAM = "stream/"
ROOTS = (DATA, STREAM)  # of the data objects whose keys name their incarnation
ALL_ROOTS = (*ROOTS, CHUNKS)
CLUSTER = "cluster/"
CLUSTER_LIST = "cluster/latest.json"
RECOVERIES = "cluster/recoveries/"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_UID = re.compile(r"[0-9a-f]{32}")
_PAGE_NAME = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9])-([0-9]{10})-([0-9a-f]{32})\.jsonl\.gz")
_DATA_NAME = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9]{10})-([0-9a-f]{32})\.(log|index|blocks)")
_STREAM_NAME = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-index|-meta)?")
_FENCE = re.compile(r"[0-9]{10}")
_SUFFIXES = {"segment": ".log", "blocks": ".blocks"}  # of the data objects whose names say their offsets
_SNAPSHOT_NAME = re.compile(r"([0-9]{20})-([0-9]{10})-([0-9a-f]{32})\.checkpoint\.gz")
_SNAPSHOT_NUMBER = re.compile(r"[0-9]{10}")


def name_prefix(topic: str) -> str:
    """Everything but the data of every incarnation that had this name."""
    return f"meta/{check_topic_name(topic)}/"


def current(topic: str) -> str:
    return name_prefix(topic) + "current.json"


def topic_prefix(topic: str, topic_id: str) -> str:
    return f"{name_prefix(topic)}{check_topic_id(topic_id)}/"


def topic_manifest(topic: str, topic_id: str) -> str:
    return topic_prefix(topic, topic_id) + "topic.json"


def manifest_prefix(partition: PartitionId) -> str:
    """The head of one partition, and its pages."""
    return f"{topic_prefix(partition.topic, partition.topic_id)}{partition.partition}/"


def head(partition: PartitionId) -> str:
    return manifest_prefix(partition) + "manifest.json"


class ManifestName(NamedTuple):
    """What the key of a manifest says; partition None for a topic manifest."""

    topic: str
    topic_id: str
    partition: int | None


def parse_manifest(key: str) -> ManifestName | None:
    """The parts of a manifest's key; None for anything else, names that we would not have written included."""
    try:
        match key.split("/"):
            case ["meta", topic, topic_id, "topic.json"]:
                return ManifestName(check_topic_name(topic), check_topic_id(topic_id), None)
            case ["meta", topic, topic_id, number, "manifest.json"] if _NUMBER.fullmatch(number):
                return ManifestName(TopicPartition(topic, int(number)).topic, check_topic_id(topic_id), int(number))
    except UsageError:
        pass
    return None


def page(partition: PartitionId, base_offset: int, last_offset: int, level: int, fence: int, uid: str) -> str:
    """A page of the partition's manifest: what it lists, its level above the entries, and the fence of its commit."""
    name = f"{base_offset:020}-{last_offset:020}-{level}-{fence:010}-{uid}.jsonl.gz"
    return check_key(manifest_prefix(partition) + name)


class PageName(NamedTuple):
    """What the key of a page says."""

    topic: str
    topic_id: str
    partition: int
    level: int
    fence: int
    uid: str


def parse_page(key: str) -> PageName | None:
    """The parts of a page's key; None for anything else."""
    try:
        match key.split("/"):
            case ["meta", topic, topic_id, number, name] if _NUMBER.fullmatch(number) and (found := _PAGE_NAME.fullmatch(name)):
                place = TopicPartition(topic, int(number))
                return PageName(place.topic, check_topic_id(topic_id), place.partition, int(found[3]), int(found[4]), found[5])
    except UsageError:
        pass
    return None


def is_uid(text: str) -> bool:
    """Whether `text` is a unique name as objects and pages have one."""
    return _UID.fullmatch(text) is not None


def parse_current(key: str) -> str | None:
    """The topic of a current.json's key; None for anything else."""
    try:
        match key.split("/"):
            case ["meta", topic, "current.json"]:
                return check_topic_name(topic)
    except UsageError:
        pass
    return None


def data_prefix(partition: PartitionId) -> str:
    """All data objects of one partition, but those that are written while they fill. The hash spreads partitions over the store's key
    ranges; taking it over the partition, not the object, keeps a partition's garbage collection one listing."""
    return DATA + _folder(partition.topic, partition.topic_id, partition.partition)


def stream_prefix(partition: PartitionId) -> str:
    """The data objects of one partition that are written while they fill, whose offsets nobody knows before they are closed."""
    return STREAM + _folder(partition.topic, partition.topic_id, partition.partition)


def stream_folder(partition: PartitionId, fence: int) -> str:
    """Those of one fence; what follows in a key is the uid, spelled as a UUID."""
    return f"{stream_prefix(partition)}{fence:010}/"


@lru_cache(maxsize=256)  # each entry of a head is asked for it, whenever the head is written or read
def _folder(topic: str, topic_id: str, partition: int) -> str:
    place = f"{topic}/{topic_id}/{partition}"
    return f"{hashlib.sha256(place.encode()).hexdigest()[:8]}/{place}/"


def home(key: str) -> str:
    """What `data_prefix` gives for the partition whose data object `key` is, whatever its layout; for any other key, its folder. The
    hash is not compared."""
    folder = key.rpartition("/")[0] + "/"
    return DATA + folder.removeprefix(STREAM).rpartition("/")[0].rpartition("/")[0] + "/" if folder.startswith(STREAM) else folder


class FolderName(NamedTuple):
    """What the prefix of a partition's data objects says."""

    topic: str
    topic_id: str
    partition: int


def parse_data_prefix(prefix: str) -> FolderName | None:
    """The parts of what `data_prefix` gave; None for anything else. The hash is not compared."""
    try:
        match prefix.split("/"):
            case ["data", _, topic, topic_id, number, ""] if _NUMBER.fullmatch(number):
                return FolderName(TopicPartition(topic, int(number)).topic, check_topic_id(topic_id), int(number))
    except UsageError:
        pass
    return None


def partition_of(data_key: str) -> str:
    """`topic:partition`, as log events name it; "" for what is no data key."""
    if (chunk := chunk_keys.parse(data_key)) is not None:
        return f"{chunk.topic}:{chunk.partition}"
    found = parse_data_prefix(home(data_key))
    return f"{found.topic}:{found.partition}" if found else ""


def names(layout: str) -> bool:
    """Do the keys of a layout's objects follow from partition, offsets, fence and uid?"""
    return layout in _SUFFIXES or layout == "streaming"


def data(partition: PartitionId, base_offset: int, last_offset: int, fence: int, uid: str, layout: str = "segment") -> str:
    """The data object of a run. Raises UsageError for a layout whose keys follow from something else.

    base_offset, last_offset  not part of the key in the layout `streaming`
    """
    if layout == "streaming":
        return f"{stream_folder(partition, fence)}{UUID(uid) if is_uid(uid) else check_key(uid)}"
    if layout not in _SUFFIXES:
        raise UsageError(f"layout {layout[:40]!r} names its objects itself")
    key = f"{data_prefix(partition)}{base_offset:020}-{last_offset:020}-{fence:010}-{uid}{_SUFFIXES[layout]}"
    return key if is_uid(uid) else check_key(key)  # nothing else of it may be anybody's word, and heads list thousands


def index(data_key: str) -> str:
    """The object beside it that holds the run's index as an object of its own; "" for a layout that keeps it elsewhere."""
    if data_key.startswith(CHUNKS):
        return data_key + chunk_keys.INDEX
    return data_key.removesuffix(".log") + ".index" if data_key.endswith(".log") else ""


class DataName(NamedTuple):
    """What the key of a data or index object says."""

    base_offset: int
    last_offset: int
    fence: int
    uid: str
    suffix: str


class SnapshotName(NamedTuple):
    """What the key of a cluster snapshot says: its number, and which records of the metadata log are in it, as Kafka names its own."""

    number: int
    end_offset: int
    end_epoch: int
    uid: str


def cluster_snapshot(name: SnapshotName) -> str:
    return check_key(f"{CLUSTER}{name.number:010}/{name.end_offset:020}-{name.end_epoch:010}-{name.uid}.checkpoint.gz")


def parse_cluster_snapshot(key: str) -> SnapshotName | None:
    """The parts of a cluster snapshot's key; None for anything else."""
    match key.split("/"):
        case ["cluster", number, name] if _SNAPSHOT_NUMBER.fullmatch(number) and (found := _SNAPSHOT_NAME.fullmatch(name)):
            return SnapshotName(int(number), int(found[1]), int(found[2]), found[3])
    return None


def recovery(recovery_id: str) -> str:
    """Which plan was applied where."""
    return check_key(f"{RECOVERIES}{recovery_id}.json")


def download(recovery_id: str) -> str:
    """That a topic was downloaded into owned log directories, where, and when."""
    return check_key(f"cluster/downloads/{recovery_id}.json")


def parse_data(key: str) -> DataName | None:
    """The parts of a data or index key; None for anything else."""
    match = _DATA_NAME.fullmatch(key.rpartition("/")[2])
    if not match:
        return None
    base, last, fence, uid, suffix = match.groups()
    return DataName(int(base), int(last), int(fence), uid, suffix)


def beside(key: str) -> str:
    """The data object that `key` stands beside, or is, below `stream/`; any other key as it is."""
    return key.removesuffix("-index").removesuffix("-meta") if key.startswith(STREAM) else key


class ObjectName(NamedTuple):
    """What the key of any object of a run says: its data, its index, or what else its layout keeps beside them."""

    fence: int
    uid: str


def parse_object(key: str) -> ObjectName | None:
    """The parts of such a key; None for anything else."""
    if (found := parse_data(key)) is not None:
        return ObjectName(found.fence, found.uid)
    match key.split("/"):
        case ["stream", _, _, _, _, fence, name] if _FENCE.fullmatch(fence) and (named := _STREAM_NAME.fullmatch(name)):
            return ObjectName(int(fence), named[1].replace("-", ""))
    chunk = chunk_keys.parse(key)
    return None if chunk is None else ObjectName(chunk.fence, chunk.uid)
