"""Ledgers that Pulsar's own offloader wrote, against what was fed into it and what its own reader returned."""

import atexit
import functools
import hashlib
import io
import json
import shutil
import struct
import tarfile
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from headwater_core.errors import CorruptData, NotFound, TruncatedData, UnsupportedFormat
from headwater_core.layouts.pulsar_ledger import LedgerKey, PulsarLedger, decode_ledger_index, parse_ledger_key
from headwater_core.objectstore.store import ObjectForm
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore

SETS = ("large", "messages", "multiblock", "oversize-entry", "padding-edge", "single-entry", "small", "topic")


@functools.cache
def unpacked() -> Path:
    root = Path(tempfile.mkdtemp(prefix="headwater-pulsar-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    with tarfile.open(Path(__file__).parents[2] / "fixtures/pulsar/ledgers.tar.xz") as archive:
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


def fed_in(name: str, ledger_id: int) -> list[tuple[int, int, str]]:
    rows = map(json.loads, (unpacked() / name / "entries.jsonl").read_text().splitlines())
    return [(row["entry_id"], row["length"], row["sha256"]) for row in rows if row["ledger_id"] == ledger_id]


def seen(entry_id: int, content: bytes) -> tuple[int, int, str]:
    return entry_id, len(content), hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", [name for name in SETS if name != "oversize-entry"])
def test_every_entry_is_what_was_fed_in(name: str) -> None:
    store = filled(name)
    for about in manifest(name)["ledgers"]:
        ledger = PulsarLedger(store, about["data_key"])
        found = [seen(*entry) for entry in ledger.entries()]
        assert found == fed_in(name, about["ledger_id"])
        assert len(found) == about["entries_readable_by_pulsar"] == ledger.index.last_entry_id + 1
        assert ledger.index.length == sum(length for _, length, _ in found)
        for entry_id in range(len(found)):
            assert seen(entry_id, ledger.read(entry_id)) == found[entry_id]
            assert [seen(*entry) for entry in ledger.entries(entry_id)][:3] == found[entry_id : entry_id + 3]
        assert list(ledger.entries(len(found))) == []
        for absent in (-1, len(found), 1 << 40):
            with pytest.raises(CorruptData, match=str(absent)):
                ledger.read(absent)


def test_an_entry_that_pulsars_writer_lost_is_named_after_what_is_there() -> None:
    (about,) = manifest("oversize-entry")["ledgers"]
    ledger = PulsarLedger(filled("oversize-entry"), about["data_key"])
    entries = ledger.entries()
    found = [seen(*next(entries)) for _ in range(2)]
    with pytest.raises(CorruptData, match="entry 2 is missing from the offloaded data"):
        next(entries)
    assert found == fed_in("oversize-entry", 87)[:2]
    assert len(found) == about["entries_readable_by_pulsar"]
    for lost in (2, 3):
        with pytest.raises(CorruptData, match=f"entry {lost} is missing"):
            ledger.read(lost)


def test_an_entry_is_found_through_the_index() -> None:
    (about,) = manifest("multiblock")["ledgers"]
    store = MeteredStore(filled("multiblock"), log_calls=5)
    ledger = PulsarLedger(store, about["data_key"])
    store.reset()
    ledger.read(88)
    assert len(store.log) == 2, "the block's header, and a range of it"
    assert all(call.start >= ledger.index.blocks[-1].position for call in store.log)


@pytest.mark.parametrize("name", ["multiblock", "small", "padding-edge"])
def test_damage_is_noticed_or_in_an_entry_and_ends(name: str) -> None:
    (about,) = manifest(name)["ledgers"]
    store, key = filled(name), about["data_key"]
    raw, _ = store.get(key)
    expected = fed_in(name, about["ledger_id"])
    for at in range(0, len(raw), max(1, len(raw) // 300)):
        store.delete(key)
        store.create(key, raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :])
        try:
            found = [seen(*entry) for entry in PulsarLedger(store, key).entries()]
        except CorruptData:
            continue
        wrong = [number for number, entry in enumerate(found) if entry != expected[number]]
        assert len(found) == len(expected)
        assert len(wrong) <= 1, "Pulsar's format has no checksum over an entry: messages have their own"
    for size_bytes in range(0, len(raw), max(1, len(raw) // 50)):
        store.delete(key)
        store.create(key, raw[:size_bytes])
        with pytest.raises(CorruptData):
            list(PulsarLedger(store, key).entries())


def test_an_index_that_was_cut_or_is_something_else_is_refused() -> None:
    (about,) = manifest("multiblock")["ledgers"]
    raw = (unpacked() / "multiblock/bucket" / about["index_key"]).read_bytes()
    index = decode_ledger_index(raw, "x")
    assert index.custom["application"] == b"pulsar"
    for size_bytes in range(len(raw)):
        with pytest.raises(TruncatedData):
            decode_ledger_index(raw[:size_bytes], "x")
    with pytest.raises(CorruptData):
        decode_ledger_index(raw + b"x", "x")
    with pytest.raises(UnsupportedFormat):
        decode_ledger_index(bytes.fromhex("3D1FB0BC") + raw[4:], "x")


def test_another_version_is_refused_and_data_without_an_index_is_no_ledger() -> None:
    (about,) = manifest("small")["ledgers"]
    store = filled("small")
    raw, _ = store.get(about["index_key"])
    store.delete(about["index_key"])
    form = ObjectForm(metadata={"s3managedledgeroffloaderformatversion": "2"})
    store.put(about["index_key"], io.BytesIO(raw), size_bytes=len(raw), form=form)
    with pytest.raises(UnsupportedFormat):
        PulsarLedger(store, about["data_key"])
    store.delete(about["index_key"])
    with pytest.raises(NotFound):
        PulsarLedger(store, about["data_key"])


def test_keys_are_taken_apart() -> None:
    uuid = "21e7de5c-f7fd-496e-ab81-c7f328596972"
    assert parse_ledger_key(f"a/{uuid}-ledger-205") == LedgerKey(uuid, 205, False)
    assert parse_ledger_key(f"{uuid}-ledger-205-index") == LedgerKey(uuid, 205, True)
    for other in (uuid, f"{uuid}-index", f"{uuid}-ledger-", f"{uuid}-ledger-x", f"{uuid.upper()}-ledger-5", "x-ledger-5"):
        assert parse_ledger_key(other) is None


@pytest.mark.parametrize("entry_bytes", [200 << 20, (1 << 31) - 13])
def test_what_a_frame_claims_is_not_allocated_before_it_is_there(entry_bytes: int) -> None:
    metadata = bytes([0x18, 10, 0x20, 0])
    header = struct.pack(">4sIQQII", bytes.fromhex("DE47DE47"), 32 + len(metadata) + 20, 300, 128, 1, len(metadata))
    index = header + metadata + struct.pack(">QIQ", 0, 1, 0)
    data = struct.pack(">4sQQQ", bytes.fromhex("FBDBABCB"), 128, 1 << 40, 0).ljust(128, b"\0") + struct.pack(">iQ", entry_bytes, 0)
    store, key = MemoryStore(), "00000000-0000-0000-0000-000000000000-ledger-1"
    store.create(key, data + bytes(3 << 20))
    store.create(f"{key}-index", index)
    ledger = PulsarLedger(store, key)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData):
            ledger.read(0)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
