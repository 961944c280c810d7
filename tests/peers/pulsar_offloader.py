"""Pulsar's own offloader, for the peer tests: its classes from Maven, on a bucket, without a broker (PulsarOffloader.java)."""

import atexit
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.peers.java_client import JavaClient, jars_of, with_compiled
from tests.s3server import S3Server


class SeenEntry(NamedTuple):
    """An entry, by what can be compared."""

    entry_id: int
    length: int
    sha256: str


class Read(NamedTuple):
    """What one open handle returned, and how often it went to the store for it."""

    entries: list[SeenEntry]
    gets: int


class Stream(NamedTuple):
    """Entries in the order in which Pulsar returned them, and what the last object's index says of their ledger."""

    entries: list[SeenEntry]
    last_entry_id: int
    length: int


class PulsarOffloader:
    """On one bucket."""

    def __init__(self, server: S3Server, bucket: str) -> None:
        _java().request("bucket", server.endpoint_url, bucket, server.access_key, server.secret_key)

    def offload(self, uuid: str, ledger_id: int, entries: Iterable[bytes], block_bytes: int, scratch: Path) -> str:
        """The ledger's data and its index; the data's key. scratch: for a file of entries."""
        scratch.write_bytes(b"".join(struct.pack(">i", len(each)) + each for each in entries))
        _java().request("offload", str(ledger_id), uuid, str(block_bytes), str(scratch))
        return f"{uuid}-ledger-{ledger_id}"

    def ledger(self, uuid: str, ledger_id: int) -> dict[str, Any]:
        """What its index says."""
        return _java().request("ledger", str(ledger_id), uuid)[0]

    def read(self, uuid: str, ledger_id: int, ranges: Sequence[tuple[int, int]]) -> Read:
        """Entries of the ranges (first, last), both inclusive, in turn. Raises AssertionError with what Pulsar raised."""
        lines = _java().request("read", str(ledger_id), uuid, *(f"{first},{last}" for first, last in ranges))
        return Read([SeenEntry(**line) for line in lines[:-1]], lines[-1]["gets"])

    def stream(self, uuids: Sequence[str], ledger_id: int, ranges: Sequence[tuple[int, int]]) -> Stream:
        """Entries of the ranges (first, last), both inclusive, of a ledger in the streaming objects `uuids`, which are in order.

        Pulsar's reader answers a range with more than that: of each object that has some of it the entries before it, too, and the last
        object's first. Raises AssertionError with what Pulsar raised.
        """
        lines = _java().request("stream", str(ledger_id), ",".join(uuids), *(f"{first},{last}" for first, last in ranges))
        return Stream([SeenEntry(**line) for line in lines[1:]], **lines[0])

    def delete(self, uuid: str, ledger_id: int) -> None:
        _java().request("delete", str(ledger_id), uuid)


@cache
def _java() -> JavaClient:
    """One for this process, and as long as that."""
    client = JavaClient("PulsarOffloader", with_compiled("PulsarOffloader", jars_of("pulsar.xml")))
    atexit.register(client.close)
    return client
