"""Why bytes are not archived, and that every one of them is counted once."""

import os
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archival.explanation import Turn, Unarchived, explain
from archival.plan.policy import Policy, Triggers
from archival.watermark import WatermarkOrigin, WatermarkSource
from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, Fenced, HeadwaterError, TransientError, Unauthorised
from headwater_core.segments.local_log import Generation, LocalLog, LocalSegment
from manifests.entry import Entry
from manifests.head import Head
from tests.archival.builders import PARTITION, cut_at, led_by
from tests.headwater_core.segments.builders import a_batch
from tests.manifests.builders import a_gap, a_head, an_entry

WORKING = Turn()
SEALED_AFTER_60_S = Policy(tail_after_ms=60_000)
NOW_MS = 1_000_000


@dataclass(frozen=True)
class Batch:
    base: int
    last: int
    epoch: int
    size_bytes: int


@dataclass(frozen=True)
class World:
    log: LocalLog
    batches: list[Batch]
    head: Head | None

    @property
    def file_bytes(self) -> int:
        return sum(each.size_bytes for each in self.log.segments)


def a_world(
    root: Path,
    sizes: list[tuple[int, int]],
    *,
    rolls: set[int],
    hw: int,
    log_start: int,
    entries: list[Entry],
    torn: bytes = b"",
) -> World:
    """sizes: (records, leader epoch step) of each batch; rolls: batches that begin a segment; the last segment is active."""
    batches, files, offset, epoch, starts = list[Batch](), list[tuple[int, bytes]](), 0, 0, [(0, 0)]
    for at, (records, step) in enumerate(sizes):
        if step:
            epoch += step
            starts.append((epoch, offset))
        raw = a_batch(offset, records, epoch=epoch)
        batches.append(Batch(offset, offset + records - 1, epoch, len(raw)))
        if at == 0 or at in rolls:
            files.append((offset, b""))
        files[-1] = (files[-1][0], files[-1][1] + raw)
        offset += records
    files[-1] = (files[-1][0], files[-1][1] + torn)
    segments = []
    for base, content in files:
        path = root / f"{base:020}.log"
        path.write_bytes(content)
        seen = path.stat()
        segments.append(
            LocalSegment(
                base_offset=base,
                directory=root,
                size_bytes=len(content),
                generation=Generation(seen.st_ino, seen.st_mtime_ns),
                is_active=base == files[-1][0],
            )
        )
    history = EpochHistory.of(cut_at(log_start, starts))
    log = LocalLog(partition=PARTITION, directory=root, segments=tuple(segments), high_watermark=hw, log_start=log_start, epochs=history)
    head = a_head(*entries, partition=PARTITION, writer="w", leader_epoch=epoch) if entries else None
    return World(log, batches, head)


class Drawn(NamedTuple):
    """sizes: (records, leader epoch step) of each batch; spans: (first, end, what the head lists there)."""

    sizes: list[tuple[int, int]]
    rolls: set[int]
    hw: int
    log_start: int
    spans: list[tuple[int, int, str]]
    torn: bytes


@st.composite
def worlds(draw: st.DrawFn) -> Drawn:
    sizes = draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 0, 1])), min_size=1, max_size=12))
    ends = [0]
    for records, _ in sizes:
        ends.append(ends[-1] + records)
    rolls = draw(st.sets(st.integers(1, len(sizes))))
    hw, log_start = draw(st.sampled_from(ends)), draw(st.integers(0, ends[-1]))
    cuts = sorted(draw(st.sets(st.sampled_from(ends), max_size=5)))
    kinds = st.sampled_from(["live", "live", "gap", "dead"])
    spans = [(first, end, draw(kinds)) for first, end in pairwise(cuts)]
    return Drawn(sizes, rolls, hw, log_start, spans, draw(st.sampled_from([b"", b"\0" * 7, a_batch(99, 2)[:-3]])))


