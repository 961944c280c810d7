import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, NotFound, SourceChanged
from headwater_core.partition import TopicPartition
from headwater_core.segments.checkpoints import (
    encode_epochs,
    encode_partition_metadata,
)
from headwater_core.segments.log_dirs import Glimpse, LogDirs, partition_directory
from tests.fixtures import private_copy, unpack
from tests.headwater_core.segments.builders import a_segment
from tests.headwater_core.segments.log_dirs.broker import SOUP, TOPIC_ID, Broker, aged


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
    assert log.epochs.starts == ((0, 0), (3, 7))
    assert (log.partition.cluster_id, log.partition.topic_id) == ("kitchen-cluster", TOPIC_ID)
    assert (log.leadership, log.compacted) == (None, False)


def test_without_checkpoints_nothing_is_committed_and_the_log_starts_at_its_first_file(broker: Broker) -> None:
    broker.partition("soup-0", 7)
    log = broker.logs.look(SOUP)
    assert (log.high_watermark, log.log_start, log.epochs.starts) == (None, 7, ())


def test_a_stale_log_start_does_not_lie_below_the_first_file(broker: Broker) -> None:
    broker.partition("soup-0", 7)
    broker.checkpoint("log-start", soup_0=3)
    assert broker.logs.look(SOUP).log_start == 7


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


def test_in_an_owned_directory_no_broker_finishes_a_compaction(broker: Broker) -> None:
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


def test_a_glimpse_tells_whether_anything_has_happened(broker: Broker) -> None:
    directory = broker.partition()
    epochs = directory / "leader-epoch-checkpoint"
    epochs.write_bytes(encode_epochs(EpochHistory.of(((0, 0),))))
    broker.checkpoint("replication", soup_0=3)
    logs = broker.logs

    def seen() -> Glimpse:
        return logs.listing().partitions[SOUP]

    assert not seen().is_as(seen())  # too young to be sure
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


class Restless:
    """Does something to the directory between the two listings of a look, `times` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None], times: int) -> None:
        self._original, self._change, self._left = partition_directory._epochs, change, times
        monkeypatch.setattr(partition_directory, "_epochs", self)

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
    assert log.segments[0].generation.inode == (directory / "00000000000000000000.log").stat().st_ino


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


def test_no_broker_leads_what_one_left_on_a_clean_stop() -> None:
    for log in LogDirs([unpack("pantry")]).partitions():
        assert log.leadership is not None
        assert log.leadership.leader == -1
        assert not log.leadership.is_ours


def test_metadata_of_another_incarnation_says_nothing_about_a_directory(tmp_path: Path) -> None:
    root = private_copy("pantry-live", tmp_path)
    (root / "menu.prices-0" / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    log = LogDirs([root]).look(TopicPartition("menu.prices", 0))
    assert (log.leadership, log.compacted, log.partition.topic_id) == (None, False, TOPIC_ID)


def test_a_file_system_whose_directories_tell_other_inodes_is_looked_at_too(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that are laid over others may do."""
    broker.partition("soup-0", 0, 10)
    names = partition_directory._names

    def other(path: Path, owned: bool) -> partition_directory._Names:
        found = names(path, owned)
        return found._replace(inodes={base: inode + 1 for base, inode in found.inodes.items()})

    monkeypatch.setattr(partition_directory, "_names", other)
    assert [each.base_offset for each in broker.logs.look(SOUP).segments] == [0, 10]
