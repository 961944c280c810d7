import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, ForeignOwner, NotFound, SourceChanged, Unauthorised, UnsupportedFormat, UsageError
from headwater_core.partition import TopicPartition
from headwater_core.segments import log_dirs
from headwater_core.segments.checkpoints import (
    MetaProperties,
    encode_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
)
from headwater_core.segments.log_dirs import LogDirs, parse_directory_name
from tests.fixtures import expected_cluster, private_copy, unpack
from tests.headwater_core.segments.builders import a_segment, newer_metadata

SOUP = TopicPartition("soup", 0)
TOPIC_ID = "CiYnVEVES8C-QkPo0sT7kA"


class Broker:
    """A log directory made by hand."""

    def __init__(self, root: Path, *, cluster_id: str = "kitchen-cluster", node_id: int = 1) -> None:
        self.root = root
        root.mkdir()
        (root / "meta.properties").write_bytes(encode_meta_properties(MetaProperties(cluster_id=cluster_id, node_id=node_id)))

    def partition(self, name: str = "soup-0", *bases: int, topic_id: str = TOPIC_ID) -> Path:
        directory = self.root / name
        directory.mkdir()
        (directory / "partition.metadata").write_bytes(encode_partition_metadata(topic_id))
        for base in bases or (0,):
            (directory / f"{base:020}.log").write_bytes(a_segment(base, 5))
        return directory

    def checkpoint(self, name: str, **offsets: int) -> None:
        listed = {TopicPartition(*_split(key)): value for key, value in offsets.items()}
        (self.root / f"{name}-offset-checkpoint").write_bytes(encode_offsets(listed))

    @property
    def logs(self) -> LogDirs:
        return LogDirs([self.root])


def _split(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("_")
    return topic, int(number)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "broker")


def test_a_look_finds_segments_checkpoints_and_epochs(broker: Broker) -> None:
    directory = broker.partition("soup-0", 5, 0, 10)
    (directory / "leader-epoch-checkpoint").write_bytes(encode_epochs(EpochHistory.of(((0, 0), (3, 7)))))
    (directory / "00000000000000000015.snapshot").write_bytes(b"")
    broker.checkpoint("replication", soup_0=14)
    broker.checkpoint("log-start", soup_0=2)
    broker.checkpoint("cleaner", soup_0=5)
    log = broker.logs.look(SOUP)
    assert [each.base_offset for each in log.segments] == [0, 5, 10]
    assert [each.is_active for each in log.segments] == [False, False, True]
    assert [each.size_bytes for each in log.segments] == [each.path.stat().st_size for each in log.segments]
    assert log.segments[0].generation == (log.segments[0].path.stat().st_ino, log.segments[0].path.stat().st_mtime_ns)
    assert (log.high_watermark, log.log_start, log.cleaned_to, log.settled) == (14, 2, 5, True)
    assert log.epochs.steps == ((0, 0), (3, 7))
    assert (log.partition.cluster_id, log.partition.topic_id) == ("kitchen-cluster", TOPIC_ID)
    assert (log.leadership, log.compacted) == (None, False)


def test_without_checkpoints_nothing_is_committed_and_the_log_starts_at_its_first_file(broker: Broker) -> None:
    broker.partition("soup-0", 7)
    log = broker.logs.look(SOUP)
    assert (log.high_watermark, log.log_start, log.epochs.steps) == (None, 7, ())


