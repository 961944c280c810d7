"""Objects of streaming offload, read by PIP-76's page alone."""

import struct
from collections.abc import Iterator

from archival.plan.policy import Policy, StreamLimits
from headwater_core.objectstore.store import ObjectStore
from manifests.entry import Entry
from manifests.head import Head
from tests.archival.builders import batches_of

AGE_MS = 5_000
STREAM = Policy(stream=StreamLimits(1 << 20, AGE_MS))
FLUSH = Policy(stream=StreamLimits(1 << 20, AGE_MS, completes=True))


def live_bytes(store: ObjectStore, head: Head) -> bytes:
    """Of the entries, by PIP-76's page alone: blocks of a header of 128 bytes, then each entry behind its length and its id."""
    return b"".join(b"".join(_entries_of(store, each) if each.layout == "streaming" else batches_of(store, each)) for each in head.entries)


def _entries_of(store: ObjectStore, entry: Entry) -> Iterator[bytes]:
    raw, at, block_end = store.get(entry.key)[0], 0, 0
    while at < len(raw):
        if at == block_end:
            magic, _, block_bytes = struct.unpack_from(">IQQ", raw, at)
            assert magic == 0x26A66D32
            at, block_end = at + 128, at + block_bytes
        (length,) = struct.unpack_from(">I", raw, at)
        yield raw[at + 12 : at + 12 + length]
        at += 12 + length
