"""What the Java client reads through the gateway is what it reads from a real broker."""

import base64
import json
import shutil
import struct
import time
from bisect import bisect_right
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


class Abort(NamedTuple):
    """One aborted transaction of `long`: its data, by the values, and its marker, by the broker's own .txnindex."""

    first: int
    last: int
    marker: int


class Answers(NamedTuple):
    """What a real broker says about the log of aborts in `log_dir`, which it has left behind.

    bases  of its segments
    """

    log_dir: Path
    bases: list[int]
    aborts: list[Abort]
    reads: dict[Isolation, JavaRead]
    middle: int
    from_middle: list[dict[str, Any]]
    times: list[int]
    offsets_for_times: list[dict[str, Any]]

    def first_records(self) -> list[int | None]:
        """The first record at or after each of `times`, by the records themselves."""
        records = self.reads["read_uncommitted"].records
        return [next((record["offset"] for record in records if record["timestamp"] >= at), None) for at in self.times]


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
        bases = sorted(int(path.stem) for path in (root / "kafka" / f"{TOPIC}-0").glob("*.log"))
        return Answers(
            root / "kafka",
            bases,
            aborts_of_long(root / "kafka" / f"{TOPIC}-0", records),
            reads,
            middle,
            java_seek(broker.bootstrap, TOPIC, 0, middle, 5, "read_committed"),
            times,
            java_offsets_for_times(broker.bootstrap, TOPIC, 0, times),
        )


def aborts_of_long(directory: Path, records: list[dict[str, Any]]) -> list[Abort]:
    found = []
    indexes = b"".join(path.read_bytes() for path in sorted(directory.glob("*.txnindex")))
    markers = {first: last for _, _, first, last, _ in struct.iter_unpack(">hqqqq", indexes)}
    for round_ in range(2):
        name = b"long-%d-" % round_
        data = [record["offset"] for record in records if base64.b64decode(record["value"] or "").startswith(name)]
        found.append(Abort(data[0], data[-1], markers[data[0]]))
    return found


def test_the_log_of_aborts_is_what_it_should_be(answers: Answers) -> None:
    """Data over several segments, the marker two segments or more behind the last of it, and read_committed shows none of it."""
    committed = {record["offset"] for record in answers.reads["read_committed"].records}
    for abort in answers.aborts:
        first, last, marker = (bisect_right(answers.bases, offset) for offset in abort)
        assert first < last
        assert marker - last >= 2
        assert committed.isdisjoint({abort.first, abort.last})


def test_a_broker_names_the_same_records_for_times_but_for_markers(answers: Answers) -> None:
    """A broker may name a transaction marker's offset, which no reader ever sees, and whose time may lie after that of the next record."""
    seen = {record["offset"] for record in answers.reads["read_uncommitted"].records}
    for ours, found in zip(answers.first_records(), answers.offsets_for_times, strict=True):
        theirs = found["offset"]
        assert ours == theirs or (theirs is not None and theirs not in seen and (ours is None or theirs < ours))


def check_border(at: int, answers: Answers, tmp_path: Path) -> None:
    """Both isolations, a seek and look-ups by time, when all below `at` is in the archive only, and all from there on local only."""
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
        told = {topic: offsets(broker.bootstrap, topic, early, between, late, late + 1) for topic in ("ended", TOPIC)}
    assert told == {"ended": [0, 1, None, None], TOPIC: [0, 1, 2, None]}
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
