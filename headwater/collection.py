"""What `headwater gc` and `headwater delete-before` request, done by this process or by the agent that holds the data directory."""

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Annotated, Any

import msgspec

from archival.collection.collector import Collected
from archival.fleet import ArchiverFleet
from archival.plan.trim import delete_to
from archival.upkeep import unfinished_by_prefix, uploads_of
from headwater.config import Config
from headwater.options import parse_incarnation_selection, parse_selection
from headwater.session import Session, rows_of_the_holder
from headwater.wiring import Bucket
from headwater_core.counts import count_text
from headwater_core.errors import (
    CorruptData,
    Fenced,
    ForeignOwner,
    HeadwaterError,
    NotFound,
    Partial,
    TransientError,
    UnsupportedFormat,
    UsageError,
)
from headwater_core.partition import PartitionId
from manifests import chunk_keys, keys
from manifests.prefixes import data_prefixes

OFFSET_MAX = 2**63 - 1


class CollectionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Collect what is selected; null: everything in the bucket.

    selection  TOPIC or TOPIC:P; with `before` TOPIC:P or TOPIC@TOPIC_ID:P
    before     the archive of the one selected partition is to begin at this offset; null: where retention wants it
    dry_run    only report what would be done
    """

    selection: str | None = None
    before: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)] | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.before is None:
            if self.selection is not None:
                parse_selection(self.selection)
        elif parse_incarnation_selection(self.selection or "")[2] is None:
            raise UsageError(f"one partition at a time: {self.selection}:P")


def run_collection(config: Config, request: CollectionRequest, on_row: Callable[[dict[str, Any]], None]) -> None:
    """In this process, or by the agent that holds the data directory.

    on_row  called with each partition that is done

    Raises Partial when some partitions could not be collected, and their error when none could.
    """
    for row in rows_of_the_holder(config, "/v1/gc", msgspec.to_builtins(request), lambda session: collection_rows(session, request)):
        on_row(row)


def collection_rows(
    session: Session,
    request: CollectionRequest,
    stop: threading.Event | None = None,
    planned: Callable[[int], object] = lambda _: None,
) -> Generator[dict[str, Any]]:
    """A row for each partition; `planned` is called with the number of those that have a manifest. At the end raises what `run_collection`
    does. `stop` ends it early: TransientError."""
    fleet, stop = session.archivers, stop or threading.Event()
    uploads = {} if request.dry_run else unfinished_by_prefix(fleet)
    count, failed, prefixes = 0, list[HeadwaterError](), set[str]()
    partitions = []
    for partition in _selected(session.bucket, request, failed):
        _check(stop)
        partitions.append(partition)
    unread = len(failed)
    planned(len(partitions))
    for partition in partitions:
        _check(stop)
        prefix = keys.data_prefix(partition)
        prefixes.add(prefix)
        done = _collect(fleet, partition, request, stop, uploads_of(uploads, partition))
        count += 1
        if done.error is not None and not (isinstance(done.error, Fenced) and request.before is None):
            failed.append(done.error)
        yield _row(done)
    if request.selection is None:
        places = {(each.topic, each.partition) for each in partitions}
        yield from _without_manifest(session.bucket, prefixes, places, stop)
    elif not count and not unread:
        raise NotFound(f"{request.selection} is not in {session.bucket.store.url}")
    if len(failed) == count + unread > 0:
        raise failed[0]
    if unread:
        topics, every = count_text(unread, "topic"), count_text(count, "partition")
        raise Partial(f"{topics} and {len(failed) - unread} of {every} could not be collected; {failed[0]}")
    if failed:
        raise Partial(f"{len(failed)} of {count_text(count, 'partition')} could not be collected; {failed[0]}")


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise TransientError("the collection was stopped before its end; the next one continues")


def _collect(fleet: ArchiverFleet, partition: PartitionId, request: CollectionRequest, stop: threading.Event, uploads: Any) -> Collected:
    before = request.before
    border = None if before is None else lambda head: delete_to(head, before)
    return fleet.collect(partition, border=border, uploads=uploads, dry_run=request.dry_run, stop=stop.is_set)


def _selected(bucket: Bucket, request: CollectionRequest, unread: list[HeadwaterError]) -> Iterator[PartitionId]:
    """The partitions with a manifest, of all incarnations of a topic: an old one has orphans too. Records are deleted of one alone, which
    the name means, or NAME@TOPIC_ID: offsets of another incarnation are other records.

    unread  gets what is wrong with each topic manifest that cannot be read: the others do not wait for it
    """
    if request.before is not None:
        yield from _meant(bucket, request.selection or "")
        return
    topic, number = parse_selection(request.selection) if request.selection else (None, None)
    for each in bucket.manifests.incarnations(topic):
        try:
            partitions = bucket.manifests.partitions(each.topic, each.topic_id)
        except NotFound:  # its topic manifest is lost: what it has is reported as data without a manifest
            continue
        except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
            unread.append(error)
            continue
        for partition in partitions:
            if number in (None, partition.partition):
                yield partition


def _meant(bucket: Bucket, selection: str) -> Iterator[PartitionId]:
    topic, topic_id, number = parse_incarnation_selection(selection)
    found = bucket.manifests.partitions(topic, topic_id or bucket.manifests.resolve(topic).topic_id)
    return (each for each in found if each.partition == number)


def _without_manifest(bucket: Bucket, known: set[str], places: set[tuple[str, int]], stop: threading.Event) -> Iterator[dict[str, Any]]:
    """Partitions of which there is data and no manifest. Nothing of them is deleted: their data may be all that is left."""
    for prefix in data_prefixes(bucket.store):
        _check(stop)
        folder = keys.parse_data_prefix(prefix)
        if folder is not None and prefix not in known:
            yield _fields(*folder) | {"reason": "there is data and no manifest; nothing is deleted"}
    for of in chunk_keys.queues(bucket.store):
        _check(stop)
        if (of.topic, of.partition) not in places:
            yield _fields(of.topic, "", of.partition) | {"reason": "there are chunks and no manifest; nothing is deleted"}


def _row(done: Collected) -> dict[str, Any]:
    partition = done.partition
    reason = "" if done.error is None else str(done.error)
    is_foreign = isinstance(done.error, Fenced)
    return _fields(partition.topic, partition.topic_id, partition.partition) | {
        **{name: getattr(done, name) for name in FACTS},
        "reason": f"nothing is done: {reason}" if is_foreign else done.kept,
        "error": None if is_foreign or done.error is None else reason,
    }


FACTS = (
    "start_offset",
    "trimmed_entries",
    "trimmed_bytes",
    "forgotten_entries",
    "orphans",
    "orphan_bytes",
    "deleted",
    "deleted_bytes",
    "aborted",
    "again_ms",
)


def _fields(topic: str, topic_id: str, partition: int) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(FACTS, 0) | {"start_offset": None, "again_ms": None}
    return {"topic": topic, "topic_id": topic_id, "partition": partition, **nothing, "reason": "", "error": None}
