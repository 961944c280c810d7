"""The uploads of one partition: what was sent under which name since the last commit, so that a retry sends nothing twice."""

from collections.abc import Callable, Sequence
from dataclasses import replace as dataclass_replace
from typing import BinaryIO, NamedTuple

from msgspec.structs import replace

from archival.plan.steps import Upload
from headwater_core import milestones
from headwater_core.errors import HeadwaterError, SourceChanged, UploadStopped
from headwater_core.layouts import NewRun, Offloaded, Offloader
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.paced_file import paced
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.run_scan import RunScan
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

    def __init__(self, partition: PartitionId, store: ObjectStore, offloader: Offloader, new_uid: Callable[[], str]) -> None:
        self._partition, self._store, self._offloader, self._new_uid = partition, store, offloader, new_uid
        self.metadata = {"headwater-cluster": partition.cluster_id, "headwater-partition": f"{partition.topic}:{partition.partition}"}
        self.pace: Callable[[int], object] | None = None  # called before each piece of an upload: see paced_file.PacedFile
        self._begun: Upload | None = None  # whose entry is among the confirmed ones, if it got there
        self._confirmed: list[tuple[Entry, Entry]] = []  # (what was wanted, what the store has)
        self._sent: list[tuple[Entry, Entry]] = []  # (what was wanted, how it was named) by an upload that failed

    def new_entry(self, base_offset: int, last_offset: int, scan: RunScan, fence: int) -> Entry:
        """An entry for what was scanned, under a new key; its object is not there yet."""
        return new_entry(self._partition, base_offset, last_offset, scan, fence, self._new_uid(), self._offloader.name)

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
                return replace(confirmed, cleaned=entry.cleaned, displaced_by=entry.displaced_by)
        return None

    def _as_sent_before(self, upload: NewUpload) -> NewUpload:
        """`upload` under the name that it had in an attempt that failed."""
        entry = upload.entry
        for wanted, named in self._sent:
            if wanted == _nameless(entry):
                return upload._replace(entry=replace(named, cleaned=entry.cleaned, displaced_by=entry.displaced_by))
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
            if isinstance(error, UploadStopped) or not isinstance(error, SourceChanged):
                self._sent = [(_nameless(each.entry), each.entry) for each in uploads]
            raise
        milestones.reached("archive.uploaded")
        confirmed = [with_offloaded(each.entry, done) for each, done in zip(uploads, offloaded, strict=True)]
        self._confirmed += [(_nameless(each.entry), entry) for each, entry in zip(uploads, confirmed, strict=True)]
        return confirmed

    def _paced(self, source: BinaryIO) -> BinaryIO:
        return source if self.pace is None else paced(source, self.pace)

    def begin(self, step: Upload) -> None:
        """The next upload is this step's."""
        self._begun = step

    def resumed(self, step: Upload) -> Upload:
        """`step`, ending where it did when what it led to was not committed: a tail may have grown since, and would be uploaded again."""
        begun = self._begun
        if not (self._confirmed or self._sent) or begun is None or begun.segment.generation.inode != step.segment.generation.inode:
            return step
        same = (begun.first, begun.read_from, begun.refills) == (step.first, step.read_from, step.refills)
        return dataclass_replace(begun, segment=step.segment) if same and begun.end <= step.end else step

    def are_waiting(self, fence: int) -> bool:
        """Has something been sent under `fence` that no commit lists yet?"""
        return any(named.fence == fence for _, named in (*self._confirmed, *self._sent))

    def committed(self) -> None:
        """All that was wanted is listed, or will not be wanted again."""
        self._confirmed.clear()
        self._sent = []


def new_entry(partition: PartitionId, base_offset: int, last_offset: int, scan: RunScan, fence: int, uid: str, layout: str) -> Entry:
    """An entry for what was scanned; its object is not there yet."""
    key = keys.data(partition, base_offset, last_offset, fence, uid, layout)
    return Entry(
        base_offset=base_offset,
        last_offset=last_offset,
        epochs=scan.epochs,
        first_timestamp_ms=scan.first_timestamp_ms,
        last_timestamp_ms=scan.last_timestamp_ms,
        records=scan.records,
        uid=uid,
        fence=fence,
        key=key,
        size_bytes=scan.size_bytes,
        live_bytes=scan.size_bytes,
        digest=scan.digest,
        index_key=keys.index(key),
        layout=layout,
        held=(base_offset, last_offset) if keys.parse_data(key) is None else None,
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
        context=done.context,
    )


def _nameless(entry: Entry) -> Entry:
    """What an entry says of its bytes, whatever they are called."""
    return replace(entry, uid="", key="", index_key="", cleaned=False, displaced_by=None)
