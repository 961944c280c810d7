"""Streaming objects that Pulsar's own code wrote, right and wrong, against what was fed into it."""

import atexit
import functools
import hashlib
import io
import json
import shutil
import struct
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

from headwater_core.errors import CorruptData, HeadwaterError, NotFound, UnsupportedFormat
from headwater_core.layouts.pulsar_stream import MissingEntries, PulsarStream, entries_of
from headwater_core.objectstore.store import ObjectForm
from tests.headwater_core.objectstore.memory import MemoryStore


@functools.cache
def unpacked() -> Path:
    root = Path(tempfile.mkdtemp(prefix="headwater-pulsar-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    with tarfile.open(Path(__file__).parents[2] / "fixtures/pulsar/streams.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(root)
    return root


def manifest(name: str) -> Any:
    return json.loads((unpacked() / name / "manifest.json").read_bytes())


def filled(name: str) -> MemoryStore:
    """A store that holds the set's objects with their user metadata."""
    store = MemoryStore()
    for each in manifest(name)["objects"]:
        raw = (unpacked() / name / "bucket" / each["key"]).read_bytes()
        assert hashlib.sha256(raw).hexdigest() == each["sha256"]
        store.put(each["key"], io.BytesIO(raw), size_bytes=len(raw), form=ObjectForm(metadata=each["user_metadata"]))
    return store


def streams_of(name: str, store: MemoryStore | None = None) -> list[PulsarStream]:
    store = store or filled(name)
    return [PulsarStream(store, each["data_key"]) for each in manifest(name)["segments"]]


def fed_in(name: str, ledger_id: int) -> list[tuple[int, int, str]]:
    rows = map(json.loads, (unpacked() / name / "entries.jsonl").read_text().splitlines())
    return [(row["entry_id"], row["length"], row["sha256"]) for row in rows if row["ledger_id"] == ledger_id]


def seen(entry_id: int, content: bytes) -> tuple[int, int, str]:
    return entry_id, len(content), hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", ["streaming", "streaming-small"])
def test_every_entry_is_what_was_fed_in(name: str) -> None:
    streams = streams_of(name)
    assert all(stream.repairs == [] for stream in streams)
    for about in manifest(name)["ledgers"]:
        ledger_id = about["ledger_id"]
        found = [seen(*entry) for entry in entries_of(streams[::-1], ledger_id)]
        assert found == fed_in(name, ledger_id)
        assert len(found) == about["entries_readable_by_pulsar"]
        assert all(stream.missing(ledger_id) == [] for stream in streams)
    by_segment = {each["uuid"]: each for each in manifest(name)["segments"]}
    for uuid, stream in zip(by_segment, streams, strict=True):
        first = stream.blocks[0]
        assert (first.ledger_id, first.first_entry_id) == (by_segment[uuid]["begin_ledger_id"], by_segment[uuid]["begin_entry_id"])


def test_blocks_that_the_index_has_elsewhere_are_found_and_reported() -> None:
    (stream,) = streams_of("streaming-overflow")
    fed, lost = fed_in("streaming-overflow", 91), manifest("streaming-overflow")["entries_dropped_by_writer"]
    assert [seen(*entry) for entry in stream.entries(91)] == [row for row in fed if row[0] not in lost]
    assert stream.missing(91) == [MissingEntries(lost[0], lost[-1])]
    assert len(stream.repairs) == len(stream.blocks) - 1 > 0
    assert all(repair.found_position > repair.block.position for repair in stream.repairs)


def test_what_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound):
        PulsarStream(MemoryStore(), "x")
    (stream,) = streams_of("streaming-overflow")
    assert list(stream.entries(5)) == []
    assert stream.missing(5) == []


def test_another_version_is_refused() -> None:
    store = filled("streaming-overflow")
    key = manifest("streaming-overflow")["segments"][0]["index_key"]
    raw, _ = store.get(key)
    store.delete(key)
    form = ObjectForm(metadata={"s3managedledgeroffloaderformatversion": "2"})
    store.put(key, io.BytesIO(raw), size_bytes=len(raw), form=form)
    with pytest.raises(UnsupportedFormat):
        streams_of("streaming-overflow", store)


@pytest.mark.parametrize("name", ["streaming", "streaming-overflow"])
def test_whatever_is_damaged_or_cut_every_walk_ends(name: str) -> None:
    store = filled(name)
    about = manifest(name)["segments"][0]
    whole = {key: store.get(key)[0] for key in (about["data_key"], about["index_key"])}
    fed = {each["ledger_id"]: fed_in(name, each["ledger_id"]) for each in manifest(name)["ledgers"]}
    for key, raw in whole.items():
        for at in range(0, len(raw), max(1, len(raw) // 60)):
            for spoilt in (raw[:at] + bytes([raw[at] ^ 0x81]) + raw[at + 1 :], raw[:at]):
                store.delete(key)
                store.create(key, spoilt)
                try:
                    stream = PulsarStream(store, about["data_key"])
                    for ledger_id, rows in fed.items():
                        known = {row[0] for row in rows}
                        assert {entry.entry_id for entry in stream.entries(ledger_id)} <= known
                except HeadwaterError:
                    continue
        store.delete(key)
        store.create(key, raw)


def test_an_index_that_claims_too_much_takes_no_memory() -> None:
    store = filled("streaming-overflow")
    key = manifest("streaming-overflow")["segments"][0]["data_key"]
    raw, _ = store.get(key)
    store.delete(key)
    store.create(key, raw[:128] + struct.pack(">iQ", 0x7FFFFFFF, 0) + raw[140:])
    with pytest.raises(CorruptData, match="2147483647 bytes"):
        streams_of("streaming-overflow", store)
