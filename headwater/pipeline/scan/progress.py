"""How far a stream has read, and how far it may go next. Pure: heads in, offsets out.

A checkpoint outlives queries, versions and sometimes the log that it is about. So it says what was read: the incarnation of each
topic, and per partition the leader epoch of the last offset. If the archive has another one now, the sink holds other records
than the log, and the stream ends with an error (docs/spark.md, "Streams").
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headwater.pipeline.scan.query import Advice
from headwater_core.errors import CorruptData, DataLoss, Superseded, UnsupportedFormat, UsageError
from headwater_core.partition import TopicPartition, check_topic_id
from manifests.entry import OFFSET_MAX, Entry
from manifests.head import Head

VERSION = 1


@dataclass(frozen=True, slots=True)
class Reached:
    """All offsets below `next_offset` have been read. `epoch`: leader epoch of the offset before it, None when unknown."""

    next_offset: int
    epoch: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.next_offset <= OFFSET_MAX + 1:
            raise ValueError(f"not an offset: {self.next_offset}")


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """Which topic a name meant."""

    cluster_id: str
    topic_id: str

    def __str__(self) -> str:
        return f"topic {self.topic_id} of cluster {self.cluster_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A position in the stream, as Spark's checkpoint keeps it once per micro-batch."""

    incarnations: Mapping[str, TopicIdentity]
    reached: Mapping[TopicPartition, Reached]

    def encode(self) -> dict[str, Any]:
        """As nested dicts of text and whole numbers, always in the same order: Spark compares offsets as JSON text."""
        topics: dict[str, Any] = {
            topic: {"cluster": each.cluster_id, "id": each.topic_id, "partitions": {}} for topic, each in sorted(self.incarnations.items())
        }
        for partition, reached in sorted(self.reached.items()):
            place = {"next": reached.next_offset} if reached.epoch is None else {"next": reached.next_offset, "epoch": reached.epoch}
            topics[partition.topic]["partitions"][str(partition.partition)] = place
        return {"version": VERSION, "topics": topics}


def decode_progress(document: Mapping[str, Any]) -> Progress:
    """What `Progress.encode` wrote. Raises UnsupportedFormat for a newer version's, CorruptData for anything else."""
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        raise UnsupportedFormat(f"the checkpoint's offsets have version {version}, this headwater reads {VERSION}: upgrade it")
    incarnations: dict[str, TopicIdentity] = {}
    reached: dict[TopicPartition, Reached] = {}
    try:
        if version != VERSION:
            raise ValueError(f"version {version}")
        for topic, each in document["topics"].items():
            incarnations[topic] = TopicIdentity(str(each["cluster"]), check_topic_id(each["id"]))
            for number, place in each["partitions"].items():
                epoch = place.get("epoch")
                reached[TopicPartition(topic, int(number))] = Reached(int(place["next"]), None if epoch is None else int(epoch))
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise CorruptData("offsets of the checkpoint", 0, f"not the progress of a stream: {error!r}") from None
    return Progress(incarnations=incarnations, reached=reached)


def check_progress(
    progress: Progress,
    heads: Mapping[TopicPartition, Head],
    *,
    allow_loss: bool,
    advice: Advice = Advice(),  # noqa: B008  # a value
    is_selected: Callable[[TopicPartition], bool] = lambda place: True,
    is_former: Callable[[str], bool] = lambda cluster_id: False,
) -> None:
    """Check that the archive still begins with what was read.

    Raises Superseded when a name means another topic now, when the archive ends below `next_offset`, and when the offset before
    that has a newer leader epoch now; an unknown epoch is not compared. Raises DataLoss, unless `allow_loss`, for a partition that
    is gone or no longer selected, and for offsets that were not read and are below the archive's start.

    is_selected  whether the query still selects a partition
    is_former    whether the archive was taken over from that cluster: then the same topic id is the same log
    """
    for topic, now in _incarnations(heads).items():
        read = progress.incarnations.get(topic, now)
        if read == now or (read.topic_id == now.topic_id and is_former(read.cluster_id)):
            continue
        why = (
            "it was deleted and created again"
            if read.topic_id != now.topic_id
            else "this is not that cluster's archive, and did not go on with it"
        )
        raise Superseded(f"{topic}: {advice.reader} {read}, the name means {now} now: {why}. {advice.start_over}")
    for partition, reached in progress.reached.items():
        head = heads.get(partition)
        if head is not None:
            _check_branch(partition, reached, head, advice)
        if not allow_loss and (head is None or reached.next_offset < head.start_offset):
            has = f"the archive begins at {head.start_offset} now" if head else "the archive no longer has it"
            if head is None and not is_selected(partition):
                has = "it is no longer selected"
            raise DataLoss(f"{partition}: {advice.reader} up to offset {reached.next_offset}, {has} ({advice.skip_loss})")


def _check_branch(partition: TopicPartition, reached: Reached, head: Head, advice: Advice) -> None:
    if reached.next_offset > head.next_offset:
        raise Superseded(
            f"{partition}: {advice.reader} up to offset {reached.next_offset}, the archive ends at {head.next_offset} now: an unclean"
            f" election has removed records that were read. {advice.start_over}"
        )
    now = head.leader_epoch_at(reached.next_offset - 1)
    if reached.epoch is not None and now is not None and now > reached.epoch:  # compaction makes it older, never newer
        raise Superseded(
            f"{partition}: {advice.reader} offset {reached.next_offset - 1} of leader epoch {reached.epoch}, the archive has one of"
            f" epoch {now} there now: an unclean election has replaced records that were read. {advice.start_over}"
        )


