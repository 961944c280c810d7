"""The uploads of one partition: what was sent under which name since the last commit, so that a retry sends nothing twice."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace as dataclass_replace
from typing import BinaryIO, NamedTuple

from msgspec.structs import replace

from archival.partition.run_names import RunName, RunNames
from archival.plan.steps import Upload
from headwater_core import milestones
from headwater_core.errors import CorruptData, HeadwaterError, NotFound, SourceChanged
from headwater_core.layouts import NewRun, Offloaded, Offloader, open_layout
from headwater_core.layouts.chunks.consolidation import join_confirmed
from headwater_core.objectstore.confirmed_put import put_confirmed
from headwater_core.objectstore.digest import digest_in_store, digest_of
from headwater_core.objectstore.paced_file import paced
from headwater_core.objectstore.store import ObjectRange, ObjectStore, Pace
from headwater_core.partition import PartitionId
from headwater_core.segments.run_scan import RunScan, scan_run
from headwater_core.segments.runindex import encode_index
from manifests import keys
from manifests.entry import Entry


class NewUpload(NamedTuple):
    """An entry whose object is not there yet, and the bytes of `source` that were scanned for it."""

    entry: Entry
    source: BinaryIO
    scan: RunScan


class Uploads:
    """Lost with the process: what was uploaded and never listed is garbage collection's then."""

    def __init__(self, partition: PartitionId, store: ObjectStore, offloader: Offloader, names: RunNames) -> None:
        self._partition, self._store, self._offloader, self._names = partition, store, offloader, names
        self.metadata = {"headwater-cluster": partition.cluster_id, "headwater-partition": f"{partition.topic}:{partition.partition}"}
        self.pace: Callable[[int], object] | None = None  # called before each piece of an upload: see paced_file.PacedFile
        self._begun: Upload | None = None  # whose entry is among the confirmed ones, if it got there
        self._confirmed: list[tuple[Entry, Entry]] = []  # (what was wanted, what the store has)
        self._has_shorter = False  # is a shorter beginning of the begun step's run there already, under the name that it would have?
        self._sent: list[tuple[Entry, Entry]] = []  # (what was wanted, how it was named) by an upload that failed

    def new_entry(self, base_offset: int, last_offset: int, scan: RunScan, fence: int, *, last: Entry | None = None) -> Entry:
        """An entry for what was scanned, under a new key; its object is not there yet.

        last  the live entry before it, which some names follow from; None: it is not to continue that

        Raises PlaceTaken.
        """
        name = self._names.following(last, base_offset, last_offset, scan.size_bytes, fence)
        return named_entry(name, base_offset, last_offset, scan, fence, self._offloader.name)

    def upload(self, entry: Entry, source: BinaryIO, scan: RunScan) -> Entry:
        """`upload_all` for one."""
        return self.upload_all([NewUpload(entry, source, scan)])[0]

    def upload_all(self, uploads: Sequence[NewUpload]) -> list[Entry]:
        """Send what is not there yet; the entries that come back name only what the store has confirmed.

        What was uploaded for a commit that did not come about is named again, when the very same entry is wanted under the same
        fence: a bucket that refuses heads must not fill with copies. An upload that was cut short is tried again under its own
        name, where what has arrived is found and compared; unless other bytes may have been sent than were scanned. One that was
        stopped has sent none that count.

        Raises what Offloader.offload raises, and what `pace` does.
        """
        found = [self._find_confirmed(each) for each in uploads]
        confirmed = iter(self._send([self._as_sent_before(each) for each, known in zip(uploads, found, strict=True) if known is None]))
        return [known or next(confirmed) for known in found]

    def _find_confirmed(self, upload: NewUpload) -> Entry | None:
        entry, _, scan = upload
        for wanted, confirmed in self._confirmed:
            if wanted == _nameless(entry) and (confirmed.run_digest, confirmed.index_digest) == (
                scan.digest,
                digest_of(encode_index(scan.index)),
            ):
                return replace(confirmed, cleaned=entry.cleaned, displaced_by=entry.displaced_by, published_ms=entry.published_ms)
        return None

    def _as_sent_before(self, upload: NewUpload) -> NewUpload:
        """`upload` under the name that it had in an attempt that failed."""
        entry = upload.entry
        for wanted, named in self._sent:
            if wanted == _nameless(entry):
                wanted_now = replace(named, cleaned=entry.cleaned, displaced_by=entry.displaced_by, published_ms=entry.published_ms)
                return upload._replace(entry=wanted_now)
        return upload

    def _send(self, uploads: Sequence[NewUpload]) -> list[Entry]:
        self._sent = []
        if not uploads:
            return []
        runs = [
            NewRun(self._partition, entry.base_offset, entry.last_offset, entry.key, entry.index_key, self._paced(source), scan)
            for entry, source, scan in uploads
        ]
        try:
            offloaded = self._offloader.offload(self._store, runs, self.metadata)
        except HeadwaterError as error:
            if not isinstance(error, SourceChanged):
                self._sent = [(_nameless(each.entry), each.entry) for each in uploads]
            elif not (len(uploads) == 1 and self._ends_where_the_other_does(uploads[0])):
                self._has_shorter = False
                for each in uploads:
                    self._names.spoil(each.entry.key)
            raise
        milestones.reached("archive.uploaded")
        confirmed = [with_offloaded(each.entry, done) for each, done in zip(uploads, offloaded, strict=True)]
        self._confirmed += [(_nameless(each.entry), entry) for each, entry in zip(uploads, confirmed, strict=True)]
        return confirmed

    def _ends_where_the_other_does(self, upload: NewUpload) -> bool:
        """Where the name of a chunk is taken by a shorter beginning of the same run, the next attempt ends there, and finds itself."""
        scan, begun = upload.scan, self._begun
        if begun is None or upload.entry.base_offset != begun.first or not self._names.may_be_taken_over:
            return False  # a run of what follows a gap, say: that the step ends elsewhere does not free its name
        try:
            there = self._store.stat(upload.entry.key)
            if there.size_bytes >= scan.size_bytes:
                return False
            end = scan.start_position + there.size_bytes
            shorter = scan_run(upload.source, start=scan.start_position, end=end, where=upload.entry.key)
            digest = there.digest or digest_in_store(self._store, upload.entry.key, there.size_bytes)
        except HeadwaterError:
            return False
        if shorter is None or (shorter.size_bytes, shorter.digest) != (there.size_bytes, digest) or shorter.next_offset <= begun.read_from:
            return False
        self._has_shorter, self._begun = True, dataclass_replace(begun, end=shorter.next_offset, cover_end=None)
        return True

    def join(self, key: str, chunks: Sequence[Entry], digest: str, index: bytes, names: RunNames, pace: Pace) -> None:
        """Create the object that the chunks of a segment become, and its index; both are confirmed when this returns. Where something else
        is there, `names` knows it then, and SourceChanged is raised. pace: see ObjectStore.join"""
        objects = [each for entry in chunks for each in open_layout(entry.layout).data_objects(entry)]
        try:
            ranges = [ObjectRange(each, 0, size_bytes) for each, size_bytes in objects]
            join_confirmed(self._store, key, ranges, digest, self.metadata, pace)
            put_confirmed(self._store, keys.index(key), io.BytesIO(index), len(index), digest_of(index))
        except SourceChanged:
            names.spoil(key)
            raise
        except NotFound as error:
            raise CorruptData(chunks[0].key, 0, f"a chunk of its segment is not there: {error}") from error

    def _paced(self, source: BinaryIO) -> BinaryIO:
        return source if self.pace is None else paced(source, self.pace)

    def begin(self, step: Upload) -> None:
        """The next upload is this step's."""
        self._begun = step

    def resumed(self, step: Upload) -> Upload:
        """`step`, ending where it did when what it led to was not committed: a tail may have grown since, and would be uploaded again."""
        begun = self._begun
        if (
            not (self._confirmed or self._sent or self._has_shorter)
            or begun is None
            or begun.segment.generation.inode != step.segment.generation.inode
        ):
            return step
        same = (begun.first, begun.read_from, begun.refills) == (step.first, step.read_from, step.refills)
        return dataclass_replace(begun, segment=step.segment) if same and begun.end <= step.end else step

    def are_waiting(self, fence: int) -> bool:
        """Has something been sent under `fence` that no commit lists yet?"""
        return any(named.fence == fence for _, named in (*self._confirmed, *self._sent))

    def committed(self) -> None:
        """All that was wanted is listed, or will not be wanted again."""
        self._confirmed.clear()
        self._sent, self._has_shorter = [], False


