"""Kill -9 at named steps of every kind of recovery, from the command line: the same command again leaves what an undisturbed run leaves.

A sample of them; with KILL_EVERYWHERE=1 all. All of them without a process of its own: tests/recovery/test_kill_walk.py. What makes up ids
and tells the time cannot be passed to a command: the undisturbed run has those that the interrupted one has decided on.
"""

import copy
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

import recovery
from headwater.running_recovery import write_reassignment
from headwater_core.objectstore.directory import DirectoryStore
from manifests.repository import ManifestRepository
from recovery import given_state, held_settings, partition_swap
from recovery.given_state import hand_over
from recovery.held_settings import LogBounds, finish
from recovery.layout import partitions
from recovery.partition_swap import NamedLogDir, place, placed_of
from recovery.target import MARK, Mark, read_mark
from recovery.target import PLACED as PLACED_RECORD
from recovery.target_record import read_records
from recovery.topic_creation import with_created_topics
from tests.e2e.test_kill9 import killed, killed_bare
from tests.headwater.conftest import Stage
from tests.headwater.running_broker import RunningBroker
from tests.headwater_core.manual_clock import ManualClock
from tests.recovery.kill_walk import VARIANTS, Seed, an_archive, applied, contents, documents, steps_of
from tests.recovery.running import Running

EVERYTHING = bool(os.environ.get("KILL_EVERYWHERE"))
SAMPLE = (
    ("partial", "recover.placed"),
    ("instant", "recover.verified"),
    ("cluster", "recover.recorded"),
    ("cluster", "recover.bootstrap"),
    ("brokers", "recover.identity"),
    ("take-over", "recover.owned"),
    ("running", "recover.created"),
    ("running", "recover.segments"),
)
APPLIED = [(variant, step) for variant in VARIANTS for step in steps_of(variant)] if EVERYTHING else SAMPLE
ARGUMENTS = {
    "topics": ("topic", "--all"),
    "partial": ("cluster", "--mode", "partial", "--keep-bytes", "1"),
    "instant": ("cluster", "--mode", "instant"),
    "cluster": ("cluster",),
    "brokers": ("cluster", "--brokers", "2"),
    "take-over": ("cluster", "--brokers", "2", "--take-over"),
    "running": ("cluster", "--running"),
}
PLACED = partition_swap.MILESTONES if EVERYTHING else ("place.reset", "place.copied", "place.moved")
FINISHED = (
    (*given_state.MILESTONES, *held_settings.MILESTONES, *(f"finish.given:{times}" for times in range(2, 7)))
    if EVERYTHING
    else ("finish.given:6", "finish.handed_over", "finish.put_back")
)
LEFT_OUT = 3  # what the archive has beside records and the variant does not bring back


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, store = tmp_path_factory.mktemp("bucket"), an_archive().store
    on_disk = DirectoryStore(root)
    for info in store.list(""):
        on_disk.create(info.key, store.get(info.key)[0])
    return root


def run_again(stage: Stage, *arguments: str) -> list[dict[str, object]]:
    ran = stage.run(*arguments, "-o", "jsonl")
    assert ran.code in (0, LEFT_OUT), ran.err
    return ran.rows


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "step"), APPLIED)
def test_killed_while_it_recovers(variant: str, step: str, bucket: Path, stage: Stage) -> None:
    shutil.copytree(bucket, stage.bucket)
    into, cluster = stage.root / "recovered", Running()
    with ExitStack() as stack:
        servers = ("--bootstrap-servers", str(stack.enter_context(RunningBroker(cluster)).address)) if variant == "running" else ()
        recover = ("recover", "apply", *ARGUMENTS[variant], "--into", str(into), *servers)
        if step == "recover.recorded":  # there is no mark yet: without the plan in a file the next run would make another one
            planned = stage.run("recover", "plan", *ARGUMENTS[variant], "-o", "json", *servers)
            (stage.root / "plan.json").write_text(planned.out)
            recover = ("recover", "apply", "--plan", str(stage.root / "plan.json"), "--into", str(into), *servers)
        killed(stage, step, *recover)
        begun, topics = read_mark(into), dict(cluster.topics)
        assert [row["again"] for row in run_again(stage, *recover)] == [step == "recover.finished"]
        found, objects = contents(into), documents(DirectoryStore(stage.bucket))
        assert [row["again"] for row in run_again(stage, *recover)] == [True]
    mark = read_mark(into)
    assert mark is not None
    if begun is not None:
        assert (mark.directory_id, mark.started_ms, mark.plan_digest) == (begun.directory_id, begun.started_ms, begun.plan_digest)
    assert step == "recover.locked" or cluster.topics == topics
    assert (contents(into), documents(DirectoryStore(stage.bucket))) == (found, objects)  # once only
    undisturbed, store = stage.root / "undisturbed", DirectoryStore(Path(shutil.copytree(bucket, stage.root / "again")))
    applied(mark.plan, undisturbed, store, Seed(mark.directory_id, mark.started_ms), create=lambda plan: plan)
    assert found == contents(undisturbed)
    assert objects == documents(store)


