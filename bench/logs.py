"""Log directories to measure with: what a broker would have left, made in a second."""

import os
import random
import struct
from dataclasses import dataclass
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from awscrt.checksums import crc32c

CLUSTER = "bench-cluster"
TOPIC_ID = "YmVuY2htYXJrLXRvcGljLQ"
TEMPLATES = 16  # different batches, taken in turn
FIRST_TIMESTAMP = 1_700_000_000_000
_CRC_FROM, _TIMES_FROM = 13, 19  # in a batch without its base offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of log: `partitions` of `partition_bytes` each, in segments; every batch of the same size.

    text     values of letters and digits, which compress to about half, instead of random bytes
    codec    of the batches, as in their attributes
    span_ms  from the first batch's timestamp to the last one's
    """

    topic: str
    partitions: int
    batch_records: int
    value_bytes: int
    partition_bytes: int
    segment_bytes: int
    text: bool = False
    codec: int = 0
    span_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLog:
    """A log directory with one topic. `end` of each partition; each one's last segment is the active one, and empty."""

    directory: Path
    topic: str
    partitions: int
    batch_bytes: int
    batch_records: int
    end: int
    files: tuple[Path, ...]

    @property
    def partition_bytes(self) -> int:
        return self.end // self.batch_records * self.batch_bytes

    @property
    def total_bytes(self) -> int:
        return self.partitions * self.partition_bytes

    @property
    def record_bytes(self) -> float:
        return self.batch_bytes / self.batch_records


def make_log(directory: Path, shape: Shape, seed: int = 1) -> BenchLog:
    """Every record's timestamp is its batch's, give or take 100 ms."""
    random_ = random.Random(seed)
    tails = _batch_tails(shape, random_)
    batch_bytes = 8 + len(tails[0])
    batches = shape.partition_bytes // batch_bytes
    files: list[Path] = []
    for partition in range(shape.partitions):
        files += _write_partition(directory / f"{shape.topic}-{partition}", shape, tails, batches, batch_bytes)
    end = batches * shape.batch_records
    _write_checkpoints(directory, shape, end)
    os.sync()  # write-back of what was just made must not run into what is measured
    return BenchLog(
        directory=directory,
        topic=shape.topic,
        partitions=shape.partitions,
        batch_bytes=batch_bytes,
        batch_records=shape.batch_records,
        end=end,
        files=tuple(files),
    )


def _write_partition(directory: Path, shape: Shape, tails: list[bytes], batches: int, batch_bytes: int) -> list[Path]:
    directory.mkdir(parents=True)
    per_segment = max(1, shape.segment_bytes // batch_bytes)
    files, offset = [], 0
    for first in range(0, batches, per_segment):
        files.append(directory / f"{offset:020}.log")
        with files[-1].open("wb", buffering=1 << 20) as file:
            for at in range(first, min(first + per_segment, batches)):
                file.write(offset.to_bytes(8, "big"))  # the base offset is not under the CRC
                file.write(_moved(tails[at % TEMPLATES], at * shape.span_ms // batches) if shape.span_ms else tails[at % TEMPLATES])
                offset += shape.batch_records
    (directory / f"{offset:020}.log").touch()
    (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return files


def _batch_tails(shape: Shape, random_: random.Random) -> list[bytes]:
    """Different batches without their base offsets. Compressed ones are not of one size: the first is there as often as needed."""
    tails = [make_batch(shape, random_)[8:] for _ in range(1 if shape.codec else TEMPLATES)]
    return tails * (TEMPLATES // len(tails))


def _moved(tail: bytes, by_ms: int) -> bytes:
    """The same batch, all of its timestamps later, its CRC computed again."""
    times = struct.pack(">qq", *(each + by_ms for each in struct.unpack_from(">qq", tail, _TIMES_FROM)))
    covered: bytes = tail[_CRC_FROM:_TIMES_FROM] + times + tail[_TIMES_FROM + len(times) :]
    checksum: int = crc32c(covered)
    return tail[: _CRC_FROM - 4] + checksum.to_bytes(4, "big") + covered


def make_batch(shape: Shape, random_: random.Random) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=shape.codec, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 30
    )
    for at in range(shape.batch_records):
        value = random_.randbytes(-(-shape.value_bytes // 2)).hex().encode() if shape.text else random_.randbytes(shape.value_bytes)
        builder.append(at, FIRST_TIMESTAMP + at % 100, None, value[: shape.value_bytes], [])
    batch = bytearray(builder.build())
    batch[12:16] = bytes(4)  # leader epoch 0
    return bytes(batch)


def _write_checkpoints(directory: Path, shape: Shape, end: int) -> None:
    (directory / "meta.properties").write_text(f"version=1\ncluster.id={CLUSTER}\nnode.id=1\n")
    lines = "".join(f"{shape.topic} {partition} {end}\n" for partition in range(shape.partitions))
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (directory / name).write_text(f"0\n{shape.partitions}\n{lines}")
