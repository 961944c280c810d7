"""The broker deletes what is archived: when it may be asked, which broker is asked, and what it is asked."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from archival.broker.broker_release import PAUSE_MAX_S, PAUSE_S, REFUSED_S, BrokerReleaser, ReleaseRecord
from archival.broker.broker_view import CommittedEnd, Group, LeaderLog, PinnedBroker
from archival.partition.archiver import PartitionArchiver
from archival.partition.release import Release
from headwater_core.epochs import EpochHistory
from headwater_core.errors import DeletionRefused, SourceChanged, TransientError
from headwater_core.partition import TopicPartition
from headwater_core.segments.local_log import LocalLog
from manifests.head import Head
from manifests.repository import ManifestRepository
from tests.archival.builders import PARTITION, a_log, led_by
from tests.manifests import builders
from tests.manifests.builders import a_gap

ANOTHER = "AAAAAAAAAAAAAAAAAAAAAA"
LOG = replace(a_log(0, 10, 20, hw=15, leadership=led_by(1, 0)), metadata_end=7)


def a_head(*entries: Any, **fields: Any) -> Head:
    return builders.a_head(*entries, partition=PARTITION, **{"writer": "me", "leader_epoch": 0, **fields})


def an_entry(base: int, last: int) -> Any:
    return builders.an_entry(base, last, partition=PARTITION)


class Partition:
    """One partition on its broker, its agent's looks and its head. `before` is called with each thing that is read or done."""

    def __init__(self) -> None:
        self.log, self.head, self.topic_id = LOG, a_head(an_entry(0, 29)), PARTITION.topic_id
        self.said = LeaderLog(PARTITION.topic_id, 0, 25, {0: (0, 25)})
        self.quorum_end = 7
        self.deleted: list[int] = []
        self.waited_s = 0.0
        self.before: Callable[[str], object] = lambda what: None

    def look(self, partition: TopicPartition) -> LocalLog:
        self.before("look")
        return self.log

    def load(self, partition: object) -> Any:
        self.before("head")
        return SimpleNamespace(head=self.head)

    def committed(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, CommittedEnd]:
        raise AssertionError

    def groups(self, known: Collection[str]) -> Sequence[Group]:
        return []

    @contextmanager
    def pinned(self) -> Iterator[PinnedBroker]:
        self.before("connect")
        yield Connection(self)

    def wait(self, seconds: float) -> None:
        self.waited_s += seconds
        self.before("wait")

    def release(self) -> Release:
        archiver = cast(PartitionArchiver, SimpleNamespace(partition=PARTITION, lock=threading.Lock()))
        repository = cast(ManifestRepository, self)
        return BrokerReleaser(logs=self, broker=self, repository=repository, writer="me", wait=self.wait).release(archiver)


class Connection:
    def __init__(self, partition: Partition) -> None:
        self._of = partition

    def leader_log(self, place: TopicPartition, leader_epoch: int, history: EpochHistory) -> LeaderLog:
        self._of.before("leader_log")
        if leader_epoch != 0:
            raise SourceChanged("another leader epoch")
        return self._of.said

    def topic_id(self, topic: str) -> str | None:
        self._of.before("topic_id")
        return self._of.topic_id

    def metadata_end(self) -> int:
        self._of.before("metadata_end")
        return self._of.quorum_end

    def delete_records(self, place: TopicPartition, end: int) -> None:
        self._of.before("delete")
        self._of.deleted.append(end)


@pytest.fixture
def partition() -> Partition:
    return Partition()


def test_whole_segments_below_the_bound_are_deleted(partition: Partition) -> None:
    done: list[str] = []
    partition.before = done.append
    with capture_logs() as logs:
        release = partition.release()
    assert partition.deleted == [20]
    assert (release.local_start, release.size_bytes) == (20, 200)
    assert [(each["event"], each["local_start"]) for each in logs] == [("segments_released", 20)]
    order = ["head", "look", "connect", "leader_log", "metadata_end", "look", "topic_id", "delete", "topic_id"]
    assert done == order  # who is in sync is read after the high watermark, and the topic id right before and after


def test_files_that_the_broker_is_still_to_remove_are_not_released_again(partition: Partition) -> None:
    partition.said = partition.said._replace(log_start=10)
    partition.log = replace(LOG, epochs=EpochHistory.of(((0, 10),)))
    assert partition.release().size_bytes == 100
    partition.said = partition.said._replace(log_start=20)
    partition.log = replace(LOG, epochs=EpochHistory.of(((0, 20),)))
    release = partition.release()
    assert (release.segments, release.local_start) == ((), 20)
    assert partition.deleted == [20]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"log": replace(LOG, leadership=None)}, "does not lead"),
        ({"log": replace(LOG, leadership=led_by(2, 0))}, "does not lead"),
        ({"log": replace(LOG, leadership=led_by(-1, 0))}, "does not lead"),
        ({"log": replace(LOG, leadership=led_by(1, 1))}, "does not lead"),
        ({"log": replace(LOG, leadership_unread=True)}, "does not lead"),
        ({"log": replace(LOG, leadership=led_by(1, 0, in_sync=(1,)))}, "not every replica"),
        ({"log": replace(LOG, settled=False)}, "not settled"),
        ({"head": a_head(an_entry(0, 29), writer="she")}, "she holds"),
        ({"head": a_head(an_entry(0, 29), leader_epoch=-1)}, "leader epoch"),
        ({"head": a_head(a_gap(0, 9), an_entry(10, 29))}, "gap"),
        ({"head": a_head(an_entry(0, 8))}, "not archived"),
    ],
)
def test_nothing_is_deleted_otherwise(partition: Partition, change: dict[str, Any], why: str) -> None:
    for name, value in change.items():
        setattr(partition, name, value)
    release = partition.release()
    assert why in release.reason
    assert (release.segments, partition.deleted) == ((), [])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (LeaderLog(ANOTHER, 0, 25, {0: (0, 25)}), "the name means"),
        (LeaderLog(PARTITION.topic_id, 0, 25, {0: (0, 12)}), "another leader epoch history"),
        (LeaderLog(PARTITION.topic_id, 0, 25, {}), "another leader epoch history"),
    ],
)
def test_a_leader_that_says_something_else_is_not_asked(partition: Partition, said: LeaderLog, why: str) -> None:
    partition.said = said
    with pytest.raises(SourceChanged, match=why):
        partition.release()
    assert not partition.deleted


