"""What was archived, and what a read path gives: compared batch by batch, and record by record where the batches were written again.

The archive's side is read here from the bucket again, object by object, and held against its manifest: nothing of what the recovery
has fetched, walked or counted is believed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from headwater.drill.drill_report import NOTHING, Amount
from headwater.drill.read_path import ReadPath
from headwater_core.counts import count_text
from headwater_core.errors import (
    ENVIRONMENT_ERRORS,
    CorruptData,
    ForeignOwner,
    HeadwaterError,
    NotFound,
    UnsupportedFormat,
)
from headwater_core.layouts import open_layout
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.batches import HEADER_BYTES, check_batch, read_batch_header
from headwater_core.segments.records import Record, decode_batch
from manifests.archivedrun import ArchivedRun
from manifests.entry import Entry
from manifests.repository import ManifestRepository

PIECE_BYTES = 4 << 20


class Difference(Exception):
    """What was read is not what was archived, from `offset` on."""

    def __init__(self, offset: int, text: str) -> None:
        super().__init__(text)
        self.offset = offset


class ReadFailed(Difference):
    """What was read so far is what was archived, and then nothing could be read: no word about the rest."""


def archived_batches(store: ObjectStore, entry: Entry) -> Iterator[bytes]:
    """The live batches of an archived run, its object read whole and held against the manifest: length, digest, CRC of each batch, offsets,
    leader epochs, records. Raises CorruptData, also when the object is gone; what differs in the end comes after the last batch."""
    run, digest, rest, position = ArchivedRun(store, entry), Digest(), b"", 0
    records, last_offset, epochs = 0, -1, set[int]()
    while position < entry.run_bytes:
        piece = bytearray(min(PIECE_BYTES, entry.run_bytes - position))
        run.fetch(memoryview(piece), position)
        digest.update(piece)
        rest += piece[: max(0, entry.live_bytes - position)]
        position += len(piece)
        at = 0
        while len(rest) - at >= HEADER_BYTES:
            if at + read_batch_header(rest, at, where=entry.key).size_bytes > len(rest):
                break
            header = check_batch(rest, at, where=entry.key)
            if not last_offset < header.base_offset <= header.last_offset <= entry.last_offset or header.base_offset < entry.base_offset:
                raise CorruptData(entry.key, 0, f"a batch of offsets {header.base_offset} to {header.last_offset} after {last_offset}")
            last_offset = header.last_offset
            epochs.add(header.leader_epoch)
            batch = rest[at : at + header.size_bytes]
            records += 0 if header.is_control else sum(1 for _ in decode_batch(batch, where=entry.key))
            yield batch
            at += header.size_bytes
        rest = rest[at:]
    if rest:
        raise CorruptData(entry.key, entry.live_bytes, f"its live part ends inside a batch, {len(rest)} bytes of which are there")
    if entry.run_digest and digest.text() != entry.run_digest:
        raise CorruptData(entry.key, 0, f"digest {digest.text()}, the manifest says {entry.run_digest}")
    if records != entry.records or epochs - {-1} != {epoch for epoch, _ in entry.epochs}:
        raise CorruptData(
            entry.key,
            0,
            f"{count_text(records, 'record')} of leader epochs {sorted(epochs)}, the manifest says {entry.records} of {entry.epochs}",
        )


def is_listed(store: ObjectStore, identity: PartitionId, entry: Entry) -> bool:
    """Does the newest head list this run still? What it does not list any more may be gone: the archive was merged or trimmed meanwhile.
    Of a head or page that cannot be read nothing else is known, so what is wrong stays wrong. Raises what the store raises."""
    try:
        held = ManifestRepository(store).load(identity)
        return held is None or entry.key in {each.key for each in held.head.entries}
    except (CorruptData, ForeignOwner, UnsupportedFormat):
        return True


def check_index(store: ObjectStore, entry: Entry) -> None:
    """Raises CorruptData where the index of a run is not the one that was archived, or something beside it is not."""
    reader = open_layout(entry.layout).read_offloaded(store, entry)
    try:
        reader.read_index()
        reader.check_rest()
        there = store.stat(entry.index_key).size_bytes if entry.index_key else entry.index_bytes
    except NotFound as error:
        raise CorruptData(entry.index_key or entry.key, 0, "the manifest lists it, the store does not have it") from error
    if there != entry.index_bytes:
        raise CorruptData(entry.index_key, min(there, entry.index_bytes), f"{there} bytes, the manifest says {entry.index_bytes}")


def compare_run(
    place: TopicPartition, batches: Iterable[bytes], path: ReadPath, first: int, end: int, progressed: Callable[[int], object]
) -> Amount:
    """Compare archived `batches` with what `path` gives for [first, end), byte for byte. Raises Difference; what `batches` raises comes as
    it is, and what the path raises is a Difference."""
    served = _served(path, place, first, end)
    amount = NOTHING
    for batch in batches:
        header = read_batch_header(batch)
        if header.next_offset <= first:
            continue  # below the log start: no reader sees it
        other = next(served, None)
        if other is None:
            raise Difference(header.base_offset, f"{path.name} gives nothing at offset {header.base_offset} and above")
        if other != batch:
            raise Difference(header.base_offset, _difference(batch, other, path))
        amount += Amount(batches=1, records=0 if header.is_control else header.records, size_bytes=len(batch))
        progressed(len(batch))
    extra = next(served, None)
    if extra is not None:
        offset = read_batch_header(extra).base_offset
        raise Difference(offset, f"{path.name} gives a batch at offset {offset} that the archive does not have")
    return amount + Amount(runs=1)


def compare_records(
    place: TopicPartition,
    batches: Iterable[bytes],
    path: ReadPath,
    first: int,
    end: int,
    *,
    is_compacted: bool,
    progressed: Callable[[int], object],
) -> Amount:
    """The same with a live log, where the broker may have written batches again: whole batches while they are equal, records where they
    are not. `size_bytes` and `batches` are the archive's, of those of which at least one record was there to compare; NOTHING where none
    was.

    is_compacted  the live log may lack records that the archive has; it never has one that the archive lacks

    Raises as compare_run.
    """
    amount = NOTHING

    def in_range() -> Iterator[bytes]:
        for batch in batches:
            header = read_batch_header(batch)
            if header.next_offset > first and header.base_offset < end:
                progressed(len(batch))
                yield batch

    ours, theirs = _Side(in_range(), first, end), _LiveSide(path, _served(path, place, first, end), first, end)
    while True:
        if ours.batch is not None and ours.batch == theirs.batch and not (ours.records or theirs.records):
            amount += Amount(batches=1, size_bytes=len(ours.batch), records=ours.pass_batch())
            theirs.pass_batch()
            continue
        mine, other = ours.record, theirs.record
        if mine is None and other is None:
            return amount + Amount(runs=1) if amount.batches else NOTHING
        if other is None or (mine is not None and mine.offset < other.offset):
            assert mine is not None
            if not is_compacted:
                raise Difference(mine.offset, f"{path.name} has no record at offset {mine.offset}, the archive has one")
            ours.records.popleft()
            continue
        if mine is None or other.offset < mine.offset:
            raise Difference(other.offset, f"{path.name} has a record at offset {other.offset}, the archive has none")
        if mine != other:
            names = [name for name, one, two in zip(Record._fields, mine, other, strict=True) if one != two]
            raise Difference(mine.offset, f"the record at offset {mine.offset} has another {' and '.join(names)} in {path.name}")
        ours.records.popleft()
        theirs.records.popleft()
        amount += Amount(records=1, batches=1 if ours.opened_bytes else 0, size_bytes=ours.opened_bytes)
        ours.opened_bytes = 0


class _Side:
    """Batches that are looked at before they are taken, as records where they must be.

    opened_bytes  size of the batch that `records` are of, until it is counted
    """

    def __init__(self, batches: Iterator[bytes], first: int, end: int) -> None:
        self._batches, self._range = batches, range(first, end)
        self.batch = next(batches, None)
        self.records: deque[Record] = deque()
        self.opened_bytes = 0

    def pass_batch(self) -> int:
        """Take the batch as it is; how many records were in it."""
        assert self.batch is not None
        header = read_batch_header(self.batch)
        self.batch = next(self._batches, None)
        return 0 if header.is_control else header.records

    @property
    def record(self) -> Record | None:
        """The next one; None at the end."""
        while not self.records and self.batch is not None:
            if not read_batch_header(self.batch).is_control:
                self.records.extend(each for each in self._decoded(self.batch) if each.offset in self._range)
                self.opened_bytes = len(self.batch)
            self.batch = next(self._batches, None)
        return self.records[0] if self.records else None

    def _decoded(self, batch: bytes) -> Iterable[Record]:
        return decode_batch(batch)


class _LiveSide(_Side):
    """Of a read path: a batch that cannot be decoded is its damage, not the archive's."""

    def __init__(self, path: ReadPath, batches: Iterator[bytes], first: int, end: int) -> None:
        super().__init__(batches, first, end)
        self._path = path

    def _decoded(self, batch: bytes) -> Iterable[Record]:
        try:
            return list(decode_batch(batch))
        except CorruptData as error:
            raise Difference(
                read_batch_header(batch).base_offset, f"{self._path.name} gives a batch that cannot be decoded: {error}"
            ) from error


def _served(path: ReadPath, place: TopicPartition, first: int, end: int) -> Iterator[bytes]:
    """Raises Difference for what cannot be read, ReadFailed where that says nothing about the records."""
    reached = first
    try:
        for batch in path.batches(place, first, end):
            reached = read_batch_header(batch).next_offset
            yield batch
    except HeadwaterError as error:
        kind = ReadFailed if isinstance(error, ENVIRONMENT_ERRORS) else Difference
        raise kind(reached, f"{path.name} cannot read {place} at offset {reached}: {error}") from error


def _difference(wanted: bytes, found: bytes, path: ReadPath) -> str:
    one, other = read_batch_header(wanted), read_batch_header(found)
    if one.base_offset != other.base_offset:
        return f"{path.name} gives a batch at offset {other.base_offset} where the archive has one at {one.base_offset}"
    names = [name for name, mine, theirs in zip(one._fields, one, other, strict=True) if mine != theirs] or ["records"]
    return f"the batch at offset {one.base_offset} has another {', '.join(names)} in {path.name}"
