"""A topic that an owned log directory lacks and a topic manifest in the bucket has: downloaded once, beside what is there.

It is made in a directory of its own below the log directory, with its mark, as any recovery; its partitions are moved out of there when all
is verified. Two create-only records in the bucket: one says where it was begun, so that nobody else begins; the other one, when all is in
its place, that it was done: it is never done again, even when the topic is emptied since. What was begun and not finished is not done: the
same host continues, another one waits until somebody who knows that host to be lost deletes the first record.
"""

import hashlib
import os
import re
import shutil
import socket
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path, PurePath
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from headwater_core import milestones
from headwater_core.clock import Clock
from headwater_core.control.control_log import ControlLog
from headwater_core.control.control_records import Record, RecoveryFinished, RecoveryStarted
from headwater_core.epochs import EpochHistory, EpochStart
from headwater_core.errors import NotFound, TransientError, UsageError, VerificationFailed
from headwater_core.files import disk_errors, sync_path
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints
from manifests import keys
from manifests.repository import ManifestRepository
from recovery import layout
from recovery.download_record import DownloadRecord, read_begun, read_done, record_done
from recovery.layout import partition_directory, partitions
from recovery.recovery_plan import Options, PartitionPlan, RecoveryPlan
from recovery.restoration import apply
from recovery.target import Mark, read_mark
from recovery.target_files import publish, read_if_there
from recovery.target_record import record_target

MILESTONES = ("download.checkpoints", "download.moved", "download.recorded")
"""Those of moving what was downloaded; before them come a recovery's own."""

_STAGING, _DONE = ".headwater-recover-from-{}.partial", ".headwater-recover-from-{}.done"

_log = structlog.get_logger()

MakePlan = Callable[[Sequence[str], Options], RecoveryPlan]


class DownloadOutcome(StrEnum):
    """present: the topic has a directory; done: it was downloaded before, by whomever; downloaded: just now"""

    PRESENT = "present"
    DONE = "done"
    DOWNLOADED = "downloaded"


class TopicDownload(NamedTuple):
    """
    topic         its name here
    manifest_key  of the topic manifest that it is made of
    cluster_id, node_id  of the log directories
    retention_ms, retention_bytes  bound what is downloaded; with neither the retention in the manifest does
    """

    topic: str
    manifest_key: str
    cluster_id: str
    node_id: int
    retention_ms: int | None = None
    retention_bytes: int | None = None

    @property
    def recovery_id(self) -> str:
        """The same for the same topic of the same cluster, no matter who downloads it."""
        text = "\n".join((self.cluster_id, self.topic, self.manifest_key))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def parse_topic_manifest(key: str) -> tuple[str, str]:
    """Topic and topic id of the topic manifest at `key`. Raises UsageError for another key."""
    found = keys.parse_manifest(key)
    if found is None or found.partition is not None:
        raise UsageError(f"{key[:300]!r} is no topic manifest: meta/TOPIC/TOPIC_ID/topic.json")
    return found.topic, found.topic_id


def bring_back(
    wanted: TopicDownload,
    log_dirs: Sequence[Path],
    store: ObjectStore,
    make_plan: MakePlan,
    *,
    clock: Clock,
    control: ControlLog | None = None,
) -> DownloadOutcome:
    """Download the topic unless it has a directory, or was downloaded before. May be repeated after any interruption.

    Raises UsageError when it cannot be as it was requested, or was begun here and taken over by another host since, NotFound when there is
    no such manifest, VerificationFailed when something is missing or damaged, DiskFull, TransientError when the same call may succeed
    later, also while it is begun and not finished elsewhere, and what the store raises.
    """
    staging, done = (name.format(wanted.recovery_id) for name in (_STAGING, _DONE))
    for each in log_dirs:
        _remove(each / done)  # of a run that ended while it cleared up
    staged = [each / staging for each in log_dirs]
    into = next((each for each in staged if read_mark(each) is not None), None)
    if into is None:
        if (settled := _settled(wanted, log_dirs, store, control)) is not None:
            for each in staged:
                _remove(each)  # it holds no mark, so nothing was begun in it
            return settled
        into = _place(wanted, staged, store)
    mark = _downloaded(wanted, into, store, make_plan, clock, control)
    _claim(mark, into, store)  # a download takes hours
    _move(mark.plan, into, into.parent)
    _record(wanted, mark, into, store, clock)
    milestones.reached("download.recorded")
    _announce(
        control, RecoveryFinished(recovery_id=wanted.recovery_id, at_ms=clock.now_ms(), outcome=f"downloaded to {into.parent}"[:1000])
    )
    with disk_errors(into):
        os.rename(into, into.with_name(done))
        sync_path(into.parent)
    _remove(into.with_name(done))
    return DownloadOutcome.DOWNLOADED


