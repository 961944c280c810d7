"""A log in which transactions abort over many segments, and what a real broker answers about it: made once for all tests that compare
with that, which run in one process."""

import base64
import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fixtures import Isolation
from tests.peers.java_client import JavaRead, java_consume, java_offsets_for_times, java_seek, wait_for_markers
from tests.peers.kafka import KafkaBroker, produce

GROUP = pytest.mark.xdist_group("answers")  # of the tests that use `answers`
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
TOPIC = "returns"


def produce_aborts(broker: KafkaBroker) -> None:
    """A log of many small segments in which transactions begin in one segment and abort, or commit, segments later.

    Three transactional producers interleave with a plain one: `long` aborts over at least three segments, its marker two
    segments or more after the last of its data; `steady` commits over as many, `brief` aborts within one and then leaves
    nothing open.
    """
    broker.create_topic(TOPIC, 1, internal_segment_bytes=4096)
    producers = {name: broker.producer(transactional_id=f"{TOPIC}.{name}") for name in ("long", "steady", "brief")}
    for producer in producers.values():
        producer.init_transactions(30)
    plain = broker.producer()
    for round_ in range(2):
        producers["long"].begin_transaction()
        producers["steady"].begin_transaction()
        for step in range(6):
            for name in ("long", "steady"):
                produce(producers[name], TOPIC, [f"{name}-{round_}-{step}-".encode() + bytes([65 + step]) * 600])
            produce(plain, TOPIC, [f"plain-{round_}-{step}-".encode() + b"p" * 600])
            if step == 3:
                producers["brief"].begin_transaction()
                produce(producers["brief"], TOPIC, [b"brief-" + bytes([48 + round_]) * 200] * 2)
                producers["brief"].abort_transaction(30)
        produce(plain, TOPIC, [b"filler-%d-" % round_ + b"f" * 1200] * 9)
        producers["long"].abort_transaction(30)
        produce(plain, TOPIC, [b"between-%d-" % round_ + b"b" * 1200] * 2)
        producers["steady"].commit_transaction(30)
    produce(plain, TOPIC, [b"last"])
    wait_for_markers(broker.bootstrap)


class Abort(NamedTuple):
    """One aborted transaction of `long`: its data, by the values, and its marker, by the broker's own .txnindex."""

    first: int
    last: int
    marker: int


class Answers(NamedTuple):
    """What a real broker answered about the log of aborts in `log_dir`, which is as it left it.

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


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    root = tmp_path_factory.mktemp("aborts")
    with KafkaBroker(root / "kafka", root / "work") as broker:
        produce_aborts(broker)
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