def place_at(heads: Mapping[TopicPartition, Head], offsets: Mapping[TopicPartition, int]) -> Progress:
    """The progress when all records below `offsets` have been read."""
    reached = {partition: Reached(offset, heads[partition].leader_epoch_at(offset - 1)) for partition, offset in offsets.items()}
    return Progress(incarnations=_incarnations({partition: heads[partition] for partition in reached}), reached=reached)


def begin_of(progress: Progress, head: Head) -> int:
    """The offset from which to read one partition: a new one from its start."""
    reached = progress.reached.get(head.partition_id.topic_partition)
    return max(head.start_offset, reached.next_offset if reached else 0)


def advance(
    progress: Progress,
    heads: Mapping[TopicPartition, Head],
    ends: Mapping[TopicPartition, int],
    *,
    max_offsets: int | None = None,
    max_bytes: int | None = None,
) -> Progress:
    """The progress after the next micro-batch; equal to `progress` when there is nothing to read.

    ends  where the readable part of each partition ends; other partitions stay where they are
    max_offsets, max_bytes  as for `admit`
    """
    begins = {partition: begin_of(progress, heads[partition]) for partition in ends}
    moved = {
        partition: offset
        for partition, offset in admit(begins, ends, heads, max_offsets=max_offsets, max_bytes=max_bytes).items()
        if partition not in progress.reached or progress.reached[partition].next_offset != offset
    }
    step = place_at(heads, moved)
    return Progress(incarnations={**progress.incarnations, **step.incarnations}, reached={**progress.reached, **step.reached})


def _incarnations(heads: Mapping[TopicPartition, Head]) -> dict[str, TopicIdentity]:
    return {head.topic: TopicIdentity(head.cluster_id, head.topic_id) for head in heads.values()}


def admit(
    start: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    heads: Mapping[TopicPartition, Head],
    *,
    max_offsets: int | None = None,
    max_bytes: int | None = None,
) -> dict[TopicPartition, int]:
    """The end of a micro-batch that begins at `start`, per partition: `ends`, or less because of a limit.

    A limit is divided evenly, and what a partition does not need goes to the others. With the smallest limits, one offset of the
    longest backlog is admitted, so that the stream advances.

    max_bytes  of the archive's objects, by their heads: an entry's bytes are taken to be spread evenly over its offsets
    """
    wanted = {partition: max(offset, ends.get(partition, offset)) for partition, offset in start.items()}
    admitted = wanted
    if max_bytes is not None:
        admitted = _limit(start, admitted, max_bytes, lambda partition, first, end: _Bytes(heads[partition], first, end))
    if max_offsets is not None:
        admitted = _limit(start, admitted, max_offsets, lambda _, first, end: _Offsets(first, end))
    if admitted == start != wanted:
        longest = max(wanted, key=lambda partition: (wanted[partition] - start[partition], partition))
        admitted = {**admitted, longest: start[longest] + 1}
    return admitted


class Admitted(NamedTuple):
    """The end of the offsets that a share of a limit admits, and what of the share they take."""

    end: int
    took: int


@dataclass(frozen=True, slots=True)
class _Offsets:
    """Offsets [first, end), measured in offsets."""

    first: int
    end: int

    @property
    def total(self) -> int:
        return self.end - self.first

    def admit(self, share: int) -> Admitted:
        took = min(share, self.total)
        return Admitted(self.first + took, took)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Offsets [first, end) of a head, measured in bytes of its objects."""

    head: Head
    first: int
    end: int

    @property
    def total(self) -> int:
        return sum(_bytes_of(entry, first, end) for entry, first, end in self._pieces())

    def admit(self, share: int) -> Admitted:
        took = 0
        for entry, first, end in self._pieces():
            size_bytes = _bytes_of(entry, first, end)
            if took + size_bytes > share:
                end = first + (share - took) * (end - first) // size_bytes
                return Admitted(end, took + _bytes_of(entry, first, end))
            took += size_bytes
        return Admitted(self.end, took)

    def _pieces(self) -> list[tuple[Entry, int, int]]:
        return [
            (entry, max(entry.base_offset, self.first), min(entry.next_offset, self.end))
            for entry in self.head.entries.within(self.first, self.end)
        ]


def _bytes_of(entry: Entry, first: int, end: int) -> int:
    """Rounded up, so that nothing but a gap is free."""
    return -(-entry.live_bytes * (end - first) // (entry.next_offset - entry.base_offset))


def _limit(
    start: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    limit: int,
    measure: Callable[[TopicPartition, int, int], _Offsets | _Bytes],
) -> dict[TopicPartition, int]:
    """Divide `limit`, the shortest backlog first: what it leaves of its share is for the longer ones."""
    backlogs = {partition: measure(partition, offset, ends[partition]) for partition, offset in start.items() if offset < ends[partition]}
    admitted = dict(start)
    remaining = limit
    ordered = sorted(backlogs, key=lambda partition: (backlogs[partition].total, partition))
    for at, partition in enumerate(ordered):
        admitted[partition], took = backlogs[partition].admit(remaining // (len(ordered) - at))
        remaining -= took
    return admitted