def _settled(wanted: TopicDownload, log_dirs: Sequence[Path], store: ObjectStore, control: ControlLog | None) -> DownloadOutcome | None:
    if _has_directory(wanted.topic, log_dirs):
        return DownloadOutcome.PRESENT
    known = control.state().recoveries.get(wanted.recovery_id) if control else None
    if (known is not None and known.finished_ms is not None) or read_done(store, wanted.recovery_id) is not None:
        return DownloadOutcome.DONE
    return None


def _place(wanted: TopicDownload, staged: Sequence[Path], store: ObjectStore) -> Path:
    """Where it was begun, whose mark is lost, or where there is most room."""
    begun = read_begun(store, wanted.recovery_id)
    if begun is None:
        with disk_errors(staged[0].parent):
            return max(staged, key=lambda each: shutil.disk_usage(each.parent).free)
    if (begun.host, begun.node_id) == (socket.gethostname(), wanted.node_id):
        for each in staged:
            if begun.directory == str(each.resolve()):
                return each
    raise TransientError(
        f"the download of {wanted.topic} was begun in {begun.directory} on {begun.host} by node {begun.node_id}, "
        "and is not finished: the agent there continues it. If that host or its disk is lost, delete "
        f"{keys.recovery(wanted.recovery_id)} from the bucket, and it is downloaded here"
    )


def _downloaded(
    wanted: TopicDownload, into: Path, store: ObjectStore, make_plan: MakePlan, clock: Clock, control: ControlLog | None
) -> Mark:
    """All of it, below `into`."""
    mark = read_mark(into)
    if mark is not None:
        _claim(mark, into, store)
        if mark.finished_ms is not None:
            return mark
    plan = mark.plan if mark else _planned(wanted, store, make_plan)
    _announce(control, RecoveryStarted(recovery_id=wanted.recovery_id, at_ms=clock.now_ms(), summary=f"{wanted.topic} into {into}"[:1000]))
    try:
        apply(plan, into, store, clock=clock, moved=True)  # with its log directory, whose agent is the one that continues
    except UsageError:
        if (mark := read_mark(into)) is not None:
            _claim(mark, into, store)  # raises when another one has taken it over meanwhile
        else:
            _place(wanted, [into], store)  # raises when another one has begun meanwhile
        raise
    mark = read_mark(into)
    assert mark is not None
    return mark


def _claim(mark: Mark, into: Path, store: ObjectStore) -> None:
    """The bucket says that it is downloaded here. Raises UsageError when that is so, or was done, somewhere else."""
    recovery_id, here = mark.plan.recovery_id, (socket.gethostname(), str(into.resolve()))
    begun, done = read_begun(store, recovery_id), read_done(store, recovery_id)
    for held in (done, begun):
        if held is not None and held.directory_id != mark.directory_id and (held.host, held.directory) != here:
            raise UsageError(
                f"its download was begun here, and {held.directory} on {held.host} has taken it over since; remove {into}, and what of the "
                f"topic is in {into.parent}"
            )
    if begun is None:
        record_target(store, mark.plan, into, mark.directory_id, host=socket.gethostname(), started_ms=mark.started_ms)


