"""One archived run becomes one segment file, verified as it arrives, and Kafka's indexes beside it."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple

from headwater_core import milestones
from headwater_core.errors import CorruptData, NotFound, TransientError, UnsupportedFormat
from headwater_core.files import disk_errors, partial_of, rename_synced
from headwater_core.layouts import open_layout
from headwater_core.layouts.offloader import RunReader
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.store import ObjectStore
from headwater_core.page_cache import new_pages, write_direct
from manifests.entry import Entry
from recovery.indexes import INTERVAL_BYTES, Indexes
from recovery.run_check import RunCheck, check_run
from recovery.target_files import publish

SEGMENT_SUFFIXES = (".log", ".index", ".timeindex")
PIECE_BYTES = 1 << 20  # of a download: what one run in flight holds in memory
REQUEST_BYTES = 64 << 20  # of one ranged GET
ATTEMPTS = 3  # at the same piece of a run, to go on with a download that broke off


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
    except (CorruptData, UnsupportedFormat):
        path.unlink()
        return None


def _fetch(store: ObjectStore, entry: Entry, path: Path, indexes: Indexes) -> int:
    partial, check = partial_of(path), RunCheck(entry, indexes)
    with disk_errors(path):
        try:
            with partial.open("wb", buffering=0) as file:

                def write(live: memoryview) -> None:
                    check.update(live)
                    write_direct(file, live)

                download(store, entry, write)
                os.fsync(file.fileno())
            milestones.reached("recover.fetched")
            log_end = check.finish()
            if log_end is None:
                with partial.open("rb") as written:
                    log_end = check_run(written, entry, entry.key, indexes)
        except (OSError, CorruptData, NotFound, UnsupportedFormat):
            partial.unlink(missing_ok=True)  # a full disk gets its room back at once, and nothing damaged stays
            raise
    with disk_errors(path):
        rename_synced(partial, path)
    milestones.reached("recover.placed")
    return log_end


def download(store: ObjectStore, entry: Entry, arrived: Callable[[memoryview], object]) -> None:
    """Give `arrived` the live part, piece by piece, and digest the whole run, the dead part included. A piece is valid until the next.

    Raises NotFound, CorruptData, TransientError when the store breaks off ATTEMPTS times at the same piece, and what `arrived` raises.
    """
    digest, start = Digest(), 0
    with closing(_pieces(open_layout(entry.layout).read_offloaded(store, entry), entry)) as pieces:
        for piece in pieces:
            digest.update(piece)
            if live := piece[: max(0, entry.live_bytes - start)]:
                arrived(live)
            start += len(piece)
    if entry.run_digest and digest.text() != entry.run_digest:
        raise CorruptData(entry.key, 0, f"digest {digest.text()}, the manifest says {entry.run_digest}")


def _pieces(reader: RunReader, entry: Entry) -> Generator[memoryview, None, None]:
    """The run, in one buffer again and again."""
    buffer = new_pages(min(PIECE_BYTES, entry.run_bytes))
    start = failures = 0
    while start < entry.run_bytes:
        end = min(start + REQUEST_BYTES, entry.run_bytes)
        pieces = [buffer[: min(PIECE_BYTES, end - at)] for at in range(start, end, PIECE_BYTES)]
        try:
            with closing(reader.stream_into(pieces, start)) as filled:
                for piece, _ in zip(pieces, filled, strict=True):
                    yield piece
                    start, failures = start + len(piece), 0
        except NotFound as error:
            raise NotFound(f"the archive lists {entry.key}, and it is gone; `headwater verify` says what else is") from error
        except TransientError:
            failures += 1
            if failures == ATTEMPTS:
                raise


@contextmanager
def fetched(store: ObjectStore, entry: Entry) -> Iterator[BinaryIO]:
    """The live part of a run, in a file without a name."""
    with disk_errors(Path("a temporary file")), TemporaryFile() as file:
        download(store, entry, file.write)
        file.flush()
        yield file
