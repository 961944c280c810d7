"""Ledgers in the layouts that Pulsar ships: what we write is read by Pulsar's own classes, and what they write by ours. `make peers`.

Streaming objects that Pulsar has written are fixtures: tests/headwater_core/layouts/test_pulsar_stream.py.
"""

import hashlib
import io
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from headwater_core.errors import CorruptData
from headwater_core.layouts import NewRun
from headwater_core.layouts.blocks import BlocksLayout
from headwater_core.layouts.pulsar_ledger import PulsarLedger
from headwater_core.layouts.pulsar_stream import PulsarStream
from headwater_core.layouts.streaming import LedgerEntries, OfferResult, OffloadBudget, StreamingLayout, StreamingOffloader
from headwater_core.layouts.testing import PARTITION, a_run, scanned
from headwater_core.objectstore.s3 import S3Store
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.encoder import encode_batch
from tests.headwater_core.layouts.contract import stored
from tests.headwater_core.layouts.pulsar_writer import write_ledger
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.peers.pulsar_offloader import PulsarOffloader, SeenEntry
from tests.s3server import S3Server

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("pulsar")]
_HEADER, _FRAME = 128, 12


@pytest.fixture
def pulsar_and_store(s3_environ: S3Server) -> Iterator[tuple[PulsarOffloader, S3Store]]:
    bucket = s3_environ.bucket()
    with closing(S3Store(bucket, endpoint_url=s3_environ.endpoint_url)) as store:
        yield PulsarOffloader(s3_environ, bucket), store


def batches(run: bytes) -> list[bytes]:
    return [run[at : at + header.size_bytes] for at, header in headers(io.BytesIO(run), 0, len(run), where="run")]


def edges(block_bytes: int) -> list[bytes]:
    """Blocks that end with padding of 0 to 8 bytes, and entries of no bytes."""
    random, room = Random(7), block_bytes - _HEADER - 2 * _FRAME
    found = []
    for pad_bytes in range(9):
        first = random.randrange(room - pad_bytes)
        found += [random.randbytes(first), random.randbytes(room - pad_bytes - first)]
    return [*found, b"", b"", random.randbytes(40)]


def seen(entries: Sequence[bytes]) -> list[SeenEntry]:
    return [SeenEntry(entry_id, len(entry), hashlib.sha256(entry).hexdigest()) for entry_id, entry in enumerate(entries)]


CASES = {  # entries, and bytes of a block; from 5 MiB on Pulsar sends its parts to S3 itself
    "batches in one block": (batches(a_run()), 64 << 20),
    "batches in many blocks": (batches(a_run()), 30_000),
    "edges": (edges(300), 300),
    "one entry of one byte": ([b"x"], 300),
    "entries larger than what is read at once": ([Random(n).randbytes(1_300_000 + n) for n in range(7)], 5 << 20),
}


@pytest.mark.parametrize("name", CASES)
def test_pulsar_reads_every_entry_that_is_written_as_its_format_page_says(
    name: str, pulsar_and_store: tuple[PulsarOffloader, S3Store]
) -> None:
    (pulsar, store), (entries, block_bytes), key = pulsar_and_store, CASES[name], str(uuid.uuid4())
    write_ledger(store, key, 41, entries, block_bytes)
    expected, last = seen(entries), len(entries) - 1
    said = pulsar.ledger(key, 41)
    assert (said["length"], said["last_entry_id"], said["is_closed"]) == (sum(map(len, entries)), last, True)
    assert pulsar.read(key, 41, [(0, last)]).entries == expected
    single = Random(1).sample(range(len(entries)), len(entries))
    assert pulsar.read(key, 41, [(each, each) for each in single]).entries == [expected[each] for each in single]
    with pytest.raises(AssertionError, match="BKIncorrectParameterException"):
        pulsar.read(key, 41, [(0, last + 1)])
    assert [SeenEntry(*_seen(*each)) for each in PulsarLedger(store, f"{key}-ledger-41").entries()] == expected
    pulsar.delete(key, 41)
    assert list(store.list("")) == []


