"""The feature levels with which a cluster of recovered topics begins: those of the cluster that was lost, as its newest snapshot says."""

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from headwater_core.errors import CorruptData, NotFound, UnsupportedFormat, VerificationFailed
from manifests.repository import ManifestRepository
from recovery.cluster_state import SnapshotFound, find_snapshot
from recovery.initial_metadata import FEATURES
from recovery.kafka_releases import METADATA_VERSION, METADATA_VERSION_MIN, raised, starting_releases
from recovery.recovery_plan import RecoveryPlan


def archived_levels(repository: ManifestRepository) -> SnapshotFound | str:
    """The newest snapshot, or why there is none to be had. Raises what the store raises when it does not answer."""
    try:
        return find_snapshot(repository, "latest")
    except NotFound:
        return "the archive has no snapshot of the cluster's metadata"
    except (CorruptData, UnsupportedFormat, VerificationFailed) as error:
        return f"the newest snapshot of the cluster's metadata cannot be read ({error})"


def with_levels(plan: RecoveryPlan, found: SnapshotFound | str, former: Collection[str] = ()) -> RecoveryPlan:
    """`plan`, of topics alone, with its feature levels, and what forbids them. former: clusters that the archive was taken over
    from. Pure."""
    options, notes, problems = plan.request.options, list(plan.notes), list(plan.problems)
    why = found if isinstance(found, str) else _refusal(plan, found, former)
    if not isinstance(found, str) and found.note:
        notes.append(found.note)
    archived: Mapping[str, int] = FEATURES if why or isinstance(found, str) else found.state.features
    if why:
        new = f"{METADATA_VERSION} {FEATURES[METADATA_VERSION]}"
        notes.append(f"{why}: the feature levels are those of a new cluster, {new}; `--metadata-version` does not lower them")
    levels = raised(archived, options.metadata_version)
    starts = starting_releases(levels.features, options.kafka_release)
    problems += filter(None, (levels.problem, starts.problem))
    return replace(plan, features=dict(levels.features), notes=tuple(notes), problems=tuple(problems))


def _refusal(plan: RecoveryPlan, found: SnapshotFound, former: Collection[str]) -> str:
    """Why its levels are not taken; "" when they are."""
    if found.cluster_id not in (None, plan.source_cluster_id, *former):
        return f"the snapshots are of cluster {found.cluster_id}"
    level = found.state.features.get(METADATA_VERSION, 0)
    return (
        "" if level >= METADATA_VERSION_MIN else f"the newest snapshot has {METADATA_VERSION} {level}, on which no Kafka from 4.0 on starts"
    )