@settings(deadline=None, max_examples=150)
@given(drawn=worlds())
def test_ranges_add_up_to_all_bytes_that_are_not_archived(drawn: Drawn, tmp_path_factory: pytest.TempPathFactory) -> None:
    epochs, offset, epoch = dict[int, int](), 0, 0
    for records, step in drawn.sizes:
        epoch += step
        epochs.update(dict.fromkeys(range(offset, offset + records), epoch))
        offset += records
    entries = []
    for first, end, kind in drawn.spans:
        own = [(epochs[first], first)] + [(epochs[at], at) for at in range(first + 1, end) if epochs[at] != epochs[at - 1]]
        dead = [(number + 50, at) for number, at in own]
        one = an_entry(first, end - 1, epochs=own if kind == "live" else dead, partition=PARTITION)
        entries.append(a_gap(first, end - 1) if kind == "gap" else one)
    root = tmp_path_factory.mktemp("log")
    found = a_world(root, drawn.sizes, rolls=drawn.rolls, hw=drawn.hw, log_start=drawn.log_start, entries=entries, torn=drawn.torn)
    live = [(first, end) for first, end, kind in drawn.spans if kind == "live"]
    lacking = [each for each in found.batches if not any(first <= each.last < end for first, end in live)]

    ranges = explain(found.log, found.head, policy=SEALED_AFTER_60_S, tail_age_ms=0, now_ms=NOW_MS, turn=WORKING)

    assert sum(each.size_bytes for each in ranges) == sum(each.size_bytes for each in lacking) + len(drawn.torn)
    assert all(before.next_offset <= after.base_offset for before, after in pairwise(ranges))
    for each in lacking:
        assert sum(span.base_offset <= each.last < span.next_offset for span in ranges) == 1, (each, ranges)


def a_plain_world(root: Path, *, hw: int = 30, entries: tuple[Entry, ...] = (), log_start: int = 0) -> World:
    """Three segments of ten records each, one a batch."""
    return a_world(root, [(1, 0)] * 30, rolls={10, 20}, hw=hw, log_start=log_start, entries=list(entries))


def kinds(ranges: list[Unarchived]) -> list[tuple[str, int, int]]:
    return [(each.why.kind, each.base_offset, each.next_offset) for each in ranges]


FIRST = an_entry(0, 9, partition=PARTITION)


def told(
    world: World, *, policy: Policy = SEALED_AFTER_60_S, turn: Turn | None = WORKING, trouble: str = "", age_ms: int = 5_000
) -> list[Unarchived]:
    return explain(world.log, world.head, policy=policy, tail_age_ms=age_ms, now_ms=NOW_MS, turn=turn, trouble=trouble)


def test_what_waits_for_what(tmp_path: Path) -> None:
    world = a_plain_world(tmp_path, hw=27, entries=(FIRST,))
    assert kinds(told(world)) == [("due", 10, 20), ("seal-timeout", 20, 27), ("above-high-watermark", 27, 30)]
    tail = told(world)[1].why
    assert (tail.since_ms, tail.until_ms) == (NOW_MS - 5_000, NOW_MS + 55_000)
    assert kinds(told(world, age_ms=60_000))[:1] == [("due", 10, 27)]
    assert kinds(told(world, turn=None))[0] == ("no-agent", 10, 20)
    assert kinds(told(world, turn=Turn(in_hand=True)))[0][0] == "in-hand"
    assert "3 partitions" in told(world, turn=Turn(due_before=3))[0].why.reason
    assert kinds(told(world, policy=replace(SEALED_AFTER_60_S, tail_after_ms=None)))[1] == ("active", 20, 27)


def test_what_waits_for_a_trigger_says_until_when(tmp_path: Path) -> None:
    world = a_plain_world(tmp_path, hw=27, entries=(FIRST,))
    written_ns, segments = (NOW_MS - 5_000) * 10**6, []
    for each in world.log.segments:
        os.utime(each.path, ns=(written_ns, written_ns))
        segments.append(replace(each, generation=Generation(each.path.stat().st_ino, written_ns)))
    world = replace(world, log=replace(world.log, segments=tuple(segments)))
    policy = replace(SEALED_AFTER_60_S, triggers=Triggers(8_000, None))
    assert kinds(told(world, policy=policy)) == [("trigger", 10, 20), ("seal-timeout", 20, 27), ("above-high-watermark", 27, 30)]
    assert told(world, policy=policy)[0].why.until_ms == NOW_MS + 3_000
    assert kinds(told(world, policy=replace(policy, triggers=Triggers(5_000, None))))[0] == ("due", 10, 20)


def test_whose_word_the_high_watermark_is_stands_in_the_reason(tmp_path: Path) -> None:
    world = a_plain_world(tmp_path, hw=27, entries=(FIRST,))
    assert "27 (the broker's checkpoint)" in told(world)[2].why.reason
    origin = WatermarkOrigin(WatermarkSource.BROKER, 0.3)
    ranges = explain(world.log, world.head, policy=SEALED_AFTER_60_S, tail_age_ms=0, now_ms=NOW_MS, turn=WORKING, origin=origin)
    assert "27 (the broker's answer of 0.3 s ago)" in ranges[2].why.reason


