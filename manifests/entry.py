"""One entry of a manifest: a live or superseded run, or a gap that is known to be one; and how head and pages write it.

An entry is a value: no impossible one can be made, nor decoded. What cannot be seen in it alone (that entries abut, that its key is
its partition's) is checked where a list of them is written, and where it is read.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from headwater_core.epochs import EpochStart
from headwater_core.errors import CorruptData
from headwater_core.objectstore.digest import is_digest
from headwater_core.partition import PartitionId
from manifests import chunk_keys, keys
from manifests.document import prepared

OFFSET_MAX = 2**63 - 2  # so that the next offset is still an int64
OBJECT_BYTES_MAX = 1 << 40
FENCE_MAX = 10**10 - 1  # ten digits in an object's key
EPOCH_MAX = 2**31 - 1
ENTRY_EPOCHS_MAX = 32  # a run ends before its 33rd leader epoch begins, so that an entry stays small

REASON_CHARS_MAX = 200


class EpochOffset(NamedTuple):
    """A record's place in a partition's history (an EpochStart is where an epoch's records begin): an epoch has one leader, so the offset
    is in that one's log, or in none."""

    leader_epoch: int
    offset: int


@prepared
class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """One live or superseded run, or a gap that is known to be one. Both offsets are inclusive.

    epochs        where each leader epoch begins in this entry
    first/last_timestamp_ms  user data only; None when there is none
    size_bytes    of the whole object, as the store has it
    digest        "crc64nvme:<16 hex>" of the whole object, computed by us; "" for adopted objects until verified
    live_bytes    where the run's live part ends, a position in the run: a dead branch may cut it inside
    held_bytes, held_digest  of the whole run, where the object is not the run itself; 0 and "" where it is: see run_bytes, run_digest
    index_key     the object beside it that holds its index; "" where the layout keeps that in the same object
    context       the layout's own words, opaque to all others
    held          what the object held when it was uploaded, where its key does not say it: see held_offsets
    open_from     first offset of the oldest transaction still open after last_offset; None when there is none
    aborted       how many aborted transactions end in this entry
    aborted_from  least first offset of those; None when there are none, or when an older version wrote the entry
    cleaned       it and all that was live before it lay below the cleaner checkpoint whenever one of them was read: together they
                  hold one record of a key; what was never proven is not cleaned
    displaced_by  compaction had removed records from the run when it was read: for later ones, all of them up to here; None when it
                  lacks none, or when an older version wrote the entry
    published_ms  when its records were first listed, by the clock of the agent that did it; what is made of several entries has the latest
                  of them. None when an older version listed one of them
    reason        of a gap: why it was not archived in time, for people; "" when nobody knows
    """

    base_offset: int
    last_offset: int
    gap: bool = False
    epochs: tuple[EpochStart, ...] = ()
    first_timestamp_ms: int | None = msgspec.field(default=None, name="first_timestamp")
    last_timestamp_ms: int | None = msgspec.field(default=None, name="last_timestamp")
    records: int = 0
    uid: str = ""
    fence: int = 0
    key: str = ""
    size_bytes: int = 0
    live_bytes: int = 0
    digest: str = ""
    held_bytes: int = msgspec.field(default=0, name="run_bytes")
    held_digest: str = msgspec.field(default="", name="run_digest")
    index_key: str = ""
    index_bytes: int = 0
    index_digest: str = ""
    layout: str = "segment"
    context: dict[str, str] = {}
    held: tuple[int, int] | None = None
    open_from: int | None = None
    aborted: int = 0
    aborted_from: int | None = None
    cleaned: bool = False
    displaced_by: EpochOffset | None = None
    max_producer_id: int = -1
    published_ms: int | None = msgspec.field(default=None, name="published")
    reason: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for what no run, or no gap, can be."""
        if not 0 <= self.base_offset <= self.last_offset <= OFFSET_MAX:
            raise ValueError(f"offsets out of order: {self.base_offset} to {self.last_offset}")
        if self.gap:
            if any(getattr(self, name) != nothing for name, nothing in _OF_RUNS):
                raise ValueError(f"the gap from {self.base_offset} to {self.last_offset} says more than its offsets")
            if len(self.reason) > REASON_CHARS_MAX:
                raise ValueError(f"a reason of {len(self.reason)} characters")
            return
        if self.reason:
            raise ValueError(f"the run from {self.base_offset} to {self.last_offset} has the reason of a gap")
        if not 0 < self.live_bytes <= self.run_bytes <= OBJECT_BYTES_MAX or not 0 <= self.index_bytes <= OBJECT_BYTES_MAX:
            raise ValueError(f"impossible lengths: {self.live_bytes} of {self.run_bytes}, index {self.index_bytes}")
        if not 0 < self.size_bytes <= OBJECT_BYTES_MAX or (self.held_bytes == 0 and self.held_digest):
            raise ValueError(f"impossible lengths: a run of {self.held_bytes} bytes in an object of {self.size_bytes}")
        if not 0 <= self.fence <= FENCE_MAX or not 0 <= self.records <= OFFSET_MAX or not 0 <= self.aborted <= OFFSET_MAX:
            raise ValueError(f"impossible counts: fence {self.fence}, {self.records} records, {self.aborted} aborted")
        times = self.first_timestamp_ms, self.last_timestamp_ms, self.published_ms
        if not all(-(2**63) <= number < 2**63 for number in times if number is not None):
            raise ValueError(f"impossible timestamps: {times}")
        if not -1 <= self.max_producer_id < 2**63:
            raise ValueError(f"impossible producer id: {self.max_producer_id}")
        if not all(digest == "" or is_digest(digest) for digest in (self.digest, self.index_digest, self.held_digest)):
            raise ValueError(f"no digests: {self.digest[:40]!r}, {self.index_digest[:40]!r}, {self.held_digest[:40]!r}")
        if self.open_from is not None and not 0 <= self.open_from <= self.last_offset:
            raise ValueError(f"open transaction at {self.open_from}")
        if self.aborted_from is not None and not (self.aborted and 0 <= self.aborted_from <= self.last_offset):
            raise ValueError(f"{self.aborted} aborted transactions from {self.aborted_from} on")
        by = self.displaced_by
        if by is not None and not (0 <= by.leader_epoch <= EPOCH_MAX and 0 <= by.offset <= OFFSET_MAX):
            raise ValueError(f"displaced by what is at {by.offset}, in leader epoch {by.leader_epoch}")
        if self.held is not None and not 0 <= self.held[0] <= self.base_offset <= self.last_offset <= self.held[1] <= OFFSET_MAX:
            raise ValueError(f"offsets {self.base_offset} to {self.last_offset} of an object that held {self.held}")
        before, below = -1, self.base_offset - 1
        for epoch, first_offset in self.epochs:
            if not before < epoch <= EPOCH_MAX or not below < first_offset <= self.last_offset:
                raise ValueError(f"epochs out of order: {[tuple(each) for each in self.epochs]}")
            before, below = epoch, first_offset

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def newest_ms(self) -> int | None:
        """The time of its newest record, or when that was published if that is earlier: see newest_time."""
        return newest_time(self.last_timestamp_ms, self.published_ms)

    def is_late(self, time_ms: int) -> bool:
        """Return whether a record of this time is dated later than it was published: such a time does not say when it was written."""
        return self.published_ms is not None and time_ms > self.published_ms

    def retained_from_ms(self, now_ms: int) -> int | None:
        """From when on retention counts its age. A time that is still to come counts as that of its publication; one that has passed
        counts as it is, so that an agent's clock that was behind lets nothing go that is young."""
        last_ms = self.last_timestamp_ms
        return self.newest_ms if last_ms is not None and last_ms > now_ms else last_ms

    @property
    def run_bytes(self) -> int:
        """Length of the whole run, dead part included: what positions and `live_bytes` are counted in."""
        return self.held_bytes or self.size_bytes

    @property
    def run_digest(self) -> str:
        """ "crc64nvme:<16 hex>" of the whole run; "" while it was not verified."""
        return self.held_digest if self.held_bytes else self.digest

    @property
    def held_offsets(self) -> tuple[int, int] | None:
        """The offsets that the object held when it was uploaded, both inclusive; None where nothing says it."""
        name = keys.parse_data(self.key)
        return self.held if name is None else (name.base_offset, name.last_offset)

    @property
    def index_place(self) -> str:
        """The key of the object that holds its index."""
        return self.index_key or self.key

    @cached_property
    def line(self) -> bytes:
        """How head and pages write it: JSON without white space. A commit wants it of each entry in a head, and of most a second time."""
        return msgspec.json.encode(to_listed(self))

    def fields(self) -> dict[str, Any]:
        """Every field under its name in the document, the omitted ones too: plain values, as JSON has them."""
        omitted = {
            field.encode_name: None if field.default is msgspec.NODEFAULT else field.default for field in msgspec.structs.fields(self)
        }
        run = {} if self.gap else {"run_bytes": self.run_bytes, "run_digest": self.run_digest}
        return msgspec.to_builtins(omitted | {"context": {}} | msgspec.to_builtins(self) | run)  # type: ignore[no-any-return]

    @property
    def is_cut(self) -> bool:
        """The object holds more than this entry lists."""
        return self.live_bytes < self.run_bytes

    def __contains__(self, offset: int) -> bool:
        return self.base_offset <= offset <= self.last_offset


def newest_time(last_timestamp_ms: int | None, published_ms: int | None) -> int | None:
    """A record that is dated later than it was published counts as published then: its producer was wrong, or had another unit. Without
    `published_ms` nothing is known to be wrong."""
    if last_timestamp_ms is None or published_ms is None:
        return last_timestamp_ms
    return min(last_timestamp_ms, published_ms)


_OF_RUNS: tuple[tuple[str, Any], ...] = tuple(
    (field.name, {} if field.default is msgspec.NODEFAULT else field.default)  # the context's default is a new dict each time
    for field in msgspec.structs.fields(Entry)
    if field.name not in ("base_offset", "last_offset", "gap", "reason")
)


def check_entry(partition: PartitionId, entry: Entry) -> Entry:
    """`entry` when its keys are the ones we would have written for it; CorruptData otherwise."""
    if entry.layout == chunk_keys.LAYOUT and not _is_chunk_of(partition, entry):
        raise CorruptData(f"manifest entry of {partition} at {entry.base_offset}", 0, f"not a key of this partition: {entry.key[:200]!r}")
    if entry.gap or not keys.names(entry.layout) or _is_named_by_itself(partition, entry):
        return entry
    held = entry.held_offsets
    if (
        held is None
        or not keys.is_uid(entry.uid)
        or entry.key != keys.data(partition, *held, entry.fence, entry.uid, entry.layout)
        or entry.index_key != keys.index(entry.key)
        or not held[0] <= entry.base_offset <= entry.last_offset <= held[1]
    ):
        raise CorruptData(f"manifest entry of {partition} at {entry.base_offset}", 0, f"not a key of this partition: {entry.key[:200]!r}")
    return entry


def _is_named_by_itself(partition: PartitionId, entry: Entry) -> bool:
    """Are its keys those of an object that it lists as a whole? Most entries', and quick to see."""
    if not keys.is_uid(entry.uid) or entry.index_key != keys.index(entry.key) or (entry.held is None) is (entry.layout == "streaming"):
        return False
    return entry.key == keys.data(partition, entry.base_offset, entry.last_offset, entry.fence, entry.uid, entry.layout)


def _is_chunk_of(partition: PartitionId, entry: Entry) -> bool:
    """Whether its key is one of this partition's below chunks/. The cluster may be another one, whose archive was taken over."""
    name, held = chunk_keys.parse(entry.key), entry.held
    return (
        name is not None
        and (name.topic, name.partition, name.fence, name.uid) == (partition.topic, partition.partition, entry.fence, entry.uid)
        and name.key == entry.key
        and entry.index_key == keys.index(entry.key)
        and held is not None
    )


def to_listed(entry: Entry) -> dict[str, Any]:
    """How head and pages write an entry: without what follows from the rest.

    `held` is [base offset, last offset] of the object when the entry lists less of it; a key that those give, with the partition,
    the fence and the uid, is left out, and so is a live byte end that is the object's.
    """
    body: dict[str, Any] = msgspec.to_builtins(entry)
    body.pop("held", None)
    is_chunk = entry.layout == chunk_keys.LAYOUT
    held = entry.held_offsets if (is_chunk or keys.names(entry.layout)) and not entry.gap else None
    if held is not None:
        if not is_chunk:
            del body["key"]
        body.pop("index_key", None)
        if held != (entry.base_offset, entry.last_offset):
            body["held"] = list(held)
    if not entry.is_cut:
        body.pop("live_bytes", None)
    return body


def from_listed(body: Mapping[str, Any], partition: PartitionId) -> Entry:
    """The entry of `partition` that `to_listed` wrote, or format 1, which spells everything out.

    Raises what msgspec and Entry do for what is none: see `manifests.document.WRONG`.
    """
    spelled = dict(body)
    held = spelled.pop("held", None)
    if not spelled.get("gap"):
        spelled.setdefault("live_bytes", spelled.get("run_bytes", 0) or spelled.get("size_bytes", 0))
        layout = spelled.get("layout", "segment")
        if "key" not in spelled and keys.names(layout):
            held = held if held is not None else (spelled["base_offset"], spelled["last_offset"])
            spelled["key"] = keys.data(partition, held[0], held[1], spelled.get("fence", 0), spelled["uid"], layout)
            if keys.parse_data(spelled["key"]) is None:
                spelled["held"] = held
            spelled["index_key"] = keys.index(spelled["key"])
        elif layout == chunk_keys.LAYOUT:
            spelled["held"] = held if held is not None else (spelled["base_offset"], spelled["last_offset"])
            spelled["index_key"] = keys.index(spelled["key"])
    return msgspec.convert(spelled, Entry)
