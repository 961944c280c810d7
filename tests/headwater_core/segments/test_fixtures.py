"""Golden: what our decoders read from a real broker's files is what Kafka's own consumer delivered."""

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater_core.segments import runindex
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.batches import BatchHeader, check_batch
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.segments.producers import ProducerState
from headwater_core.segments.records import Record, decode_batch
from headwater_core.segments.run_scan import RunScan, scan_run
from headwater_core.segments.snapshots import decode_snapshot, open_transactions
from headwater_core.segments.transactions import OpenTransaction
from headwater_core.segments.txnindex import decode_txnindex
from tests.fixtures import NAMES, Isolation, expected, expected_offsets, unpack
from tests.headwater_core.segments.broker_files import encode_snapshot, encode_txnindex

_INLINE_BYTES_MAX = 2048  # a longer key or value stands in the expected file as length and digest


def directories(name: str) -> list[Path]:
    root = unpack(name)
    return sorted(root.glob("node[123]")) if name == "brigade" else [root]


def logs(name: str) -> list[LocalLog]:
    found = [log for directory in directories(name) for log in LogDirs([directory]).partitions()]
    assert found
    return found


def scans(log: LocalLog) -> list[tuple[Path, RunScan]]:
    found = []
    before: tuple[OpenTransaction, ...] = ()
    for segment in log.segments:
        with segment.path.open("rb") as file:
            scan = scan_run(file, start=0, end=segment.size_bytes, open_before=before, where=segment.path.name)
        if scan is not None:
            found.append((segment.path, scan))
            before = scan.open_transactions
    return found


def batches(log: LocalLog) -> Iterator[tuple[BatchHeader, bytes]]:
    for segment in log.segments:
        raw = segment.path.read_bytes()
        with segment.path.open("rb") as file:
            for position, header in walk(file, 0, len(raw), where=segment.path.name):
                assert check_batch(raw, position) == header
                yield header, raw[position : position + header.size_bytes]


def lines(log: LocalLog, isolation: Isolation) -> Iterator[dict[str, Any]]:
    """The log's records as the expected files spell them."""
    found = scans(log)
    aborted = [each for _, scan in found for each in scan.aborted]
    stable = found[-1][1].open_from if found else None
    for header, batch in batches(log):
        if header.is_control:
            continue
        if isolation == "read_committed":
            if stable is not None and header.base_offset >= stable:
                return
            if header.is_transactional and any(
                each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset for each in aborted
            ):
                continue
        for record in decode_batch(batch):
            if record.offset >= log.log_start:
                yield line(log, header, record)


def line(log: LocalLog, header: BatchHeader, record: Record) -> dict[str, Any]:
    return {
        "topic": log.partition.topic,
        "partition": log.partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestamp_type": "LogAppendTime" if header.log_append_time else "CreateTime",
        "leader_epoch": header.leader_epoch,
        "key": text(record.key),
        "value": text(record.value),
        "headers": [[name, text(value)] for name, value in record.headers],
    }


def text(value: bytes | None) -> Any:
    if value is None:
        return None
    if len(value) > _INLINE_BYTES_MAX:
        return {"len": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    return base64.b64encode(value).decode()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", ["pantry", "pantry-live", "kitchen", "brigade"])
def test_every_record_is_what_the_java_consumer_read(name: str, isolation: Isolation) -> None:
    wanted: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for each in expected(name, isolation):
        wanted.setdefault((each["topic"], each["partition"]), []).append(each)
    seen = set()
    for log in logs(name):
        if log.partition.topic.startswith("__"):
            list(lines(log, isolation))  # internal topics have no expected lines, yet they decode
            continue
        place = (log.partition.topic, log.partition.partition)
        assert list(lines(log, isolation)) == wanted.get(place, []), log.directory
        seen.add(place)
    assert wanted.keys() <= seen


def test_the_dead_branch_holds_what_the_final_state_replaced() -> None:
    (log,) = [each for each in logs("brigade-node2-dead-branch") if str(each.partition) == "dessert.trolley:0"]
    values = [record.value for _, batch in batches(log) for record in decode_batch(batch)]
    assert any(value and b"branch-on-2" in value for value in values)
    assert log.epochs.starts == ((0, 0), (2, 41))  # the final state has epoch 4 from 41 on
    assert log.high_watermark == 131  # so neither sealed nor below the high watermark is proof of survival


@pytest.mark.parametrize("name", ["pantry", "pantry-live", "kitchen"])
def test_log_start_and_high_watermark_are_the_brokers(name: str) -> None:
    found = {log.partition.topic_partition: log for log in logs(name)}
    offsets = expected_offsets(name, "read_uncommitted")
    assert offsets
    for each in offsets:
        (log,) = [log for key, log in found.items() if (key.topic, key.partition) == (each["topic"], each["partition"])]
        assert log.log_start == each["start"]
        assert log.high_watermark == each["high_watermark"]


@pytest.mark.parametrize("name", NAMES)
def test_aborted_transactions_are_those_of_the_brokers_own_index(name: str) -> None:
    for log in logs(name):
        for path, scan in scans(log):
            index = path.with_suffix(".txnindex")
            raw = index.read_bytes() if index.exists() else b""
            assert scan.aborted == decode_txnindex(raw, scan.base_offset, scan.next_offset, where=str(path)), path
            assert encode_txnindex(scan.aborted) == raw


@pytest.mark.parametrize("name", NAMES)
def test_producer_states_are_those_of_the_brokers_snapshots(name: str) -> None:
    compared = 0
    for log in logs(name):
        known: dict[int, ProducerState] = {}
        for path, scan in scans(log):
            known = carried(known, scan)
            snapshot = path.parent / f"{scan.next_offset:020}.snapshot"
            if snapshot.exists():
                raw = snapshot.read_bytes()
                states = decode_snapshot(raw, where=snapshot.name)
                assert sorted(states) == sorted(known.values()), snapshot
                assert encode_snapshot(states) == raw
                assert open_transactions(states) == scan.open_transactions
                compared += 1
    assert compared


def carried(known: dict[int, ProducerState], scan: RunScan) -> dict[int, ProducerState]:
    """What a broker knows after one more segment: an index has only what that segment says of a producer."""
    merged = dict(known)
    for state in scan.index.producers:
        before = merged.get(state.producer_id)
        if before is not None and state.last_offset < 0 and before.producer_epoch == state.producer_epoch:
            state = before._replace(timestamp_ms=state.timestamp_ms, coordinator_epoch=state.coordinator_epoch)
        if before is not None and state.coordinator_epoch < 0:
            state = state._replace(coordinator_epoch=before.coordinator_epoch)
        merged[state.producer_id] = state
    open_from = dict(scan.open_transactions)
    return {key: state._replace(open_from=open_from.get(key, -1)) for key, state in merged.items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_index_survives_its_encoding(name: str) -> None:
    for log in logs(name):
        for _, scan in scans(log):
            assert runindex.decode_index(runindex.encode_index(scan.index)) == scan.index


def test_epochs_found_in_batches_lie_on_the_brokers_history() -> None:
    for log in logs("pantry"):
        first_of = {epoch: first for _, scan in scans(log) for epoch, first in reversed(scan.epochs)}
        for epoch, first in first_of.items():
            if first >= (log.epochs.first_offset or 0) and log.epochs.starts:
                assert log.epochs.epoch_at(first) == epoch
