"""One archived run becomes one segment file, verified as it is downloaded and as it is written, and Kafka's indexes beside it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple

from headwater_core import milestones
from headwater_core.errors import CorruptData, NotFound, UnsupportedFormat
from headwater_core.files import disk_errors, partial_of, rename_synced
from headwater_core.layouts import open_layout
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.batch_walk import BatchWalk
from headwater_core.segments.batches import CONTROL, HEADER
from headwater_core.segments.stretch import NO_END_OFFSET, Stretch, pass_batches
from manifests.entry import Entry
from recovery.indexes import INTERVAL_BYTES, Indexes
from recovery.target_files import publish

SEGMENT_SUFFIXES = (".log", ".index", ".timeindex")
_NOTHING = Stretch(-1, -1, -1, 0, 0, 0, 0, -1, (), 0, 0, -1)
PIECE_BYTES = 8 << 20  # of a download: what one run in flight holds in memory


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020}.log"


class Restored(NamedTuple):
    """
    next_offset   after the segment's last batch
    index_bytes, timeindex_bytes  of the files beside it; None: there is none
    """

    next_offset: int
    index_bytes: int | None
    timeindex_bytes: int | None


def restore(store: ObjectStore, entry: Entry, path: Path, index_interval_bytes: int = INTERVAL_BYTES) -> Restored:
    """Make `path` the live part of `entry`, with Kafka's indexes of exactly these bytes beside it.

    A file that is there was whole when it got its name; it is verified again all the same, and fetched again when
    something has happened to it. Raises CorruptData when the object is not what the manifest says, DiskFull.
    """
    indexes = Indexes(entry.base_offset, index_interval_bytes)
    log_end = _kept(entry, path, indexes)
    if log_end is None:
        indexes = Indexes(entry.base_offset, index_interval_bytes)
        log_end = _fetch(store, entry, path, indexes)
    files = indexes.files()
    for suffix, content in files.items():
        beside = path.with_suffix(suffix)
        if not beside.exists() or beside.read_bytes() != content:
            publish(beside, content)
    milestones.reached("recover.indexed")
    sizes = {suffix: len(content) for suffix, content in files.items()}
    return Restored(log_end, sizes.get(".index"), sizes.get(".timeindex"))


def _kept(entry: Entry, path: Path, indexes: Indexes) -> int | None:
    """The offset after the last batch of what is there already; None when that is nothing, or nothing good."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as file:
            return check_run(file, entry, str(path), indexes)
    except CorruptData:
        path.unlink()
        return None


def _fetch(store: ObjectStore, entry: Entry, path: Path, indexes: Indexes) -> int:
    partial = partial_of(path)
    with disk_errors(path):
        try:
            with partial.open("wb", buffering=0) as file:
                download(store, entry, file)
                os.fsync(file.fileno())
            milestones.reached("recover.fetched")
            with partial.open("rb") as written:
                log_end = check_run(written, entry, entry.key, indexes)
        except (OSError, CorruptData, NotFound, UnsupportedFormat):
            partial.unlink(missing_ok=True)  # a full disk gets its room back at once, and nothing damaged stays
            raise
    with disk_errors(path):
        rename_synced(partial, path)
    milestones.reached("recover.placed")
    return log_end


def download(store: ObjectStore, entry: Entry, file: BinaryIO) -> None:
    """Write the live part, and digest the whole run, the dead part included. Raises NotFound, CorruptData."""
    reader, digest = open_layout(entry.layout).read_offloaded(store, entry), Digest()
    buffer = memoryview(bytearray(min(PIECE_BYTES, entry.run_bytes)))
    for start in range(0, entry.run_bytes, PIECE_BYTES):
        piece = buffer[: min(PIECE_BYTES, entry.run_bytes - start)]
        try:
            reader.read_into(piece, start)
        except NotFound as error:
            raise NotFound(f"the archive lists {entry.key}, and it is gone; `headwater verify` says what else is") from error
        digest.update(piece)
        live = piece[: max(0, entry.live_bytes - start)]
        while live:
            live = live[file.write(live) :]
    if entry.run_digest and digest.text() != entry.run_digest:
        raise CorruptData(entry.key, 0, f"digest {digest.text()}, the manifest says {entry.run_digest}")


@contextmanager
def fetched(store: ObjectStore, entry: Entry) -> Iterator[BinaryIO]:
    """The live part of a run, in a file without a name."""
    with disk_errors(Path("a temporary file")), TemporaryFile() as file:
        download(store, entry, file)
        file.flush()
        yield file


def check_run(file: BinaryIO, entry: Entry, where: str, indexes: Indexes) -> int:
    """The offset after the last batch of `file`; compaction may have left it below the entry's end. `indexes` gets each batch.

    Raises CorruptData unless the file holds exactly the live part of `entry`: its length, every batch's CRC, its offsets
    and epochs, and of an entry that was not cut the digest.
    """
    size = os.fstat(file.fileno()).st_size
    if size != entry.live_bytes:
        raise CorruptData(where, size, f"{size} bytes, the manifest lists {entry.live_bytes}")
    first = last = -1
    records = 0
    epochs: set[int] = set()

    def pass_plain(view: memoryview, at: int, filled: int, position: int, last_offset: int, epoch: int) -> Stretch:
        """Those up to the next batch that an index names: compiled code says of all what the loop below learns of each."""
        nonlocal first, last, records
        point = at + indexes.next_position - position
        if pass_batches is None or point <= at:
            return _NOTHING
        passed = Stretch(*pass_batches(view, at, filled, point, NO_END_OFFSET, last_offset, epoch, True))
        if passed.batches:
            first = HEADER.unpack_from(view, at)[0] if first < 0 else first
            last, records = passed.last_offset, records + passed.records
            epochs.add(passed.epoch)
            indexes.pass_over(position, passed.last_offset, passed.newest_ms, passed.newest_offset)
        return passed

    walk = BatchWalk(file, 0, size, where=where, ahead=None if pass_batches is None else pass_plain)
    for position, (base, _, epoch, _, _, attributes, delta, _, max_timestamp_ms, _, _, _, count) in walk:
        first = base if first < 0 else first
        last = base + delta
        indexes.add(position, last, max_timestamp_ms)
        epochs.add(epoch)
        records += 0 if attributes & CONTROL else count
    if not entry.base_offset <= first <= last <= entry.last_offset:
        raise CorruptData(where, 0, f"offsets {first} to {last}, the manifest says {entry.base_offset} to {entry.last_offset}")
    if records != entry.records or epochs - {-1} != {epoch for epoch, _ in entry.epochs}:
        raise CorruptData(
            where, 0, f"{records} records of leader epochs {sorted(epochs)}, the manifest says {entry.records} of {entry.epochs}"
        )
    digest = walk.digest_to(size)
    if entry.run_digest and not entry.is_cut and digest != entry.run_digest:
        raise CorruptData(where, 0, f"digest {digest}, the manifest says {entry.run_digest}")
    return last + 1