def test_a_sealed_segment_that_is_not_wholly_committed_waits_with_the_tail(tmp_path: Path) -> None:
    world = a_plain_world(tmp_path, hw=17, entries=(FIRST,))
    assert kinds(told(world)) == [("seal-timeout", 10, 17), ("above-high-watermark", 17, 30)]


def test_an_unclaimed_log_and_one_without_a_high_watermark(tmp_path: Path) -> None:
    world = a_plain_world(tmp_path)
    assert kinds(told(world)) == [("due", 0, 20), ("active", 20, 30)]
    unknown = replace(world, log=replace(world.log, high_watermark=None))
    assert kinds(told(unknown)) == [("no-high-watermark", 0, 30)]


def test_what_no_client_reads_is_told_apart(tmp_path: Path) -> None:
    world = a_plain_world(tmp_path, log_start=15)
    world = replace(world, log=replace(world.log, epochs=EpochHistory.of([(0, 15)])))
    assert kinds(told(world)) == [("below-start", 0, 15), ("due", 15, 20), ("active", 20, 30)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Fenced("agent-b has claimed it"), "fenced"),
        (CorruptData("10.log", 7, "CRC mismatch"), "corrupt"),
        (TransientError("a time-out"), "backing-off"),
        (HeadwaterError("a suspected gap"), "stopped"),
    ],
)
def test_what_stops_a_partition_stops_all_that_is_committed(tmp_path: Path, error: HeadwaterError, kind: str) -> None:
    world = a_plain_world(tmp_path, hw=27, entries=(FIRST,))
    ranges = told(world, turn=Turn(error=error, failing_since_ms=NOW_MS - 9_000, again_in_s=2.5))
    assert kinds(ranges) == [(kind, 10, 27), ("above-high-watermark", 27, 30)]
    why = ranges[0].why
    assert (why.since_ms, why.until_ms) == (NOW_MS - 9_000, NOW_MS + 2_500)
    assert str(error) in why.reason


def test_what_is_set_and_who_leads_comes_before_a_failure(tmp_path: Path) -> None:
    world = a_plain_world(tmp_path, entries=(FIRST,))
    failing = Turn(error=TransientError("a time-out"), again_in_s=1)
    assert kinds(told(world, policy=replace(SEALED_AFTER_60_S, off="archive = off"), turn=failing)) == [("excluded", 10, 30)]
    follower = replace(world, log=replace(world.log, leadership=led_by(2, 0)))
    assert kinds(told(follower, turn=failing)) == [("standby", 10, 30)]
    behind = a_head(FIRST, partition=PARTITION, leader_epoch=7)
    assert kinds(told(replace(world, head=behind), turn=failing)) == [("behind", 10, 30)]
    assert kinds(told(world, turn=replace(failing, probe_in_s=4.0))) == [("store-unavailable", 10, 30)]
    assert kinds(told(world, trouble="a damaged head")) == [("stopped", 10, 30)]


def test_a_store_that_refuses_does_not_count_as_one_without_an_answer(tmp_path: Path) -> None:
    world, refused = a_plain_world(tmp_path, entries=(FIRST,)), Unauthorised("s3://b/a: 403 AccessDenied: access denied")
    [silent] = told(world, turn=Turn(error=TransientError("a time-out"), again_in_s=1, probe_in_s=4.0))
    [denied] = told(world, turn=Turn(error=refused, again_in_s=1, probe_in_s=4.0))
    assert silent.why.reason == "the store does not answer: a time-out"
    assert denied.why.reason == str(refused)


def test_damage_is_where_it_is(tmp_path: Path) -> None:
    world = a_plain_world(tmp_path, entries=(FIRST,))
    path = world.log.segments[1].path
    content = bytearray(path.read_bytes())
    size = len(content) // 10
    content[3 * size + 16] = 9  # the magic byte of the fourth batch
    path.write_bytes(content)
    log = replace(world.log, segments=tuple(_as_it_is(each) for each in world.log.segments), high_watermark=15)
    ranges = told(replace(world, log=log))
    assert [each.why.kind for each in ranges] == ["seal-timeout", "corrupt", "above-high-watermark"]
    assert f"byte {3 * size}" in ranges[1].why.reason
    assert sum(each.size_bytes for each in ranges) == world.file_bytes - world.log.segments[0].size_bytes


def _as_it_is(segment: LocalSegment) -> LocalSegment:
    seen = segment.path.stat()
    return replace(segment, generation=Generation(seen.st_ino, seen.st_mtime_ns))
