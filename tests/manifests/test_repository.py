"""One winner per version, whatever the store answers or swallows."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from headwater_core.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    Fenced,
    ForeignOwner,
    NotFound,
    TransientError,
    Unauthorised,
    UnknownOutcome,
)
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, topic_id_text
from manifests import keys
from manifests.head import Head
from manifests.repository import CommitLost, ManifestRepository, Versioned
from manifests.topic_survey import survey_topics
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import PARTITION, TOPIC_ID, a_head, a_topic, an_entry


class LossyStore(MemoryStore):
    """Writes fall into the faults of `plan`, one each, then work again: "before" and "after" lose the request or the reply,
    "refused" and "taken" lose the reply of a request that the store's own client then repeats, "busy" is a definite no."""

    def __init__(self, *plan: str) -> None:
        super().__init__()
        self.plan = list(plan)
        self.reads_fail = 0
        self.late: list[Callable[[], object]] = []

    def create(self, key: str, document: bytes) -> str:
        return self._write(lambda: super(LossyStore, self).create(key, document))

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        return self._write(lambda: super(LossyStore, self).replace(key, document, expected_tag=expected_tag))

    def get(self, key: str, *, max_bytes: int = 1 << 20) -> tuple[bytes, str]:
        if self.reads_fail:
            self.reads_fail -= 1
            raise TransientError("no answer")
        return super().get(key, max_bytes=max_bytes)

    def _write(self, write: Callable[[], str]) -> str:
        fault = self.plan.pop(0) if self.plan else ""
        if fault == "busy":
            raise TransientError("slow down")
        if fault == "late":
            self.late.append(write)
            raise UnknownOutcome("no answer yet")
        if fault == "before":
            raise UnknownOutcome("request lost")
        tag = write()
        if fault == "after":
            raise UnknownOutcome("reply lost")
        if fault == "refused":
            raise Conflict("refused its own success")
        if fault == "taken":
            raise AlreadyExists("refused its own success")
        return tag


def repository(store: ObjectStore) -> ManifestRepository:
    numbers = itertools.count()
    return ManifestRepository(store, new_id=lambda: f"{next(numbers):032x}")


def next_head(before: Versioned, **fields: object) -> Head:
    last = before.head.last_offset
    entry = an_entry(last + 1, last + 10, fence=before.head.fence)
    return msgspec.structs.replace(before.head, last_offset=last + 10, entries=(*before.head.entries, entry), **fields)


def test_a_commit_sets_version_and_commit_id_and_reads_back() -> None:
    archive = repository(MemoryStore())
    assert archive.load(PARTITION) is None
    first = archive.commit(None, a_head(version=77, commit_id="mine"))
    assert (first.head.version, first.head.commit_id) == (1, "0" * 32)
    second = archive.commit(first, next_head(first))
    assert second.head.version == 2
    assert archive.load(PARTITION) == second


@pytest.mark.parametrize("faults", [["after"], ["before"], ["before", "before", "after"], ["taken"], ["late"], ["before", "taken"]])
def test_a_first_commit_survives_lost_requests_and_replies(faults: list[str]) -> None:
    store = LossyStore(*faults)
    archive = repository(store)
    committed = archive.commit(None, a_head())
    assert archive.load(PARTITION) == committed
    assert committed.head.version == 1


@pytest.mark.parametrize("faults", [["after"], ["before"], ["refused"], ["before", "refused"], ["after", "after"], ["late", "late"]])
def test_a_later_commit_survives_lost_requests_and_replies(faults: list[str]) -> None:
    store = LossyStore()
    archive = repository(store)
    first = archive.commit(None, a_head())
    store.plan = faults
    second = archive.commit(first, next_head(first))
    assert archive.load(PARTITION) == second
    assert second.head.version == 2
    for write in store.late:  # the lost requests arrive after all
        with pytest.raises(Conflict):
            write()
    assert archive.load(PARTITION) == second


def test_a_commit_that_stays_open_is_unknown_and_its_late_arrival_makes_the_next_one_lose() -> None:
    store = LossyStore()
    archive = repository(store)
    first = archive.commit(None, a_head())
    store.plan = ["late"] * 10
    with pytest.raises(UnknownOutcome):
        archive.commit(first, next_head(first))
    store.plan = []
    assert archive.load(PARTITION) == first
    store.late[0]()
    with pytest.raises(CommitLost) as lost:
        archive.commit(first, next_head(first))
    assert lost.value.current == archive.load(PARTITION)
    assert lost.value.current is not None
    assert lost.value.current.head.version == 2