@pytest.mark.parametrize("name", CASES)
def test_every_entry_that_pulsar_writes_is_read(name: str, pulsar_and_store: tuple[PulsarOffloader, S3Store], tmp_path: Path) -> None:
    (pulsar, store), (entries, block_bytes), key = pulsar_and_store, CASES[name], str(uuid.uuid4())
    ledger = PulsarLedger(store, pulsar.offload(key, 7, entries, block_bytes, tmp_path / "entries"))
    expected = seen(entries)
    index = ledger.index
    assert (index.length, index.last_entry_id, index.made_ms) == (sum(map(len, entries)), len(entries) - 1, 1_700_000_000_000)
    assert index.custom == {"application": b"peers"}
    assert [SeenEntry(*_seen(*each)) for each in ledger.entries()] == expected
    for entry_id in Random(2).sample(range(len(entries)), len(entries)):
        assert ledger.read(entry_id) == entries[entry_id]
    # What the two writers differ in is who wrote it: their objects' bytes are the same, but for BookKeeper's words about the ledger.
    ours = write_ledger(store, str(uuid.uuid4()), 7, entries, block_bytes)
    assert store.get(ours)[0] == store.get(f"{key}-ledger-7")[0]


def test_an_entry_that_pulsars_writer_loses_is_named(pulsar_and_store: tuple[PulsarOffloader, S3Store], tmp_path: Path) -> None:
    """Larger than a block: Pulsar reports success."""
    (pulsar, store), key = pulsar_and_store, str(uuid.uuid4())
    entries = [b"one", b"two", bytes(2_000), b"four"]
    found = PulsarLedger(store, pulsar.offload(key, 7, entries, 1_000, tmp_path / "entries")).entries()
    assert [next(found).content, next(found).content] == entries[:2]
    assert pulsar.read(key, 7, [(0, 1)]).entries == seen(entries)[:2]
    with pytest.raises(CorruptData, match="entry 2 is missing"):
        next(found)


def test_a_cold_read_in_the_middle_of_a_block_takes_fewer_requests_than_pulsars(
    pulsar_and_store: tuple[PulsarOffloader, S3Store], tmp_path: Path
) -> None:
    """The same batches in one block of 64 MiB each: Pulsar knows where the block begins, and reads up to the entry."""
    (pulsar, store), key = pulsar_and_store, str(uuid.uuid4())
    run = a_run(48, value_bytes=1_000_000)
    entries = batches(run)
    wanted = 3 * len(entries) // 4
    pulsar.offload(key, 7, entries, 64 << 20, tmp_path / "entries")
    theirs = pulsar.read(key, 7, [(wanted, wanted)])
    scan = scanned(run)
    new = NewRun(PARTITION, scan.base_offset, scan.last_offset, "data/run.blocks", "", io.BytesIO(run), scan)
    entry = stored(BlocksLayout(), new, BlocksLayout().offload(store, [new], {})[0])
    metered, content = MeteredStore(store), bytearray(len(entries[wanted]))
    BlocksLayout().read_offloaded(metered, entry).read_into(memoryview(content), sum(map(len, entries[:wanted])))
    assert (bytes(content), theirs.entries) == (entries[wanted], [seen(entries)[wanted]])
    ours = sum(metered.calls.values())
    assert ours <= 3 < theirs.gets, f"{ours} requests, Pulsar's reader {theirs.gets}"


@pytest.mark.parametrize("value_bytes", [9_000, 300_000], ids=["in one block", "in many blocks"])
def test_pulsar_reads_a_run_that_was_archived_whole_as_streaming(
    value_bytes: int, pulsar_and_store: tuple[PulsarOffloader, S3Store]
) -> None:
    (pulsar, store), key, run = pulsar_and_store, str(uuid.uuid4()), a_run(value_bytes=value_bytes)
    scan, expected = scanned(run), seen(batches(run))
    new = NewRun(PARTITION, scan.base_offset, scan.last_offset, key, "", io.BytesIO(run), scan)
    StreamingLayout().offload(store, [new], {})
    assert pulsar.stream([key], scan.base_offset, [(0, len(expected) - 1)]) == (expected, len(expected) - 1, 0)
    for entry_id in Random(3).sample(range(len(expected)), 5):
        assert pulsar.stream([key], scan.base_offset, [(entry_id, entry_id)]).entries == expected[: entry_id + 1]


