"""Which releases of Kafka start on which feature levels.

A broker refuses metadata with a feature or a level that it does not know, and takes older ones as they are. Source:
MetadataVersion and Feature of Kafka's own server-common, 4.0.0, 4.1.0, 4.2.2, 4.3.1 and 4.4.0.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

METADATA_VERSION = "metadata.version"
METADATA_VERSION_MIN = 7  # 3.3-IV3: what is older needs ZooKeeper, or a Kafka before 4.0
_DIRECTORIES, _ELIGIBLE_LEADERS = 17, 23  # since 3.7-IV2 and 4.0-IV1 records of partitions have them

RELEASES: Mapping[str, Mapping[str, int]] = {  # the highest level that each starts on, by feature; in order
    "4.0": {METADATA_VERSION: 25, "transaction.version": 2, "group.version": 1, "eligible.leader.replicas.version": 1},
    "4.1": {METADATA_VERSION: 27, "transaction.version": 2, "group.version": 1, "eligible.leader.replicas.version": 1, "share.version": 1},
    "4.2": {
        METADATA_VERSION: 29,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 1,
        "share.version": 1,
        "streams.version": 1,
    },
    "4.3": {
        METADATA_VERSION: 30,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 1,
        "share.version": 1,
        "streams.version": 1,
    },
    "4.4": {
        METADATA_VERSION: 33,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 1,
        "share.version": 2,
        "streams.version": 1,
    },
}
NEWEST = list(RELEASES)[-1]


class StartingReleases(NamedTuple):
    """releases: of those that are known, in order; problem: why none can start, or not the wanted one; ""; from_: where none of those that
    are known starts, the one that was named in their place; "" """

    releases: tuple[str, ...]
    problem: str = ""
    from_: str = ""

    def __str__(self) -> str:
        if not self.releases:
            return f"{self.from_} or newer" if self.from_ else f"newer than {NEWEST}"
        return " or ".join(self.releases) + (" or newer" if self.releases[-1] == NEWEST else "")


def starting_releases(features: Mapping[str, int], wanted: str | None = None) -> StartingReleases:
    """Which releases start on metadata with these levels. None of those that are known is no problem where a level is higher than theirs:
    then a newer one wrote it, and starts.

    wanted  the release that is to start on it; None: any
    """
    level = features.get(METADATA_VERSION, 0)
    if level < METADATA_VERSION_MIN:
        said = f"{METADATA_VERSION} {level}" if level else f"no {METADATA_VERSION}"
        return StartingReleases((), f"the snapshot has {said}, and no Kafka from 4.0 on starts below {METADATA_VERSION_MIN}")
    found = StartingReleases(tuple(release for release in RELEASES if not _too_high(features, release)))
    if wanted is None or wanted in found.releases:
        return found
    if is_newer(wanted):
        return found if found.releases else found._replace(from_=wanted)
    if wanted not in RELEASES:
        return found._replace(problem=f"Kafka {wanted[:40]} is not known: {', '.join(RELEASES)} are, and newer ones may be named")
    why = ", ".join(f"{name} {features[name]} (it knows {RELEASES[wanted].get(name, 0)})" for name in _too_high(features, wanted))
    return found._replace(problem=f"Kafka {wanted} does not start on {why}: that takes Kafka {found}")


def is_newer(release: str) -> bool:
    """Whether it is one that was released after all that are known: it may have written records of kinds that these do not have."""
    return re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", release) is not None and _order(release) > _order(NEWEST)


def _order(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def reads_unknown(features: Mapping[str, int], wanted: str | None) -> bool:
    """Whether the release that starts on these levels is one that can have written records that this version does not know. Every kind of
    the releases that are known is; a newer release is named, or the levels are such that none but a newer one starts. Controllers write
    nothing that a broker at the metadata's own levels cannot read, so that such a broker reads what was written at them."""
    return is_newer(wanted) if wanted is not None else not starting_releases(features).releases


def _too_high(features: Mapping[str, int], release: str) -> list[str]:
    return sorted(name for name, level in features.items() if level > RELEASES[release].get(name, 0))


class RaisedLevels(NamedTuple):
    """problem: why they are not raised; "" """

    features: Mapping[str, int]
    problem: str = ""


def raised(features: Mapping[str, int], wanted: str | None) -> RaisedLevels:
    """These levels with the metadata.version that is `wanted`: a level, or a release's highest; None: as they are. It is never lowered, as
    records may be of what a lower level does not have; other features stay, and are raised in the running cluster."""
    if wanted is None:
        return RaisedLevels(features)
    highest, level = RELEASES[NEWEST][METADATA_VERSION], features.get(METADATA_VERSION, 0)
    if wanted in RELEASES:
        to = RELEASES[wanted][METADATA_VERSION]
    elif re.fullmatch(r"[0-9]{1,4}", wanted) and METADATA_VERSION_MIN <= int(wanted) <= highest:
        to = int(wanted)
    else:
        known = f"{METADATA_VERSION_MIN} to {highest}, and the releases {', '.join(RELEASES)}"
        return RaisedLevels(features, f"{METADATA_VERSION} {wanted[:40]!r} is not known: {known} are")
    if to < level:
        return RaisedLevels(features, f"the archived cluster has {METADATA_VERSION} {level}: {to} would be lower, and it is only raised")
    return RaisedLevels({**features, METADATA_VERSION: to})


def partition_version(features: Mapping[str, int]) -> int:
    """The version in which controllers at this level write records of partitions."""
    level = features.get(METADATA_VERSION, 0)
    return (level >= _DIRECTORIES) + (level >= _ELIGIBLE_LEADERS)
