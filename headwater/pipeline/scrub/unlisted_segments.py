"""Segments below chunks/ that no head lists, since there is none: what a listing alone shows of them, so that somebody who has lost the
manifests knows what of the data is left. Nothing is written."""

from collections.abc import Iterator, Set
from typing import NamedTuple

from headwater.pipeline.scrub.findings import Finding, Kind
from headwater_core.errors import HeadwaterError
from headwater_core.layouts.chunks import SegmentMap, SegmentPlace, Variant, open_own
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import TopicPartition
from manifests.chunk_keys import ChunkName

SEGMENTS_MAX = 1000  # that are opened, by a handful of requests each


class UnlistedSegment(NamedTuple):
    """is_full: its writer, or a later one, has begun another one."""

    of: TopicPartition
    place: SegmentPlace
    is_full: bool


class UnlistedSegments:
    """Gathers them out of a listing.

    known  the partitions that have a head, of any incarnation
    only   the partition's number to which it is restricted; None: all
    more   how many segments there are beyond those that are opened
    """

    def __init__(self, known: Set[TopicPartition], only: int | None) -> None:
        self._known, self._only = known, only
        self._places: dict[SegmentPlace, tuple[TopicPartition, tuple[int, int]]] = {}  # with fence and base
        self._newest: dict[TopicPartition, tuple[int, int]] = {}
        self._last: SegmentPlace | None = None
        self.more = 0

    def add(self, name: ChunkName) -> None:
        """What the key of an object says, in the order of keys."""
        of, order = TopicPartition(name.topic, name.partition), (name.fence, name.place.base)
        if of in self._known or self._only not in (None, of.partition):
            return
        self._newest[of] = max(self._newest.get(of, order), order)
        if name.place in self._places:
            return
        if len(self._places) < SEGMENTS_MAX:
            self._places[name.place] = of, order
        elif name.place != self._last:
            self.more += 1
            self._last = name.place

    def found(self) -> Iterator[UnlistedSegment]:
        for place, (of, order) in self._places.items():
            yield UnlistedSegment(of, place, order < self._newest[of])


def look_at_segment(store: ObjectStore, segment: UnlistedSegment) -> Finding:
    """What its objects show."""
    (topic, partition), place = segment.of, segment.place
    try:
        problem, kind = _said(place, open_own(store, place, is_full=segment.is_full).found), Kind.NO_MANIFEST
    except HeadwaterError as error:
        problem, kind = str(error), Kind.UNEXAMINED
    return Finding(kind=kind, topic=topic, partition=partition, key=place.prefix, problem=problem)


def _said(place: SegmentPlace, found: SegmentMap) -> str:
    form = "fixed" if place.variant is Variant.FIXED else "append"
    words = [f"no manifest: a segment ({form}), {found.state.value}", f"its bytes up to {found.end} are whole"]
    if found.broken:
        words.append(f"{place.segment_key}: {found.broken}")
    if found.damage is not None and found.damage.reason != found.broken:
        words.append(f"{found.damage.key}: {found.damage.reason}")
    if found.beyond:
        words.append(f"{len(found.beyond)} chunks after that are there, from {found.beyond[0]} on")
    return "; ".join(words)
