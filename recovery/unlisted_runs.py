"""Objects beyond the end of what a head lists: left by uploads that were not finished, or the head is an older version of what it was."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, ForeignOwner, UnsupportedFormat
from headwater_core.layouts import open_layout
from headwater_core.partition import TopicPartition
from headwater_core.threads import ContextThreads
from manifests import chunk_keys, keys
from manifests.chunk_keys import ChunkName
from manifests.entry import Entry
from manifests.head import Head
from manifests.namesakes import Namesakes
from manifests.repository import ManifestRepository
from recovery.discovery import ArchivedTopic

_READERS = 16


def unlisted_notes(repository: ManifestRepository, topics: Iterable[ArchivedTopic]) -> Sequence[str]:
    """A note for each partition that has some. One listing per partition, of what lies beyond its end alone, and one of its chunks where
    there are any of its name. Raises what the store raises."""
    heads = [head for topic in topics for _, head in sorted(topic.heads.items())]
    chunked = set(chunk_keys.queues(repository.store)) if heads else set[TopicPartition]()
    with ContextThreads(_READERS, "recover-unlisted") as pool:
        return [note for note in pool.map(lambda head: _note(repository, head, chunked), heads) if note]


def _note(repository: ManifestRepository, head: Head, chunked: Collection[TopicPartition]) -> str:
    partition = head.partition_id
    beyond: dict[str, keys.DataName] = {}
    prefix = keys.data_prefix(partition)
    for info in repository.store.list(prefix, start_after=f"{prefix}{head.next_offset:020}"):  # names begin with the base offset
        name = keys.parse_data(info.key)
        if name is not None and not info.key.endswith(".index"):
            beyond[info.key] = name
    try:
        chunks = list(_chunks_beyond(repository, head)) if partition.topic_partition in chunked else []
        if not beyond and not chunks:
            return ""
        superseded = {key for each in head.superseded if isinstance(each, Entry) for key in _data_keys(each)}
        held = repository.load(partition)
    except (CorruptData, ForeignOwner, UnsupportedFormat):
        return ""  # said elsewhere
    if held is None or held.head.commit_id != head.commit_id:
        return ""  # the archive goes on: what is there by now is listed by now
    found: list[str] = []
    if names := [name for key, name in beyond.items() if key not in superseded]:
        first, last = min(name.base_offset for name in names), max(name.last_offset for name in names)
        found.append(f"{count_text(len(names), 'object')} of offsets {first} to {last}")
    if bases := [name.place.base for name in chunks if name.key not in superseded]:
        found.append(f"{count_text(len(bases), 'chunk')} of segments from offset {min(bases)} to {max(bases)} on")
    if not found:
        return ""
    return (
        f"{partition} ends at offset {head.next_offset}, and its manifest does not list {' and '.join(found)}: uploads "
        f"that were not finished, or version {head.version} of it is older than the last one"
    )


def _chunks_beyond(repository: ManifestRepository, head: Head) -> Iterator[ChunkName]:
    """What lies below chunks/ of segments that begin at the end or after it, or follows the last chunk in its segment. Not what may be
    another incarnation's."""
    last = chunk_keys.parse(head.entries[-1].key) if head.entries else None
    namesakes = Namesakes(repository, head.partition_id)
    for info, name in chunk_keys.stored_chunks(repository.store, head.partition_id.topic_partition):
        if info.key.endswith(chunk_keys.INDEX):
            continue
        is_next = last is not None and name.place == last.place and (name.position or 0) > (last.position or 0)
        is_beyond = name.place.base >= head.next_offset or (is_next and not head.entries[-1].is_cut)
        if is_beyond and not any(namesakes.may_have(uid, name.fence) for uid in (name.uid, chunk_keys.segment_uid(name.place))):
            yield name


def _data_keys(entry: Entry) -> Iterable[str]:
    return (key for key, _ in open_layout(entry.layout).data_objects(entry)) if entry.layout == chunk_keys.LAYOUT else (entry.key,)
