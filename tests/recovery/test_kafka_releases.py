"""Which Kafka starts on which feature levels."""

import pytest

from recovery.initial_metadata import FEATURES
from recovery.kafka_releases import RELEASES, partition_version, reads_unknown, starting_releases


@pytest.mark.parametrize(
    ("features", "releases", "said"),
    [
        (FEATURES, ("4.3", "4.4"), "4.3 or 4.4 or newer"),
        ({"metadata.version": 29, "streams.version": 1}, ("4.2", "4.3", "4.4"), "4.2 or 4.3 or 4.4 or newer"),
        ({"metadata.version": 27, "share.version": 1}, ("4.1", "4.2", "4.3", "4.4"), "4.1 or 4.2 or 4.3 or 4.4 or newer"),
        ({"metadata.version": 7}, tuple(RELEASES), "4.0 or 4.1 or 4.2 or 4.3 or 4.4 or newer"),
        ({"metadata.version": 7, "streams.version": 1}, ("4.2", "4.3", "4.4"), "4.2 or 4.3 or 4.4 or newer"),
        ({"metadata.version": 30, "share.version": 2}, ("4.4",), "4.4 or newer"),
        ({"metadata.version": 34}, (), "newer than 4.4"),
        ({"metadata.version": 33, "group.version": 2}, (), "newer than 4.4"),
        ({"metadata.version": 30, "later.version": 1}, (), "newer than 4.4"),
    ],
)
def test_levels_say_which_releases_start(features: dict[str, int], releases: tuple[str, ...], said: str) -> None:
    found = starting_releases(features)
    assert (found.releases, found.problem, str(found)) == (releases, "", said)
    for wanted in RELEASES:
        assert (starting_releases(features, wanted).problem == "") == (wanted in releases)


def test_a_release_that_does_not_start_is_told_why() -> None:
    problem = starting_releases({"metadata.version": 29, "streams.version": 1}, "4.1").problem
    assert problem.startswith("Kafka 4.1 does not start on metadata.version 29 (it knows 27), streams.version 1 (it knows 0): ")
    assert problem.endswith("that takes Kafka 4.2 or 4.3 or 4.4 or newer")
    for wrong in ("3.9", "4", "4.3.1", "4.٣", "newest"):
        assert "is not known: 4.0, 4.1, 4.2, 4.3, 4.4 are" in starting_releases(FEATURES, wrong).problem


@pytest.mark.parametrize("wanted", ["4.5", "4.10", "5.0"])
def test_a_release_newer_than_all_that_are_known_is_taken_at_its_word(wanted: str) -> None:
    assert starting_releases(FEATURES, wanted) == starting_releases(FEATURES)
    found = starting_releases({"metadata.version": 34}, wanted)
    assert (found.problem, str(found)) == ("", f"{wanted} or newer")
    assert starting_releases({"metadata.version": 6}, wanted).problem


@pytest.mark.parametrize(("level", "wanted", "reads"), [(33, None, False), (33, "4.4", False), (34, None, True), (7, "4.5", True)])
def test_records_that_are_not_known_are_for_a_release_that_can_have_written_them(level: int, wanted: str | None, reads: bool) -> None:
    assert reads_unknown({"metadata.version": level}, wanted) == reads


@pytest.mark.parametrize(("features", "said"), [({}, "no metadata.version"), ({"metadata.version": 6}, "metadata.version 6")])
def test_no_release_starts_without_a_level_or_on_one_of_long_ago(features: dict[str, int], said: str) -> None:
    found = starting_releases(features)
    assert found.releases == ()
    assert f"the snapshot has {said}, and no Kafka from 4.0 on starts below 7" in found.problem


@pytest.mark.parametrize(("level", "version"), [(7, 0), (16, 0), (17, 1), (22, 1), (23, 2), (30, 2), (99, 2)])
def test_records_of_partitions_have_the_version_that_controllers_write(level: int, version: int) -> None:
    assert partition_version({"metadata.version": level}) == version
