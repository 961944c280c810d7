"""Recovered partitions take the place of a stopped broker's empty ones."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import recovery
from headwater_core import milestones
from headwater_core.errors import DiskFull, ForeignOwner, HeadwaterError, NotFound, UsageError, VerificationFailed
from headwater_core.partition import TopicPartition, topic_id_text
from headwater_core.segments import checkpoints
from manifests.repository import ManifestRepository
from recovery.partition_swap import MILESTONES, NamedLogDir, PlacedNode, place, prepare
from recovery.recovery_plan import TargetBroker
from recovery.topic_creation import with_created_topics
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_batch
from tests.recovery.full_disk import FullDisk, Killed
from tests.recovery.running import Running
from tests.recovery.written_archive import Archive, batches_in, data, plain

OWN = TopicPartition("own", 0)


class Stage:
    """A recovery into a running cluster, applied; and the log directory of its stopped broker, with a topic of its own."""

    def __init__(self, root: Path, nodes: tuple[int, ...] = (1,)) -> None:
        self.root, self.into, self.log_dir = root, root / "staging", root / "log"
        self.archive = Archive()
        self.archive.topic("orders", [a_batch(0, 4, epoch=3)], [a_batch(4, 3, epoch=5)], **{"retention.ms": "600"})
        self.archive.topic("refunds", [data(0, 7)])
        self.archive.topic("menu", [plain(0, 2)], **{"cleanup.policy": "compact"})
        self.archive.topic("empty", [plain(0)])
        self.archive.replace("empty", [plain(0, 9)], start_offset=9)
        self.cluster = Running(nodes=dict.fromkeys(nodes))
        self.plan = recovery.plan(
            ManifestRepository(self.archive.store), None, recovery.Options(running=True), running=self.cluster, clock=ManualClock()
        )
        recovery.apply(
            self.plan,
            self.into,
            self.archive.store,
            clock=ManualClock(),
            recorded=False,
            create=lambda plan: with_created_topics(plan, self.cluster),
        )
        self.recovered = set(self.cluster.topics)
        self.cluster.add("own", (nodes[0],))
        self.cluster.make_directories(self.log_dir, node=nodes[0])
        (self.log_dir / "own-0" / f"{0:020}.log").write_bytes(plain(0, 3))
        for name in (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS, checkpoints.CLEANED):
            (self.log_dir / name).write_bytes(checkpoints.encode_offsets({OWN: 3, TopicPartition("orders", 0): 0}))

    def place(self, *log_dirs: Path, rename: Callable[[Path, Path], None] = os.rename, node: int | None = None) -> list[PlacedNode]:
        dirs = [NamedLogDir(each, node) for each in log_dirs or (self.log_dir,)]
        return place(self.into, dirs, ManualClock(), rename=rename)

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.log_dir)): path.read_bytes() for path in sorted(self.log_dir.rglob("*")) if path.is_file()}

    def lines(self, name: str) -> dict[TopicPartition, int]:
        return checkpoints.decode_offsets((self.log_dir / name).read_bytes(), where=name)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def across(source: Path, target: Path) -> None:
    """As between two file systems."""
    if source.parent.parent != target.parent.parent or source.parent != target.parent:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    os.rename(source, target)


def test_the_records_are_there_in_epoch_0_and_nothing_of_other_topics_has_changed(stage: Stage) -> None:
    own = (stage.log_dir / "own-0" / f"{0:020}.log").read_bytes()
    [placed] = stage.place()
    assert (placed.node_id, placed.partitions, placed.again) == (1, 4, False)
    orders = stage.log_dir / "orders-0"
    found = batches_in(orders)
    assert [(header.base_offset, header.last_offset, header.leader_epoch) for header, _ in found] == [(0, 3, 0), (4, 6, 0)]
    assert [raw[16:] for _, raw in found] == [a_batch(0, 4, epoch=3)[16:], a_batch(4, 3, epoch=5)[16:]]
    assert (orders / checkpoints.LEADER_EPOCHS).read_text() == "0\n1\n0 0\n"
    assert (orders / checkpoints.PARTITION_METADATA).read_text().endswith(stage.cluster.topics["orders"].topic_id)
    assert not list(stage.log_dir.rglob("*.timeindex")) + [path for path in stage.log_dir.rglob("*.index") if path.parent.name != "own-0"]
    assert [path.name for path in (stage.log_dir / "empty-0").glob("*.log")] == [f"{9:020}.log"]
    assert [header.is_control for header, _ in batches_in(stage.log_dir / "refunds-0")] == [False, True]  # the open transaction is ended
    assert (stage.log_dir / "own-0" / f"{0:020}.log").read_bytes() == own
    assert stage.lines(checkpoints.RECOVERY_POINTS) == {OWN: 3}
    assert stage.lines(checkpoints.CLEANED) == {OWN: 3}
    assert stage.lines(checkpoints.HIGH_WATERMARKS) == {
        OWN: 3,
        **{TopicPartition(name, 0): end for name, end in (("orders", 7), ("refunds", 2), ("menu", 2), ("empty", 9))},
    }
    assert (stage.log_dir / ".kafka_cleanshutdown").exists()
    assert not [path for path in stage.log_dir.iterdir() if path.name.endswith("-delete")]
    [again] = stage.place()
    assert again.again


def killed_at(step: str, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> bool:
    """Does `work` until the milestone `step` is passed, NAME or NAME:TIMES; whether it ever was."""
    name, _, times = step.partition(":")
    left = int(times or 1)

    def kill(at: str) -> None:
        nonlocal left
        left -= at == name
        if left == 0 and at == name:
            raise Killed

    with monkeypatch.context() as context:
        context.setattr(milestones, "observer", kill)
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("moves", [os.rename, across], ids=["moved", "copied"])
@pytest.mark.parametrize("step", [*MILESTONES, "place.reset:3", "place.moved:3"])
def test_killed_at_any_step_it_is_finished_by_the_next_run(
    step: str, moves: Callable[[Path, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = Stage(tmp_path / "undisturbed")
    undisturbed.place(rename=moves)
    stage = Stage(tmp_path / "killed")
    if not killed_at(step, monkeypatch, lambda: stage.place(rename=moves)):
        assert step == "place.copied"  # nothing is copied where it can be moved
        assert moves is os.rename
    assert recovery.apply(stage.plan, stage.into, stage.archive.store).again  # apply leaves it alone
    [placed] = stage.place(rename=moves)
    assert placed.finished_ms is not None
    assert stage.files() == undisturbed.files()
    assert not [path for path in stage.log_dir.iterdir() if path.name.endswith("-delete")]
    assert not [path for path in (stage.into / "node-1").iterdir() if path.is_dir()]


@pytest.mark.parametrize("kills", [False, True], ids=["full", "killed"])
@pytest.mark.parametrize("moves", [os.rename, across], ids=["moved", "copied"])
def test_at_any_write_the_same_bytes_are_there_after_a_second_run(kills: bool, moves: Callable[[Path, Path], None], tmp_path: Path) -> None:
    undisturbed = Stage(tmp_path / "undisturbed")
    disk = FullDisk()
    with disk.mounted():
        undisturbed.place(rename=lambda source, target: moves(source, target))
    for at in range(2, disk.count + 1, 3):  # the first is the making of a directory that is there
        stage = Stage(tmp_path / str(at))
        with pytest.raises(Killed if kills else DiskFull), FullDisk(at, kills=kills).mounted():
            stage.place(rename=lambda source, target: moves(source, target))
        stage.place(rename=moves)
        assert stage.files() == undisturbed.files(), at


@pytest.mark.parametrize("step", ["place.reset", "place.reset:3", "", "place.begun", "place.moved"])
def test_what_takes_longest_is_prepared_before_the_broker_stops(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed, stage = Stage(tmp_path / "undisturbed"), Stage(tmp_path / "prepared")
    undisturbed.place()
    before = stage.files()

    def prepare_and_place() -> None:
        [prepared] = prepare(stage.into, ManualClock())
        assert prepared.prepared_ms is not None
        assert stage.files() == before
        stage.place()

    killed_at(step, monkeypatch, prepare_and_place)
    if step.startswith("place.reset"):
        [prepared] = prepare(stage.into, ManualClock())
        assert not prepared.again
    [again] = prepare(stage.into, ManualClock())
    assert again.again
    stage.place()
    assert stage.files() == undisturbed.files()


def test_what_was_prepared_and_brought_in_part_is_refused(stage: Stage) -> None:
    prepare(stage.into, ManualClock())
    cut(stage)
    with pytest.raises(VerificationFailed, match=r"orders-0 lacks 0+4\.log, or a part of it"):
        stage.place()
    lost(stage)
    with pytest.raises(VerificationFailed, match="orders-0 is neither in"):
        stage.place()
    written_to(stage)
    with pytest.raises(VerificationFailed, match="holds records"):
        stage.place()


def test_a_broker_that_starts_in_between_loses_nothing_and_what_is_not_placed_yet_is_placed_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes what was set aside, makes empty directories again, and writes to what is in place."""

    def kill(at: str) -> None:
        if at == "place.emptied" and (stage.log_dir / "orders-0" / f"{4:020}.log").exists():
            raise Killed

    with monkeypatch.context() as context:
        context.setattr(milestones, "observer", kill)
        with pytest.raises(Killed):
            stage.place()
    for path in stage.log_dir.glob("*-delete"):
        shutil.rmtree(path)
    for name in stage.recovered:
        if not (stage.log_dir / f"{name}-0").exists():
            stage.cluster.make_directories(stage.log_dir, topics=[name])
    active = max((stage.log_dir / "orders-0").glob("*.log"))
    active.write_bytes(active.read_bytes() + plain(7))
    stage.place()
    assert [header.base_offset for header, _ in batches_in(stage.log_dir / "orders-0")] == [0, 4, 7]
    assert [header.base_offset for header, _ in batches_in(stage.log_dir / "menu-0")] == [0]


