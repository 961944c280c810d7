"""Examines one archived object and its index: do they exist, are they undamaged, and do they agree with the head?

One pass over the bytes checks each batch's CRC, offsets and epochs and the object's digest, and builds the index again to compare
it with the stored one. Only a damaged object is read again, to find out how it is damaged.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

from headwater.pipeline.scrub.findings import Finding, Kind
from headwater.pipeline.scrub.head_check import Check
from headwater.pipeline.scrub.object_file import ObjectFile
from headwater_core.errors import CorruptData, ForeignOwner, HeadwaterError, NotFound, UnsupportedFormat
from headwater_core.layouts import open_layout
from headwater_core.objectstore.digest import Digest, digest_in_store, is_digest, value_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.run_scan import OpenTransaction, RunScan, scan_run
from headwater_core.segments.runindex import RunIndex
from manifests.entry import Entry
from manifests.entry_tree import EntryBag
from manifests.repository import ManifestRepository


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedObject:
    """The result of one check. is_replaced: the head no longer lists the object, so its damage is no finding."""

    check: Check
    size_bytes: int
    findings: tuple[Finding, ...] = ()
    is_replaced: bool = False


def check_object(store: ObjectStore, check: Check, *, data: bool) -> CheckedObject:
    """Examine one object. Memory: three pieces of a read.

    data  read every byte; else only the index, and length and digest as the store has them
    """
    size_bytes = check.entry.size_bytes if data else 0
    findings: list[Finding] = []
    try:
        findings.extend(_findings(store, check, data))
        if findings and not _is_still_listed(store, check):
            return CheckedObject(check=check, size_bytes=size_bytes, is_replaced=True)
    except HeadwaterError as error:
        findings.append(_finding(check, Kind.UNEXAMINED, check.entry.key, str(error)))
    return CheckedObject(check=check, size_bytes=size_bytes, findings=tuple(findings))


def _findings(store: ObjectStore, check: Check, data: bool) -> Iterator[Finding]:
    entry, index = check.entry, None
    try:
        index = open_layout(entry.layout).read_offloaded(store, entry).read_index()
        if entry.index_key:
            _check_length(store, entry.index_key, check.listed_index_bytes, entry.index_bytes)
    except (CorruptData, NotFound) as error:
        if entry.index_key:
            yield _diagnosis(store, check, entry.index_key, entry.index_bytes, entry.index_digest, error, whole=Kind.INDEX)
        else:
            yield _diagnosis(store, check, entry.key, entry.size_bytes, entry.digest, error, whole=Kind.INDEX)
            return
    if index is not None:
        for problem in _index_problems(check, index):
            yield _finding(check, Kind.INDEX, entry.index_place, problem)
    try:
        if data:
            yield from _read(store, check, index)
        else:
            _check_stat(store, entry)
    except (CorruptData, NotFound) as error:
        yield from _diagnoses(store, check, error, whole=Kind.FLIPPED)
    except UnsupportedFormat as error:  # a flipped bit may look like another format
        yield from _diagnoses(store, check, error, whole=Kind.UNEXAMINED)


def _check_stat(store: ObjectStore, entry: Entry) -> None:
    """The lengths of its objects, and the digest of them all, as the store has these."""
    objects, digest, is_told = open_layout(entry.layout).data_objects(entry), Digest(), True
    for key, size_bytes in objects:
        found = store.stat(key)
        if found.size_bytes != size_bytes:
            raise CorruptData(key, 0, f"{found.size_bytes} bytes, the manifest says {size_bytes}")
        is_told = is_told and found.digest is not None and is_digest(found.digest)
        if len(objects) == 1 and found.digest is not None and entry.digest not in ("", found.digest):
            raise CorruptData(key, 0, f"digest {found.digest}, the manifest says {entry.digest}")
        if is_told and found.digest is not None:
            digest.append(value_of(found.digest), size_bytes)
    if len(objects) > 1 and is_told and entry.digest not in ("", digest.text()):
        raise CorruptData(entry.key, 0, f"digest {digest.text()} of its {len(objects)} objects, the manifest says {entry.digest}")


def _read(store: ObjectStore, check: Check, index: RunIndex | None) -> Iterator[Finding]:
    entry = check.entry
    scan = _scan(store, entry, entry.run_bytes, index)
    if scan is None or scan.end_position != entry.run_bytes:
        raise CorruptData(entry.key, scan.end_position if scan else 0, "bytes after the last batch")
    if entry.run_digest not in ("", scan.digest):
        raise CorruptData(entry.key, 0, f"its run has digest {scan.digest}, the manifest says {entry.run_digest}")
    open_layout(entry.layout).read_offloaded(store, entry).check_rest()
    if len(open_layout(entry.layout).data_objects(entry)) == 1:  # of several, check_rest has asked for each
        _check_length(store, entry.key, check.listed_bytes, entry.size_bytes)
    if index is not None and _comparable(index) != _comparable(scan.index):
        yield _finding(check, Kind.INDEX, entry.index_place, "undamaged, but not the index of these data")
    for each in check.entries:
        part = _scan(store, each, each.live_bytes, index) if each.is_cut else scan
        if part is None or part.end_position != each.live_bytes:
            problem = f"its live part ends at byte {each.live_bytes}, where no batch ends"
            yield _finding(check, Kind.DISAGREES, each.key, problem)
        else:
            yield from (_finding(check, Kind.DISAGREES, each.key, problem) for problem in _contradictions(each, part, index))


def _check_length(store: ObjectStore, key: str, listed_bytes: int | None, size_bytes: int) -> None:
    """Raises CorruptData when the object is longer than what was read. The store has the length of an object that is not listed yet."""
    found = store.stat(key).size_bytes if listed_bytes is None else listed_bytes
    if found != size_bytes:
        raise CorruptData(key, min(found, size_bytes), f"{found} bytes, the manifest says {size_bytes}")


def _scan(store: ObjectStore, entry: Entry, end: int, index: RunIndex | None) -> RunScan | None:
    with ObjectFile(store, entry) as run:
        return scan_run(cast(BinaryIO, run), start=0, end=end, open_before=_carried(index), where=entry.key)


def _carried(index: RunIndex | None) -> tuple[OpenTransaction, ...]:
    """Transactions that were open before the run, by the index: aborted in the run, or still open. Those that were committed in the
    run leave no trace in an index or a scan."""
    if index is None:
        return ()
    aborted = (OpenTransaction(each.producer_id, each.first_offset) for each in index.aborted if each.first_offset < index.base_offset)
    still = (each for each in index.open_transactions if each.first_offset < index.base_offset)
    return (*aborted, *still)


def _comparable(index: RunIndex) -> RunIndex:
    """`index` without the last stable offsets, which depend on transactions of earlier runs that it does not list."""
    return replace(index, aborted=tuple(each._replace(last_stable_offset=0) for each in index.aborted))


def _index_problems(check: Check, index: RunIndex) -> Iterator[str]:
    """What is wrong with an index by itself."""
    entry = check.entry
    held = entry.held_offsets
    if index.size_bytes != entry.run_bytes:
        yield f"an index of {index.size_bytes} bytes of data, the manifest says {entry.run_bytes}"
    if held is not None and not held[0] <= index.base_offset <= index.last_offset <= held[1]:
        yield f"an index of offsets {index.base_offset} to {index.last_offset}"


def _contradictions(entry: Entry, scan: RunScan, index: RunIndex | None) -> Iterator[str]:
    """Where the data differ from what the entry says. `scan` is of the entry's live part.

    For the later part of an object, which is listed after a dead branch, an entry says little: only its end is compared.
    """
    held = entry.held_offsets
    if held is not None and not held[0] <= scan.base_offset <= scan.last_offset <= held[1]:
        yield f"offsets {scan.base_offset} to {scan.last_offset}, its name says {held[0]} to {held[1]}"
    if scan.last_offset > entry.last_offset:
        yield f"offsets up to {scan.last_offset}, the manifest says {entry.last_offset}"
    if held is None or entry.base_offset != held[0]:
        return
    facts: list[tuple[str, object, object]] = [
        ("records", entry.records, scan.records),
        ("first timestamp", entry.first_timestamp_ms, scan.first_timestamp_ms),
        ("last timestamp", entry.last_timestamp_ms, scan.last_timestamp_ms),
        ("leader epochs", entry.epochs, tuple(step for step in scan.epochs if step[1] <= entry.last_offset)),
        ("highest producer id", entry.max_producer_id, scan.max_producer_id),
    ]
    if index is not None and not entry.is_cut:  # else the transactions that were open before it are unknown
        facts += [("aborted transactions", entry.aborted, len(scan.aborted)), ("open transaction", entry.open_from, scan.open_from)]
    yield from (f"{what} {found}, the manifest says {says}" for what, says, found in facts if says != found)


def _diagnoses(store: ObjectStore, check: Check, error: HeadwaterError, *, whole: Kind) -> Iterator[Finding]:
    """`_diagnosis` for a run's data; where several objects hold it, for each that is missing or of another length."""
    entry = check.entry
    objects = open_layout(entry.layout).data_objects(entry)
    if len(objects) == 1:
        yield _diagnosis(store, check, entry.key, entry.size_bytes, entry.digest, error, whole=whole)
        return
    sound = True
    for key, size_bytes in objects:
        found = _diagnosis(store, check, key, size_bytes, "", error, whole=whole)
        if found.kind is not whole:
            sound = False
            yield found
    if sound:
        yield _finding(check, whole, entry.key, f"{error}; it begins a run of {len(objects)} objects")


