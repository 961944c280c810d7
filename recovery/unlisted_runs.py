"""Objects beyond the end of what a head lists: left by uploads that were not finished, or the head is an older version of what it was."""

from collections.abc import Iterable, Sequence

from headwater_core.errors import CorruptData, ForeignOwner, UnsupportedFormat
from headwater_core.threads import ContextThreads
from manifests import keys
from manifests.entry import Entry
from manifests.head import Head
from manifests.repository import ManifestRepository
from recovery.discovery import ArchivedTopic

_READERS = 16


def unlisted_notes(repository: ManifestRepository, topics: Iterable[ArchivedTopic]) -> Sequence[str]:
    """A note for each partition that has some. One listing per partition, of what lies beyond its end alone. Raises what the store
    raises."""
    heads = [head for topic in topics for _, head in sorted(topic.heads.items())]
    with ContextThreads(_READERS, "recover-unlisted") as pool:
        return [note for note in pool.map(lambda head: _note(repository, head), heads) if note]


def _note(repository: ManifestRepository, head: Head) -> str:
    partition = head.partition_id
    beyond: dict[str, keys.DataName] = {}
    prefix = keys.data_prefix(partition)
    for info in repository.store.list(prefix, start_after=f"{prefix}{head.next_offset:020}"):  # names begin with the base offset
        name = keys.parse_data(info.key)
        if name is not None and not info.key.endswith(".index"):
            beyond[info.key] = name
    if not beyond:
        return ""
    try:
        superseded = {each.key for each in head.superseded if isinstance(each, Entry)}
        held = repository.load(partition)
    except (CorruptData, ForeignOwner, UnsupportedFormat):
        return ""  # said elsewhere
    if held is None or held.head.version != head.version:
        return ""  # the archive goes on: what is there by now is listed by now
    names = [name for key, name in beyond.items() if key not in superseded]
    if not names:
        return ""
    first, last = min(name.base_offset for name in names), max(name.last_offset for name in names)
    return (
        f"{partition} ends at offset {head.next_offset}, and {len(names)} objects of offsets {first} to {last} are not listed: uploads "
        f"that were not finished, or its manifest, version {head.version}, is older than it was"
    )