def test_what_the_broker_holds_in_remote_storage_is_not_deleted(partition: Partition) -> None:
    """The archive begins where the local log does; a deletion would take what lies before that as well."""
    partition.log = replace(LOG, segments=LOG.segments[1:], log_start=10, epochs=EpochHistory.of(((0, 0),)))
    partition.head = a_head(an_entry(10, 29), start_offset=10)
    release = partition.release()
    assert "remote storage" in release.reason
    assert (release.segments, partition.deleted) == ((), [])
    partition.said = partition.said._replace(log_start=10)
    partition.log = replace(partition.log, epochs=EpochHistory.of(((0, 10),)))
    assert partition.release().local_start == 20


def test_the_leaders_own_high_watermark_counts(partition: Partition) -> None:
    partition.said = LeaderLog(PARTITION.topic_id, 0, 19, {0: (0, 25)})
    partition.log = replace(LOG, high_watermark=99)
    assert partition.release().local_start == 10
    assert partition.deleted == [10]


def test_who_is_in_sync_must_not_be_older_than_the_high_watermark(partition: Partition) -> None:
    partition.quorum_end = 9
    with pytest.raises(SourceChanged, match="metadata log ends at 7, the quorum's at 9"):
        partition.release()
    assert not partition.deleted
    partition.before = lambda what: setattr(partition, "log", replace(LOG, metadata_end=9)) if what == "wait" else None
    assert partition.release().segments
    partition.log = replace(LOG, metadata_end=None)
    partition.before = lambda what: None
    with pytest.raises(SourceChanged, match="metadata log ends at None"):
        partition.release()


def test_a_replica_that_drops_out_in_between_is_noticed(partition: Partition) -> None:
    def drop_out(what: str) -> None:
        if what == "metadata_end":
            partition.log = replace(LOG, leadership=led_by(1, 0, in_sync=(1,)))

    partition.before = drop_out
    assert "not every replica" in partition.release().reason
    assert not partition.deleted


@pytest.mark.parametrize(
    "after",
    [
        replace(LOG, leadership=led_by(1, 1), epochs=EpochHistory.of(((0, 0), (1, 25)))),
        replace(LOG, leadership=led_by(2, 1)),
        replace(LOG, epochs=EpochHistory.of(((0, 5),))),
        replace(LOG, partition=replace(PARTITION, topic_id=ANOTHER)),
    ],
    ids=["elected again", "led elsewhere", "the log start moved", "created again"],
)
def test_what_changes_while_it_is_decided_ends_it(partition: Partition, after: LocalLog) -> None:
    partition.before = lambda what: setattr(partition, "log", after) if what == "metadata_end" else None
    with pytest.raises(SourceChanged):
        partition.release()
    assert not partition.deleted


def test_a_topic_that_was_created_again_right_before_is_left_alone(partition: Partition) -> None:
    partition.before = lambda what: setattr(partition, "topic_id", ANOTHER) if what == "topic_id" else None
    with pytest.raises(SourceChanged, match="the name means topic A"):
        partition.release()
    assert not partition.deleted


def test_one_that_was_created_again_at_that_moment_is_reported(partition: Partition) -> None:
    partition.before = lambda what: setattr(partition, "topic_id", ANOTHER) if what == "delete" else None
    with capture_logs() as logs:
        partition.release()
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["release_met_another_topic"]


def test_one_that_is_not_known_any_more_after_the_request_is_no_other_topic(partition: Partition) -> None:
    partition.before = lambda what: setattr(partition, "topic_id", None) if what == "delete" else None
    with capture_logs() as logs:
        partition.release()
    assert not [each for each in logs if each["log_level"] == "error"]


def test_what_fails_is_tried_again_ever_more_seldom() -> None:
    record = ReleaseRecord()
    pauses = [record.failed(TransientError("no"), 100.0) for _ in range(10)]
    assert pauses[:3] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert pauses[-1] == PAUSE_MAX_S
    assert (record.again_s, record.reason) == (100.0 + PAUSE_MAX_S, "no")
    assert record.failed(DeletionRefused("compact alone"), 0.0) == REFUSED_S
    record.released(Release(segments=(), local_start=10, reason="the rest is not archived"))
    assert (record.end, record.failures, record.again_s) == (10, 0, 0.0)


def test_another_leader_epoch_begins_anew() -> None:
    record = ReleaseRecord()
    record.tried_in(3)
    record.released(Release(segments=LOG.segments[:2], local_start=20, reason=""))
    record.tried_in(3)
    assert (record.end, record.size_bytes) == (20, 200)
    record.tried_in(4)
    assert (record.end, record.size_bytes) == (0, 200)