def test_pulsar_reads_ledgers_that_share_an_object_and_one_that_lies_in_two(pulsar_and_store: tuple[PulsarOffloader, S3Store]) -> None:
    (pulsar, store), entries = pulsar_and_store, batches(a_run(90, value_bytes=200_000))
    ledgers = {3: (17, entries[:9]), 40: (0, entries[9:11]), 60: (0, entries[11:60]), 80: (0, entries[60:])}
    sealed = {ledger_id: (first + len(own), sum(map(len, own))) for ledger_id, (first, own) in ledgers.items() if ledger_id != 80}
    first_object = streamed(store, [(3, *ledgers[3]), (40, *ledgers[40]), (60, 0, entries[11:50])], {3: sealed[3], 40: sealed[40]})
    second_object = streamed(store, [(60, 39, entries[50:60]), (80, *ledgers[80])], {60: sealed[60]})
    keys = {3: [first_object], 40: [first_object], 60: [first_object, second_object], 80: [second_object]}
    for ledger_id, (first, own) in ledgers.items():
        expected = [each._replace(entry_id=first + each.entry_id) for each in seen(own)]
        last = expected[-1].entry_id
        found = pulsar.stream(keys[ledger_id], ledger_id, [(first, last)])
        assert (sorted(found.entries), found.last_entry_id) == (expected, last)
        assert found.length == (sealed[ledger_id][1] if ledger_id in sealed else 0)
        for entry in Random(4).sample(expected, min(len(expected), 5)):
            begin = 39 if ledger_id == 60 and entry.entry_id >= 39 else first  # of the object where it is
            wanted = expected[begin - first : entry.entry_id - first + 1]
            assert pulsar.stream(keys[ledger_id], ledger_id, [(entry.entry_id, entry.entry_id)]).entries == wanted


def test_pulsar_passes_from_block_to_block_where_the_next_entrys_id_is_the_length_of_a_header(
    pulsar_and_store: tuple[PulsarOffloader, S3Store],
) -> None:
    """Of blocks of 5 MiB the second one would begin with entry 128."""
    pulsar, store = pulsar_and_store
    entries = [encode_batch(offset, [(None, bytes(41_000))], leader_epoch=1, timestamp_ms=1) for offset in range(140)]
    key = streamed(store, [(7, 0, entries)], {})
    assert [block.first_entry_id for block in PulsarStream(store, key).blocks] == [0, 129]
    assert pulsar.stream([key], 7, [(0, 139)]).entries == seen(entries)
    later = streamed(store, [(7, 129, entries[:3])], {})  # which no writer can help
    with pytest.raises(AssertionError, match="NullPointerException"):
        pulsar.stream([later], 7, [(129, 131)])


def streamed(store: S3Store, ledgers: Sequence[tuple[int, int, list[bytes]]], sealed: Mapping[int, tuple[int, int]]) -> str:
    """The key of an object that was offloaded while these grew: ledger, first entry, and entries. sealed: entries and bytes of a ledger."""
    uid = uuid.uuid4()
    offloader = StreamingOffloader(store, PARTITION, prefix="", fence=7, budget=OffloadBudget(1 << 30))
    handle = offloader.streaming_offload(uid, {"bucket": "peers"}, assigned_ms=1_700_000_000_000)
    for ledger_id, first, entries in ledgers:
        for entry_id, content in enumerate(entries, first):
            assert handle.offer(LedgerEntries(ledger_id, entry_id, content)) is OfferResult.SUCCESS
            handle.send_part()
    for ledger_id, (count, size_bytes) in sealed.items():
        handle.seal_ledger(ledger_id, entries=count, size_bytes=size_bytes, closed_ms=1_700_000_600_000)
    handle.close(offloaded_ms=1_700_000_700_000)
    handle.result()
    return str(uid)


def _seen(entry_id: int, content: bytes) -> tuple[int, int, str]:
    return entry_id, len(content), hashlib.sha256(content).hexdigest()
