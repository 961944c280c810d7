"""What a listing alone shows of the segments below chunks/: their states, and that what a head lists of one is found without the head."""

from collections import Counter, defaultdict

from headwater_core.layouts.chunks import ChunkSegment, SegmentPlace
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import TopicPartition
from manifests import chunk_keys
from manifests.entry import Entry
from manifests.head import Head


class Segments:
    """Of one partition's name, in a store without faults.

    states  how often a segment was in each
    owners  how many writers' segments were there at the same time, at most
    claimed  states in which, at the last look, a segment of another writer was than the one that owns the partition
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.states = Counter[str]()
        self.owners = 0
        self.claimed = set[str]()

    def look(self, of: TopicPartition, head: Head) -> str:
        """What is wrong; "" when nothing is."""
        listed = _listed(head)
        writers = {name.place: name.node for _, name in chunk_keys.stored_chunks(self._store, of)}
        there = writers.keys()
        self.owners = max(self.owners, len({place.queue for place in there}))
        self.claimed = set()
        for place in sorted(there | listed.keys(), key=lambda each: (each.queue, each.base, each.variant.value)):
            is_full = any(each.queue == place.queue and each.base > place.base for each in there)  # as RocketMQ knows it
            segment = ChunkSegment.open(self._store, place, is_full=is_full)
            self.states[segment.found.state.value] += 1
            if writers.get(place, head.writer) != head.writer:
                self.claimed.add(segment.found.state.value)
            at = 0  # up to where all is listed from the beginning on: what the archive let go of may be gone
            while (entry := listed[place].get(at)) is not None:
                if segment.end < at + entry.run_bytes:
                    return f"{entry.key} is listed, and {place.prefix} ends at {segment.end} for who has only a listing"
                if digest_of(segment.read0(at, entry.run_bytes)) != entry.digest:
                    return f"{entry.key} is listed, and {place.prefix} has other bytes for who has only a listing"
                at += entry.run_bytes
        return ""


def _listed(head: Head) -> dict[SegmentPlace, dict[int, Entry]]:
    """Entries by the position of their run in its segment."""
    found: dict[SegmentPlace, dict[int, Entry]] = defaultdict(dict)
    for entry in (*head.entries, *head.superseded):
        if not entry.gap and (name := chunk_keys.parse(entry.key)) is not None:
            found[name.place][name.position or 0] = entry
    return found
