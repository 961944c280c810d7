"""What the archive holds and an export does not: decided for each partition by itself, so that none stops the others."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from headwater.pipeline.scan.archive_snapshot import WORKERS, ArchiveSnapshot, OffsetRange, OpenTransactionAtEnd, place_offset
from headwater.pipeline.scan.progress import Progress, Reached, check_progress
from headwater.pipeline.scan.query import Advice, Query
from headwater.pipeline.scan.splits import Split, plan_splits
from headwater_core.errors import CorruptData, DataLoss, ForeignOwner, HeadwaterError, Superseded, UnsupportedFormat, UsageError
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.threads import ContextThreads
from manifests.entry import OFFSET_MAX
from manifests.head import Head
from manifests.repository import ManifestRepository

ADVICE = Advice(
    reader="the export has read",
    start_over="The export holds records that the log no longer has: export to another place, or delete those records",
    skip_loss="--allow-data-loss continues without them",
    set_aside="",
)

Places = Mapping[PartitionId, Reached]  # how far an export has come


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What cannot be exported now, and why: offsets [first, end), or all of a partition, or with `partition` None all of a topic."""

    topic: str
    partition: int | None
    first: int | None = None
    end: int | None = None
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What is to be exported.

    heads     of all partitions that can be exported, earlier incarnations of topics included
    splits    by topic and partition, those of a partition in the order of their offsets
    reached   for each partition with splits, the progress after them
    given_up  partitions to forget: their incarnation is gone, and that is allowed
    open_transactions  those that end what can be exported
    """

    heads: Mapping[PartitionId, Head]
    splits: tuple[Split, ...]
    reached: Places
    failures: tuple[Failure, ...]
    given_up: frozenset[PartitionId]
    open_transactions: tuple[OpenTransactionAtEnd, ...]


def find_backlog(store: ObjectStore, query: Query, places: Places, *, start_anew: bool) -> Backlog:
    """What is between `places` and the ends of the partitions that the query selects.

    start_anew  a topic that was deleted and created again is exported from its start, after the rest of its earlier incarnation

    Raises NotFound as ArchiveSnapshot.survey does, and what the store raises.
    """
    snapshot = ArchiveSnapshot.survey(store, query)
    heads = {head.partition_id: head for head in snapshot.heads}
    failures = [Failure(topic=each.topic, partition=each.partition, error=str(each.error)) for each in snapshot.lost]
    current = {each.topic: each.topic_id for each in heads}
    if not start_anew:
        for topic in sorted(_created_again(current, places)):
            failures.append(Failure(topic=topic, partition=None, error=str(_recreated(topic, current[topic], places))))
            heads = {each: head for each, head in heads.items() if each.topic != topic}
    taken = _of_other_clusters(heads, places)
    failures += (Failure(topic=topic, partition=None, error=text) for topic, text in sorted(taken.items()))
    heads = {each: head for each, head in heads.items() if each.topic not in taken}
    earlier: list[PartitionId] = []
    gone: list[PartitionId] = []
    for each in sorted(places, key=lambda each: (each.topic, each.partition)):
        if each in heads or not query.selection.includes(each.topic_partition) or each.topic in {*query.selection.topic_ids, *taken}:
            continue
        if any(one.covers(each.topic_partition) for one in snapshot.lost):
            continue
        (earlier if current.get(each.topic, each.topic_id) != each.topic_id else gone).append(each)
    given_up = set()
    for each, found in _load(store, earlier):
        if isinstance(found, Head):
            heads[each] = found
        elif found is not None:
            failures.append(Failure(topic=each.topic, partition=each.partition, error=str(found)))
        elif query.fail_on_data_loss:
            gone.append(each)
        else:
            given_up.add(each)
    if query.fail_on_data_loss:
        failures += (_failed(each, _gone(each, places[each], query)) for each in gone)
    for each, reached in places.items():
        if each in heads:
            try:
                alone = Progress(incarnations={}, reached={each.topic_partition: reached})
                loss = not query.fail_on_data_loss
                check_progress(alone, {each.topic_partition: heads[each]}, allow_loss=loss, advice=query.advice)
            except (Superseded, DataLoss) as error:
                failures.append(_failed(each, error))
                del heads[each]
    splits: list[Split] = []
    ends: dict[PartitionId, Reached] = {}
    hiding: list[OpenTransactionAtEnd] = []
    for each, result in _ranges(store, query, heads, places):
        if isinstance(result, HeadwaterError):
            failures.append(_failed(each, result))
            del heads[each]
            continue
        if transaction := result.open_transaction(query):
            hiding.append(transaction)
        if result.first >= result.end:
            continue
        try:
            splits += plan_splits([result], query)
        except DataLoss as error:
            failures.append(_failed(each, error))
            continue
        ends[each] = Reached(result.end, result.head.leader_epoch_at(result.end - 1))
    return Backlog(
        heads=heads,
        splits=tuple(splits),
        reached=ends,
        failures=tuple(failures),
        given_up=frozenset(given_up),
        open_transactions=tuple(hiding),
    )


def _created_again(current: Mapping[str, str], places: Places) -> set[str]:
    """Topics of which only other incarnations have been exported."""
    return {each.topic for each in places if each.topic in current} - {
        each.topic for each in places if current.get(each.topic) == each.topic_id
    }


def _of_other_clusters(heads: Iterable[PartitionId], places: Places) -> dict[str, str]:
    """Topics that were exported as another cluster's, and why they are not exported on: an export names the cluster."""
    was = {(each.topic, each.topic_id): each.cluster_id for each in places}
    now = {(each.topic, each.topic_id): each.cluster_id for each in heads}
    return {
        topic: f"{topic}: topic {topic_id} was exported from the archive of cluster {was[topic, topic_id]}, now it is "
        f"cluster {cluster_id}'s: a recovered cluster has taken it over. What was exported stays; export to another place from now on"
        for (topic, topic_id), cluster_id in now.items()
        if was.get((topic, topic_id), cluster_id) != cluster_id
    }


