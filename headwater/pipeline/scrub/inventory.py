"""What there is to examine in a bucket, by its listing and its small documents, and in one partition of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headwater.pipeline.scrub.findings import Finding, Kind
from headwater.pipeline.scrub.head_check import Check, checks_of, extra, extras, faults
from headwater.pipeline.scrub.page_check import PageCheck
from headwater.pipeline.scrub.unlisted_segments import UnlistedSegment, UnlistedSegments
from headwater_core.errors import ENVIRONMENT_ERRORS, HeadwaterError, ManifestChanged, NotFound, UnsupportedFormat
from headwater_core.objectstore.store import ObjectInfo, ObjectStore
from headwater_core.partition import PartitionId, TopicPartition
from manifests import chunk_keys, keys
from manifests.namesakes import Namesakes
from manifests.prefixes import data_prefixes
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from manifests.topic_survey import survey_topics

_ATTEMPTS = 3
NAMED_MAX = 1000  # partitions of one topic, or orphans, that are reported one by one


class Place(NamedTuple):
    """One partition of one incarnation, as keys spell it."""

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The partitions to examine, in key order, and what is wrong with the documents of topics and bucket.

    cluster_id    the cluster that owns the archive; None when unknown
    size_bytes    of all data and index objects, by the listing
    queues        where below chunks/ partitions of a name have objects
    unlisted      segments below chunks/ of names of which no incarnation has a head
    """

    cluster_id: str | None
    places: tuple[Place, ...]
    findings: tuple[Finding, ...]
    size_bytes: int
    queues: Mapping[TopicPartition, tuple[str, ...]] = field(default_factory=dict)
    unlisted: tuple[UnlistedSegment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInventory:
    """One partition: what to examine of it, and what is wrong with its head and its listing."""

    place: Place
    checks: tuple[Check, ...] = ()
    findings: tuple[Finding, ...] = ()
    has_head: bool = False


def take_inventory(store: ObjectStore, topic: str | None, partition: int | None, *, before_ms: int) -> Inventory:
    """List what `topic` and `partition` name, None for all.

    before_ms  orphans younger than this are not reported: they may be uploads in flight

    Raises NotFound for a topic or partition that is not in the bucket, and what the store raises.
    """
    repository = ManifestRepository(store)
    manifests, lost = survey_topics(repository.store, topic, earlier=True)
    findings = [_document(each.topic, each.key, each.error) for each in lost]
    heads: set[Place] = set()
    for info in store.list(keys.META if topic is None else keys.name_prefix(topic)):
        match keys.parse_manifest(info.key):
            case (str(name), str(topic_id), int(number)):
                heads.add(Place(name, topic_id, number))
    is_known = bool(manifests or lost or heads)
    unlisted = UnlistedSegments({TopicPartition(place.topic, place.partition) for place in heads}, partition)
    if topic is not None and not is_known:
        heads = _without_manifest(store, topic)
        if not heads and not any(each.topic == topic for each in chunk_keys.queues(store)):
            raise NotFound(f"topic {topic} is not in {store.url}")
    absent = {place for manifest in manifests for place in _absent(manifest, heads, partition)}
    if partition is not None:
        heads = {place for place in heads if place.partition == partition}
        if not heads and not absent and not lost:
            raise NotFound(f"{topic}:{partition} is not in {store.url}")
    owner = _owner(repository, findings) if is_known else None
    places, size_bytes = set(heads), 0
    for place, object_bytes in _objects(store, None if topic is None else heads | absent, findings, before_ms):
        places.add(place)
        size_bytes += object_bytes
    chunk_bytes, queues = _chunks(store, topic, partition, places | absent, findings, before_ms, unlisted)
    for manifest in manifests:
        findings += _missing(manifest, places, partition)
    return Inventory(
        cluster_id=owner or (manifests[0].cluster_id if manifests else None),
        places=tuple(sorted(places)),
        findings=tuple(findings),
        size_bytes=size_bytes + chunk_bytes,
        queues={of: tuple(sorted(found)) for of, found in queues.items()},
        unlisted=tuple(unlisted.found()),
    )


def _without_manifest(store: ObjectStore, topic: str) -> set[Place]:
    """Partitions of a topic of which there are only data objects."""
    found = map(keys.parse_data_prefix, data_prefixes(store))
    return {Place(*place) for place in found if place and place[0] == topic}


def _owner(repository: ManifestRepository, findings: list[Finding]) -> str | None:
    """The cluster that owns the archive, in a bucket that has one."""
    try:
        owner = repository.owner()
    except ENVIRONMENT_ERRORS:
        raise
    except HeadwaterError as error:
        findings.append(_document("", keys.OWNER, error))
        return None
    if owner is None:
        problem = "gone: the next cluster that archives into this bucket would take it for its own"
        findings.append(Finding(kind=Kind.DOCUMENT, key=keys.OWNER, problem=problem))
        return None
    return owner.cluster_id


def _document(topic: str, key: str, error: HeadwaterError) -> Finding:
    kind = Kind.UNEXAMINED if isinstance(error, UnsupportedFormat) else Kind.DOCUMENT
    return Finding(kind=kind, topic=topic, key=key, problem=str(error))


def _absent(manifest: TopicManifest, heads: set[Place], only: int | None) -> Iterator[Place]:
    """Partitions without a head, at most NAMED_MAX."""
    numbers = range(manifest.partitions) if only is None else range(only, min(only + 1, manifest.partitions))
    count = 0
    for number in numbers:
        place = Place(manifest.topic, manifest.topic_id, number)
        if place not in heads:
            yield place
            count += 1
            if count == NAMED_MAX:
                return


def _missing(manifest: TopicManifest, places: set[Place], only: int | None) -> Iterator[Finding]:
    """A finding for each partition that the topic has by its manifest and of which there is nothing in the bucket.

    Its head may be lost, or no agent has archived it yet; in both cases a recovery would come back without it.
    """
    mine = {place.partition for place in places if place[:2] == (manifest.topic, manifest.topic_id)}
    more = manifest.partitions - sum(number < manifest.partitions for number in mine) - NAMED_MAX
    for at, place in enumerate(_absent(manifest, places, only), start=1):
        problem = f"no manifest: lost, or never archived; {manifest.topic} has {manifest.partitions} partitions"
        if at == NAMED_MAX and more > 0:
            problem += f"; {more} more have none either"
        yield Finding(kind=Kind.NO_MANIFEST, topic=place.topic, partition=place.partition, key=_head_key(place), problem=problem)


def _objects(store: ObjectStore, places: set[Place] | None, findings: list[Finding], before_ms: int) -> Iterator[tuple[Place, int]]:
    """The partition and the bytes of every object, of these partitions or of all. An object in no partition's folder is a finding."""
    prefixes = keys.ROOTS if places is None else [prefix for place in sorted(places) for prefix in _prefixes(place)]
    orphans = 0
    for prefix in prefixes:
        folder, place = "", None
        for info in store.list(prefix):
            if keys.home(info.key) != folder:
                folder = keys.home(info.key)
                found = keys.parse_data_prefix(folder)
                place = Place(*found) if found and _prefixes(Place(*found))[0] == folder else None
            if place:
                yield place, info.size_bytes
            elif info.modified_ms < before_ms:
                orphans += 1
                if orphans <= NAMED_MAX:
                    findings.append(extra(info))
    if orphans > NAMED_MAX:
        findings.append(Finding(kind=Kind.EXTRA, key=keys.DATA, problem=f"{orphans - NAMED_MAX} more objects in no partition's folder"))


def _chunks(
    store: ObjectStore,
    topic: str | None,
    partition: int | None,
    known: set[Place],
    findings: list[Finding],
    before_ms: int,
    unlisted: UnlistedSegments,
) -> tuple[int, dict[TopicPartition, set[str]]]:
    """The bytes of all objects below chunks/, and where they lie. Their keys name no incarnation: where no manifest has the name, they are
    a finding, and where no head has, their segments are `unlisted`."""
    names = {(place.topic, place.partition) for place in known}
    unknown: dict[tuple[str, int], list[int]] = {}
    queues: dict[TopicPartition, set[str]] = {}
    size_bytes = 0
    for info in store.list(chunk_keys.CHUNKS) if topic is None else _chunks_of(store, topic):
        name = chunk_keys.parse(info.key)
        if name is not None:
            unlisted.add(name)
        if name is None:
            if info.modified_ms < before_ms and len(findings) < NAMED_MAX:
                findings.append(extra(info))
        elif (name.topic, name.partition) in names:
            size_bytes += info.size_bytes
            queues.setdefault(TopicPartition(name.topic, name.partition), set()).add(name.place.queue)
        elif partition in (None, name.partition):
            unknown.setdefault((name.topic, name.partition), []).append(info.size_bytes)
    for (name_of, number), sizes in sorted(unknown.items()):
        problem = f"no manifest of any incarnation: {len(sizes)} objects of {sum(sizes)} bytes are there"
        key = f"{chunk_keys.CHUNKS}…/{name_of}/{number}"
        findings.append(Finding(kind=Kind.NO_MANIFEST, topic=name_of, partition=number, key=key, problem=problem))
    if unlisted.more:
        problem = f"no manifest: {unlisted.more} more segments are there, which were not opened"
        findings.append(Finding(kind=Kind.NO_MANIFEST, key=chunk_keys.CHUNKS, problem=problem))
    return size_bytes, queues


def _chunks_of(store: ObjectStore, topic: str) -> Iterator[ObjectInfo]:
    for of in list(chunk_keys.queues(store)):
        if of.topic == topic:
            yield from (info for info, _ in chunk_keys.stored_chunks(store, of))


def take_partition_inventory(store: ObjectStore, place: Place, inventory: Inventory, *, before_ms: int) -> PartitionInventory:
    """List one partition's objects, then read its head: what was uploaded and committed in between is in the head."""
    key = _head_key(place)

    def found(kind: Kind, problem: str) -> PartitionInventory:
        finding = Finding(kind=kind, topic=place.topic, partition=place.partition, key=key, problem=problem)
        return PartitionInventory(place=place, findings=(finding,))

    listed: dict[str, ObjectInfo] = {}
    pages: dict[str, ObjectInfo] = {}
    try:
        listed.update((info.key, info) for prefix in _prefixes(place) for info in store.list(prefix))
        for queue in inventory.queues.get(TopicPartition(place.topic, place.partition), ()):
            listed.update((info.key, info) for info in store.list(f"{queue}/") if chunk_keys.parse(info.key) is not None)
        pages.update((info.key, info) for info in store.list(key.removesuffix("manifest.json")) if keys.parse_page(info.key))
        check = _pages_of_head(store, place)
    except NotFound:
        size_bytes = sum(info.size_bytes for info in listed.values())
        there = f"{len(listed)} objects of {size_bytes} bytes are there" if listed else "it was listed, but it does not exist"
        return found(Kind.NO_MANIFEST, f"no manifest: {there}")
    except (*ENVIRONMENT_ERRORS, UnsupportedFormat) as error:
        return found(Kind.UNEXAMINED, str(error))
    except HeadwaterError as error:
        return found(Kind.HEAD, str(error))
    head, cluster_id = check.flat, inventory.cluster_id or check.head.cluster_id
    if head.partition_id != _partition(place, cluster_id) or head.topic != place.topic:
        return found(Kind.HEAD, f"belongs to {head.cluster_id} {head.topic} {head.topic_id}:{head.partition}")
    unused = [extra(info, topic=place.topic, partition=place.partition) for info in check.orphans(pages) if info.modified_ms < before_ms]
    if check.findings:  # what is hidden may be listed where it seems to be missing, and name what seems to be an orphan
        findings = [*check.findings, *faults(head, is_whole=False)]
    else:
        namesakes = Namesakes(ManifestRepository(store), _partition(place, head.cluster_id))
        orphans = extras(head, listed, before_ms=before_ms, may_be_theirs=namesakes.may_have)
        findings = [*faults(head), *orphans, *unused]
    return PartitionInventory(place=place, checks=tuple(checks_of(head, listed)), findings=tuple(findings), has_head=True)


def _pages_of_head(store: ObjectStore, place: Place) -> PageCheck:
    """Raises what reading the head and its pages does."""
    for attempt in range(_ATTEMPTS):
        try:
            # Without check_head: the objects of an inconsistent head may be undamaged, and `faults` reports the inconsistencies.
            return PageCheck(ManifestRepository(store).load_unchecked(_head_key(place)))
        except ManifestChanged:  # another head has replaced a page meanwhile
            if attempt + 1 == _ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _prefixes(place: Place) -> tuple[str, str]:
    partition = _partition(place)
    return keys.data_prefix(partition), keys.stream_prefix(partition)


def _head_key(place: Place) -> str:
    return keys.head(_partition(place))


def _partition(place: Place, cluster_id: str = "any") -> PartitionId:
    return PartitionId(cluster_id, place.topic_id, place.partition, place.topic)
