"""Every document of a bucket that says whose it is, read once; and what forbids that a cluster takes it over."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from headwater_core.errors import CorruptData, ForeignOwner, NotFound, UnsupportedFormat
from headwater_core.threads import ContextThreads
from manifests import keys
from manifests.cluster_list import ClusterList
from manifests.document import FORMAT, check_ours
from manifests.head import check_head, check_writable
from manifests.repository import ManifestRepository
from manifests.topic import Current, Owner, TopicManifest
from recovery.recovery_plan import RecoveryPlan

_AT_A_TIME = 16  # documents are small, so it is round trips that take the time
_SHOWN = 10


class OwnedDocument(NamedTuple):
    """What of a document decides whether it may change hands. next_offset, leader_epoch: of a head; None of any other."""

    cluster_id: str
    next_offset: int | None = None
    leader_epoch: int | None = None


class BucketSurvey(NamedTuple):
    """
    listed     the keys of all heads, those that cannot be read too
    documents  heads, topic manifests, what each name means, and the list of snapshots, by key: as far as they can be read and written
    closed     what must not be written over, and why: a newer version wrote it, or it is not what its key says
    damaged    what nobody writes over, and why
    """

    listed: frozenset[str]
    documents: Mapping[str, OwnedDocument]
    closed: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def heads(self) -> Mapping[str, OwnedDocument]:
        return {key: each for key, each in self.documents.items() if each.next_offset is not None}

    def not_of(self, cluster_ids: Collection[str]) -> list[str]:
        """The keys of what is another cluster's."""
        return [key for key, each in self.documents.items() if each.cluster_id not in cluster_ids]

    def refusals(self, cluster_ids: Collection[str]) -> list[str]:
        """Why not all of it can be taken from these clusters, for people."""
        return [*self.closed, *(f"{key} belongs to cluster {self.documents[key].cluster_id}" for key in self.not_of(cluster_ids))]


def survey(repository: ManifestRepository) -> BucketSurvey:
    """Raises what the store raises when it does not answer."""
    listed = [info.key for info in repository.store.list(keys.META)]
    wanted = [key for key in listed if keys.parse_manifest(key) or keys.parse_current(key)]
    with ContextThreads(_AT_A_TIME, "bucket-survey") as pool:
        found = dict(
            zip([*wanted, keys.CLUSTER_LIST], pool.map(lambda key: _look(repository, key), [*wanted, keys.CLUSTER_LIST]), strict=True)
        )
    return BucketSurvey(
        frozenset(key for key in wanted if _is_head(key)),
        {key: each for key, each in found.items() if isinstance(each, OwnedDocument)},
        tuple(str(each) for each in found.values() if isinstance(each, ForeignOwner | UnsupportedFormat)),
        tuple(str(each) for each in found.values() if isinstance(each, CorruptData)),
    )


def _is_head(key: str) -> bool:
    name = keys.parse_manifest(key)
    return name is not None and name.partition is not None


def _look(repository: ManifestRepository, key: str) -> OwnedDocument | ForeignOwner | UnsupportedFormat | CorruptData | None:
    try:
        return _document(repository, key)
    except NotFound:
        return None
    except (ForeignOwner, UnsupportedFormat, CorruptData) as error:
        return error


def _document(repository: ManifestRepository, key: str) -> OwnedDocument | None:
    if _is_head(key):
        head = check_head(repository.load_unchecked(key))
        if keys.head(head.partition_id) != key:
            raise ForeignOwner(f"{key} belongs to {head.topic} {head.topic_id}:{head.partition}")
        check_writable(head)
        return OwnedDocument(head.cluster_id, head.next_offset, head.leader_epoch)
    held: TopicManifest | Current | ClusterList | None
    if name := keys.parse_manifest(key):
        held = repository.load_topic(name.topic, name.topic_id)
    elif topic := keys.parse_current(key):
        held = repository.current(topic)
    else:
        held = repository.load_snapshots()
    if held is None:
        return None
    check_ours(held.format, key)
    return OwnedDocument(held.cluster_id)


def owners_of(plan: RecoveryPlan, owner: Owner | None) -> frozenset[str]:
    """The clusters that a take-over may find in the bucket: from whom it takes, those before, and who takes."""
    return frozenset((plan.source_cluster_id, plan.cluster_id, *(owner.former if owner else ())))


