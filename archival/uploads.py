"""The uploads of one partition: what was sent under which name since the last commit, so that a retry sends nothing twice."""

from collections.abc import Callable
from dataclasses import replace as dataclass_replace
from typing import BinaryIO

from msgspec.structs import replace

from archival.steps import Upload
from headwater_core import milestones
from headwater_core.errors import HeadwaterError, SourceChanged, UploadStopped
from headwater_core.layouts import Offloader
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.paced_file import PacedFile
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.run_scan import RunScan
from headwater_core.segments.runindex import encode_index
from manifests import keys
from manifests.entry import Entry


class Uploads:
    """Lost with the process: what was uploaded and never listed is garbage collection's then."""

    def __init__(self, partition: PartitionId, store: ObjectStore, offloader: Offloader, new_uid: Callable[[], str]) -> None:
        self._partition, self._store, self._offloader, self._new_uid = partition, store, offloader, new_uid
        self.pace: Callable[[int], object] | None = None  # called before each piece of an upload: see PacedFile
        self._begun: Upload | None = None  # whose entry is among the confirmed ones, if it got there
        self._confirmed: list[tuple[Entry, Entry]] = []  # (what was wanted, what the store has)
        self._sent: tuple[Entry, Entry] | None = None  # (what was wanted, how it was named) by an upload that failed

    def new_entry(self, base_offset: int, last_offset: int, scan: RunScan, fence: int) -> Entry:
        """An entry for what was scanned, under a new key; its object is not there yet."""
        uid = self._new_uid()
        key = keys.data(self._partition, base_offset, last_offset, fence, uid)
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
            layout=self._offloader.name,
            open_from=scan.open_from,
            aborted=len(scan.aborted),
            aborted_from=scan.aborted_from,
            max_producer_id=scan.max_producer_id,
        )

    def upload(self, entry: Entry, source: BinaryIO, scan: RunScan) -> Entry:
        """Send the bytes of `source` that were scanned; the entry that comes back names only what the store has confirmed.

        What was uploaded for a commit that did not come about is named again, when the very same entry is wanted under the same
        fence: a bucket that refuses heads must not fill with copies. An upload that was cut short is tried again under its own
        name, where what has arrived is found and compared; unless other bytes may have been sent than were scanned. One that was
        stopped has sent none that count.

        Raises what Offloader.offload raises, and what `pace` does.
        """
        wanted = _nameless(entry)
        for made, confirmed in self._confirmed:
            if made == wanted and confirmed.digest == scan.digest and confirmed.index_digest == digest_of(encode_index(scan.index)):
                return replace(confirmed, cleaned=entry.cleaned, displaced_by=entry.displaced_by)
        if self._sent and self._sent[0] == wanted:
            entry = replace(self._sent[1], cleaned=entry.cleaned, displaced_by=entry.displaced_by)
        self._sent = None
        if self.pace is not None:
            source = PacedFile(source, self.pace)
        try:
            offloaded = self._offloader.offload(self._store, entry.key, entry.index_key, source, scan)
        except HeadwaterError as error:
            if isinstance(error, UploadStopped) or not isinstance(error, SourceChanged):
                self._sent = wanted, entry
            raise
        milestones.reached("archive.uploaded")
        confirmed = replace(
            entry,
            size_bytes=offloaded.size_bytes,
            live_bytes=offloaded.size_bytes,
            digest=offloaded.digest,
            index_bytes=offloaded.index_bytes,
            index_digest=offloaded.index_digest,
            context=offloaded.context,
        )
        self._confirmed.append((wanted, confirmed))
        return confirmed

    def begin(self, step: Upload) -> None:
        """The next upload is this step's."""
        self._begun = step

    def resumed(self, step: Upload) -> Upload:
        """`step`, ending where it did when what it led to was not committed: a tail may have grown since, and would be uploaded again."""
        begun = self._begun
        if not (self._confirmed or self._sent) or begun is None or begun.segment.generation.inode != step.segment.generation.inode:
            return step
        same = dataclass_replace(begun, segment=step.segment, end=step.end, cover_end=step.cover_end) == step
        return dataclass_replace(begun, segment=step.segment) if same and begun.end <= step.end else step

    @property
    def are_waiting(self) -> bool:
        """Has something been sent that no commit lists yet?"""
        return bool(self._confirmed or self._sent)

    def committed(self) -> None:
        """All that was wanted is listed, or will not be wanted again."""
        self._confirmed.clear()
        self._sent = None


def _nameless(entry: Entry) -> Entry:
    """What an entry says of its bytes, whatever they are called."""
    return replace(entry, uid="", key="", index_key="", cleaned=False, displaced_by=None)