def _recreated(topic: str, topic_id: str, places: Places) -> Superseded:
    known = ", ".join(sorted({each.topic_id for each in places if each.topic == topic}))
    return Superseded(
        f"{topic}: topic {known} was exported, the name means {topic_id} now: it was deleted and created again"
        " (--on-recreated start-anew also exports the new topic from its start)"
    )


def _gone(partition: PartitionId, reached: Reached, query: Query) -> DataLoss:
    return DataLoss(
        f"{partition} of topic {partition.topic_id}: {query.advice.reader} up to offset {reached.next_offset}, the archive no longer has it"
        f" ({query.advice.skip_loss})"
    )


def _failed(partition: PartitionId, error: HeadwaterError) -> Failure:
    return Failure(topic=partition.topic, partition=partition.partition, error=str(error))


def _load(store: ObjectStore, partitions: Iterable[PartitionId]) -> list[tuple[PartitionId, Head | HeadwaterError | None]]:
    repository = ManifestRepository(store)

    def load(partition: PartitionId) -> tuple[PartitionId, Head | HeadwaterError | None]:
        try:
            held = repository.load(partition)
        except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
            return partition, error
        return partition, held.head if held else None

    with ContextThreads(WORKERS, "backlog") as pool:
        return list(pool.map(load, partitions))


def _ranges(
    store: ObjectStore, query: Query, heads: Mapping[PartitionId, Head], places: Places
) -> list[tuple[PartitionId, OffsetRange | HeadwaterError]]:
    """The range of each partition that is not exported yet; by topic, earlier incarnations first, and partition."""

    def range_of(partition: PartitionId) -> tuple[PartitionId, OffsetRange | HeadwaterError]:
        head, reached = heads[partition], places.get(partition)
        try:
            first = (
                max(reached.next_offset, head.start_offset) if reached else place_offset(store, head, query.starting, query, starting=True)
            )
            return partition, OffsetRange(head, first, place_offset(store, head, query.ending, query, starting=False))
        except (CorruptData, DataLoss, UnsupportedFormat) as error:  # of an index, when a time is searched
            return partition, error

    ordered = sorted(heads, key=lambda each: (each.topic, each not in places, each.partition))
    with ContextThreads(WORKERS, "backlog") as pool:
        return list(pool.map(range_of, ordered))


class TopicProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one incarnation of a topic is exported, as documents keep it: per partition the next offset, and the leader epoch of
    the offset before it, or None."""

    topic: str
    cluster_id: str
    topic_id: str
    partitions: dict[str, tuple[int, int | None]]


def encode_places(places: Places) -> tuple[TopicProgress, ...]:
    topics: dict[tuple[str, str, str], dict[str, tuple[int, int | None]]] = {}
    for each, reached in sorted(places.items(), key=lambda item: (item[0].topic, item[0].topic_id, item[0].partition)):
        topics.setdefault((each.topic, each.cluster_id, each.topic_id), {})[str(each.partition)] = (reached.next_offset, reached.epoch)
    return tuple(
        TopicProgress(topic=topic, cluster_id=cluster_id, topic_id=topic_id, partitions=partitions)
        for (topic, cluster_id, topic_id), partitions in topics.items()
    )


def decode_places(topics: Iterable[TopicProgress], where: str) -> dict[PartitionId, Reached]:
    """Raises CorruptData for what `encode_places` cannot have written."""
    places = {}
    try:
        for each in topics:
            for number, (next_offset, epoch) in each.partitions.items():
                places[PartitionId(each.cluster_id, each.topic_id, int(number), each.topic)] = Reached(next_offset, epoch)
    except (ValueError, UsageError) as error:
        raise CorruptData(where, 0, f"not the progress of an export (offsets up to {OFFSET_MAX}): {error}") from None
    return places