def _diagnosis(store: ObjectStore, check: Check, key: str, size_bytes: int, digest: str, error: HeadwaterError, *, whole: Kind) -> Finding:
    """How an object is damaged: its length, or its digest; kind `whole` when both are right."""
    found_digest = ""
    try:
        found_bytes = store.stat(key).size_bytes
        found_digest = digest_in_store(store, key, found_bytes)
    except NotFound:
        return _finding(check, Kind.MISSING, key, "the manifest lists it, the store does not have it")
    if found_bytes != size_bytes:
        kind = Kind.TRUNCATED if found_bytes < size_bytes else Kind.TOO_LONG
        return _finding(check, kind, key, f"{found_bytes} bytes, the manifest says {size_bytes}", found_digest)
    if digest in ("", found_digest):
        return _finding(check, whole, key, str(error))
    problem = str(error) if "digest" in str(error) else f"{error}; its digest is {found_digest}, the manifest says {digest}"
    return _finding(check, Kind.FLIPPED, key, problem, found_digest)


def _is_still_listed(store: ObjectStore, check: Check) -> bool:
    """Read before damage is reported: the head may have replaced the object meanwhile, and garbage collection removed it."""
    try:
        held = ManifestRepository(store).load(check.partition)
        return held is None or any(_lists(bag, check.entry) for bag in (held.head.entries, held.head.superseded))
    except (CorruptData, ForeignOwner):
        return True


def _lists(bag: EntryBag, entry: Entry) -> bool:
    near = bag.where(lambda ref: ref.base_offset <= entry.last_offset and ref.last_offset >= entry.base_offset)
    return any(each.key == entry.key for each in near)


def _finding(check: Check, kind: Kind, key: str, problem: str, found_digest: str = "") -> Finding:
    return Finding(
        kind=kind,
        topic=check.partition.topic,
        partition=check.partition.partition,
        key=key,
        problem=problem,
        found_digest=found_digest,
    )
