"""Rows of a DataFrame as the expected files of the fixtures have them."""

import base64
import hashlib
from typing import Any

from pyspark.sql import Row


def as_expected(row: Row) -> dict[str, Any]:
    """As tests/fixtures/kafka/README.md has it; the leader epoch is not a column, `timestamp_ms` is one that was added."""
    value: Any = text(row.value)
    if row.value is not None and len(row.value) > 2048:
        value = {"len": len(row.value), "sha256": hashlib.sha256(row.value).hexdigest()}
    return {
        "topic": row.topic,
        "partition": row.partition,
        "offset": row.offset,
        "timestamp": row.timestamp_ms,
        "timestamp_type": ("CreateTime", "LogAppendTime")[row.timestampType],
        "key": text(row.key),
        "value": value,
        "headers": [[header.key, text(header.value)] for header in row.headers or ()],
    }


def text(raw: bytearray | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()
