"""What the Java client reads through the gateway is what it reads from a real broker."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fixtures import Isolation, expected, expected_offsets, private_copy
from tests.peers.agent import Headwater
from tests.peers.kafka import (
    JavaRead,
    KafkaBroker,
    expect_same,
    java_consume,
    java_offsets_for_times,
    java_seek,
    produce_aborts_over_segments,
)

pytestmark = pytest.mark.peer

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
TOPIC = "returns"


class Answers(NamedTuple):
    """What a real broker says about the log of aborts in `log_dir`, which it has left behind."""

    log_dir: Path
    reads: dict[Isolation, JavaRead]
    middle: int
    from_middle: list[dict[str, Any]]
    times: list[int]
    offsets_for_times: list[dict[str, Any]]

    def first_records(self, found: list[dict[str, Any]]) -> list[int | None]:
        """What a reader that seeks there meets first: a broker may name a transaction marker's offset, which nobody ever sees."""
        offsets = [record["offset"] for record in self.reads["read_uncommitted"].records]
        return [next((offset for offset in offsets if each["offset"] is not None and offset >= each["offset"]), None) for each in found]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    root = tmp_path_factory.mktemp("aborts")
    with KafkaBroker(root / "kafka", root / "work") as broker:
        produce_aborts_over_segments(broker, TOPIC)
        reads = {isolation: java_consume(broker.bootstrap, [TOPIC], isolation) for isolation in ISOLATIONS}
        records = reads["read_uncommitted"].records
        middle = records[len(records) // 2]["offset"]
        times = [
            records[0]["timestamp"] - 5,
            records[len(records) // 3]["timestamp"],
            records[-1]["timestamp"],
            records[-1]["timestamp"] + 1,
        ]
        return Answers(
            root / "kafka",
            reads,
            middle,
            java_seek(broker.bootstrap, TOPIC, 0, middle, 5, "read_committed"),
            times,
            java_offsets_for_times(broker.bootstrap, TOPIC, 0, times),
        )


@pytest.mark.parametrize("border", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_aborts_over_segments_and_across_the_border(border: float, answers: Answers, tmp_path: Path) -> None:
    """border: how much of the log's segments is archived and gone from the disk."""
    log_dir = Path(shutil.copytree(answers.log_dir, tmp_path / "kafka"))
    headwater = Headwater(tmp_path / "work", log_dir, owned=True)
    bases = sorted(int(path.stem) for path in (log_dir / f"{TOPIC}-0").glob("*.log"))
    at = bases[round(border * (len(bases) - 1))]
    headwater.archive(before=at)
    left = sorted(int(path.stem) for path in (log_dir / f"{TOPIC}-0").glob("*.log"))
    assert left == [base for base in bases if base >= at]
    with headwater.gateway() as bootstrap:
        for isolation in ISOLATIONS:
            read = java_consume(bootstrap, [TOPIC], isolation)
            expect_same(read.records, answers.reads[isolation].records, f"{isolation} with the border at {at}")
            assert read.bounds == answers.reads[isolation].bounds
        assert java_seek(bootstrap, TOPIC, 0, answers.middle, 5, "read_committed") == answers.from_middle
        found = java_offsets_for_times(bootstrap, TOPIC, 0, answers.times)
        assert answers.first_records(found) == answers.first_records(answers.offsets_for_times)


@pytest.mark.parametrize("name", ["pantry", "kitchen"])
def test_a_log_in_both_tiers_reads_as_the_broker_served_it(name: str, tmp_path: Path) -> None:
    headwater = Headwater(tmp_path / "work", private_copy(name, tmp_path), owned=True)
    headwater.archive()
    topics = sorted({line["topic"] for line in expected_offsets(name, "read_uncommitted")})
    with headwater.gateway() as bootstrap:
        for isolation in ISOLATIONS:
            read = java_consume(bootstrap, topics, isolation)
            expect_same(read.records, expected(name, isolation), f"{name} {isolation}")
            end = "high_watermark" if isolation == "read_uncommitted" else "last_stable"
            bounds = {(line["topic"], line["partition"]): (line["start"], line[end]) for line in expected_offsets(name, isolation)}
            assert read.bounds == bounds, json.dumps(sorted(bounds.items() ^ read.bounds.items()))
