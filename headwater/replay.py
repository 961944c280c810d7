"""Reads whole topics with librdkafka and compares them, field by field, with what a broker once delivered."""

import base64
import hashlib
import json
import lzma
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater_core.errors import TransientError, VerificationFailed

VALUE_BYTES_MAX = 2048  # for a longer value the expectation has length and SHA-256
SILENCE_S = 20.0  # without a record or an end of partition for this long, the endpoint counts as stuck
TIMESTAMP_TYPES = {1: "CreateTime", 2: "LogAppendTime"}

Record = dict[str, Any]
Place = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The result of one reading, counted per (topic, partition). `differences`: at most five, for people."""

    records: Counter[Place]
    below_start: Counter[Place]  # records below the given local starts
    differences: list[str]
    elapsed_s: float

    @property
    def total(self) -> int:
        return sum(self.records.values())

    def check(self) -> None:
        if self.differences:
            raise VerificationFailed("the records that were read differ: " + "; ".join(self.differences))


def expected_records(path: Path) -> Iterator[Record]:
    """Records as a Java consumer delivered them, by topic, partition and offset."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def compare(
    bootstrap: str,
    expected: Path,
    *,
    committed: bool,
    starts: Mapping[Place, int | None] | None = None,
    progressed: Callable[[int], None] = lambda _: None,
) -> Compared:
    """Consume every partition, except those of internal topics, from its beginning to its end, and compare record by record.

    starts      local start offset of each (topic, partition)
    progressed  called with each number of records that have been compared

    Raises TransientError when the endpoint does not answer, VerificationFailed when it reports an error.
    """
    wanted: dict[Place, list[Record]] = {}
    for record in expected_records(expected):
        wanted.setdefault((record["topic"], record["partition"]), []).append(record)
    started = time.monotonic()
    records: Counter[Place] = Counter()
    below_start: Counter[Place] = Counter()
    differences: list[str] = []
    for found in consume(bootstrap, committed=committed, keep=lambda topic: not topic.startswith("__")):
        place = found["topic"], found["partition"]
        at = records[place]
        records[place] += 1
        below_start[place] += found["offset"] < ((starts or {}).get(place) or 0)
        progressed(1)
        due = wanted.get(place, [])
        want = due[at] if at < len(due) else None
        if found != want and len(differences) < 5:
            differences.append(_difference(place, found, want))
    for place, due in wanted.items():
        if records[place] < len(due) and len(differences) < 5:
            differences.append(f"{place[0]}:{place[1]} ended after {records[place]} of {len(due)} records")
    return Compared(records=records, below_start=below_start, differences=differences, elapsed_s=time.monotonic() - started)


def consume(bootstrap: str, *, committed: bool, keep: Callable[[str], bool]) -> Iterator[Record]:
    """Every record of the topics for which `keep` is true, each partition in its order, from its beginning to its present end."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "headwater-demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "check.crcs": True,
            "fetch.queue.backoff.ms": 2,  # its default, a second, would dominate the time
            "fetch.wait.max.ms": 50,
            "log_level": 2,
        }
    )
    try:
        topics = consumer.list_topics(timeout=SILENCE_S).topics
        open_places = {(topic, partition) for topic, about in topics.items() if keep(topic) for partition in about.partitions}
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in open_places])
        heard_s = time.monotonic()
        while open_places:
            messages = consumer.consume(1000, 0.1)  # returns late when there are fewer
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > SILENCE_S:
                raise TransientError(f"no answer from {bootstrap} in {SILENCE_S:g} s; {len(open_places)} partitions are still open")
            for message in messages:
                error = message.error()
                if error is None:
                    yield _record(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_places.discard((message.topic(), message.partition()))
                elif error.fatal() or not error.retriable():
                    raise VerificationFailed(f"{message.topic()}:{message.partition()}: {error.str()}")
    except KafkaException as error:
        raise TransientError(f"{bootstrap}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _record(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp,
        "timestamp_type": TIMESTAMP_TYPES.get(kind, "none"),
        "leader_epoch": message.leader_epoch(),
        "key": _text(message.key()),
        "value": _text(message.value()),
        "headers": [[name, _text(value)] for name, value in message.headers() or ()],
    }


def _text(value: bytes | None) -> Any:
    if value is None:
        return None
    if len(value) > VALUE_BYTES_MAX:
        return {"len": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    return base64.b64encode(value).decode("ascii")


def _difference(place: Place, found: Record, want: Record | None) -> str:
    where = f"{place[0]}:{place[1]} offset {found['offset']}"
    if want is None:
        return f"{where} was not expected"
    fields = [name for name in want if found.get(name) != want[name]]
    return f"{where} differs in {', '.join(fields)} (expected offset {want['offset']})"