def other_topic(stage: Stage) -> None:
    path = stage.log_dir / "orders-0" / checkpoints.PARTITION_METADATA
    path.write_bytes(checkpoints.encode_partition_metadata(topic_id_text(b"x" * 16)))


def written_to(stage: Stage) -> None:
    (stage.log_dir / "orders-0" / f"{0:020}.log").write_bytes(plain(0, 9))


def written_to_empty(stage: Stage) -> None:
    (stage.log_dir / "empty-0" / f"{0:020}.log").write_bytes(plain(0))


def hostile(stage: Stage) -> None:
    (stage.log_dir / "orders-0" / checkpoints.PARTITION_METADATA).write_bytes(b"version: 0\ntopic_id: ../../etc\n")


def not_made(stage: Stage) -> None:
    shutil.rmtree(stage.log_dir / "orders-0")


def cut(stage: Stage) -> None:
    path = stage.into / "node-1" / "orders-0" / f"{4:020}.log"
    path.write_bytes(path.read_bytes()[:-1])


def lost(stage: Stage) -> None:
    shutil.rmtree(stage.into / "node-1" / "orders-0")


def another_recovery(stage: Stage) -> None:
    (stage.into / "node-1" / "recovered.properties").write_text("version=1\ncluster.id=another\nnode.id=1\n")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (other_topic, "is of topic id"),
        (written_to, "holds records: somebody has written to orders"),
        (written_to_empty, "holds records: somebody has written to empty"),
        (hostile, "not a topic id"),
        (not_made, "not in .*: 1 partition, orders-0 among them; name every log directory of broker 1"),
        (cut, "gone or changed since the recovery: . file"),
        (lost, "gone or changed since the recovery: . file"),
        (another_recovery, "is not what was recovered for broker 1"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_is_not_as_it_should_be_is_refused_and_nothing_is_changed(stage: Stage, change: Callable[[Stage], None], text: str) -> None:
    change(stage)
    before, staged = stage.files(), sorted(stage.into.rglob("*"))
    with pytest.raises(VerificationFailed, match=f"nothing was changed:\n  .*{text}"):
        stage.place()
    assert stage.files() == before
    assert sorted(stage.into.rglob("*")) == staged


def of_another_cluster(stage: Stage) -> None:
    Running(name="another").make_directories(stage.log_dir)


def of_another_broker(stage: Stage) -> None:
    stage.cluster.make_directories(stage.log_dir, node=9)


@pytest.mark.parametrize("change", [of_another_cluster, of_another_broker])
def test_another_clusters_or_brokers_directory_is_refused(stage: Stage, change: Callable[[Stage], None]) -> None:
    change(stage)
    with pytest.raises(ForeignOwner, match="belongs to"):
        stage.place()


def test_the_directories_are_named_right(stage: Stage, tmp_path: Path) -> None:
    def refused(error: type[HeadwaterError], text: str, *log_dirs: Path, node: int | None = None) -> None:
        with pytest.raises(error, match=text):
            stage.place(*log_dirs, node=node)

    refused(ForeignOwner, "belongs to broker 1, not 2", node=2)
    refused(UsageError, "no log directory of a broker", tmp_path / "nothing")
    refused(UsageError, "is named twice", stage.log_dir, stage.log_dir)
    other = stage.cluster.make_directories(tmp_path / "other")
    refused(VerificationFailed, "is in .* and in .*: no broker starts on both", stage.log_dir, other)
    refused(UsageError, "no broker starts on a log directory with anything else", stage.cluster.make_directories(tmp_path, topics=()))
    with pytest.raises(NotFound):
        place(tmp_path / "nothing", [NamedLogDir(stage.log_dir)], ManualClock())
    plain_into = tmp_path / "plain"
    recovery.apply(stage.archive.plan(), plain_into, stage.archive.store)
    with pytest.raises(UsageError, match="not one into a running cluster"):
        place(plain_into, [NamedLogDir(stage.log_dir)], ManualClock())


def test_a_broker_with_several_disks_has_each_partition_on_one_of_them(stage: Stage, tmp_path: Path) -> None:
    other = stage.cluster.make_directories(tmp_path / "other", topics=())
    shutil.rmtree(other / "menu-0", ignore_errors=True)
    os.rename(stage.log_dir / "menu-0", other / "menu-0")
    stage.place(stage.log_dir, other)
    assert [header.base_offset for header, _ in batches_in(other / "menu-0")] == [0]
    assert checkpoints.decode_offsets((other / checkpoints.HIGH_WATERMARKS).read_bytes(), where="") == {TopicPartition("menu", 0): 2}
    assert TopicPartition("menu", 0) not in stage.lines(checkpoints.HIGH_WATERMARKS)


def test_each_broker_gets_its_own_from_a_copy_of_its_part(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=(1, 2))
    assert isinstance(stage.plan.brokers[0], TargetBroker)
    copy = tmp_path / "host-2" / "staging"
    shutil.copytree(stage.into, copy, ignore=shutil.ignore_patterns("node-1"))
    second = stage.cluster.make_directories(tmp_path / "host-2" / "log", node=2)
    [placed] = place(copy, [NamedLogDir(second)], ManualClock())
    wanted = sum(each.replicas == (2,) for topic in stage.plan.topics for each in topic.partitions)
    assert (placed.node_id, placed.partitions) == (2, wanted)
    assert 0 < wanted < len(stage.plan.topics)
    assert [each.node_id for each in recovery.placed_in(copy)] == [2]
    assert recovery.placed_in(stage.into) == []
    found = recovery.status(stage.into)
    assert found is not None
    assert (found.running, found.brokers, found.problem) == (True, (1, 2), "")
    [first] = stage.place()
    assert first.node_id == 1
    assert recovery.apply(stage.plan, stage.into, stage.archive.store).again


def test_no_broker_is_started_on_what_is_to_be_placed(stage: Stage) -> None:
    assert not list(stage.into.rglob(checkpoints.META_PROPERTIES))
    assert not list(stage.into.rglob("bootstrap.checkpoint"))


@pytest.mark.parametrize("topic", ["menu", "orders", "refunds"])
@pytest.mark.parametrize("loss", ["staged", "moved and emptied", "moved and flipped", "moved and of other records"])
def test_a_partition_is_in_place_only_with_its_records(topic: str, loss: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run before was interrupted, and what it had staged is gone, or what it had moved is not what it was."""
    if loss == "staged":
        assert killed_at("place.begun", monkeypatch, stage.place)
        for path in [*stage.into.rglob(f"{topic}-0")]:
            shutil.rmtree(path)
    else:
        assert killed_at("place.moved:4", monkeypatch, stage.place)
        assert not [*stage.into.rglob(f"{topic}-0")]
        path = min((stage.log_dir / f"{topic}-0").glob("*.log"))
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= loss.endswith("flipped")
        other = a_batch(0, [b"other"] * 4) if topic == "orders" else plain(0, 2)
        path.write_bytes({"emptied": b"", "flipped": bytes(raw)}.get(loss.split()[-1], other + bytes(max(0, len(raw) - len(other)))))
        if path.read_bytes() == raw:
            return  # it holds what it held
    before = stage.files()
    with pytest.raises(VerificationFailed, match=f"{topic}-0 is neither in"):
        stage.place()
    assert stage.files() == before