class Handover:
    """A recovery into a running cluster, as `apply` leaves it; and the log directory of the broker, which was stopped."""

    def __init__(self, root: Path, cluster: Running) -> None:
        self.root, self.cluster = root, cluster
        self.into, self.log_dir, self.bucket = root / "staging", root / "log", root / "bucket"

    @classmethod
    def begun(cls, root: Path, bucket: Path) -> "Handover":
        made = cls(root, Running())
        store = DirectoryStore(Path(shutil.copytree(bucket, made.bucket)))
        plan = recovery.plan(ManifestRepository(store), None, recovery.Options(**VARIANTS["running"]), running=made.cluster)
        recovery.apply(plan, made.into, store, create=partial(with_created_topics, cluster=made.cluster))
        made.cluster.make_directories(made.log_dir)
        return made

    def copied(self, root: Path) -> "Handover":
        return Handover(Path(shutil.copytree(self.root, root)), copy.deepcopy(self.cluster))

    def on(self, root: Path) -> "Handover":
        """With the log directory there."""
        self.log_dir = Path(shutil.move(self.log_dir, root / "log"))
        return self

    @property
    def mark(self) -> Mark:
        found = read_mark(self.into)
        assert found is not None
        return found

    def place(self) -> None:
        place(self.into, [NamedLogDir(self.log_dir, 1)], ManualClock())

    def start(self) -> None:
        """The broker has what was placed."""
        for topic, partition in partitions(self.mark.plan):
            self.cluster.bounds[topic.topic, partition.partition] = LogBounds(partition.start_offset, partition.log_end)

    def finish(self) -> None:
        hand_over(self.into, self.cluster, ManualClock())
        finish(self.into, self.cluster, ManualClock(), store=DirectoryStore(self.bucket))
        write_reassignment(self.into, self.mark.plan)

    def left(self) -> dict[str, object]:
        """Everything, but for times, and paths that differ. A lock that a killed process leaves in a log directory is one as a broker
        leaves it, and stays there."""
        found: dict[str, object] = {
            str(path.relative_to(self.log_dir)): path.read_bytes()
            for path in self.log_dir.rglob("*")
            if path.is_file() and path.name != ".lock"
        }
        found |= {f"staged {name}": content for name, content in contents(self.into).items() if not name.endswith(PLACED_RECORD)}
        mark = replace(self.mark, finished_ms=0, put_back_ms=self.mark.put_back_ms and 1, handed_over_ms=self.mark.handed_over_ms and 1)
        placed = [(each.node_id, each.partitions, each.finished_ms is not None) for each in placed_of(self.into, mark)]
        [record] = read_records(DirectoryStore(self.bucket))[0]
        return found | {
            f"staged {MARK}": mark,
            "placed": placed,
            "record": msgspec.structs.replace(record, put_back_ms=record.put_back_ms and 1),
            "cluster": self.cluster,
        }


@pytest.fixture(scope="module")
def applied_once(bucket: Path, tmp_path_factory: pytest.TempPathFactory) -> Handover:
    return Handover.begun(tmp_path_factory.mktemp("handover") / "first", bucket)


@pytest.fixture
def another_disk(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to write to")
    with TemporaryDirectory(dir=memory) as made:
        yield Path(made)


@pytest.mark.slow
@pytest.mark.parametrize("step", PLACED)
def test_killed_while_it_places(step: str, applied_once: Handover, stage: Stage, request: pytest.FixtureRequest) -> None:
    undisturbed, here = applied_once.copied(stage.root / "undisturbed"), applied_once.copied(stage.root / "here")
    if step == "place.copied":
        here = here.on(request.getfixturevalue("another_disk"))
    undisturbed.place()
    verb = ("recover", "place", "--into", str(here.into), "--log-dir", f"1={here.log_dir}", "-o", "jsonl")
    killed_bare(stage, step, *verb)
    again = stage.run_bare(*verb)
    assert again.code == 0, again.err
    assert [row["again"] for row in again.rows] == [step == "place.finished"]
    assert here.left() == undisturbed.left()
    assert stage.run_bare(*verb).rows[0]["again"]


@pytest.mark.slow
def test_killed_while_it_prepares(applied_once: Handover, stage: Stage) -> None:
    """What takes longest, done while the broker still runs."""
    undisturbed, here = applied_once.copied(stage.root / "undisturbed"), applied_once.copied(stage.root / "here")
    for each in (undisturbed, here):
        prepare = ("recover", "place", "--into", str(each.into))
        if each is here:
            killed_bare(stage, "place.reset", *prepare)
        assert stage.run_bare(*prepare).code == 0
        each.place()
    assert here.left() == undisturbed.left()


@pytest.mark.slow
@pytest.mark.parametrize("step", FINISHED)
def test_killed_while_it_hands_over_and_puts_back(step: str, applied_once: Handover, stage: Stage) -> None:
    undisturbed, here = applied_once.copied(stage.root / "undisturbed"), applied_once.copied(stage.root / "here")
    for each in (undisturbed, here):
        each.place()
        each.start()
    undisturbed.finish()
    assert undisturbed.cluster != here.cluster
    shutil.move(here.bucket, stage.bucket)
    here.bucket = stage.bucket
    with RunningBroker(here.cluster) as broker:
        verb = ("recover", "finish", "--into", str(here.into), "--bootstrap-servers", str(broker.address))
        killed(stage, step, *verb)
        again = stage.run(*verb)
        assert again.code == 0, again.err
        assert here.left() == undisturbed.left()
        once = copy.deepcopy(here.cluster)
        assert stage.run(*verb).code == 0
    assert here.cluster == once