class Expected(NamedTuple):
    """What is planned of a head: the end of its archive, and the leader epoch that it has followed. 0 and 0: it was not there, or could not
    be read."""

    next_offset: int
    leader_epoch: int


def expected_heads(plan: RecoveryPlan) -> Mapping[str, Expected]:
    """By key, of every partition of the recovered topics."""
    ends = {(each.topic, each.partition): each.head for each in plan.cut.partitions} if plan.cut else {}
    return {
        keys.head(topic.archived_id(plan.source_cluster_id, each.partition)): Expected(
            ends.get((topic.topic, each.partition), each.next_offset) if each.manifest_version else 0,
            each.leader_epoch if each.head_epoch is None else each.head_epoch,
        )
        for topic in plan.topics
        for each in topic.partitions
    }


def archived_since(found: BucketSurvey, plan: RecoveryPlan) -> list[str]:
    """The heads of which more is archived than the plan brings back, for people. Merges, retention and collections are none of it. Of what
    the plan leaves out, only a head that was not there yet."""
    expected, known = expected_heads(plan), set(plan.unplanned_heads)

    def is_more(key: str, head: OwnedDocument) -> bool:
        if (planned := expected.get(key)) is None:
            return key not in known
        assert head.next_offset is not None
        assert head.leader_epoch is not None
        return head.next_offset != planned.next_offset or head.leader_epoch > planned.leader_epoch

    more = [(key, head) for key, head in found.heads.items() if is_more(key, head)]
    return [f"{_place(key)} up to {head.next_offset}, leader epoch {head.leader_epoch}" for key, head in more]


def _place(key: str) -> str:
    name = keys.parse_manifest(key)
    assert name is not None
    return f"{name.topic}:{name.partition}"


def with_take_over(plan: RecoveryPlan, found: BucketSurvey, owner: Owner | None, damage: str) -> RecoveryPlan:
    """`plan`, which requests a take-over, with what forbids it, and with the heads of which it brings back nothing.

    found   of before the plan was made: a head that was made since then, and is not planned, is none of the known ones
    damage  of headwater.json; ""
    """
    source, expected = plan.source_cluster_id, expected_heads(plan)
    problems = [damage] if damage else []
    if owner is not None and owner.format > FORMAT:
        problems.append(f"needs upgrade: {keys.OWNER} was written by a newer version of headwater")
    problems += found.refusals(owners_of(plan, owner))
    if plan.cluster_id == source and not found.not_of({source}):
        problems.append(
            f"{source} has the archive already: a cluster that takes it over has another id, and one that goes on with it is recovered "
            f"with --cluster-id {source} and without --take-over"
        )
    for key, planned in expected.items():
        head = found.heads.get(key)
        if head is not None and head.next_offset and not planned.next_offset:
            problems.append(f"{_place(key)} comes back empty, and its archive goes on to {head.next_offset}: no log continues it there")
    unplanned = sorted(found.listed - expected.keys())
    back = {topic.archived_name.topic_id for topic in plan.topics}
    beyond = [key for key in unplanned if (name := keys.parse_manifest(key)) and name.topic_id in back]
    problems += [f"{_place(key)} is archived and does not come back: a partition of that number would not continue it" for key in beyond]
    return replace(
        plan,
        problems=(*plan.problems, *shown(problems)),
        notes=(*plan.notes, *(f"it cannot be given to the recovered cluster: {each}" for each in shown(found.damaged))),
        unplanned_heads=tuple(unplanned),
    )


def ungiven(found: BucketSurvey, cluster_id: str) -> list[str]:
    """The problem of a recovery of `cluster_id`, which has the archive, where an interrupted take-over has not given all of it."""
    others = found.not_of({cluster_id})
    if not others:
        return []
    return [
        f"a take-over was interrupted: {', '.join(shown(others))}: not cluster {cluster_id}'s yet, and its agents "
        "would be refused there; add --take-over"
    ]


def shown(texts: Collection[str]) -> list[str]:
    """As many as people read."""
    return [*list(texts)[:_SHOWN], *([f"{len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else [])]
