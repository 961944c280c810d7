"""What the Java client reads through the gateway is what it reads from a real broker."""

import json
import shutil
import time
from bisect import bisect_right
from pathlib import Path

import pytest

from tests.fixtures import expected, expected_offsets, private_copy
from tests.peers.aborts import GROUP, ISOLATIONS, TOPIC, Answers
from tests.peers.agent import Headwater
from tests.peers.java_client import java_consume, java_offsets_for_times, java_seek
from tests.peers.kafka import KafkaBroker, expect_same

pytestmark = [pytest.mark.peer, GROUP]


def check_border(at: int, answers: Answers, tmp_path: Path) -> None:
    """Both isolations, a seek and look-ups by time, when all before `at` is in the archive only, and all from there on is local only."""
    log_dir = Path(shutil.copytree(answers.log_dir, tmp_path / "kafka"))
    headwater = Headwater(tmp_path / "work", log_dir, owned=True)
    headwater.archive(before=at)
    left = sorted(int(path.stem) for path in (log_dir / f"{TOPIC}-0").glob("*.log"))
    assert left == [base for base in answers.bases if base >= at]
    head = headwater.heads()[TOPIC, 0]
    assert [entry.base_offset for entry in head.entries] == [base for base in answers.bases if base < at]
    assert head.next_offset == at
    with headwater.gateway() as bootstrap:
        for isolation in ISOLATIONS:
            read = java_consume(bootstrap, [TOPIC], isolation)
            expect_same(read.records, answers.reads[isolation].records, f"{isolation} with the border at {at}")
            assert read.bounds == answers.reads[isolation].bounds
        assert java_seek(bootstrap, TOPIC, 0, answers.middle, 5, "read_committed") == answers.from_middle
        found = java_offsets_for_times(bootstrap, TOPIC, 0, answers.times)
        assert [each["offset"] for each in found] == answers.first_records()


@pytest.mark.parametrize("border", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_aborts_over_segments_and_across_the_border(border: float, answers: Answers, tmp_path: Path) -> None:
    """border: how much of the log's segments is archived and gone from the disk."""
    check_border(answers.bases[round(border * (len(answers.bases) - 1))], answers, tmp_path)


@pytest.mark.parametrize("round_", [0, 1])
def test_an_abort_whose_data_is_archived_and_whose_marker_is_local(round_: int, answers: Answers, tmp_path: Path) -> None:
    abort = answers.aborts[round_]
    at = answers.bases[bisect_right(answers.bases, abort.last)]
    assert abort.last < at <= abort.marker
    assert at < answers.bases[bisect_right(answers.bases, abort.marker) - 1], "a whole segment lies between the border and the marker's"
    check_border(at, answers, tmp_path)


@pytest.mark.parametrize("tails", [False, True])
def test_a_look_up_by_time_names_the_record_where_a_broker_names_a_marker_before_it(tails: bool, tmp_path: Path) -> None:
    """A broker counts a marker as a record. Who seeks to either offset meets the same record first."""
    now_ms = int(time.time() * 1000)
    early, between, late = now_ms - 600_000, now_ms - 1, now_ms + 600_000
    with KafkaBroker(tmp_path / "kafka", tmp_path / "work") as broker:
        for topic in ("ended", TOPIC):
            broker.create_topic(topic, 1)
        writer = broker.producer(transactional_id="x")
        writer.init_transactions(30)
        for timestamp, topics in ((early, ("ended", TOPIC)), (late, (TOPIC,))):
            writer.begin_transaction()  # the second one waits for the first one's markers
            for topic in topics:
                writer.produce(topic, b"soup", timestamp=timestamp)
            writer.commit_transaction(30)
        offsets_by_topic = {topic: offsets(broker.bootstrap, topic, early, between, late, late + 1) for topic in ("ended", TOPIC)}
    assert offsets_by_topic == {"ended": [0, 1, None, None], TOPIC: [0, 1, 2, None]}
    headwater = Headwater(tmp_path / "headwater", tmp_path / "kafka", owned=True)
    headwater.archive(tails=tails)
    with headwater.gateway() as bootstrap:
        found = {topic: offsets(bootstrap, topic, early, between, late, late + 1) for topic in ("ended", TOPIC)}
    assert found == {"ended": [0, None, None, None], TOPIC: [0, 2, 2, None]}


def offsets(bootstrap: str, topic: str, *timestamps: int) -> list[int | None]:
    return [each["offset"] for each in java_offsets_for_times(bootstrap, topic, 0, timestamps)]


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