def _record(wanted: TopicDownload, mark: Mark, into: Path, store: ObjectStore, clock: Clock) -> None:
    record_done(
        store,
        DownloadRecord(
            recovery_id=wanted.recovery_id,
            topic=wanted.topic,
            manifest_key=wanted.manifest_key,
            host=socket.gethostname(),
            directory=str(into.parent.resolve()),
            directory_id=mark.directory_id,
            finished_ms=clock.now_ms(),
        ),
    )


def _announce(control: ControlLog | None, record: Record) -> None:
    """The bucket is what counts."""
    if control is None:
        return
    try:
        control.publish(record)
    except TransientError as error:
        _log.warning("recovery_not_announced", reason=str(error))


def _remove(directory: Path) -> None:
    with disk_errors(directory):
        if directory.exists():
            shutil.rmtree(directory)


def _has_directory(topic: str, log_dirs: Sequence[Path]) -> bool:
    name = re.compile(re.escape(topic) + r"-[0-9]+")
    for each in log_dirs:
        with disk_errors(each):
            if any(name.fullmatch(found) for found in os.listdir(each)):
                return True
    return False


def _planned(wanted: TopicDownload, store: ObjectStore, make_plan: MakePlan) -> RecoveryPlan:
    topic, topic_id = parse_topic_manifest(wanted.manifest_key)
    manifest = ManifestRepository(store).load_topic(topic, topic_id)
    if manifest is None:
        raise NotFound(f"there is no {wanted.manifest_key} in the bucket")
    is_given = wanted.retention_ms is not None or wanted.retention_bytes is not None
    options = Options(
        partitions=manifest.partitions,
        apply_retention=not is_given,
        retention_ms=wanted.retention_ms,
        retention_bytes=wanted.retention_bytes,
        cluster_id=wanted.cluster_id,
        node_id=wanted.node_id,
        renames={} if topic == wanted.topic else {topic: wanted.topic},
    )
    plan = make_plan([f"{topic}@{topic_id}"], options)
    if plan.left_out:
        raise VerificationFailed(f"not everything of {wanted.topic} can be had: {'; '.join(plan.left_out)}")
    return replace(plan, recovery_id=wanted.recovery_id)


def _move(plan: RecoveryPlan, into: Path, log_dir: Path) -> None:
    """What the log directory's checkpoints say of the partitions comes before they are there to be read. What was moved before stays."""
    for name, content in layout.checkpoint_files(plan).items():
        _add_offsets(log_dir / name, name, content, {topic.topic for topic in plan.topics})
    milestones.reached("download.checkpoints")
    with disk_errors(log_dir):
        for topic, partition in partitions(plan):
            directory = partition_directory(topic, partition)
            if not (into / directory).exists():
                continue
            if (log_dir / directory).exists():
                raise VerificationFailed(f"{log_dir / directory} was made by something else while the topic was downloaded; see {into}")
            publish(into / directory / checkpoints.LEADER_EPOCHS, checkpoints.encode_epochs(_continued(partition)))
            os.rename(into / directory, log_dir / directory)
            milestones.reached("download.moved")
        sync_path(log_dir)


def _continued(partition: PartitionPlan) -> EpochHistory:
    """With the epoch that the archive has followed, from the log's end on: no broker begins one here, and a log without it is behind its
    archive."""
    history = layout.epoch_history(partition)
    if (history.newest or 0) >= partition.leader_epoch:
        return history
    return EpochHistory.of([*history.starts, EpochStart(partition.leader_epoch, partition.log_end)])


def _add_offsets(path: Path, name: PurePath, content: bytes, topics: set[str]) -> None:
    """The offsets in `content` are those of its topics in the checkpoint, and no others of theirs."""
    held: dict[TopicPartition, int] = {}
    if (raw := read_if_there(path)) is not None:
        held = {place: offset for place, offset in checkpoints.decode_offsets(raw, where=str(path)).items() if place.topic not in topics}
    publish(path, checkpoints.encode_offsets(held | checkpoints.decode_offsets(content, where=str(name))))