def test_a_definite_no_is_retriable_and_a_no_after_a_lost_reply_is_not_definite() -> None:
    store = LossyStore("busy")
    archive = repository(store)
    with pytest.raises(TransientError) as plain:
        archive.commit(None, a_head())
    assert not isinstance(plain.value, UnknownOutcome)
    store.plan = ["before", "busy"]
    with pytest.raises(UnknownOutcome):
        archive.commit(None, a_head())


def test_a_lost_reply_that_cannot_be_read_back_is_unknown() -> None:
    store = LossyStore("after")
    store.reads_fail = 1
    archive = repository(store)
    with pytest.raises(UnknownOutcome):
        archive.commit(None, a_head())
    found = archive.load(PARTITION)
    assert found is not None
    with pytest.raises(CommitLost):
        archive.commit(None, a_head())


def test_a_loser_learns_what_won() -> None:
    archive = repository(MemoryStore())
    first = archive.commit(None, a_head())
    second = archive.commit(first, next_head(first))
    with pytest.raises(CommitLost) as lost:
        archive.commit(first, next_head(first))
    assert lost.value.current == second


@pytest.mark.parametrize(("fence", "writer"), [(2, "agent-b"), (2, "agent-a"), (9, "agent-b")])
def test_a_newer_claim_fences(fence: int, writer: str) -> None:
    archive = repository(MemoryStore())
    first = archive.commit(None, a_head())
    archive.commit(first, msgspec.structs.replace(first.head, fence=fence, writer=writer))
    with pytest.raises(Fenced):
        archive.commit(first, next_head(first))


def test_of_two_claims_with_one_number_the_second_is_fenced() -> None:
    archive = repository(MemoryStore())
    first = archive.commit(None, a_head())
    archive.commit(first, msgspec.structs.replace(first.head, fence=2, writer="agent-b"))
    with pytest.raises(Fenced):
        archive.commit(first, msgspec.structs.replace(first.head, fence=2, writer="agent-c"))


def test_a_claim_that_loses_to_an_older_fence_may_try_again() -> None:
    archive = repository(MemoryStore())
    first = archive.commit(None, a_head())
    second = archive.commit(first, next_head(first))
    claim = msgspec.structs.replace(first.head, fence=2, writer="agent-b")
    with pytest.raises(CommitLost):
        archive.commit(first, claim)
    assert archive.commit(second, msgspec.structs.replace(second.head, fence=2, writer="agent-b")).head.version == 3


def test_our_own_mistakes_do_not_reach_the_bucket() -> None:
    archive = repository(MemoryStore())
    first = archive.commit(None, a_head(fence=3))
    for wrong in (
        msgspec.structs.replace(first.head, fence=2),
        msgspec.structs.replace(first.head, writer="agent-b"),
        msgspec.structs.replace(first.head, partition=4),
    ):
        with pytest.raises(ValueError, match=r"fence|successor"):
            archive.commit(first, wrong)
    with pytest.raises(CorruptData):
        archive.commit(first, msgspec.structs.replace(first.head, last_offset=5))
    assert archive.load(PARTITION) == first


def test_a_head_that_is_gone_is_a_lost_commit() -> None:
    store = MemoryStore()
    archive = repository(store)
    first = archive.commit(None, a_head())
    store.delete(keys.head(PARTITION))
    with pytest.raises(CommitLost) as lost:
        archive.commit(first, next_head(first))
    assert lost.value.current is None


def test_absence_is_never_concluded_from_an_error() -> None:
    class Closed(MemoryStore):
        def get(self, key: str, *, max_bytes: int = 1 << 20) -> tuple[bytes, str]:
            raise Unauthorised("no such key, or not yours to see")

    with pytest.raises(Unauthorised):
        repository(Closed()).load(PARTITION)


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_racing_writers_make_one_chain(kind: str, tmp_path: Path) -> None:
    store: ObjectStore = MemoryStore() if kind == "memory" else DirectoryStore(tmp_path)
    start = threading.Barrier(4)
    won: list[Head] = []

    def write(number: int) -> None:
        archive = ManifestRepository(store)
        start.wait()
        mine = 0
        while mine < 6:
            before = archive.load(PARTITION)
            fence = before.head.fence + 1 if before else 1
            base = before.head if before else a_head()
            try:
                won.append(archive.commit(before, msgspec.structs.replace(base, fence=fence, writer=f"w{number}")).head)
                mine += 1
            except (CommitLost, Fenced):
                continue

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(write, number) for number in range(4)]:
            done.result(timeout=60)
    assert sorted(head.version for head in won) == list(range(1, 25))
    assert sorted(head.fence for head in won) == list(range(1, 25))
    final = ManifestRepository(store).load(PARTITION)
    assert final is not None
    assert final.head == max(won, key=lambda head: head.version)


