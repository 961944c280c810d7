import shutil
from collections.abc import Callable, Hashable
from pathlib import Path

import pytest

from headwater_core.errors import ForeignOwner, UnsupportedFormat, UsageError
from headwater_core.segments.checkpoints import (
    MetaProperties,
    encode_meta_properties,
)
from headwater_core.segments.disk import Disk, Progressed
from headwater_core.segments.log_dirs import LogDirs
from tests.fixtures import private_copy, unpack
from tests.headwater_core.segments.builders import newer_metadata


def moved_aside(tmp_path: Path) -> tuple[Path, Path]:
    """kitchen's log directory, and its metadata in a directory of its own, as under metadata.log.dir."""
    root, aside = private_copy("kitchen", tmp_path), tmp_path / "metadata"
    aside.mkdir()
    shutil.copy(root / "meta.properties", aside)
    shutil.move(root / "__cluster_metadata-0", aside)
    return root, aside


def test_metadata_may_lie_in_a_directory_of_its_own(tmp_path: Path) -> None:
    wanted = {log.partition: (log.leadership, log.compacted) for log in LogDirs([unpack("kitchen")]).partitions()}
    root, aside = moved_aside(tmp_path)
    assert LogDirs([root]).metadata() is None
    assert all(log.leadership is None for log in LogDirs([root]).partitions())
    logs = LogDirs([root], metadata_dir=aside)
    assert {log.partition: (log.leadership, log.compacted) for log in logs.partitions()} == wanted
    assert logs.look(next(iter(wanted)).topic_partition).leadership


def test_a_metadata_directory_without_metadata_is_refused(tmp_path: Path) -> None:
    """A user who names it wants leadership to be known, so doing without it would be wrong."""
    root, aside = moved_aside(tmp_path)
    shutil.rmtree(aside / "__cluster_metadata-0")
    for logs in (LogDirs([root], metadata_dir=aside), LogDirs([root], metadata_dir=tmp_path / "nowhere")):
        with pytest.raises(UsageError, match=r"metadata_dir.*__cluster_metadata-0"):
            logs.survey()


def test_metadata_of_another_broker_is_refused(tmp_path: Path) -> None:
    root, aside = moved_aside(tmp_path)
    (aside / "meta.properties").write_bytes(encode_meta_properties(MetaProperties(cluster_id="another-cluster", node_id=1)))
    for logs in (LogDirs([root], metadata_dir=aside), LogDirs([root], metadata_dir=aside)):
        with pytest.raises(ForeignOwner, match="different brokers"):
            logs.survey()


def test_metadata_of_a_later_version_leaves_leadership_unknown_and_stops_nothing(tmp_path: Path) -> None:
    root = private_copy("pantry-live", tmp_path)
    wanted = {log.partition for log in LogDirs([root]).partitions()}
    newer_metadata(root)
    logs = LogDirs([root])
    found = logs.partitions()
    assert {log.partition for log in found} == wanted
    assert {(log.leadership, log.leadership_unread) for log in found} == {(None, True)}
    listing = logs.listing()
    assert (len(listing.partitions), listing.problems, isinstance(listing.unread, UnsupportedFormat)) == (len(wanted), (), True)
    with pytest.raises(UnsupportedFormat, match="version 99"):
        logs.metadata()


def test_a_look_reads_metadata_beside_it_without_another_wait_for_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one log directory; each such wait takes longer than the look itself, and a step makes several looks."""
    logs = LogDirs([unpack("kitchen")])
    (first, *_) = logs.listing().partitions
    waits: list[object] = []
    ask = Disk.ask

    def noted(disk: Disk, about: Hashable, work: Callable[[Progressed], object]) -> object:
        waits.append(about)
        return ask(disk, about, work)

    monkeypatch.setattr(Disk, "ask", noted)
    assert logs.look(first).leadership is not None
    assert logs.last_metadata().state is not None
    assert waits == [first]


def test_a_brokers_metadata_says_when_it_deletes_and_where_no_broker_is_nothing_does() -> None:
    """specials and orders.in have settings of their own, bills has the cluster's dynamic default, menu is compacted."""
    wanted = {"specials": 7_654_321, "orders.in": 86_400_000, "bills": 7_200_000_000, "menu": None}
    found = {log.partition.topic: log.retention and log.retention[:2] for log in LogDirs([unpack("kitchen")]).partitions()}
    assert {topic: found[topic] for topic in wanted} == {topic: (age_ms, None) for topic, age_ms in wanted.items()}
    assert {log.retention for log in LogDirs([unpack("kitchen")], owned=True).partitions()} == {None}
