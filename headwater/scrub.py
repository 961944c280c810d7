"""Re-reads the archive against its manifests: are the objects there, whole, and what the heads say they are?"""

import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from archival.source import ArchivedRun
from layouts import open_layout
from manifests import keys
from manifests.head import Entry, Head
from manifests.topic import TopicManifest
from model.errors import CorruptData, HeadwaterError, NotFound
from objectstore.store import ObjectStore
from segments.scan import scan_run

READ_BYTES = 8 << 20  # one ranged GET of `verify --data`
MISSING_MAX = 1000  # partitions of one topic that are named one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong. `damage`: the archive is; else it could not be examined. partition: None for the topic itself."""

    topic: str
    partition: int | None
    key: str
    problem: str
    damage: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One run that was looked at, and what was wrong with it."""

    entry: Entry
    size_bytes: int
    finding: Finding | None = None


def missing(manifest: TopicManifest, listed: Collection[int], only: int | None = None) -> Iterator[Finding]:
    """A finding for each partition that the topic has by its manifest and of which nothing is listed; `only`: look at this one alone.

    Whether its head was lost or no agent has archived it yet, nobody can tell; a recovery would come back without it.
    """
    absent = len(range(manifest.partitions)) - sum(number < manifest.partitions for number in set(listed))
    numbers = range(manifest.partitions) if only is None else [only] if only < manifest.partitions else []
    told = 0
    for number in numbers:
        if number in listed:
            continue
        problem = f"no manifest: lost, or never archived; {manifest.topic} has {manifest.partitions} partitions"
        told += 1
        if told == MISSING_MAX and absent > told:
            problem += f"; {absent - told} more have none either"
        partition = manifest.partition_id(number)
        yield Finding(topic=partition.topic, partition=number, key=keys.head(partition), problem=problem)
        if told == MISSING_MAX:
            return


def scrub(store: ObjectStore, head: Head, *, data: bool, progressed: Callable[[int], None] = lambda _: None) -> Iterator[Examined]:
    """Examine every run that `head` lists, superseded ones too; gaps hold nothing to look at.

    data        read every byte: each batch's CRC, offsets and epochs, and the digest of the whole object
    progressed  told of bytes as they are done
    """
    for entry in (*head.entries, *head.superseded):
        if entry.gap:
            continue
        finding = None
        try:
            check_listed(store, entry)
            if data:
                check_bytes(store, entry)
        except (CorruptData, NotFound) as error:
            finding = Finding(topic=head.topic, partition=head.partition, key=entry.key, problem=str(error))
        except HeadwaterError as error:
            finding = Finding(topic=head.topic, partition=head.partition, key=entry.key, problem=str(error), damage=False)
        progressed(entry.size_bytes)
        yield Examined(entry=entry, size_bytes=entry.size_bytes if data else 0, finding=finding)


def check_listed(store: ObjectStore, entry: Entry) -> None:
    """The object is there with the length and digest that the manifest names, and so is its index, which agrees with the entry.

    Raises NotFound and CorruptData.
    """
    found = store.stat(entry.key)
    if found.size_bytes != entry.size_bytes:
        raise CorruptData(entry.key, 0, f"{found.size_bytes} bytes, the manifest says {entry.size_bytes}")
    if found.digest is not None and found.digest != entry.digest:
        raise CorruptData(entry.key, 0, f"digest {found.digest}, the manifest says {entry.digest}")
    index = open_layout(entry.layout).read_index(store, entry.index_key, entry.index_bytes, entry.index_digest)
    if index.size_bytes != entry.size_bytes:
        raise CorruptData(entry.index_key, 0, f"an index of {index.size_bytes} bytes of data, the manifest says {entry.size_bytes}")
    if not entry.is_cut and index.last_offset > entry.last_offset:
        raise CorruptData(entry.index_key, 0, f"an index up to offset {index.last_offset}, the manifest says {entry.last_offset}")


def check_bytes(store: ObjectStore, entry: Entry) -> None:
    """Every byte of the object: batch CRCs, offset order, and the digest. Memory stays bounded by one read. Raises CorruptData."""
    run = io.BufferedReader(ArchivedRun(store, open_layout(entry.layout), entry), READ_BYTES)
    found = scan_run(cast(BinaryIO, run), start=0, end=entry.size_bytes, where=entry.key)
    if found is None or found.end_position != entry.size_bytes:
        raise CorruptData(entry.key, 0 if found is None else found.end_position, "bytes after the last batch")
    if found.digest != entry.digest:
        raise CorruptData(entry.key, 0, f"its bytes have digest {found.digest}, the manifest says {entry.digest}")
    if not entry.is_cut and not entry.base_offset <= found.last_offset <= entry.last_offset:
        raise CorruptData(
            entry.key,
            0,
            f"offsets {found.base_offset} to {found.last_offset}, the manifest says {entry.base_offset} to {entry.last_offset}",
        )