def new_entry(partition: PartitionId, base_offset: int, last_offset: int, scan: RunScan, fence: int, uid: str, layout: str) -> Entry:
    """An entry for what was scanned, in a layout whose names follow from that; its object is not there yet."""
    name = RunName(keys.data(partition, base_offset, last_offset, fence, uid, layout), uid, {})
    return named_entry(name, base_offset, last_offset, scan, fence, layout)


def named_entry(name: RunName, base_offset: int, last_offset: int, scan: RunScan, fence: int, layout: str) -> Entry:
    """An entry for what was scanned, under this name; its object is not there yet."""
    return Entry(
        base_offset=base_offset,
        last_offset=last_offset,
        epochs=scan.epochs,
        first_timestamp_ms=scan.first_timestamp_ms,
        last_timestamp_ms=scan.last_timestamp_ms,
        records=scan.records,
        uid=name.uid,
        fence=fence,
        key=name.key,
        size_bytes=scan.size_bytes,
        live_bytes=scan.size_bytes,
        digest=scan.digest,
        index_key=keys.index(name.key),
        layout=layout,
        context=name.context,
        held=(base_offset, last_offset) if keys.parse_data(name.key) is None else None,
        open_from=scan.open_from,
        aborted=len(scan.aborted),
        aborted_from=scan.aborted_from,
        max_producer_id=scan.max_producer_id,
    )


def with_offloaded(entry: Entry, done: Offloaded) -> Entry:
    """`entry` with what its layout has left in the store."""
    return replace(
        entry,
        size_bytes=done.size_bytes,
        live_bytes=done.run_bytes,
        digest=done.digest,
        held_bytes=done.run_bytes if done.is_wrapped else 0,
        held_digest=done.run_digest if done.is_wrapped else "",
        index_bytes=done.index_bytes,
        index_digest=done.index_digest,
        context={**entry.context, **done.context},
    )


def _nameless(entry: Entry) -> Entry:
    """What an entry says of its bytes, whatever they are called."""
    return replace(entry, uid="", key="", index_key="", context={}, cleaned=False, displaced_by=None, published_ms=None)
