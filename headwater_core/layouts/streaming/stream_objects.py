"""The objects around a stream's data: what is said of it in its user metadata, its index, and its run's metadata."""

import io
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from headwater_core import VERSION as SOFTWARE_VERSION
from headwater_core.layouts.offloader import Offloaded
from headwater_core.layouts.segment_metadata import Point, RunFacts, encode_segment_metadata, shown_points
from headwater_core.layouts.streaming.stream_format import (
    PULSAR_VERSION,
    PULSAR_VERSION_NAME,
    VERSION,
    LedgerInfo,
    SegmentContext,
    StreamBlock,
    encode_stream_index,
)
from headwater_core.layouts.streaming.stream_names import FENCE_NAME, SEGMENT_NAME, VERSION_NAME, encode_segment_name, index_key, meta_key
from headwater_core.objectstore.confirmed_put import put_all_confirmed
from headwater_core.objectstore.digest import Digest, digest_of
from headwater_core.objectstore.store import METADATA_BYTES_MAX, NewObject, ObjectForm, ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.run_scan import RunScan
from headwater_core.segments.runindex import encode_index
from headwater_core.segments.transactions import OpenTransaction

PART_BYTES = 5 << 20  # of each part but the last, and more by one batch: what S3 wants at least
PARTS_MAX = 9_900  # a multipart upload has at most 10,000


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStream:
    """What is to be written.

    key              of the data object; its last component is `uuid`
    base_offset      of the run, as the manifest will list it; None: that of the first batch
    open_before      transactions open before the first batch
    assigned_ms      when the segment was assigned; 0: not said
    driver_metadata  for people and Pulsar, in the index object
    extra_metadata   for people who inspect the store: user metadata of the data object
    """

    partition: PartitionId
    key: str
    uuid: UUID
    fence: int | None
    base_offset: int | None = None
    open_before: tuple[OpenTransaction, ...] = ()
    assigned_ms: int = 0
    driver_metadata: Mapping[str, str] = field(default_factory=dict)
    extra_metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def data_metadata(self) -> dict[str, str]:
        """User metadata of the data object."""
        return {**self.extra_metadata, **self.own_metadata}

    @property
    def own_metadata(self) -> dict[str, str]:
        """User metadata of each object."""
        metadata = {
            VERSION_NAME: VERSION,
            "headwater-partition": f"{self.partition.topic}:{self.partition.partition}",
            "headwater-software": f"headwater {SOFTWARE_VERSION}",
            PULSAR_VERSION_NAME: PULSAR_VERSION,
        }
        return metadata if self.fence is None else {**metadata, FENCE_NAME: str(self.fence)}


class LedgerPart(NamedTuple):
    """What is said of a ledger, and its last entry in the object."""

    info: LedgerInfo
    end_entry_id: int


class StreamContent(NamedTuple):
    """What a data object holds.

    digest                of all its bytes
    positions, entry_ids  of each point of the run's index
    last_offset           of the run, as the manifest will list it
    offloaded_ms          0: not said
    """

    digest: Digest
    blocks: Sequence[StreamBlock]
    positions: "array[int]"
    entry_ids: "array[int]"
    ledgers: Sequence[LedgerPart]
    last_offset: int
    offloaded_ms: int = 0


def put_index(store: ObjectStore, new: NewStream, content: StreamContent, scan: RunScan) -> Offloaded:
    """Create what makes the data object a segment, index last; what a manifest entry lists of all. Raises what put_all_confirmed does."""
    positions, digest = content.positions, content.digest
    offsets = scan.index.points.offsets
    base_offset = scan.base_offset if new.base_offset is None else new.base_offset
    points = [Point(offsets[at], content.entry_ids[at], positions[at]) for at in shown_points(positions, digest.size_bytes)]
    facts = RunFacts(new.partition, base_offset, content.last_offset, scan.index)
    segment = encode_segment_metadata(facts, points, positions, content.entry_ids)
    contexts = [
        SegmentContext(new.uuid, each.end_entry_id, new.assigned_ms, content.offloaded_ms, "headwater", new.driver_metadata)
        for each in content.ledgers
    ]
    index = encode_stream_index([each.info for each in content.ledgers], contexts, content.blocks, digest.size_bytes)
    metadata = {**new.own_metadata, SEGMENT_NAME: encode_segment_name(segment)}
    objects: list[NewObject] = []
    context = {"version": VERSION, "index_bytes": str(len(index)), "index_digest": digest_of(index)}
    context["segment_bytes"], context["segment_digest"] = str(len(segment)), digest_of(segment)
    fits = sum(len(name) + len(value) for name, value in metadata.items()) <= METADATA_BYTES_MAX
    if not fits:
        del metadata[SEGMENT_NAME]
    if not fits or not store.keeps_metadata:
        objects.append(NewObject(meta_key(new.key), io.BytesIO(segment), len(segment), ObjectForm(new.own_metadata)))
        context["segment_in"] = "meta"
    objects.append(NewObject(index_key(new.key), io.BytesIO(index), len(index), ObjectForm(metadata)))
    digests = [context["segment_digest"], context["index_digest"]][-len(objects) :]
    put_all_confirmed(store, objects, digests)
    run_index = encode_index(scan.index)
    return Offloaded(
        size_bytes=digest.size_bytes,
        digest=digest.text(),
        run_bytes=scan.size_bytes,
        run_digest=scan.digest,
        index_bytes=len(run_index),
        index_digest=digest_of(run_index),
        context=context,
    )
