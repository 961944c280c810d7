"""Topics come back in a cluster at the levels of the one that was lost."""

from pathlib import Path

import pytest

import recovery
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot
from manifests import keys
from recovery.initial_metadata import FEATURES, features_of, starting_on
from recovery.plan_document import decode_plan, encode_plan
from recovery.recovery_plan import RecoveryPlan
from tests.recovery.test_cluster_state import DamagedKitchen, Kitchen
from tests.recovery.written_archive import Archive, plain

OLDER = {"metadata.version": 25, "group.version": 1, "transaction.version": 2}


def planned(kitchen: Kitchen, **options: str) -> RecoveryPlan:
    return recovery.plan(kitchen.repository, ["menu"], recovery.Options(**options))  # type: ignore[arg-type]


def test_topics_have_the_levels_of_the_newest_snapshot(tmp_path: Path) -> None:
    kitchen = Kitchen(features=OLDER)
    plan = planned(kitchen)
    assert (features_of(plan), str(starting_on(plan))) == (OLDER, "4.0 or 4.1 or 4.2 or 4.3 or 4.4 or newer")
    recovery.apply(decode_plan(encode_plan(plan)), tmp_path / "log", kitchen.store)
    assert read_snapshot((tmp_path / "log" / "bootstrap.checkpoint").read_bytes(), "it").features == OLDER


def test_without_a_sound_snapshot_of_that_cluster_they_are_those_of_a_new_one_and_a_note_says_so() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0)])
    kitchen = DamagedKitchen()
    kitchen.store.delete(kitchen.second.key)
    for plan, why in (
        (archive.plan(), "the archive has no snapshot"),
        (planned(kitchen), "cannot be read"),
        (planned(Kitchen(features={"metadata.version": 5})), "on which no Kafka from 4.0 on starts"),
    ):
        assert (features_of(plan), plan.problems) == (FEATURES, ())
        assert any(why in note and "those of a new cluster, metadata.version 30" in note for note in plan.notes)


def test_an_older_list_that_was_put_back_or_one_that_is_lost_is_noted() -> None:
    kitchen = DamagedKitchen()
    assert not any("snapshots" in note for note in planned(kitchen).notes)
    kitchen.store.replace(keys.CLUSTER_LIST, kitchen.list_of_before, expected_tag=kitchen.store.get(keys.CLUSTER_LIST)[1])
    assert "not listed: 1 snapshot, the last 2" in planned(kitchen).notes
    kitchen.store.delete(keys.CLUSTER_LIST)
    plan = planned(kitchen)
    assert features_of(plan) == kitchen.state.features
    assert any("latest.json is not used, it is lost" in note for note in plan.notes)


@pytest.mark.parametrize("cluster", [None, "latest"])
@pytest.mark.parametrize(("wanted", "level"), [("27", 27), ("4.2", 29), ("25", 25), ("4.3", 30), ("4.4", 33)])
def test_the_metadata_version_is_raised_on_request(wanted: str, level: int, cluster: str | None) -> None:
    kitchen = Kitchen(features=OLDER)
    plan = (
        kitchen.plan(recovery.Options(cluster="latest", metadata_version=wanted)) if cluster else planned(kitchen, metadata_version=wanted)
    )
    assert (features_of(plan), plan.problems) == ({**OLDER, "metadata.version": level}, ())


@pytest.mark.parametrize("cluster", [None, "latest"])
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"metadata_version": "24"}, "25: 24 would be lower"),
        ({"metadata_version": "34"}, "is not known: 7 to 33, and the releases 4.0"),
        ({"metadata_version": "4.5"}, "is not known"),
        ({"metadata_version": "4.1", "kafka_release": "4.0"}, "Kafka 4.0 does not start on metadata.version 27"),
    ],
)
def test_levels_that_cannot_be_had_are_problems(options: dict[str, str], problem: str, cluster: str | None) -> None:
    kitchen = Kitchen(features=OLDER)
    plan = kitchen.plan(recovery.Options(cluster="latest", **options)) if cluster else planned(kitchen, **options)  # type: ignore[arg-type]
    (found,) = plan.problems
    assert problem in found
