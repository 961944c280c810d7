"""A topic that was deleted and created again: each of its incarnations can be read and recovered, and none is taken for another."""

import shutil
from pathlib import Path

import pytest

from headwater_core.errors import Superseded
from headwater_core.partition import PartitionId, topic_id_text
from headwater_core.segments.log_dirs import LogDirs
from hydration.answers import Isolation
from tests.headwater.broker import Broker, topic_id
from tests.headwater.conftest import Stage
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import PARTITION, TOPIC, World

FORMER, NOW = topic_id("soup", 0), topic_id("soup", 1)


@pytest.fixture
def log(stage: Stage) -> Path:
    """The former incarnation has thirty records in the archive, of two partitions; the one of now has ten, of one."""
    broker = Broker(stage.root / "log")
    broker.partition("soup", 0, 1, segments=4)
    assert stage.run("archive", log=broker.root).code == 0
    for number in (0, 1):
        shutil.rmtree(broker.directory("soup", number))
    broker.partition("soup", 0, segments=2, incarnation=1)
    assert stage.run("archive", log=broker.root).code == 0
    assert stage.run("topics", "set", "soup", "--incarnation", NOW, "--yes").code == 0
    return broker.root


@pytest.mark.parametrize("beside_the_log", [True, False])
def test_an_earlier_incarnation_is_read(stage: Stage, log: Path, beside_the_log: bool) -> None:
    def count(selection: str) -> int:
        ran = stage.run("read", selection, "-o", "jsonl", log=log if beside_the_log else None)
        assert ran.code == 0, ran.err
        assert {row["topic"] for row in ran.rows} == {"soup"}
        return len(ran.rows)

    assert count("soup") == 10
    assert count(f"soup@{NOW}:0") == 10
    assert count(f"soup@{FORMER}:1") == 30
    assert count(f"soup@{FORMER}") == 60


def test_what_is_no_incarnation_is_refused(stage: Stage, log: Path) -> None:
    unknown = stage.run("read", f"soup@{topic_id_text(b'u' * 16)}")
    assert (unknown.code, "topics list --all" in unknown.err.replace("\n", " ")) == (6, True)
    assert stage.run("read", f"soup@{FORMER}:2").code == 6
    assert stage.run("read", "soup@x").code == 2
    into = ("--into", str(stage.root / "new"))
    assert stage.run("recover", "plan", "topic", f"soup@{topic_id_text(b'u' * 16)}", *into).code == 6
    assert stage.run("recover", "plan", "topic", "soup@x", *into).code == 2
    assert stage.run("recover", "plan", "topic", "soup", f"soup@{FORMER}", *into).code == 2


def test_an_earlier_incarnation_is_recovered_under_its_own_id(stage: Stage, log: Path) -> None:
    into = stage.root / "new"
    ran = stage.run("recover", "apply", "topic", f"soup@{FORMER}", "--partitions", "soup=2", "--into", str(into))
    assert ran.code == 0, ran.err
    found = [(each.partition.topic_id, each.partition.partition, each.high_watermark) for each in LogDirs([into]).partitions()]
    assert found == [(FORMER, 0, 30), (FORMER, 1, 30)]


@pytest.mark.parametrize("by_survey", [True, False])
def test_who_reads_while_a_topic_is_created_again_hears_of_both_incarnations(tmp_path: Path, by_survey: bool) -> None:
    """It was archived up to offset 10 only: what followed is gone, and will not come back."""
    clock = ManualClock()
    world = World(tmp_path, clock=clock)
    world.archive.append(a_segment(0, 10))
    world.broker.write(0, a_segment(0, 20))
    world.broker.set_high_watermark(20)
    log = world.log
    with log.read(0, 1, Isolation.READ_UNCOMMITTED) as answer:
        assert answer.high_watermark == 20
    again = PartitionId(PARTITION.cluster_id, topic_id_text(bytes(16)), 0, TOPIC)
    (world.broker.directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {again.topic_id}\n")
    world.broker.drop(0)
    world.broker.write(0, a_segment(0, 1, epoch=5))
    world.broker.set_high_watermark(1)
    clock.advance(60_000)
    if by_survey:
        world.logs.refresh()
    with log.read(0, 1 << 20, Isolation.READ_UNCOMMITTED) as answer:
        assert answer.next_offset == 10, "as far as the archive has it"
    for ask in (lambda: log.read(10, 1, Isolation.READ_UNCOMMITTED), log.bounds):
        with pytest.raises(Superseded, match=rf"{PARTITION.topic_id}.*{again.topic_id}.*{TOPIC}@{PARTITION.topic_id}"):
            ask()
    world.close()