# The bucket and its topics


def test_a_bucket_has_one_owner() -> None:
    archive = repository(MemoryStore())
    assert archive.owner() is None
    archive.ensure_owner("cluster-1")
    archive.ensure_owner("cluster-1")
    with pytest.raises(ForeignOwner, match="cluster-1"):
        archive.ensure_owner("cluster-2")
    owner = archive.owner()
    assert owner is not None
    assert owner.cluster_id == "cluster-1"


@pytest.mark.parametrize("faults", [["after"], ["before", "after"], ["taken"], ["late"]])
def test_small_documents_survive_lost_replies(faults: list[str]) -> None:
    archive = repository(LossyStore(*faults))
    archive.ensure_owner("cluster-1")
    archive.ensure_topic(a_topic())
    assert archive.resolve("orders").partitions == 4


def test_a_topic_is_recorded_once_and_updated_when_it_grows() -> None:
    archive = repository(MemoryStore())
    assert archive.ensure_topic(a_topic()).manifest.version == 1
    assert archive.ensure_topic(a_topic()).manifest.version == 1
    grown = archive.ensure_topic(a_topic(partitions=9)).manifest
    assert (grown.version, grown.partitions) == (2, 9)
    assert archive.ensure_topic(a_topic(partitions=4)).manifest == grown
    assert archive.load_topic("orders", TOPIC_ID) == grown


def test_a_recreated_topic_takes_the_name_and_a_late_agent_does_not_give_it_back() -> None:
    archive = repository(MemoryStore())
    old = topic_id_text(bytes(16))
    archive.ensure_topic(a_topic(topic_id=old))
    archive.ensure_topic(a_topic())
    archive.ensure_topic(a_topic(topic_id=old, partitions=7))
    assert archive.resolve("orders").topic_id == TOPIC_ID
    assert archive.incarnations() == [("orders", old), ("orders", TOPIC_ID)]
    assert [topic.topic_id for topic in survey_topics(archive.store, earlier=True).manifests] == [TOPIC_ID]


def test_the_same_topic_id_in_another_cluster_is_foreign() -> None:
    archive = repository(MemoryStore())
    archive.ensure_topic(a_topic())
    with pytest.raises(ForeignOwner):
        archive.ensure_topic(a_topic(cluster_id="cluster-2"))


def test_partitions_are_those_with_a_head_and_hostile_names_are_passed_over() -> None:
    store = MemoryStore()
    archive = repository(store)
    archive.ensure_topic(a_topic(partitions=12))
    for number in (11, 2):
        partition = PartitionId("cluster-1", TOPIC_ID, number, "orders")
        archive.commit(None, a_head(partition=partition))
    for name in (
        f"meta/orders/{TOPIC_ID}/x/manifest.json",
        f"meta/orders/{TOPIC_ID}/007/manifest.json",
        "meta/orders/evil/1/manifest.json",
    ):
        store.create(name, b"{}")
    assert [partition.partition for partition in archive.partitions("orders", TOPIC_ID)] == [2, 11]
    assert archive.incarnations() == [("orders", TOPIC_ID)]


def test_unknown_names_are_not_found() -> None:
    archive = repository(MemoryStore())
    assert archive.current("orders") is None
    assert archive.load_topic("orders", TOPIC_ID) is None
    with pytest.raises(NotFound):
        archive.resolve("orders")
    with pytest.raises(NotFound):
        archive.partitions("orders", TOPIC_ID)


def test_damaged_small_documents_are_reported_not_overwritten() -> None:
    store = MemoryStore()
    archive = repository(store)
    store.create(keys.OWNER, b"{}")
    with pytest.raises(CorruptData):
        archive.ensure_owner("cluster-1")
    store.create(keys.topic_manifest("orders", TOPIC_ID), b"rubbish")
    with pytest.raises(CorruptData):
        archive.ensure_topic(a_topic())
