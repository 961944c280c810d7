"""Which runs a drill restores: windows of partitions, drawn by a seed, and the plan of a recovery of just these. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from manifests.entry import Entry
from recovery import PartitionPlan, RecoveryPlan, TopicPlan
from recovery.entry_list import EntryList


class Candidate(NamedTuple):
    """A partition that may be drawn: its runs in the order of their offsets, without gaps."""

    topic: str
    partition: int
    runs: Sequence[Entry]


class SampleWindow(NamedTuple):
    """Runs [first, end) of a candidate's."""

    topic: str
    partition: int
    first: int
    end: int


class Drawn(NamedTuple):
    """The sample. share: how much of the candidates' bytes was drawn from: what was requested, or what there is room for."""

    windows: tuple[SampleWindow, ...]
    share: float


def candidates(plan: RecoveryPlan) -> list[Candidate]:
    return [Candidate(topic.topic, each.partition, each.files) for topic in plan.topics for each in topic.partitions if each.files]


def draw(among: Sequence[Candidate], share: float, bytes_max: int, random: Random, *, undivided: Collection[str] = ()) -> Drawn:
    """About `share` of the bytes, and never more than `bytes_max`: of partition after partition, in random order, that share of its runs,
    at least one, beginning anywhere, until there is enough. None where not even one run fits.

    undivided  topics of which all is drawn, whatever the share, or nothing where they do not fit together
    """
    entire = [candidate for candidate in among if candidate.topic in undivided]
    size_bytes = sum(run.live_bytes for candidate in entire for run in candidate.runs)
    fitting = entire if size_bytes <= bytes_max else []
    others = [candidate for candidate in among if candidate.topic not in undivided]
    drawn = _draw(others, share, bytes_max - (size_bytes if fitting else 0), random)
    windows = [SampleWindow(topic, partition, 0, len(runs)) for topic, partition, runs in fitting]
    return Drawn(tuple(sorted((*drawn.windows, *windows))), drawn.share)


def _draw(among: Sequence[Candidate], share: float, bytes_max: int, random: Random) -> Drawn:
    sizes = [[run.live_bytes for run in each.runs] for each in among]
    total = sum(map(sum, sizes))
    if not total:
        return Drawn((), share)
    share = min(share, bytes_max / total)
    left = round(total * share)
    windows: list[SampleWindow] = []
    order = list(range(len(among)))
    random.shuffle(order)
    for at in order:
        count = max(1, round(len(sizes[at]) * share))
        first = random.randrange(len(sizes[at]) - count + 1)
        end = first
        while end < first + count and sizes[at][end] <= (left if windows or end > first else bytes_max):
            left -= sizes[at][end]
            end += 1
        if end > first:
            windows.append(SampleWindow(among[at].topic, among[at].partition, first, end))
        if left <= 0:
            break
    return Drawn(tuple(sorted(windows)), share)


def narrowed(plan: RecoveryPlan, windows: Iterable[SampleWindow], *, kept_topics: Collection[str] = ()) -> RecoveryPlan:
    """The plan of a recovery of these windows alone: every other partition is empty at its number, its log ends where it did.

    kept_topics  stay in the plan though nothing of them was drawn
    """
    by_place = {(each.topic, each.partition): each for each in windows}
    drawn = {topic for topic, _ in by_place} | set(kept_topics)
    topics = tuple(_narrowed_topic(topic, by_place) for topic in plan.topics if topic.topic in drawn)
    places = {(topic.topic, each.partition): range(each.start_offset, each.next_offset) for topic in topics for each in topic.partitions}
    holes = tuple(hole for hole in plan.holes if hole.base_offset in places.get((hole.topic, hole.partition), ()))
    return replace(plan, topics=topics, holes=holes)


def _narrowed_topic(topic: TopicPlan, windows: Mapping[tuple[str, int], SampleWindow]) -> TopicPlan:
    return replace(topic, partitions=tuple(_narrowed(each, windows.get((topic.topic, each.partition))) for each in topic.partitions))


def _narrowed(partition: PartitionPlan, window: SampleWindow | None) -> PartitionPlan:
    if window is None:
        end = partition.next_offset
        return replace(partition, start_offset=end, entries=(), written=(), open_from=None)
    files = partition.files
    if (window.first, window.end) == (0, len(files)):
        return partition
    first, last = files[window.first], files[window.end - 1]
    entries = EntryList.of(entry for entry in partition.entries if first.base_offset <= entry.base_offset <= last.base_offset)
    is_last = window.end == len(files)
    if is_last:  # with a gap that is behind it, and what recovery writes at the end
        entries += partition.listed[partition.entries.index(last) + 1 :]
    start = max(partition.start_offset, first.base_offset)
    end = partition.next_offset if is_last else last.next_offset
    written = tuple(each for each in partition.written if each.base_offset >= start and (is_last or each.next_offset <= end))
    open_from = partition.open_from if is_last else None
    return replace(
        partition,
        start_offset=start,
        next_offset=end,
        entries=entries,
        written=written,
        open_from=None if open_from is None else max(open_from, start),
    )
