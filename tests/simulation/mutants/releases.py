"""Mistakes about what is released, by agents and by requests to a broker; `test_deletions` leads to the latter."""

from contextlib import ExitStack
from dataclasses import replace as dataclass_replace
from typing import Any

import msgspec
from msgspec.structs import replace

import archival.collection.collector
import archival.collection.orphans
import archival.partition.archiver
import archival.partition.branches
import archival.partition.looks
import archival.partition.merger
import archival.partition.release
import archival.partition.source
import archival.partition.tails
import archival.plan.lineage
import archival.plan.merge_plan
import archival.plan.replacement
import archival.plan.role
import archival.plan.step_plan
import archival.plan.trim
from archival.broker.broker_release import BrokerReleaser
from archival.partition.archiver import PartitionArchiver
from archival.partition.release import Releaser
from archival.plan.role import Standby
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from manifests.entry import Entry
from manifests.head import Head
from tests.simulation.mutants.mutant import mutant, patch_in
from tests.simulation.requests import SimulatedConnection

# Release


@mutant("release compares offsets only", theme="lineage", noted=423)
def release_no_lineage(stack: ExitStack) -> None:
    patch_in(stack, archival.partition.release, "branches_at", lambda *_: None)
    patch_in(stack, archival.partition.release, "_refusal", lambda log, head, writer, acting: "" if head.writer == writer else "another's")


@mutant("release ignores the in-sync set and what the head says of leader epochs", theme="lineage", rare=True, noted=1292)
def as_designed_release(stack: ExitStack) -> None:
    patch_in(stack, archival.partition.release, "_refusal", lambda log, head, writer, acting: "" if head.writer == writer else "another's")


@mutant("release ignores the in-sync set", theme="release", in_race=True)
def release_without_in_sync_set(stack: ExitStack) -> None:
    real = archival.partition.release._refusal
    patch_in(stack, archival.partition.release, "_refusal", lambda log, *rest: real(dataclass_replace(log, leadership=None), *rest))


@mutant("release ignores the leader epoch in the head", theme="release", in_race=True)
def release_without_stamp(stack: ExitStack) -> None:
    def refusal(log: LocalLog, head: Head, writer: str, acting: Any) -> str:
        lagging = log.leadership is not None and not log.leadership.all_in_sync
        return "refused" if head.writer != writer or lagging else ""

    patch_in(stack, archival.partition.release, "_refusal", refusal)


@mutant("release looks once", theme="release", in_race=True)
def release_looks_once(stack: ExitStack) -> None:
    patch_in(stack, Releaser, "_look_again", lambda *_: None)


@mutant("last_offset taken for the next offset and incremented", noted=4)
def release_off_by_one(stack: ExitStack) -> None:
    real = archival.partition.release.release_bound

    def release_bound(log: LocalLog, head: Head | None, writer: str) -> tuple[int, str]:
        bound, reason = real(log, head, writer)
        later = [segment.base_offset for segment in log.segments if segment.base_offset > bound]
        return (later[0] if head and later and not _held_back(reason) else bound), reason

    patch_in(stack, archival.partition.release, "release_bound", release_bound)


def _held_back(reason: str) -> bool:
    return reason != "the rest is not archived"


@mutant("a gap entry counts as covering, release crosses it", theme="gaps", rare=True, noted=8)
def release_across_gap(stack: ExitStack) -> None:
    real = archival.partition.release.release_bound

    def release_bound(log: LocalLog, head: Head | None, writer: str) -> tuple[int, str]:
        if head:
            digested = tuple(replace(entry, gap=False, digest="covered") if entry.gap else entry for entry in head.entries)
            head = replace(head, entries=digested)
        return real(log, head, writer)

    patch_in(stack, archival.partition.release, "release_bound", release_bound)


@mutant("release trusts last_offset of the control log", noted=4)
def release_from_control(stack: ExitStack) -> None:
    def plan_from_control(self: Releaser, archiver: PartitionArchiver) -> Head | None:
        known = archiver._announcer._control.state().partition(archiver.partition)
        log = self._logs.look(archiver.partition.topic_partition)
        acting = archival.plan.role.archiving_role(log)
        if known is None or isinstance(acting, Standby):
            return None
        digest = "crc64nvme:" + "0" * 16
        first, last = known.start_offset, known.last_offset
        entry = Entry(base_offset=first, last_offset=max(first, last), size_bytes=1, live_bytes=1, digest=digest, fence=known.fence)
        return msgspec.structs.replace(
            _A_HEAD,
            writer=self._writer,
            fence=known.fence,
            leader_epoch=acting.leader_epoch,
            start_offset=first,
            last_offset=last,
            entries=(entry,) if first <= last else (),
        )

    patch_in(stack, Releaser, "_load", plan_from_control)
    patch_in(stack, archival.partition.release, "branches_at", lambda *_: None)


_A_HEAD = Head(
    cluster_id="c",
    topic="t",
    topic_id="A" * 22,
    partition=0,
    version=1,
    commit_id="known",
    fence=1,
    writer="w",
    start_offset=0,
    last_offset=-1,
)


# Requests to a broker


@mutant("a request to delete goes to whoever leads by then", theme="requests", in_race=True)
def request_routed(stack: ExitStack) -> None:
    def delete(self: BrokerReleaser, broker: Any, partition: PartitionId, end: int) -> None:
        if broker.topic_id(partition.topic) == partition.topic_id:
            broker.routed().delete_records(partition.topic_partition, end)

    patch_in(stack, BrokerReleaser, "_delete", delete)


@mutant("what the name means is not asked again before a request to delete", theme="requests", in_race=True)
def request_by_name(stack: ExitStack) -> None:
    def delete(self: BrokerReleaser, broker: Any, partition: PartitionId, end: int) -> None:
        broker.asked("Metadata")
        broker.delete_records(partition.topic_partition, end)

    patch_in(stack, BrokerReleaser, "_delete", delete)


@mutant("a broker is asked to delete though not every replica is in sync", theme="requests", in_race=True)
def request_without_in_sync_set(stack: ExitStack) -> None:
    release_without_in_sync_set(stack)


@mutant("who is in sync may be older than the high watermark", theme="requests", in_race=True)
def request_by_old_metadata(stack: ExitStack) -> None:
    def metadata_end(self: SimulatedConnection) -> int:
        self.asked("DescribeQuorum")
        return 0

    patch_in(stack, SimulatedConnection, "metadata_end", metadata_end)


@mutant("a broker is asked to delete across a gap of the archive", theme="requests", in_race=True)
def request_across_gap(stack: ExitStack) -> None:
    release_across_gap(stack)