def test_a_stale_log_start_does_not_lie_below_the_first_file(broker: Broker) -> None:
    broker.partition("soup-0", 7)
    broker.checkpoint("log-start", soup_0=3)
    assert broker.logs.look(SOUP).log_start == 7


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("soup-0", ("soup", 0)),
        ("table-4-0", ("table-4", 0)),
        ("rack--2-1-0", ("rack--2-1", 0)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
        ("a.b_c-10", ("a.b_c", 10)),
        ("__cluster_metadata-0", None),
        ("soup-0.90484efc86e24096b9266de879f44e19-delete", None),
        ("soup-0.90484efc86e24096b9266de879f44e19-future", None),
        ("soup-0.90484efc86e24096b9266de879f44e19-stray", None),
        ("soup-", None),
        ("-0", None),
        ("soup", None),
        ("soup-x", None),
        ("soup-01", None),
        ("soup--1", ("soup-", 1)),
        ("soup-99999999999", None),
        ("soup-4294967296", None),
        ("sou p-0", None),
        ("..-0", None),
        ("cleaner-offset-checkpoint", None),
    ],
)
def test_a_name_is_split_at_its_last_dash(name: str, found: tuple[str, int] | None) -> None:
    assert parse_directory_name(name) == (TopicPartition(*found) if found else None)


def test_files_that_are_no_segments_are_passed_over(broker: Broker) -> None:
    directory = broker.partition()
    for name in ("00000000000000000005.log.deleted", "5.log", "00000000000000000005.logx", "00000000000000000005.index", "note.txt"):
        (directory / name).write_bytes(b"x")
    log = broker.logs.look(SOUP)
    assert [each.base_offset for each in log.segments] == [0]
    assert log.settled


@pytest.mark.parametrize(("suffix", "settled"), [(".log.swap", False), (".index.swap", False), (".log.cleaned", True)])
def test_a_compaction_is_in_the_log_while_there_are_swap_files(broker: Broker, suffix: str, settled: bool) -> None:
    """What is written before the first of them, for minutes in a large log, changes nothing yet."""
    (broker.partition() / f"00000000000000000005{suffix}").write_bytes(b"")
    assert broker.logs.look(SOUP).settled == settled


def test_in_an_owned_directory_nobody_finishes_a_compaction(broker: Broker) -> None:
    """A broker that starts deletes .cleaned files and puts .swap files in the place of segments. Headwater does neither."""
    directory = broker.partition()
    owned = LogDirs([broker.root], owned=True)
    (directory / "00000000000000000000.log.cleaned").write_bytes(b"")
    (directory / "00000000000000000000.timeindex.cleaned").write_bytes(b"")
    assert owned.look(SOUP).settled
    assert not owned.look(SOUP).leftovers
    for name in ("00000000000000000000.log.swap", "00000000000000000000.index.swap"):
        (directory / name).write_bytes(b"")
    log = owned.look(SOUP)
    assert not log.settled
    assert log.leftovers == ("00000000000000000000.index.swap", "00000000000000000000.log.swap")
    assert broker.logs.look(SOUP).leftovers == ()


def aged(directory: Path) -> None:
    """An hour ago somebody has last made or removed a file in it."""
    os.utime(directory, (time.time() - 3600, time.time() - 3600))


@pytest.mark.parametrize("raw", [None, b""])
def test_a_broker_may_still_have_to_write_the_topic_id(broker: Broker, raw: bytes | None) -> None:
    directory = broker.partition()
    path = directory / "partition.metadata"
    path.unlink() if raw is None else path.write_bytes(raw)
    with pytest.raises(SourceChanged, match=r"no partition\.metadata yet"):
        broker.logs.look(SOUP)
    aged(directory)
    with pytest.raises(CorruptData, match="topic id"):
        broker.logs.look(SOUP)
    (directory / "00000000000000000000.log").write_bytes(b"")
    aged(directory)
    with pytest.raises(SourceChanged):  # there is nothing to archive in it
        broker.logs.look(SOUP)


def test_a_file_that_is_named_like_a_partition_is_none(broker: Broker) -> None:
    broker.partition()
    (broker.root / "backup-20261120").write_bytes(b"mine")
    survey, listing = broker.logs.survey(), broker.logs.listing()
    assert ([str(log.partition) for log in survey.logs], survey.problems) == (["soup:0"], ())
    assert (set(listing.partitions), listing.problems) == ({SOUP}, ())
    with pytest.raises(NotFound):
        broker.logs.look(TopicPartition("backup", 20261120))


