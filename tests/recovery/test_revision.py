"""An archive that is merged, trimmed and collected while it is recovered."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import recovery
from headwater_core.errors import ForeignOwner, TransientError, UsageError, VerificationFailed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectInfo
from headwater_core.partition import PartitionId, topic_id_text
from headwater_core.segments import checkpoints
from headwater_core.segments.markers import ABORT, read_marker
from manifests import keys
from manifests.head import encode_head
from manifests.repository import ManifestRepository
from recovery.plan_document import decode_plan, encode_plan
from recovery.recovery_plan import RecoveryPlan
from recovery.revision import REVISIONS_MAX
from recovery.target import LOCK, read_mark
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import BASE_TIME
from tests.recovery.interrupted import Failing
from tests.recovery.plans import CLUSTER
from tests.recovery.written_archive import Archive, batches_in, commit, data, plain

RUNS = [plain(0), plain(1)], [plain(2)], [plain(3), plain(4)]
MERGED = [batch for run in RUNS for batch in run]


def an_archive() -> Archive:
    archive = Archive()
    archive.topic("orders", *RUNS)
    return archive


def recovered(into: Path) -> list[bytes]:
    return [raw for _, raw in batches_in(into / "orders-0")]


@pytest.mark.parametrize("fetched", [0, 1, 2])
def test_what_was_merged_since_is_planned_again(fetched: int, tmp_path: Path) -> None:
    """Whatever is in place already, under the same name as the merged run, too."""
    archive = an_archive()
    plan = decode_plan(encode_plan(archive.plan()))
    with pytest.raises(TransientError):
        recovery.apply(plan, tmp_path, Failing(archive.store, TransientError("throttled"), fetched), workers=1)
    archive.replace("orders", MERGED)
    report = recovery.apply(plan, tmp_path, archive.store)
    assert (recovered(tmp_path), report.left_out, report.records) == (MERGED, (), 5)
    mark = read_mark(tmp_path)
    assert mark
    assert mark.plan.recovery_id == plan.recovery_id
    assert mark.plan.topics[0].partitions[0].manifest_version == 2
    assert recovery.apply(plan, tmp_path, archive.store).again


@pytest.mark.parametrize("options", [{"to_offsets": {"orders:0": 5}}, {"to_time_ms": BASE_TIME + 4}])
def test_what_was_archived_since_beyond_the_requested_end_does_not_come_back(options: dict[str, Any], tmp_path: Path) -> None:
    """The end was not in the archive when it was planned."""
    archive = an_archive()
    plan = archive.plan(**options)
    with pytest.raises(TransientError):
        recovery.apply(plan, tmp_path, Failing(archive.store, TransientError("throttled"), 1), workers=1)
    archive.replace("orders", [*MERGED, plain(5)], [plain(6)])
    recovery.apply(plan, tmp_path, archive.store)
    assert recovered(tmp_path) == MERGED


def test_what_was_trimmed_since_is_not_missed(tmp_path: Path) -> None:
    archive = an_archive()
    plan = archive.plan()
    with pytest.raises(TransientError):
        recovery.apply(plan, tmp_path, Failing(archive.store, TransientError("throttled"), 1), workers=1)
    archive.replace("orders", [plain(4)], start_offset=4)
    recovery.apply(archive.plan(), tmp_path, archive.store)
    assert recovered(tmp_path) == [plain(4)]
    assert (tmp_path / checkpoints.HIGH_WATERMARKS).read_text().splitlines()[2] == "orders 0 5"


def test_a_transaction_is_ended_though_what_says_so_was_merged_since(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0)], [data(1, 7), plain(2)])
    plan = archive.plan()
    archive.replace("orders", [plain(0), data(1, 7), plain(2)])
    recovery.apply(plan, tmp_path, archive.store)
    *_, (header, raw) = batches_in(tmp_path / "orders-0")
    assert (header.base_offset, header.producer_id, read_marker(raw).type) == (3, 7, ABORT)


def test_committed_offsets_are_known_though_they_were_merged_since(tmp_path: Path) -> None:
    archive = an_archive()
    archive.topic("__consumer_offsets", [commit(0, ("reader", "orders", 0, 9))], [plain(1)])
    plan = archive.plan()
    with pytest.raises(TransientError):  # all of those are in place by then, and not of orders
        recovery.apply(plan, tmp_path, Failing(archive.store, TransientError("throttled"), 2), workers=1)
    archive.replace("orders", MERGED)
    archive.replace("__consumer_offsets", [commit(0, ("reader", "orders", 0, 9)), plain(1)])
    recovery.apply(plan, tmp_path, archive.store)
    mark = read_mark(tmp_path)
    assert mark
    assert [(each.group, each.offset, each.log_end) for each in mark.plan.offsets_ahead] == [("reader", 9, 5)]
    assert not [note for note in mark.plan.endings if "cannot be read" in note]


def test_what_the_archive_still_lists_is_damage(tmp_path: Path) -> None:
    archive = Archive()
    first, *_ = archive.topic("orders", *RUNS)
    plan = archive.plan()
    archive.replace("orders", MERGED[2:], lost=[first])
    archive.store.delete(first.key)
    with pytest.raises(VerificationFailed, match="1 archived run;"):
        recovery.apply(plan, tmp_path, archive.store)
    report = recovery.apply(plan, tmp_path, archive.store, skip_damaged=True)
    assert (recovered(tmp_path), len(report.left_out)) == (MERGED[2:], 1)


def in_a_file(archive: Archive) -> RecoveryPlan:
    return decode_plan(encode_plan(archive.plan()))


def refused(archive: Archive, plan: RecoveryPlan, into: Path, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        recovery.apply(plan, into, archive.store, unchanged=True)
    assert recovery.status(into) is None
    assert [path.name for path in into.iterdir()] == [LOCK]
    assert list(archive.store.list(keys.RECOVERIES)) == []


def test_a_plan_in_a_file_is_refused_when_there_is_more_to_recover_by_now(tmp_path: Path) -> None:
    archive = an_archive()
    plan = in_a_file(archive)
    archive.topic("menu", [plain(0)])
    refused(archive, plan, tmp_path, "menu is in the archive, and is not planned")
    repository = ManifestRepository(archive.store)
    plan = in_a_file(archive)
    partition = replace(repository.resolve("menu"), partitions=2, configs={"cleanup.policy": "compact"})
    repository.ensure_topic(partition)
    refused(archive, plan, tmp_path, "menu had a topic manifest of version 1, and has 2")
    plan = in_a_file(archive)
    [held] = [repository.load(each) for each in repository.partitions("menu", archive.ids["menu"])]
    assert held
    repository.commit(None, replace(held.head, partition=1, version=1, entries=(), start_offset=0, last_offset=-1))
    refused(archive, plan, tmp_path, "menu:1 has a manifest of version 1, and had none")
    assert recovery.apply(in_a_file(archive), tmp_path, archive.store, unchanged=True).records


def rewritten(archive: Archive, **changes: Any) -> str:
    """Give the head of orders other fields in place, as in a bucket that was put back and written to again; returns its digest."""
    key = keys.head(PartitionId(CLUSTER, archive.ids["orders"], 0, "orders"))
    raw = encode_head(replace(ManifestRepository(archive.store).load_unchecked(key), **changes))
    archive.store.replace(key, raw, expected_tag=archive.store.get(key)[1])
    return digest_of(raw)


def test_a_plan_in_a_file_is_refused_when_a_head_was_replaced_by_another_one_of_the_same_version(tmp_path: Path) -> None:
    archive = an_archive()
    plan = in_a_file(archive)
    before = plan.topics[0].partitions[0].manifest_digest
    now = rewritten(archive, commit_id="another")
    assert now != before
    refused(archive, plan, tmp_path, f"orders:0 has another manifest of version 1: {now}, not {before}$")
    assert recovery.apply(in_a_file(archive), tmp_path, archive.store, unchanged=True).records


@pytest.mark.parametrize("has_digest", [True, False])
def test_a_plan_in_a_file_is_refused_when_the_fence_of_a_head_is_another(has_digest: bool, tmp_path: Path) -> None:
    """Plans of before have no digest of it."""
    archive = an_archive()
    plan = in_a_file(archive)
    if not has_digest:
        [topic] = plan.topics
        plan = replace(plan, topics=(replace(topic, partitions=(replace(topic.partitions[0], manifest_digest=""),)),))
    rewritten(archive, fence=2)
    refused(archive, plan, tmp_path, "orders:0 had version 1 and fence 1, and has 1 and 2$")
    assert recovery.apply(in_a_file(archive), tmp_path, archive.store, unchanged=True).records


def test_a_plan_in_a_file_is_refused_when_the_name_is_another_topic_s_by_now(tmp_path: Path) -> None:
    archive = an_archive()
    plan = in_a_file(archive)
    repository = ManifestRepository(archive.store)
    newer = replace(repository.resolve("orders"), topic_id=topic_id_text(b"\xee" * 16))
    repository.ensure_topic(newer)
    repository.choose_incarnation("orders", newer.topic_id)
    refused(archive, plan, tmp_path, f"orders is {newer.topic_id} by now")
    assert recovery.apply(plan, tmp_path, archive.store).records


def test_a_plan_in_a_file_does_not_go_on_with_what_another_plan_has_begun(tmp_path: Path) -> None:
    archive = an_archive()
    with pytest.raises(TransientError):
        recovery.apply(in_a_file(archive), tmp_path, Failing(archive.store, TransientError("throttled"), 1), workers=1)
    archive.replace("orders", MERGED)
    plan = in_a_file(archive)
    with pytest.raises(ForeignOwner, match="orders:0 is planned there from version 1, here from version 2"):
        recovery.apply(plan, tmp_path, archive.store, unchanged=True)
    assert recovery.apply(plan, tmp_path, archive.store).records  # as the same command again does


class Merging(MemoryStore):
    """Merges everything before each of the first `times` listings of what holds data."""

    def __init__(self, archive: Archive, times: int) -> None:
        self.__dict__ = dict(archive.store.__dict__)
        self.archive, self.left = archive, times

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        if prefix.startswith("data/") and self.left:
            self.left -= 1
            self.archive.replace("orders", MERGED)
        return super().list(prefix, start_after=start_after)


def test_what_is_merged_while_it_is_planned_is_planned_again() -> None:
    archive = an_archive()
    changing = Merging(archive, REVISIONS_MAX - 1)
    plan = Archive(changing, archive.ids).plan()
    assert (plan.holes, plan.topics[0].partitions[0].manifest_version) == ((), REVISIONS_MAX)


def test_an_archive_that_does_not_keep_still_is_planned_later() -> None:
    archive = an_archive()
    with pytest.raises(TransientError, match="run the same command again"):
        Archive(Merging(archive, 1 + REVISIONS_MAX), archive.ids).plan()  # the first listing is of what no head lists
