"""Which snapshots of the cluster's metadata can be read: those of the list or, where it is lost or damaged, those that are there."""

from typing import NamedTuple

from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, NotFound
from headwater_core.objectstore.store import ObjectInfo, ObjectStore
from manifests import keys
from manifests.cluster_list import ClusterList, adopted
from manifests.repository import ManifestRepository

_SHOWN = 10
_NOT_KNOWN = "unknown"  # names of objects say nothing of the cluster


class SnapshotObject(NamedTuple):
    name: keys.SnapshotName
    info: ObjectInfo


class SnapshotSurvey(NamedTuple):
    """is_adopted: the list was made from names, as archivers would make it; its cluster id is not known
    note: what people should know of it; ""
    """

    listed: ClusterList
    is_adopted: bool = False
    note: str = ""


def snapshot_objects(store: ObjectStore) -> list[SnapshotObject]:
    """Every object that is named as a snapshot, by number."""
    found = ((keys.parse_cluster_snapshot(info.key), info) for info in store.list(keys.CLUSTER))
    return sorted((SnapshotObject(name, info) for name, info in found if name is not None), key=lambda each: each.name)


def adopt(cluster_id: str, objects: list[SnapshotObject]) -> ClusterList | None:
    return adopted(cluster_id, ((name, info.size_bytes, info.modified_ms) for name, info in objects))


def survey_snapshots(repository: ManifestRepository) -> SnapshotSurvey:
    """Raises NotFound when there is no snapshot, CorruptData for a damaged list without a snapshot, UnsupportedFormat for a list of a
    later version, and what the store raises."""
    listed, damage = None, None
    try:
        listed = repository.load_snapshots()
    except CorruptData as error:
        damage = error
    objects = snapshot_objects(repository.store)
    if listed is not None:
        known = {(each.number, each.uid) for each in listed.snapshots} | {(each.number, each.uid) for each in listed.dropped}
        numbers = [str(each.name.number) for each in objects if (each.name.number, each.name.uid) not in known]
        shown = ", ".join(numbers[-_SHOWN:])
        return SnapshotSurvey(listed, note=f"not listed: {count_text(len(numbers), 'snapshot')}, the last {shown}" if numbers else "")
    found = adopt(_NOT_KNOWN, objects)
    if found is None and damage is not None:
        raise damage
    if found is None:
        raise NotFound(f"{repository.store.url} has no snapshot of the cluster's metadata: an agent beside a broker archives one")
    why = f"it is damaged ({damage})" if damage else "it is lost"
    return SnapshotSurvey(found, True, f"{keys.CLUSTER_LIST} is not used, {why}: these are the snapshots that are there")