def test_one_log_directory_given_twice_is_a_mistake(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(broker.root)
    for again in (broker.root, tmp_path / "broker" / ".." / "broker", tmp_path / "link"):
        with pytest.raises(UsageError, match="twice"):
            LogDirs([broker.root, again])


def test_a_listing_names_what_a_survey_looks_at(broker: Broker) -> None:
    broker.partition("soup-0")
    broker.partition("tea-3")
    (broker.root / "soup-1.90484efc86e24096b9266de879f44e19-delete").mkdir()
    broker.checkpoint("replication", soup_0=14)
    listing = broker.logs.listing()
    assert {each: seen.high_watermark for each, seen in listing.partitions.items()} == {SOUP: 14, TopicPartition("tea", 3): None}
    assert set(listing.partitions) == {log.partition.topic_partition for log in broker.logs.partitions()}


def test_a_glimpse_tells_whether_anything_has_happened(broker: Broker) -> None:
    directory = broker.partition()
    epochs = directory / "leader-epoch-checkpoint"
    epochs.write_bytes(encode_epochs(EpochHistory.of(((0, 0),))))
    broker.checkpoint("replication", soup_0=3)
    logs = broker.logs

    def seen() -> log_dirs.Glimpse:
        return logs.listing().partitions[SOUP]

    assert not seen().is_as(seen())  # too young to tell
    aged(directory)
    aged(epochs)
    before = seen()
    assert seen().is_as(before)
    (directory / f"{5:020}.log").write_bytes(a_segment(5, 1))
    assert not seen().is_as(before)
    aged(directory)
    broker.checkpoint("replication", soup_0=5)
    assert not seen().is_as(before)
    broker.checkpoint("replication", soup_0=3)
    epochs.write_bytes(encode_epochs(EpochHistory.of(((1, 0),))))
    assert not seen().is_as(before)
    aged(epochs)
    for name in ("log-start", "cleaner"):
        before = seen()
        broker.checkpoint(name, soup_0=1)
        assert not seen().is_as(before)


def test_a_glimpse_knows_the_topic_and_who_leads(tmp_path: Path) -> None:
    logs = LogDirs([private_copy("pantry-live", tmp_path)])
    cluster, seen = logs.metadata(), logs.listing().partitions
    assert cluster
    assert {place: (seen[place].topic_id, seen[place].leadership) for place in seen} == {
        place: (cluster.topics[place.topic].topic_id, cluster.topics[place.topic].partitions[place.partition]) for place in seen
    }


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
    """Whoever names it wants leadership to be known: to go on without would be another thing."""
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


def test_a_survey_goes_on_past_a_directory_it_cannot_use(broker: Broker) -> None:
    broker.partition("soup-0")
    (broker.partition("stew-0") / "partition.metadata").unlink()
    aged(broker.root / "stew-0")
    (broker.partition("tea-0") / "partition.metadata").write_bytes(b"version: 0\ntopic_id: ../../x\n")
    (broker.partition("rice-0") / "leader-epoch-checkpoint").write_bytes(b"0\n1\nx\n")
    survey = broker.logs.survey()
    assert [str(log.partition) for log in survey.logs] == ["soup:0"]
    assert sorted(path.name for path, _ in survey.problems) == ["rice-0", "stew-0", "tea-0"]
    assert all(isinstance(error, CorruptData) for _, error in survey.problems)
    assert broker.logs.partitions() == list(survey.logs)
    with pytest.raises(CorruptData, match=r"no partition\.metadata"):
        broker.logs.look(TopicPartition("stew", 0))


def test_one_of_two_directories_without_identity_is_a_problem_of_its_own(broker: Broker, tmp_path: Path) -> None:
    broker.partition()
    (tmp_path / "other").mkdir()
    survey = LogDirs([tmp_path / "other", broker.root]).survey()
    assert len(survey.logs) == 1
    ((path, error),) = survey.problems
    assert path.name == "other"
    assert isinstance(error, UsageError)
    with pytest.raises(UsageError, match=r"no meta\.properties"):
        LogDirs([tmp_path / "other"]).survey()


def test_directories_of_two_brokers_are_refused(broker: Broker, tmp_path: Path) -> None:
    other = Broker(tmp_path / "other", cluster_id="another")
    with pytest.raises(ForeignOwner):
        LogDirs([broker.root, other.root]).survey()
    with pytest.raises(ForeignOwner):
        _ = LogDirs([broker.root, other.root]).cluster_id


def test_a_partition_in_two_directories_is_a_problem(broker: Broker, tmp_path: Path) -> None:
    other = Broker(tmp_path / "other", cluster_id="kitchen-cluster")
    broker.partition()
    other.partition()
    survey = LogDirs([broker.root, other.root]).survey()
    assert [log.directory for log in survey.logs] == [broker.root / "soup-0"]
    assert len(survey.problems) == 1


def test_missing_and_unreadable_directories_are_told_apart(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path, words in ((tmp_path / "gone", "does not exist"), (tmp_path / "file", "not a directory")):
        for act in (LogDirs([path]).survey, lambda path=path: LogDirs([path]).look(SOUP), lambda path=path: LogDirs([path]).cluster_id):
            with pytest.raises(UsageError, match=words):
                act()
    with pytest.raises(UsageError):
        LogDirs([])

    def refuse(_: object) -> object:
        raise PermissionError(13, "denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(Unauthorised):
        broker.logs.survey()


def test_an_absent_partition_is_not_found(broker: Broker) -> None:
    with pytest.raises(NotFound):
        broker.logs.look(SOUP)


class Restless:
    """Does something to the directory between the two listings of a look, `times` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None], times: int) -> None:
        self._original, self._change, self._left = log_dirs._epochs, change, times
        monkeypatch.setattr(log_dirs, "_epochs", self)

    def __call__(self, directory: Path) -> EpochHistory:
        if self._left:
            self._left -= 1
            self._change()
        return self._original(directory)


def test_a_listing_that_changes_is_taken_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = broker.partition("soup-0", 0, 5)

    def roll() -> None:
        (directory / "00000000000000000010.log").write_bytes(a_segment(10, 1))

    Restless(monkeypatch, roll, times=1)
    assert [each.base_offset for each in broker.logs.look(SOUP).segments] == [0, 5, 10]


def test_a_replaced_inode_is_a_change(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = broker.partition("soup-0", 0, 5)

    def swap() -> None:
        (directory / "new").write_bytes(a_segment(0, 1))
        (directory / "new").rename(directory / "00000000000000000000.log")

    Restless(monkeypatch, swap, times=2)
    log = broker.logs.look(SOUP)
    assert log.segments[0].generation[0] == (directory / "00000000000000000000.log").stat().st_ino


def test_a_directory_that_never_holds_still_is_a_changed_source(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = broker.partition()
    bases = iter(range(10, 1000))
    Restless(monkeypatch, lambda: (directory / f"{next(bases):020}.log").touch(), times=100)
    with pytest.raises(SourceChanged):
        broker.logs.look(SOUP)


def test_growth_of_the_active_segment_is_no_change_and_its_newest_size_counts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = broker.partition()
    active = directory / "00000000000000000000.log"

    def grow() -> None:
        with active.open("ab") as file:
            file.write(a_segment(5, 1))

    Restless(monkeypatch, grow, times=1)
    assert broker.logs.look(SOUP).segments[0].size_bytes == active.stat().st_size


def test_a_directory_deleted_in_mid_look_is_not_found(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = broker.partition()
    Restless(monkeypatch, lambda: shutil.rmtree(directory), times=1)
    with pytest.raises(NotFound):
        broker.logs.look(SOUP)


@pytest.mark.parametrize("name", ["pantry", "kitchen"])
def test_every_partition_of_a_real_broker_is_found(name: str) -> None:
    logs = LogDirs([unpack(name)])
    told = expected_cluster(name)
    wanted = {(topic["name"], each["partition"], topic["topic_id"]) for topic in told["topics"] for each in topic["partitions"]}
    survey = logs.survey()
    assert {(log.partition.topic, log.partition.partition, log.partition.topic_id) for log in survey.logs} == wanted
    assert not survey.problems
    assert (logs.cluster_id, logs.node_id) == (told["cluster_id"], 1)


def test_compaction_and_leadership_come_from_the_metadata_log() -> None:
    logs = {log.partition.topic: log for log in LogDirs([unpack("pantry-live")]).partitions()}
    assert {topic for topic, log in logs.items() if log.compacted} == {
        "__consumer_offsets",
        "__transaction_state",
        "fridge-state",
        "menu.prices",
        "stock.levels",
    }
    leadership = logs["shift.changes"].leadership
    assert leadership is not None
    assert (leadership.is_ours, leadership.all_in_sync, leadership.leader_epoch) == (True, True, 8)


def test_nobody_leads_what_a_broker_left_on_a_clean_stop() -> None:
    for log in LogDirs([unpack("pantry")]).partitions():
        assert log.leadership is not None
        assert log.leadership.leader == -1
        assert not log.leadership.is_ours


def test_metadata_of_a_later_version_leaves_leadership_unknown_and_stops_nobody(tmp_path: Path) -> None:
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


def test_checkpoints_are_decoded_once_for_each_of_their_states(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many partitions are looked at: the files hold a line for each."""
    broker.partition("soup-0")
    broker.partition("tea-0")
    broker.checkpoint("replication", soup_0=3, tea_0=4)
    for path in (broker.root / "replication-offset-checkpoint", broker.root / "meta.properties"):
        os.utime(path, (time.time() - 60, time.time() - 60))
    logs, decoded, opened = broker.logs, 0, 0
    decode, open_path = log_dirs._decode_offsets, Path.open

    def counted(raw: bytes, *, where: str) -> Mapping[TopicPartition, int]:
        nonlocal decoded
        decoded += 1
        return decode(raw, where=where)

    def noted(path: Path, mode: str = "r", **how: Any) -> Any:
        nonlocal opened
        opened += path.parent == broker.root
        return open_path(path, mode, **how)

    monkeypatch.setattr(log_dirs, "_decode_offsets", counted)
    monkeypatch.setattr(Path, "open", noted)
    for _ in range(10):
        assert [logs.look(each).high_watermark for each in (SOUP, TopicPartition("tea", 0))] == [3, 4]
    assert (decoded, opened) == (1, 2)
    broker.checkpoint("replication", soup_0=4, tea_0=5)  # as large, and perhaps in the same tick of the file system's clock
    assert logs.look(SOUP).high_watermark == 4
    broker.checkpoint("replication", soup_0=5, tea_0=5)
    assert logs.look(SOUP).high_watermark == 5
    (broker.root / "replication-offset-checkpoint").unlink()
    assert logs.look(SOUP).high_watermark is None


def test_a_disk_that_hangs_holds_up_its_own_partitions_only(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.partition("soup-0")
    broker.partition("tea-0")
    logs, there, go_on = broker.logs, threading.Event(), threading.Event()
    real = log_dirs._epochs

    def hang(directory: Path) -> EpochHistory:
        if directory.name == "soup-0":
            there.set()
            assert go_on.wait(30)
        return real(directory)

    monkeypatch.setattr(log_dirs, "_epochs", hang)
    with ThreadPoolExecutor(1) as other:
        looking = other.submit(logs.look, SOUP)
        assert there.wait(30)
        assert logs.look(TopicPartition("tea", 0)).partition.topic == "tea"
        go_on.set()
        assert looking.result().partition.topic == "soup"


def test_metadata_of_another_incarnation_says_nothing_about_a_directory(tmp_path: Path) -> None:
    root = private_copy("pantry-live", tmp_path)
    (root / "menu.prices-0" / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    log = LogDirs([root]).look(TopicPartition("menu.prices", 0))
    assert (log.leadership, log.compacted, log.partition.topic_id) == (None, False, TOPIC_ID)
