"""What the archive holds, with the fields of the fixtures' expected/*.jsonl."""

import base64
import hashlib
from typing import Any

from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.batches import read_batch_header
from headwater_core.segments.records import Record, decode_batch
from manifests.head import Head
from tests.archival.builders import batches_of, load


def read_archive(store: ObjectStore, partition: PartitionId, head: Head) -> list[dict[str, Any]]:
    """Every user record of the live entries, with the fields of expected/*.jsonl."""
    found = []
    for entry in head.entries:
        for batch in [] if entry.gap else batches_of(store, entry):
            header = read_batch_header(batch)
            if not header.is_control:
                kind = "LogAppendTime" if header.log_append_time else "CreateTime"
                found += [_row(partition, record, kind, header.leader_epoch) for record in decode_batch(batch)]
    return [row for row in found if row["offset"] >= head.start_offset]


def _row(partition: PartitionId, record: Record, kind: str, epoch: int) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestamp_type": kind,
        "leader_epoch": epoch,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }


def _text(raw: bytes | None) -> Any:
    if raw is None:
        return None
    if len(raw) > 2048:
        return {"len": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    return base64.b64encode(raw).decode()


def archived(store: ObjectStore, partitions: list[PartitionId]) -> list[dict[str, Any]]:
    rows = [row for partition in partitions for row in read_archive(store, partition, load(store, partition))]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))
